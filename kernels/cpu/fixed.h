/* fixed.h - products of quantised weights (quant.h): activations in fixed point, sums in integers.
 *
 * A row of activations is cut into blocks of FIXED_BLOCK values (the last may be shorter), each
 * with a scale that is a power of two: with a the largest magnitude of the block, as bits of an
 * f32,
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
 * In memory, rows lie block by block: of each block all rows, one unit of memory each: 2 bytes a
 * value, in an order of the instruction set's own; at FIXED_SUMS_AT a word for each group:
 * (float)S, or, for a type without a minimum, the integer quant_offset(type) S; then s. Rows are
 * made for one type of weights. */
#ifndef KERNELS_CPU_FIXED_H
#define KERNELS_CPU_FIXED_H

#include "common/plan.h"
#include "kernels/cpu/quant.h"

#define FIXED_BLOCK 256u
#define FIXED_EXPONENT_MIN 24u
#define FIXED_ROUND_UP 0x20000u /* largest values that would not fit are of the next exponent */

#define FIXED_SUMS_AT (2u * FIXED_BLOCK)

/* A device's buffer of rows in fixed point; of wider rows fewer are in work at a time. */
#define FIXED_BYTES PLAN_FIXED_BYTES
#define FIXED_ROWS_MAX 512u
/* Rows may be read in runs of so many: that many units must be readable behind the last. */
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

static inline uint32_t fixed_scale_at(dtype type)
{
    return FIXED_SUMS_AT + 4 * (FIXED_BLOCK / quant_group(type));
}

/* Of one row's block: whole cache lines. */
static inline uint32_t fixed_unit_bytes(dtype type)
{
    return (fixed_scale_at(type) + 4 + 63) / 64 * 64;
}

/* Rows in fixed point. */
typedef struct {
    char *units; /* aligned to 64; fixed_bytes */
    uint32_t n_in, n_rows;
} fixed_rows;

/* The unit of row r's block with value i. */
static inline char *fixed_unit(const fixed_rows *x, dtype type, uint32_t r, uint32_t i)
{
    return x->units + ((uint64_t)(i / FIXED_BLOCK) * x->n_rows + r) * fixed_unit_bytes(type);
}

static inline uint64_t fixed_bytes(dtype type, uint32_t n_in, uint32_t n_rows)
{
    uint64_t n_blocks = (n_in + FIXED_BLOCK - 1) / FIXED_BLOCK;
    return (n_blocks * n_rows + FIXED_ROWS_UNIT) * fixed_unit_bytes(type);
}

/* How many of n_rows fit into `bytes`; 0: not one. */
static inline uint32_t fixed_rows_fit(dtype type, uint32_t n_in, uint32_t n_rows, uint64_t bytes)
{
    uint64_t slack = fixed_bytes(type, n_in, 0);
    if (bytes < slack) return 0;
    uint64_t fit = (bytes - slack) / (fixed_bytes(type, n_in, 1) - slack);
    if (fit > FIXED_ROWS_MAX) fit = FIXED_ROWS_MAX;
    if (fit >= n_rows) return n_rows;
    return (uint32_t)(fit < FIXED_ROWS_UNIT ? fit : fit - fit % FIXED_ROWS_UNIT);
}

#endif
