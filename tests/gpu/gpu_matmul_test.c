/* Products on the GPU: near the cpu's, and the same bits for a row whatever stands beside it and
 * whichever kernel takes it (one row, up to 16, prompts). */
#include "common/cuda_form.h"
#include "kernels/cpu/convert.h"
#include "tests/support/gpu_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static side cpu, gpu;

static const dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};

/* A matrix on one side. */
static dev_weight weight_on(const side *s, const void *stored, dtype type, uint32_t n_in,
                            uint32_t n_out)
{
    errmsg e = {0};
    dev_weight w;
    if (s->b->weight_open(s->d, &w, stored, type, n_in, n_out, &e) != ST_OK) fail_msg("%s", e.text);
    return w;
}

/* out [n_rows, n_out] of the rows x. */
static void multiply(const side *s, float *out, const dev_weight *w, const float *x,
                     const float *bias, uint32_t n_rows)
{
    uint64_t x_bytes = 4ull * n_rows * w->n_in, out_bytes = 4ull * n_rows * w->n_out;
    memset(out, 0xff, out_bytes);
    dev_ptr xs = side_put(s, x, x_bytes), to = side_put(s, out, out_bytes), b = {0};
    if (bias != NULL) b = side_put(s, bias, 4ull * w->n_out);
    assert_int_equal(s->b->matmul(s->q, to, w, xs, b, n_rows), ST_OK);
    side_get(s, out, to, out_bytes);
    side_free(s, xs, x_bytes);
    side_free(s, to, out_bytes);
    side_free(s, b, 4ull * w->n_out);
}

/* Every row of the cpu's matrix as f32. */
static void rows_of(const side *s, float *out, const dev_weight *w, uint32_t n_rows)
{
    uint32_t *tokens = malloc(4ull * n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        tokens[i] = i;
    uint64_t bytes = 4ull * n_rows * w->n_in;
    dev_ptr t = side_put(s, tokens, 4ull * n_rows), to = side_put(s, NULL, bytes);
    assert_int_equal(s->b->embed(s->q, to, w, t, 1.0f, n_rows), ST_OK);
    side_get(s, out, to, bytes);
    side_free(s, t, 4ull * n_rows);
    side_free(s, to, bytes);
    free(tokens);
}

static void near_cpu(seeded *s, dtype type, uint32_t n_in, uint32_t n_out, uint32_t n_rows)
{
    void *base;
    uint64_t n = (uint64_t)n_out * n_rows;
    const void *stored = seeded_stored(s, type, (uint64_t)n_in * n_out, 2, &base);
    float *x = seeded_floats(s, (uint64_t)n_in * n_rows, 3), *bias = seeded_floats(s, n_out, 2);
    float *want = malloc(n * 4), *got = malloc(n * 4);
    dev_weight wc = weight_on(&cpu, stored, type, n_in, n_out);
    dev_weight wg = weight_on(&gpu, stored, type, n_in, n_out);
    multiply(&cpu, want, &wc, x, bias, n_rows);
    multiply(&gpu, got, &wg, x, bias, n_rows);
    /* Few values may all be what is left of larger terms. */
    double d = distance(got, want, n), most = type == DT_F32 ? 1e-10 : n < 64 ? 1e-4 : 5e-7;
    if (!(d <= most))
        fail_msg("%s %u x %u, %u rows: %.2e", dtype_get(type)->name, n_in, n_out, n_rows, d);
    free(base);
    free(x);
    free(bias);
    free(want);
    free(got);
}

static void products_are_near_the_cpus(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {
        {32, 1, 1},    {32, 8, 2},     {64, 9, 16},    {96, 130, 17},    {2048, 257, 1},
        {4096, 64, 5}, {4128, 40, 33}, {14336, 64, 3}, {8224, 130, 130}, {32768, 16, 20}};
    seeded s = {1};
    for (int t = 0; t < 4; t++) {
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            near_cpu(&s, types[t], shapes[i][0], shapes[i][1], shapes[i][2]);
    }
    for (uint32_t t = 0; t < DT_COUNT; t++) { /* every other type that both sides have */
        const dtype_info *info = dtype_get(t);
        if (info == NULL || info->block_values == 1 || t == DT_Q8_0) continue;
        if (!cpu.b->supports(cpu.d, OP_MATMUL, (dtype)t) ||
            !gpu.b->supports(gpu.d, OP_MATMUL, (dtype)t))
            continue;
        near_cpu(&s, (dtype)t, 256, 9, 16);
        near_cpu(&s, (dtype)t, 2048, 130, 1);
        near_cpu(&s, (dtype)t, 14336, 64, 70);
    }
    for (int t = 0; t < 3; t++) { /* ends of rows that are no whole blocks */
        near_cpu(&s, types[t], 1, 1, 1);
        near_cpu(&s, types[t], 37, 5, 3);
        near_cpu(&s, types[t], 1003, 71, 19);
    }
}

#define ROWS 70u

/* Every row alone is the reference; then batches of all sizes, at all offsets. */
static void same_bits_for(seeded *s, dtype type, uint32_t n_in, uint32_t n_out)
{
    static const uint32_t batches[] = {2, 3, 8, 9, 15, 16, 17, 31, 64, 65, 70};
    void *base;
    char what[96];
    const void *stored = seeded_stored(s, type, (uint64_t)n_in * n_out, 8, &base);
    float *x = seeded_floats(s, (uint64_t)n_in * ROWS, 12), *bias = seeded_floats(s, n_out, 6);
    float *alone = malloc(4ull * n_out * ROWS), *got = malloc(4ull * n_out * ROWS);
    dev_weight w = weight_on(&gpu, stored, type, n_in, n_out);
    for (uint32_t r = 0; r < ROWS; r++)
        multiply(&gpu, alone + (uint64_t)r * n_out, &w, x + (uint64_t)r * n_in, bias, 1);
    for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        uint32_t n = batches[i], at = seeded_below(s, ROWS - n + 1);
        multiply(&gpu, got, &w, x + (uint64_t)at * n_in, bias, n);
        snprintf(what, sizeof what, "%s %u x %u, rows %u to %u", dtype_get(type)->name, n_in, n_out,
                 at, at + n - 1);
        assert_true(same_bits(what, alone + (uint64_t)at * n_out, got, (uint64_t)n * n_out));
    }
    free(base);
    free(x);
    free(bias);
    free(alone);
    free(got);
}

