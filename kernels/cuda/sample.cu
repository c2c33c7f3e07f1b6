// A token for each row of logits: the definition of common/sampler.h, its bits. A cluster of blocks has
// a row; a warp has a range of ids of its own, in their order. All sums are sums of integers, so that
// they are what the host's are, however they are taken.
//
// Nothing is sorted. What top-k, top-p and the draw ask for is one question: which candidate, in the
// order of the definition, is the first where the running sum (of ones, or of weights) has come far
// enough. It is answered by histograms of the candidates' places: first of x = (logit - max) /
// temperature in equal steps, which spreads them well, then, inside the step that is left, of the four
// bytes of the logit's place in descending order, then of the ids of equal logits.
#include "kernels/cuda/common.cuh"

#include <cooperative_groups.h>
#include <float.h>

namespace cg = cooperative_groups;

static constexpr uint32_t BLOCKS = 8, THREADS = 1024, WARPS = THREADS / 32, BINS = 256;
// A bin's sum is kept in limbs, which the hardware adds to at once, in a few copies, so that no limb
// overflows: 2^14 times the ids of a copy's warps.
static constexpr uint32_t LIMBS = 3, LIMB_BITS = 14, COPIES = 8;
static_assert((uint64_t)SAMPLER_VOCAB_MAX / BLOCKS / COPIES << LIMB_BITS <= 1ull << 31, "limbs fit");

static constexpr double WEIGHT_ONE = 4398046511104.0; // 2^42
static constexpr uint32_t STEP_SHIFT = 56;            // of a weight's word; the weight is below
static constexpr uint64_t WEIGHT_MASK = (1ull << STEP_SHIFT) - 1;
static constexpr double STEPS_PER_NAT = 8.5;          // 30 nats: the first 255 bins
static constexpr uint64_t ALL = ~0ull;

struct pair {
    uint64_t a, b;
};

struct block_state {
    sample_row row;
    uint32_t limbs[COPIES][LIMBS][BINS];
    uint64_t histogram[2][BINS]; // the block's; the cluster reads it
    uint64_t sum[BINS];          // the cluster's
    pair warp[WARPS], all[2];    // of a reduction; the cluster reads the latter
    uint32_t warp_count[WARPS];
    uint32_t chosen;             // bin, and then id
    uint64_t before;             // the running sum before it
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

// --- reductions over the cluster; every thread has the result ---

template <class F> static __device__ pair reduce(cluster_state &c, pair v, F join)
{
    block_state &b = c.b;
    for (int half = 16; half >= 1; half /= 2)
        v = join(v, {__shfl_xor_sync(~0u, v.a, half), __shfl_xor_sync(~0u, v.b, half)});
    if (threadIdx.x % 32 == 0) b.warp[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = b.warp[threadIdx.x];
        for (int half = 16; half >= 1; half /= 2)
            v = join(v, {__shfl_xor_sync(~0u, v.a, half), __shfl_xor_sync(~0u, v.b, half)});
        if (threadIdx.x == 0) b.all[c.turn] = v;
    }
    c.cluster.sync();
    v = *c.cluster.map_shared_rank(&b.all[c.turn], 0);
    for (uint32_t r = 1; r < BLOCKS; r++)
        v = join(v, *c.cluster.map_shared_rank(&b.all[c.turn], r));
    c.turn ^= 1; // the other's readers have all been here
    return v;
}

static __device__ uint64_t sum_over(cluster_state &c, uint64_t v)
{
    return reduce(c, {v, 0}, [](pair x, pair y) { return pair{x.a + y.a, 0}; }).a;
}

// --- the first candidate that reaches ---

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
    uint32_t(&limbs)[LIMBS][BINS] = b.limbs[threadIdx.x / 32 % COPIES];
#pragma unroll
    for (uint32_t i = 0; i < LIMBS; i++) {
        uint32_t part = (uint32_t)(v >> i * LIMB_BITS) & ((i + 1 < LIMBS ? 1u << LIMB_BITS : 0u) - 1);
        if (part != 0) atomicAdd(&limbs[i][bin], part);
    }
}

