// walk_attention.cuh - attention of one row, by items: a cell of 256 keys, up to 4 heads of one KV
// head. An item whose cell has the row's own position turns its k and writes k and v first. The
// arithmetic is that of attention_cell.cuh, with 512 threads: thread j % 256 has key j for half of
// the heads; keys and values pass through shared memory by 64. The last item of its heads merges.
#ifndef KERNELS_CUDA_WALK_ATTENTION_CUH
#define KERNELS_CUDA_WALK_ATTENTION_CUH

#include "kernels/cuda/walk_ring.cuh"

static constexpr uint32_t ITEM_HEADS = 4, CELL_KEYS = 256, POOL_KEYS = 64, ROW_PAD = 8;

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
    // then the turned heads, f32 [ITEM_HEADS, n_head], the row's own k and v, f16 [2, n_head], and a
    // tile of 64 keys or values, f16 [64, n_head + ROW_PAD]
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

// A thread's part of the cell's keys or values, as the pool has them: of each 64 keys two times 16
// bytes.
static constexpr uint32_t TILES = CELL_KEYS / POOL_KEYS;
struct item_part
{
    uint4 v[TILES][2];

    __device__ __forceinline__ void ask(const walk_args &a, const item_of &it, const __half *pool,
                                        const uint64_t at[TILES])
    {
        uint32_t n_chunks = a.n_head * 8;
#pragma unroll
        for (uint32_t b = 0; b < TILES; b++) {
            if (it.cell * CELL_KEYS + b * POOL_KEYS > it.position) break;
#pragma unroll
            for (uint32_t c = 0; c < 2; c++)
                v[b][c] = ((const uint4 *)(pool + at[b]))[min(threadIdx.x + c * THREADS, n_chunks - 1)];
        }
    }
    // Tile b to shared memory: rows of n f16 and some more, for the banks.
    __device__ __forceinline__ void put(__half *tile, uint32_t b, uint32_t n) const
    {
        uint32_t row_chunks = n / 8;
#pragma unroll
        for (uint32_t c = 0; c < 2; c++) {
            uint32_t i = threadIdx.x + c * THREADS;
            if (i >= n * 8) break;
            *(uint4 *)(tile + i / row_chunks * (n + ROW_PAD) + i % row_chunks * 8) = v[b][c];
        }
    }
};

// Scores of the cell's keys, tile by tile: thread t has key t % 64 of the tile for head t / 64.
static __device__ void score(const walk_args &a, const item_of &it, item_state &st,
                             const item_part &keys, const float *qs, __half *tile,
                             const __half *new_key)
{
    uint32_t n = a.n_head, t = threadIdx.x, j = t % POOL_KEYS, h = t / POOL_KEYS;
#pragma unroll
    for (uint32_t b = 0; b < TILES; b++) {
        uint32_t key = it.cell * CELL_KEYS + b * POOL_KEYS + j;
        if (it.cell * CELL_KEYS + b * POOL_KEYS > it.position) break;
        meet_block();
        keys.put(tile, b, n);
        meet_block();
        if (h >= it.n_heads || key > it.position) continue;
        const __half *k = key == it.position ? new_key : tile + j * (n + ROW_PAD);
        float s = 0;
        for (uint32_t d = 0; d < n; d += 8) {
            uint4 packed = *(const uint4 *)(k + d);
            const __half *kv = (const __half *)&packed;
            float4 q0 = *(const float4 *)(qs + h * n + d), q1 = *(const float4 *)(qs + h * n + d + 4);
            s = __fmaf_rn(q0.x, __half2float(kv[0]), s);
            s = __fmaf_rn(q0.y, __half2float(kv[1]), s);
            s = __fmaf_rn(q0.z, __half2float(kv[2]), s);
            s = __fmaf_rn(q0.w, __half2float(kv[3]), s);
            s = __fmaf_rn(q1.x, __half2float(kv[4]), s);
            s = __fmaf_rn(q1.y, __half2float(kv[5]), s);
            s = __fmaf_rn(q1.z, __half2float(kv[6]), s);
            s = __fmaf_rn(q1.w, __half2float(kv[7]), s);
        }
        st.e[h][b * POOL_KEYS + j] = __fmul_rn(a.attn_scale, s);
    }
    meet_block();
}

// Scores to e; m and l of the item's heads. Threads of 8 warps have a head's keys.
static __device__ void weigh(const item_of &it, item_state &st)
{
    uint32_t j = threadIdx.x % CELL_KEYS, half = threadIdx.x / CELL_KEYS, warp = j / 32;
    bool in = it.cell * CELL_KEYS + j <= it.position;
    float s[ITEM_HEADS / 2];
#pragma unroll
    for (uint32_t i = 0; i < ITEM_HEADS / 2; i++) {
        uint32_t h = half + 2 * i;
        if (h >= it.n_heads) break;
        s[i] = in ? st.e[h][j] : -INFINITY;
        float m = s[i];
        for (int lanes = 16; lanes >= 1; lanes /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, lanes));
        if (threadIdx.x % 32 == 0) st.red_m[h][warp] = m;
    }
    meet_block();
