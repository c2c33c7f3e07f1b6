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
