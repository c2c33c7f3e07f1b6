/* quant_v16.h - stored values in blocks (quant.h) as v16: open a span, then take its vectors of
 * sixteen values one by one. Include one of the v16_<isa>.h and its quant_<isa>.h before. `type`,
 * the length of a span and the number of a vector are constants wherever these are called, so that
 * choices cost nothing.
 *
 * Scales are made ready for the whole span and lie in memory, from where an instruction takes one
 * for all lanes at no cost; the compiler would rather shuffle them out of a register. */
#ifndef KERNELS_CPU_QUANT_V16_H
#define KERNELS_CPU_QUANT_V16_H

#include "kernels/cpu/quant.h"

#define QUANT_SPAN 256u /* values; a multiple of every block */

typedef struct {
    const char *p;
    float scale[32]; /* group g: s at scale[quant_s_at(g)], m at scale[quant_m_at(g)] */
    int8_t q[QUANT_SPAN]; /* types without tables */
} quant_span;

V16 uint32_t quant_group_vectors(dtype type)
{
    return type == DT_Q2_K || type == DT_Q3_K || type == DT_Q6_K ? 1 : 2;
}

V16 uint32_t quant_s_at(dtype type, uint32_t g)
{
    return type == DT_Q4_1 || type == DT_Q5_1 ? 2 * g : g;
}

V16 uint32_t quant_m_at(dtype type, uint32_t g)
{
    return type == DT_Q4_1 || type == DT_Q5_1 ? 2 * g + 1 : type == DT_Q2_K ? 16 + g : 8 + g;
}

V16 v16 v16_load_i8(const void *p)
{
    return v16_of_i8(_mm_loadu_si128(p));
}

/* Sixteen signed bytes, the first lowest in `low`. */
V16 v16 v16_of_bytes(uint64_t low, uint64_t high)
{
    return v16_of_i8(_mm_set_epi64x((long long)high, (long long)low));
}

V16 v16 negative(v16 a)
{
    return v16_mul(v16_set1(-1.0f), a);
}

/* Eight f16 in order as f32. */
V16 void store_8_halves(float *to, uint64_t low, uint64_t high)
{
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_set_epi64x((long long)high, (long long)low)));
}

V16 uint64_t u16_at(const char *p, uint32_t by)
{
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return (uint64_t)u << by;
}

/* The f16 that eight blocks of `bytes` bytes start with; integer units, which are idle here, put
 * them together. */
V16 void scales_of_8(float *to, const char *p, const uint32_t bytes)
{
    uint64_t half[2];
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 2; i++, p += 4 * bytes)
        half[i] = u16_at(p, 0) | u16_at(p + bytes, 16) | u16_at(p + 2 * bytes, 32) |
                  u16_at(p + 3 * bytes, 48);
    store_8_halves(to, half[0], half[1]);
}

/* The same of pairs, for four blocks. */
V16 void pairs_of_4(float *to, const char *p, const uint32_t bytes)
{
    uint64_t low = quant_u32(p) | (uint64_t)quant_u32(p + bytes) << 32;
    uint64_t high = quant_u32(p + 2 * bytes) | (uint64_t)quant_u32(p + 3 * bytes) << 32;
    store_8_halves(to, low, high);
}

/* One block, or eight, of a type with a scale (and a minimum) for 32 values. */
V16 void open_scales_32(dtype type, float *scale, const char *p, const uint32_t n)
{
    const uint32_t bytes = quant_block_bytes(type);
    if (n == 32) {
        store_8_halves(scale, quant_has_min(type) ? quant_u32(p) : u16_at(p, 0), 0);
    } else if (quant_has_min(type)) {
        pairs_of_4(scale, p, bytes);
        pairs_of_4(scale + 8, p + 4 * bytes, bytes);
    } else {
        scales_of_8(scale, p, bytes);
    }
}

