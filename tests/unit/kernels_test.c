/* The ISA tables: products and row operations against float64, and the same bits from all of them,
 * however rows and outputs are cut. */
#include "common/fmath.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fixed.h"
#include "tests/support/kernel_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cpu_isa *isas[CHECK_ISAS];
static uint32_t n_isas;
static float *scratch;

static void *zeroed(uint64_t n)
{
    void *p = calloc(n > 0 ? n : 1, sizeof(float));
    CHECK(p != NULL);
    return p;
}

/* All 65536 values of the 16-bit types, and f32 values around every border of rounding. */
static void conversions_agree(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *h = malloc(N * sizeof *h), *back = malloc(N * sizeof *back + 1);
    float *want = zeroed(3 * N), *got = zeroed(3 * N);
    assert_true(h && back);
    for (uint32_t i = 0; i < N; i++) h[i] = (uint16_t)i;
    static const dtype types[] = {DT_F16, DT_BF16};
    for (int t = 0; t < 2; t++) {
        isas[0]->to_f32(want, h, types[t], N);
        for (uint32_t i = 0; i < n_isas; i++) {
            memset(got, 0, N * sizeof *got);
            isas[i]->to_f32(got, h, types[t], N);
            assert_memory_equal(got, want, N * sizeof *got);
            isas[i]->from_f32(back, types[t], want, N);
            for (uint32_t v = 0; v < N; v++) assert_true(back[v] == h[v] || want[v] != want[v]);
        }
        /* Halfway to the next value and one step to either side: rounding to even. */
        for (uint32_t v = 0; v < N; v++) {
            float next = isinf(want[v]) || want[v] != want[v] || v % 0x8000 == 0x7fff
                             ? want[v]
                             : types[t] == DT_F16 ? f32_of_f16((uint16_t)(v + 1))
                                                  : f32_of_bf16((uint16_t)(v + 1));
            float middle = isinf(next) ? want[v] * (1 + 0x1p-11f) : want[v] / 2 + next / 2;
            got[3 * v] = nextafterf(middle, -INFINITY);
            got[3 * v + 1] = middle;
            got[3 * v + 2] = nextafterf(middle, INFINITY);
        }
        uint16_t *a = malloc(3 * N * sizeof *a);
        char *b = malloc(3 * N * sizeof *a + 1);
        assert_true(a && b);
        isas[0]->from_f32(a, types[t], got, 3 * N);
        for (uint32_t i = 1; i < n_isas; i++) {
            isas[i]->from_f32(b + 1, types[t], got, 3 * N);
            assert_memory_equal(a, b + 1, 3 * N * sizeof *a);
            isas[i]->from_f32(b + 1, types[t], got, 77); /* the end of a row */
            assert_memory_equal(a, b + 1, 77 * sizeof *a);
        }
        free(a);
        free(b);
    }
    assert_int_equal(f16_of_f32(1.0f), 0x3c00);
    assert_int_equal(f16_of_f32(65519.996f), 0x7bff);
    assert_int_equal(f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(f16_of_f32(0x1p-24f), 1);
    assert_int_equal(f16_of_f32(0x1p-25f), 0);
    assert_int_equal(bf16_of_f32(1.00390625f), 0x3f80); /* halfway, down to even */
    free(h);
    free(back);
    free(want);
    free(got);
}

/* How far fixed point (fixed.h) may move a value: half a step of its block. */
static double fixed_error(dtype type, const float *row, uint32_t i, uint32_t n_in)
{
    double largest = 0;
    if (!quant_is(type)) return 0;
    for (uint32_t k = i / 256 * 256; k < n_in && k < i / 256 * 256 + 256; k++)
        largest = fmax(largest, fabs((double)row[k]));
    return largest / 16128 / 2;
}

/* The value in float64, and how far chains of fused multiply-adds may be from it: sixteen lanes and
 * a tree, or, for quants, one chain of a term or two for each group. */
static void matmul_near_float64(dtype type, const float *y, const float *w, const float *x,
                                const float *bias, uint32_t n_in, uint32_t n_out, uint32_t n_rows)
{
    double *moved = calloc(n_in, sizeof *moved);
    assert_non_null(moved);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t i = 0; i < n_in; i++) moved[i] = fixed_error(type, x + r * n_in, i, n_in);
        for (uint32_t o = 0; o < n_out; o++) {
            double sum = bias != NULL ? (double)bias[o] : 0, size = fabs(sum), allowed = 1e-40;
            for (uint32_t i = 0; i < n_in; i++) {
                double wi = (double)w[(uint64_t)o * n_in + i], xi = (double)x[r * n_in + i];
                sum += wi * xi;
                size += fabs(wi * xi);
                allowed += fabs(wi) * moved[i];
            }
            allowed += size * (n_in / 16 + 6) * 0x1p-24;
            double off = fabs((double)y[r * n_out + o] - sum);
            if (off > allowed)
                fail_msg("%s: %g from the truth, at most %g", dtype_get(type)->name, off, allowed);
        }
    }
    free(moved);
}