static void a_row_does_not_see_its_neighbours(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{32, 8},      {256, 100},  {4096, 1000}, {8224, 264},
                                         {14336, 300}, {28672, 40}, {40000, 24}};
    seeded s = {2};
    for (int t = 0; t < 4; t++) {
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            same_bits_for(&s, types[t], shapes[i][0], shapes[i][1]);
    }
    same_bits_for(&s, DT_Q4_K, 4096, 300);
    same_bits_for(&s, DT_Q6_K, 14336, 40);
    same_bits_for(&s, DT_Q5_1, 14336, 100);
    same_bits_for(&s, DT_Q5_K, 14336, 100);
    same_bits_for(&s, DT_IQ4_XS, 512, 1000);
}

/* What a device makes of value i of a super-block of Q4_K (kernels/cuda/forms.cuh); plain: its
 * value. */
static float streamed_q4k(const uint8_t *b, uint32_t i, float plain)
{
    const uint8_t *q = b + 4;
    uint32_t j = i / 32, nibble = b[16 + i / 64 * 32 + i % 32] >> (j % 2 * 4) & 15;
    uint32_t scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
    uint32_t min = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
    float d = f32_of_f16((uint16_t)(b[0] | b[1] << 8)) * (float)scale;
    float m = f32_of_f16((uint16_t)(b[2] | b[3] << 8)) * (float)min;
    float v = fmaf(d, (float)(128 + nibble), fmaf(d, -128.0f, -m));
    assert_true(plain == fmaf(d, (float)nibble, -m));
    assert_true(fabsf(v - plain) <= fabsf(d) * 0x1p-16f + fabsf(m) * 0x1p-22f);
    return v;
}

