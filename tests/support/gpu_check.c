#include "tests/support/gpu_check.h"

#include "tests/support/tap.h"

#include <stdio.h>
#include <unistd.h>

static void open_side(side *s, const backend *b)
{
    errmsg e = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    device_spec spec = {
        .numa_node = UINT32_MAX, .n_threads = (uint32_t)(cores > 8 ? 8 : cores), .isa = "auto"};
    *s = (side){.b = b};
    if (b->device_open(&s->d, &spec, &e) == ST_OK && b->queue_open(s->d, &s->q, &e) == ST_OK)
        return;
    printf("Bail out! %s\n", e.text);
    _exit(1);
}

bool gpu_begin(side *cpu, side *gpu, unsigned limit_s)
{
    backend_gpu one;
    uint32_t n = 0;
    errmsg e = {0};
    if (backend_gpus(&one, 1, &n, &e) != ST_OK || n == 0) {
        printf("1..0 # SKIP no CUDA device\n");
        return false;
    }
    tap_begin(limit_s);
    open_side(cpu, backend_cpu());
    open_side(gpu, backend_cuda());
    printf("# %s\n", gpu->b->device_name(gpu->d));
    return true;
}

void gpu_end(side *cpu, side *gpu)
{
    side *both[] = {cpu, gpu};
    for (int i = 0; i < 2; i++) {
        both[i]->b->queue_close(both[i]->q);
        both[i]->b->device_close(both[i]->d);
    }
}

static void finish(const side *s)
{
    backend_event ev;
    assert_int_equal(s->b->event_record(s->q, &ev), ST_OK);
    assert_int_equal(s->b->event_wait(s->q, ev), ST_OK);
    assert_true(s->b->event_done(s->q, ev));
}

dev_ptr side_put(const side *s, const void *host, uint64_t bytes)
{
    errmsg e = {0};
    dev_ptr p;
    if (s->b->alloc(s->d, &p, bytes, &e) != ST_OK) fail_msg("%s", e.text);
    if (host != NULL) {
        assert_int_equal(s->b->upload(s->q, p, host, bytes), ST_OK);
        finish(s);
    }
    return p;
}

void side_get(const side *s, void *host, dev_ptr from, uint64_t bytes)
{
    assert_int_equal(s->b->download(s->q, host, from, bytes), ST_OK);
    finish(s);
}

void side_free(const side *s, dev_ptr p, uint64_t bytes)
{
    if (p.addr != 0) s->b->free(s->d, p, bytes);
}

double distance(const float *a, const float *b, uint64_t n)
{
    double error = 0, size = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        error += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? error / size : error;
}
