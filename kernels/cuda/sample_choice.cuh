// sample_choice.cuh - the first of a row's candidates, in the order of common/sampler.h, whose running
// sum has come far enough. A cluster of blocks has the row; a warp has a range of ids of its own, in
// their order. All sums are sums of integers, so that they are what the host's are, however they are
// taken.
//
// Few candidates are sorted. A histogram of x = (logit - max) / temperature in equal steps, which spreads
// them well, finds the step; those of the step are sorted, in every block alike. Where they are too many
// (equal logits, a high temperature) histograms of the four bytes of the logit's place in descending order
// find it, and at last the count of equal logits by id.
#ifndef KERNELS_CUDA_SAMPLE_CHOICE_CUH
#define KERNELS_CUDA_SAMPLE_CHOICE_CUH

#include "kernels/cuda/common.cuh"

#include <cooperative_groups.h>
#include <float.h>

namespace cg = cooperative_groups;

static constexpr uint32_t BLOCKS = 8, THREADS = 1024, WARPS = THREADS / 32;
static constexpr uint32_t BINS = THREADS; // of a histogram: one for each thread
// A bin's sum is kept in limbs, which the hardware adds to at once: 2^11 times a block's ids fit.
static constexpr uint32_t LIMBS = 4, LIMB_BITS = 11;
static_assert((SAMPLER_VOCAB_MAX + BLOCKS - 1ull) / BLOCKS << LIMB_BITS <= 1ull << 31, "limbs fit");

static constexpr double WEIGHT_ONE = 4398046511104.0; // 2^42
static constexpr uint32_t STEP_SHIFT = 48;            // of a weight's word; the weight is below
static constexpr uint64_t WEIGHT_MASK = (1ull << STEP_SHIFT) - 1;
static constexpr double STEPS_PER_NAT = (BINS - 1) / 30.0; // the last bin: beyond 30 nats
static constexpr uint32_t NEAR_MAX = 2 * THREADS;     // of one step, that are sorted
static constexpr uint64_t ALL = ~0ull;
static constexpr uint32_t AT_ONCE = 8;                // loads on their way

struct pair {
    uint64_t a, b;
};

struct candidate {
    uint64_t place, value;
};

struct block_state {
    sample_row row;
    uint32_t limbs[LIMBS][BINS];
    uint64_t histogram[2][BINS]; // the block's; the cluster reads it
    candidate mine[NEAR_MAX];    // the block's of a step; the cluster reads them
    candidate near[NEAR_MAX];    // the cluster's
    pair warp[WARPS], all[2];    // of a reduction; the cluster reads the latter
    uint32_t warp_count[WARPS];
    uint32_t n_mine;
    uint32_t chosen;             // bin, or id
    uint64_t before;             // the running sum before it
    uint64_t place;              // of the candidate that was found
};

// What has to be reached: a sum of at least n, or whose double is at least wanted.
struct reach {
    bool as_double;
    uint64_t n;
    double wanted;
    __device__ bool operator()(uint64_t sum) const
    {
        return as_double ? __ull2double_rn(sum) >= wanted : sum >= n;
    }
};

struct cluster_state {
    cg::cluster_group cluster;
    block_state &b;
    const float *logits; // after penalties
    uint64_t *words;     // steps and weights
    uint32_t begin, end; // ids of the warp
    uint32_t turn;
    uint64_t limit;      // candidates up to this place are left
    double least;        // of a weight that is left
};