/* A streamed type = its values rounded to f16 by the host and held so, bit for bit. */
static void streamed_as_held(seeded *s, dtype type, uint32_t n_in, uint32_t n_out)
{
    static const uint32_t batches[] = {1, 2, 8, 16, 70};
    void *base;
    char what[96];
    uint64_t n = (uint64_t)n_in * n_out;
    const void *stored = seeded_stored(s, type, n, 4, &base);
    float *x = seeded_floats(s, (uint64_t)n_in * ROWS, 6), *bias = seeded_floats(s, n_out, 4);
    float *values = malloc(4 * n), *want = malloc(4ull * n_out * ROWS);
    float *got = malloc(4ull * n_out * ROWS);
    uint16_t *rounded = malloc(2 * n);
    dev_weight on_cpu = weight_on(&cpu, stored, type, n_in, n_out);
    rows_of(&cpu, values, &on_cpu, n_out);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *block = (const uint8_t *)stored + i / 256 * 144;
        bool q4k = cuda_form_of(type, n_in) == FORM_Q4K;
        rounded[i] =
            f16_of_f32(q4k ? streamed_q4k(block, (uint32_t)(i % 256), values[i]) : values[i]);
    }
    dev_weight streamed = weight_on(&gpu, stored, type, n_in, n_out);
    dev_weight held = weight_on(&gpu, rounded, DT_F16, n_in, n_out);
    for (uint32_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        multiply(&gpu, want, &held, x, bias, batches[i]);
        multiply(&gpu, got, &streamed, x, bias, batches[i]);
        snprintf(what, sizeof what, "%s %u x %u streamed, %u rows", dtype_get(type)->name, n_in,
                 n_out, batches[i]);
        assert_true(same_bits(what, want, got, (uint64_t)n_out * batches[i]));
    }
    free(base);
    free(x);
    free(bias);
    free(values);
    free(want);
    free(got);
    free(rounded);
}

static void streamed_types_are_as_held(void **state)
{
    (void)state;
    static const dtype streamed[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1,   DT_IQ4_NL,
                                     DT_Q2_K, DT_Q3_K, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_XS};
    static const uint32_t shapes[][2] = {
        {256, 1}, {512, 40}, {4096, 1100}, {8448, 24}, {14336, 264}, {28672, 16}};
    seeded s = {6};
    for (uint32_t t = 0; t < sizeof streamed / sizeof *streamed; t++) {
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            streamed_as_held(&s, streamed[t], shapes[i][0], shapes[i][1]);
    }
}

/* Every size of a prompt's tiles, outputs and rows that end within one, half stages at a segment's
 * end; more rows, and more of a packed weight, than scratch holds at once. */
static void prompt_is_its_rows(seeded *s, dtype type, uint32_t n_in, uint32_t n_out,
                               uint32_t n_rows)
{
    void *base;
    char what[96];
    const void *stored = seeded_stored(s, type, (uint64_t)n_in * n_out, 4, &base);
    float *x = seeded_floats(s, (uint64_t)n_in * n_rows, 6), *bias = seeded_floats(s, n_out, 2);
    float *all = malloc(4ull * n_out * n_rows), *some = malloc(4ull * n_out * 16);
    dev_weight w = weight_on(&gpu, stored, type, n_in, n_out);
    multiply(&gpu, all, &w, x, bias, n_rows);
    for (uint32_t r = n_rows % 16; r + 16 <= n_rows; r += 112) {
        snprintf(what, sizeof what, "%s %u x %u, 16 rows of %u from %u", dtype_get(type)->name,
                 n_in, n_out, n_rows, r);
        multiply(&gpu, some, &w, x + (uint64_t)r * n_in, bias, 16);
        assert_true(same_bits(what, some, all + (uint64_t)r * n_out, 16ull * n_out));
    }
    free(base);
    free(x);
    free(bias);
    free(all);
    free(some);
}

static void prompts_are_their_rows(void **state)
{
    (void)state;
    seeded s = {3};
    prompt_is_its_rows(&s, DT_Q8_0, 28672, 72, 2100);
    prompt_is_its_rows(&s, DT_F16, 1056, 3301, 1030);
    prompt_is_its_rows(&s, DT_BF16, 8224, 3300, 1030);
    prompt_is_its_rows(&s, DT_Q8_0, 8224, 1100, 300);
    prompt_is_its_rows(&s, DT_Q4_K, 512, 8200, 260);
    prompt_is_its_rows(&s, DT_Q8_0, 512, 120000, 80);
}

