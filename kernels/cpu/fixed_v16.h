/* fixed_v16.h - body of fixed_avx2.c, fixed_avx512.c and fixed_amx.c: rows to fixed point and their
 * products with quantised weights (fixed.h), in the operations of the words_<isa>.h and
 * tiles_<isa>.h included before.
 *
 * Sixteen outputs at a time, a block of values after the other: the block's weights become a panel
 * in L1 (panel_v16.h), which then meets all rows. Lanes are outputs, so that nothing is summed
 * across lanes. y of the rows lies in scratch between two blocks. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fixed.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/panel_v16.h"

#include <math.h>

typedef struct {
    panel p;
    tiles_room room; /* the instruction set's own */
    float y[][16];   /* [n_rows] */
} fixed_scratch;
_Static_assert(sizeof(fixed_scratch) + FIXED_ROWS_MAX * 64ull <= CPU_FIXED_SCRATCH, "scratch");

typedef struct {
    float *out;
    const char *w, *bias; /* bias: NULL: none */
    uint64_t w_bytes;     /* of a row */
    fixed_rows_view x;
    uint32_t n_out;
} fixed_product;

V16 void fixed_block(char *row, const float *x, dtype type, uint32_t i, uint32_t n_in)
{
    const uint32_t group = quant_group(type), n = n_in - i < FIXED_BLOCK ? n_in - i : FIXED_BLOCK;
    char *scale = row + fixed_scales_at(type, n_in) + 4 * (i / FIXED_BLOCK);
    char *sums = row + fixed_sums_at(n_in) + 4 * (i / group);
    w16 largest = w16_set1(0);
    for (uint32_t k = 0; k < n; k += 16)
        largest = w16_max(largest, w16_and(w16_bits(v16_load(x + i + k)), w16_set1(0x7fffffffu)));
    uint32_t a = w16_largest(largest), e = (a + FIXED_ROUND_UP) >> 23;
    if (e < FIXED_EXPONENT_MIN) e = FIXED_EXPONENT_MIN;
    const bool finite = a < 0x7f800000u;
    const float s = finite ? f32_from_bits((e - 14) << 23) : NAN;
    const v16 by = v16_set1(finite ? f32_from_bits((268 - e) << 23) : 0.0f);
    memcpy(scale, &s, sizeof s);
    for (uint32_t k = 0; k < n; k += group, sums += 4) {
        w16 sum = w16_set1(0);
        for (uint32_t j = k; j < k + group; j += 16) {
            w16 v = w16_round(v16_mul(v16_load(x + i + j), by));
            fixed_store(row, i + j, n_in, v);
            sum = w16_add(sum, v);
        }
        int32_t total = w16_sum(sum), offset = quant_offset(type) * total;
        float f = (float)total;
        memcpy(sums, quant_has_min(type) ? (const void *)&f : (const void *)&offset, 4);
    }
}

/* Rows [r, r + n_rows) meet the panel of the n values from i on. */
V16 void few_rows(const panel *p, float (*y)[16], const fixed_rows_view *x, dtype type, uint32_t r,
                  uint32_t i, uint32_t n, const uint32_t n_rows)
{
    const uint32_t group = quant_group(type);
    const char *row = x->rows + r * x->row_bytes;
    v16 t[DOT_ROWS];
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) t[k] = v16_zero();
    for (uint32_t g = 0; g < n / group; g++) {
        w16 d[DOT_ROWS];
        const char *sum = row + fixed_sums_at(x->n_in) + 4 * (i / group + g);
        fixed_dots(d, p->q[g * (group / 4)], group / 4, row, x->row_bytes, i + group * g, x->n_in,
                   n_rows);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < n_rows; k++) {
            const char *sum_k = sum + k * x->row_bytes;
            if (quant_offset(type) != 0) d[k] = w16_sub(d[k], w16_set1(quant_u32(sum_k)));
            t[k] = v16_fma(v16_load(p->s[g]), w16_float(d[k]), t[k]);
            if (quant_has_min(type))
                t[k] = v16_fma(v16_load(p->m[g]), v16_set1(load_f32(sum_k)), t[k]);
        }
    }
    const char *scale = row + fixed_scales_at(type, x->n_in) + 4 * (i / FIXED_BLOCK);
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) {
        v16 s = v16_set1(load_f32(scale + k * x->row_bytes));
        v16_store(y[r + k], v16_fma(s, t[k], v16_load(y[r + k])));
    }
}

/* The next tile's weights lie behind this one's: fetch as many bytes as this block takes. */
V16 void fetch_ahead(const char *p, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += 64) _mm_prefetch(p + at, _MM_HINT_T1);
}

