// activation.cuh - silu and gelu as backend.h says, for every kernel that has them.
#ifndef KERNELS_CUDA_ACTIVATION_CUH
#define KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/common.cuh"

#include "kernels/cpu/gelu.h"

__device__ __forceinline__ float silu(float g)
{
    return __fdiv_rn(g, __fadd_rn(1.0f, exp_f32(-g)));
}

__device__ __forceinline__ float gelu(float g)
{
    float a = __fmaf_rn(__fmul_rn(g, g), GELU_C3, GELU_C1);
    return __fdiv_rn(g, __fadd_rn(1.0f, exp_f32(__fmul_rn(g, a))));
}

#endif
