// attention_words.cuh - a cell's keys and values as core_cell takes them, in registers: asked for
// together, before the queries are there. Values of heads longer than WORDS_HEAD_MAX have no room
// beside the keys: their words are asked for when the scores are made.
#ifndef KERNELS_CUDA_ATTENTION_WORDS_CUH
#define KERNELS_CUDA_ATTENTION_WORDS_CUH

#include "kernels/cuda/attention_core.cuh"

static constexpr uint32_t WORDS_HEAD_MAX = 128, WORDS_STEPS = WORDS_HEAD_MAX / 16;

// In groups of four lanes: word p of lane q becomes word q of lane p.
__device__ __forceinline__ void words_turn(uint32_t (&w)[4])
{
    uint32_t lane = threadIdx.x;
    bool odd = lane & 1, high = lane & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    uint32_t v[4] = {odd ? a : w[0], odd ? w[1] : a, odd ? b : w[2], odd ? w[3] : b};
    uint32_t c = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
    uint32_t d = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
    w[0] = high ? c : v[0];
    w[1] = high ? d : v[1];
    w[2] = high ? v[2] : c;
    w[3] = high ? v[3] : d;
}

// A warp's words of TILES tiles of 8 keys, of heads of n values, a multiple of 8, up to HEAD. Lane
// q of four asks for 16 bytes of each 64, for a load of 4 bytes costs as much as one of 16.
template <uint32_t TILES, uint32_t HEAD> struct key_words {
    uint32_t of[TILES][HEAD / 32][4];

    // tile0: the warp's first tile of the cell. at(p): where k has the CORE_BLOCK positions around
    // p; asked in [begin, end), or of begin. Zeros at positions outside.
    template <class A>
    __device__ __forceinline__ void ask(const __half *k, uint32_t n, uint32_t cell, uint32_t tile0,
                                        uint32_t begin, uint32_t end, A at)
    {
        uint32_t lane = threadIdx.x % 32, key0 = cell * CORE_CELL + tile0 * 8;
        uint32_t most = end > begin ? end - 1 : begin;
        const __half *keys = k + at(min(max(key0 | (TILES * 8 - 1), begin), most)) + lane % 4 * 8;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            uint32_t p = key0 + j * 8 + lane / 4;
            const __half *from = keys + (uint64_t)(p % CORE_BLOCK) * n;
#pragma unroll
            for (uint32_t u = 0; u < HEAD / 32; u++) {
                uint4 w = make_uint4(0, 0, 0, 0);
                if (p >= begin && p < end && u * 32 + lane % 4 * 8 < n)
                    w = __ldcg((const uint4 *)(from + u * 32));
                of[j][u][0] = w.x;
                of[j][u][1] = w.y;
                of[j][u][2] = w.z;
                of[j][u][3] = w.w;
            }
        }
    }
    // They are there: to where `word` has them. By the whole warp.
    __device__ __forceinline__ void turn()
    {
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
            for (uint32_t u = 0; u < HEAD / 32; u++)
                words_turn(of[j][u]);
        }
    }
    // core_weights' key(j, t, c)
    __device__ __forceinline__ uint32_t &word(uint32_t j, uint32_t t, uint32_t c)
    {
        return of[j][t / 2][t % 2 * 2 + c];
    }
    // own: a key of n values, which takes the place of the cell's key number i.
    __device__ __forceinline__ void put(const __half *own, uint32_t i, uint32_t tile0, uint32_t n)
    {
        uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
            if ((tile0 + j) * 8 + lane / 4 != i) continue;
#pragma unroll
            for (uint32_t t = 0; t < HEAD / 16; t++) {
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    if (t * 16 + c * 8 < n)
                        word(j, t, c) = *(const uint32_t *)(own + t * 16 + c * 8 + lane % 4 * 2);
            }
        }
    }
};

// Words of values: of one of 16 warps, zeros at positions outside [begin, end).
template <uint32_t HEAD> struct value_words {
    uint32_t of[HEAD / 128][CORE_CELL / 16][2];

    template <class A>
    __device__ __forceinline__ void ask(const __half *v, uint32_t n, uint32_t cell, uint32_t begin,
                                        uint32_t end, A at)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at0 = cell * CORE_CELL;
        uint32_t most = end > begin ? end - 1 : begin;
#pragma unroll
        for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
            const __half *values =
                v + warp * 8 + lane % 4 * 2 + at(min(max((at0 + t * 16) | 15, begin), most));
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t p = at0 + t * 16 + c * 8 + lane / 4;
#pragma unroll
                for (uint32_t r = 0; r < HEAD / 128; r++)
                    of[r][t][c] =
                        p >= begin && p < end && (r * 16 + warp) * 8 < n
                            ? *(const uint32_t *)(values + r * 128 + (uint64_t)(p % CORE_BLOCK) * n)
                            : 0;
            }
        }
    }
    // core_values' value(t, r, c)
    __device__ __forceinline__ uint32_t &word(uint32_t t, uint32_t r, uint32_t c)
    {
        return of[r][t][c];
    }
    // own: values of n, which take the place of the cell's number i.
    __device__ __forceinline__ void put(const __half *own, uint32_t i, uint32_t n)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                if (t * 16 + c * 8 + lane / 4 != i) continue;
#pragma unroll
                for (uint32_t r = 0; r < HEAD / 128; r++)
                    if ((r * 16 + warp) * 8 < n)
                        word(t, r, c) =
                            *(const uint32_t *)(own + (r * 16 + warp) * 8 + lane % 4 * 2);
            }
        }
    }
};

#endif
