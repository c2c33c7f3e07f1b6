// Attention of many rows over an f16 cache, heads of 64 or 128, in the arithmetic of
// attention_core.cuh on warpgroups. A block takes 128 rows of one query head: one thread of its first
// warpgroup lets the copy engine fill a ring with the cells' keys and values in turn, the other two
// take 64 rows each. They use the tensor core in turns, so that one weighs while the other multiplies.
// Queries, scores, weights and sums of a cell stay in registers, what cells have made so far in shared
// memory. The first cells are on their way while queries are made.
// Two query heads of one KV head are a cluster: each block brings both of them half of the boxes.
#include "kernels/cuda/attention_again.cuh"
#include "kernels/cuda/attention_core.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/turn.cuh"

static constexpr uint32_t ROWS = 128, BOX_KEYS = CORE_BLOCK, BLOCKS = CORE_CELL / CORE_BLOCK;
static constexpr uint32_t OUTSIDE = 1u << 30; // rows of a pool's map: what begins there is zero
// Barriers: a turn of warpgroup 0, of 1; both meet; rows are looked at, for those who fetch, for all.
static constexpr uint32_t TURN = 1, BOTH = 3, LOOKED = 4, READY = 5;

struct prompt_attention_args {
    CUtensorMap k, v; // rows of n_head: pools as [n_blocks * n_kv_heads * 64, n_head]
    float *out;
    const float *x;
    cuda_turn turn;
    cuda_kv kv;
    uint32_t n_heads, window, n_rows;
    float scale;
};

// A slot holds a part of a cell: 64 values of the head of all keys, or all values of as many keys as
// fit. A cell's parts of keys come first.
template <uint32_t HEAD> struct ring_of {
    static constexpr uint32_t parts = HEAD / 64; // of keys, and of values
    static constexpr uint32_t part_keys = CORE_CELL / parts; // of values
    static constexpr uint32_t box_bytes = BOX_KEYS * 128, bytes = BLOCKS * box_bytes;
    static constexpr uint32_t slots = HEAD == 128 ? 5 : 6;
    static constexpr uint32_t o_bytes = ROWS * HEAD * 4; // queries wait there too, at first
    static constexpr uint32_t shared_bytes = 1024 + slots * bytes + o_bytes;
};

struct prompt_state
{
    uint64_t full[6], empty[6];
    uint32_t begins[ROWS / 32], lives[ROWS / 32]; // bits by row: a run begins; live
    uint32_t first[ROWS], last[ROWS];
    float natural[ROWS];
};

// A run: rows [begin, end) of the block, all live and of one table; the positions that they see.
struct run_of
{
    uint32_t begin, end, first, last;
};

// The first row at or after `from` whose bit is set in bits_of(word); ROWS: none.
template <class F> static __device__ uint32_t next_row(uint32_t from, F bits_of)
{
    for (uint32_t w = from / 32; w < ROWS / 32; w++) {
        uint32_t bits = bits_of(w);
        if (w == from / 32) bits &= ~0u << from % 32;
        if (bits != 0) return w * 32 + __ffs(bits) - 1;
    }
    return ROWS;
}

// The run at or after row `from`; false: none. By a whole warp.
static __device__ bool next_run(const prompt_state &st, uint32_t from, run_of *run)
{
    uint32_t begin = next_row(from, [&](uint32_t w) { return st.lives[w]; }), end = ROWS;
    if (begin == ROWS) return false;
    if (begin + 1 < ROWS)
        end = next_row(begin + 1, [&](uint32_t w) { return st.begins[w] | ~st.lives[w]; });
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t t = begin + threadIdx.x % 32; t < end; t += 32) {
        first = min(first, st.first[t]);
        last = max(last, st.last[t]);
    }
    *run = {begin, end, __reduce_min_sync(~0u, first), __reduce_max_sync(~0u, last)};
    return true;
}

