// walk_attention.cuh - attention of one row, by items: a cell of 256 keys, up to 4 heads of one KV
// head, in the arithmetic of attention_core.cuh on 16 warps. An item whose cell has the row's own
// position turns its k and writes k and v first. A thread asks for its words of keys and values before
// the row's q is there. The last item of its heads merges.
#ifndef KERNELS_CUDA_WALK_ATTENTION_CUH
#define KERNELS_CUDA_WALK_ATTENTION_CUH

#include "kernels/cuda/attention_words.cuh"
#include "kernels/cuda/walk_ring.cuh"

static constexpr uint32_t ITEM_HEADS = 4, CELL_KEYS = CORE_CELL, POOL_KEYS = CORE_BLOCK;
static_assert(WALK_HEAD_MAX <= WORDS_HEAD_MAX && (WARPS - MULS) * 2 >= CELL_KEYS / POOL_KEYS * 2,
              "words for a head, two warps for a block of keys");

// 512 threads.
__device__ __forceinline__ void meet_block()
{
    asm volatile("bar.sync 1, 512;" ::: "memory");
}

struct __align__(16) item_state
{
    core_state st;
    __half new_key[WALK_HEAD_MAX], new_value[WALK_HEAD_MAX]; // the row's own
    float o[ITEM_HEADS][WALK_HEAD_MAX];
    uint32_t is_last;
};

struct item_of
{
    uint32_t cell, n_cells, kv_head, head0, n_heads, group, position;
};

// The row's cos and sin, for all layers.
static __device__ void call_angles(const walk_args &a, float2 *angles)
{
    if (threadIdx.x < a.n_rot / 2)
        angles[threadIdx.x] = make_float2(__ldg(a.cos + threadIdx.x), __ldg(a.sin + threadIdx.x));
}

// Value i of a head, which rope turns or leaves.
static __device__ float turned(const walk_args &a, const float2 *angles, const float *x, uint32_t i)
{
    if (i >= a.n_rot) return __ldcg(x + i);
    uint32_t n_pairs = a.n_rot / 2, p = a.neox ? i % n_pairs : i / 2;
    bool second = a.neox ? i >= n_pairs : i % 2 == 1;
    float a0 = __ldcg(x + (a.neox ? p : 2 * p)), b0 = __ldcg(x + (a.neox ? p + n_pairs : 2 * p + 1));
    float2 at = angles[p];
    return second ? __fmaf_rn(b0, at.x, __fmul_rn(a0, at.y))
                  : __fmaf_rn(a0, at.x, -__fmul_rn(b0, at.y));
}

// Where the pools have 64 keys of the KV head.
static __device__ __forceinline__ uint64_t keys_at(const walk_args &a, uint32_t kv_head,
                                                   uint32_t tables_at, uint32_t key)
{
    uint64_t block = __ldg(a.tables + tables_at + key / POOL_KEYS);
    return (block * a.n_kv_heads + kv_head) * POOL_KEYS * a.n_head;
}

// The cell's words; the row's own key and value are not in the pools yet.
struct item_words : cell_words
{
    __device__ __forceinline__ void ask_for(const walk_args &a, const walk_pools *pools,
                                            const item_of &it, uint32_t tables_at)
    {
        uint32_t begin = it.cell * CELL_KEYS, end = min(it.position, begin + CELL_KEYS);
        ask((const __half *)pools->k, (const __half *)pools->v, a.n_head, it.cell, begin, end,
            [&](uint32_t p) { return keys_at(a, it.kv_head, tables_at, p); });
    }

    // The row's own key and value, from shared memory.
    __device__ __forceinline__ void add_own(const item_state &st, const item_of &it, uint32_t n)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4 * 2;
        uint32_t own = it.position - it.cell * CELL_KEYS; // in the cell, if below CELL_KEYS
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            if (warp * 16 + j * 8 + lane / 4 != own) continue;
#pragma unroll
            for (uint32_t t = 0; t < WORDS_STEPS; t++) {
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    if (t * 16 < n) key[j][t][c] = *(const uint32_t *)(st.new_key + t * 16 + c * 8 + q);
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < CELL_KEYS / 16; t++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++)
                if (t * 16 + c * 8 + lane / 4 == own && warp * 8 < n)
                    value[t][c] = *(const uint32_t *)(st.new_value + warp * 8 + q);
        }
    }
};

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

