// walk_attention.cuh - attention of one row, by items: a cell of 256 keys, up to 4 heads of one KV
// head, in the arithmetic of attention_core.cuh on 16 warps. An item whose cell has the row's own
// position turns its k and writes k and v first. A thread asks for its words of keys and values
// before the row's q is there. The last item of its heads merges. Cells before the row's window
// have no items.
#ifndef KERNELS_CUDA_WALK_ATTENTION_CUH
#define KERNELS_CUDA_WALK_ATTENTION_CUH

#include "kernels/cuda/attention_words.cuh"
#include "kernels/cuda/walk_heads.cuh"
#include "kernels/cuda/walk_norm.cuh"

static constexpr uint32_t ITEM_HEADS = 4, CELL_KEYS = CORE_CELL, POOL_KEYS = CORE_BLOCK;
static constexpr uint32_t KEY_WARP = ITEM_HEADS, VALUE_WARP = KEY_WARP + 1; // of the row's own
static_assert((WARPS - MULS) * 2 >= CELL_KEYS / POOL_KEYS * 2, "two warps for a block of keys");

template <uint32_t HEAD> struct __align__(16) item_state
{
    core_state st;
    __half new_key[HEAD], new_value[HEAD]; // the row's own
    float head[KEY_WARP + 1][HEAD];        // of q and k, through their norms; then o
    uint32_t is_last;
};

struct item_of
{
    uint32_t cell, cell0, n_cells, kv_head, head0, n_heads, group, position, first;
};

// Where the pools have 64 keys of the KV head.
static __device__ __forceinline__ uint64_t keys_at(const walk_args &a, uint32_t kv_head,
                                                   uint32_t tables_at, uint32_t key)
{
    uint64_t block = __ldg(a.tables + tables_at + key / POOL_KEYS);
    return (block * a.n_kv_heads + kv_head) * POOL_KEYS * a.n_head;
}

// The cell's words; the row's own key and value are not in the pools yet.
template <uint32_t HEAD> struct item_words
{
    static constexpr bool VALUES_LATE = HEAD > WORDS_HEAD_MAX;
    key_words<CELL_KEYS / 8 / WARPS, HEAD> keys;
    value_words<HEAD> values;

    __device__ __forceinline__ void ask_keys(const walk_args &a, const layer_place &l,
                                             const item_of &it)
    {
        uint32_t begin = max(it.first, it.cell * CELL_KEYS);
        uint32_t end = min(it.position, it.cell * CELL_KEYS + CELL_KEYS);
        keys.ask((const __half *)l.pools->k, a.n_head, it.cell,
                 threadIdx.x / 32 * (CELL_KEYS / 8 / WARPS), begin, end,
                 [&](uint32_t p) { return keys_at(a, it.kv_head, l.tables_at, p); });
    }
    __device__ __forceinline__ void ask_values(const walk_args &a, const layer_place &l,
                                               const item_of &it)
    {
        uint32_t begin = max(it.first, it.cell * CELL_KEYS);
        uint32_t end = min(it.position, it.cell * CELL_KEYS + CELL_KEYS);
        values.ask((const __half *)l.pools->v, a.n_head, it.cell, begin, end,
                   [&](uint32_t p) { return keys_at(a, it.kv_head, l.tables_at, p); });
    }
};

// Merge the cells of the item's heads, in ascending order, some asked for together.
static __device__ void merge(const walk_args &a, const item_of &it)
{
    constexpr uint32_t EACH = 4;
    uint32_t n = a.n_head;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < it.n_heads * n; i += THREADS) {
        uint32_t h = it.head0 + i / n, d = i % n;
        const float *at = a.partial + ((uint64_t)h * a.n_cells_max + it.cell0) * (n + 2);
        float m = __ldcg(at), l = __ldcg(at + 1), o = __ldcg(at + 2 + d);
#pragma unroll 1
        for (uint32_t c0 = 1; c0 < it.n_cells; c0 += EACH) {
            float cm[EACH], cl[EACH], co[EACH], wa[EACH], wb[EACH];
#pragma unroll
            for (uint32_t j = 0; j < EACH; j++) {
                const float *cell = at + (uint64_t)min(c0 + j, it.n_cells - 1) * (n + 2);
                cm[j] = __ldcg(cell);
                cl[j] = __ldcg(cell + 1);
                co[j] = __ldcg(cell + 2 + d);
            }
#pragma unroll
            for (uint32_t j = 0; j < EACH; j++) {
                float both = fmaxf(m, cm[j]); // past the end: the last cell's, m stays
                wa[j] = exp_f32(__fsub_rn(m, both));
                wb[j] = exp_f32(__fsub_rn(cm[j], both));
                m = both;
            }
#pragma unroll
            for (uint32_t j = 0; j < EACH; j++) {
                float next_l = __fmaf_rn(cl[j], wb[j], __fmul_rn(l, wa[j]));
                float next_o = __fmaf_rn(co[j], wb[j], __fmul_rn(o, wa[j]));
                l = c0 + j < it.n_cells ? next_l : l;
                o = c0 + j < it.n_cells ? next_o : o;
            }
        }
        a.attn[(uint64_t)h * n + d] = __fdiv_rn(o, l);
    }
}

