/* v16_avx512.h - sixteen f32 lanes in one register. The operations that the v16 bodies
 * (matmul_v16.h, attention_v16.h, rows_v16.h) are written in; v16_avx2.h has the same ones. */
#ifndef KERNELS_CPU_V16_AVX512_H
#define KERNELS_CPU_V16_AVX512_H

#include "common/fmath.h"

#include <immintrin.h>
#include <stdint.h>

#define V16_ISA avx512
#ifdef __SANITIZE_ADDRESS__
/* Types stay variables: one body to instrument and not one for each. The compiler then unrolls
 * loops past the bounds that it no longer sees. */
#define V16 static inline
#pragma GCC diagnostic ignored "-Warray-bounds"
#else
#define V16 static inline __attribute__((always_inline))
#endif

/* Shapes of the tiles that fit 32 registers (used by the bodies). */
#define TILE_OUTS 8
#define TILE_ROWS 3
#define DECODE_OUTS_1 16
#define DECODE_OUTS_2 8
#define DECODE_OUTS_3 5
#define DECODE_OUTS_4 4
#define KEY_TILE 16
#define VALUE_TILE 8

typedef __m512 v16;
typedef __mmask16 v16_mask;

V16 v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}

V16 v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

V16 v16 v16_load(const void *p)
{
    return _mm512_loadu_ps(p);
}

/* a, loaded once into a register: without it, gcc loads a panel's vector again for each use. */
V16 v16 v16_hold(v16 a)
{
    __asm__("" : "+v"(a));
    return a;
}

V16 void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

V16 v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

V16 v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

V16 v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

V16 v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

V16 v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

V16 v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

/* Lanes [begin, end), 0 <= begin <= end <= 16. */
V16 v16_mask v16_mask_range(uint32_t begin, uint32_t end)
{
    return (v16_mask)((1u << end) - (1u << begin));
}

/* a where the mask is set, else b */
V16 v16 v16_select(v16_mask m, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

/* The first n < 16 values; the other lanes are 0 and their memory is not touched. */
V16 v16 v16_load_part(const void *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_mask_range(0, n), p);
}

V16 void v16_store_part(float *p, v16 a, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask_range(0, n), a);
}

V16 v16 v16_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

V16 v16 v16_load_f16_part(const void *p, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask_range(0, n), p));
}

V16 v16 v16_load_bf16(const void *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

V16 v16 v16_load_bf16_part(const void *p, uint32_t n)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v16_mask_range(0, n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

V16 void v16_store_f16(void *p, v16 a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

V16 void v16_store_bf16(void *p, v16 a)
{
    __m512i u = _mm512_castps_si512(a), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __m512i nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i h = _mm512_mask_blend_epi32(is_nan, _mm512_srli_epi32(rounded, 16), nan);
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(h));
}

/* Lane j of the result is the tree's sum of a[j]: the tree's four levels, each on two vectors at a
 * time, so that lanes which would idle carry another vector's sum. */
V16 v16 v16_reduce16(const v16 *a)
{
    v16 half[8], quad[4], pair[2];
    /* Vectors i and i + 4 of each eight: (a.0-7 + a.8-15, b.0-7 + b.8-15). */
    for (int i = 0; i < 8; i++) {
        v16 x = a[(i & 3) + (i & 4) * 2], y = a[(i & 3) + (i & 4) * 2 + 4];
        half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    /* Four vectors, i, i + 4, i + 8, i + 12, a chunk of four lanes each. */
    for (int i = 0; i < 4; i++) {
        v16 x = half[i], y = half[i + 4];
        quad[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    for (int i = 0; i < 2; i++) {
        v16 x = quad[2 * i], y = quad[2 * i + 1];
        pair[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(pair[0], pair[1], 0x88),
                         _mm512_shuffle_ps(pair[0], pair[1], 0xdd));
}

/* The operations of fm_expf (fmath.h), lane by lane. */
V16 v16 v16_exp(v16 x)
{
    const v16 one = v16_set1(1.0f), magic = v16_set1(FM_EXPF_MAGIC);
    v16 t = v16_fma(x, v16_set1(FM_EXPF_LOG2E), magic), n = v16_sub(t, magic);
    v16 r = _mm512_fnmadd_ps(n, v16_set1(FM_EXPF_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, v16_set1(FM_EXPF_LN2_LO), r);
    v16 p = v16_fma(v16_set1(FM_EXPF_C6), r, v16_set1(FM_EXPF_C5));
    p = v16_fma(p, r, v16_set1(FM_EXPF_C4));
    p = v16_fma(p, r, v16_set1(FM_EXPF_C3));
    p = v16_fma(p, r, v16_set1(FM_EXPF_C2));
    p = v16_fma(p, r, one);
    p = v16_fma(p, r, one);
    v16 y = _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
    y = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, v16_set1(FM_EXPF_MIN), _CMP_LT_OQ), y,
                             v16_zero());
    y = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, v16_set1(FM_EXPF_MAX), _CMP_GT_OQ), y,
                             v16_set1(__builtin_inff()));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y, x);
}

#endif
