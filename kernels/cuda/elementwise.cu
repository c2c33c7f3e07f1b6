// Ops that treat each value alone: silu_mul, gelu_mul, add, rope; and the look for NaN and
// infinity.
#include "kernels/cuda/activation.cuh"

static constexpr uint32_t THREADS = 256;

static uint32_t blocks_of(uint64_t n)
{
    return (uint32_t)((n + THREADS - 1) / THREADS);
}

static __global__ void silu_mul(float *out, const float *gate, const float *up, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    out[i] = __fmul_rn(silu(gate[i]), up[i]);
}

cudaError_t cuda_launch_silu_mul(cudaStream_t s, float *out, const float *gate, const float *up,
                                 uint64_t n)
{
    return start(silu_mul, blocks_of(n), THREADS, 0, s, out, gate, up, n);
}

static __global__ void gelu_mul(float *out, const float *gate, const float *up, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    out[i] = __fmul_rn(gelu(gate[i]), up[i]);
}

cudaError_t cuda_launch_gelu_mul(cudaStream_t s, float *out, const float *gate, const float *up,
                                 uint64_t n)
{
    return start(gelu_mul, blocks_of(n), THREADS, 0, s, out, gate, up, n);
}

static __global__ void add(float *x, const float *y, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) x[i] = __fadd_rn(x[i], y[i]);
}

static __global__ void add_quads(float4 *x, const float4 *y, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    float4 a = x[i], b = y[i];
    x[i] = make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

cudaError_t cuda_launch_add(cudaStream_t s, float *x, const float *y, uint64_t n)
{
    if (n % 4 == 0 && ((uintptr_t)x | (uintptr_t)y) % 16 == 0)
        return start(add_quads, blocks_of(n / 4), THREADS, 0, s, (float4 *)x, (const float4 *)y,
                     n / 4);
    return start(add, blocks_of(n), THREADS, 0, s, x, y, n);
}

static __global__ void rope(float *x, const float *cos, const float *sin, uint32_t n_pairs,
                            bool neox, uint32_t n_heads, uint32_t n_head, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint32_t p = (uint32_t)(i % n_pairs);
    uint64_t head = i / n_pairs, angle = head / n_heads * n_pairs + p;
    float *a = x + head * n_head + (neox ? p : 2 * p), *b = a + (neox ? n_pairs : 1);
    float a0 = *a, b0 = *b, c = cos[angle], d = sin[angle];
    *a = __fmaf_rn(a0, c, -__fmul_rn(b0, d));
    *b = __fmaf_rn(b0, c, __fmul_rn(a0, d));
}

cudaError_t cuda_launch_rope(cudaStream_t s, float *x, const float *cos, const float *sin,
                             uint32_t n_rot, bool neox, uint32_t n_heads, uint32_t n_head,
                             uint32_t n_rows)
{
    uint64_t n = (uint64_t)n_rows * n_heads * (n_rot / 2);
    if (n == 0) return cudaSuccess;
    return start(rope, blocks_of(n), THREADS, 0, s, x, cos, sin, n_rot / 2, neox, n_heads, n_head,
                 n);
}

static __global__ void __launch_bounds__(256)
    check_finite(uint8_t *flags, const float *x, uint32_t n)
{
    kernel_begin();
    const float *row = x + (uint64_t)blockIdx.x * n;
    bool bad = false;
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        bad |= magnitude_bits(row[i]) >= 0x7f800000u;
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0) flags[blockIdx.x] = bad;
}

cudaError_t cuda_launch_check_finite(cudaStream_t s, uint8_t *flags, const float *x, uint32_t n,
                                     uint32_t n_rows)
{
    return start(check_finite, n_rows, 256, 0, s, flags, x, n);
}
