// walk_attention.cuh - attention of one row, by items: a cell of 256 keys, up to 4 heads of one KV
// head. An item whose cell has the row's own position turns its k and writes k and v first. The
// arithmetic is that of attention_cell.cuh, with 512 threads: thread j % 256 has key j for half of
// the heads; values pass through shared memory by 64 keys. The last item of its heads merges.
#ifndef KERNELS_CUDA_WALK_ATTENTION_CUH
#define KERNELS_CUDA_WALK_ATTENTION_CUH

#include "kernels/cuda/walk_ring.cuh"

static constexpr uint32_t ITEM_HEADS = 4, CELL_KEYS = 256, POOL_KEYS = 64;

// 512 threads.
__device__ __forceinline__ void meet_block()
{
    asm volatile("bar.sync 1, 512;" ::: "memory");
}

struct __align__(16) item_state
{
    float e[ITEM_HEADS][CELL_KEYS];
    float red_m[ITEM_HEADS][8], red_l[ITEM_HEADS][8];
    float m[ITEM_HEADS], l[ITEM_HEADS];
    uint32_t is_last;
    // then the turned heads, f32 [ITEM_HEADS, n_head], then values of 64 keys, f16 [64, n_head]
};

struct item_of
{
    uint32_t cell, n_cells, kv_head, head0, n_heads, group, position;
};

// Values i of a head that rope turns or leaves.
static __device__ float turned(const walk_args &a, const float *x, uint32_t i)
{
    if (i >= a.n_rot) return __ldcg(x + i);
    uint32_t n_pairs = a.n_rot / 2, p = a.neox ? i % n_pairs : i / 2;
    bool second = a.neox ? i >= n_pairs : i % 2 == 1;
    float a0 = __ldcg(x + (a.neox ? p : 2 * p)), b0 = __ldcg(x + (a.neox ? p + n_pairs : 2 * p + 1));
    float c = __ldg(a.cos + p), d = __ldg(a.sin + p);
    return second ? __fmaf_rn(b0, c, __fmul_rn(a0, d)) : __fmaf_rn(a0, c, -__fmul_rn(b0, d));
}

// Where the pools have 64 keys of the KV head.
static __device__ __forceinline__ uint64_t keys_at(const walk_args &a, const item_of &it,
                                                   uint32_t key)
{
    uint64_t block = __ldg(a.tables + __ldg(a.table) + key / POOL_KEYS);
    return (block * a.n_kv_heads + it.kv_head) * POOL_KEYS * a.n_head;
}

// Scores of the thread's key for heads half, half + 2.
template <uint32_t N>
static __device__ void scores(float s[2], const float *q, const __half *key, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += 16) {
        uint4 packed[2] = {((const uint4 *)(key + d))[0], ((const uint4 *)(key + d))[1]};
        const __half *k = (const __half *)packed;
#pragma unroll
        for (uint32_t j = 0; j < 16; j += 4) {
#pragma unroll
            for (uint32_t i = 0; i < N; i++) {
                float4 v = *(const float4 *)(q + i * 2 * n + d + j);
                s[i] = __fmaf_rn(v.x, __half2float(k[j]), s[i]);
                s[i] = __fmaf_rn(v.y, __half2float(k[j + 1]), s[i]);
                s[i] = __fmaf_rn(v.z, __half2float(k[j + 2]), s[i]);
                s[i] = __fmaf_rn(v.w, __half2float(k[j + 3]), s[i]);
            }
        }
    }
}

