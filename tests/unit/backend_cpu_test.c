/* The cpu table as a stage uses it: opening, memory and its refusal, events, and every op with one,
 * two and three threads. */
#include "common/amount.h"
#include "tests/support/kernel_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static status try_open(backend_device **d, const char *isa, uint32_t n_threads, uint32_t node,
                       errmsg *e)
{
    device_spec spec = {.numa_node = node, .n_threads = n_threads, .isa = isa};
    errmsg_clear(e);
    return backend_cpu()->device_open(d, &spec, e);
}

static dev_ptr on_host(const void *p)
{
    return (dev_ptr){(uintptr_t)p};
}

static void opening_and_refusing(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    errmsg e;
    assert_string_equal(b->name, "cpu");
    assert_string_equal(backend_names(), backend_cuda() != NULL ? "cpu, cuda" : "cpu");
    assert_ptr_equal(backend_get(DEVICE_CPU), b);
    assert_ptr_equal(backend_get(DEVICE_CUDA), backend_cuda());
    assert_int_equal(try_open(&d, "ref", 1, UINT32_MAX, &e), ST_OK);
    assert_string_equal(b->device_name(d), "cpu ref, 1 thread");
    b->device_close(d);
    assert_int_equal(try_open(&d, "ref", 3, UINT32_MAX, &e), ST_OK);
    assert_string_equal(b->device_name(d), "cpu ref, 3 threads");
    b->device_close(d);

    assert_int_equal(try_open(&d, "sse9", 1, UINT32_MAX, &e), ST_RESOURCES);
    assert_null(d);
    assert_non_null(strstr(e.text, "sse9"));
    assert_int_equal(try_open(&d, "auto", 0, UINT32_MAX, &e), ST_RESOURCES);
    assert_null(d);
    assert_int_equal(try_open(&d, "auto", 2, 4711, &e), ST_RESOURCES);
    assert_null(d);
    assert_non_null(strstr(e.text, "cpu:4711: no such NUMA node; this machine's nodes are 0"));
    b->device_close(NULL);
}

/* In a machine without NUMA the only node is 0, and binding to it changes no result. */
static void node_0_works(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    errmsg e;
    assert_int_equal(try_open(&d, "ref", 2, 0, &e), ST_OK);
    assert_string_equal(b->device_name(d), "cpu ref, 2 threads, node 0");
    dev_ptr p;
    assert_int_equal(b->alloc(d, &p, 4 << 20, &e), ST_OK);
    memset((void *)(uintptr_t)p.addr, 1, 4 << 20);
    b->free(d, p, 4 << 20);
    b->device_close(d);
}

static void supports_what_it_says(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    errmsg e;
    assert_int_equal(try_open(&d, "auto", 1, UINT32_MAX, &e), ST_OK);
    for (uint32_t t = 0; t < DT_COUNT; t++) {
        static const dtype with_products[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q8_0, DT_Q4_0,
                                              DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q2_K, DT_Q3_K,
                                              DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};
        bool weights = false;
        for (size_t i = 0; i < sizeof with_products / sizeof *with_products; i++)
            weights |= t == with_products[i];
        bool kv = t == DT_F32 || t == DT_F16 || t == DT_BF16;
        assert_int_equal(b->supports(d, OP_MATMUL, t), weights);
        assert_int_equal(b->supports(d, OP_EMBED, t), weights);
        assert_int_equal(b->supports(d, OP_KV_WRITE, t), kv);
        assert_int_equal(b->supports(d, OP_ATTENTION, t), kv);
        assert_int_equal(b->supports(d, OP_RMS_NORM, t), t == DT_F32);
    }
    assert_false(b->supports(d, (op_kind)99, DT_F32));
    b->device_close(d);
}

static void memory_is_zero_and_aligned(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    errmsg e;
    assert_int_equal(try_open(&d, "auto", 1, UINT32_MAX, &e), ST_OK);
    static const uint64_t sizes[] = {1, 63, 64, 65, 1 << 20, (1 << 20) - 1, 5 << 20};
    for (int i = 0; i < 7; i++) {
        dev_ptr p;
        assert_int_equal(b->alloc(d, &p, sizes[i], &e), ST_OK);
        assert_int_equal(p.addr % 64, 0);
        const uint8_t *c = (const uint8_t *)(uintptr_t)p.addr;
        for (uint64_t j = 0; j < sizes[i]; j++) assert_int_equal(c[j], 0);
        memset((void *)(uintptr_t)p.addr, 0xee, sizes[i]);
        b->free(d, p, sizes[i]);
    }
    dev_ptr none = {1};
    assert_int_equal(b->alloc(d, &none, 0, &e), ST_OK);
    assert_int_equal(none.addr, 0);
    b->free(d, none, 0);
    b->device_close(d);
}

