/* The ops that are no products, on the GPU against the cpu, and rows alone against rows together.
 */
#include "stage/rope.h"
#include "tests/support/gpu_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* Every position up to 131,072 and some up to the longest context, for the rotations that models
 * have: plain, llama 3's factors, linear, yarn. */
static void angles_have_the_cpus_bits(void **state)
{
    (void)state;
    enum { NEAR = 131073, FAR = 1000, ROWS = NEAR + FAR };
    static const rope_desc kinds[] = {
        {.n_rot = 128, .base = 500000, .factor = 1, .attn_factor = 1},
        {.n_rot = 64, .base = 10000, .factor = 8, .attn_factor = 1, .scaling = ROPE_SCALING_LINEAR},
        {.n_rot = 128, .base = 1000000, .factor = 4, .attn_factor = 1.1386294f, .beta_fast = 32,
         .beta_slow = 1, .n_ctx_orig = 32768, .scaling = ROPE_SCALING_YARN},
        {.n_rot = 2, .base = 10000, .factor = 1, .attn_factor = 1}};
    seeded s = {5};
    float factors[64];
    for (int i = 0; i < 64; i++)
        factors[i] = i < 29 ? 1 : i < 35 ? 1 + (float)(i - 28) : 8;
    uint32_t *position = malloc(4 * ROWS);
    for (uint32_t r = 0; r < ROWS; r++)
        position[r] = r < NEAR ? r : r == NEAR ? (1u << 24) - 1 : seeded_below(&s, 1u << 24);
    for (int i = 0; i < 5; i++) { /* the first with factors, then without */
        rope_table t;
        errmsg e = {0};
        const rope_desc *d = &kinds[i == 0 ? 0 : i - 1];
        assert_int_equal(rope_make(&t, d, i == 0 ? factors : NULL, &e), ST_OK);
        uint64_t n = (uint64_t)ROWS * t.n_pairs;
        float *out[2] = {malloc(8 * n), malloc(8 * n)};
        const side *both[] = {&cpu, &gpu};
        for (int k = 0; k < 2; k++) {
            const side *on = both[k];
            rope_waves w = {side_put(on, t.frequency, 8 * t.n_pairs), t.magnitude, t.n_pairs};
            dev_ptr p = side_put(on, position, 4 * ROWS), to = side_put(on, NULL, 8 * n);
            assert_int_equal(on->b->rope_angles(on->q, to, dev_offset(to, 4 * n), &w, p, ROWS),
                             ST_OK);
            side_get(on, out[k], to, 8 * n);
            side_free(on, w.frequency, 8 * t.n_pairs);
            side_free(on, p, 4 * ROWS);
            side_free(on, to, 8 * n);
        }
        assert_true(same_bits("rope_angles", out[0], out[1], 2 * n));
        for (int k = 0; k < 2; k++)
            free(out[k]);
    }
    free(position);
}

/* Random rows at an odd address in pages of their own: a table stays where it lies while the
 * devices are open, here to the end, and a device may refuse copies that begin or end in its
 * pages. */
static const void *table_of(seeded *s, dtype type, uint64_t n)
{
    void *base;
    uint64_t bytes = dtype_bytes(type, n);
    const void *stored = seeded_stored(s, type, n, 3, &base);
    char *pages = mmap(NULL, bytes + 7, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memcpy(pages + 7, stored, bytes);
    free(base);
    return pages + 7;
}

static void check_embedding(seeded *s, dtype type, uint32_t n_in, float scale)
{
    enum { ROWS = 6, VOCAB = 77 };
    static const uint32_t tokens[ROWS] = {0, VOCAB - 1, 3, 3, 8, 41};
    const void *stored = table_of(s, type, (uint64_t)n_in * VOCAB);
    const uint64_t bytes = 4ull * ROWS * n_in;
    float *out[2];
    const side *both[] = {&cpu, &gpu};
    for (int k = 0; k < 2; k++) {
        const side *on = both[k];
        errmsg e = {0};
        dev_weight w;
        out[k] = malloc(bytes);
        if (on->b->table_open(on->d, &w, stored, type, n_in, VOCAB, &e) != ST_OK)
            fail_msg("%s", e.text);
        dev_ptr t = side_put(on, tokens, sizeof tokens), to = side_put(on, NULL, bytes);
        assert_int_equal(on->b->embed(on->q, to, &w, t, scale, ROWS), ST_OK);
        side_get(on, out[k], to, bytes);
        side_free(on, t, sizeof tokens);
        side_free(on, to, bytes);
    }
    assert_true(same_bits(dtype_get(type)->name, out[0], out[1], ROWS * n_in));
    free(out[0]);
    free(out[1]);
}

/* The device gathers from host memory what the cpu does, of every type, in rows of one run and of
 * more. */
static void embeddings_are_exact(void **state)
{
    (void)state;
    seeded s = {4};
    static const dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q8_0,   DT_Q4_0,
                                  DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q2_K,   DT_Q3_K,
                                  DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bool wide = dtype_get(types[i])->block_values == 256;
        check_embedding(&s, types[i], wide ? 256 : 320, 1);
        check_embedding(&s, types[i], 4608, 17.9f);
    }
}

/* What a device holds grows by weights alone: not by a table, which stays in host memory. */
static void tables_take_no_device_memory(void **state)
{
    (void)state;
    enum { IN = 256, OUT = 8192 };
    seeded s = {5};
    errmsg e = {0};
    uint64_t free_bytes, held[3];
    dev_weight w, table;
    const void *stored = table_of(&s, DT_Q8_0, (uint64_t)IN * OUT);
    assert_int_equal(gpu.b->memory(gpu.d, &free_bytes, &held[0], &e), ST_OK);
    assert_int_equal(gpu.b->table_open(gpu.d, &table, stored, DT_Q8_0, IN, OUT, &e), ST_OK);
    assert_int_equal(gpu.b->memory(gpu.d, &free_bytes, &held[1], &e), ST_OK);
    assert_int_equal(gpu.b->weight_open(gpu.d, &w, stored, DT_Q8_0, IN, OUT, &e), ST_OK);
    assert_int_equal(gpu.b->memory(gpu.d, &free_bytes, &held[2], &e), ST_OK);
    assert_int_equal(held[1], held[0]);
    assert_int_equal(held[2] - held[1], gpu.b->weight_bytes(DT_Q8_0, IN, OUT));
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
        cmocka_unit_test(rope_turns_as_the_cpu),  cmocka_unit_test(angles_have_the_cpus_bits),
        cmocka_unit_test(embeddings_are_exact),   cmocka_unit_test(tables_take_no_device_memory),
        cmocka_unit_test(finite_is_seen_per_row), cmocka_unit_test(errors_are_told),
    };
    int failed = cmocka_run_group_tests_name("gpu ops", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return failed;
}
