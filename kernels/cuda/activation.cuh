// activation.cuh - silu and gelu as backend.h says, for every kernel that has them.
#ifndef KERNELS_CUDA_ACTIVATION_CUH
#define KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/common.cuh"

#include "kernels/cpu/gelu.h"

// Both are g divided by this.
__device__ __forceinline__ float silu_divisor(float g)
{
    return __fadd_rn(1.0f, exp_f32(-g));
}

__device__ __forceinline__ float gelu_divisor(float g)
{
    float a = __fmaf_rn(__fmul_rn(g, g), GELU_C3, GELU_C1);
    return __fadd_rn(1.0f, exp_f32(__fmul_rn(g, a)));
}

__device__ __forceinline__ float silu(float g)
{
    return __fdiv_rn(g, silu_divisor(g));
}

__device__ __forceinline__ float gelu(float g)
{
    return __fdiv_rn(g, gelu_divisor(g));
}

// silu (GELU: gelu) of each of g, side by side.
template <bool GELU, uint32_t N> __device__ __forceinline__ void activate(float (&g)[N])
{
    float d[N];
    bool plain = true;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        d[i] = GELU ? gelu_divisor(g[i]) : silu_divisor(g[i]);
        plain &= divides(d[i]) && may_be_divided(g[i]);
    }
    if (plain) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            g[i] = quotient(g[i], d[i], near_reciprocal(d[i]));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            g[i] = __fdiv_rn(g[i], d[i]);
    }
}

#endif