// Where the candidate stands: ascending places are descending logits, then ascending ids.
static __device__ __forceinline__ uint32_t key_of(float l)
{
    uint32_t bits = l == 0 ? 0 : __float_as_uint(l);
    return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static __device__ __forceinline__ uint64_t place_of(float l, uint32_t id)
{
    return (uint64_t)key_of(l) << 32 | id;
}

// fm_exp (common/fmath.c) for -30 <= x <= 0, where its last two factors are exact.
static __device__ double exp_f64(double x)
{
    constexpr double magic = 0x1.8p+52;
    constexpr double c[] = {1.0,           1.0,            1.0 / 2,         1.0 / 6,
                            1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
                            1.0 / 40320,   1.0 / 362880,   1.0 / 3628800,   1.0 / 39916800,
                            1.0 / 479001600, 1.0 / 6227020800};
    double n = __dsub_rn(__dadd_rn(__dmul_rn(x, 0x1.71547652b82fep+0), magic), magic);
    double r = __fma_rn(-n, 0x1.62e42fefap-1, x);
    r = __fma_rn(-n, 0x1.cf79abc9e3b3ap-40, r);
    double p = c[13];
#pragma unroll
    for (int i = 12; i >= 0; i--)
        p = __fma_rn(p, r, c[i]);
    return __dmul_rn(p, __longlong_as_double((long long)(n + 1023.0) << 52));
}

static __device__ uint64_t word_of(double l, double max, double temperature)
{
    double x = __ddiv_rn(__dsub_rn(l, max), temperature);
    if (x < -30.0) return (uint64_t)(BINS - 1) << STEP_SHIFT;
    uint32_t step = min((uint32_t)__dmul_rn(-x, STEPS_PER_NAT), BINS - 2);
    return (uint64_t)step << STEP_SHIFT | __double2ull_rz(__dmul_rn(exp_f64(x), WEIGHT_ONE));
}

// f(id, word) for the thread's ids, ascending.
template <class F> static __device__ __forceinline__ void each_word(const cluster_state &c, F f)
{
    for (uint32_t first = c.begin + threadIdx.x % 32; first < c.end; first += 32 * AT_ONCE) {
        uint64_t word[AT_ONCE];
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            word[j] = first + 32 * j < c.end ? __ldcg(c.words + first + 32 * j) : 0;
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            if (first + 32 * j < c.end) f(first + 32 * j, word[j]);
    }
}

// The same of f(id, logit).
template <class F>
static __device__ __forceinline__ void each_logit(const cluster_state &c, const float *logits, F f)
{
    for (uint32_t first = c.begin + threadIdx.x % 32; first < c.end; first += 32 * AT_ONCE) {
        float l[AT_ONCE];
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            l[j] = first + 32 * j < c.end ? __ldcg(logits + first + 32 * j) : 0;
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            if (first + 32 * j < c.end) f(first + 32 * j, l[j]);
    }
}

// --- reductions; every thread has the result ---

template <class F> static __device__ __forceinline__ pair warp_reduce(pair v, F join)
{
    for (int half = 16; half >= 1; half /= 2)
        v = join(v, {__shfl_xor_sync(~0u, v.a, half), __shfl_xor_sync(~0u, v.b, half)});
    return v;
}

template <class F> static __device__ pair block_reduce(block_state &b, pair v, F join)
{
    v = warp_reduce(v, join);
    __syncthreads(); // the last one's readers are done
    if (threadIdx.x % 32 == 0) b.warp[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_reduce(b.warp[threadIdx.x % 32], join);
}

// join of a value with itself is that value: each block's stands in several lanes.
template <class F> static __device__ pair cluster_reduce(cluster_state &c, pair v, F join)
{
    v = block_reduce(c.b, v, join);
    if (threadIdx.x == 0) c.b.all[c.turn] = v;
    c.cluster.sync();
    v = *c.cluster.map_shared_rank(&c.b.all[c.turn], threadIdx.x % BLOCKS);
    c.turn ^= 1; // the other's readers have all been here
    return warp_reduce(v, join);
}

static __device__ uint64_t block_total(block_state &b, uint64_t v)
{
    return block_reduce(b, {v, 0}, [](pair x, pair y) { return pair{x.a + y.a, 0}; }).a;
}

// The sum over the block's threads up to this one.
static __device__ uint64_t running_sum(block_state &b, uint64_t v)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto scan = [lane](uint64_t sum) {
        for (uint32_t d = 1; d < 32; d *= 2) {
            uint64_t lower = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += lower;
        }
        return sum;
    };
    uint64_t sum = scan(v);
    __syncthreads();
    if (lane == 31) b.warp[warp].a = sum;
    __syncthreads();
    uint64_t warps = scan(b.warp[lane].a), in_front = __shfl_sync(~0u, warps, (warp + 31) % 32);
    return warp == 0 ? sum : sum + in_front;
}

// --- histograms ---

// What candidate id adds: a one, or its weight while it is left.
template <bool COUNTS>
static __device__ __forceinline__ uint64_t value_of(const cluster_state &c, uint64_t word,
                                                    uint32_t id)
{
    if (COUNTS) return 1;
    uint64_t w = word & WEIGHT_MASK;
    if (__ull2double_rn(w) < c.least) return 0;
    return c.limit == ALL || place_of(__ldcg(c.logits + id), id) <= c.limit ? w : 0;
}

static __device__ __forceinline__ void add_limbs(block_state &b, uint32_t bin, uint64_t v)
{
#pragma unroll
    for (uint32_t i = 0; i < LIMBS; i++) {
        uint32_t part = (uint32_t)(v >> i * LIMB_BITS);
        if (i + 1 < LIMBS) part &= (1u << LIMB_BITS) - 1;
        if (part != 0) atomicAdd(&b.limbs[i][bin], part);
    }
}

static __device__ void clear_limbs(block_state &b)
{
    for (uint32_t i = 0; i < LIMBS; i++)
        b.limbs[i][threadIdx.x] = 0;
    __syncthreads();
}

// The cluster's sum of the thread's bin.
static __device__ uint64_t merge_limbs(cluster_state &c)
{
    block_state &b = c.b;
    uint32_t t = threadIdx.x;
    uint64_t v = 0;
    __syncthreads();
    for (uint32_t i = 0; i < LIMBS; i++)
        v += (uint64_t)b.limbs[i][t] << i * LIMB_BITS;
    b.histogram[c.turn][t] = v;
    c.cluster.sync();
    v = 0;
#pragma unroll
    for (uint32_t r = 0; r < BLOCKS; r++)
        v += *c.cluster.map_shared_rank(&b.histogram[c.turn][t], r);
    c.turn ^= 1;
    return v;
}

// Of the step's values, by step: the cluster's sum of the thread's bin.
template <bool COUNTS> static __device__ uint64_t by_steps(cluster_state &c)
{
    clear_limbs(c.b);
    each_word(c, [&](uint32_t id, uint64_t word) {
        add_limbs(c.b, (uint32_t)(word >> STEP_SHIFT), value_of<COUNTS>(c, word, id));
    });
    return merge_limbs(c);
}

// The first bin, of those with something in them, at whose end the running sum reaches: b.chosen, and
// b.before. `before` has not reached.
static __device__ void choose_bin(block_state &b, uint64_t before, uint64_t bin,
                                  const reach &far_enough)
{
    uint64_t sum = before + running_sum(b, bin);
    if (bin != 0 && far_enough(sum) && (sum == bin || !far_enough(sum - bin))) {
        b.chosen = threadIdx.x;
        b.before = sum - bin;
    }
    __syncthreads();
}

// --- the candidates of one step ---

// Those of the step that have a value to b.mine, and how many the block has. More than fit: counted.
template <bool COUNTS> static __device__ void collect(cluster_state &c, uint32_t step)
{
    block_state &b = c.b;
    if (threadIdx.x == 0) b.n_mine = 0;
    __syncthreads();
    each_word(c, [&](uint32_t id, uint64_t word) {
        if (word >> STEP_SHIFT != step) return;
        uint64_t v = value_of<COUNTS>(c, word, id);
        if (v == 0) return;
        uint32_t i = atomicAdd(&b.n_mine, 1u);
        if (i < NEAR_MAX) b.mine[i] = {place_of(__ldcg(c.logits + id), id), v};
    });
}

// All blocks' to b.near, filled up to n2, a power of two; returns n2, or 0: they are too many.
static __device__ uint32_t bring_together(cluster_state &c)
{
    block_state &b = c.b;
    uint32_t end[BLOCKS], n = 0, n2 = 64;
    c.cluster.sync();
#pragma unroll
    for (uint32_t r = 0; r < BLOCKS; r++)
        end[r] = *c.cluster.map_shared_rank(&b.n_mine, r);
#pragma unroll
    for (uint32_t r = 0; r < BLOCKS; r++)
        end[r] = n += end[r];
    if (n > NEAR_MAX) return 0;
    while (n2 < n)
        n2 *= 2;
    for (uint32_t i = threadIdx.x; i < n2; i += THREADS) {
        uint32_t r = 0, begin = 0;
#pragma unroll
        for (uint32_t k = 0; k + 1 < BLOCKS; k++) {
            if (i < end[k]) continue;
            r = k + 1;
            begin = end[k];
        }
        candidate none = {ALL, 0};
        b.near[i] = i < n ? *c.cluster.map_shared_rank(&b.mine[i - begin], r) : none;
    }
    return n2;
}

// b.near[0..n2) by place: a bitonic network; a warp's pairs of a short distance are its own.
static __device__ void sort_near(block_state &b, uint32_t n2)
{
    __syncthreads();
    for (uint32_t size = 2; size <= n2; size *= 2) {
        for (uint32_t d = size / 2; d >= 1; d /= 2) {
            uint32_t t = threadIdx.x, i = 2 * t - (t & (d - 1));
            if (t < n2 / 2) {
                candidate x = b.near[i], y = b.near[i + d];
                bool ascends = (i & size) == 0;
                if (x.place > y.place == ascends) {
                    b.near[i] = y;
                    b.near[i + d] = x;
                }
            }
            bool next_is_own = d > 1 ? d <= 64 : size <= 32;
            if (next_is_own && d <= 32)
                __syncwarp();
            else
                __syncthreads();
        }
    }
    __syncthreads();
}

static __device__ void choose_near(block_state &b, uint32_t n2, uint64_t before,
                                   const reach &far_enough)
{
    uint32_t t = threadIdx.x;
    bool there = t < n2 / 2;
    candidate x = {ALL, 0}, y = {ALL, 0};
    if (there) {
        x = b.near[2 * t];
        y = b.near[2 * t + 1];
    }
    uint64_t end = before + running_sum(b, x.value + y.value), middle = end - y.value;
    uint64_t begin = middle - x.value;
    if (there && x.value != 0 && far_enough(end) && (begin == 0 || !far_enough(begin)))
        b.place = far_enough(middle) ? x.place : y.place;
    __syncthreads();
}

// --- too many of them: by the bytes of the logit's place, then by id ---

// Among the candidates of one step and logit. Their values are all the same.
template <bool COUNTS>
static __device__ uint32_t choose_id(cluster_state &c, uint32_t step, uint32_t key, uint64_t before,
                                     const reach &far_enough)
{
    block_state &b = c.b;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = 0, in_front = 0;
    auto value = [&](uint32_t id) -> uint64_t {
        if (id >= c.end) return 0;
        uint64_t word = __ldcg(c.words + id);
        bool one = word >> STEP_SHIFT == step && key_of(__ldcg(c.logits + id)) == key;
        return one ? value_of<COUNTS>(c, word, id) : 0;
    };
    for (uint32_t id = c.begin; id < c.end; id += 32)
        n += __popc(__ballot_sync(~0u, value(id + lane) != 0));
    if (lane == 0) b.warp_count[warp] = n;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t all = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            all += b.warp_count[w];
        b.all[c.turn].a = all;
    }
    c.cluster.sync();
    for (uint32_t r = 0; r < c.cluster.block_rank(); r++)
        in_front += (uint32_t)c.cluster.map_shared_rank(&b.all[c.turn], r)->a;
    for (uint32_t w = 0; w < warp; w++)
        in_front += b.warp_count[w];
    c.turn ^= 1;
    for (uint32_t id = c.begin; n > 0 && id < c.end; id += 32) {
        uint64_t v = value(id + lane);
        uint32_t those = __ballot_sync(~0u, v != 0);
        uint64_t rank = in_front + __popc(those & ((1u << lane) - 1)); // of them before this one
        if (v != 0 && far_enough(before + (rank + 1) * v) &&
            (rank == 0 || !far_enough(before + rank * v)))
            for (uint32_t r = 0; r < BLOCKS; r++)
                *c.cluster.map_shared_rank(&b.chosen, r) = id + lane;
        in_front += __popc(those);
    }
    c.cluster.sync();
    uint32_t chosen = b.chosen;
    c.cluster.sync(); // nobody chooses anew before all have read
    return chosen;
}

