/* quant_avx512.h - values of up to five bits by permutation: the sixteen or 32 values that a group
 * can have are computed once, by the operations of quant.h, and the stored bits choose among them.
 * A permutation looks at the low bits of an index only, so that nothing has to be masked. */
#ifndef KERNELS_CPU_QUANT_AVX512_H
#define KERNELS_CPU_QUANT_AVX512_H

#include "kernels/cpu/quant_bytes.h"

/* The types that are faster so; the others go through bytes (quant_v16.h). */
V16 bool quant_in_table(dtype type)
{
    return type != DT_Q8_0 && type != DT_Q5_K && type != DT_Q6_K;
}

/* What sixteen indices stand for: from `first` up (-16, -8, 0, 16), and, for fewer bits, anew after
 * four or eight. */
V16 v16 quants_from(int first)
{
    static const float values[48] __attribute__((aligned(64))) = {
        -16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1,
        0,   1,   2,   3,   4,   5,   6,   7,  8,  9,  10, 11, 12, 13, 14, 15,
        16,  17,  18,  19,  20,  21,  22,  23, 24, 25, 26, 27, 28, 29, 30, 31};
    return v16_load(values + 16 + first);
}

V16 v16 quants_of_2_bits(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
}

V16 v16 quants_of_3_bits(void)
{
    return _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
}

V16 v16 quants_of_iq4(void)
{
    static const float values[16] __attribute__((aligned(64))) = {QUANT_IQ4_VALUES};
    return v16_load(values);
}

V16 __m512i indices(const char *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

V16 __m512i indices_down(__m512i x, uint32_t n)
{
    return n == 0 ? x : (__m512i)((__v16su)x >> n);
}

/* The bit `from` of `high` as bit `to` of x. */
V16 __m512i with_bit(__m512i x, __m512i high, uint32_t from, uint32_t to)
{
    __m512i moved = from > to ? (__m512i)((__v16su)high >> (from - to))
                              : (__m512i)((__v16su)high << (to - from));
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(1 << to), moved, x, 0xca);
}

/* Bit 16 c + lane of the word at p as bit 4 of each lane of x. */
V16 __m512i with_fifth_bit(__m512i x, const char *p, uint32_t c)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i by = _mm512_sub_epi32(_mm512_set1_epi32(36 - 16 * (int)c), lane);
    __m512i high = _mm512_rolv_epi32(_mm512_set1_epi32((int)quant_u32(p)), by);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(16), high, x, 0xca);
}

/* Vector c of the block at p, whose group has s and m in every lane. */
V16 v16 quant_from_table(dtype type, const char *p, v16 s, v16 m, uint32_t c)
{
    const v16 from_0 = quants_from(0);
    const uint32_t h = c / 8, j = c / 2 % 4, half = c % 2; /* halves of 128, of 32 */
    switch (type) {
    case DT_Q4_0:
        return _mm512_permutexvar_ps(indices_down(indices(p + 2), 4 * c),
                                     v16_mul(s, quants_from(-8)));
    case DT_Q4_1:
        return _mm512_permutexvar_ps(indices_down(indices(p + 4), 4 * c), v16_fma(s, from_0, m));
    case DT_Q5_0: {
        __m512i i = with_fifth_bit(indices_down(indices(p + 6), 4 * c), p + 2, c);
        return _mm512_permutex2var_ps(v16_mul(s, quants_from(-16)), i, v16_mul(s, from_0));
    }
    case DT_Q5_1: {
        __m512i i = with_fifth_bit(indices_down(indices(p + 8), 4 * c), p + 4, c);
        return _mm512_permutex2var_ps(v16_fma(s, from_0, m), i,
                                      v16_fma(s, quants_from(16), m));
    }
    case DT_Q2_K: /* two bits choose within each four lanes */
        return _mm512_permutevar_ps(
            v16_fma(s, quants_of_2_bits(), m),
            indices_down(indices(p + 16 + 32 * h + 16 * half), 2 * j));
    case DT_Q3_K: {
        __m512i i = indices_down(indices(p + 32 + 32 * h + 16 * half), 2 * j);
        i = with_bit(i, indices(p + 16 * half), c / 2, 2);
        return _mm512_permutexvar_ps(i, v16_mul(s, quants_of_3_bits()));
    }
    case DT_Q4_K:
        return _mm512_permutexvar_ps(
            indices_down(indices(p + 16 + 32 * (c / 4) + 16 * half), 4 * (c / 2 % 2)),
            v16_fma(s, from_0, m));
    default: { /* IQ4_NL, IQ4_XS */
        const char *q = type == DT_IQ4_NL ? p + 2 : p + 8 + 16 * (c / 2);
        return _mm512_permutexvar_ps(indices_down(indices(q), 4 * half),
                                     v16_mul(s, quants_of_iq4()));
    }
    }
}

#endif