static void check_products(seeded *s, dtype type, uint32_t n_in, uint32_t n_out, uint32_t n_rows)
{
    void *w_base, *bias_base;
    const void *w = seeded_stored(s, type, (uint64_t)n_in * n_out, 6, &w_base);
    const void *bias = seeded_stored(s, DT_F32, n_out, 3, &bias_base);
    bool with_bias = seeded_next(s) % 2;
    float *x = seeded_floats(s, (uint64_t)n_in * n_rows, 8);
    uint64_t n = (uint64_t)n_out * n_rows;
    float *want = zeroed(n), *got = zeroed(n), *row = zeroed(n_out);
    float *w_f32 = zeroed((uint64_t)n_in * n_out), *bias_f32 = zeroed(n_out);
    isas[0]->to_f32(w_f32, w, type, (uint64_t)n_in * n_out);
    memcpy(bias_f32, bias, n_out * sizeof(float));
    const void *b = with_bias ? bias : NULL;

    check_matmul(isas[0], want, w, type, n_in, n_out, x, b, n_rows, 0, n_out, scratch);
    matmul_near_float64(type, want, w_f32, x, with_bias ? bias_f32 : NULL, n_in, n_out, n_rows);
    for (uint32_t i = 0; i < n_isas; i++) {
        char what[80];
        snprintf(what, sizeof what, "%s %s n_in %u n_out %u n_rows %u", isas[i]->name,
                 dtype_get(type)->name, n_in, n_out, n_rows);
        if (i > 0) {
            check_matmul(isas[i], got, w, type, n_in, n_out, x, b, n_rows, 0, n_out, scratch);
            assert_true(same_bits(what, want, got, n));
        }
        /* Cut anywhere, as threads do; what lies outside a range stays. */
        uint32_t cut = seeded_below(s, n_out + 1);
        for (uint64_t j = 0; j < n; j++) got[j] = -1.5f;
        check_matmul(isas[i], got, w, type, n_in, n_out, x, b, n_rows, cut, n_out, scratch);
        for (uint64_t j = 0; j < n; j++) assert_true(j % n_out >= cut || got[j] == -1.5f);
        check_matmul(isas[i], got, w, type, n_in, n_out, x, b, n_rows, 0, cut, scratch);
        assert_true(same_bits(what, want, got, n));
        /* A row alone, and a few rows from the middle. */
        if (n_rows == 0 || (i == 0 && n_rows > 8)) continue;
        uint32_t r = seeded_below(s, n_rows), some = 1 + seeded_below(s, 7);
        if (some > n_rows - r) some = n_rows - r;
        check_matmul(isas[i], row, w, type, n_in, n_out, x + (uint64_t)r * n_in, b, 1, 0, n_out,
                     scratch);
        assert_true(same_bits(what, want + (uint64_t)r * n_out, row, n_out));
        check_matmul(isas[i], got, w, type, n_in, n_out, x + (uint64_t)r * n_in, b, some, 0, n_out,
                        scratch);
        assert_true(same_bits(what, want + (uint64_t)r * n_out, got, (uint64_t)some * n_out));
    }
    free(w_base);
    free(bias_base);
    free(x);
    free(want);
    free(got);
    free(row);
    free(w_f32);
    free(bias_f32);
}

static const dtype weight_types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q8_0, DT_Q4_0,
                                     DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q2_K, DT_Q3_K,
                                     DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};
#define N_TYPES (sizeof weight_types / sizeof *weight_types)

static void matmul_small_shapes(void **state)
{
    (void)state;
    static const uint32_t ins[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 100};
    static const uint32_t outs[] = {1, 5, 17, 50};
    static const uint32_t rows[] = {0, 1, 2, 3, 4, 5, 7, 17, 20};
    seeded s = {5};
    for (uint32_t t = 0; t < N_TYPES; t++) {
        uint32_t values = dtype_get(weight_types[t])->block_values;
        for (uint32_t i = 0; i < (values == 1 ? 11 : values == 32 ? 4 : 2); i++) {
            uint32_t n_in = values == 1 ? ins[i] : values * (1 + i);
            for (uint32_t o = 0; o < 4; o++) {
                for (uint32_t r = 0; r < 9; r++)
                    check_products(&s, weight_types[t], n_in, outs[o], rows[r]);
            }
        }
    }
}

