// attention_core.cuh - attention over an f16 cache on the tensor core: the arithmetic that all its
// paths (prompt, few rows, one row's walk) share, for heads of a multiple of 8 up to 256.
//
// A query's head is f16 after a power-of-two scale of its own. A score is one chain of k16 steps
// over the head, from zero. In a cell of 256 keys: m = the largest score; e = 2^(14 + (s - m) c), c
// the scale with its log2(e), by the device's own ex2 (the 14 keeps small ones out of f16's
// denormal numbers and falls out of the quotient). l sums e in f32: of each 16 keys, lane q of 4
// has a chain of keys 2q, 2q+1, 2q+8, 2q+9; the sixteen chains meet in a tree, then lanes q^1, q^2.
// o is one chain of 16 k16 steps, keys ascending, of e rounded to f16. Keys that a row does not see
// have e = 0, and their values are 0: those that no row of the block sees always, others where they
// are not finite (core_unseen): NaN and infinity reach the rows that see them and no others. Cells
// meet as backend.h says.
#ifndef KERNELS_CUDA_ATTENTION_CORE_CUH
#define KERNELS_CUDA_ATTENTION_CORE_CUH

#include "kernels/cuda/common.cuh"

static constexpr uint32_t CORE_CELL = 256, CORE_BLOCK = 64, CORE_QUERIES = 16, CORE_HEAD_MAX = 256;

__device__ __forceinline__ float core_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What turns a raw score (of a query scaled by 2^exponent) into the natural exponent, and the same
// for powers of two.
__device__ __forceinline__ float core_scale(float scale, int exponent)
{
    return __fmul_rn(scale, pow2(-exponent));
}

__device__ __forceinline__ float core_scale2(float natural)
{
    return __fmul_rn(natural, 1.44269504f);
}

// The other summand of e's exponent; 0 where nothing is seen.
__device__ __forceinline__ float core_offset(float largest, float scale2)
{
    return largest == -INFINITY ? 0.0f : __fmaf_rn(-largest, scale2, 14.0f);
}

__device__ __forceinline__ uint32_t core_pair(float a, float b)
{
    __half2 v = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&v);
}

// An 8 x 8 matrix of f16 over the warp, transposed.
__device__ __forceinline__ uint32_t core_transposed(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// --- values that are not finite, where a block has several rows ---

// Whether any of the sums is not.
__device__ __forceinline__ bool core_spoilt(const float (&o)[4])
{
    uint32_t low = max(magnitude_bits(o[0]), magnitude_bits(o[1]));
    uint32_t high = max(magnitude_bits(o[2]), magnitude_bits(o[3]));
    return max(low, high) >= 0x7f800000;
}

// Of two f16 those that are not finite, as all ones.
__device__ __forceinline__ uint32_t core_not_finite(uint32_t pair)
{
    uint32_t low = (pair & 0x7c00) == 0x7c00 ? 0xffff : 0;
    return (pair & 0x7c000000) == 0x7c000000 ? low | 0xffff0000 : low;
}

// 1 for each of positions p and p + 1 that is in [first, last], else 0.
__device__ __forceinline__ uint32_t core_sees(uint32_t first, uint32_t last, uint32_t p)
{
    uint32_t low = p >= first && p <= last ? 0x3c00 : 0;
    return p + 1 >= first && p + 1 <= last ? low | 0x3c000000 : low;
}

// o, 16 rows by 8 values of a cell, as the paths below sum it. weights(t): step t's first operand;
// words(t): its second, of the values.
template <class W, class B>
static __device__ __forceinline__ void core_sum(float (&o)[4], W weights, B words)
{
    o[0] = o[1] = o[2] = o[3] = 0;
#pragma unroll 1
    for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
        uint4 a = weights(t);
        uint2 b = words(t);
        mma_step(o, a.x, a.y, a.z, a.w, b.x, b.y);
    }
}

