// dequant.cuh - single stored values of a quantised row as f32, by the formats of the GGUF
// specification. dequant_T(row, k): value k of a row that begins at `row` (any address).
#ifndef KERNELS_CUDA_DEQUANT_CUH
#define KERNELS_CUDA_DEQUANT_CUH

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ float load_half(const uint8_t *p)
{
    return __half2float(__ushort_as_half((uint16_t)(p[0] | p[1] << 8)));
}

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

__device__ __forceinline__ float dequant_q4_0(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 32 * 18;
    return __fmul_rn(load_half(b), (float)((int)nibble(b + 2, k % 32) - 8));
}

__device__ __forceinline__ float dequant_q4_1(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 32 * 20;
    return __fmaf_rn(load_half(b), (float)nibble(b + 4, k % 32), load_half(b + 2));
}

__device__ __forceinline__ float dequant_q5_0(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 32 * 22;
    uint32_t high = load_u32(b + 2) >> k % 32 & 1;
    return __fmul_rn(load_half(b), (float)((int)(nibble(b + 6, k % 32) | high << 4) - 16));
}

__device__ __forceinline__ float dequant_q5_1(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 32 * 24;
    uint32_t high = load_u32(b + 4) >> k % 32 & 1;
    return __fmaf_rn(load_half(b), (float)(nibble(b + 8, k % 32) | high << 4), load_half(b + 2));
}

// Scale and minimum j of the eight of Q4_K and Q5_K, 6 bits each in 12 bytes.
__device__ __forceinline__ void scale_min(const uint8_t *q, uint32_t j, uint32_t *scale,
                                          uint32_t *min)
{
    *scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
    *min = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
}

__device__ __forceinline__ float dequant_q4_k(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 144; // d, dmin, scales[12], q[128]
    uint32_t i = k % 256, scale, min;
    scale_min(b + 4, i / 32, &scale, &min);
    uint32_t q = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    return __fsub_rn(__fmul_rn(__fmul_rn(load_half(b), (float)scale), (float)q),
                     __fmul_rn(load_half(b + 2), (float)min));
}

__device__ __forceinline__ float dequant_q5_k(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 176; // d, dmin, scales[12], high[32], q[128]
    uint32_t i = k % 256, scale, min;
    scale_min(b + 4, i / 32, &scale, &min);
    uint32_t q = b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
    q |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
    return __fsub_rn(__fmul_rn(__fmul_rn(load_half(b), (float)scale), (float)q),
                     __fmul_rn(load_half(b + 2), (float)min));
}

__device__ __forceinline__ float dequant_q6_k(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 210; // low[128], high[64], scales[16], d
    uint32_t i = k % 256, half = i / 128, j = i % 128;
    uint32_t low = b[half * 64 + j % 64] >> (j / 64 * 4) & 15;
    uint32_t high = b[128 + half * 32 + j % 32] >> (j / 32 * 2) & 3;
    float d = __fmul_rn(load_half(b + 208), (float)(int8_t)b[192 + i / 16]);
    return __fmul_rn(d, (float)((int)(low | high << 4) - 32));
}

__device__ __forceinline__ float dequant_q2_k(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 84; // scales[16], q[64], d, dmin
    uint32_t i = k % 256, j = i % 128, s = b[i / 16];
    uint32_t q = b[16 + i / 128 * 32 + j % 32] >> (j / 32 * 2) & 3;
    return __fsub_rn(__fmul_rn(__fmul_rn(load_half(b + 80), (float)(s & 15)), (float)q),
                     __fmul_rn(load_half(b + 82), (float)(s >> 4)));
}

__device__ __forceinline__ float dequant_q3_k(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 110; // high[32], q[64], scales[12], d
    uint32_t i = k % 256, j = i % 128, s = i / 16;
    uint32_t q = b[32 + i / 128 * 32 + j % 32] >> (j / 32 * 2) & 3;
    uint32_t high = b[i % 32] >> (i / 32) & 1;
    const uint8_t *scales = b + 96; // low 4 bits in 8 bytes, high 2 bits in 4
    uint32_t low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    int scale = (int)(low | (scales[8 + s % 4] >> (s / 4 * 2) & 3) << 4) - 32;
    return __fmul_rn(__fmul_rn(load_half(b + 108), (float)scale), (float)((int)q - (high ? 0 : 4)));
}

__device__ __forceinline__ float iq4_value(uint32_t i)
{
    constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    return (float)values[i];
}

__device__ __forceinline__ float dequant_iq4_nl(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 32 * 18;
    return __fmul_rn(load_half(b), iq4_value(nibble(b + 2, k % 32)));
}

__device__ __forceinline__ float dequant_iq4_xs(const uint8_t *row, uint32_t k)
{
    const uint8_t *b = row + k / 256 * 136; // d, high scales u16, low scales[4], q[128]
    uint32_t i = k % 256 / 32;
    int scale =
        (int)((b[4 + i / 2] >> (i % 2 * 4) & 15) | (load_u16(b + 2) >> (2 * i) & 3) << 4) - 32;
    return __fmul_rn(__fmul_rn(load_half(b), (float)scale),
                     iq4_value(nibble(b + 8 + i * 16, k % 32)));
}

// Value k of a row of `type`; F16, BF16 and F32 are not asked here.
__device__ __forceinline__ float dequant(dtype type, const uint8_t *row, uint32_t k)
{
    switch (type) {
    case DT_Q4_0:
        return dequant_q4_0(row, k);
    case DT_Q4_1:
        return dequant_q4_1(row, k);
    case DT_Q5_0:
        return dequant_q5_0(row, k);
    case DT_Q5_1:
        return dequant_q5_1(row, k);
    case DT_Q2_K:
        return dequant_q2_k(row, k);
    case DT_Q3_K:
        return dequant_q3_k(row, k);
    case DT_Q4_K:
        return dequant_q4_k(row, k);
    case DT_Q5_K:
        return dequant_q5_k(row, k);
    case DT_Q6_K:
        return dequant_q6_k(row, k);
    case DT_IQ4_NL:
        return dequant_iq4_nl(row, k);
    default:
        return dequant_iq4_xs(row, k);
    }
}

#endif
