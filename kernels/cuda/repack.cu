// Weights from the file's rows to the tiles of launch.h: a thread makes 8 values of one output, but
// for FORM_F16 what one lane will read of a block, or its part of a super-block.
#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/forms.cuh"

static __device__ __forceinline__ uint16_t f16_bits(dtype type, uint32_t block_bytes,
                                                    const uint8_t *row, uint32_t k)
{
    if (type == DT_F16 || type == DT_BF16) return load_u16(row + 2 * (uint64_t)k);
    return __half_as_ushort(__float2half_rn(dequant(type, block_bytes, row, k)));
}

static __global__ void repack_f16(uint4 *to, const uint8_t *stored, dtype type,
                                  uint32_t block_bytes, uint64_t row_bytes, uint32_t n_in,
                                  uint32_t n_out, uint32_t *max_bits)
{
    uint32_t n_blocks = cuda_blocks_in(n_in), n_tiles = (n_out + TILE_OUT - 1) / TILE_OUT;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t largest = 0;
    if (i < (uint64_t)n_tiles * n_blocks * 32) {
        uint32_t lane = i % 32, block = (uint32_t)(i / 32 % n_blocks);
        uint64_t o = i / 32 / n_blocks * TILE_OUT + lane % 8;
        uint32_t v[8];
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t k = block * BLOCK_IN + lane / 8 * 8 + j;
            v[j] =
                o < n_out && k < n_in ? f16_bits(type, block_bytes, stored + o * row_bytes, k) : 0;
            largest = max(largest, v[j] & 0x7fffu);
        }
        to[i] =
            make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
    }
    if (type != DT_BF16) return;
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) atomicMax(max_bits, largest << 16);
}

// FORM_Q8 and, with a minimum behind each scale, FORM_Q8M.
static __global__ void repack_q8(uint8_t *to, const uint8_t *stored, dtype type,
                                 uint32_t block_bytes, uint64_t row_bytes, uint32_t n_blocks,
                                 uint32_t n_out, uint64_t n)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    bool minimum = type == DT_Q4_1 || type == DT_Q5_1;
    uint32_t lane = i % 32, block = (uint32_t)(i / 32 % n_blocks);
    uint64_t o = i / 32 / n_blocks * TILE_OUT + lane / 4;
    const uint8_t *from = stored + o * row_bytes + (uint64_t)block * block_bytes;
    uint8_t *at = to + i / 32 * (minimum ? Q8M_BLOCK : Q8_BLOCK);
    uint32_t v[2] = {0x80808080u, 0x80808080u};
    if (o < n_out) {
        v[0] = v[1] = 0;
        for (uint32_t j = 0; j < 8; j++) {
            int q = block_integer(type, from, value_input(lane, j));
            v[j / 4] |= (uint32_t)(uint8_t)(q + 128) << j % 4 * 8;
        }
    }
    *(uint2 *)(at + lane * 8) = make_uint2(v[0], v[1]);
    if (lane % 4 != 0) return;
    if (minimum)
        *(uint32_t *)(at + 256 + lane) = o < n_out ? load_u32(from) : 0;
    else
        *(uint16_t *)(at + 256 + lane / 2) = o < n_out ? load_u16(from) : 0;
}

// Of a super-block; outputs past the end have scales of 0.
static __global__ void repack_q4k(uint8_t *to, const uint8_t *stored, uint64_t row_bytes,
                                  uint32_t n_units, uint32_t n_out, uint64_t n)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t lane = i % 32, unit = (uint32_t)(i / 32 % n_units);
    uint64_t o = i / 32 / n_units * TILE_OUT + lane / 4;
    const uint8_t *from = stored + o * row_bytes + (uint64_t)unit * 144;
    uint8_t *at = to + i / 32 * Q4K_UNIT;
    uint8_t *scales = at + form_q4k::scales_at + lane / 4 * 16;
    for (uint32_t block = 0; block < 8; block++) {
        uint32_t word = 0;
        int scale = 0, min = 0;
        for (uint32_t j = 0; o < n_out && j < 8; j++) {
            int q = super_integer(DT_Q4_K, from, block * 32 + value_input(lane, j));
            word |= (uint32_t)q << (4 * j);
        }
        *(uint32_t *)(at + block / 4 * 512 + lane * 16 + block % 4 * 4) = word;
        if (lane % 4 != 0) continue;
        if (o < n_out) scale_min(from + 4, block, &scale, &min);
        scales[block * 2] = (uint8_t)scale;
        scales[block * 2 + 1] = (uint8_t)min;
    }
    if (lane % 4 == 0)
        *(uint32_t *)(at + form_q4k::d_at + lane) = o < n_out ? load_u32(from) : 0;
}