// What core_sum made, made again where a row's sum took in values that it does not see and
// that are not finite. The lane's rows, g and g + 8, see [first[h], last[h]].
template <class W, class B>
static __device__ __forceinline__ void core_unseen(float (&o)[4], const uint32_t (&first)[2],
                                                   const uint32_t (&last)[2], uint32_t cell,
                                                   W weights, B words)
{
    const uint32_t ones = 0x3c003c00;
    float clean[4] = {0, 0, 0, 0}, n_seen[4] = {0, 0, 0, 0};
#pragma unroll 1
    for (uint32_t t = 0; t < CORE_CELL / 16; t++) {
        uint4 a = weights(t);
        uint2 b = words(t), bad = make_uint2(core_not_finite(b.x), core_not_finite(b.y));
        uint32_t p = cell * CORE_CELL + t * 16 + threadIdx.x % 4 * 2;
        mma_step(clean, a.x, a.y, a.z, a.w, b.x & ~bad.x, b.y & ~bad.y);
        mma_step(n_seen, core_sees(first[0], last[0], p), core_sees(first[1], last[1], p),
                 core_sees(first[0], last[0], p + 8), core_sees(first[1], last[1], p + 8),
                 bad.x & ones, bad.y & ones);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (n_seen[i] == 0) o[i] = clean[i];
}

// What a block of up to 16 queries shares, in shared memory.
struct __align__(16) core_state
{
    uint4 q[CORE_HEAD_MAX / 16][32]; // queries and weights as first operands
    uint4 e[CORE_CELL / 16][32];
    float sub[CORE_CELL / 16][CORE_QUERIES][4];
    float largest[16][CORE_QUERIES];                   // by warp
    float natural[CORE_QUERIES], scale2[CORE_QUERIES]; // core_scale, core_scale2
    uint32_t first[CORE_QUERIES], last[CORE_QUERIES];  // positions seen; first > last: no query
    float m[CORE_QUERIES], l[CORE_QUERIES];            // of the last cell
};

// Where the lane's value i of a head is, in core_head and core_query.
__device__ __forceinline__ uint32_t head_place(uint32_t i)
{
    return (i / 2 * 32 + threadIdx.x % 32) * 2 + i % 2;
}

// The lane's values of a head of n, a multiple of 8, up to HEAD, by one warp; zeros past n.
// value(d): of the head.
template <uint32_t HEAD, class F>
static __device__ __forceinline__ void core_head(float (&v)[HEAD / 32], uint32_t n, F value)
{
#pragma unroll
    for (uint32_t i = 0; i < HEAD / 32; i++) {
        float x = value(min(head_place(i), n - 2 + i % 2));
        v[i] = head_place(i) < n ? x : 0.0f;
    }
}

// Query i to st.q, by one warp.
template <uint32_t HEAD>
static __device__ void core_query(core_state &st, uint32_t i, uint32_t n, float scale,
                                  const float (&v)[HEAD / 32])
{
    uint32_t lane = threadIdx.x % 32, largest = 0;
#pragma unroll
    for (uint32_t j = 0; j < HEAD / 32; j++)
        largest = max(largest, magnitude_bits(v[j]));
    int exponent = cuda_scale_exponent(__reduce_max_sync(~0u, largest));
    float by = pow2(exponent), natural = core_scale(scale, exponent);
    if (lane == 0) {
        st.natural[i] = natural;
        st.scale2[i] = core_scale2(natural);
    }
#pragma unroll
    for (uint32_t j = 0; j < HEAD / 64; j++) {
        uint32_t d = head_place(2 * j);
        if (d >= (n + 15) / 16 * 16) continue;
        uint32_t *to = (uint32_t *)&st.q[d / 16][i % 8 * 4 + d % 8 / 2];
        to[d % 16 / 8 * 2 + i / 8] = scaled_pair(v[2 * j], v[2 * j + 1], by);
    }
}

// The cell's weights of every query, by WARPS warps, of which the thread's is number `warp`: st.e
// and st.sub. st's queries are there. STEPS: k16 steps of the longest head. The
// thread's words of two f16, zeros where [begin, end), the positions that any query sees, ends, are
//     key(j, t, c): tile j of the warp's TILES, key (warp * TILES + j) * 8 + lane / 4 of the cell,
//                   values 16 t + 8 c + lane % 4 * 2 (zeros past the head).
// sync() meets the block, once.
template <uint32_t WARPS, uint32_t STEPS, class K, class S>
static __device__ __forceinline__ void core_weights(core_state &st, uint32_t n, uint32_t cell,
                                                    uint32_t warp, K key, S sync)
{
    constexpr uint32_t TILES = CORE_CELL / 8 / WARPS;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, at0 = cell * CORE_CELL;
    float s[TILES][4];
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (uint32_t t0 = 0; t0 < STEPS; t0 += 4) { // words of four steps, asked for together
        if (t0 * 16 >= n) break;
        uint32_t b[4][TILES][2];
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++) {
                b[t][j][0] = key(j, t0 + t, 0);
                b[t][j][1] = key(j, t0 + t, 1);
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            if ((t0 + t) * 16 >= n) break;
            uint4 a = st.q[t0 + t][lane];
#pragma unroll
            for (uint32_t j = 0; j < TILES; j++)
                mma_step(s[j], a.x, a.y, a.z, a.w, b[t][j][0], b[t][j][1]);
        }
    }

#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t r = g + h * 8, first = st.first[r], last = st.last[r];
        float largest = -INFINITY;
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t p = at0 + (warp * TILES + j) * 8 + q * 2 + c;
                float &x = s[j][h * 2 + c];
                if (p < first || p > last) x = -INFINITY;
                largest = fmaxf(largest, x);
            }
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        if (q == 0) st.largest[warp][r] = largest;
    }
    sync();
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t r = g + h * 8;
        float largest = st.largest[0][r];