/* Around the borders of the blocks: rows 96, outputs 48, depth 512. */
static void matmul_block_borders(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{512, 48, 96}, {513, 49, 97}, {511, 47, 95},
                                         {1024, 3, 100}, {1040, 97, 17}, {544, 20, 193},
                                         {1500, 16, 8}, {4096, 17, 4}};
    seeded s = {6};
    for (uint32_t t = 0; t < N_TYPES; t++) {
        uint32_t values = dtype_get(weight_types[t])->block_values;
        for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            uint32_t n_in = (shapes[i][0] + values - 1) / values * values;
            check_products(&s, weight_types[t], n_in, shapes[i][1], shapes[i][2]);
        }
    }
}

/* Products so small that a sum ends at -0 or in the denormals: lanes without a term must stay. */
static void matmul_tiny_values(void **state)
{
    (void)state;
    seeded s = {7};
    for (uint32_t n_in = 1; n_in < 40; n_in++) {
        float w[40 * 3], x[40 * 6], want[18], got[18];
        for (uint32_t i = 0; i < n_in * 3; i++) w[i] = seeded_float(&s, 1) * 0x1p-70f;
        for (uint32_t i = 0; i < n_in * 6; i++) x[i] = seeded_float(&s, 12) * 0x1p-75f;
        for (uint32_t n_rows = 1; n_rows <= 6; n_rows++) {
            isas[0]->matmul(want, w, DT_F32, n_in, 3, x, NULL, n_rows, 0, 3, scratch);
            for (uint32_t i = 1; i < n_isas; i++) {
                isas[i]->matmul(got, w, DT_F32, n_in, 3, x, NULL, n_rows, 0, 3, scratch);
                assert_true(same_bits(isas[i]->name, want, got, 3 * n_rows));
            }
        }
    }
}

/* Every product is negative and rounds to -0, and so must the sum: a lane that a masked end of the
 * row adds +0 to would make it +0. */
static void matmul_keeps_minus_zero(void **state)
{
    (void)state;
    float w[40 * 2], x[40 * 20], y[40];
    for (uint32_t i = 0; i < 40 * 2; i++) w[i] = 0x1p-100f;
    for (uint32_t i = 0; i < 40 * 20; i++) x[i] = -0x1p-60f;
    for (uint32_t n_in = 16; n_in < 40; n_in++) {
        for (uint32_t n_rows = 1; n_rows <= 20; n_rows++) {
            for (uint32_t k = 0; k < n_isas; k++) {
                isas[k]->matmul(y, w, DT_F32, n_in, 2, x, NULL, n_rows, 0, 2, scratch);
                for (uint32_t i = 0; i < 2 * n_rows; i++)
                    assert_int_equal(f32_bits(y[i]), 1u << 31);
            }
        }
    }
}

/* Rows of which one holds what has no fixed point: its outputs are NaN, the others' as if alone. */
static void fixed_point_keeps_nan(void **state)
{
    (void)state;
    enum { IN = 544, OUT = 20, ROWS = 20 };
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    seeded s = {71};
    void *base;
    const void *w = seeded_stored(&s, DT_Q8_0, IN * OUT, 2, &base);
    float *x = seeded_floats(&s, IN * ROWS, 3), want[OUT * ROWS], got[OUT * ROWS];
    check_matmul(isas[0], want, w, DT_Q8_0, IN, OUT, x, NULL, ROWS, 0, OUT, scratch);
    for (uint32_t i = 0; i < 4 * n_isas; i++) {
        uint32_t r = seeded_below(&s, ROWS), n_rows = i % 2 ? ROWS : r + 1 < 3 ? r + 1 : 3;
        if (r >= n_rows) r = n_rows - 1;
        float *at = &x[r * IN + seeded_below(&s, IN)], keep = *at;
        *at = bad[i / n_isas];
        check_matmul(isas[i % n_isas], got, w, DT_Q8_0, IN, OUT, x, NULL, n_rows, 0, OUT, scratch);
        *at = keep;
        for (uint32_t o = 0; o < OUT * n_rows; o++) {
            if (o / OUT == r)
                assert_true(got[o] != got[o]);
            else
                assert_int_equal(f32_bits(got[o]), f32_bits(want[o]));
        }
    }
    free(base);
    free(x);
}

