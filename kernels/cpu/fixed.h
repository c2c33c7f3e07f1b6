/* fixed.h - products of quantised weights (quant.h): activations in fixed point, sums in integers.
 *
 * A row of activations is cut into blocks of FIXED_BLOCK values (the last may be shorter), each with
 * a scale that is a power of two: with a the largest magnitude of the block, as bits of an f32,
 *
 *     e = max(24, (a + 0x20000) >> 23),  s = 2^(e - 141),  v[i] = x[i] / s rounded to even,
 *
 * so that |v| < 32640 and, but for blocks below 2^-103, the largest |v| is at least 16128. A block
 * that holds NaN or infinity has s = NaN, and so have all outputs of its row.
 *
 * Weights come in groups of 32 (16: Q2_K, Q3_K, Q6_K) that share s_w and m_w. Of each group
 *
 *     D = sum q v,  S = sum v        exact in 32-bit integers, so in any order,
 *
 * and one chain of fused multiply-adds in f32 makes an output:
 *
 *     block: t = 0; groups ascending: t = fma(s_w, (float)D, t), then, for a type with a minimum,
 *            t = fma(m_w, (float)S, t)
 *     row:   y = 0; blocks ascending: y = fma(s, t, y); then + bias
 *
 * Integers leave an instruction set free to sum as it likes: the same bits from plain C, from
 * AVX2's 16-bit products, AVX-512's 8-bit ones and AMX tiles. The distance from exact products is
 * that of v: relative to the block's largest value 2^-15 at most, some 1e-9 of the sum of squares.
 *
 * Where an instruction set multiplies unsigned bytes it takes q + quant_offset(type) and subtracts
 * quant_offset(type) S afterwards.
 *
 * A row in fixed point is fixed_row_bytes long: v in an order of the instruction set's own, 2 bytes
 * each; then a word for each group: (float)S, or, for a type without a minimum, the integer
 * quant_offset(type) S; then the blocks' scales. Rows are made for one type of weights. */
#ifndef KERNELS_CPU_FIXED_H
#define KERNELS_CPU_FIXED_H

#include "common/plan.h"
#include "kernels/cpu/quant.h"

#define FIXED_BLOCK 256u
#define FIXED_EXPONENT_MIN 24u
#define FIXED_ROUND_UP 0x20000u /* largest values that would not fit are of the next exponent */

/* A device's buffer of rows in fixed point; of wider rows fewer are in work at a time. */
#define FIXED_BYTES PLAN_FIXED_BYTES
#define FIXED_ROWS_MAX 2048u
/* Rows are read in runs of so many: that much must be readable behind the last. */
#define FIXED_ROWS_UNIT 16u

static inline uint32_t quant_group(dtype type)
{
    return type == DT_Q2_K || type == DT_Q3_K || type == DT_Q6_K ? 16 : 32;
}

/* What makes q unsigned. 0: it is. */
static inline int32_t quant_offset(dtype type)
{
    switch (type) {
    case DT_Q4_0:
        return 8;
    case DT_Q5_0:
        return 16;
    case DT_Q3_K:
        return 4;
    case DT_Q6_K:
        return 32;
    case DT_Q8_0:
    case DT_IQ4_NL:
    case DT_IQ4_XS:
        return 128;
    default:
        return 0;
    }
}

/* Rows in fixed point, one after the other. */
typedef struct {
    const char *rows;
    uint64_t row_bytes;
    uint32_t n_in, n_rows;
} fixed_rows_view;

static inline uint64_t fixed_sums_at(uint32_t n_in)
{
    return 2ull * n_in;
}

static inline uint64_t fixed_scales_at(dtype type, uint32_t n_in)
{
    return fixed_sums_at(n_in) + 4ull * (n_in / quant_group(type));
}

/* An odd number of cache lines, so that rows do not fall into the same sets. */
static inline uint64_t fixed_row_bytes(dtype type, uint32_t n_in)
{
    uint64_t n_blocks = (n_in + FIXED_BLOCK - 1) / FIXED_BLOCK;
    return (fixed_scales_at(type, n_in) + 4 * n_blocks + 63) / 64 * 64 | 64;
}

/* How many of n_rows fit into `bytes`, the unit's slack included; 0: not one. */
static inline uint32_t fixed_rows_fit(dtype type, uint32_t n_in, uint32_t n_rows, uint64_t bytes)
{
    uint64_t fit = bytes / fixed_row_bytes(type, n_in);
    if (fit >= FIXED_ROWS_UNIT) fit -= fit % FIXED_ROWS_UNIT;
    if (fit > FIXED_ROWS_MAX) fit = FIXED_ROWS_MAX;
    return fit < n_rows ? (uint32_t)fit : n_rows;
}

#endif