#pragma unroll
        for (uint32_t w = 1; w < WARPS; w++)
            largest = fmaxf(largest, st.largest[w][r]);
        float scale2 = st.scale2[r], offset = core_offset(largest, scale2);
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++)
                s[j][h * 2 + c] = core_exp2(__fmaf_rn(s[j][h * 2 + c], scale2, offset));
        }
#pragma unroll
        for (uint32_t j = 0; j < TILES; j += 2)
            st.sub[(warp * TILES + j) / 2][r][q] =
                __fadd_rn(__fadd_rn(__fadd_rn(s[j][h * 2], s[j][h * 2 + 1]), s[j + 1][h * 2]),
                          s[j + 1][h * 2 + 1]);
        if (warp == 0 && q == 0) st.m[r] = __fmul_rn(largest, st.natural[r]);
    }
#pragma unroll
    for (uint32_t j = 0; j < TILES; j += 2)
        st.e[(warp * TILES + j) / 2][lane] =
            make_uint4(core_pair(s[j][0], s[j][1]), core_pair(s[j][2], s[j][3]),
                       core_pair(s[j + 1][0], s[j + 1][1]), core_pair(s[j + 1][2], s[j + 1][3]));
}

// The sums of the cell's weights, st.l, when the block has met after core_weights: by 64 threads,
// of which the thread's is number t.
static __device__ __forceinline__ void core_sums(core_state &st, uint32_t t)
{
    float sum[CORE_CELL / 16];
#pragma unroll
    for (uint32_t i = 0; i < CORE_CELL / 16; i++)
        sum[i] = st.sub[i][t / 4][t % 4];
#pragma unroll
    for (uint32_t step = 1; step < CORE_CELL / 16; step *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < CORE_CELL / 16; i += 2 * step)
            sum[i] = __fadd_rn(sum[i], sum[i + step]);
    }
    float l = __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], 1));
    l = __fadd_rn(l, __shfl_xor_sync(~0u, l, 2));
    if (t % 4 == 0) st.l[t / 4] = l;
}