// Where runs begin and what rows see, by the threads of one warpgroup.
static __device__ void look_at_rows(const prompt_attention_args &a, prompt_state &st, uint32_t row0)
{
    uint32_t t = threadIdx.x % 128, r = row0 + t;
    bool live = r < a.n_rows && a.kv.live[r] != 0;
    bool begins = live && (t == 0 || a.kv.live[r - 1] == 0 || a.kv.table[r - 1] != a.kv.table[r]);
    uint32_t p = live ? a.kv.position[r] : 0;
    st.first[t] = a.window != 0 && p >= a.window ? p + 1 - a.window : 0;
    st.last[t] = p;
    uint32_t live_bits = __ballot_sync(~0u, live), begin_bits = __ballot_sync(~0u, begins);
    if (t % 32 == 0) {
        st.lives[t / 32] = live_bits;
        st.begins[t / 32] = begin_bits;
    }
}

// By one warp, whose first thread fetches. TOGETHER: blocks of the cluster, 1 or 2.
template <uint32_t HEAD, uint32_t TOGETHER>
static __device__ void fetch_cells(const prompt_attention_args &a, prompt_state &st, char *slots,
                                   uint32_t row0, uint32_t kv_head)
{
    using ring = ring_of<HEAD>;
    uint32_t rank = TOGETHER == 2 ? cluster_rank() : 0;
    ring_place at = {0, 1};
    run_of run;
    for (uint32_t from = 0; next_run(st, from, &run); from = run.end) {
        if (threadIdx.x != 0) continue;
        const uint32_t *table = a.kv.tables + a.kv.table[row0 + run.begin];
        for (uint32_t cell = run.first / CORE_CELL; cell <= run.last / CORE_CELL; cell++) {
            uint32_t row[BLOCKS];
#pragma unroll
            for (uint32_t b = 0; b < BLOCKS; b++) {
                uint32_t p = cell * CORE_CELL + b * CORE_BLOCK;
                bool seen = p + CORE_BLOCK > run.first && p <= run.last;
                row[b] = seen ? (table[p / CORE_BLOCK] * a.kv.n_kv_heads + kv_head) * CORE_BLOCK
                              : OUTSIDE;
            }
            for (uint32_t i = 0; i < 2 * ring::parts; i++) {
                bool of_keys = i < ring::parts;
                uint32_t part = of_keys ? i : i - ring::parts;
                char *to = slots + at.slot * ring::bytes;
                uint64_t *full = st.full + at.slot;
                barrier_wait(st.empty + at.slot, at.parity);
                barrier_expect(full, ring::bytes);
#pragma unroll
                for (uint32_t box = 0; box < BLOCKS; box++) {
                    // Keys: blocks of the part's values. Values: the part's blocks, 64 values each.
                    constexpr uint32_t part_blocks = BLOCKS / ring::parts;
                    uint32_t column = of_keys ? part : box / part_blocks;
                    uint32_t block = of_keys ? box : part * part_blocks + box % part_blocks;
                    uint32_t from = row[0];
#pragma unroll
                    for (uint32_t b = 1; b < BLOCKS; b++)
                        from = block == b ? row[b] : from;
                    const CUtensorMap *map = of_keys ? &a.k : &a.v;
                    char *at_box = to + box * ring::box_bytes;
                    if (TOGETHER == 1)
                        fetch_box(at_box, map, column * 64, from, full);
                    else if (box % 2 == rank)
                        fetch_box_to(at_box, map, column * 64, from, full, 3);
                }
                at.next(ring::slots);
            }
        }
    }
}

// The warp's 16 rows of queries, turned, to shared memory as core matrices.
template <uint32_t HEAD>
static __device__ void put_queries(const prompt_attention_args &a, prompt_state &st, char *qs,
                                   uint32_t row0, uint32_t warp_row, uint32_t head)
{
    constexpr uint32_t EACH = HEAD / 32;
    uint32_t lane = threadIdx.x % 32, d = lane * EACH;
#pragma unroll 8
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t t = warp_row + i, r = row0 + t, largest = 0;
        floats<EACH> v = {};
        if (r < a.n_rows)
            v = turned<EACH>(a.turn, r, a.x + ((uint64_t)r * a.n_heads + head) * HEAD, d);
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++)
            largest = max(largest, magnitude_bits(v.value[j]));
        int exponent = cuda_scale_exponent(__reduce_max_sync(~0u, largest));
        if (lane == 0) st.natural[t] = core_scale(a.scale, exponent);
        char *to = qs + t / 8 * (HEAD / 8 * 128) + d / 8 * 128 + t % 8 * 16 + d % 8 * 2;
