/* convert.h - single stored values to f32 and back in integer arithmetic, for the plain reference
 * and for the ends of rows. The same results as the F16C instructions, denormals, infinities and
 * NaN (quieted, payload kept) included. Addresses need no alignment. */
#ifndef KERNELS_CPU_CONVERT_H
#define KERNELS_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float load_f32(const void *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint16_t load_u16(const void *p)
{
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static inline float f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, m = h & 0x3ffu;
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0));
    if (exponent != 0) return f32_from_bits(sign | (exponent + 112u) << 23 | m << 13);
    float x = (float)m * 0x1p-24f; /* exact */
    return f32_from_bits(f32_bits(x) | sign);
}

static inline uint16_t f16_of_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (a >= 0x38800000u) {
        a -= 112u << 23;
        return (uint16_t)(sign | (a + 0xfffu + (a >> 13 & 1u)) >> 13);
    }
    /* Below 2^-14: adding 0.5 puts 2^-24 at the last place of the sum, which rounds to even. */
    float sum = f32_from_bits(a) + 0.5f;
    return (uint16_t)(sign | (f32_bits(sum) - 0x3f000000u));
}

static inline float f32_of_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_of_f32(float x)
{
    uint32_t u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