/* NaN, infinity, zeros and tiny rows stay what they are and in their own row. */
static void special_rows_stay_alone(void **state)
{
    (void)state;
    const uint32_t n_in = 512, n_out = 48, n_rows = 20;
    seeded s = {4};
    for (int t = 0; t < 4; t++) {
        void *base;
        const void *stored = seeded_stored(&s, types[t], (uint64_t)n_in * n_out, 2, &base);
        float *x = seeded_floats(&s, (uint64_t)n_in * n_rows, 3);
        float *clean = malloc(4ull * n_out * n_rows), *got = malloc(4ull * n_out * n_rows);
        dev_weight w = weight_on(&gpu, stored, types[t], n_in, n_out);
        multiply(&gpu, clean, &w, x, NULL, n_rows);
        x[3 * n_in + 7] = NAN;
        x[9 * n_in + 500] = INFINITY;
        memset(x + 11 * n_in, 0, n_in * 4);
        for (uint32_t i = 0; i < n_in; i++)
            x[12 * n_in + i] *= 0x1p-100f;
        multiply(&gpu, got, &w, x, NULL, n_rows);
        for (uint32_t r = 0; r < n_rows; r++) {
            const float *a = clean + r * n_out, *b = got + r * n_out;
            for (uint32_t o = 0; o < n_out; o++) {
                if (r == 3 || r == 9)
                    assert_false(isfinite(b[o]));
                else if (r == 11)
                    assert_true(b[o] == 0);
                else if (r == 12)
                    assert_true(b[o] == a[o] * 0x1p-100f);
                else
                    assert_true(memcmp(a + o, b + o, 4) == 0);
            }
        }
        free(base);
        free(x);
        free(clean);
        free(got);
    }
}

/* The same input for several products is prepared once; written in between, it is prepared anew. */
static void prepared_rows_are_never_stale(void **state)
{
    (void)state;
    const uint32_t n = 256, n_rows = 5;
    seeded s = {5};
    void *base;
    const void *stored = seeded_stored(&s, DT_F16, (uint64_t)n * n, 2, &base);
    float *x = seeded_floats(&s, (uint64_t)n * n_rows, 3), want[5 * 256], got[5 * 256];
    dev_weight w = weight_on(&gpu, stored, DT_F16, n, n);
    multiply(&gpu, got, &w, x, NULL, n_rows);
    multiply(&gpu, want, &w, got, NULL, n_rows);
    multiply(&gpu, got, &w, want, NULL, n_rows);
    memcpy(want, got, sizeof want);
    dev_ptr a = side_put(&gpu, x, sizeof want), b = side_put(&gpu, NULL, sizeof want), none = {0};
    assert_int_equal(gpu.b->matmul(gpu.q, b, &w, a, none, n_rows), ST_OK);
    assert_int_equal(gpu.b->matmul(gpu.q, a, &w, b, none, n_rows), ST_OK); /* a is written */
    assert_int_equal(gpu.b->matmul(gpu.q, b, &w, a, none, n_rows), ST_OK);
    side_get(&gpu, got, b, sizeof got);
    assert_true(same_bits("three in a row", want, got, n * n_rows));
    assert_int_equal(gpu.b->matmul(gpu.q, b, &w, a, none, n_rows), ST_OK);
    assert_int_equal(gpu.b->add(gpu.q, a, a, n * n_rows), ST_OK);
    assert_int_equal(gpu.b->matmul(gpu.q, b, &w, a, none, n_rows), ST_OK);
    side_get(&gpu, got, b, sizeof got);
    for (uint32_t i = 0; i < n * n_rows; i++)
        assert_true(got[i] == 2 * want[i]);
    side_free(&gpu, a, sizeof want);
    side_free(&gpu, b, sizeof want);
    free(base);
    free(x);
}