// The row's own k or v, by one warp each: rounded, to shared memory and, for the KV head's first
// heads, to the pool. value(i): what is written.
template <uint32_t HEAD, class F>
static __device__ void write_own(const walk_args &a, const item_of &it, void *pool, uint64_t at,
                                 __half *own, F value)
{
    bool writes = it.head0 % (a.n_heads / a.n_kv_heads) == 0;
    uint32_t lane = threadIdx.x % 32, n = a.n_head;
    float x[HEAD / 32];
#pragma unroll
    for (uint32_t j = 0; j < HEAD / 32; j++)
        x[j] = j * 32 + lane < n ? value(j * 32 + lane) : 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < HEAD / 32; j++) {
        uint32_t i = j * 32 + lane;
        if (i >= n) break;
        own[i] = __float2half_rn(x[j]);
        if (writes) ((__half *)pool)[at + i] = own[i];
    }
}

// meet: called when the item's keys and values are asked for and before the row's q, k and v are.
template <class A, class M>
static __device__ void run_item(const A &a, const layer_place &l, const item_of &it, char *shared,
                                M meet)
{
    constexpr uint32_t HEAD = A::HEAD;
    item_state<HEAD> &st = *(item_state<HEAD> *)shared;
    uint32_t n = a.n_head, t = threadIdx.x, warp = t / 32, at0 = it.cell * CELL_KEYS;
    bool owns = it.position / CELL_KEYS == it.cell, is_query = warp < it.n_heads;
    bool is_key = owns && warp == KEY_WARP;
    item_words<HEAD> words;
    words.ask_keys(a, l, it);
    if (!words.VALUES_LATE) words.ask_values(a, l, it);
    const float *norm = nullptr;
    if (A::MORE) norm = is_key ? l.pools->k_norm : l.pools->q_norm;
    meet();
    meet_block(); // what the item before had in shared memory is no longer read
    const float *x =
        is_key ? a.k + (uint64_t)it.kv_head * n : a.q + (uint64_t)(it.head0 + warp) * n;
    if (A::MORE && (is_query || is_key)) norm_head<HEAD>(st.head[warp], x, norm, n, a.rms_eps);
    const walk_view &view = a.view[l.view_i];
    auto value = [&](uint32_t d) {
        return turned(view, l.angles, d,
                      [&](uint32_t i) { return A::MORE ? st.head[warp][i] : __ldcg(x + i); });
    };
    float query[HEAD / 32];
    core_head<HEAD>(query, n, [&](uint32_t d) { return is_query ? value(d) : 0.0f; });
    core_query<HEAD>(st.st, warp, n, a.attn_scale, query);
    if (t < CORE_QUERIES) {
        st.st.first[t] = t < it.n_heads ? it.first : UINT32_MAX;
        st.st.last[t] = t < it.n_heads ? it.position : 0;
    }
    if (owns && (warp == KEY_WARP || warp == VALUE_WARP)) {
        uint64_t own_at = keys_at(a, it.kv_head, l.tables_at, it.position) +
                       (uint64_t)(it.position % POOL_KEYS) * n;
        if (is_key)
            write_own<HEAD>(a, it, l.pools->k, own_at, st.new_key, value);
        else
            write_own<HEAD>(a, it, l.pools->v, own_at, st.new_value, [&](uint32_t d) {
                return __ldcg(a.v + (uint64_t)it.kv_head * n + d);
            });
    }
    meet_block();
    uint32_t own = it.position - at0; // in the cell, if below CELL_KEYS
    words.keys.turn();
    words.keys.put(st.new_key, own, warp * (CELL_KEYS / 8 / WARPS), n);
    bool valued = !words.VALUES_LATE;
    if (valued) words.values.put(st.new_value, own, n);
    core_cell<WARPS, HEAD / 16, false>(
        st.st, n, it.cell, max(it.first, at0), min(it.position + 1, at0 + CELL_KEYS),
        [&](uint32_t j, uint32_t step, uint32_t c) { return words.keys.word(j, step, c); },
        [&](uint32_t step, uint32_t r, uint32_t c) { return words.values.word(step, r, c); },
        [&] {
            if (!valued) { // the scores are made
                words.ask_values(a, l, it);
                words.values.put(st.new_value, own, n);
                valued = true;
            }
            meet_block();
        },
        [&](uint32_t head, uint32_t d, float o0, float o1) {
            if (head >= it.n_heads) return;
            st.head[head][d] = o0;
            st.head[head][d + 1] = o1;
        });
    meet_block(); // l is there too

#pragma unroll
    for (uint32_t u0 = 0; u0 < ITEM_HEADS * HEAD; u0 += THREADS) {
        uint32_t q = (u0 + t) / n, d = (u0 + t) % n, h = it.head0 + q;
        if (q >= it.n_heads) break;
        float acc = st.head[q][d];
        if (it.n_cells == 1) {
            a.attn[(uint64_t)h * n + d] = __fdiv_rn(acc, st.st.l[q]);
            continue;
        }
        float *to = a.partial + ((uint64_t)h * a.n_cells_max + it.cell) * (n + 2);
        to[2 + d] = acc;
        if (d < 2) to[d] = d == 0 ? st.st.m[q] : st.st.l[q];
    }
    if (it.n_cells == 1) return;
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
    while (heads > 1 &&
           a.n_kv_heads * ((group + heads / 2 - 1) / (heads / 2)) * n_cells <= gridDim.x)
        heads /= 2;
    return heads;
}

