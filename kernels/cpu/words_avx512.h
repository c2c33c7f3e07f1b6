/* words_avx512.h - sixteen 32-bit words in one register: what the bodies of fixed_v16.h and
 * panel_v16.h are written in, beside v16_avx512.h; words_avx2.h has the same ones. A word is often
 * four bytes, each of its own. */
#ifndef KERNELS_CPU_WORDS_AVX512_H
#define KERNELS_CPU_WORDS_AVX512_H

#include "kernels/cpu/fixed.h"
#include "kernels/cpu/v16_avx512.h"

typedef __m512i w16;

/* Rows of fixed.h whose sums a dot kernel keeps in registers. */
#define DOT_ROWS 4u

V16 w16 w16_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

V16 w16 w16_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

V16 void w16_store(void *p, w16 a)
{
    _mm512_storeu_si512(p, a);
}

V16 w16 w16_and(w16 a, w16 b)
{
    return _mm512_and_si512(a, b);
}

V16 w16 w16_or(w16 a, w16 b)
{
    return _mm512_or_si512(a, b);
}

V16 w16 w16_down(w16 a, uint32_t n)
{
    return (w16)((__v16su)a >> n);
}

V16 w16 w16_up(w16 a, uint32_t n)
{
    return (w16)((__v16su)a << n);
}

/* The sign bit comes in from above. */
V16 w16 w16_down_signed(w16 a, uint32_t n)
{
    return (w16)((__v16si)a >> n);
}

V16 w16 w16_add(w16 a, w16 b)
{
    return _mm512_add_epi32(a, b);
}

V16 w16 w16_sub(w16 a, w16 b)
{
    return _mm512_sub_epi32(a, b);
}

V16 w16 w16_mul(w16 a, w16 b)
{
    return _mm512_mullo_epi32(a, b);
}

/* Larger of signed words. */
V16 w16 w16_max(w16 a, w16 b)
{
    return _mm512_max_epi32(a, b);
}

/* Of the bytes, each by itself. */
V16 w16 w16_add_bytes(w16 a, w16 b)
{
    return _mm512_add_epi8(a, b);
}

/* table[b] for each byte b < 16. */
V16 w16 w16_lookup(w16 b, __m128i table)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), b);
}

V16 v16 w16_float(w16 a)
{
    return _mm512_cvtepi32_ps(a);
}

/* To nearest, even. */
V16 w16 w16_round(v16 a)
{
    return _mm512_cvtps_epi32(a);
}

V16 w16 w16_bits(v16 a)
{
    return _mm512_castps_si512(a);
}

/* The f16 in the low halves. */
V16 v16 w16_low_f16(w16 a)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}

V16 int32_t w16_sum(w16 a)
{
    return _mm512_reduce_add_epi32(a);
}

V16 uint32_t w16_largest(w16 a)
{
    return (uint32_t)_mm512_reduce_max_epi32(a);
}

/* Lane j: the word at p + j * stride. */
V16 w16 w16_column(const char *p, uint64_t stride)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)stride)), p, 1);
}

/* Four columns, of the words at p, p + 4, p + 8 and p + 12. */
V16 void w16_columns(w16 c[4], const char *p, uint64_t stride)
{
    w16 z[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) { /* rows i, i + 4, i + 8 and i + 12 */
        z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(p + i * stride)));
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(p + (i + 4) * stride)), 1);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(p + (i + 8) * stride)), 2);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(p + (i + 12) * stride)), 3);
    }
    w16 low_01 = _mm512_unpacklo_epi32(z[0], z[1]), high_01 = _mm512_unpackhi_epi32(z[0], z[1]);
    w16 low_23 = _mm512_unpacklo_epi32(z[2], z[3]), high_23 = _mm512_unpackhi_epi32(z[2], z[3]);
    c[0] = _mm512_unpacklo_epi64(low_01, low_23);
    c[1] = _mm512_unpackhi_epi64(low_01, low_23);
    c[2] = _mm512_unpacklo_epi64(high_01, high_23);
    c[3] = _mm512_unpackhi_epi64(high_01, high_23);
}

/* Values i .. i + 15 of a unit (fixed.h): 256 high bytes, then 256 low ones, both signed; v = 256
 * high + low. */
V16 void fixed_store(char *unit, uint32_t i, w16 v)
{
    w16 high = w16_down_signed(w16_add(v, w16_set1(128)), 8);
    _mm_storeu_si128((__m128i *)(unit + i), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)(unit + FIXED_BLOCK + i), _mm512_cvtepi32_epi8(v));
}

/* d[k] = sum of q v of row k for sixteen outputs: 4 n values, from value i of the unit on, of
 * unsigned quants q [n, 16 outputs, 4]. */
V16 void fixed_dots(w16 *d, const uint8_t *q, const uint32_t n, const char *unit,
                    const uint32_t unit_bytes, uint32_t i, const uint32_t n_rows)
{
    w16 high[DOT_ROWS];
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) high[k] = d[k] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n; c++) {
        w16 w = w16_load(q + 64 * c);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < n_rows; k++) {
            const char *x = unit + k * unit_bytes + i + 4 * c;
            high[k] = _mm512_dpbusd_epi32(high[k], w, w16_set1(quant_u32(x)));
            d[k] = _mm512_dpbusd_epi32(d[k], w, w16_set1(quant_u32(x + FIXED_BLOCK)));
        }
    }
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n_rows; k++) d[k] = w16_add(d[k], w16_up(high[k], 8));
}

#endif