static __device__ void clear_limbs(block_state &b)
{
    uint32_t *all = &b.limbs[0][0][0];
    for (uint32_t i = threadIdx.x; i < COPIES * LIMBS * BINS; i += THREADS)
        all[i] = 0;
    __syncthreads();
}

// The cluster's histogram from the limbs, in b.sum.
static __device__ void merge_limbs(cluster_state &c)
{
    block_state &b = c.b;
    uint32_t t = threadIdx.x;
    __syncthreads();
    if (t < BINS) {
        uint64_t v = 0;
        for (uint32_t k = 0; k < COPIES; k++)
            for (uint32_t i = 0; i < LIMBS; i++)
                v += (uint64_t)b.limbs[k][i][t] << i * LIMB_BITS;
        b.histogram[c.turn][t] = v;
    }
    c.cluster.sync();
    if (t < BINS) {
        uint64_t v = 0;
        for (uint32_t r = 0; r < BLOCKS; r++)
            v += *c.cluster.map_shared_rank(&b.histogram[c.turn][t], r);
        b.sum[t] = v;
    }
    c.turn ^= 1;
    __syncthreads();
}

// The first bin at whose end the running sum reaches: b.chosen, and b.before.
static __device__ void choose_bin(block_state &b, uint64_t before, const reach &far_enough)
{
    constexpr uint32_t EACH = BINS / 32;
    uint32_t lane = threadIdx.x;
    if (lane < 32) {
        uint64_t mine = 0, running;
        for (uint32_t i = 0; i < EACH; i++)
            mine += b.sum[lane * EACH + i];
        running = mine;
        for (int d = 1; d < 32; d *= 2) {
            uint64_t lower = __shfl_up_sync(~0u, running, d);
            if (lane >= d) running += lower;
        }
        uint32_t there = __ballot_sync(~0u, far_enough(before + running));
        if (there != 0 && lane == __ffs(there) - 1) {
            uint64_t sum = before + running - mine;
            uint32_t bin = lane * EACH;
            while (!far_enough(sum + b.sum[bin]))
                sum += b.sum[bin++];
            b.chosen = bin;
            b.before = sum;
        }
    }
    __syncthreads();
}

// Among the candidates of one step and logit, by id. Their values are all the same.
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
        if (v != 0 && far_enough(before + (rank + 1) * v) && (rank == 0 || !far_enough(before + rank * v)))
            for (uint32_t r = 0; r < BLOCKS; r++)
                *c.cluster.map_shared_rank(&b.chosen, r) = id + lane;
        in_front += __popc(those);
    }
    c.cluster.sync();
    uint32_t chosen = b.chosen;
    c.cluster.sync(); // nobody chooses anew before all have read
    return chosen;
}

// The place of the first candidate whose running sum is far enough; there is one.
template <bool COUNTS>
static __device__ uint64_t first_to_reach(cluster_state &c, const reach &far_enough)
{
    uint32_t step = 0, key = 0;
    uint64_t before = 0;
    for (int digit = 0; digit < 5; digit++) {
        uint32_t shift = 32 - 8 * digit; // of the key's byte
        clear_limbs(c.b);
#pragma unroll 4
        for (uint32_t id = c.begin + threadIdx.x % 32; id < c.end; id += 32) {
            uint64_t word = __ldcg(c.words + id);
            uint32_t bin = (uint32_t)(word >> STEP_SHIFT);
            if (digit > 0) {
                if (bin != step) continue;
                uint32_t k = key_of(__ldcg(c.logits + id));
                if (digit > 1 && (k ^ key) >> (shift + 8) != 0) continue;
                bin = k >> shift & (BINS - 1);
            }
            add_limbs(c.b, bin, value_of<COUNTS>(c, word, id));
        }
        merge_limbs(c);
        choose_bin(c.b, before, far_enough);
        before = c.b.before;
        if (digit == 0)
            step = c.b.chosen;
        else
            key |= c.b.chosen << shift;
    }
    return (uint64_t)key << 32 | choose_id<COUNTS>(c, step, key, before, far_enough);
}