// m, e and l of the item's heads.
static __device__ void weigh(const walk_args &a, const item_of &it, item_state &st, const float *qs,
                             const __half *k_pool)
{
    uint32_t j = threadIdx.x % CELL_KEYS, half = threadIdx.x / CELL_KEYS, n = a.n_head;
    uint32_t key = it.cell * CELL_KEYS + j, warp = j / 32;
    bool in = key <= it.position;
    float s[2] = {0, 0};
    if (in) {
        const __half *at = k_pool + keys_at(a, it, key) + (uint64_t)(key % POOL_KEYS) * n;
        if (it.n_heads > 2)
            scores<2>(s, qs + half * n, at, n);
        else
            scores<1>(s, qs + half * n, at, n);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        s[i] = in ? __fmul_rn(a.attn_scale, s[i]) : -INFINITY;
        float m = s[i];
        for (int lanes = 16; lanes >= 1; lanes /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
        if (threadIdx.x % 32 == 0) st.red_m[half + 2 * i][warp] = m;
    }
    meet_block();
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t h = half + 2 * i;
        float m = st.red_m[h][0];
        for (int w = 1; w < 8; w++)
            m = fmaxf(m, st.red_m[h][w]);
        float e = in ? exp_f32(__fsub_rn(s[i], m)) : 0.0f;
        st.e[h][j] = e;
        if (j == 0) st.m[h] = m;
        e = warp_sum(e);
        if (threadIdx.x % 32 == 0) st.red_l[h][warp] = e;
    }
    meet_block();
    if (threadIdx.x < ITEM_HEADS) {
        float l = st.red_l[threadIdx.x][0];
        for (int w = 1; w < 8; w++)
            l = __fadd_rn(l, st.red_l[threadIdx.x][w]);
        st.l[threadIdx.x] = l;
    }
}

// Merge the cells of the item's heads, in ascending order.
static __device__ void merge(const walk_args &a, const item_of &it)
{
    uint32_t n = a.n_head;
    for (uint32_t i = threadIdx.x; i < it.n_heads * n; i += THREADS) {
        uint32_t h = it.head0 + i / n, d = i % n;
        const float *at = a.partial + (uint64_t)h * a.n_cells_max * (n + 2);
        float m = __ldcg(at), l = __ldcg(at + 1), o = __ldcg(at + 2 + d);
#pragma unroll 4
        for (uint32_t c = 1; c < it.n_cells; c++) {
            at += n + 2;
            float cm = __ldcg(at), cl = __ldcg(at + 1), co = __ldcg(at + 2 + d);
            float both = fmaxf(m, cm);
            float wa = exp_f32(__fsub_rn(m, both)), wb = exp_f32(__fsub_rn(cm, both));
            l = __fmaf_rn(cl, wb, __fmul_rn(l, wa));
            o = __fmaf_rn(co, wb, __fmul_rn(o, wa));
            m = both;
        }
        a.attn[(uint64_t)h * n + d] = __fdiv_rn(o, l);
    }
}