// The cell's share of every query, when the block has met after core_weights: o by put(query, d,
// o[d], o[d + 1]). A warp has N tiles of 8 values: dim(r), the first of the lane's two of tile r,
// and words(t, r), its second operand of step t: keys 16 t + 2 q, + 1 and those 8 on of value
// lane / 4. st may be written when all have met after the return. SEVERAL: the queries are not of
// one row: some may see values that others do not.
template <uint32_t N, bool SEVERAL, class D, class V, class P>
static __device__ __forceinline__ void core_values(core_state &st, uint32_t n, uint32_t cell,
                                                   uint32_t begin, uint32_t end, D dim, V words,
                                                   P put)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, at0 = cell * CORE_CELL;
    uint32_t k16_begin = (max(begin, at0) - at0) / 16;
    uint32_t k16_end = (min(end, at0 + CORE_CELL) - at0 + 15) / 16;
    uint32_t spoilt = 0;                          // by r
    constexpr uint32_t TOGETHER = N <= 2 ? N : 1; // tiles
#pragma unroll N <= 2 ? N : 1
    for (uint32_t r0 = 0; r0 < N; r0 += TOGETHER) {
        if (dim(r0) >= n) break;
        float o[TOGETHER][4] = {};
#pragma unroll
        for (uint32_t t0 = 0; t0 < CORE_CELL / 16; t0 += 4) {
            if (t0 + 4 <= k16_begin || t0 >= k16_end) continue;
            uint2 b[4][TOGETHER];
#pragma unroll
            for (uint32_t t = 0; t < 4; t++) {
#pragma unroll
                for (uint32_t r = 0; r < TOGETHER; r++)
                    b[t][r] = words(t0 + t, r0 + r);
            }
#pragma unroll
            for (uint32_t t = 0; t < 4; t++) {
                uint4 a = st.e[t0 + t][lane];
#pragma unroll
                for (uint32_t r = 0; r < TOGETHER; r++)
                    mma_step(o[r], a.x, a.y, a.z, a.w, b[t][r].x, b[t][r].y);
            }
        }
#pragma unroll
        for (uint32_t r = 0; r < TOGETHER; r++) {
            uint32_t d = dim(r0 + r);
            if (d >= n) break;
            if (SEVERAL && core_spoilt(o[r])) {
                spoilt |= 1u << (r0 + r);
            } else {
                put(g, d, o[r][0], o[r][1]);
                put(g + 8, d, o[r][2], o[r][3]);
            }
        }
    }
    if (!SEVERAL || !__any_sync(~0u, spoilt != 0)) return;
    const uint32_t first[2] = {st.first[g], st.first[g + 8]},
                   last[2] = {st.last[g], st.last[g + 8]};
    auto weights = [&](uint32_t t) { return st.e[t][lane]; };
#pragma unroll 1
    for (uint32_t r = 0; r < N; r++) {
        uint32_t d = dim(r);
        if (d >= n) break;
        float o[4];
        auto of_r = [&](uint32_t t) { return words(t, r); };
        bool mine = (spoilt >> r & 1) != 0;
        if (!__any_sync(~0u, mine)) continue;
        core_sum(o, weights, of_r);
        core_unseen(o, first, last, cell, weights, of_r);
        if (mine) {
            put(g, d, o[0], o[1]);
            put(g + 8, d, o[2], o[3]);
        }
    }
}

// All of it, by all of the block's warps, WARPS of them. The thread's words of values:
//     value(t, r, c): key 16 t + 8 c + lane / 4 of the cell, values
//                     8 (r * WARPS + warp) + lane % 4 * 2.
// st.l may be read when all have met after the return.
template <uint32_t WARPS, uint32_t STEPS, bool SEVERAL, class K, class V, class S, class P>
static __device__ void core_cell(core_state &st, uint32_t n, uint32_t cell, uint32_t begin,
                                 uint32_t end, K key, V value, S sync, P put)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    core_weights<WARPS, STEPS>(st, n, cell, warp, key, sync);
    sync();
    if (threadIdx.x < CORE_QUERIES * 4) core_sums(st, threadIdx.x);
    core_values<STEPS * 2 / WARPS, SEVERAL>(
        st, n, cell, begin, end, [&](uint32_t r) { return (r * WARPS + warp) * 8 + lane % 4 * 2; },
        [&](uint32_t t, uint32_t r) {
            return make_uint2(core_transposed(value(t, r, 0)), core_transposed(value(t, r, 1)));
        },
        put);
}

#endif