#pragma unroll
    for (uint32_t i = 0; i < ITEM_HEADS / 2; i++) {
        uint32_t h = half + 2 * i;
        if (h >= it.n_heads) break;
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
    if (threadIdx.x < it.n_heads) {
        float l = st.red_l[threadIdx.x][0];
        for (int w = 1; w < 8; w++)
            l = __fadd_rn(l, st.red_l[threadIdx.x][w]);
        st.l[threadIdx.x] = l;
    }
}

// The thread's output: value d of head q, a chain over the keys.
static __device__ float sum_values(const walk_args &a, const item_of &it, item_state &st,
                                   const item_part &values, __half *tile, const __half *new_value)
{
    uint32_t n = a.n_head, q = threadIdx.x / n, d = threadIdx.x % n;
    uint32_t n_keys = min(it.position + 1 - it.cell * CELL_KEYS, CELL_KEYS);
    float acc = 0;
#pragma unroll
    for (uint32_t b = 0; b < TILES; b++) {
        if (b * POOL_KEYS >= n_keys) break;
        meet_block();
        values.put(tile, b, n);
        meet_block();
        if (q >= it.n_heads) continue;
        uint32_t keys = min(n_keys - b * POOL_KEYS, POOL_KEYS);
        const float *e = &st.e[q][b * POOL_KEYS];
        bool ends = it.cell * CELL_KEYS + b * POOL_KEYS + keys == it.position + 1;
        if (ends) keys--;
#pragma unroll 8
        for (uint32_t j = 0; j < keys; j++)
            acc = e[j] != 0.0f ? __fmaf_rn(e[j], __half2float(tile[j * (n + ROW_PAD) + d]), acc)
                               : acc;
        if (ends) acc = e[keys] != 0.0f ? __fmaf_rn(e[keys], __half2float(new_value[d]), acc) : acc;
    }
    meet_block(); // l is there too
    return acc;
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
    uint32_t n = a.n_head, t = threadIdx.x, last = min(it.position, it.cell * CELL_KEYS + CELL_KEYS - 1);
    float *qs = (float *)(shared + sizeof st);
    __half *new_key = (__half *)(qs + ITEM_HEADS * n), *new_value = new_key + n;
    __half *tile = new_value + n;
    uint64_t at[TILES];
#pragma unroll
    for (uint32_t b = 0; b < TILES; b++)
        at[b] = keys_at(a, it.kv_head, tables_at, min(it.cell * CELL_KEYS + b * POOL_KEYS, last));
    item_part keys, values;
    keys.ask(a, it, (const __half *)pools->k, at);
    values.ask(a, it, (const __half *)pools->v, at);
    meet();
    meet_block(); // what the item before had in shared memory is no longer read
    for (uint32_t i = t; i < it.n_heads * n; i += THREADS)
        qs[i] = turned(a, angles, a.q + (uint64_t)(it.head0 + i / n) * n, i % n);
    if (it.position / CELL_KEYS == it.cell) {
        uint64_t own = keys_at(a, it.kv_head, tables_at, it.position) +
                       (uint64_t)(it.position % POOL_KEYS) * n;
        write_own(a, it, pools, own, angles, new_key, new_value);
    }
    score(a, it, st, keys, qs, tile, new_key);
    weigh(it, st);
    float acc = sum_values(a, it, st, values, tile, new_value);

    uint32_t q = t / n, d = t % n, h = it.head0 + q;
    if (it.n_cells == 1) {
        if (q < it.n_heads) a.attn[(uint64_t)h * n + d] = __fdiv_rn(acc, st.l[q]);
        return;
    }
    if (q < it.n_heads) {
        float *to = a.partial + ((uint64_t)h * a.n_cells_max + it.cell) * (n + 2);
        to[2 + d] = acc;
        if (d < 2) to[d] = d == 0 ? st.m[q] : st.l[q];
    }
    meet_block();
    if (t == 0) {
        __threadfence(); // for all of the block
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
static __device__ void call_items(const walk_args &a, const walk_pools *pools, uint32_t position,
                                  uint32_t tables_at)
{
    for_items(a, position, [&](const item_of &it) {
        uint32_t block = threadIdx.x / 128, key = it.cell * CELL_KEYS + block * POOL_KEYS;
        if (key > position) return;
        uint64_t at = keys_at(a, it.kv_head, tables_at, key);
        for (uint32_t i = threadIdx.x % 128; i < a.n_head; i += 128) { // lines of 64 f16
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
