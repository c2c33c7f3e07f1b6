/* words_avx2.h - sixteen 32-bit words in two registers. The same operations as words_avx512.h,
 * which says what each does. */
#ifndef KERNELS_CPU_WORDS_AVX2_H
#define KERNELS_CPU_WORDS_AVX2_H

#include "kernels/cpu/fixed.h"
#include "kernels/cpu/v16_avx2.h"

typedef struct {
    __m256i lo, hi;
} w16;

#define DOT_ROWS 2u

V16 w16 w16_set1(uint32_t x)
{
    return (w16){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}

V16 w16 w16_load(const void *p)
{
    return (w16){_mm256_loadu_si256(p), _mm256_loadu_si256((const void *)((const char *)p + 32))};
}

V16 void w16_store(void *p, w16 a)
{
    _mm256_storeu_si256(p, a.lo);
    _mm256_storeu_si256((void *)((char *)p + 32), a.hi);
}

V16 w16 w16_and(w16 a, w16 b)
{
    return (w16){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

V16 w16 w16_or(w16 a, w16 b)
{
    return (w16){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

V16 w16 w16_down(w16 a, uint32_t n)
{
    return (w16){(__m256i)((__v8su)a.lo >> n), (__m256i)((__v8su)a.hi >> n)};
}

V16 w16 w16_up(w16 a, uint32_t n)
{
    return (w16){(__m256i)((__v8su)a.lo << n), (__m256i)((__v8su)a.hi << n)};
}

V16 w16 w16_down_signed(w16 a, uint32_t n)
{
    return (w16){(__m256i)((__v8si)a.lo >> n), (__m256i)((__v8si)a.hi >> n)};
}

V16 w16 w16_add(w16 a, w16 b)
{
    return (w16){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

V16 w16 w16_sub(w16 a, w16 b)
{
    return (w16){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

V16 w16 w16_mul(w16 a, w16 b)
{
    return (w16){_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}

V16 w16 w16_max(w16 a, w16 b)
{
    return (w16){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}

V16 w16 w16_add_bytes(w16 a, w16 b)
{
    return (w16){_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)};
}

V16 w16 w16_lookup(w16 b, __m128i table)
{
    __m256i t = _mm256_broadcastsi128_si256(table);
    return (w16){_mm256_shuffle_epi8(t, b.lo), _mm256_shuffle_epi8(t, b.hi)};
}

V16 v16 w16_float(w16 a)
{
    return (v16){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

V16 w16 w16_round(v16 a)
{
    return (w16){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}

V16 w16 w16_bits(v16 a)
{
    return (w16){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}

V16 __m256 low_f16_of_8(__m256i a)
{
    a = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}

V16 v16 w16_low_f16(w16 a)
{
    return (v16){low_f16_of_8(a.lo), low_f16_of_8(a.hi)};
}

V16 int32_t w16_sum(w16 a)
{
    __m256i eight = _mm256_add_epi32(a.lo, a.hi);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

V16 uint32_t w16_largest(w16 a)
{
    __m256i eight = _mm256_max_epi32(a.lo, a.hi);
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

V16 __m256i column_of_8(const char *p, uint64_t stride)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_i32gather_epi32((const int *)p,
                                  _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)stride)), 1);
}

V16 w16 w16_column(const char *p, uint64_t stride)
{
    return (w16){column_of_8(p, stride), column_of_8(p + 8 * stride, stride)};
}

V16 void columns_of_8(__m256i c[4], const char *p, uint64_t stride)
{
    __m256i z[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) { /* rows i and i + 4 */
        z[i] = _mm256_castsi128_si256(_mm_loadu_si128((const void *)(p + i * stride)));
        z[i] = _mm256_inserti128_si256(z[i], _mm_loadu_si128((const void *)(p + (i + 4) * stride)),
                                       1);
    }
    __m256i low_01 = _mm256_unpacklo_epi32(z[0], z[1]), high_01 = _mm256_unpackhi_epi32(z[0], z[1]);
    __m256i low_23 = _mm256_unpacklo_epi32(z[2], z[3]), high_23 = _mm256_unpackhi_epi32(z[2], z[3]);
    c[0] = _mm256_unpacklo_epi64(low_01, low_23);
    c[1] = _mm256_unpackhi_epi64(low_01, low_23);
    c[2] = _mm256_unpacklo_epi64(high_01, high_23);
    c[3] = _mm256_unpackhi_epi64(high_01, high_23);
}

V16 void w16_columns(w16 c[4], const char *p, uint64_t stride)
{
    __m256i lo[4], hi[4];
    columns_of_8(lo, p, stride);
    columns_of_8(hi, p + 8 * stride, stride);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) c[i] = (w16){lo[i], hi[i]};
}

/* Sixteen bits each; of four values a, b, c, d the order is a, c, b, d, so that even and odd bytes
 * of a word meet theirs (fixed_dots). */
V16 void fixed_store(char *unit, uint32_t i, w16 v)
{
    __m256i x = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, //
                                           0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    _mm256_storeu_si256((__m256i *)(unit + 2 * i), _mm256_shuffle_epi8(x, order));
}

V16 __m256i add_products(__m256i d, __m256i even, __m256i odd, __m256i x_even, __m256i x_odd)
{
    d = _mm256_add_epi32(d, _mm256_madd_epi16(even, x_even));
    return _mm256_add_epi32(d, _mm256_madd_epi16(odd, x_odd));
}

V16 void fixed_dots(w16 *d, const uint8_t *q, const uint32_t n, const char *unit,
                    const uint32_t unit_bytes, uint32_t i, const uint32_t n_rows)
{
    const __m256i even_bytes = _mm256_set1_epi16(255);
#pragma GCC unroll 2
    for (uint32_t k = 0; k < n_rows; k++)
        d[k] = (w16){_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n; c++) {
        w16 w = w16_load(q + 64 * c);
        __m256i lo = _mm256_and_si256(w.lo, even_bytes), lo_odd = _mm256_srli_epi16(w.lo, 8);
        __m256i hi = _mm256_and_si256(w.hi, even_bytes), hi_odd = _mm256_srli_epi16(w.hi, 8);
#pragma GCC unroll 2
        for (uint32_t k = 0; k < n_rows; k++) {
            const char *x = unit + k * unit_bytes + 2 * i + 8 * c;
            __m256i x_even = _mm256_set1_epi32((int)quant_u32(x));
            __m256i x_odd = _mm256_set1_epi32((int)quant_u32(x + 4));
            d[k].lo = add_products(d[k].lo, lo, lo_odd, x_even, x_odd);
            d[k].hi = add_products(d[k].hi, hi, hi_odd, x_even, x_odd);
        }
    }
}

#endif
