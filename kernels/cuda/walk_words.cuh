// walk_words.cuh - an item's keys and values on their way to the attention of the walk's row: in
// registers, asked for so that they are there when what comes before is done. Until then they are
// brought near while the warps that multiply still do.
#ifndef KERNELS_CUDA_WALK_WORDS_CUH
#define KERNELS_CUDA_WALK_WORDS_CUH

#include "kernels/cuda/attention_words.cuh"
#include "kernels/cuda/walk_heads.cuh"
#include "kernels/cuda/walk_norm.cuh"

static constexpr uint32_t CELL_KEYS = CORE_CELL, POOL_KEYS = CORE_BLOCK;

// A cell of 256 keys, for heads of one KV head. The row sees positions [first, position].
struct item_of {
    uint32_t cell, cell0, n_cells, kv_head, head0, n_heads, position, first;

    // What the pools have of the cell: [begin, end), without the row's own position.
    __device__ __forceinline__ uint32_t begin() const
    {
        return max(first, cell * CELL_KEYS);
    }
    __device__ __forceinline__ uint32_t end() const
    {
        return min(position, cell * CELL_KEYS + CELL_KEYS);
    }
    // The row's own in the cell, if below CELL_KEYS.
    __device__ __forceinline__ uint32_t own() const
    {
        return position - cell * CELL_KEYS;
    }
};

// Where the pools have the 64 keys of the item's KV head around a position.
static __device__ __forceinline__ uint64_t keys_at(const walk_args &a, const layer_place &l,
                                                   const item_of &it, uint32_t position)
{
    uint64_t block = __ldg(a.tables + l.tables_at + position / POOL_KEYS);
    return (block * a.n_kv_heads + it.kv_head) * POOL_KEYS * a.n_head;
}

// Have an item's keys and values brought near: by the warps that do not multiply.
static __device__ void call_item(const walk_args &a, const layer_place &l, const item_of &it)
{
    auto call = [](const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); };
    uint32_t t = threadIdx.x - MULS * 32, key = it.cell * CELL_KEYS + t / 64 * POOL_KEYS;
    if (key > it.position || key + POOL_KEYS <= it.first) return;
    uint64_t at = keys_at(a, l, it, key);
    for (uint32_t i = t % 64; i < a.n_head; i += 64) { // lines of 64 f16
        call((const __half *)l.pools->k + at + i * 64);
        call((const __half *)l.pools->v + at + i * 64);
    }
}

// Of heads of up to WORDS_HEAD_MAX: keys in registers of the warps that do not multiply, which make
// the scores; values in those of the others, which have 16 a warp, of which lane q of four has
// 4 q to 4 q + 3: two of either tile.
struct near_words {
    static constexpr uint32_t WEIGHERS = WARPS - MULS, KEY_TILES = CELL_KEYS / 8 / WEIGHERS;
    static constexpr uint32_t HEAD = WORDS_HEAD_MAX, VALUE_TILES = HEAD / 8 / MULS;
    static_assert(VALUE_TILES == 2, "8 bytes a lane");
    key_words<KEY_TILES, HEAD> keys;
    uint32_t values[CELL_KEYS / 16][2][VALUE_TILES];
    const __half *blocks[CELL_KEYS / POOL_KEYS]; // the pool's, of the lane's values