/* Several products of the same rows, of one form or of several, are each what it is alone. */
static void products_together_are_each_alone(void **state)
{
    (void)state;
    static const dtype kinds[][3] = {{DT_Q8_0, DT_Q8_0, DT_Q8_0},
                                     {DT_Q4_K, DT_Q4_K, DT_Q6_K},
                                     {DT_F16, DT_F32, DT_F16}};
    static const uint32_t n_in = 1024, n_out[3] = {520, 64, 200}, counts[] = {1, 2, 9, 33, 64, 65};
    seeded s = {7};
    float *x = seeded_floats(&s, (uint64_t)n_in * ROWS, 6);
    float *want = malloc(4ull * 520 * ROWS), *got = malloc(4ull * 520 * ROWS);
    for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        dev_weight w[3];
        for (int i = 0; i < 3; i++) {
            void *base;
            const void *stored =
                seeded_stored(&s, kinds[k][i], (uint64_t)n_in * n_out[i], 4, &base);
            w[i] = weight_on(&gpu, stored, kinds[k][i], n_in, n_out[i]);
            free(base);
        }
        for (uint32_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const uint32_t n = counts[c];
            const uint64_t x_bytes = 4ull * n_in * n;
            dev_product p[3];
            dev_ptr xs = side_put(&gpu, x, x_bytes);
            for (int i = 0; i < 3; i++) {
                float *bias = seeded_floats(&s, n_out[i], 4);
                p[i] = (dev_product){side_put(&gpu, NULL, 4ull * n_out[i] * n), &w[i],
                                     i == 1 ? (dev_ptr){0} : side_put(&gpu, bias, 4ull * n_out[i])};
                free(bias);
            }
            assert_int_equal(gpu.b->matmuls(gpu.q, p, 3, xs, n), ST_OK);
            for (int i = 0; i < 3; i++) {
                const uint64_t bytes = 4ull * n_out[i] * n;
                char what[96];
                dev_ptr to = side_put(&gpu, NULL, bytes);
                assert_int_equal(gpu.b->matmul(gpu.q, to, &w[i], xs, p[i].bias, n), ST_OK);
                side_get(&gpu, want, to, bytes);
                side_get(&gpu, got, p[i].out, bytes);
                snprintf(what, sizeof what, "product %d of kinds %u, %u rows", i, k, n);
                assert_true(same_bits(what, want, got, (uint64_t)n_out[i] * n));
                side_free(&gpu, to, bytes);
                side_free(&gpu, p[i].out, bytes);
                if (p[i].bias.addr != 0) side_free(&gpu, p[i].bias, 4ull * n_out[i]);
            }
            side_free(&gpu, xs, x_bytes);
        }
    }
    free(x);
    free(want);
    free(got);
}

