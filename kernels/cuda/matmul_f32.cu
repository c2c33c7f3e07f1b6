// Products with f32 weights: one chain of fused multiply-adds per output, k ascending. A block
// makes 32 outputs of 8 rows from tiles of 32 inputs in shared memory.
#include "kernels/cuda/common.cuh"

static __global__ void __launch_bounds__(256)
    matmul_f32(float *out, const float *w, const float *x, const float *bias, uint32_t n_in,
               uint32_t n_out, uint32_t n_rows)
{
    __shared__ float ws[32][33], xs[8][32];
    kernel_begin();
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t o = blockIdx.x * 32 + lane, r = blockIdx.y * 8 + warp;
    float sum = 0;
    for (uint32_t k0 = 0; k0 < n_in; k0 += 32) {
        uint32_t n = min(32u, n_in - k0), k = k0 + lane;
        for (uint32_t i = warp; i < 32; i += 8) {
            uint32_t wo = blockIdx.x * 32 + i;
            ws[i][lane] = k < n_in && wo < n_out ? w[(uint64_t)wo * n_in + k] : 0.0f;
        }
        xs[warp][lane] = k < n_in && r < n_rows ? x[(uint64_t)r * n_in + k] : 0.0f;
        __syncthreads();
        for (uint32_t i = 0; i < n; i++)
            sum = __fmaf_rn(ws[lane][i], xs[warp][i], sum);
        __syncthreads();
    }
    if (r < n_rows && o < n_out) out[(uint64_t)r * n_out + o] = finish_sum(sum, 0, bias, o);
}

cudaError_t cuda_matmul_f32(cudaStream_t s, float *out, const cuda_matrix *w, const float *x,
                            const float *bias, uint32_t n_rows)
{
    dim3 grid((w->n_out + 31) / 32, (n_rows + 7) / 8);
    return start(matmul_f32, grid, 256, 0, s, out, (const float *)w->data, x, bias, w->n_in,
                 w->n_out, n_rows);
}