/* Largest values around the border of the next exponent, from the smallest to the largest f32. */
static void fixed_point_borders(void **state)
{
    (void)state;
    enum { IN = 64, OUT = 16, ROWS = 17 };
    seeded s = {72};
    void *base;
    const uint8_t *w = seeded_stored(&s, DT_Q4_1, IN * OUT, 2, &base);
    float x[IN * ROWS], want[OUT * ROWS], got[OUT * ROWS];
    for (uint32_t e = 0; e < 255; e++) {
        for (int32_t off = -2; off <= 2; off++) {
            uint32_t largest = (e << 23) + (0x7e0000u + (uint32_t)off);
            for (uint32_t i = 0; i < IN * ROWS; i++) {
                uint32_t below = seeded_below(&s, 1u << 24);
                x[i] = f32_from_bits((i % 9 == 0 || largest < below ? largest : largest - below) |
                                     (uint32_t)seeded_next(&s) << 31);
            }
            check_matmul(isas[0], want, w, DT_Q4_1, IN, OUT, x, NULL, ROWS, 0, OUT, scratch);
            for (uint32_t i = 1; i < n_isas; i++) {
                for (uint32_t n_rows = 1; n_rows <= ROWS; n_rows += ROWS - 1) {
                    check_matmul(isas[i], got, w, DT_Q4_1, IN, OUT, x, NULL, n_rows, 0, OUT,
                                 scratch);
                    assert_true(same_bits(isas[i]->name, want, got, OUT * n_rows));
                }
            }
        }
    }
    free(base);
}

/* Equal in all tables, also in place, and near the tanh form in double, far out too. */
static void gelu_agrees_and_is_true(void **state)
{
    (void)state;
    seeded s = {81};
    for (uint32_t n = 1; n <= 200; n = n < 40 ? n + 1 : n + 53) {
        float *x = seeded_floats(&s, n, 5), *y = seeded_floats(&s, n, 5);
        float *want = zeroed(n), *got = zeroed(n);
        for (uint32_t i = 0; i < n && i < 8; i++)
            x[i] = (const float[]){0.0f, -0.0f, 9.5f, -9.5f, 1e-30f, -30.0f, 30.0f, 1e20f}[i];
        for (uint32_t i = 0; i < n_isas; i++) {
            isas[i]->gelu_mul(i == 0 ? want : got, x, y, n);
            if (i > 0) assert_true(same_bits(isas[i]->name, want, got, n));
            memcpy(got, x, n * sizeof *x);
            isas[i]->gelu_mul(got, got, y, n);
            assert_true(same_bits("gelu_mul in place", want, got, n));
        }
        for (uint32_t i = 0; i < n; i++) {
            double a = (double)x[i], u = sqrt(2 / M_PI) * a * (1 + 0.044715 * a * a);
            double b = 0.5 * a * (1 + tanh(u)) * (double)y[i];
            double room = fabs(a * (double)y[i]) * 1e-9; /* tanh cancels where the truth is 0 */
            assert_true(fabs((double)want[i] - b) <= fabs(b) * 1e-5 + room);
        }
        free(x);
        free(y);
        free(want);
        free(got);
    }
}

static void row_operations_agree(void **state)
{
    (void)state;
    seeded s = {8};
    for (uint32_t n = 1; n <= 300; n = n < 70 ? n + 1 : n + 77) {
        float *x = seeded_floats(&s, n, 5), *y = seeded_floats(&s, n, 5);
        void *w_base;
        const void *w = seeded_stored(&s, DT_F32, n, 3, &w_base);
        float *want = zeroed(3 * n), *got = zeroed(3 * n);
        for (uint32_t i = 0; i < n_isas; i++) {
            float *to = i == 0 ? want : got;
            isas[i]->rms_norm_row(to, x, w, n, 1e-5f);
            isas[i]->silu_mul(to + n, x, y, n);
            memcpy(to + 2 * n, x, n * sizeof *x);
            isas[i]->add(to + 2 * n, y, n);
            assert_true(same_bits(isas[i]->name, want, to, 3 * n));
            /* In place. */
            float *in_place = zeroed(n);
            memcpy(in_place, x, n * sizeof *x);
            isas[i]->rms_norm_row(in_place, in_place, w, n, 1e-5f);
            assert_true(same_bits("rms_norm in place", want, in_place, n));
            memcpy(in_place, x, n * sizeof *x);
            isas[i]->silu_mul(in_place, in_place, y, n);
            assert_true(same_bits("silu_mul in place", want + n, in_place, n));
            free(in_place);
        }
        double squares = 0;
        for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        double norm = 1 / sqrt(squares / n + (double)1e-5f);
        for (uint32_t i = 0; i < n; i++) {
            double a = (double)x[i], b = a * norm * (double)load_f32((const char *)w + 4 * i);
            assert_true(fabs((double)want[i] - b) <= fabs(b) * 2e-6);
            b = a / (1 + exp(-a)) * (double)y[i];
            assert_true(fabs((double)want[n + i] - b) <= fabs(b) * 1e-6 + 1e-37);
            assert_true(want[2 * n + i] == x[i] + y[i]);
        }
        free(x);
        free(y);
        free(w_base);
        free(want);
        free(got);
    }
}