template <bool COUNTS>
static __device__ uint64_t by_bytes(cluster_state &c, uint32_t step, uint64_t before,
                                    const reach &far_enough)
{
    uint32_t key = 0;
    for (uint32_t shift = 24; shift <= 24; shift -= 8) {
        clear_limbs(c.b);
        each_word(c, [&](uint32_t id, uint64_t word) {
            if (word >> STEP_SHIFT != step) return;
            uint32_t k = key_of(__ldcg(c.logits + id));
            if (shift < 24 && (k ^ key) >> (shift + 8) != 0) return;
            add_limbs(c.b, k >> shift & 255, value_of<COUNTS>(c, word, id));
        });
        choose_bin(c.b, before, merge_limbs(c), far_enough);
        before = c.b.before;
        key |= c.b.chosen << shift;
    }
    return (uint64_t)key << 32 | choose_id<COUNTS>(c, step, key, before, far_enough);
}

// The place of the first candidate whose running sum is far enough; there is one. bin: of by_steps.
template <bool COUNTS>
static __device__ uint64_t first_to_reach(cluster_state &c, uint64_t bin, const reach &far_enough)
{
    choose_bin(c.b, 0, bin, far_enough);
    uint32_t step = c.b.chosen;
    uint64_t before = c.b.before;
    collect<COUNTS>(c, step);
    uint32_t n2 = bring_together(c);
    if (n2 == 0) return by_bytes<COUNTS>(c, step, before, far_enough);
    sort_near(c.b, n2);
    choose_near(c.b, n2, before, far_enough);
    return c.b.place;
}

#endif
