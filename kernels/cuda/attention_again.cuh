// attention_again.cuh - a warp's 16 rows of a prompt once more, when what they have summed up is not finite:
// by single steps from the pools, leaving out values that are not finite where a row does not see them
// (core_unseen). Slow, as scores are made again and again, and in need of no memory: it is for the rows before
// one whose values have overflown, in its session's last chunk.
#ifndef KERNELS_CUDA_ATTENTION_AGAIN_CUH
#define KERNELS_CUDA_ATTENTION_AGAIN_CUH

#include "kernels/cuda/attention_core.cuh"

// Whether what any of the warp's rows has summed up is not finite, though its weights were: those come from
// what it sees alone. any[h]: the lane's row g + 8 h has summed; l: its weights; o: the lane's sums,
// [HEAD / 8], 128 apart, as accumulators lie.
template <uint32_t HEAD>
static __device__ __forceinline__ bool sums_spoilt(const bool (&any)[2], const float (&l)[2], const float4 *o)
{
    const bool may[2] = {any[0] && magnitude_bits(l[0]) < 0x7f800000, any[1] && magnitude_bits(l[1]) < 0x7f800000};
    uint32_t largest = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < HEAD / 8; i++) {
        float4 x = o[i * 128];
        if (may[0]) largest = max(largest, max(magnitude_bits(x.x), magnitude_bits(x.y)));
        if (may[1]) largest = max(largest, max(magnitude_bits(x.z), magnitude_bits(x.w)));
    }
    return __any_sync(~0u, largest >= 0x7f800000);
}

// Those sums again. Rows g and g + 8 see [seen[h].x, seen[h].y] (x > y: nothing), with scores times
// natural[h]; all of the run together see [run.x, run.y], in the blocks of `table`. q: queries as first operands.
template <uint32_t HEAD>
static __device__ __forceinline__ void sum_again(const cuda_kv &kv, const uint32_t *table, uint32_t kv_head,
                                                 uint2 run, const uint2 (&seen)[2],
                                                 const float (&natural)[2], const uint32_t (&q)[HEAD / 4],
                                                 float4 *o)
{
    const uint32_t first[2] = {seen[0].x, seen[1].x}, last[2] = {seen[0].y, seen[1].y};
    uint32_t lane = threadIdx.x % 32;
    // Value d of position p, and those behind it; zeros outside of the run.
    auto at = [&](const void *pool, uint32_t p, uint32_t d) {
        uint64_t block = (uint64_t)table[p / CORE_BLOCK] * kv.n_kv_heads + kv_head;
        return (const uint16_t *)pool + (block * CORE_BLOCK + p % CORE_BLOCK) * HEAD + d;
    };
    auto in = [&](uint32_t p) { return p >= run.x && p <= run.y; };
    auto key = [&](uint32_t p, uint32_t d) { return in(p) ? *(const uint32_t *)at(kv.k, p, d) : 0; };
    auto value = [&](uint32_t p, uint32_t d) { return in(p) ? (uint32_t)*at(kv.v, p, d) : 0; };
    bool any[2] = {false, false};
    float m[2] = {0, 0};
#pragma unroll 1
    for (uint32_t cell = run.x / CORE_CELL; cell <= run.y / CORE_CELL; cell++) {
        float all[2] = {-INFINITY, -INFINITY}, scale2[2], offset[2], wa[2], wb[2];
        // Of 16 keys, as two tiles of 8; masked.
        auto scores = [&](uint32_t t, float (&s)[2][4]) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t p = cell * CORE_CELL + t * 16 + c * 8;
                s[c][0] = s[c][1] = s[c][2] = s[c][3] = 0;
#pragma unroll
                for (uint32_t u = 0; u < HEAD / 16; u++) {
                    uint32_t d = u * 16 + lane % 4 * 2;
                    mma_step(s[c], q[u * 4], q[u * 4 + 1], q[u * 4 + 2], q[u * 4 + 3],
                             key(p + lane / 4, d), key(p + lane / 4, d + 8));
                }
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t own = p + lane % 4 * 2 + i % 2;
                    if (own < first[i / 2] || own > last[i / 2]) s[c][i] = -INFINITY;
                }
            }
        };
#pragma unroll 1
        for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
            float s[2][4];
            scores(t, s);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                all[i % 4 / 2] = fmaxf(all[i % 4 / 2], s[i / 4][i % 4]);
        }
        bool joins[2];
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            all[h] = fmaxf(all[h], __shfl_xor_sync(~0u, all[h], 1));
            all[h] = fmaxf(all[h], __shfl_xor_sync(~0u, all[h], 2));
            scale2[h] = core_scale2(natural[h]);
            offset[h] = core_offset(all[h], scale2[h]);
            float own = __fmul_rn(all[h], natural[h]), both = fmaxf(m[h], own);
            wa[h] = exp_f32(__fsub_rn(m[h], both));
            wb[h] = exp_f32(__fsub_rn(own, both));
            joins[h] = first[h] <= last[h] && last[h] / CORE_CELL >= cell && first[h] / CORE_CELL <= cell;
            if (joins[h]) m[h] = any[h] ? both : own;
        }
        auto weights = [&](uint32_t t) {
            float s[2][4];
            uint32_t e[4];
            scores(t, s);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) { // tile i / 2, row i % 2
                float *x = s[i / 2] + i % 2 * 2;
                e[i] = core_pair(core_exp2(__fmaf_rn(x[0], scale2[i % 2], offset[i % 2])),
                                 core_exp2(__fmaf_rn(x[1], scale2[i % 2], offset[i % 2])));
            }
            return make_uint4(e[0], e[1], e[2], e[3]);
        };
#pragma unroll 1
        for (uint32_t i = 0; i < HEAD / 8; i++) {
            float c[4];
            auto words = [&](uint32_t t) {
                uint32_t p = cell * CORE_CELL + t * 16 + lane % 4 * 2, d = i * 8 + lane / 4;
                return make_uint2(value(p, d) | value(p + 1, d) << 16,
                                  value(p + 8, d) | value(p + 9, d) << 16);
            };
            core_sum(c, weights, words);
            core_unseen(c, first, last, cell, weights, words);
            float4 x = o[i * 128];
            if (joins[0]) {
                x.x = any[0] ? __fmaf_rn(c[0], wb[0], __fmul_rn(x.x, wa[0])) : c[0];
                x.y = any[0] ? __fmaf_rn(c[1], wb[0], __fmul_rn(x.y, wa[0])) : c[1];
            }
            if (joins[1]) {
                x.z = any[1] ? __fmaf_rn(c[2], wb[1], __fmul_rn(x.z, wa[1])) : c[2];
                x.w = any[1] ? __fmaf_rn(c[3], wb[1], __fmul_rn(x.w, wa[1])) : c[3];
            }
            o[i * 128] = x;
        }
        any[0] |= joins[0];
        any[1] |= joins[1];
    }
}

#endif