static void rope_turns_pairs(void **state)
{
    (void)state;
    seeded s = {9};
    static const uint32_t shapes[][3] = {
        {8, 8, 1}, {2, 8, 3}, {64, 128, 2}, {128, 128, 5}, {6, 7, 2}};
    for (int shape = 0; shape < 5; shape++) {
        for (int neox = 0; neox < 2; neox++) {
            uint32_t n_rot = shapes[shape][0], n_head = shapes[shape][1];
            uint32_t n_heads = shapes[shape][2], n = n_heads * n_head, half = n_rot / 2;
            float *x = seeded_floats(&s, n, 4), *cs = zeroed(half), *sn = zeroed(half);
            for (uint32_t i = 0; i < half; i++) {
                double c, d;
                fm_sincos((double)seeded_float(&s, 6), &d, &c);
                cs[i] = (float)c;
                sn[i] = (float)d;
            }
            float *want = zeroed(n), *got = zeroed(n);
            for (uint32_t k = 0; k < n_isas; k++) {
                float *to = k == 0 ? want : got;
                memcpy(to, x, n * sizeof *x);
                isas[k]->rope_row(to, cs, sn, n_rot, neox, n_heads, n_head);
                assert_true(same_bits(isas[k]->name, want, to, n));
            }
            for (uint32_t h = 0; h < n_heads; h++) {
                for (uint32_t i = 0; i < half; i++) {
                    uint32_t a = h * n_head + (neox ? i : 2 * i), b = neox ? a + half : a + 1;
                    double size = (fabs((double)x[a]) + fabs((double)x[b])) * 2e-7;
                    double wa = (double)x[a] * (double)cs[i] - (double)x[b] * (double)sn[i];
                    double wb = (double)x[b] * (double)cs[i] + (double)x[a] * (double)sn[i];
                    assert_true(fabs((double)want[a] - wa) <= size);
                    assert_true(fabs((double)want[b] - wb) <= size);
                }
                for (uint32_t i = n_rot; i < n_head; i++)
                    assert_true(want[h * n_head + i] == x[h * n_head + i]);
            }
            free(x);
            free(cs);
            free(sn);
            free(want);
            free(got);
        }
    }
}

static void finite_check_finds_each_place(void **state)
{
    (void)state;
    float x[131];
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < 131; i++) x[i] = i % 3 ? 3.4e38f : -0x1p-149f;
    for (uint32_t k = 0; k < n_isas; k++) {
        assert_true(isas[k]->all_finite(x, 131));
        assert_true(isas[k]->all_finite(x, 0));
        for (uint32_t i = 0; i < 131; i++) {
            float keep = x[i];
            x[i] = bad[i % 4];
            assert_false(isas[k]->all_finite(x, 131));
            assert_true(isas[k]->all_finite(x, i));
            x[i] = keep;
        }
    }
}

static void unknown_sets_are_refused(void **state)
{
    (void)state;
    assert_null(cpu_isa_get("avx"));
    assert_null(cpu_isa_get(""));
    assert_string_equal(cpu_isa_get("ref")->name, "ref");
    assert_non_null(cpu_isa_get("auto"));
}

int main(void)
{
    tap_begin(300);
    n_isas = check_isas(isas);
    scratch = aligned_alloc(64, CPU_SCRATCH_FLOATS * sizeof *scratch);
    CHECK(scratch != NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_agree),
        cmocka_unit_test(matmul_small_shapes),
        cmocka_unit_test(matmul_block_borders),
        cmocka_unit_test(matmul_tiny_values),
        cmocka_unit_test(matmul_keeps_minus_zero),
        cmocka_unit_test(fixed_point_keeps_nan),
        cmocka_unit_test(fixed_point_borders),
        cmocka_unit_test(row_operations_agree),
        cmocka_unit_test(gelu_agrees_and_is_true),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(finite_check_finds_each_place),
        cmocka_unit_test(unknown_sets_are_refused),
    };
    int failed = cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
    free(scratch);
    return failed;
}
