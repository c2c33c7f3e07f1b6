// dequant.cuh - what a quantised row stores, by the formats of the GGUF specification: small
// integers, and the scales and minimums that make numbers of them. b: where a block begins (any
// address).
#ifndef KERNELS_CUDA_DEQUANT_CUH
#define KERNELS_CUDA_DEQUANT_CUH

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

__device__ __forceinline__ uint32_t load_u32(const uint8_t *p)
{
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

__device__ __forceinline__ uint32_t nibble(const uint8_t *q, uint32_t i) // of 32 in 16 bytes
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

// --- types of blocks of 32 values: value = d * integer, or d * integer + minimum (Q4_1, Q5_1) ---

__device__ __forceinline__ int iq4_value(uint32_t i)
{
    constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    return values[i];
}

// Integer i of a block; d is its first two bytes, a minimum the two behind them.
__device__ __forceinline__ int block_integer(dtype type, const uint8_t *b, uint32_t i)
{
    switch (type) {
    case DT_Q4_0:
        return (int)nibble(b + 2, i) - 8;
    case DT_Q4_1:
        return (int)nibble(b + 4, i);
    case DT_Q5_0:
        return (int)(nibble(b + 6, i) | (load_u32(b + 2) >> i & 1) << 4) - 16;
    case DT_Q5_1:
        return (int)(nibble(b + 8, i) | (load_u32(b + 4) >> i & 1) << 4);
    case DT_IQ4_NL:
        return iq4_value(nibble(b + 2, i));
    default: // Q8_0
        return (int8_t)b[2 + i];
    }
}

// --- types of super-blocks of 256 values: value = d * scale * integer - dmin * minimum ---

// Scale and minimum j of the eight of Q4_K and Q5_K, 6 bits each in 12 bytes.
__device__ __forceinline__ void scale_min(const uint8_t *q, uint32_t j, int *scale, int *min)
{
    *scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
    *min = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
}

__device__ __forceinline__ int super_integer(dtype type, const uint8_t *b, uint32_t i)
{
    uint32_t half = i / 128, j = i % 128;
    switch (type) {
    case DT_Q2_K: // scales[16], q[64], d, dmin
        return b[16 + half * 32 + j % 32] >> (j / 32 * 2) & 3;
    case DT_Q3_K: // high[32], q[64], scales[12], d
        return (b[32 + half * 32 + j % 32] >> (j / 32 * 2) & 3) -
               (b[i % 32] >> (i / 32) & 1 ? 0 : 4);
    case DT_Q4_K: // d, dmin, scales[12], q[128]
        return b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    case DT_Q5_K: // d, dmin, scales[12], high[32], q[128]
        return (b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15) |
               (b[16 + i % 32] >> (i / 32) & 1) << 4;
    case DT_Q6_K: // low[128], high[64], scales[16], d
        return ((b[half * 64 + j % 64] >> (j / 64 * 4) & 15) |
                (b[128 + half * 32 + j % 32] >> (j / 32 * 2) & 3) << 4) -
               32;
    default: // IQ4_XS: d, high scales u16, low scales[4], q[128]
        return iq4_value(nibble(b + 8 + i / 32 * 16, i % 32));
    }
}

// Of the 16 values from 16 s on; 0 where a type has no minimum.
__device__ __forceinline__ void super_scale(dtype type, const uint8_t *b, uint32_t s, int *scale,
                                            int *min)
{
    uint32_t block = s / 2;
    *min = 0;
    switch (type) {
    case DT_Q2_K:
        *scale = b[s] & 15;
        *min = b[s] >> 4;
        break;
    case DT_Q3_K: { // low 4 bits in 8 bytes, high 2 bits in 4
        const uint8_t *q = b + 96;
        uint32_t low = s < 8 ? q[s] & 15 : q[s - 8] >> 4;
        *scale = (int)(low | (q[8 + s % 4] >> (s / 4 * 2) & 3) << 4) - 32;
        break;
    }
    case DT_Q4_K:
    case DT_Q5_K:
        scale_min(b + 4, block, scale, min);
        break;
    case DT_Q6_K:
        *scale = (int8_t)b[192 + s];
        break;
    default: // IQ4_XS
        *scale = (int)((b[4 + block / 2] >> (block % 2 * 4) & 15) |
                       (load_u16(b + 2) >> (2 * block) & 3) << 4) -
                 32;
    }
}

// d and, where the type has it, dmin above it: f16 each.
__device__ __forceinline__ uint32_t super_d(dtype type, const uint8_t *b)
{
    switch (type) {
    case DT_Q2_K:
        return load_u32(b + 80);
    case DT_Q3_K:
        return load_u16(b + 108);
    case DT_Q4_K:
    case DT_Q5_K:
        return load_u32(b);
    case DT_Q6_K:
        return load_u16(b + 208);
    default: // IQ4_XS
        return load_u16(b);
    }
}

// Value k of a row of a type of super-blocks, as the products above, exact until the difference.
__device__ __forceinline__ float dequant(dtype type, uint32_t block_bytes, const uint8_t *row,
                                         uint32_t k)
{
    const uint8_t *b = row + (uint64_t)(k / 256) * block_bytes;
    int scale, min;
    super_scale(type, b, k % 256 / 16, &scale, &min);
    uint32_t both = super_d(type, b);
    float d = __half2float(__ushort_as_half((uint16_t)both));
    float dmin = __half2float(__ushort_as_half((uint16_t)(both >> 16)));
    return __fsub_rn(
        __fmul_rn(__fmul_rn(d, (float)scale), (float)super_integer(type, b, k % 256)),
        __fmul_rn(dmin, (float)min));
}

#endif