/* What the fused ops leave, prepared rows included, is what their parts leave. */
/* size: what the norm makes of its rows, and so about how large gates are. */
static void fused_as_parts(seeded *s, uint32_t n, uint32_t n_ff, uint32_t n_rows, bool gelu,
                           float size)
{
    const backend *b = gpu.b;
    backend_queue *q = gpu.q;
    const dev_ptr none = {0};
    char what[96];
    void *base[3];
    const dtype type[3] = {DT_Q8_0, DT_F16, n_ff % 32 == 0 ? DT_Q8_0 : DT_F16};
    uint64_t bytes = 4ull * n * n_rows, ff_bytes = 4ull * n_ff * n_rows;
    float *x = seeded_floats(s, (uint64_t)n * n_rows, 3),
          *y = seeded_floats(s, (uint64_t)n * n_rows, 2);
    float *w = seeded_floats(s, n, 1), *got[2] = {malloc(bytes), malloc(bytes)};
    float *sum[2] = {malloc(bytes), malloc(bytes)};
    dev_weight weight[3];
    for (uint32_t i = 0; i < n; i++)
        w[i] *= size;
    for (int i = 0; i < 3; i++) {
        uint32_t n_in = i == 2 ? n_ff : n, n_out = i == 2 ? n : n_ff;
        weight[i] = weight_on(&gpu, seeded_stored(s, type[i], (uint64_t)n_in * n_out, 4, &base[i]),
                              type[i], n_in, n_out);
    }
    dev_ptr norm = side_put(&gpu, w, 4ull * n), gate = side_put(&gpu, NULL, ff_bytes);
    dev_ptr up = side_put(&gpu, NULL, ff_bytes);
    for (int fused = 0; fused < 2; fused++) {
        dev_ptr h = side_put(&gpu, x, bytes), t = side_put(&gpu, y, bytes);
        if (fused) {
            assert_int_equal(b->add_rms_norm(q, t, h, t, norm, n, 1e-5f, n_rows), ST_OK);
            assert_int_equal(b->ffn(q, t, &weight[0], &weight[1], &weight[2], t, gate, up, gelu,
                                    n_rows),
                             ST_OK);
        } else {
            assert_int_equal(b->add(q, h, t, (uint64_t)n * n_rows), ST_OK);
            for (uint32_t r = 0; r < n_rows;
                 r += 16) { /* few at a time: nothing is prepared ahead */
                uint32_t rows = n_rows - r < 16 ? n_rows - r : 16;
                dev_ptr hr = dev_offset(h, 4ull * r * n), tr = dev_offset(t, 4ull * r * n);
                assert_int_equal(b->rms_norm(q, tr, hr, norm, n, 1e-5f, rows), ST_OK);
                assert_int_equal(b->matmul(q, gate, &weight[0], tr, none, rows), ST_OK);
                assert_int_equal(b->matmul(q, up, &weight[1], tr, none, rows), ST_OK);
                assert_int_equal((gelu ? b->gelu_mul : b->silu_mul)(q, gate, gate, up,
                                                                    (uint64_t)n_ff * rows),
                                 ST_OK);
                assert_int_equal(b->matmul(q, tr, &weight[2], gate, none, rows), ST_OK);
            }
        }
        side_get(&gpu, got[fused], t, bytes);
        side_get(&gpu, sum[fused], h, bytes);
        side_free(&gpu, h, bytes);
        side_free(&gpu, t, bytes);
    }
    snprintf(what, sizeof what, "ffn %u to %u, %u rows, gelu %d", n, n_ff, n_rows, gelu);
    assert_true(same_bits(what, sum[0], sum[1], (uint64_t)n * n_rows));
    assert_true(same_bits(what, got[0], got[1], (uint64_t)n * n_rows));
    side_free(&gpu, norm, 4ull * n);
    side_free(&gpu, gate, ff_bytes);
    side_free(&gpu, up, ff_bytes);
    for (int i = 0; i < 3; i++)
        free(base[i]);
    for (int i = 0; i < 2; i++) {
        free(got[i]);
        free(sum[i]);
    }
    free(x);
    free(y);
    free(w);
}

static void fused_ops_are_their_parts(void **state)
{
    (void)state;
    seeded s = {7};
    fused_as_parts(&s, 512, 1056, 100, false, 1);
    fused_as_parts(&s, 1024, 1004, 70, true, 1);
    fused_as_parts(&s, 2048, 14336, 65, false, 1);
    fused_as_parts(&s, 256, 20000, 66, true, 1);
    fused_as_parts(&s, 4128, 96, 300, false, 1);
    fused_as_parts(&s, 512, 512, 9, false, 1);
    fused_as_parts(&s, 2048, 14336, 33, false, 1);
    static const float sizes[] = {0, 0x1p-44f, 0x1p-10f, 16, 0x1p20f};
    for (int i = 0; i < 10; i++)
        fused_as_parts(&s, 256, 512, 80, i % 2, sizes[i / 2]);
}

int main(int argc, char **argv)
{
    if (!gpu_begin(&cpu, &gpu, 300)) return 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_near_the_cpus),
        cmocka_unit_test(a_row_does_not_see_its_neighbours),
        cmocka_unit_test(streamed_types_are_as_held),
        cmocka_unit_test(prompts_are_their_rows),
        cmocka_unit_test(special_rows_stay_alone),
        cmocka_unit_test(products_together_are_each_alone),
        cmocka_unit_test(prepared_rows_are_never_stale),
        cmocka_unit_test(fused_ops_are_their_parts),
    };
    int failed = cmocka_run_group_tests_name("gpu matmul", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return failed;
}
