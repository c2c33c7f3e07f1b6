// One block per row. The sum of squares: thread t takes t, t + 256, .. by fused multiply-adds, then
// the tree of block_sum: an order that n alone fixes.
#include "kernels/cuda/common.cuh"

static __global__ void __launch_bounds__(256)
    rms_norm(float *out, const float *x, const float *w, uint32_t n, float eps)
{
    __shared__ float room[8];
    kernel_begin();
    const float *row = x + (uint64_t)blockIdx.x * n;
    float *to = out + (uint64_t)blockIdx.x * n, sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        sum = __fmaf_rn(row[i], row[i], sum);
    sum = block_sum(sum, room);
    float s = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)n), eps)));
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        to[i] = __fmul_rn(__fmul_rn(row[i], s), w[i]);
}

cudaError_t cuda_launch_rms_norm(cudaStream_t s, float *out, const float *x, const float *w,
                                 uint32_t n, float eps, uint32_t n_rows)
{
    return start(rms_norm, n_rows, 256, 0, s, out, x, w, n, eps);
}
