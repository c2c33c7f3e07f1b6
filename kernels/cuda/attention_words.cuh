// attention_words.cuh - a cell's keys and values as 16 warps take them in core_cell, in registers:
// all asked for together, before the queries are there.
#ifndef KERNELS_CUDA_ATTENTION_WORDS_CUH
#define KERNELS_CUDA_ATTENTION_WORDS_CUH

#include "kernels/cuda/attention_core.cuh"

static constexpr uint32_t WORDS_HEAD_MAX = 128, WORDS_STEPS = WORDS_HEAD_MAX / 16;

// The thread's words, for heads of n values, a multiple of 8: zeros at positions outside [begin,
// end).
struct cell_words {
    uint32_t key[2][WORDS_STEPS][2], value[CORE_CELL / 16][2];

    // at(p): where k and v have the CORE_BLOCK positions around p; asked in [begin, end), or of
    // begin.
    template <class A>
    __device__ __forceinline__ void ask(const __half *k, const __half *v, uint32_t n, uint32_t cell,
                                        uint32_t begin, uint32_t end, A at)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at0 = cell * CORE_CELL;
        uint32_t most = end > begin ? end - 1 : begin;
        auto block_of = [&](uint32_t p) { return at(min(max(p, begin), most)); };
        uint32_t key0 = at0 + warp * 16;
        const __half *keys = k + lane % 4 * 2 + block_of(key0 | 15);
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t p = key0 + j * 8 + lane / 4;
            const __half *from = keys + (uint64_t)(p % CORE_BLOCK) * n;
#pragma unroll
            for (uint32_t t = 0; t < WORDS_STEPS; t++) {
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    key[j][t][c] = p >= begin && p < end && t * 16 + c * 8 < n
                                       ? *(const uint32_t *)(from + t * 16 + c * 8)
                                       : 0;
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
            const __half *values = v + warp * 8 + lane % 4 * 2 + block_of((at0 + t * 16) | 15);
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t p = at0 + t * 16 + c * 8 + lane / 4;
                value[t][c] = p >= begin && p < end && warp * 8 < n
                                  ? *(const uint32_t *)(values + (uint64_t)(p % CORE_BLOCK) * n)
                                  : 0;
            }
        }
    }
};

#endif
