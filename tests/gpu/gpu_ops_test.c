/* The ops that are no products, on the GPU against the cpu, and rows alone against rows together.
 */
#include "tests/support/gpu_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static side cpu, gpu;

static void close_to(const char *what, const float *got, const float *want, uint64_t n, double eps)
{
    for (uint64_t i = 0; i < n; i++) {
        double w = (double)want[i];
        if (!(fabs((double)got[i] - w) <= 1e-30 + fabs(w) * eps))
            fail_msg("%s: value %llu is %a, the cpu's %a", what, (unsigned long long)i,
                     (double)got[i], w);
    }
}

static void rms_norm_rows(void **state)
{
    (void)state;
    seeded s = {1};
    static const uint32_t widths[] = {1, 7, 255, 256, 257, 4096, 14337};
    const uint32_t n_rows = 5;
    for (int i = 0; i < 7; i++) {
        uint64_t n = widths[i], bytes = 4 * n * n_rows;
        float *x = seeded_floats(&s, n * n_rows, 4), *w = seeded_floats(&s, n, 2);
        float *out[3] = {malloc(bytes), malloc(bytes), malloc(bytes)};
        const side *both[] = {&cpu, &gpu};
        for (int k = 0; k < 2; k++) {
            const side *on = both[k];
            dev_ptr xs = side_put(on, x, bytes), ws = side_put(on, w, 4 * n);
            assert_int_equal(on->b->rms_norm(on->q, xs, xs, ws, (uint32_t)n, 1e-5f, n_rows), ST_OK);
            side_get(on, out[k], xs, bytes);
            side_free(on, xs, bytes);
            side_free(on, ws, 4 * n);
        }
        close_to("rms_norm", out[1], out[0], n * n_rows, 2e-6);
        dev_ptr xs = side_put(&gpu, x, bytes), ws = side_put(&gpu, w, 4 * n);
        for (uint32_t r = 0; r < n_rows; r++) {
            dev_ptr row = dev_offset(xs, 4 * n * r);
            assert_int_equal(gpu.b->rms_norm(gpu.q, row, row, ws, (uint32_t)n, 1e-5f, 1), ST_OK);
        }
        side_get(&gpu, out[2], xs, bytes);
        assert_true(same_bits("rms_norm, rows alone", out[2], out[1], n * n_rows));
        side_free(&gpu, xs, bytes);
        side_free(&gpu, ws, 4 * n);
        for (int k = 0; k < 3; k++)
            free(out[k]);
        free(x);
        free(w);
    }
}

static void elementwise(void **state)
{
    (void)state;
    seeded s = {2};
    static const uint64_t sizes[] = {1, 255, 4096, 100003};
    for (int i = 0; i < 4; i++) {
        uint64_t n = sizes[i], bytes = 4 * n;
        float *x = seeded_floats(&s, n, 6), *y = seeded_floats(&s, n, 4);
        float *out[2][3];
        const side *both[] = {&cpu, &gpu};
        for (int k = 0; k < 2; k++) {
            const side *on = both[k];
            dev_ptr ys = side_put(on, y, bytes);
            for (int op = 0; op < 3; op++) {
                dev_ptr xs = side_put(on, x, bytes);
                status st = op == 0   ? on->b->silu_mul(on->q, xs, xs, ys, n)
                            : op == 1 ? on->b->gelu_mul(on->q, xs, xs, ys, n)
                                      : on->b->add(on->q, xs, ys, n);
                assert_int_equal(st, ST_OK);
                out[k][op] = malloc(bytes);
                side_get(on, out[k][op], xs, bytes);
                side_free(on, xs, bytes);
            }
            side_free(on, ys, bytes);
        }
        /* The same explicit operations: the same bits as the cpu's. */
        static const char *const names[] = {"silu_mul", "gelu_mul", "add"};
        for (int op = 0; op < 3; op++) {
            assert_true(same_bits(names[op], out[0][op], out[1][op], n));
            free(out[0][op]);
            free(out[1][op]);
        }
        free(x);
        free(y);
    }
}