#pragma unroll
        for (uint32_t j = 0; j < EACH; j += 2)
            *(uint32_t *)(to + j * 2) = scaled_pair(v.value[j], v.value[j + 1], pow2(exponent));
    }
}

// The warp's queries as first operands.
template <uint32_t HEAD>
static __device__ __forceinline__ void take_queries(uint32_t (&q)[HEAD / 4], const char *qs,
                                                    uint32_t warp_row)
{
    uint32_t lane = threadIdx.x % 32;
    const char *from = qs + (warp_row / 8 + lane / 8 % 2) * (HEAD / 8 * 128) + lane / 16 * 128 +
                       lane % 8 * 16;
#pragma unroll
    for (uint32_t t = 0; t < HEAD / 16; t++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(q[t * 4]), "=r"(q[t * 4 + 1]), "=r"(q[t * 4 + 2]), "=r"(q[t * 4 + 3])
                     : "r"(shared_address(from + t * 256))
                     : "memory");
}

// What the thread's two rows have met; what they see and their scales are in shared memory, and what
// they have summed: [HEAD / 8][128 threads] of four, as the tensor core deals them out.
struct row_state
{
    float m[2], l[2];
    bool any[2];
};

// Positions that row t of the block sees as part of the run: first > last, none.
static __device__ __forceinline__ uint2 seen_by(const prompt_state &st, const run_of &run, uint32_t t)
{
    bool in = t >= run.begin && t < run.end;
    return in ? make_uint2(st.first[t], st.last[t]) : make_uint2(UINT32_MAX, 0);
}

