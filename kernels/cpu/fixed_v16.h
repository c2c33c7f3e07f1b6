/* fixed_v16.h - body of fixed_avx2.c, fixed_avx512.c and fixed_amx.c: rows to fixed point and their
 * products with quantised weights (fixed.h), in the operations of the words_<isa>.h and
 * tiles_<isa>.h included before.
 *
 * Sixteen outputs are a panel: a block of their weights, in L1 (panel_v16.h), which meets all rows.
 * Lanes are outputs, so that nothing is summed across lanes. y of the rows lies in scratch between
 * two blocks. For tiles a few panels are filled before rows meet them, so that rows come from L2
 * once for all of them. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/fixed.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/panel_v16.h"

#include <math.h>

typedef struct {
    panel p[TILES_PANELS];
    tiles_room room;           /* the instruction set's own */
    float y[][TILES_PANELS][16]; /* [n_rows] */
} fixed_scratch;
_Static_assert(sizeof(fixed_scratch) + FIXED_ROWS_MAX * TILES_PANELS * 64ull <= CPU_FIXED_SCRATCH,
               "scratch");

typedef struct {
    float *out;
    const char *w, *bias; /* bias: NULL: none */
    uint64_t w_bytes;     /* of a row */
    const fixed_rows *x;
    uint32_t n_out;
} fixed_product;

/* n values of one block. */
V16 void fixed_block(char *unit, const float *x, dtype type, uint32_t n)
{
    const uint32_t group = quant_group(type);
    char *sums = unit + FIXED_SUMS_AT;
    w16 largest = w16_set1(0);
    for (uint32_t k = 0; k < n; k += 16)
        largest = w16_max(largest, w16_and(w16_bits(v16_load(x + k)), w16_set1(0x7fffffffu)));
    uint32_t a = w16_largest(largest), e = (a + FIXED_ROUND_UP) >> 23;
    if (e < FIXED_EXPONENT_MIN) e = FIXED_EXPONENT_MIN;
    const bool finite = a < 0x7f800000u;
    const float s = finite ? f32_from_bits((e - 14) << 23) : NAN;
    const v16 by = v16_set1(finite ? f32_from_bits((268 - e) << 23) : 0.0f);
    memcpy(unit + fixed_scale_at(type), &s, sizeof s);
    for (uint32_t k = 0; k < n; k += group, sums += 4) {
        w16 sum = w16_set1(0);
        for (uint32_t j = k; j < k + group; j += 16) {
            w16 v = w16_round(v16_mul(v16_load(x + j), by));
            fixed_store(unit, j, v);
            sum = w16_add(sum, v);
        }
        int32_t total = finite ? w16_sum(sum) : 0; /* NaN has no integer */
        int32_t offset = quant_offset(type) * total;
        float f = (float)total;
        memcpy(sums, quant_has_min(type) ? (const void *)&f : (const void *)&offset, 4);
    }
}

/* Rows [r, r + n_rows) meet the panel of the n values from i on. Meanwhile
 * the next weights are fetched. */
V16 void few_rows(const panel *p, float (*y)[TILES_PANELS][16], uint32_t j, const fixed_rows *x,
                  dtype type, uint32_t r, uint32_t i, uint32_t n, const uint32_t n_rows,
                  const weights_ahead *next)
{
    const uint32_t group = quant_group(type), unit_bytes = fixed_unit_bytes(type);
    const char *unit = fixed_unit(x, type, r, i), *sum = unit + FIXED_SUMS_AT;
    v16 t[DOT_ROWS];
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) t[k] = v16_zero();
    for (uint32_t g = 0; g < n / group; g++, sum += 4) {
        w16 d[DOT_ROWS];
        fetch_line(next, g);
        fixed_dots(d, p->q[g * (group / 4)], group / 4, unit, unit_bytes, group * g, n_rows);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < n_rows; k++) {
            const char *sum_k = sum + k * unit_bytes;
            if (quant_offset(type) != 0) d[k] = w16_sub(d[k], w16_set1(quant_u32(sum_k)));
            t[k] = v16_fma(v16_load(p->s[g]), w16_float(d[k]), t[k]);
            if (quant_has_min(type))
                t[k] = v16_fma(v16_load(p->m[g]), v16_set1(load_f32(sum_k)), t[k]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) {
        v16 s = v16_set1(load_f32(unit + k * unit_bytes + fixed_scale_at(type)));
        v16_store(y[r + k][j], v16_fma(s, t[k], v16_load(y[r + k][j])));
    }
}

/* y[j] of all rows: 0. */
V16 void clear_y(const fixed_product *f, uint32_t n_panels, fixed_scratch *s)
{
    for (uint32_t r = 0; r < f->x->n_rows; r++) {
        for (uint32_t j = 0; j < n_panels; j++) v16_store(s->y[r][j], v16_zero());
    }
}

/* y[j] of a few rows for the sixteen weight rows at w[j], w[j] + stride, .. Of two panels in turn,
 * the next block's weights have time to arrive. */
