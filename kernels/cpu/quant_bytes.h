/* quant_bytes.h - the quants of one block (quant.h) as signed bytes in order, in AVX2 operations on
 * 32 of them at a time. Include one of the v16_<isa>.h before. */
#ifndef KERNELS_CPU_QUANT_BYTES_H
#define KERNELS_CPU_QUANT_BYTES_H

#include "kernels/cpu/quant.h"

#include <immintrin.h>

V16 __m256i load_32(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Every byte's bits moved down or up; bits of a neighbour come along and are to be masked. */
V16 __m256i bits_down(__m256i x, uint32_t n)
{
    return (__m256i)((__v16hu)x >> n);
}

V16 __m256i bits_up(__m256i x, uint32_t n)
{
    return (__m256i)((__v16hu)x << n);
}

V16 __m256i bits_and(__m256i x, int mask)
{
    return _mm256_and_si256(x, _mm256_set1_epi8((char)mask));
}

/* Bit `from` of every byte of x at bit `to`, the others 0. */
V16 __m256i bit_at(__m256i x, uint32_t from, uint32_t to)
{
    x = from > to ? bits_down(x, from - to) : bits_up(x, to - from);
    return bits_and(x, 1 << to);
}

/* Sixteen bytes' low nibbles, then their high ones. */
V16 __m256i nibbles_of_16(const void *p)
{
    __m128i x = _mm_loadu_si128(p);
    return bits_and(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), 15);
}

V16 __m256i iq4_of(__m256i nibble)
{
    const __m128i values = _mm_setr_epi8(QUANT_IQ4_VALUES);
    return _mm256_shuffle_epi8(_mm256_set_m128i(values, values), nibble);
}

/* 16 in the bytes whose bit of the 32 at p is set. */
V16 __m256i fifth_bits(const void *p)
{
    __m256i x = _mm256_set1_epi32((int)quant_u32(p));
    x = _mm256_shuffle_epi8(x, _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                  0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    return bits_and(_mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit), 16);
}

V16 __m256i minus(__m256i x, int n)
{
    return _mm256_sub_epi8(x, _mm256_set1_epi8((char)n));
}

/* Values 32 g .. 32 g + 31 of the block at p. */
V16 __m256i quants_of_32(dtype type, const char *p, uint32_t g)
{
    const uint32_t h = g / 4, j = g % 4;
    switch (type) {
    case DT_Q4_0:
        return minus(nibbles_of_16(p + 2), 8);
    case DT_Q4_1:
        return nibbles_of_16(p + 4);
    case DT_Q5_0:
        return minus(_mm256_or_si256(nibbles_of_16(p + 6), fifth_bits(p + 2)), 16);
    case DT_Q5_1:
        return _mm256_or_si256(nibbles_of_16(p + 8), fifth_bits(p + 4));
    case DT_Q8_0:
        return load_32(p + 2);
    case DT_IQ4_NL:
        return iq4_of(nibbles_of_16(p + 2));
    case DT_Q2_K:
        return bits_and(bits_down(load_32(p + 16 + 32 * h), 2 * j), 3);
    case DT_Q3_K: {
        __m256i low = bits_and(bits_down(load_32(p + 32 + 32 * h), 2 * j), 3);
        return minus(_mm256_or_si256(low, bit_at(load_32(p), g, 2)), 4);
    }
    case DT_Q4_K:
        return bits_and(bits_down(load_32(p + 16 + 32 * (g / 2)), 4 * (g % 2)), 15);
    case DT_Q5_K: {
        __m256i low = bits_and(bits_down(load_32(p + 48 + 32 * (g / 2)), 4 * (g % 2)), 15);
        return _mm256_or_si256(low, bit_at(load_32(p + 16), g, 4));
    }
    case DT_Q6_K: {
        __m256i low = bits_down(load_32(p + 64 * h + 32 * (j % 2)), 4 * (j / 2));
        __m256i high = load_32(p + 128 + 32 * h);
        high = j == 3 ? bits_down(high, 2) : bits_up(high, 4 - 2 * j);
        return minus(_mm256_or_si256(bits_and(low, 15), bits_and(high, 48)), 32);
    }
    default: /* IQ4_XS */
        return iq4_of(nibbles_of_16(p + 8 + 16 * g));
    }
}

/* The n values at p. */
V16 void quant_bytes(dtype type, const char *p, int8_t *q, const uint32_t n)
{
    const uint32_t in_block = quant_block_values(type) / 32;
#pragma GCC unroll 8
    for (uint32_t g = 0; g < n / 32; g++) {
        const char *block = p + g / in_block * quant_block_bytes(type);
        _mm256_storeu_si256((__m256i *)(q + 32 * g), quants_of_32(type, block, g % in_block));
    }
}

#endif