static __device__ void run_item(const walk_args &a, const walk_pools *pools, const item_of &it,
                                char *shared)
{
    item_state &st = *(item_state *)shared;
    uint32_t n = a.n_head, t = threadIdx.x;
    float *qs = (float *)(shared + sizeof st);
    __half *vs = (__half *)(qs + ITEM_HEADS * n);
    __half *k_pool = (__half *)__ldg((const uint64_t *)&pools->k);
    __half *v_pool = (__half *)__ldg((const uint64_t *)&pools->v);
    meet_block(); // the item before is no longer read

    for (uint32_t i = t; i < ITEM_HEADS * n; i += THREADS)
        qs[i] = i < it.n_heads * n ? turned(a, a.q + (uint64_t)(it.head0 + i / n) * n, i % n) : 0;
    if (it.position / CELL_KEYS == it.cell && t < n) {
        uint64_t to = keys_at(a, it, it.position) + (uint64_t)(it.position % POOL_KEYS) * n + t;
        k_pool[to] = __float2half_rn(turned(a, a.k + (uint64_t)it.kv_head * n, t));
        v_pool[to] = __float2half_rn(__ldcg(a.v + (uint64_t)it.kv_head * n + t));
    }
    meet_block();

    // The cell's values, two times 16 bytes of each 64 keys, are asked for before the scores.
    uint32_t n_keys = min(it.position + 1 - it.cell * CELL_KEYS, CELL_KEYS), n_chunks = n * 8;
    uint4 values[CELL_KEYS / POOL_KEYS][2];
#pragma unroll
    for (uint32_t b = 0; b < CELL_KEYS / POOL_KEYS; b++) {
        if (b * POOL_KEYS >= n_keys) break;
        const uint4 *from =
            (const uint4 *)(v_pool + keys_at(a, it, it.cell * CELL_KEYS + b * POOL_KEYS));
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            if (t + c * THREADS < n_chunks) values[b][c] = from[t + c * THREADS];
    }
    weigh(a, it, st, qs, k_pool);

    float acc = 0;
    uint32_t q = t / n, d = t % n;
#pragma unroll
    for (uint32_t b = 0; b < CELL_KEYS / POOL_KEYS; b++) {
        if (b * POOL_KEYS >= n_keys) break;
        meet_block();
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
            if (t + c * THREADS < n_chunks) ((uint4 *)vs)[t + c * THREADS] = values[b][c];
        meet_block();
        if (q >= it.n_heads) continue;
        uint32_t keys = min(n_keys - b * POOL_KEYS, POOL_KEYS);
        const float *e = &st.e[q][b * POOL_KEYS];
#pragma unroll 8
        for (uint32_t j = 0; j < keys; j++)
            acc = e[j] != 0.0f ? __fmaf_rn(e[j], __half2float(vs[j * n + d]), acc) : acc;
    }
    meet_block(); // l is there too
    uint32_t h = it.head0 + q;
    if (it.n_cells == 1) {
        if (q < it.n_heads) a.attn[(uint64_t)h * n + d] = __fdiv_rn(acc, st.l[q]);
        return;
    }
    if (q < it.n_heads) {
        float *at = a.partial + ((uint64_t)h * a.n_cells_max + it.cell) * (n + 2);
        at[2 + d] = acc;
        if (d < 2) at[d] = d == 0 ? st.m[q] : st.l[q];
    }
    __threadfence();
    meet_block();
    if (t == 0) {
        st.is_last = atomicAdd(a.arrived + it.head0, 1u) + 1 == it.n_cells;
        __threadfence();
        if (st.is_last) a.arrived[it.head0] = 0;
    }
    meet_block();
    if (st.is_last) merge(a, it);
}

// Heads of one item: few enough of them that all blocks have one.
__device__ __forceinline__ uint32_t item_heads(const walk_args &a, uint32_t n_cells)
{
    uint32_t group = a.n_heads / a.n_kv_heads, heads = min(group, ITEM_HEADS);
    while (heads > 1 && a.n_kv_heads * ((group + heads / 2 - 1) / (heads / 2)) * n_cells <= gridDim.x)
        heads /= 2;
    return heads;
}

// f(item) for the block's items.
template <class F> static __device__ void for_items(const walk_args &a, uint32_t position, F f)
{
    item_of it;
    uint32_t group = a.n_heads / a.n_kv_heads;
    it.position = position;
    it.n_cells = position / CELL_KEYS + 1;
    it.group = item_heads(a, it.n_cells);
    uint32_t n_subs = (group + it.group - 1) / it.group;
    for (uint32_t i = blockIdx.x; i < a.n_kv_heads * n_subs * it.n_cells; i += gridDim.x) {
        uint32_t sub = i / it.n_cells % n_subs;
        it.cell = i % it.n_cells;
        it.kv_head = i / it.n_cells / n_subs;
        it.head0 = it.kv_head * group + sub * it.group;
        it.n_heads = min(it.group, group - sub * it.group);
        f(it);
    }
}

// Have the items' keys and values brought near while others still multiply.
static __device__ void call_items(const walk_args &a, const walk_pools *pools, uint32_t position)
{
    const __half *k_pool = (const __half *)__ldg((const uint64_t *)&pools->k);
    const __half *v_pool = (const __half *)__ldg((const uint64_t *)&pools->v);
    for_items(a, position, [&](const item_of &it) {
        uint32_t block = threadIdx.x / 128, key = it.cell * CELL_KEYS + block * POOL_KEYS;
        if (key > position) return;
        uint64_t at = keys_at(a, it, key);
        for (uint32_t i = threadIdx.x % 128; i < a.n_head; i += 128) { // lines of 64 f16
            asm volatile("prefetch.global.L2 [%0];" ::"l"(k_pool + at + i * 64));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(v_pool + at + i * 64));
        }
    });
}

#endif
