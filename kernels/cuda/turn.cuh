// turn.cuh - rope on the way from memory, by the operations of the op.
#ifndef KERNELS_CUDA_TURN_CUH
#define KERNELS_CUDA_TURN_CUH

#include "kernels/cuda/common.cuh"

template <uint32_t EACH> struct __align__(EACH * 4) floats {
    float value[EACH];
};

// EACH neighbours of a head from value d on, after the turn of row r: EACH 2 or 4, where
// cuda_turns.
template <uint32_t EACH>
static __device__ __forceinline__ floats<EACH> turned(const cuda_turn &turn, uint32_t r,
                                                      const float *head, uint32_t d)
{
    floats<EACH> x = *(const floats<EACH> *)(head + d);
    if (turn.cos == nullptr || d >= turn.n_rot) return x;
    uint32_t n_pairs = turn.n_rot / 2;
    const float *cos = turn.cos + (uint64_t)r * n_pairs, *sin = turn.sin + (uint64_t)r * n_pairs;
    if (turn.neox) {
        bool second = d >= n_pairs;
        uint32_t p = second ? d - n_pairs : d;
        floats<EACH> y = *(const floats<EACH> *)(head + (second ? p : p + n_pairs));
        floats<EACH> c = *(const floats<EACH> *)(cos + p), s = *(const floats<EACH> *)(sin + p);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            float across = __fmul_rn(y.value[i], s.value[i]);
            x.value[i] = __fmaf_rn(x.value[i], c.value[i], second ? across : -across);
        }
        return x;
    }
    floats<EACH / 2> c = *(const floats<EACH / 2> *)(cos + d / 2);
    floats<EACH / 2> s = *(const floats<EACH / 2> *)(sin + d / 2);
#pragma unroll
    for (uint32_t i = 0; i < EACH / 2; i++) {
        float a = x.value[2 * i], b = x.value[2 * i + 1];
        x.value[2 * i] = __fmaf_rn(a, c.value[i], -__fmul_rn(b, s.value[i]));
        x.value[2 * i + 1] = __fmaf_rn(b, c.value[i], __fmul_rn(a, s.value[i]));
    }
    return x;
}

#endif
