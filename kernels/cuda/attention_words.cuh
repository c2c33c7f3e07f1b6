// attention_words.cuh - a cell's keys and values as 16 warps take them in core_cell, in registers:
// asked for together, before the queries are there. Values of heads longer than WORDS_HEAD_MAX have no
// room beside the keys: their words are asked for when the scores are made.
#ifndef KERNELS_CUDA_ATTENTION_WORDS_CUH
#define KERNELS_CUDA_ATTENTION_WORDS_CUH

#include "kernels/cuda/attention_core.cuh"

static constexpr uint32_t WORDS_HEAD_MAX = 128, WORDS_STEPS = WORDS_HEAD_MAX / 16;

// The thread's words, for heads of n values, a multiple of 8, up to HEAD: zeros at positions outside
// [begin, end).
template <uint32_t HEAD = WORDS_HEAD_MAX> struct cell_words {
    static constexpr uint32_t STEPS = HEAD / 16, ROUNDS = HEAD / 128;
    uint32_t key[2][STEPS][2], value[ROUNDS][CORE_CELL / 16][2];

    // at(p): where k (v) has the CORE_BLOCK positions around p; asked in [begin, end), or of begin.
    template <class A>
    __device__ __forceinline__ void ask_keys(const __half *k, uint32_t n, uint32_t cell,
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
            for (uint32_t t = 0; t < STEPS; t++) {
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    key[j][t][c] = p >= begin && p < end && t * 16 + c * 8 < n
                                       ? *(const uint32_t *)(from + t * 16 + c * 8)
                                       : 0;
            }
        }
    }
    template <class A>
    __device__ __forceinline__ void ask_values(const __half *v, uint32_t n, uint32_t cell,
                                               uint32_t begin, uint32_t end, A at)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at0 = cell * CORE_CELL;
        uint32_t most = end > begin ? end - 1 : begin;
        auto block_of = [&](uint32_t p) { return at(min(max(p, begin), most)); };
#pragma unroll
        for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
            const __half *values = v + warp * 8 + lane % 4 * 2 + block_of((at0 + t * 16) | 15);
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t p = at0 + t * 16 + c * 8 + lane / 4;
#pragma unroll
                for (uint32_t r = 0; r < ROUNDS; r++)
                    value[r][t][c] = p >= begin && p < end && (r * 16 + warp) * 8 < n
                                         ? *(const uint32_t *)(values + r * 128 +
                                                               (uint64_t)(p % CORE_BLOCK) * n)
                                         : 0;
            }
        }
    }
};

#endif