/* n is QUANT_SPAN or, for types of 32 values, 32. */
V16 void quant_open(dtype type, quant_span *b, const char *p, const uint32_t n)
{
    uint64_t a[2];
    b->p = p;
    switch (type) {
    case DT_Q2_K: {
        __m128i x = _mm_loadu_si128((const __m128i *)p), low = _mm_set1_epi8(15);
        v16 s = v16_of_i8(_mm_and_si128(x, low));
        v16 m = v16_of_i8(_mm_and_si128(_mm_srli_epi16(x, 4), low));
        v16_store(b->scale, v16_mul(v16_broadcast_f16(p + 80), s));
        v16_store(b->scale + 16, v16_mul(negative(v16_broadcast_f16(p + 82)), m));
        break;
    }
    case DT_Q3_K:
        quant_scales_k3(p + 96, a);
        v16_store(b->scale, v16_mul(v16_broadcast_f16(p + 108), v16_of_bytes(a[0], a[1])));
        break;
    case DT_Q4_K:
    case DT_Q5_K: {
        quant_scales_k4(p + 4, &a[0], &a[1]);
        v16 d = v16_broadcast_f16(p), minus_d = negative(v16_broadcast_f16(p + 2));
        v16_store(b->scale, v16_mul(v16_select(v16_mask_range(0, 8), d, minus_d),
                                    v16_of_bytes(a[0], a[1])));
        break;
    }
    case DT_Q6_K:
        v16_store(b->scale, v16_mul(v16_broadcast_f16(p + 208), v16_load_i8(p + 192)));
        break;
    case DT_IQ4_XS:
        a[0] = quant_scales_iq4(u16_at(p + 2, 0), quant_u32(p + 4));
        v16_store(b->scale, v16_mul(v16_broadcast_f16(p), v16_of_bytes(a[0], 0)));
        break;
    default:
        open_scales_32(type, b->scale, p, n);
    }
    __asm__("" : "+m"(b->scale));
    if (!quant_in_table(type) && type != DT_Q8_0) {
        quant_bytes(type, p, b->q, n);
        __asm__("" : "+m"(b->q));
    }
}

/* Values 16 c .. 16 c + 15 of the span. */
V16 v16 quant_vector(dtype type, const quant_span *b, const uint32_t c)
{
    const uint32_t in_block = quant_block_values(type) / 16, g = c / quant_group_vectors(type);
    const char *p = b->p + c / in_block * quant_block_bytes(type);
    v16 s = v16_set1(b->scale[quant_s_at(type, g)]), m = v16_zero();
    if (quant_has_min(type)) m = v16_set1(b->scale[quant_m_at(type, g)]);
    if (quant_in_table(type)) return quant_from_table(type, p, s, m, c % in_block);
    v16 q = v16_load_i8(type == DT_Q8_0 ? (const void *)(p + 2 + 16 * (c % 2)) : b->q + 16 * c);
    return quant_has_min(type) ? v16_fma(s, q, m) : v16_mul(s, q);
}

V16 void quant_store_span(dtype type, float *to, uint32_t stride, const char *p, const uint32_t n)
{
    quant_span b;
    quant_open(type, &b, p, n);
#pragma GCC unroll 16
    for (uint32_t c = 0; c < n / 16; c++) v16_store(to + c * stride, quant_vector(type, &b, c));
}

/* n values (whole blocks) at p as f32, their vectors a stride of floats apart. */
V16 void quant_store(dtype type, float *to, uint32_t stride, const char *p, uint64_t n)
{
    const uint32_t bytes = QUANT_SPAN / quant_block_values(type) * quant_block_bytes(type);
    for (; n >= QUANT_SPAN; n -= QUANT_SPAN, p += bytes, to += QUANT_SPAN / 16 * stride)
        quant_store_span(type, to, stride, p, QUANT_SPAN);
    if (quant_block_values(type) == QUANT_SPAN) return;
    for (; n > 0; n -= 32, p += quant_block_bytes(type), to += 2 * stride)
        quant_store_span(type, to, stride, p, 32);
}

#endif
