/* quant.h - types whose values are stored in blocks: scales, and a few bits for each value.
 *
 * What a stored value means is defined once, by IEEE operations in f32:
 *
 *     value = s * q                  or, for the types with a minimum,   value = fma(s, q, m)
 *
 * q is an integer of at most 8 bits, s and m are products of the block's f16 scales and small
 * integers. Those products and s * q are exact, so a value is the f32 nearest to what is stored,
 * and an infinite or NaN scale gives what IEEE says. Embeddings are computed so, by the plain
 * reference everywhere; products take q, s and m as they are (fixed.h).
 *
 * The layouts (GGUF specification; offsets in bytes; nibble: low 4 bits, then high; f16 d, dmin):
 *
 *     Q4_0   d 0, q 2[16]              s = d, q - 8; values 0-15 are low nibbles, 16-31 high ones
 *     Q4_1   d 0, m 2, q 4[16]         s = d, m = m
 *     Q5_0   d 0, high 2[4], q 6[16]   as Q4_0, bit i of `high` is value i's fifth; q - 16
 *     Q5_1   d 0, m 2, high 4[4], q 8[16]
 *     Q8_0   d 0, q 2[32]              s = d, q signed
 *     IQ4_NL d 0, q 2[16]              as Q4_0, q an index into QUANT_IQ4_VALUES
 *   256 values, in groups of 16 or 32 with a scale each:
 *     Q2_K   scale 0[16], q 16[64], d 80, dmin 82       groups of 16; s = d * low nibble,
 *            m = -dmin * high nibble of scale
 *     Q3_K   high 0[32], q 32[64], scale 96[12], d 108  groups of 16; s = d * (scale - 32), q - 4
 *     Q4_K   d 0, dmin 2, scale 4[12], q 16[128]        groups of 32; s = d * scale,
 *            m = -dmin * min
 *     Q5_K   d 0, dmin 2, scale 4[12], high 16[32], q 48[128]
 *     Q6_K   q 0[128], high 128[64], scale 192[16], d 208   groups of 16; s = d * scale, q - 32
 *     IQ4_XS d 0, scale's high 2 bits 2[2], low nibbles 4[4], q 8[128]   groups of 32;
 *            s = d * (scale - 32), q an index into QUANT_IQ4_VALUES
 *   Values 128 h + 32 j + l (l < 32):
 *     Q2_K, Q3_K: bits 2 j of q[32 h + l]; Q3_K's third bit is bit 4 h + j of high[l]
 *     Q4_K, Q5_K: nibble j % 2 of q[64 h + 32 (j / 2) + l]; the fifth bit is bit 4 h + j of high[l]
 *     Q6_K: nibble j / 2 of q[64 h + 32 (j % 2) + l]; bits 2 j of high[32 h + l] above it
 *     IQ4_XS: group g is 16 bytes, low nibbles first. */
#ifndef KERNELS_CPU_QUANT_H
#define KERNELS_CPU_QUANT_H

#include "common/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define QUANT_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* X(type) for each type that this file describes. */
#define QUANT_TYPES(X)                                                                             \
    X(DT_Q4_0) X(DT_Q4_1) X(DT_Q5_0) X(DT_Q5_1) X(DT_Q8_0) X(DT_Q2_K) X(DT_Q3_K) X(DT_Q4_K)        \
    X(DT_Q5_K) X(DT_Q6_K) X(DT_IQ4_NL) X(DT_IQ4_XS)

static inline bool quant_is(dtype type)
{
    return type != DT_F32 && type != DT_F16 && type != DT_BF16;
}

static inline uint32_t quant_block_values(dtype type)
{
    switch (type) {
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_IQ4_XS:
        return 256;
    default:
        return 32;
    }
}

static inline uint32_t quant_block_bytes(dtype type)
{
    switch (type) {
    case DT_Q4_0:
    case DT_IQ4_NL:
        return 18;
    case DT_Q4_1:
        return 20;
    case DT_Q5_0:
        return 22;
    case DT_Q5_1:
        return 24;
    case DT_Q8_0:
        return 34;
    case DT_Q2_K:
        return 84;
    case DT_Q3_K:
        return 110;
    case DT_Q4_K:
        return 144;
    case DT_Q5_K:
        return 176;
    case DT_Q6_K:
        return 210;
    default: /* IQ4_XS */
        return 136;
    }
}

/* A minimum is part of the value. */
static inline bool quant_has_min(dtype type)
{
    return type == DT_Q4_1 || type == DT_Q5_1 || type == DT_Q2_K || type == DT_Q4_K ||
           type == DT_Q5_K;
}

/* Bytes as little-endian words. */
static inline uint32_t quant_u32(const void *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* The plain reference: one block as integers and, for each sixteen values, s and m. */
typedef struct {
    int q[256];
    float s[16], m[16];
} quant_plain;
void quant_open_ref(quant_plain *b, const void *p, dtype type);

/* n values (whole blocks) to f32, of every instruction set's table. */
void quant_to_f32_ref(float *out, const void *in, dtype type, uint64_t n);

#endif