V16 void fixed_few(const fixed_product *f, dtype type, const char *const *w, uint32_t n_panels,
                   uint64_t stride, fixed_scratch *s)
{
    static const weights_ahead none;
    const fixed_rows *x = f->x;
    uint64_t done = 0;
    clear_y(f, n_panels, s);
    for (uint32_t i = 0; i < x->n_in; i += FIXED_BLOCK) {
        uint32_t n = x->n_in - i < FIXED_BLOCK ? x->n_in - i : FIXED_BLOCK;
        uint64_t bytes = n / quant_block_values(type) * quant_block_bytes(type);
        for (uint32_t j = 0; j < n_panels; j++) {
            const char *at = w[j] + done; /* behind a row lie those of the next panels */
            const char *ahead = i + n < x->n_in ? at + bytes : w[j] + n_panels * 16 * stride;
            const weights_ahead next = {ahead, stride, bytes};
            uint32_t r = 0;
            panel_fill(&s->p[j], type, at, stride, n, false);
            for (; r + DOT_ROWS <= x->n_rows; r += DOT_ROWS)
                few_rows(&s->p[j], s->y, j, x, type, r, i, n, DOT_ROWS, r == 0 ? &next : &none);
            for (; r < x->n_rows; r++)
                few_rows(&s->p[j], s->y, j, x, type, r, i, n, 1, r == 0 ? &next : &none);
        }
        done += bytes;
    }
}

/* y[j] of many rows, likewise. */
V16 void fixed_many(const fixed_product *f, dtype type, const char *const *w, uint32_t n_panels,
                    uint64_t stride, fixed_scratch *s)
{
    const fixed_rows *x = f->x;
    uint64_t done = 0;
    clear_y(f, n_panels, s);
    for (uint32_t i = 0; i < x->n_in; i += FIXED_BLOCK) {
        uint32_t n = x->n_in - i < FIXED_BLOCK ? x->n_in - i : FIXED_BLOCK;
        for (uint32_t j = 0; j < n_panels; j++)
            panel_fill(&s->p[j], type, w[j] + done, stride, n, true);
        tiles_rows(s->p, n_panels, &s->room, s->y, x, type, i, n);
        done += n / quant_block_values(type) * quant_block_bytes(type);
    }
}

/* Outputs o .. o + n - 1 are y[j]. */
V16 void fixed_outputs(const fixed_product *f, const fixed_scratch *s, uint32_t j, uint32_t o,
                       uint32_t n)
{
    for (uint32_t r = 0; r < f->x->n_rows; r++) {
        float *out = f->out + (uint64_t)r * f->n_out + o;
        const float *y = s->y[r][j];
        for (uint32_t k = 0; k < n; k++)
            out[k] = f->bias == NULL ? y[k] : y[k] + load_f32(f->bias + 4ull * (o + k));
    }
}

/* Sixteens of outputs, the last of them moved back over its neighbour; of fewer outputs each fills
 * a panel of its own, with rows that are all the same. */
V16 void fixed_range(const fixed_product *f, dtype type, uint32_t o_begin, uint32_t o_end,
                     fixed_scratch *s)
{
    const bool many = f->x->n_rows >= TILES_ROWS_MIN, single = o_end - o_begin < 16;
    const uint32_t width = single ? 1 : 16, n_most = many ? TILES_PANELS : 2;
    const uint64_t stride = single ? 0 : f->w_bytes;
    if (many) tiles_begin(type);
    for (uint32_t o = o_begin; o < o_end;) {
        const char *w[TILES_PANELS] = {NULL};
        uint32_t at[TILES_PANELS], n = 0;
        for (; n < n_most && o < o_end; n++, o += width) {
            at[n] = o_end - o < width ? o_end - width : o;
            w[n] = f->w + at[n] * f->w_bytes;
        }
        if (many)
            fixed_many(f, type, w, n, stride, s);
        else
            fixed_few(f, type, w, n, stride, s);
        for (uint32_t j = 0; j < n; j++) fixed_outputs(f, s, j, at[j], width);
    }
    if (many) tiles_end();
}

/* One function per type, so that each is optimised with its type as a constant. */
#define FIXED_OF_TYPE(type)                                                                        \
    static void fixed_range_##type(const fixed_product *f, uint32_t o_begin, uint32_t o_end,       \
                                   fixed_scratch *scratch)                                         \
    {                                                                                              \
        fixed_range(f, type, o_begin, o_end, scratch);                                             \
    }                                                                                              \
    static void fixed_units_##type(const fixed_rows *to, const float *x, uint32_t r)               \
    {                                                                                              \
        uint32_t i = 0;                                                                            \
        for (; i + FIXED_BLOCK <= to->n_in; i += FIXED_BLOCK)                                      \
            fixed_block(fixed_unit(to, type, r, i), x + i, type, FIXED_BLOCK);                     \
        if (i < to->n_in) fixed_block(fixed_unit(to, type, r, i), x + i, type, to->n_in - i);      \
    }
QUANT_TYPES(FIXED_OF_TYPE)

void ISA_NAME(fixed_rows, V16_ISA)(const fixed_rows *to, const float *x, dtype type,
                                   uint32_t r_begin, uint32_t r_end)
{
    for (uint32_t r = r_begin; r < r_end; r++) {
        switch (type) {
#define FIXED_UNITS_CASE(type)                                                                     \
    case type:                                                                                     \
        fixed_units_##type(to, x + (uint64_t)r * to->n_in, r);                                     \
        break;
            QUANT_TYPES(FIXED_UNITS_CASE)
        default:
            CHECK(!"a type without blocks");
        }
    }
}

void ISA_NAME(matmul_fixed, V16_ISA)(float *out, const void *w, dtype type, uint32_t n_out,
                                     const fixed_rows *x, const void *bias, uint32_t o_begin,
                                     uint32_t o_end, float *scratch)
{
    const fixed_product f = {.out = out, .w = w, .bias = bias,
                             .w_bytes = dtype_bytes(type, x->n_in), .x = x, .n_out = n_out};
    if (x->n_rows == 0) return;
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