static __global__ void repack_q6k(uint8_t *to, const uint8_t *stored, uint64_t row_bytes,
                                  uint32_t n_units, uint32_t n_out, uint64_t n)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t lane = i % 32, unit = (uint32_t)(i / 32 % n_units);
    uint64_t o = i / 32 / n_units * TILE_OUT + lane / 4;
    const uint8_t *from = stored + o * row_bytes + (uint64_t)unit * 210;
    uint8_t *at = to + i / 32 * Q6K_UNIT;
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t word[3] = {0, 0, 0};
        for (uint32_t f = 0; o < n_out && f < 16; f++) {
            uint32_t k = (2 * t + f / 8) * 32 + value_input(lane, f % 8);
            uint32_t q = (uint32_t)(super_integer(DT_Q6_K, from, k) + 32);
            if (f < 15) {
                word[f / 5] |= q << (f % 5 * 6);
            } else {
                for (uint32_t c = 0; c < 3; c++)
                    word[c] |= (q >> (2 * c) & 3) << 30;
            }
        }
        for (uint32_t c = 0; c < 3; c++) {
            uint32_t w = t * 3 + c;
            *(uint32_t *)(at + w / 4 * 512 + lane * 16 + w % 4 * 4) = word[c];
        }
    }
    if (lane % 4 != 0) return;
    for (uint32_t j = 0; j < 16; j++)
        at[form_q6k::scales_at + lane / 4 * 16 + j] =
            (uint8_t)((o < n_out ? from[192 + j] : 0) + 128);
    *(uint16_t *)(at + form_q6k::d_at + lane / 2) = o < n_out ? load_u16(from + 208) : 0;
}

static __global__ void repack_k8(uint8_t *to, const uint8_t *stored, dtype type,
                                 uint32_t block_bytes, uint64_t row_bytes, uint32_t n_units,
                                 uint32_t n_out, uint64_t n)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t lane = i % 32, unit = (uint32_t)(i / 32 % n_units);
    uint64_t o = i / 32 / n_units * TILE_OUT + lane / 4;
    const uint8_t *from = stored + o * row_bytes + (uint64_t)unit * block_bytes;
    uint8_t *at = to + i / 32 * K8_UNIT;
    for (uint32_t block = 0; block < 8; block++) {
        uint32_t v[2] = {0x80808080u, 0x80808080u};
        for (uint32_t j = 0; o < n_out && j < 8; j++) {
            int q = super_integer(type, from, block * 32 + value_input(lane, j));
            v[j / 4] ^= (uint32_t)(uint8_t)q << j % 4 * 8;
        }
        *(uint2 *)(at + block * 256 + lane * 8) = make_uint2(v[0], v[1]);
    }
    for (uint32_t s = lane % 4 * 4; s < lane % 4 * 4 + 4; s++) { // four lanes share an output
        int scale = 0, min = 0;
        if (o < n_out) super_scale(type, from, s, &scale, &min);
        uint8_t *pair = at + form_k8::scales_at + lane / 4 * 32 + s * 2;
        pair[0] = (uint8_t)(scale + 128);
        pair[1] = (uint8_t)min;
    }
    if (lane % 4 == 0)
        *(uint32_t *)(at + form_k8::d_at + lane) = o < n_out ? super_d(type, from) : 0;
}

cudaError_t cuda_repack(cudaStream_t s, void *to, cuda_form form, const void *stored, dtype type,
                        uint32_t n_in, uint32_t n_out, uint32_t *max_bits)
{
    const dtype_info *info = dtype_get(type);
    uint32_t n_units = cuda_blocks_in(n_in) / cuda_unit_blocks(form);
    uint64_t n = (uint64_t)((n_out + TILE_OUT - 1) / TILE_OUT) * n_units * 32;
    uint64_t row_bytes = dtype_bytes(type, n_in);
    uint32_t grid = (uint32_t)((n + 255) / 256), block = info->block_bytes;
    const uint8_t *from = (const uint8_t *)stored;
    uint8_t *at = (uint8_t *)to;
    switch (form) {
    case FORM_Q8:
    case FORM_Q8M:
        repack_q8<<<grid, 256, 0, s>>>(at, from, type, block, row_bytes, n_units, n_out, n);
        break;
    case FORM_Q4K:
        repack_q4k<<<grid, 256, 0, s>>>(at, from, row_bytes, n_units, n_out, n);
        break;
    case FORM_Q6K:
        repack_q6k<<<grid, 256, 0, s>>>(at, from, row_bytes, n_units, n_out, n);
        break;
    case FORM_K8:
        repack_k8<<<grid, 256, 0, s>>>(at, from, type, block, row_bytes, n_units, n_out, n);
        break;
    default:
        repack_f16<<<grid, 256, 0, s>>>((uint4 *)to, from, type, block, row_bytes, n_in, n_out,
                                        max_bits);
    }
    return cudaGetLastError();
}

static __global__ void scale_bf16(uint4 *values, uint64_t n, float scale)
{
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 v = values[i];
    uint32_t *p = &v.x;
    for (int j = 0; j < 4; j++)
        p[j] = scaled_pair(__uint_as_float(p[j] << 16), __uint_as_float(p[j] & 0xffff0000u), scale);
    values[i] = v;
}

cudaError_t cuda_scale_bf16(cudaStream_t s, void *values, uint64_t n, int32_t exponent)
{
    float scale;
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    scale_bf16<<<(uint32_t)((n / 8 + 255) / 256), 256, 0, s>>>((uint4 *)values, n / 8, scale);
    return cudaGetLastError();
}