// --- the row ---

static __device__ uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static __device__ uint64_t random_bits(uint64_t seed, uint64_t position)
{
    return mix(mix(seed + 0x9E3779B97F4A7C15ull) ^ (position * 0xD1342543DE82EF95ull + 1));
}

static __device__ float finite(float x)
{
    return fminf(fmaxf(x, -FLT_MAX), FLT_MAX);
}

static __device__ float penalised(float l, uint32_t count, const sampler_params &p)
{
    l = finite(l > 0 ? __fdiv_rn(l, p.repetition_penalty) : __fmul_rn(l, p.repetition_penalty));
    l = finite(__fsub_rn(l, __fmul_rn((float)count, p.frequency_penalty)));
    return finite(__fsub_rn(l, p.presence_penalty));
}

static __device__ bool penalises(const sampler_params &p)
{
    return p.repetition_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0;
}

// The block's own logits, penalised, in `to`. window: the tokens of the history that count.
static __device__ void penalise(const cluster_state &c, float *to, uint32_t block_begin,
                                uint32_t block_end, const uint32_t *window, uint32_t n)
{
    for (uint32_t id = c.begin + threadIdx.x % 32; id < c.end; id += 32)
        to[id] = __ldcg(c.logits + id);
    __syncthreads();
    uint32_t t = threadIdx.x, count = 1;
    bool mine = t < n && window[t] >= block_begin && window[t] < block_end;
    for (uint32_t j = 0; mine && j < t; j++)
        mine = window[j] != window[t]; // done with its first occurrence
    for (uint32_t j = t + 1; mine && j < n; j++)
        count += window[j] == window[t];
    if (mine) to[window[t]] = penalised(__ldcg(c.logits + window[t]), count, c.b.row.params);
    __syncthreads();
}

// The first place, and in b whether a logit is not finite.
static __device__ pair look(cluster_state &c, const float *raw)
{
    pair v = {ALL, 0};
#pragma unroll 4
    for (uint32_t id = c.begin + threadIdx.x % 32; id < c.end; id += 32) {
        v.b |= !(fabsf(__ldcg(raw + id)) <= FLT_MAX);
        v.a = min(v.a, place_of(__ldcg(c.logits + id), id));
    }
    return reduce(c, v, [](pair x, pair y) { return pair{min(x.a, y.a), x.b | y.b}; });
}

// Words of all ids; returns the sum of their weights.
static __device__ uint64_t weigh(cluster_state &c, double max, double temperature)
{
    uint64_t sum = 0;
    for (uint32_t id = c.begin + threadIdx.x % 32; id < c.end; id += 32) {
        uint64_t word = word_of((double)__ldcg(c.logits + id), max, temperature);
        c.words[id] = word;
        sum += word & WEIGHT_MASK;
    }
    return sum_over(c, sum);
}

static __device__ uint64_t sum_left(cluster_state &c)
{
    uint64_t sum = 0;
#pragma unroll 4
    for (uint32_t id = c.begin + threadIdx.x % 32; id < c.end; id += 32)
        sum += value_of<false>(c, __ldcg(c.words + id), id);
    return sum_over(c, sum);
}

static __device__ uint32_t draw(cluster_state &c, uint32_t best, uint32_t n_vocab)
{
    const sampler_params &p = c.b.row.params;
    uint64_t sum = weigh(c, (double)__ldcg(c.logits + best), (double)p.temperature);
    if (p.top_k > 0 && p.top_k < n_vocab) {
        c.limit = first_to_reach<true>(c, {false, p.top_k, 0});
        sum = sum_left(c);
    }
    if (p.top_p != 1) {
        double wanted = __dmul_rn((double)p.top_p, __ull2double_rn(sum));
        c.limit = first_to_reach<false>(c, {true, 0, wanted});
    }
    c.least = __dmul_rn((double)p.min_p, __ull2double_rn(__ldcg(c.words + best) & WEIGHT_MASK));
    if (p.top_p != 1 || p.min_p != 0) sum = sum_left(c);
    uint64_t target = __umul64hi(random_bits(p.seed, c.b.row.position), sum);
    return (uint32_t)first_to_reach<false>(c, {false, target + 1, 0});
}