/* y of all rows for the sixteen weight rows at w, w + stride, .. */
V16 void fixed_tile(const fixed_product *f, dtype type, const char *w, uint64_t stride,
                    fixed_scratch *scratch)
{
    const fixed_rows_view *x = &f->x;
    const bool many = x->n_rows >= TILES_ROWS_MIN;
    const char *next = w + 16 * stride;
    for (uint32_t r = 0; r < x->n_rows; r++) v16_store(scratch->y[r], v16_zero());
    for (uint32_t i = 0; i < x->n_in; i += FIXED_BLOCK) {
        uint32_t n = x->n_in - i < FIXED_BLOCK ? x->n_in - i : FIXED_BLOCK, r = 0;
        const uint64_t bytes = n / quant_block_values(type) * quant_block_bytes(type);
        if (!many) fetch_ahead(next, 16 * bytes);
        next += 16 * bytes;
        if (many) {
            panel_fill(&scratch->p, type, w, stride, n, true);
            tiles_rows(&scratch->p, &scratch->room, scratch->y, x, type, i, n);
        } else {
            panel_fill(&scratch->p, type, w, stride, n, false);
            for (; r + DOT_ROWS <= x->n_rows; r += DOT_ROWS)
                few_rows(&scratch->p, scratch->y, x, type, r, i, n, DOT_ROWS);
            for (; r < x->n_rows; r++) few_rows(&scratch->p, scratch->y, x, type, r, i, n, 1);
        }
        w += bytes;
    }
}

V16 void fixed_outputs(const fixed_product *f, const fixed_scratch *scratch, uint32_t o, uint32_t n)
{
    for (uint32_t r = 0; r < f->x.n_rows; r++) {
        float *out = f->out + (uint64_t)r * f->n_out + o;
        const float *y = scratch->y[r];
        for (uint32_t j = 0; j < n; j++)
            out[j] = f->bias == NULL ? y[j] : y[j] + load_f32(f->bias + 4ull * (o + j));
    }
}

/* Whole tiles, the last of them moved back over its neighbour; of fewer than sixteen outputs each is
 * a tile of its own whose rows are all the same. */
V16 void fixed_range(const fixed_product *f, dtype type, uint32_t o_begin, uint32_t o_end,
                     fixed_scratch *scratch)
{
    if (f->x.n_rows >= TILES_ROWS_MIN) tiles_begin(type);
    for (uint32_t o = o_begin; o < o_end; o += 16) {
        if (o_end - o_begin < 16) {
            for (; o < o_end; o++) {
                fixed_tile(f, type, f->w + o * f->w_bytes, 0, scratch);
                fixed_outputs(f, scratch, o, 1);
            }
            break;
        }
        if (o_end - o < 16) o = o_end - 16;
        fixed_tile(f, type, f->w + o * f->w_bytes, f->w_bytes, scratch);
        fixed_outputs(f, scratch, o, 16);
    }
    if (f->x.n_rows >= TILES_ROWS_MIN) tiles_end();
}

/* One function per type, so that each is optimised with its type as a constant. */
#define FIXED_OF_TYPE(type)                                                                        \
    static void fixed_range_##type(const fixed_product *f, uint32_t o_begin, uint32_t o_end,       \
                                   fixed_scratch *scratch)                                         \
    {                                                                                              \
        fixed_range(f, type, o_begin, o_end, scratch);                                             \
    }                                                                                              \
    static void fixed_row_##type(char *row, const float *x, uint32_t n_in)                         \
    {                                                                                              \
        for (uint32_t i = 0; i < n_in; i += FIXED_BLOCK) fixed_block(row, x, type, i, n_in);       \
    }
QUANT_TYPES(FIXED_OF_TYPE)

void ISA_NAME(fixed_rows, V16_ISA)(void *to, const float *x, dtype type, uint32_t n_in,
                                   uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        char *row = (char *)to + r * fixed_row_bytes(type, n_in);
        switch (type) {
#define FIXED_ROW_CASE(type)                                                                       \
    case type:                                                                                     \
        fixed_row_##type(row, x + (uint64_t)r * n_in, n_in);                                       \
        break;
            QUANT_TYPES(FIXED_ROW_CASE)
        default:
            CHECK(!"a type without blocks");
        }
    }
}

void ISA_NAME(matmul_fixed, V16_ISA)(float *out, const void *w, dtype type, uint32_t n_in,
                                     uint32_t n_out, const void *rows, const void *bias,
                                     uint32_t n_rows, uint32_t o_begin, uint32_t o_end,
                                     float *scratch)
{
    const fixed_product f = {.out = out, .w = w, .bias = bias, .w_bytes = dtype_bytes(type, n_in),
                             .x = {rows, fixed_row_bytes(type, n_in), n_in, n_rows},
                             .n_out = n_out};
    if (n_rows == 0) return;
    switch (type) {
#define FIXED_CASE(type)                                                                           \
    case type:                                                                                     \
        fixed_range_##type(&f, o_begin, o_end, (fixed_scratch *)scratch);                          \
        return;
        QUANT_TYPES(FIXED_CASE)
    default:
        CHECK(!"a type without blocks");
    }
}
