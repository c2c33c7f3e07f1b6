// One block per row. The sum of squares: thread t takes t, t + 256, .. by fused multiply-adds, then
// the tree of block_sum: an order that n alone fixes.
#include "kernels/cuda/common.cuh"

// y: added to x first, or null.
static __global__ void __launch_bounds__(256)
    rms_norm(float *out, float *x, const float *y, const float *w, uint32_t n, float eps)
{
    __shared__ float room[8];
    kernel_begin();
    uint64_t at = (uint64_t)blockIdx.x * n;
    float *row = x + at, *to = out + at, sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += 256) {
        float v = row[i];
        if (y != nullptr) row[i] = v = __fadd_rn(v, y[at + i]);
        sum = __fmaf_rn(v, v, sum);
    }
    sum = block_sum(sum, room);
    float s = norm_scale(sum, n, eps);
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        to[i] = __fmul_rn(__fmul_rn(row[i], s), w[i]);
}

// The same, and the result prepared for a product of many rows: n of a multiple of 8 up to 2048 for
// each of EACH. The row is read by fours and waits in shared memory to be summed in the order above
// and taken by eights.
template <uint32_t EACH>
static __global__ void __launch_bounds__(256)
    rms_norm_prepare(float *out, float *x, const float *y, const float *w, uint32_t n, float eps,
                     uint4 *prepared, int32_t *exponents)
{
    extern __shared__ __align__(16) float held[];
    __shared__ float room[8];
    __shared__ uint32_t max_room[8];
    kernel_begin();
    uint32_t r = blockIdx.x, n_chunks = cuda_blocks_in(n) * 4, largest = 0;
    uint64_t at = (uint64_t)r * n;
    float sum = 0, v[EACH][8];
    float4 h[2 * EACH], a[2 * EACH], *row = (float4 *)(x + at);
#pragma unroll
    for (uint32_t j = 0; j < 2 * EACH; j++) {
        uint32_t i = j * 256 + threadIdx.x;
        if (i * 4 >= n) continue;
        h[j] = row[i];
        if (y != nullptr) a[j] = ((const float4 *)(y + at))[i];
    }
#pragma unroll
    for (uint32_t j = 0; j < 2 * EACH; j++) {
        uint32_t i = j * 256 + threadIdx.x;
        if (i * 4 >= n) continue;
        if (y != nullptr)
            row[i] = h[j] = make_float4(__fadd_rn(h[j].x, a[j].x), __fadd_rn(h[j].y, a[j].y),
                                        __fadd_rn(h[j].z, a[j].z), __fadd_rn(h[j].w, a[j].w));
        ((float4 *)held)[i] = h[j];
    }
    __syncthreads();
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        sum = __fmaf_rn(held[i], held[i], sum);
    float s = norm_scale(block_sum(sum, room), n, eps);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        uint32_t c = j * 256 + threadIdx.x;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[j][i] = 0;
        if (c * 8 >= n) continue;
        float by[8];
        *(float4 *)by = *(const float4 *)(w + c * 8);
        *(float4 *)(by + 4) = *(const float4 *)(w + c * 8 + 4);
        *(float4 *)v[j] = *(const float4 *)(held + c * 8);
        *(float4 *)(v[j] + 4) = *(const float4 *)(held + c * 8 + 4);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            v[j][i] = __fmul_rn(__fmul_rn(v[j][i], s), by[i]);
            largest = max(largest, magnitude_bits(v[j][i]));
        }
        *(float4 *)(out + at + c * 8) = *(const float4 *)v[j];
        *(float4 *)(out + at + c * 8 + 4) = *(const float4 *)(v[j] + 4);
    }
    put_prepared(prepared, exponents, r, n_chunks, v, largest, max_room);
}

cudaError_t cuda_launch_rms_norm(cudaStream_t s, float *out, float *x, const float *y,
                                 const float *w, uint32_t n, float eps, uint32_t n_rows)
{
    return start(rms_norm, n_rows, 256, 0, s, out, x, y, w, n, eps);
}

bool cuda_rms_norm_prepares(const float *out, const float *x, const float *y, const float *w,
                            uint32_t n)
{
    uintptr_t all = (uintptr_t)out | (uintptr_t)x | (uintptr_t)y | (uintptr_t)w;
    return n % 8 == 0 && n >= 512 && n <= 8192 && all % 16 == 0;
}

cudaError_t cuda_launch_rms_norm_prepare(cudaStream_t s, float *out, float *x, const float *y,
                                         const float *w, uint32_t n, float eps, uint32_t n_rows,
                                         void *prepared, int32_t *exponents)
{
    return start(n <= 4096 ? rms_norm_prepare<2> : rms_norm_prepare<4>, n_rows, 256,
                 n * sizeof(float), s, out, x, y, w, n, eps, (uint4 *)prepared, exponents);
}