// The row's own k and v, turned and rounded: to shared memory and, for the KV head's first heads, to
// the pools.
static __device__ void write_own(const walk_args &a, const item_of &it, const walk_pools *pools,
                                 uint64_t at, const float2 *angles, __half *new_key,
                                 __half *new_value)
{
    uint32_t t = threadIdx.x % 128;
    if (threadIdx.x >= 256 || t >= a.n_head) return;
    uint64_t head = (uint64_t)it.kv_head * a.n_head;
    bool is_key = threadIdx.x < 128;
    __half x = __float2half_rn(is_key ? turned(a, angles, a.k + head, t) : __ldcg(a.v + head + t));
    (is_key ? new_key : new_value)[t] = x;
    if (it.head0 % (a.n_heads / a.n_kv_heads) != 0) return;
    ((__half *)(is_key ? pools->k : pools->v))[at + t] = x;
}

// meet: called when the item's keys and values are asked for and before the row's q, k and v are.
template <class M>
static __device__ void run_item(const walk_args &a, const walk_pools *pools, const item_of &it,
                                uint32_t tables_at, char *shared, const float2 *angles, M meet)
{
    item_state &st = *(item_state *)shared;
    uint32_t n = a.n_head, t = threadIdx.x, warp = t / 32, at0 = it.cell * CELL_KEYS;
    item_words words;
    words.ask_for(a, pools, it, tables_at);
    meet();
    meet_block(); // what the item before had in shared memory is no longer read
    const float *x = a.q + (uint64_t)(it.head0 + warp) * n;
    core_query(st.st, warp, n, a.attn_scale, [&](uint32_t d) {
        return warp < it.n_heads ? turned(a, angles, x, d) : 0.0f;
    });
    if (t < CORE_QUERIES) {
        st.st.first[t] = t < it.n_heads ? 0 : UINT32_MAX;
        st.st.last[t] = t < it.n_heads ? it.position : 0;
    }
    if (it.position / CELL_KEYS == it.cell) {
        uint64_t own = keys_at(a, it.kv_head, tables_at, it.position) +
                       (uint64_t)(it.position % POOL_KEYS) * n;
        write_own(a, it, pools, own, angles, st.new_key, st.new_value);
    }
    meet_block();
    words.add_own(st, it, n);
    core_cell<WARPS, WORDS_STEPS>(
        st.st, n, it.cell, at0, min(it.position + 1, at0 + CELL_KEYS),
        [&](uint32_t j, uint32_t step, uint32_t c) { return words.key[j][step][c]; },
        [&](uint32_t step, uint32_t, uint32_t c) { return words.value[step][c]; }, meet_block,
        [&](uint32_t head, uint32_t d, float o0, float o1) {
            if (head >= it.n_heads) return;
            st.o[head][d] = o0;
            st.o[head][d + 1] = o1;
        });
    meet_block(); // l is there too

    uint32_t q = t / n, d = t % n, h = it.head0 + q;
    float acc = q < it.n_heads ? st.o[q][d] : 0;
    if (it.n_cells == 1) {
        if (q < it.n_heads) a.attn[(uint64_t)h * n + d] = __fdiv_rn(acc, st.st.l[q]);
        return;
    }
    if (q < it.n_heads) {
        float *to = a.partial + ((uint64_t)h * a.n_cells_max + it.cell) * (n + 2);
        to[2 + d] = acc;
        if (d < 2) to[d] = d == 0 ? st.st.m[q] : st.st.l[q];
    }
    meet_block();
    if (t == 0) {
        uint32_t before; // for all of the block
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(a.arrived + it.head0)
                     : "memory");
        st.is_last = before + 1 == it.n_cells;
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

// Have the items' keys and values brought near while others still multiply: by the warps that do not.
static __device__ void call_items(const walk_args &a, const walk_pools *pools, uint32_t position,
                                  uint32_t tables_at)
{
    for_items(a, position, [&](const item_of &it) {
        uint32_t t = threadIdx.x - MULS * 32, key = it.cell * CELL_KEYS + t / 64 * POOL_KEYS;
        if (key > position) return;
        uint64_t at = keys_at(a, it.kv_head, tables_at, key);
        for (uint32_t i = t % 64; i < a.n_head; i += 64) { // lines of 64 f16
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const __half *)pools->k + at + i * 64));
            asm volatile("prefetch.global.L2 [%0];" ::"l"((const __half *)pools->v + at + i * 64));
        }
    });
}

// The block's items; meet: called once.
template <class M>
static __device__ void attend(const walk_args &a, const walk_pools *pools, uint32_t position,
                              uint32_t tables_at, char *shared, const float2 *angles, M meet)
{
    bool met = false;
    for_items(a, position, [&](const item_of &it) {
        run_item(a, pools, it, tables_at, shared, angles, [&] {
            if (!met) meet();
            met = true;
        });
    });
    if (!met) meet();
}

#endif
