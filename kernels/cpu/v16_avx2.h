/* v16_avx2.h - sixteen f32 lanes in two registers of eight. The same operations as v16_avx512.h,
 * which says what each does. */
#ifndef KERNELS_CPU_V16_AVX2_H
#define KERNELS_CPU_V16_AVX2_H

#include "common/fmath.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define V16_ISA avx2
#ifdef __SANITIZE_ADDRESS__
/* Types stay variables: one body to instrument and not one for each. The compiler then unrolls
 * loops past the bounds that it no longer sees. */
#define V16 static inline
#pragma GCC diagnostic ignored "-Warray-bounds"
#else
#define V16 static inline __attribute__((always_inline))
#endif

/* Shapes of the tiles that fit 16 registers. */
#define TILE_OUTS 3
#define TILE_ROWS 2
#define DECODE_OUTS_1 4
#define DECODE_OUTS_2 2
#define DECODE_OUTS_3 2
#define DECODE_OUTS_4 1
#define KEY_TILE 4
#define VALUE_TILE 4

typedef struct {
    __m256 lo, hi;
} v16;

typedef v16 v16_mask;

V16 v16 v16_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

V16 v16 v16_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

V16 v16 v16_load(const void *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)((const char *)p + 32))};
}

V16 v16 v16_hold(v16 a)
{
    __asm__("" : "+x"(a.lo), "+x"(a.hi));
    return a;
}

V16 void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

V16 v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

V16 v16 v16_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

V16 v16 v16_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

V16 v16 v16_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

V16 v16 v16_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

V16 v16 v16_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

V16 __m256 mask8(__m256i lane, uint32_t begin, uint32_t end)
{
    __m256i below_end = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), lane);
    __m256i below_begin = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)begin), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below_begin, below_end));
}

V16 v16_mask v16_mask_range(uint32_t begin, uint32_t end)
{
    return (v16_mask){mask8(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), begin, end),
                      mask8(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), begin, end)};
}

V16 v16 v16_select(v16_mask m, v16 a, v16 b)
{
    return (v16){_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

V16 v16 v16_load_part(const void *p, uint32_t n)
{
    v16_mask m = v16_mask_range(0, n);
    const float *f = p;
    return (v16){_mm256_maskload_ps(f, _mm256_castps_si256(m.lo)),
                 _mm256_maskload_ps(f + 8, _mm256_castps_si256(m.hi))};
}

V16 void v16_store_part(float *p, v16 a, uint32_t n)
{
    v16_mask m = v16_mask_range(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

V16 v16 v16_load_f16(const void *p)
{
    const __m128i *h = p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

V16 v16 v16_load_bf16(const void *p)
{
    const __m128i *h = p;
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

V16 v16 v16_load_f16_part(const void *p, uint32_t n)
{
    uint16_t h[16] = {0};
    memcpy(h, p, n * sizeof *h);
    return v16_load_f16(h);
}

V16 v16 v16_load_bf16_part(const void *p, uint32_t n)
{
    uint16_t h[16] = {0};
    memcpy(h, p, n * sizeof *h);
    return v16_load_bf16(h);
}

V16 void v16_store_f16(void *p, v16 a)
{
    __m128i *h = p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

V16 __m256i bf16_of_8(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), nan, is_nan);
}

V16 void v16_store_bf16(void *p, v16 a)
{
    /* Packing works in halves of a register; the permutation puts them back in order. */
    __m256i h = _mm256_packus_epi32(bf16_of_8(a.lo), bf16_of_8(a.hi));
    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(h, 0xd8));
}

/* The tree's last three levels over eight vectors of eight lanes. */
V16 __m256 reduce8(const __m256 *a)
{
    __m256 half[4], quad[2];
    for (int i = 0; i < 4; i++) {
        __m256 x = a[i], y = a[i + 4];
        half[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20),
                                _mm256_permute2f128_ps(x, y, 0x31));
    }
    for (int i = 0; i < 2; i++) {
        __m256 x = half[2 * i], y = half[2 * i + 1];
        quad[i] = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(quad[0], quad[1], 0x88),
                         _mm256_shuffle_ps(quad[0], quad[1], 0xdd));
}

V16 v16 v16_reduce16(const v16 *a)
{
    __m256 eight[16];
    for (int i = 0; i < 16; i++) eight[i] = _mm256_add_ps(a[i].lo, a[i].hi);
    return (v16){reduce8(eight), reduce8(eight + 8)};
}

V16 __m256 exp8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f), magic = _mm256_set1_ps(FM_EXPF_MAGIC);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(FM_EXPF_LOG2E), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(FM_EXPF_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(FM_EXPF_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(FM_EXPF_C6), r, _mm256_set1_ps(FM_EXPF_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FM_EXPF_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FM_EXPF_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(FM_EXPF_C2));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(FM_EXPF_MIN), _CMP_LT_OQ);
    __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(FM_EXPF_MAX), _CMP_GT_OQ);
    y = _mm256_andnot_ps(low, y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(__builtin_inff()), high);
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

V16 v16 v16_exp(v16 x)
{
    return (v16){exp8(x.lo), exp8(x.hi)};
}

#endif