static __device__ void finish(const cuda_sampling &a, const sample_row &row, uint32_t r,
                              uint32_t token, status code)
{
    bool goes_on = code == ST_OK && row.ends == 0;
    for (uint32_t i = 0; i < row.n_stops; i++)
        goes_on = goes_on && row.stop[i] != token;
    if (a.tokens != nullptr) a.tokens[row.row_i] = code == ST_OK ? token : 0;
    if (a.live != nullptr && !goes_on) a.live[row.row_i] = 0;
    uint4 words = {code == ST_OK ? token : TOKEN_NONE, (uint32_t)code, a.flags[row.row_i], 0};
    *(uint4 *)(a.out + r) = words;
}

static __host__ __device__ uint64_t words_bytes(uint32_t n_vocab)
{
    return (uint64_t)n_vocab * sizeof(uint64_t);
}

static __host__ __device__ uint64_t row_bytes(uint32_t n_vocab)
{
    return words_bytes(n_vocab) + ((uint64_t)n_vocab + 1) / 2 * 2 * sizeof(float);
}

static __device__ void read_row(sample_row *to, const sample_row *from)
{
    constexpr uint32_t head = offsetof(sample_row, history) / 4;
    uint32_t t = threadIdx.x;
    const volatile uint32_t *words = (const volatile uint32_t *)from; // may be the host's
    if (t < head) ((uint32_t *)to)[t] = words[t];
    __syncthreads();
    if (t < to->n_history) to->history[t] = words[head + t];
    __syncthreads();
}

__global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS)
    sample(const __grid_constant__ cuda_sampling a)
{
    __shared__ block_state b;
    kernel_begin();
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t r = blockIdx.x / BLOCKS, rank = cluster.block_rank();
    const float *raw = a.logits + (uint64_t)r * a.n_vocab;
    char *scratch = (char *)a.scratch + r * row_bytes(a.n_vocab);
    uint32_t per_warp = (a.n_vocab + BLOCKS * THREADS - 1) / (BLOCKS * THREADS) * 32;
    auto bound = [&](uint32_t warp) { return min((rank * WARPS + warp) * per_warp, a.n_vocab); };
    uint32_t warp = threadIdx.x / 32;
    cluster_state c = {cluster, b, raw, (uint64_t *)scratch, bound(warp), bound(warp + 1), 0, ALL, 0};
    read_row(&b.row, a.rows + r);

    const sampler_params &p = b.row.params;
    uint32_t n = min(b.row.n_history, p.penalty_last_n);
    const uint32_t *window = b.row.history + (b.row.n_history - n);
    bool known = threadIdx.x >= n || window[threadIdx.x] < a.n_vocab;
    known = __syncthreads_and(known);
    if (known && n > 0 && penalises(p)) {
        float *to = (float *)(scratch + words_bytes(a.n_vocab));
        penalise(c, to, bound(0), bound(WARPS), window, n);
        c.logits = to;
    }
    pair first = look(c, raw);
    uint32_t token = (uint32_t)first.a;
    status code = first.b != 0 ? ST_NAN : known ? ST_OK : ST_PROTOCOL;
    if (code == ST_OK && p.temperature != 0 && p.top_k != 1) token = draw(c, token, a.n_vocab);
    if (rank == 0 && threadIdx.x == 0) finish(a, b.row, r, token, code);
    cluster.sync(); // nobody leaves while another reads here
}

uint64_t cuda_sample_bytes(uint32_t n_vocab)
{
    return row_bytes(n_vocab);
}

cudaError_t cuda_launch_sample(cudaStream_t s, const cuda_sampling *a, uint32_t n_rows)
{
    return start(sample, n_rows * BLOCKS, THREADS, 0, s, *a);
}