static void memory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    errmsg e;
    assert_int_equal(try_open(&d, "auto", 1, UINT32_MAX, &e), ST_OK);
    /* All there is in the machine: the kernel would promise it, but it is not available. */
    struct sysinfo machine;
    assert_int_equal(sysinfo(&machine), 0);
    uint64_t all = (uint64_t)(machine.totalram + machine.totalswap) * machine.mem_unit;
    const uint64_t sizes[] = {all, 1ull << 50, UINT64_MAX - 100, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        dev_ptr p = {1};
        errmsg_clear(&e);
        assert_int_equal(b->alloc(d, &p, sizes[i], &e), ST_RESOURCES);
        assert_int_equal(p.addr, 0);
        assert_non_null(strstr(e.text, amount_said(sizes[i])));
        assert_non_null(strstr(e.text, "available"));
    }
#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
    /* A limit on the process. (The sanitizers' shadow memory does not live with one.) */
    struct rlimit old, low = {64 << 20, 64 << 20};
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    low.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    dev_ptr p = {1};
    errmsg_clear(&e);
    status s = b->alloc(d, &p, 256 << 20, &e);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(s, ST_RESOURCES);
    assert_int_equal(p.addr, 0);
    assert_non_null(strstr(e.text, "cannot allocate 268.4 MB"));
    assert_non_null(strstr(e.text, "limited to 67.1 MB of address space"));
#endif
#endif
    b->device_close(d);
}

static void events_are_done_in_order(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    backend_queue *q, *r;
    errmsg e;
    assert_int_equal(try_open(&d, "auto", 1, UINT32_MAX, &e), ST_OK);
    assert_int_equal(b->queue_open(d, &q, &e), ST_OK);
    assert_int_equal(b->queue_open(d, &r, &e), ST_OK);
    backend_event first, second;
    assert_int_equal(b->event_record(q, &first), ST_OK);
    assert_true(b->event_done(q, first));
    assert_false(b->event_done(q, (backend_event){first.value + 1}));
    assert_int_equal(b->event_record(r, &second), ST_OK);
    assert_true(second.value > first.value);
    assert_int_equal(b->queue_wait(q, second), ST_OK); /* of another queue of the device */
    assert_int_equal(b->event_wait(q, first), ST_OK);
    uint8_t from[5] = {1, 2, 3, 4, 5}, back[5] = {0};
    dev_ptr p, to;
    assert_int_equal(b->alloc(d, &p, 64, &e), ST_OK);
    assert_int_equal(b->alloc(d, &to, 64, &e), ST_OK);
    assert_int_equal(b->upload(q, p, from, 5), ST_OK);
    assert_int_equal(b->copy(q, to, p, 5), ST_OK);
    assert_int_equal(b->download(q, back, to, 5), ST_OK);
    assert_memory_equal(from, back, 5);
    assert_int_equal(b->copy(q, (dev_ptr){0}, (dev_ptr){0}, 0), ST_OK);
    b->free(d, p, 64);
    b->free(d, to, 64);
    b->queue_close(q);
    b->queue_close(r);
    b->device_close(d);
}

static void embedding_is_the_row_times_scale(void **state)
{
    (void)state;
    const backend *b = backend_cpu();
    backend_device *d;
    backend_queue *q;
    errmsg e;
    assert_int_equal(try_open(&d, "auto", 1, UINT32_MAX, &e), ST_OK);
    assert_int_equal(b->queue_open(d, &q, &e), ST_OK);
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};
    seeded s = {20};
    for (int t = 0; t < 4; t++) {
        void *base;
        const void *stored = seeded_stored(&s, types[t], 64 * 7, 4, &base);
        float table[64 * 7], out[64 * 3], want[64 * 3];
        cpu_isa_ref.to_f32(table, stored, types[t], 64 * 7);
        const uint32_t tokens[] = {6, 0, 6};
        dev_weight w = {.data = on_host(stored), .type = types[t], .n_in = 64, .n_out = 7};
        for (int scaled = 0; scaled < 2; scaled++) {
            float scale = scaled ? 8.25f : 1.0f;
            for (int i = 0; i < 64 * 3; i++) want[i] = table[tokens[i / 64] * 64 + i % 64] * scale;
            assert_int_equal(b->embed(q, on_host(out), &w, on_host(tokens), scale, 3), ST_OK);
            assert_true(same_bits(dtype_get(types[t])->name, want, out, 64 * 3));
        }
        free(base);
    }
    b->queue_close(q);
    b->device_close(d);
}

/* All ops without KV: products on n_rows rows, the others on n_rows * MORE; results one after the
 * other in out. */
enum { N = 416, OUT = 224, HEADS = 13, MORE = 13 };
typedef struct {
    const void *w, *norm, *bias;
    const float *x, *y, *cos, *sin;
    const uint32_t *tokens;
    dtype type;
} inputs;

