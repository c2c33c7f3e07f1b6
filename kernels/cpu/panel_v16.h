/* panel_v16.h - a block of sixteen weight rows (quant.h) made ready for integer products: bytes in
 * columns of sixteen outputs, scales as f32. Include one of the words_<isa>.h before.
 *
 * Stored words of sixteen rows are turned into columns first, still packed; bits are then taken
 * apart for sixteen outputs at once, by the layouts of quant.h without a shuffle, since a word's
 * four bytes are four values that stay together. */
#ifndef KERNELS_CPU_PANEL_V16_H
#define KERNELS_CPU_PANEL_V16_H

#include "kernels/cpu/fixed.h"

typedef struct {
    uint8_t q[FIXED_BLOCK / 4][64]; /* [n / 4, 16 outputs, 4] */
    float s[16][16], m[16][16];     /* [n / group, 16 outputs] */
} panel;

/* Weights that are needed next: so many bytes of sixteen rows. */
typedef struct {
    const char *p;
    uint64_t stride, bytes;
} weights_ahead;

/* Fetch line `line` of the rows; none behind their bytes. */
V16 void fetch_line(const weights_ahead *a, uint32_t line)
{
    if (64 * line >= a->bytes) return;
#pragma GCC unroll 16
    for (uint32_t o = 0; o < 16; o++)
        _mm_prefetch(a->p + o * a->stride + 64 * line, _MM_HINT_T0);
}

V16 w16 bytes_and(w16 a, uint32_t mask)
{
    return w16_and(a, w16_set1(mask * 0x01010101u));
}

/* Bits `from` and up of every byte, as many as the mask has, at bits `to` and up. */
V16 w16 bits_moved(w16 a, const uint32_t from, const uint32_t to, uint32_t mask)
{
    return bytes_and(from > to ? w16_down(a, from - to) : w16_up(a, to - from), mask << to);
}

V16 v16 scale_of_byte(w16 a, const uint32_t i)
{
    return w16_float(w16_and(w16_down(a, 8 * i), w16_set1(255)));
}

V16 v16 high_f16(w16 a)
{
    return w16_low_f16(w16_down(a, 16));
}

V16 v16 minus_f16(v16 a)
{
    return v16_mul(v16_set1(-1.0f), a);
}

/* Unsigned quants as they are, or, centred, without their offset. */
V16 void put(panel *to, dtype type, uint32_t c, w16 q, const bool centred)
{
    if (centred && quant_offset(type) != 0)
        q = w16_add_bytes(q, w16_set1((uint32_t)(256 - quant_offset(type)) * 0x01010101u));
    w16_store(to->q[c], q);
}

V16 w16 iq4_unsigned(w16 nibbles)
{
    const __m128i values = _mm_setr_epi8(QUANT_IQ4_VALUES);
    return w16_lookup(nibbles, _mm_xor_si128(values, _mm_set1_epi8((char)128)));
}

/* Four words of sixteen bytes as 32 values: low nibbles first. high: the fifth bits, or NULL. */
V16 void put_nibbles(panel *to, dtype type, uint32_t c, const char *p, uint64_t stride,
                     const w16 *high, const bool centred)
{
    w16 x[4];
    w16_columns(x, p, stride);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; i++) {
        w16 q = bits_moved(x[i % 4], i / 4 * 4, 0, 15);
        if (type == DT_IQ4_NL || type == DT_IQ4_XS) q = iq4_unsigned(q);
        if (high != NULL) {
            /* Bits 4 i .. 4 i + 3 become bit 4 of four bytes. */
            w16 bits = i > 0 ? w16_down(*high, 4 * i - 4) : w16_up(*high, 4);
            bits = w16_mul(w16_and(bits, w16_set1(0xf0)), w16_set1(0x00204081u));
            q = w16_or(q, bytes_and(bits, 16));
        }
        put(to, type, c + i, q, centred);
    }
}

/* --- scales --- */

V16 void scales_32(panel *to, dtype type, uint32_t g, const char *p, uint64_t stride)
{
    w16 d = w16_column(p, stride);
    v16_store(to->s[g], w16_low_f16(d));
    if (quant_has_min(type)) v16_store(to->m[g], high_f16(d));
}

V16 void scales_q2_k(panel *to, const char *p, uint64_t stride)
{
    w16 d = w16_column(p + 80, stride), scale[4];
    v16 s = w16_low_f16(d), m = minus_f16(high_f16(d));
    w16_columns(scale, p, stride);
#pragma GCC unroll 16
    for (uint32_t g = 0; g < 16; g++) {
        v16_store(to->s[g], v16_mul(s, scale_of_byte(bits_moved(scale[g / 4], 0, 0, 15), g % 4)));
        v16_store(to->m[g], v16_mul(m, scale_of_byte(bits_moved(scale[g / 4], 4, 0, 15), g % 4)));
    }
}