    // By the warps that weigh, when they have nothing to copy.
    __device__ __forceinline__ void ask_keys(const walk_args &a, const layer_place &l,
                                             const item_of &it)
    {
        keys.ask((const __half *)l.pools->k, a.n_head, it.cell,
                 (threadIdx.x / 32 - MULS) * KEY_TILES, it.begin(), it.end(),
                 [&](uint32_t p) { return keys_at(a, l, it, p); });
        keys.turn();
    }
    // By the others, before the queries are there.
    __device__ __forceinline__ void find_values(const walk_args &a, const layer_place &l,
                                                const item_of &it)
    {
        uint32_t begin = it.begin(), end = it.end(), most = end > begin ? end - 1 : begin;
#pragma unroll
        for (uint32_t i = 0; i < CELL_KEYS / POOL_KEYS; i++) {
            uint32_t p = it.cell * CELL_KEYS + i * POOL_KEYS + POOL_KEYS - 1;
            blocks[i] = (const __half *)l.pools->v + keys_at(a, l, it, min(max(p, begin), most));
        }
    }
    // And when they are made.
    __device__ __forceinline__ void ask_values(const walk_args &a, const layer_place &,
                                               const item_of &it)
    {
        uint32_t n = a.n_head, lane = threadIdx.x % 32, d = threadIdx.x / 32 * 16 + lane % 4 * 4;
        uint32_t begin = it.begin(), n_there = it.end() > begin && d < n ? it.end() - begin : 0;
        uint32_t after = it.cell * CELL_KEYS + lane / 4 - begin; // where the lane's first key is
        const __half *from = nullptr;
#pragma unroll
        for (uint32_t i = 0; i < CELL_KEYS / 8; i++) {
            from = i * 8 % POOL_KEYS == 0 ? blocks[i * 8 / POOL_KEYS] + lane / 4 * n + d
                                          : from + 8 * n;
            uint2 w = make_uint2(0, 0);
            if (after + i * 8 < n_there) w = __ldcg((const uint2 *)from);
            values[i / 2][i % 2][0] = w.x;
            values[i / 2][i % 2][1] = w.y;
        }
    }
    __device__ __forceinline__ void add_key(const __half *own, const item_of &it, uint32_t n)
    {
        keys.put(own, it.own(), (threadIdx.x / 32 - MULS) * KEY_TILES, n);
    }
    // The own one too: and make operands of them.
    __device__ __forceinline__ void add_value(const __half *own, const item_of &it, uint32_t n)
    {
        uint32_t lane = threadIdx.x % 32, d = threadIdx.x / 32 * 16 + lane % 4 * 4;
#pragma unroll
        for (uint32_t t = 0; t < CELL_KEYS / 16; t++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                if (t * 16 + c * 8 + lane / 4 == it.own() && d < n) {
                    values[t][c][0] = *(const uint32_t *)(own + d);
                    values[t][c][1] = *(const uint32_t *)(own + d + 2);
                }
#pragma unroll
                for (uint32_t r = 0; r < VALUE_TILES; r++)
                    values[t][c][r] = core_transposed(values[t][c][r]);
            }
        }
    }
    __device__ __forceinline__ uint32_t dim(uint32_t r) const
    {
        return threadIdx.x / 32 * 16 + threadIdx.x % 4 * 4 + r * 2;
    }
    __device__ __forceinline__ uint2 value(uint32_t t, uint32_t r) const
    {
        return make_uint2(values[t][0][r], values[t][1][r]);
    }
};

// Of longer ones: keys in all warps' registers, and values when the scores are made.
struct far_words {
    static constexpr uint32_t WEIGHERS = WARPS, KEY_TILES = CELL_KEYS / 8 / WEIGHERS;
    static constexpr uint32_t HEAD = WALK_HEAD_MAX, VALUE_TILES = HEAD / 8 / WARPS;
    key_words<KEY_TILES, HEAD> keys;
    value_words<HEAD> values;

    __device__ __forceinline__ void find_values(const walk_args &, const layer_place &,
                                                const item_of &)
    {
    }
    __device__ __forceinline__ void ask_keys(const walk_args &a, const layer_place &l,
                                             const item_of &it)
    {
        keys.ask((const __half *)l.pools->k, a.n_head, it.cell, threadIdx.x / 32 * KEY_TILES,
                 it.begin(), it.end(), [&](uint32_t p) { return keys_at(a, l, it, p); });
    }
    __device__ __forceinline__ void ask_values(const walk_args &a, const layer_place &l,
                                               const item_of &it)
    {
        values.ask((const __half *)l.pools->v, a.n_head, it.cell, it.begin(), it.end(),
                   [&](uint32_t p) { return keys_at(a, l, it, p); });
    }
    __device__ __forceinline__ void add_key(const __half *own, const item_of &it, uint32_t n)
    {
        keys.turn();
        keys.put(own, it.own(), threadIdx.x / 32 * KEY_TILES, n);
    }
    __device__ __forceinline__ void add_value(const __half *own, const item_of &it, uint32_t n)
    {
        values.put(own, it.own(), n);
    }
    __device__ __forceinline__ uint32_t dim(uint32_t r) const
    {
        return (r * WARPS + threadIdx.x / 32) * 8 + threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ uint2 value(uint32_t t, uint32_t r)
    {
        return make_uint2(core_transposed(values.word(t, r, 0)),
                          core_transposed(values.word(t, r, 1)));
    }
};

// Those of a kernel that takes heads of up to HEAD. Both alike: ask_keys, then add_key by the warps
// that weigh; ask_values, then add_value, dim and value by those that have values.
template <uint32_t HEAD> struct words_of {
    typedef near_words type;
};
template <> struct words_of<WALK_HEAD_MAX> {
    typedef far_words type;
};

#endif