static uint64_t run_all(const char *isa, uint32_t n_threads, const inputs *in, uint32_t n_rows,
                        float *out, uint8_t *flags)
{
    const backend *b = backend_cpu();
    backend_device *d;
    backend_queue *q;
    errmsg e;
    assert_int_equal(try_open(&d, isa, n_threads, UINT32_MAX, &e), ST_OK);
    assert_int_equal(b->queue_open(d, &q, &e), ST_OK);
    dev_weight w = {.type = in->type, .n_in = N, .n_out = OUT};
    assert_int_equal(b->weights_from_host(d, &w.data, in->w, dtype_bytes(in->type, N * OUT), &e),
                     ST_OK);
    assert_int_equal(w.data.addr, (uintptr_t)in->w);
    dev_ptr x = on_host(in->x), y = on_host(in->y), none = {0};
    float *o = out;
    assert_int_equal(b->matmul(q, on_host(o), &w, x, on_host(in->bias), n_rows), ST_OK);
    o += (uint64_t)n_rows * OUT;
    assert_int_equal(b->matmul(q, on_host(o), &w, x, none, n_rows), ST_OK);
    o += (uint64_t)n_rows * OUT;
    n_rows *= MORE;
    uint64_t n = (uint64_t)n_rows * N;
    assert_int_equal(b->embed(q, on_host(o), &w, on_host(in->tokens), 1.0f, n_rows), ST_OK);
    o += n;
    assert_int_equal(b->embed(q, on_host(o), &w, on_host(in->tokens), 1.7f, n_rows), ST_OK);
    o += n;
    assert_int_equal(b->rms_norm(q, on_host(o), x, on_host(in->norm), N, 1e-6f, n_rows), ST_OK);
    o += n;
    rope_args rope = {on_host(in->cos), on_host(in->sin), 20, false};
    if (n > 0) memcpy(o, in->x, n * sizeof *o);
    assert_int_equal(b->rope(q, on_host(o), &rope, HEADS, N / HEADS, n_rows), ST_OK);
    o += n;
    assert_int_equal(b->silu_mul(q, on_host(o), x, y, n), ST_OK);
    o += n;
    if (n > 0) memcpy(o, in->x, n * sizeof *o);
    assert_int_equal(b->add(q, on_host(o), y, n), ST_OK);
    o += n;
    assert_int_equal(b->check_finite(q, on_host(flags), x, N, n_rows), ST_OK);
    b->queue_close(q);
    b->device_close(d);
    return (uint64_t)(o - out);
}

/* Large enough that several threads take part, and small enough that one does all. */
static void threads_do_not_change_bits(void **state)
{
    (void)state;
    const cpu_isa *isas[CHECK_ISAS];
    uint32_t n_isas = check_isas(isas);
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};
    static const uint32_t rows[] = {0, 1, 3, 20};
    enum { ROWS_MAX = 20 * MORE };
    seeded s = {21};
    uint64_t n_out = ROWS_MAX * (6ull * N + 2 * OUT);
    float *want = calloc(n_out, sizeof *want), *got = calloc(n_out, sizeof *got);
    assert_true(want && got);
    for (int t = 0; t < 4; t++) {
        void *base[3];
        uint32_t tokens[ROWS_MAX];
        for (int i = 0; i < ROWS_MAX; i++) tokens[i] = seeded_below(&s, OUT);
        float *x = seeded_floats(&s, ROWS_MAX * N, 4), *y = seeded_floats(&s, ROWS_MAX * N, 4);
        float *angle = seeded_floats(&s, ROWS_MAX * 20, 1);
        inputs in = {.w = seeded_stored(&s, types[t], N * OUT, 4, &base[0]),
                     .norm = seeded_stored(&s, DT_F32, N, 2, &base[1]),
                     .bias = seeded_stored(&s, DT_F32, OUT, 2, &base[2]),
                     .x = x, .y = y, .cos = angle, .sin = angle + ROWS_MAX * 10,
                     .tokens = tokens, .type = types[t]};
        for (int r = 0; r < 4; r++) {
            uint32_t n_flags = rows[r] * MORE;
            uint8_t flags[ROWS_MAX + 1];
            if (n_flags > 0) x[(n_flags - 1) * N + 5] = INFINITY;
            for (uint32_t i = 0; i < n_isas; i++) {
                for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
                    bool reference = i == 0 && n_threads == 1;
                    memset(flags, 77, sizeof flags);
                    uint64_t n = run_all(isas[i]->name, n_threads, &in, rows[r],
                                         reference ? want : got, flags);
                    char what[64];
                    snprintf(what, sizeof what, "%s, %u threads, %s, %u rows", isas[i]->name,
                             n_threads, dtype_get(types[t])->name, rows[r]);
                    if (!reference) assert_true(same_bits(what, want, got, n));
                    assert_int_equal(flags[n_flags], 77);
                    for (uint32_t k = 0; k < n_flags; k++)
                        assert_int_equal(flags[k], k == n_flags - 1);
                }
            }
            if (n_flags > 0) x[(n_flags - 1) * N + 5] = 1;
        }
        for (int i = 0; i < 3; i++) free(base[i]);
        free(x);
        free(y);
        free(angle);
    }
    free(want);
    free(got);
}

int main(void)
{
    tap_begin(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_and_refusing),
        cmocka_unit_test(node_0_works),
        cmocka_unit_test(supports_what_it_says),
        cmocka_unit_test(memory_is_zero_and_aligned),
        cmocka_unit_test(memory_that_is_not_there_is_refused),
        cmocka_unit_test(events_are_done_in_order),
        cmocka_unit_test(embedding_is_the_row_times_scale),
        cmocka_unit_test(threads_do_not_change_bits),
    };
    return cmocka_run_group_tests_name("backend_cpu", tests, NULL, NULL);
}