V16 void scales_q3_k(panel *to, const char *p, uint64_t stride)
{
    v16 d = high_f16(w16_column(p + 106, stride));
    w16 a = w16_column(p + 96, stride), b = w16_column(p + 100, stride);
    w16 c = w16_column(p + 104, stride);
    const w16 scale[4] = {w16_or(bits_moved(a, 0, 0, 15), bits_moved(c, 0, 4, 3)),
                          w16_or(bits_moved(b, 0, 0, 15), bits_moved(c, 2, 4, 3)),
                          w16_or(bits_moved(a, 4, 0, 15), bits_moved(c, 4, 4, 3)),
                          w16_or(bits_moved(b, 4, 0, 15), bits_moved(c, 6, 4, 3))};
#pragma GCC unroll 16
    for (uint32_t g = 0; g < 16; g++)
        v16_store(to->s[g], v16_mul(d, v16_sub(scale_of_byte(scale[g / 4], g % 4), v16_set1(32))));
}

V16 void scales_q45_k(panel *to, const char *p, uint64_t stride)
{
    w16 a[4];
    w16_columns(a, p, stride);
    v16 d = w16_low_f16(a[0]), dmin = minus_f16(high_f16(a[0]));
    const w16 scale[2] = {bytes_and(a[1], 63),
                          w16_or(bits_moved(a[3], 0, 0, 15), bits_moved(a[1], 6, 4, 3))};
    const w16 min[2] = {bytes_and(a[2], 63),
                        w16_or(bits_moved(a[3], 4, 0, 15), bits_moved(a[2], 6, 4, 3))};
#pragma GCC unroll 8
    for (uint32_t g = 0; g < 8; g++) {
        v16_store(to->s[g], v16_mul(d, scale_of_byte(scale[g / 4], g % 4)));
        v16_store(to->m[g], v16_mul(dmin, scale_of_byte(min[g / 4], g % 4)));
    }
}

V16 void scales_q6_k(panel *to, const char *p, uint64_t stride)
{
    v16 d = high_f16(w16_column(p + 206, stride));
    w16 scale[4];
    w16_columns(scale, p + 192, stride);
#pragma GCC unroll 16
    for (uint32_t g = 0; g < 16; g++) {
        w16 s = w16_down_signed(w16_up(scale[g / 4], 24 - 8 * (g % 4)), 24);
        v16_store(to->s[g], v16_mul(d, w16_float(s)));
    }
}

V16 void scales_iq4_xs(panel *to, const char *p, uint64_t stride)
{
    w16 a = w16_column(p, stride), low = w16_column(p + 4, stride);
    v16 d = w16_low_f16(a);
#pragma GCC unroll 8
    for (uint32_t g = 0; g < 8; g++) {
        w16 high = w16_up(w16_and(w16_down(a, 16 + 2 * g), w16_set1(3)), 4);
        w16 s = w16_or(w16_and(w16_down(low, 4 * g), w16_set1(15)), high);
        v16_store(to->s[g], v16_mul(d, w16_float(w16_sub(s, w16_set1(32)))));
    }
}

/* s and m of n values (at most a block of fixed.h, whole blocks of the type) of the sixteen rows at
 * p, p + stride, .. */
V16 void panel_scales(panel *to, dtype type, const char *p, uint64_t stride, uint32_t n)
{
    switch (type) {
    case DT_Q2_K:
        scales_q2_k(to, p, stride);
        return;
    case DT_Q3_K:
        scales_q3_k(to, p, stride);
        return;
    case DT_Q4_K:
    case DT_Q5_K:
        scales_q45_k(to, p, stride);
        return;
    case DT_Q6_K:
        scales_q6_k(to, p, stride);
        return;
    case DT_IQ4_XS:
        scales_iq4_xs(to, p, stride);
        return;
    default:
        for (uint32_t g = 0; g < n / 32; g++)
            scales_32(to, type, g, p + g * quant_block_bytes(type), stride);
    }
}

/* --- quants --- */

/* Block g of a type with 32 values in one. */
V16 void panel_fill_32(panel *to, dtype type, uint32_t g, const char *p, uint64_t stride,
                       const bool centred)
{
    const bool five = type == DT_Q5_0 || type == DT_Q5_1;
    const char *q = p + (quant_has_min(type) ? 4 : 2);
    if (type == DT_Q8_0) {
        for (uint32_t half = 0; half < 2; half++) {
            w16 x[4];
            w16_columns(x, q + 16 * half, stride);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) /* signed as stored */
                w16_store(to->q[8 * g + 4 * half + i],
                          centred ? x[i] : w16_add_bytes(x[i], w16_set1(0x80808080u)));
        }
    } else if (five) {
        w16 high = w16_column(q, stride);
        put_nibbles(to, type, 8 * g, q + 4, stride, &high, centred);
    } else {
        put_nibbles(to, type, 8 * g, q, stride, NULL, centred);
    }
}

