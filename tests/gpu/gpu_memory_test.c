/* What stages take of a GPU against what the plan says, within 5 % of the peak that the driver
 * tells while they load, prime a full chunk and decode. Random models of real widths; nothing else
 * may run there. */
#include "coordinator/pipeline.h"
#include "coordinator/shape/shape.h"
#include "kernels/backend.h"
#include "tests/support/tap.h"

#include "common/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_NS (2 * NS_PER_MS)

typedef struct {
    const char *shape, *type;
    uint32_t n_stages, n_ctx, n_sessions;
} memory_case;

static const memory_case cases[] = {
    {"1b", "q8_0", 1, 2048, 1},         {"1b", "bf16", 2, 4096, 4}, {"3b", "q6_k", 1, 8192, 2},
    {"8b,layers=8", "f16", 4, 1000, 3}, {"8b", "q4_k", 1, 4096, 1}, {"8b", "q8_0", 2, 4096, 8},
};

static backend_device *device; /* a context of our own, to ask the driver with */
static char dir[] = "/tmp/memra-m.XXXXXX";

static uint64_t free_now(void)
{
    uint64_t free_bytes, held;
    errmsg e = {0};
    if (backend_cuda()->memory(device, &free_bytes, &held, &e) != ST_OK) fail_msg("%s", e.text);
    return free_bytes;
}

typedef struct {
    _Atomic bool stop;
    uint64_t least;
} watch;

static void *watching(void *arg)
{
    watch *w = arg;
    while (!w->stop) {
        uint64_t now = free_now();
        if (now < w->least) w->least = now;
        nanosleep(&(struct timespec){.tv_nsec = (long)LOOK_NS}, NULL);
    }
    return NULL;
}

/* A prompt of the longest chunk and a step more, by every session. */
static void use(pipeline *p, uint32_t n_sessions)
{
    const plan *planned = pipeline_plan(p);
    uint32_t n = planned->rows_max < planned->n_ctx ? planned->rows_max : planned->n_ctx - 1, next;
    uint32_t *tokens = calloc(n, sizeof *tokens);
    sampler_params greedy = sampler_default();
    errmsg e = {0};
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i * 37 % pipeline_model(p)->n_vocab;
    for (uint32_t i = 0; i < n_sessions; i++) {
        session *s;
        if (session_open(p, &greedy, &s, &e) != ST_OK) fail_msg("%s", e.text);
        if (session_prime(s, tokens, n, NULL, &next, &e) != ST_OK) fail_msg("%s", e.text);
        if (session_step(s, next, NULL, &next, &e) != ST_OK) fail_msg("%s", e.text);
        session_drop(s);
    }
    free(tokens);
}

static pipeline *open_case(const memory_case *c, shape *s, int *fd)
{
    static doors d; /* outlives the options */
    errmsg e = {0};
    d = doors_default();
    d.n_stages = d.n_devices = c->n_stages;
    for (uint32_t i = 0; i < c->n_stages; i++)
        d.device[i] = (device_door){.kind = DEVICE_CUDA};
    if (shape_parse(s, c->shape, c->type, &e) != ST_OK) fail_msg("%s", e.text);
    if (shape_open(fd, s, &e) != ST_OK) fail_msg("%s", e.text);
    if (shape_fill(*fd, s, 0, NULL, &e) != ST_OK) fail_msg("%s", e.text);
    pipeline_options o = pipeline_options_default(s->name, &d);
    o.model_fd = *fd;
    o.stage_program = MEMRA_BINARY_DIR "/bin/memra-stage";
    o.run_dir = dir;
    o.plan.kv_type = DT_F16;
    o.plan.n_ctx = c->n_ctx;
    o.plan.n_sessions = c->n_sessions;
    pipeline *p;
    if (pipeline_open(&p, &o, NULL, &e) != ST_OK) fail_msg("%s", e.text);
    return p;
}

static bool check(const memory_case *c)
{
    shape s;
    int fd;
    pthread_t thread;
    uint64_t before = free_now(), planned = 0;
    watch w = {.least = before};
    assert_int_equal(pthread_create(&thread, NULL, watching, &w), 0);
    pipeline *p = open_case(c, &s, &fd);
    use(p, c->n_sessions);
    uint64_t after = free_now();
    w.stop = true;
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < c->n_stages; i++)
        planned += pipeline_plan(p)->stage[i].device_bytes;
    double mb = 1e6, peak = (double)(before - w.least), off = 100 * (peak / (double)planned - 1);
    printf("# %-11s %-5s N=%u: planned %8.1f MB, peak %8.1f MB (%+.1f %%), at the end %8.1f MB\n",
           c->shape, c->type, c->n_stages, (double)planned / mb, peak / mb, off,
           (double)(before - after) / mb);
    fflush(stdout);
    pipeline_close(p);
    close(fd);
    return fabs(off) <= 5;
}

static void the_plan_is_what_is_taken(void **state)
{
    (void)state;
    bool good = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        good = check(&cases[i]) && good;
    assert_true(good);
}

int main(void)
{
    backend_gpu one;
    uint32_t n = 0;
    errmsg e = {0};
    if (backend_gpus(&one, 1, &n, &e) != ST_OK || n == 0) {
        printf("1..0 # SKIP no CUDA device\n");
        return 0;
    }
    tap_begin(200);
    const device_spec spec = {.n_threads = 1};
    if (backend_cuda()->device_open(&device, &spec, &e) != ST_OK) {
        printf("Bail out! %s\n", e.text);
        return 1;
    }
    if (mkdtemp(dir) == NULL) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_is_what_is_taken)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_cuda()->device_close(device);
    rmdir(dir);
    return failed;
}
