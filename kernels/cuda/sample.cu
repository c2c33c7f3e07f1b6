// A token for each row of logits: the definition of common/sampler.h, its bits. What top-k, top-p
// and the draw ask for is one question, which sample_choice.cuh answers.
#include "kernels/cuda/sample_choice.cuh"

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
    each_logit(c, c.logits, [&](uint32_t id, float l) { to[id] = l; });
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
    each_logit(c, raw, [&](uint32_t id, float l) {
        v.b |= !(fabsf(l) <= FLT_MAX);
        v.a = min(v.a, place_of(l, id));
    });
    if (c.logits != raw) {
        v.a = ALL;
        each_logit(c, c.logits, [&](uint32_t id, float l) { v.a = min(v.a, place_of(l, id)); });
    }
    return cluster_reduce(c, v, [](pair x, pair y) { return pair{min(x.a, y.a), x.b | y.b}; });
}

// Words of all ids, and what by_steps gives for them.
template <bool COUNTS>
static __device__ uint64_t weigh(cluster_state &c, double max, double temperature)
{
    clear_limbs(c.b);
    each_logit(c, c.logits, [&](uint32_t id, float l) {
        uint64_t word = word_of((double)l, max, temperature);
        c.words[id] = word;
        add_limbs(c.b, (uint32_t)(word >> STEP_SHIFT), COUNTS ? 1 : word & WEIGHT_MASK);
    });
    return merge_limbs(c);
}

static __device__ uint32_t draw(cluster_state &c, uint32_t best, uint32_t n_vocab)
{
    const sampler_params &p = c.b.row.params;
    double max = (double)__ldcg(c.logits + best), temperature = (double)p.temperature;
    bool few = p.top_k > 0 && p.top_k < n_vocab;
    uint64_t bin = few ? weigh<true>(c, max, temperature) : weigh<false>(c, max, temperature);
    if (few) {
        c.limit = first_to_reach<true>(c, bin, {false, p.top_k, 0});
        bin = by_steps<false>(c);
    }
    if (p.top_p != 1) {
        double sum = __ull2double_rn(block_total(c.b, bin));
        c.limit = first_to_reach<false>(c, bin, {true, 0, __dmul_rn((double)p.top_p, sum)});
    }
    c.least = __dmul_rn((double)p.min_p, __ull2double_rn(__ldcg(c.words + best) & WEIGHT_MASK));
    if (p.top_p != 1 || p.min_p != 0) bin = by_steps<false>(c);
    uint64_t target = __umul64hi(random_bits(p.seed, c.b.row.position), block_total(c.b, bin));
    return (uint32_t)first_to_reach<false>(c, bin, {false, target + 1, 0});
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

struct one_row {
    sample_row row;
};

// From the host's memory.
static __device__ void read_row(sample_row *to, const sample_row *from)
{
    constexpr uint32_t head = offsetof(sample_row, history) / 4;
    uint32_t t = threadIdx.x;
    const volatile uint32_t *words = (const volatile uint32_t *)from;
    if (t < head) ((uint32_t *)to)[t] = words[t];
    __syncthreads();
    if (t < to->n_history) to->history[t] = words[head + t];
    __syncthreads();
}

static __device__ void read_row(sample_row *to, const one_row &one)
{
    constexpr uint32_t words = sizeof(sample_row) / 4;
    if (threadIdx.x < words)
        ((uint32_t *)to)[threadIdx.x] = ((const uint32_t *)&one.row)[threadIdx.x];
    __syncthreads();
}

static __device__ void sample_one(const cuda_sampling &a, block_state &b, uint32_t r)
{
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t rank = cluster.block_rank(), warp = threadIdx.x / 32;
    const float *raw = a.logits + (uint64_t)r * a.n_vocab;
    char *scratch = (char *)a.scratch + r * row_bytes(a.n_vocab);
    uint32_t per_warp = (a.n_vocab + BLOCKS * THREADS - 1) / (BLOCKS * THREADS) * 32;
    auto bound = [&](uint32_t w) { return min((rank * WARPS + w) * per_warp, a.n_vocab); };
    cluster_state c = {cluster, b,   raw, (uint64_t *)scratch, bound(warp), bound(warp + 1),
                       0,       ALL, 0};

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

static __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS)
    sample_many(const __grid_constant__ cuda_sampling a)
{
    extern __shared__ __align__(16) char shared[];
    block_state &b = *(block_state *)shared;
    kernel_begin();
    read_row(&b.row, a.rows + blockIdx.x / BLOCKS);
    sample_one(a, b, blockIdx.x / BLOCKS);
}

// The row came with the launch.
static __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS)
    sample_alone(const __grid_constant__ cuda_sampling a, const __grid_constant__ one_row one)
{
    extern __shared__ __align__(16) char shared[];
    block_state &b = *(block_state *)shared;
    kernel_begin();
    read_row(&b.row, one);
    sample_one(a, b, 0);
}

cudaError_t cuda_sample_setup(void)
{
    const void *kernels[] = {(const void *)sample_many, (const void *)sample_alone};
    for (const void *k : kernels) {
        cudaError_t error = cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 sizeof(block_state));
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

uint64_t cuda_sample_bytes(uint32_t n_vocab)
{
    return row_bytes(n_vocab);
}

cudaError_t cuda_launch_sample(cudaStream_t s, const cuda_sampling *a, uint32_t n_rows)
{
    if (n_rows == 1)
        return start(sample_alone, BLOCKS, THREADS, sizeof(block_state), s, *a, one_row{*a->rows});
    return start(sample_many, n_rows * BLOCKS, THREADS, sizeof(block_state), s, *a);
}
