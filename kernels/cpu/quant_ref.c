/* The plain reference of quant.h: a block's groups of sixteen values, each with its s and m, value
 * by value. Written to be read beside the layouts there. */
#include "kernels/cpu/quant.h"

#include "common/status.h"
#include "kernels/cpu/convert.h"

static const int8_t iq4[16] = {QUANT_IQ4_VALUES};

static float f16_at(const uint8_t *p)
{
    return f32_of_f16(load_u16(p));
}

static int nibble(const uint8_t *q, uint32_t i, uint32_t high)
{
    return high ? q[i] >> 4 : q[i] & 15;
}

/* Blocks of 32 values with one scale; quants at q, fifth bits in `high`. */
static void open_32(quant_plain *b, dtype type, const uint8_t *p)
{
    bool has_min = quant_has_min(type), five = type == DT_Q5_0 || type == DT_Q5_1;
    const uint8_t *q = p + (has_min ? 4 : 2);
    uint32_t high = five ? quant_u32(q) : 0;
    if (five) q += 4;
    for (uint32_t i = 0; i < 32; i++) {
        int x = nibble(q, i % 16, i / 16) | (int)(high >> i & 1u) << 4;
        if (type == DT_Q4_0) x -= 8;
        if (type == DT_Q5_0) x -= 16;
        if (type == DT_IQ4_NL) x = iq4[x];
        if (type == DT_Q8_0) x = (int8_t)p[2 + i];
        b->q[i] = x;
    }
    for (uint32_t c = 0; c < 2; c++) {
        b->s[c] = f16_at(p);
        b->m[c] = has_min ? f16_at(p + 2) : 0;
    }
}

static void open_q2_k(quant_plain *b, const uint8_t *p)
{
    for (uint32_t i = 0; i < 256; i++)
        b->q[i] = p[16 + 32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
    for (uint32_t c = 0; c < 16; c++) {
        b->s[c] = f16_at(p + 80) * (float)(p[c] & 15);
        b->m[c] = -f16_at(p + 82) * (float)(p[c] >> 4);
    }
}

static void open_q3_k(quant_plain *b, const uint8_t *p)
{
    for (uint32_t i = 0; i < 256; i++) {
        int low = p[32 + 32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
        b->q[i] = (low | (p[i % 32] >> i / 32 & 1) << 2) - 4;
    }
    for (uint32_t c = 0; c < 16; c++) {
        const uint8_t *scale = p + 96;
        int low = nibble(scale, c % 8, c / 8), high = scale[8 + c % 4] >> 2 * (c / 4) & 3;
        b->s[c] = f16_at(p + 108) * (float)((low | high << 4) - 32);
    }
}

/* Q4_K and Q5_K. */
static void open_q45_k(quant_plain *b, dtype type, const uint8_t *p)
{
    const uint8_t *q = type == DT_Q5_K ? p + 48 : p + 16, *scale = p + 4;
    for (uint32_t i = 0; i < 256; i++) {
        b->q[i] = nibble(q, 32 * (i / 64) + i % 32, i / 32 % 2);
        if (type == DT_Q5_K) b->q[i] |= (p[16 + i % 32] >> i / 32 & 1) << 4;
    }
    for (uint32_t c = 0; c < 16; c++) {
        uint32_t g = c / 2;
        int s = g < 4 ? scale[g] & 63 : (scale[g + 4] & 15) | scale[g - 4] >> 6 << 4;
        int m = g < 4 ? scale[g + 4] & 63 : scale[g + 4] >> 4 | scale[g] >> 6 << 4;
        b->s[c] = f16_at(p) * (float)s;
        b->m[c] = -f16_at(p + 2) * (float)m;
    }
}

static void open_q6_k(quant_plain *b, const uint8_t *p)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t h = i / 128, j = i / 32 % 4, l = i % 32;
        int low = nibble(p, 64 * h + 32 * (j % 2) + l, j / 2);
        int high = p[128 + 32 * h + l] >> 2 * j & 3;
        b->q[i] = (low | high << 4) - 32;
    }
    for (uint32_t c = 0; c < 16; c++) b->s[c] = f16_at(p + 208) * (float)(int8_t)p[192 + c];
}

static void open_iq4_xs(quant_plain *b, const uint8_t *p)
{
    for (uint32_t i = 0; i < 256; i++)
        b->q[i] = iq4[nibble(p + 8, 16 * (i / 32) + i % 16, i / 16 % 2)];
    for (uint32_t c = 0; c < 16; c++) {
        uint32_t g = c / 2;
        int scale = nibble(p + 4, g / 2, g % 2) | (load_u16(p + 2) >> 2 * g & 3) << 4;
        b->s[c] = f16_at(p) * (float)(scale - 32);
    }
}

void quant_open_ref(quant_plain *b, const void *p, dtype type)
{
    switch (type) {
    case DT_Q2_K:
        open_q2_k(b, p);
        break;
    case DT_Q3_K:
        open_q3_k(b, p);
        break;
    case DT_Q4_K:
    case DT_Q5_K:
        open_q45_k(b, type, p);
        break;
    case DT_Q6_K:
        open_q6_k(b, p);
        break;
    case DT_IQ4_XS:
        open_iq4_xs(b, p);
        break;
    default:
        open_32(b, type, p);
    }
}

void quant_to_f32_ref(float *out, const void *in, dtype type, uint64_t n)
{
    uint32_t values = quant_block_values(type), bytes = quant_block_bytes(type);
    const uint8_t *p = in;
    CHECK(n % values == 0);
    for (; n > 0; n -= values, p += bytes, out += values) {
        quant_plain b;
        quant_open_ref(&b, p, type);
        for (uint32_t i = 0; i < values; i++) {
            float s = b.s[i / 16], q = (float)b.q[i];
            out[i] = quant_has_min(type) ? __builtin_fmaf(s, q, b.m[i / 16]) : s * q;
        }
    }
}