// f(item) for the block's items.
template <class F>
static __device__ void for_items(const walk_args &a, const layer_place &l, F f)
{
    item_of it;
    uint32_t group = a.n_heads / a.n_kv_heads;
    it.position = l.position;
    it.first = l.first;
    it.cell0 = l.first / CELL_KEYS;
    it.n_cells = l.position / CELL_KEYS - it.cell0 + 1;
    it.group = item_heads(a, it.n_cells);
    uint32_t n_subs = (group + it.group - 1) / it.group;
    for (uint32_t i = blockIdx.x; i < a.n_kv_heads * n_subs * it.n_cells; i += gridDim.x) {
        uint32_t sub = i / it.n_cells % n_subs;
        it.cell = it.cell0 + i % it.n_cells;
        it.kv_head = i / it.n_cells / n_subs;
        it.head0 = it.kv_head * group + sub * it.group;
        it.n_heads = min(it.group, group - sub * it.group);
        f(it);
    }
}

// Have the items' keys and values, and the heads' norms, brought near while others still multiply:
// by the warps that do not.
template <class A> static __device__ void call_items(const A &a, const layer_place &l)
{
    auto call = [](const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); };
    for_items(a, l, [&](const item_of &it) {
        uint32_t t = threadIdx.x - MULS * 32, key = it.cell * CELL_KEYS + t / 64 * POOL_KEYS;
        if (A::MORE && t < 16 && t % 8 * 32 < a.n_head) { // lines of 32 f32
            const float *norm = t < 8 ? l.pools->q_norm : l.pools->k_norm;
            if (norm != nullptr) call(norm + t % 8 * 32);
        }
        if (key > it.position || key + POOL_KEYS <= it.first) return;
        uint64_t at = keys_at(a, it.kv_head, l.tables_at, key);
        for (uint32_t i = t % 64; i < a.n_head; i += 64) { // lines of 64 f16
            call((const __half *)l.pools->k + at + i * 64);
            call((const __half *)l.pools->v + at + i * 64);
        }
    });
}

// The block's items; meet: called once.
template <class A, class M>
static __device__ void attend(const A &a, const layer_place &l, char *shared, M meet)
{
    bool met = false;
    for_items(a, l, [&](const item_of &it) {
        run_item(a, l, it, shared, [&] {
            if (!met) meet();
            met = true;
        });
    });
    if (!met) meet();
}

#endif