// s to weights: e as first operands for the values; the cell's m and l. From the last step to the
// first: e then fits into the registers of what is done, above those that the values' sums take.
static __device__ __forceinline__ void weigh(const prompt_state &st, const run_of &run, uint32_t t0,
                                             float (&s)[128], uint32_t (&e)[64], float (&m)[2],
                                             float (&l)[2], uint32_t cell, bool whole)
{
    uint32_t key = cell * CORE_CELL + threadIdx.x % 4 * 2;
    float scale2[2], offset[2], sum[2][5];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float largest[4], natural = st.natural[t0 + h * 8];
        if (!whole) {
            uint2 seen = seen_by(st, run, t0 + h * 8);
#pragma unroll
            for (uint32_t i = 0; i < 64; i++) {
                uint32_t p = key + i / 2 * 8 + i % 2;
                float &x = s[i / 2 * 4 + h * 2 + i % 2];
                if (p < seen.x || p > seen.y) x = -INFINITY;
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 64; i++) {
            float x = s[i / 2 * 4 + h * 2 + i % 2];
            largest[i % 4] = i < 4 ? x : fmaxf(largest[i % 4], x);
        }
        float all = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
        all = fmaxf(all, __shfl_xor_sync(~0u, all, 1));
        all = fmaxf(all, __shfl_xor_sync(~0u, all, 2));
        scale2[h] = core_scale2(natural);
        offset[h] = core_offset(all, scale2[h]);
        m[h] = __fmul_rn(all, natural);
    }
#pragma unroll
    for (uint32_t i16 = 0; i16 < 16; i16++) {
        const uint32_t t = 15 - i16;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float x[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                x[i] = core_exp2(
                    __fmaf_rn(s[t * 8 + i / 2 * 4 + h * 2 + i % 2], scale2[h], offset[h]));
            e[t * 4 + h] = core_pair(x[0], x[1]);
            e[t * 4 + 2 + h] = core_pair(x[2], x[3]);
            float part = __fadd_rn(__fadd_rn(__fadd_rn(x[0], x[1]), x[2]), x[3]);
            uint32_t level = 0;
#pragma unroll
            for (; level < 4 && (i16 >> level & 1) != 0; level++) // the tree, as far as it is complete
                part = __fadd_rn(part, sum[h][level]);
            sum[h][level] = part;
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        l[h] = __fadd_rn(sum[h][4], __shfl_xor_sync(~0u, sum[h][4], 1));
        l[h] = __fadd_rn(l[h], __shfl_xor_sync(~0u, l[h], 2));
    }
}

// A cell, c, joins those before it, o.
template <int N>
static __device__ __forceinline__ void join(const prompt_state &st, const run_of &run, uint32_t t0,
                                            float4 *o, const float (&c)[N], row_state &row,
                                            const float (&m)[2], const float (&l)[2], uint32_t cell)
{
    bool in[2];
    float wa[2], wb[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint2 seen = seen_by(st, run, t0 + h * 8);
        in[h] = seen.x <= seen.y && seen.y / CORE_CELL >= cell && seen.x / CORE_CELL <= cell;
        float both = fmaxf(row.m[h], m[h]); // without a branch: four exponents together
        wa[h] = exp_f32(__fsub_rn(row.m[h], both));
        wb[h] = exp_f32(__fsub_rn(m[h], both));
        float sum = __fmaf_rn(l[h], wb[h], __fmul_rn(row.l[h], wa[h]));
        if (in[h]) {
            row.l[h] = row.any[h] ? sum : l[h];
            row.m[h] = row.any[h] ? both : m[h];
        }
    }
    if (__all_sync(~0u, in[0] && in[1] && row.any[0] && row.any[1])) { // as below; most of all
#pragma unroll
        for (uint32_t i = 0; i < N / 4; i++) {
            float4 x = o[i * 128];
            x.x = __fmaf_rn(c[i * 4], wb[0], __fmul_rn(x.x, wa[0]));
            x.y = __fmaf_rn(c[i * 4 + 1], wb[0], __fmul_rn(x.y, wa[0]));
            x.z = __fmaf_rn(c[i * 4 + 2], wb[1], __fmul_rn(x.z, wa[1]));
            x.w = __fmaf_rn(c[i * 4 + 3], wb[1], __fmul_rn(x.w, wa[1]));
            o[i * 128] = x;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < N / 4; i++) {
        float4 x = o[i * 128];
        if (in[0]) {
            x.x = row.any[0] ? __fmaf_rn(c[i * 4], wb[0], __fmul_rn(x.x, wa[0])) : c[i * 4];
            x.y = row.any[0] ? __fmaf_rn(c[i * 4 + 1], wb[0], __fmul_rn(x.y, wa[0])) : c[i * 4 + 1];
        }
        if (in[1]) {
            x.z = row.any[1] ? __fmaf_rn(c[i * 4 + 2], wb[1], __fmul_rn(x.z, wa[1])) : c[i * 4 + 2];
            x.w = row.any[1] ? __fmaf_rn(c[i * 4 + 3], wb[1], __fmul_rn(x.w, wa[1])) : c[i * 4 + 3];
        }
        o[i * 128] = x;
    }
    row.any[0] |= in[0];
    row.any[1] |= in[1];
}

// The thread's two rows from what they have summed. False, for the whole warp: not all of it can be divided
// like that.
template <uint32_t HEAD>
static __device__ __forceinline__ bool put_rows(const row_state &row, const float4 *o, float *to,
                                                uint32_t n_heads)
{
    float *to8 = to + (uint64_t)8 * n_heads * HEAD;
    float r[2] = {near_reciprocal(row.l[0]), near_reciprocal(row.l[1])};
    bool plain = divides(row.l[0]) && divides(row.l[1]);
#pragma unroll
    for (uint32_t i = 0; i < HEAD / 8; i++) {
        float4 x = o[i * 128];
        plain &= may_be_divided(x.x) && may_be_divided(x.y);
        plain &= may_be_divided(x.z) && may_be_divided(x.w);
        if (row.any[0])
            *(float2 *)(to + i * 8) =
                make_float2(quotient(x.x, row.l[0], r[0]), quotient(x.y, row.l[0], r[0]));
        if (row.any[1])
            *(float2 *)(to8 + i * 8) =
                make_float2(quotient(x.z, row.l[1], r[1]), quotient(x.w, row.l[1], r[1]));
    }
    return __all_sync(~0u, plain);
}

template <uint32_t HEAD>
static __device__ __forceinline__ void put_any_rows(const row_state &row, const float4 *o, float *to,
                                                    uint32_t n_heads)
{
    float *to8 = to + (uint64_t)8 * n_heads * HEAD;
#pragma unroll 1
    for (uint32_t i = 0; i < HEAD / 8; i++) {
        float4 x = o[i * 128];
        if (row.any[0])
            *(float2 *)(to + i * 8) =
                make_float2(__fdiv_rn(x.x, row.l[0]), __fdiv_rn(x.y, row.l[0]));
        if (row.any[1])
            *(float2 *)(to8 + i * 8) =
                make_float2(__fdiv_rn(x.z, row.l[1]), __fdiv_rn(x.w, row.l[1]));
    }
}

// A slot is free, for all that fill it.
template <uint32_t TOGETHER> static __device__ __forceinline__ void release(uint64_t *empty)
{
    if (TOGETHER == 1) {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty);
    } else if (threadIdx.x % 32 < 2) {
        barrier_arrive_at(empty, threadIdx.x % 32);
    }
}

// Values of the cell's keys past the last that is seen may be anything; they become zero. The cell's
// parts begin at slot `at`.
template <uint32_t HEAD>
static __device__ void clear_unseen(prompt_state &st, char *slots, ring_place at, uint32_t n_seen)
{
    using ring = ring_of<HEAD>;
    for (uint32_t part = 0; part < ring::parts; part++) {
        char *values = slots + at.slot * ring::bytes;
        barrier_wait(st.full + at.slot, at.parity);
        for (uint32_t i = threadIdx.x - 128; i < ring::bytes / 16; i += 256) {
            uint32_t key = part * ring::part_keys + i / 8 % ring::part_keys;
            if (key >= n_seen) *(uint4 *)(values + i * 16) = make_uint4(0, 0, 0, 0);
        }
        at.next(ring::slots);
    }
    written_for_wgmma();
    threads_meet(BOTH, 256);
}

// The slots of a product's parts, from the first on, as its groups of steps end.
template <uint32_t PARTS, uint32_t TOGETHER>
static __device__ __forceinline__ void release_parts(prompt_state &st, ring_place first, uint32_t slots)
{
    if (PARTS == 2) {
        wgmma_wait<1>();
        release<TOGETHER>(st.empty + first.slot);
        first.next(slots);
    }
    wgmma_wait<0>();
    release<TOGETHER>(st.empty + first.slot);
}

template <uint32_t HEAD, uint32_t TOGETHER>
static __device__ void attend(const prompt_attention_args &a, prompt_state &st, char *slots,
                              char *sums, uint32_t row0, uint32_t head)
{
    using ring = ring_of<HEAD>;
    uint32_t group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    uint32_t warp_row = group * 64 + threadIdx.x / 32 % 4 * 16, t0 = warp_row + lane / 4;
    float4 *o = (float4 *)sums + group * (HEAD / 8 * 128) + threadIdx.x % 128;
    uint32_t q[HEAD / 4];
    ring_place at = {0, 0};
    run_of run;
    __syncwarp(); // the warp's queries are there
    take_queries<HEAD>(q, sums, warp_row);
    threads_meet(READY, 384); // sums take their place
    if (group == 1) threads_arrive(TURN, 256); // the first turn is group 0's
    for (uint32_t from = 0; next_run(st, from, &run); from = run.end) {
        uint2 seen[2] = {seen_by(st, run, t0), seen_by(st, run, t0 + 8)};
        // What every row of the warp sees.
        uint32_t all_first = __reduce_max_sync(~0u, max(seen[0].x, seen[1].x));
        uint32_t all_last = __reduce_min_sync(~0u, min(seen[0].y, seen[1].y));
        row_state row = {};
        for (uint32_t cell = run.first / CORE_CELL; cell <= run.last / CORE_CELL; cell++) {
            float s[128], m[2], l[2];
            uint32_t e[64];
            ring_place first = at;
            barrier_wait(st.full + at.slot, at.parity);
            threads_meet(TURN + group, 256);
            wgmma_begin();
#pragma unroll
            for (uint32_t part = 0; part < ring::parts; part++) {
                const char *keys = slots + at.slot * ring::bytes;
                if (part > 0) {
                    barrier_wait(st.full + at.slot, at.parity);
                    wgmma_begin();
                }
#pragma unroll
                for (uint32_t t = 0; t < 4; t++) {
                    uint32_t *qt = q + (part * 4 + t) * 4;
                    uint64_t b = swizzled_at(keys + t * 32, 16);
                    if (part == 0 && t == 0)
                        wgmma_rows_begin(s, qt[0], qt[1], qt[2], qt[3], b);
                    else
                        wgmma_rows_from(s, qt[0], qt[1], qt[2], qt[3], b);
                }
                wgmma_commit();
                at.next(ring::slots);
            }
            threads_arrive(TURN + 1 - group, 256);
            release_parts<ring::parts, TOGETHER>(st, first, ring::slots);
            wgmma_settle(s);

            bool whole = cell * CORE_CELL >= all_first && cell * CORE_CELL + 255 <= all_last;
            weigh(st, run, t0, s, e, m, l, cell, whole);

            float c[HEAD / 2];
#pragma unroll
            for (uint32_t i = 0; i < HEAD / 2; i++)
                c[i] = 0;
            first = at;
            if (run.last < cell * CORE_CELL + 255)
                clear_unseen<HEAD>(st, slots, at, run.last + 1 - cell * CORE_CELL);
            barrier_wait(st.full + at.slot, at.parity);
            threads_meet(TURN + group, 256);
            wgmma_settle(c);
            wgmma_begin();
#pragma unroll
            for (uint32_t part = 0; part < ring::parts; part++) {
                const char *values = slots + at.slot * ring::bytes;
                if (part > 0) {
                    barrier_wait(st.full + at.slot, at.parity);
                    wgmma_begin();
                }
#pragma unroll
                for (uint32_t t = 0; t < 16 / ring::parts; t++) {
                    uint32_t *et = e + (part * (16 / ring::parts) + t) * 4;
                    wgmma_from(c, et[0], et[1], et[2], et[3],
                               swizzled_at(values + t * 16 * 128, ring::part_keys * 128));
                }
                wgmma_commit();
                at.next(ring::slots);
            }
            threads_arrive(TURN + 1 - group, 256);
            release_parts<ring::parts, TOGETHER>(st, first, ring::slots);
            wgmma_settle(c);
            join(st, run, t0, o, c, row, m, l, cell);
        }
        float *to = a.out + ((uint64_t)(row0 + t0) * a.n_heads + head) * HEAD + lane % 4 * 2;
        if (put_rows<HEAD>(row, o, to, a.n_heads)) continue;
        if (sums_spoilt<HEAD>(row.any, row.l, o)) {
            const float natural[2] = {st.natural[t0], st.natural[t0 + 8]};
            sum_again<HEAD>(a.kv, a.kv.tables + a.kv.table[row0 + run.begin],
                            head / (a.n_heads / a.kv.n_kv_heads), make_uint2(run.first, run.last), seen,
                            natural, q, o);
        }
        put_any_rows<HEAD>(row, o, to, a.n_heads);
    }
}

template <uint32_t HEAD, uint32_t TOGETHER>
static __global__ void __launch_bounds__(384, 1)
    attention_prompt(const __grid_constant__ prompt_attention_args a)
{
    using ring = ring_of<HEAD>;
    extern __shared__ char shared[];
    __shared__ prompt_state st;
    char *slots = shared + (-shared_address(shared) & 1023);
    char *sums = slots + ring::slots * ring::bytes; // at first, the queries
    uint32_t head = blockIdx.x, kv_head = head / (a.n_heads / a.kv.n_kv_heads);
    uint32_t row0 = (gridDim.y - 1 - blockIdx.y) * ROWS; // the last rows see most: they begin first
    uint32_t group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ring::slots; i++) {
            barrier_init_for(st.full + i, 1);
            barrier_init_for(st.empty + i, 8 * TOGETHER); // warps that multiply
        }
        barrier_init_done();
    }
    if (TOGETHER == 2) cluster_meet();
    kernel_begin();
    if (group == 0) {
        look_at_rows(a, st, row0);
        threads_arrive(READY, 384);
        threads_meet(LOOKED, 128);
        uint32_t r = row0 + threadIdx.x;
        if (r < a.n_rows && a.kv.live[r] == 0) { // unused, but never left over
            for (uint32_t d = 0; d < HEAD; d++)
                a.out[((uint64_t)r * a.n_heads + head) * HEAD + d] = 0;
        }
        registers_less<24>();
        if (threadIdx.x < 32) fetch_cells<HEAD, TOGETHER>(a, st, slots, row0, kv_head);
    } else {
        put_queries<HEAD>(a, st, sums, row0, (threadIdx.x / 32 - 4) * 16, head);
        registers_more<240>();
        attend<HEAD, TOGETHER>(a, st, slots, sums, row0, head);
    }
    if (TOGETHER == 1) return;
    __syncwarp();
    cluster_meet(); // the other block may still send here
}