static void rope_turns_as_the_cpu(void **state)
{
    (void)state;
    seeded s = {3};
    static const uint32_t shapes[][3] = {{8, 8, 1}, {64, 128, 8}, {128, 128, 32}, {6, 7, 3}};
    const uint32_t n_rows = 9;
    for (int i = 0; i < 8; i++) {
        uint32_t n_rot = shapes[i / 2][0], n_head = shapes[i / 2][1], n_heads = shapes[i / 2][2];
        uint64_t n = (uint64_t)n_rows * n_heads * n_head, n_angles = (uint64_t)n_rows * n_rot / 2;
        float *x = seeded_floats(&s, n, 4), *c = seeded_floats(&s, n_angles, 0);
        float *d = seeded_floats(&s, n_angles, 0), *out[2] = {malloc(4 * n), malloc(4 * n)};
        const side *both[] = {&cpu, &gpu};
        for (int k = 0; k < 2; k++) {
            const side *on = both[k];
            dev_ptr xs = side_put(on, x, 4 * n);
            rope_args a = {side_put(on, c, 4 * n_angles), side_put(on, d, 4 * n_angles), n_rot,
                           i % 2};
            assert_int_equal(on->b->rope(on->q, xs, &a, n_heads, n_head, n_rows), ST_OK);
            side_get(on, out[k], xs, 4 * n);
            side_free(on, xs, 4 * n);
            side_free(on, a.cos, 4 * n_angles);
            side_free(on, a.sin, 4 * n_angles);
        }
        assert_true(same_bits("rope", out[0], out[1], n));
        for (int k = 0; k < 2; k++)
            free(out[k]);
        free(x);
        free(c);
        free(d);
    }
}

static void embeddings_are_exact(void **state)
{
    (void)state;
    seeded s = {4};
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};
    const uint32_t n_in = 320, n_vocab = 77, n_rows = 6, tokens[6] = {0, 76, 3, 3, 8, 41};
    for (int i = 0; i < 8; i++) {
        void *base;
        const void *stored = seeded_stored(&s, types[i / 2], (uint64_t)n_in * n_vocab, 3, &base);
        float out[2][6 * 320];
        const side *both[] = {&cpu, &gpu};
        for (int k = 0; k < 2; k++) {
            const side *on = both[k];
            errmsg e = {0};
            dev_weight w;
            assert_int_equal(on->b->weight_open(on->d, &w, stored, types[i / 2], n_in, n_vocab, &e),
                             ST_OK);
            dev_ptr t = side_put(on, tokens, sizeof tokens), to = side_put(on, NULL, sizeof out[0]);
            assert_int_equal(on->b->embed(on->q, to, &w, t, i % 2 ? 17.9f : 1, n_rows), ST_OK);
            side_get(on, out[k], to, sizeof out[0]);
            side_free(on, t, sizeof tokens);
            side_free(on, to, sizeof out[0]);
        }
        assert_true(same_bits(dtype_get(types[i / 2])->name, out[0], out[1], n_in * n_rows));
        free(base);
    }
}

static void finite_is_seen_per_row(void **state)
{
    (void)state;
    enum { N = 1000, R = 4 };
    float x[N * R];
    uint8_t flags[R];
    for (int i = 0; i < N * R; i++)
        x[i] = 3e38f;
    x[N + 999] = NAN;
    x[3 * N] = -INFINITY;
    dev_ptr xs = side_put(&gpu, x, sizeof x), f = side_put(&gpu, NULL, R);
    assert_int_equal(gpu.b->check_finite(gpu.q, f, xs, N, R), ST_OK);
    side_get(&gpu, flags, f, R);
    static const uint8_t want[R] = {0, 1, 0, 1};
    assert_memory_equal(flags, want, R);
    side_free(&gpu, xs, sizeof x);
    side_free(&gpu, f, R);
}

static void errors_are_told(void **state)
{
    (void)state;
    errmsg e = {0};
    backend_device *d;
    device_spec spec = {.cuda_index = 999};
    assert_int_equal(gpu.b->device_open(&d, &spec, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "999"));
    errmsg_clear(&e);
    spec = (device_spec){.cuda_uuid = "GPU-00000000-0000-0000-0000-000000000000"};
    assert_int_equal(gpu.b->device_open(&d, &spec, &e), ST_RESOURCES);
    errmsg_clear(&e);
    dev_ptr p;
    assert_int_equal(gpu.b->alloc(gpu.d, &p, 1ull << 50, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "free"));
    p = side_put(&gpu, NULL, 64); /* and the device lives on */
    side_free(&gpu, p, 64);
    backend_gpu g;
    uint32_t n;
    errmsg_clear(&e);
    assert_int_equal(backend_gpus(&g, 1, &n, &e), ST_OK);
    spec = (device_spec){.cuda_index = 999, .cuda_uuid = g.uuid, .n_threads = 1};
    assert_int_equal(gpu.b->device_open(&d, &spec, &e), ST_OK);
    gpu.b->device_close(d);
}

int main(void)
{
    if (!gpu_begin(&cpu, &gpu, 200)) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_rows),          cmocka_unit_test(elementwise),
        cmocka_unit_test(rope_turns_as_the_cpu),  cmocka_unit_test(embeddings_are_exact),
        cmocka_unit_test(finite_is_seen_per_row), cmocka_unit_test(errors_are_told),
    };
    int failed = cmocka_run_group_tests_name("gpu ops", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return failed;
}
