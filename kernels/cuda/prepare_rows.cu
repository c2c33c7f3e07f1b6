// Activations for the tensor core: one block per row (and per empty row of the last group of 16).
#include "kernels/cuda/common.cuh"

__global__ void __launch_bounds__(256) prepare_rows(uint32_t *prepared, int32_t *exponents,
                                                    const float *x, uint32_t n, uint32_t n_rows)
{
    __shared__ uint32_t room[8];
    kernel_begin();
    uint32_t r = blockIdx.x, steps = cuda_blocks_in(n) * 2;
    const float *row = x + (uint64_t)r * n;
    uint32_t largest = 0;
    if (r < n_rows) {
        for (uint32_t i = threadIdx.x; i < n; i += 256)
            largest = max(largest, magnitude_bits(row[i]));
    }
    int exponent = cuda_scale_exponent(block_max(largest, room));
    float scale = pow2(exponent);
    if (threadIdx.x == 0 && r < n_rows) exponents[r] = exponent;
    // Register 2 * (k % 16 / 8) + (row of the group / 8) of lane (row % 8) * 4 + k % 8 / 2; with up
    // to 8 rows there is no second half.
    uint32_t *group = prepared + (uint64_t)(r / 16) * steps * 128;
    uint32_t lane_row = r % 8 * 4, high = r % 16 / 8, halves = n_rows <= 8 ? 1 : 2;
    for (uint32_t i = threadIdx.x; i < steps * 8; i += 256) {
        uint32_t k = i * 2, v = 0;
        if (r < n_rows && k < n) v = scaled_pair(row[k], k + 1 < n ? row[k + 1] : 0.0f, scale);
        uint32_t lane = k / 16 * 32 + lane_row + k % 8 / 2;
        group[(lane * 2 + k % 16 / 8) * halves + high] = v;
    }
}

cudaError_t cuda_prepare_rows(cudaStream_t s, void *prepared, int32_t *exponents, const float *x,
                              uint32_t n, uint32_t n_rows)
{
    return start(prepare_rows, n_rows <= 8 ? 8 : (n_rows + 15) / 16 * 16, 256, 0, s,
                 (uint32_t *)prepared, exponents, x, n, n_rows);
}

// A warp per row, 8 rows of a group in a block.
static __global__ void __launch_bounds__(256)
    prepare_many(uint4 *prepared, int32_t *exponents, const float *x, uint32_t n, uint32_t n_rows)
{
    kernel_begin();
    uint32_t lane = threadIdx.x % 32, r = blockIdx.x * 8 + threadIdx.x / 32;
    uint32_t n_chunks = cuda_blocks_in(n) * 4, largest = 0;
    if (r >= n_rows) return;
    const float *row = x + (uint64_t)r * n;
    bool quads = n % 4 == 0 && (uintptr_t)x % 16 == 0;
    if (quads) {
#pragma unroll 8
        for (uint32_t i = lane; i < n / 4; i += 32) {
            float4 v = ((const float4 *)row)[i];
            largest = max(largest, max(magnitude_bits(v.x), magnitude_bits(v.y)));
            largest = max(largest, max(magnitude_bits(v.z), magnitude_bits(v.w)));
        }
    } else {
        for (uint32_t i = lane; i < n; i += 32)
            largest = max(largest, magnitude_bits(row[i]));
    }
    int exponent = cuda_scale_exponent(__reduce_max_sync(~0u, largest));
    float scale = pow2(exponent);
    if (lane == 0) exponents[r] = exponent;
    uint4 *to = prepared + (uint64_t)blockIdx.x * n_chunks * 8 + r % 8;
#pragma unroll 4
    for (uint32_t c = lane; c < n_chunks; c += 32) {
        float v[8];
        if (quads && c * 8 + 8 <= n) {
            *(float4 *)v = ((const float4 *)row)[c * 2];
            *(float4 *)(v + 4) = ((const float4 *)row)[c * 2 + 1];
        } else {
            for (uint32_t i = 0; i < 8; i++)
                v[i] = c * 8 + i < n ? row[c * 8 + i] : 0.0f;
        }
        to[c * 8] = make_uint4(scaled_pair(v[0], v[1], scale), scaled_pair(v[2], v[3], scale),
                               scaled_pair(v[4], v[5], scale), scaled_pair(v[6], v[7], scale));
    }
}

cudaError_t cuda_prepare_many(cudaStream_t s, void *prepared, int32_t *exponents, const float *x,
                              uint32_t n, uint32_t n_rows)
{
    return start(prepare_many, (n_rows + 7) / 8, 256, 0, s, (uint4 *)prepared, exponents, x, n,
                 n_rows);
}