V16 void panel_fill_q2_k(panel *to, const char *p, uint64_t stride)
{
    for (uint32_t k = 0; k < 4; k++) { /* half, and half of 32 */
        w16 x[4];
        w16_columns(x, p + 16 + 16 * k, stride);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++)
            w16_store(to->q[32 * (k / 2) + 8 * (i / 4) + 4 * (k % 2) + i % 4],
                      bits_moved(x[i % 4], 2 * (i / 4), 0, 3));
    }
}

V16 void panel_fill_q3_k(panel *to, const char *p, uint64_t stride, const bool centred)
{
    w16 high[8];
    w16_columns(high, p, stride);
    w16_columns(high + 4, p + 16, stride);
#pragma GCC unroll 4
    for (uint32_t k = 0; k < 4; k++) {
        w16 x[4];
        w16_columns(x, p + 32 + 16 * k, stride);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t g = 4 * (k / 2) + i / 4, at = 4 * (k % 2) + i % 4;
            w16 q = w16_or(bits_moved(x[i % 4], 2 * (i / 4), 0, 3), bits_moved(high[at], g, 2, 1));
            put(to, DT_Q3_K, 8 * g + at, q, centred);
        }
    }
}

/* Q4_K and Q5_K. */
V16 void panel_fill_q45_k(panel *to, dtype type, const char *p, uint64_t stride)
{
    w16 high[8];
    if (type == DT_Q5_K) {
        w16_columns(high, p + 16, stride);
        w16_columns(high + 4, p + 32, stride);
    }
#pragma GCC unroll 8
    for (uint32_t k = 0; k < 8; k++) { /* 64 values, and half of their words */
        w16 x[4];
        w16_columns(x, p + (type == DT_Q5_K ? 48 : 16) + 16 * k, stride);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t g = 2 * (k / 2) + i / 4, at = 4 * (k % 2) + i % 4;
            w16 q = bits_moved(x[i % 4], i / 4 * 4, 0, 15);
            if (type == DT_Q5_K) q = w16_or(q, bits_moved(high[at], g, 4, 1));
            w16_store(to->q[8 * g + at], q);
        }
    }
}

V16 void panel_fill_q6_k(panel *to, const char *p, uint64_t stride, const bool centred)
{
    for (uint32_t k = 0; k < 4; k++) { /* half, and half of 32 */
        const char *low = p + 64 * (k / 2) + 16 * (k % 2);
        w16 x[8], high[4];
        w16_columns(x, low, stride);
        w16_columns(x + 4, low + 32, stride);
        w16_columns(high, p + 128 + 16 * k, stride);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t j = i / 4;
            w16 q = w16_or(bits_moved(x[4 * (j % 2) + i % 4], j / 2 * 4, 0, 15),
                           bits_moved(high[i % 4], 2 * j, 4, 3));
            put(to, DT_Q6_K, 32 * (k / 2) + 8 * j + 4 * (k % 2) + i % 4, q, centred);
        }
    }
}

V16 void panel_fill_iq4_xs(panel *to, const char *p, uint64_t stride, const bool centred)
{
    for (uint32_t g = 0; g < 8; g++)
        put_nibbles(to, DT_IQ4_XS, 8 * g, p + 8 + 16 * g, stride, NULL, centred);
}

/* All of the same n values. */
V16 void panel_fill(panel *to, dtype type, const char *p, uint64_t stride, uint32_t n,
                    const bool centred)
{
    panel_scales(to, type, p, stride, n);
    switch (type) {
    case DT_Q2_K:
        panel_fill_q2_k(to, p, stride);
        return;
    case DT_Q3_K:
        panel_fill_q3_k(to, p, stride, centred);
        return;
    case DT_Q4_K:
    case DT_Q5_K:
        panel_fill_q45_k(to, type, p, stride);
        return;
    case DT_Q6_K:
        panel_fill_q6_k(to, p, stride, centred);
        return;
    case DT_IQ4_XS:
        panel_fill_iq4_xs(to, p, stride, centred);
        return;
    default:
        for (uint32_t g = 0; g < n / 32; g++)
            panel_fill_32(to, type, g, p + g * quant_block_bytes(type), stride, centred);
    }
}

#endif
