// walk_attention.cuh - attention of one row, by items: a cell of 256 keys, up to 4 heads of one KV
// head, in the arithmetic of attention_core.cuh on 16 warps. An item whose cell has the row's own
// position turns its k and writes k and v first. The last item of its heads merges. Cells before
// the row's window have no items.
#ifndef KERNELS_CUDA_WALK_ATTENTION_CUH
#define KERNELS_CUDA_WALK_ATTENTION_CUH

#include "kernels/cuda/walk_words.cuh"

static constexpr uint32_t ITEM_HEADS = 4;
static constexpr uint32_t KEY_WARP = ITEM_HEADS, VALUE_WARP = KEY_WARP + 1; // of the row's own
static_assert((WARPS - MULS) * 2 >= CELL_KEYS / POOL_KEYS * 2, "two warps for a block of keys");

template <uint32_t HEAD> struct __align__(16) item_state
{
    core_state st;
    __half new_key[HEAD], new_value[HEAD]; // the row's own
    float head[VALUE_WARP + 1][HEAD];      // of q, k and v, through their norms; then o
    uint32_t is_last;
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

// The item's queries and the row's own key and value, by one of the block's first warps each: to
// shared memory and, of the KV head's first heads, to the pools. One code for all, so that there is
// little of it.
template <class A>
static __device__ __forceinline__ void put_heads(const A &a, const layer_place &l,
                                                 const item_of &it, item_state<A::HEAD> &st)
{
    constexpr uint32_t HEAD = A::HEAD;
    uint32_t n = a.n_head, t = threadIdx.x, warp = t / 32;
    bool is_query = warp < it.n_heads, is_key = warp == KEY_WARP, is_value = warp == VALUE_WARP;
    if (t < CORE_QUERIES) {
        st.st.first[t] = t < it.n_heads ? it.first : UINT32_MAX;
        st.st.last[t] = t < it.n_heads ? it.position : 0;
    }
    if (!is_query && (it.own() >= CELL_KEYS || !(is_key || is_value))) return;
    const float *x = is_query ? a.q + (uint64_t)(it.head0 + warp) * n
                              : (is_key ? a.k : a.v) + (uint64_t)it.kv_head * n;
    if (A::MORE)
        norm_head<HEAD>(st.head[warp], x,
                        is_query ? l.pools->q_norm
                        : is_key ? l.pools->k_norm
                                 : nullptr,
                        n, a.rms_eps);
    const walk_view &view = a.view[l.view_i];
    uint32_t n_rot = is_value ? 0 : view.n_rot;
    float v[HEAD / 32];
    core_head<HEAD>(v, n, [&](uint32_t d) {
        return turned(view, n_rot, l.angles, d,
                      [&](uint32_t i) { return A::MORE ? st.head[warp][i] : __ldcg(x + i); });
    });
    if (is_query) { // rows of st.q past the queries hold anything
        core_query<HEAD>(st.st, warp, n, a.attn_scale, v);
        return;
    }
    bool writes = it.head0 % (a.n_heads / a.n_kv_heads) == 0;
    __half *own = is_key ? st.new_key : st.new_value;
    __half *pool = (__half *)(is_key ? l.pools->k : l.pools->v) + keys_at(a, l, it, it.position) +
                   (uint64_t)(it.position % POOL_KEYS) * n;
#pragma unroll
    for (uint32_t i = 0; i < HEAD / 32; i += 2) {
        uint32_t d = head_place(i), pair = core_pair(v[i], v[i + 1]);
        if (d >= n) break;
        *(uint32_t *)(own + d) = pair;
        if (writes) *(uint32_t *)(pool + d) = pair;
    }
}

// The item's o of every head, st.head, and what it was scaled by, st.st.m and st.st.l: when the
// block has met after. meet: called before the row's q, k and v are asked for, and what the item
// before had in shared memory is no longer read after it.
template <class A, class M>
static __device__ __forceinline__ void
make_heads(const A &a, const layer_place &l, const item_of &it, item_state<A::HEAD> &st, M meet)
{
    constexpr uint32_t STEPS = A::HEAD / 16;
    typename words_of<A::HEAD>::type words;
    uint32_t n = a.n_head, warp = threadIdx.x / 32, at0 = it.cell * CELL_KEYS;
    auto key = [&](uint32_t j, uint32_t t, uint32_t c) { return words.keys.word(j, t, c); };
    auto sum_values = [&] {
        core_values<words.VALUE_TILES, false>(
            st.st, n, it.cell, max(it.first, at0), min(it.position + 1, at0 + CELL_KEYS),
            [&](uint32_t r) { return words.dim(r); },
            [&](uint32_t t, uint32_t r) { return words.value(t, r); },
            [&](uint32_t head, uint32_t d, float o0, float o1) {
                if (head >= it.n_heads) return;
                st.head[head][d] = o0;
                st.head[head][d + 1] = o1;
            });
    };
    if (words.WEIGHERS == WARPS) {
        words.ask_keys(a, l, it);
        meet();
        put_heads(a, l, it, st);
        meet_block();
        words.add_key(st.new_key, it, n);
        core_weights<WARPS, STEPS>(st.st, n, it.cell, warp, key, [&] {
            words.ask_values(a, l, it);
            words.add_value(st.new_value, it, n);
            meet_block();
        });
        meet_block();
        if (threadIdx.x < CORE_QUERIES * 4) core_sums(st.st, threadIdx.x);
        sum_values();
    } else if (warp < MULS) {
        words.find_values(a, l, it);
        meet();
        put_heads(a, l, it, st);
        words.ask_values(a, l, it);
        meet_block();
        words.add_value(st.new_value, it, n);
        meet_block();
        meet_block();
        sum_values();
    } else {
        words.ask_keys(a, l, it);
        meet();
        meet_block();
        words.add_key(st.new_key, it, n);
        core_weights<words.WEIGHERS, STEPS>(st.st, n, it.cell, warp - MULS, key, meet_block);
        meet_block();
        uint32_t i = threadIdx.x - MULS * 32;
        if (i < CORE_QUERIES * 4) core_sums(st.st, i);
    }
}

template <class A, class M>
static __device__ void run_item(const A &a, const layer_place &l, const item_of &it, char *shared,
                                M meet)
{
    constexpr uint32_t HEAD = A::HEAD;
    item_state<HEAD> &st = *(item_state<HEAD> *)shared;
    uint32_t n = a.n_head, t = threadIdx.x;
    make_heads(a, l, it, st, meet);
    meet_block();

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

// Item i of a row that sees [first, position]; *n: how many there are.
static __device__ __noinline__ item_of item_at(const walk_args &a, uint32_t first,
                                               uint32_t position, uint32_t i, uint32_t *n)
{
    item_of it;
    it.position = position;
    it.first = first;
    it.cell0 = first / CELL_KEYS;
    it.n_cells = position / CELL_KEYS - it.cell0 + 1;
    uint32_t group = a.n_heads / a.n_kv_heads, heads = item_heads(a, it.n_cells);
    uint32_t n_subs = (group + heads - 1) / heads, sub = i / it.n_cells % n_subs;
    it.cell = it.cell0 + i % it.n_cells;
    it.kv_head = i / it.n_cells / n_subs;
    it.head0 = it.kv_head * group + sub * heads;
    it.n_heads = min(heads, group - sub * heads);
    *n = a.n_kv_heads * n_subs * it.n_cells;
    return it;
}

// The block's first item in layers of one view, and how many there are of all blocks.
struct first_item {
    item_of it;
    uint32_t n;
};

// Have the block's items, and the heads' norms, brought near while others still multiply: by the
// warps that do not.
template <class A>
static __device__ void call_items(const A &a, const layer_place &l, const first_item &first)
{
    uint32_t i = blockIdx.x, n = first.n, t = threadIdx.x - MULS * 32;
    if (i >= n) return;
    if (A::MORE && t < 16 && t % 8 * 32 < a.n_head) { // lines of 32 f32
        const float *norm = t < 8 ? l.pools->q_norm : l.pools->k_norm;
        if (norm != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(norm + t % 8 * 32));
    }
    call_item(a, l, first.it);
    while ((i += gridDim.x) < n)
        call_item(a, l, item_at(a, l.first, l.position, i, &n));
}

// The block's items; meet: called once.
template <class A, class M>
static __device__ void attend(const A &a, const layer_place &l, char *shared,
                              const first_item &first, M meet)
{
    uint32_t i = blockIdx.x, n = first.n;
    if (i >= n) meet();
    item_of it = first.it;
    while (i < n) {
        run_item(a, l, it, shared, [&] {
            if (i == blockIdx.x)
                meet();
            else
                meet_block();
        });
        if ((i += gridDim.x) < n) it = item_at(a, l.first, l.position, i, &n);
    }
}

#endif
