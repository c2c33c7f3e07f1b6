// Attention of few rows over an f16 cache (attention_core.cuh), heads of up to 128: a block of 512
// threads has a row's cell and up to 16 query heads of one KV head; all keys and values are asked
// for before anything else. attention_merge joins the cells of rows that may have several. Queries
// may be turned as they are read.
#include "kernels/cuda/attention_runs.cuh"
#include "kernels/cuda/attention_words.cuh"
#include "kernels/cuda/turn.cuh"

static constexpr uint32_t WARPS = 16, THREADS = 32 * WARPS, CELLS_SIDE_BY_SIDE = 64;

struct __align__(16) rows_block
{
    core_state st;
    float o[CORE_QUERIES][WORDS_HEAD_MAX];
};

// Row r's heads [head0, head0 + n_heads) in a cell that has positions [begin, end) of the row's.
static __device__ void serve_cell(const attention_args &a, const cuda_turn &turn, rows_block &b,
                                  uint32_t r, uint32_t head0, uint32_t n_heads, uint32_t cell,
                                  uint32_t first, uint32_t last)
{
    uint32_t n = a.kv.n_head, t = threadIdx.x, warp = t / 32, at0 = cell * CORE_CELL;
    uint32_t begin = max(first, at0), end = min(last + 1, at0 + CORE_CELL);
    uint32_t kv_head = head0 / (a.n_heads / a.kv.n_kv_heads);
    const uint32_t *table = a.kv.tables + a.kv.table[r];
    key_words<2, WORDS_HEAD_MAX> keys;
    value_words<WORDS_HEAD_MAX> values;
    auto at = [&](uint32_t p) {
        return ((uint64_t)__ldg(table + p / CORE_BLOCK) * a.kv.n_kv_heads + kv_head) * CORE_BLOCK *
               n;
    };
    keys.ask((const __half *)a.kv.k, n, cell, warp * 2, begin, end, at);
    values.ask((const __half *)a.kv.v, n, cell, begin, end, at);
    __syncthreads(); // what the cell before had in shared memory is no longer read
    const float *x = a.x + ((uint64_t)r * a.n_heads + head0 + warp) * n;
    float v[WORDS_HEAD_MAX / 32];
    core_head<WORDS_HEAD_MAX>(v, n, [&](uint32_t d) {
        return warp < n_heads ? turned<2>(turn, r, x, d / 2 * 2).value[d % 2] : 0.0f;
    });
    core_query<WORDS_HEAD_MAX>(b.st, warp, n, a.scale, v);
    if (t < CORE_QUERIES) {
        b.st.first[t] = t < n_heads ? first : UINT32_MAX;
        b.st.last[t] = t < n_heads ? last : 0;
    }
    keys.turn();
    __syncthreads();
    core_cell<WARPS, WORDS_STEPS, false>(
        b.st, n, cell, begin, end,
        [&](uint32_t j, uint32_t step, uint32_t c) { return keys.word(j, step, c); },
        [&](uint32_t step, uint32_t r, uint32_t c) { return values.word(step, r, c); },
        [] { __syncthreads(); },
        [&](uint32_t head, uint32_t d, float o0, float o1) {
            b.o[head][d] = o0;
            b.o[head][d + 1] = o1;
        });
    __syncthreads(); // l and o are there
    for (uint32_t i = t; i < n_heads * n; i += THREADS) {
        uint32_t q = i / n, d = i % n;
        uint64_t h = (uint64_t)r * a.n_heads + head0 + q;
        if (a.n_cells == 1) {
            a.out[h * n + d] = __fdiv_rn(b.o[q][d], b.st.l[q]);
            continue;
        }
        float *to = a.partial + (h * a.n_cells + cell) * (n + 2);
        to[2 + d] = b.o[q][d];
        if (d < 2) to[d] = d == 0 ? b.st.m[q] : b.st.l[q];
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    attention_rows(const attention_args a, const cuda_turn turn)
{
    __shared__ rows_block b;
    kernel_begin();
    uint32_t r = blockIdx.z, group = a.n_heads / a.kv.n_kv_heads, sub = blockIdx.y % a.n_sub;
    uint32_t head0 = blockIdx.y / a.n_sub * group + sub * a.heads_per_block;
    uint32_t n_heads = min(a.heads_per_block, group - sub * a.heads_per_block);
    if (a.kv.live[r] == 0) { // unused, but never left over
        for (uint32_t i = threadIdx.x; a.n_cells == 1 && i < n_heads * a.kv.n_head; i += THREADS)
            a.out[((uint64_t)r * a.n_heads + head0) * a.kv.n_head + i] = 0.0f;
        return;
    }
    uint32_t last = a.kv.position[r];
    uint32_t first = first_seen(a, last);
    for (uint32_t cell = blockIdx.x; cell <= last / CORE_CELL; cell += gridDim.x)
        if (cell >= first / CORE_CELL) serve_cell(a, turn, b, r, head0, n_heads, cell, first, last);
}

bool cuda_attention_rows_takes(uint32_t n_head)
{
    return n_head % 8 == 0 && n_head <= WORDS_HEAD_MAX;
}

cudaError_t cuda_launch_attention_rows(cudaStream_t s, float *out, const float *x,
                                       const cuda_kv *kv, const cuda_turn *turn, uint32_t n_heads,
                                       float scale, uint32_t window, uint32_t n_rows,
                                       float *partial, uint32_t n_cells)
{
    attention_args a = attention_args_of(out, x, kv, n_heads, scale, window, n_rows, CORE_QUERIES);
    uint32_t group = n_heads / kv->n_kv_heads;
    a.n_sub = (group + CORE_QUERIES - 1) / CORE_QUERIES;
    a.heads_per_block = (group + a.n_sub - 1) / a.n_sub;
    a.n_cells = n_cells;
    a.partial = partial;
    cudaError_t e = start(attention_rows,
                          dim3(min(n_cells, CELLS_SIDE_BY_SIDE), kv->n_kv_heads * a.n_sub, n_rows),
                          THREADS, 0, s, a, *turn);
    return e != cudaSuccess || n_cells == 1 ? e : attention_merge_cells(s, a);
}