bool cuda_attention_prompt_takes(uint32_t n_head)
{
    return n_head == 64 || n_head == 128;
}

template <uint32_t HEAD> static cudaError_t allow()
{
    cudaError_t e = cudaFuncSetAttribute(attention_prompt<HEAD, 1>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         ring_of<HEAD>::shared_bytes);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(attention_prompt<HEAD, 2>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                ring_of<HEAD>::shared_bytes);
}

cudaError_t cuda_attention_prompt_setup(void)
{
    cudaError_t e = allow<64>();
    return e == cudaSuccess ? allow<128>() : e;
}

static cudaError_t map_pool(const cuda_prompt *p, CUtensorMap *map, void *pool, uint32_t n_head)
{
    cuuint64_t size[2] = {n_head, OUTSIDE}, stride[1] = {n_head * 2ull};
    cuuint32_t box[2] = {64, BOX_KEYS}, step[2] = {1, 1};
    CUresult r = ((decltype(&cuTensorMapEncodeTiled))p->encode_tiled)(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, pool, size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <uint32_t HEAD>
static cudaError_t launch(cudaStream_t s, const prompt_attention_args &a)
{
    dim3 grid(a.n_heads, (a.n_rows + ROWS - 1) / ROWS);
    if (a.n_heads / a.kv.n_kv_heads % 2 == 0)
        return start_pairs(attention_prompt<HEAD, 2>, grid, 384, ring_of<HEAD>::shared_bytes, s, a);
    return start(attention_prompt<HEAD, 1>, grid, 384, ring_of<HEAD>::shared_bytes, s, a);
}

cudaError_t cuda_launch_attention_prompt(cudaStream_t s, const cuda_prompt *p, float *out,
                                         const float *x, const cuda_kv *kv, const cuda_turn *turn,
                                         uint32_t n_heads, float scale, uint32_t window,
                                         uint32_t n_rows)
{
    prompt_attention_args a = {};
    a.out = out;
    a.x = x;
    a.turn = *turn;
    a.kv = *kv;
    a.n_heads = n_heads;
    a.window = window;
    a.n_rows = n_rows;
    a.scale = scale;
    cudaError_t e = map_pool(p, &a.k, kv->k, kv->n_head);
    if (e == cudaSuccess) e = map_pool(p, &a.v, kv->v, kv->n_head);
    if (e != cudaSuccess) return e;
    return kv->n_head == 64 ? launch<64>(s, a) : launch<128>(s, a);
}
