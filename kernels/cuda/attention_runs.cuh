// attention_runs.cuh - how a block of attention goes through its rows: run by run of live rows of one
// block table, and through a run's cells; what is done with a cell is attention_cell.cuh's or
// attention_core.cuh's. Blocks of 256 threads; grids of attention_grid.
#ifndef KERNELS_CUDA_ATTENTION_RUNS_CUH
#define KERNELS_CUDA_ATTENTION_RUNS_CUH

#include "kernels/cuda/common.cuh"

static constexpr uint32_t CELL = 256, BLOCK_KEYS = 64;

struct attention_args {
    float *out;
    const float *x;
    cuda_kv kv;
    uint32_t n_heads, window, n_rows, n_cells, heads_per_block, n_sub, rows_per_block;
    float scale;
    float *partial; // [n_rows, n_heads, n_cells, n_head + 2]: m, l, o
};

static inline void attention_shape(attention_args *a, uint32_t n_queries)
{
    uint32_t group = a->n_heads / a->kv.n_kv_heads;
    a->heads_per_block = min(group, n_queries);
    a->n_sub = (group + a->heads_per_block - 1) / a->heads_per_block;
    a->rows_per_block = n_queries / a->heads_per_block;
}

static inline attention_args attention_args_of(float *out, const float *x, const cuda_kv *kv,
                                               uint32_t n_heads, float scale, uint32_t window,
                                               uint32_t n_rows, uint32_t n_queries)
{
    attention_args a = {};
    a.out = out;
    a.x = x;
    a.kv = *kv;
    a.n_heads = n_heads;
    a.window = window;
    a.n_rows = n_rows;
    a.scale = scale;
    attention_shape(&a, n_queries);
    return a;
}

static inline dim3 attention_grid(const attention_args &a, uint32_t n_slices)
{
    return dim3((a.n_rows + a.rows_per_block - 1) / a.rows_per_block, a.kv.n_kv_heads * a.n_sub,
                n_slices);
}

// The cells of partial to out (attention.cu).
cudaError_t attention_merge_cells(cudaStream_t s, const attention_args &a);

// The first position that the row sees.
__device__ __forceinline__ uint32_t first_seen(const attention_args &a, uint32_t position)
{
    return a.window != 0 && position >= a.window ? position + 1 - a.window : 0;
}

// serve(r0, r1, kv_head, head0, n_heads): rows [r0, r1) of one table, all live, and the block's heads.
template <class F> static __device__ __forceinline__ void for_runs(const attention_args &a, F serve)
{
    uint32_t n = a.kv.n_head, group = a.n_heads / a.kv.n_kv_heads;
    uint32_t kv_head = blockIdx.y / a.n_sub, sub = blockIdx.y % a.n_sub;
    uint32_t head0 = kv_head * group + sub * a.heads_per_block;
    uint32_t n_heads = min(a.heads_per_block, group - sub * a.heads_per_block);
    uint32_t r0 = blockIdx.x * a.rows_per_block, end = min(r0 + a.rows_per_block, a.n_rows);
    while (r0 < end) {
        uint32_t r1 = r0 + 1;
        if (a.kv.live[r0] != 0) {
            while (r1 < end && a.kv.live[r1] != 0 && a.kv.table[r1] == a.kv.table[r0])
                r1++;
            serve(r0, r1, kv_head, head0, n_heads);
        } else if (a.n_cells == 0) { // unused, but never left over
            for (uint32_t i = threadIdx.x; i < n_heads * n; i += 256)
                a.out[((uint64_t)r0 * a.n_heads + head0) * n + i] = 0.0f;
        }
        r0 = r1;
    }
}

// take(cell, begin, end): positions [begin, end) of the run's, whose blocks of keys are in `block` (shared
// memory): all cells of positions [first, last], or this block's share of them. r0: a row of the run.
template <class F>
static __device__ __forceinline__ void for_cells(const attention_args &a, uint32_t r0, uint32_t first,
                                                 uint32_t last, uint32_t *block, F take)
{
    const uint32_t *table = a.kv.tables + a.kv.table[r0];
    uint32_t cell = first / CELL, step = 1;
    if (a.n_cells > 0) {
        step = gridDim.z;
        cell += (blockIdx.z + step - cell % step) % step;
    }
    for (; cell <= last / CELL; cell += step) {
        uint32_t begin = max(first, cell * CELL), end = min(last + 1, (cell + 1) * CELL);
        if (threadIdx.x < CELL / BLOCK_KEYS) {
            uint32_t p = cell * CELL + threadIdx.x * BLOCK_KEYS;
            if (p + BLOCK_KEYS > begin && p < end) block[threadIdx.x] = table[p / BLOCK_KEYS];
        }
        __syncthreads();
        take(cell, begin, end);
    }
}

// Where the results of a row's head in a cell stand in partial.
__device__ __forceinline__ float *partial_at(const attention_args &a, uint32_t row, uint32_t head,
                                             uint32_t cell)
{
    return a.partial + (((uint64_t)row * a.n_heads + head) * a.n_cells + cell) * (a.kv.n_head + 2);
}

// The queries' results, when all cells have met: o [n_queries, n_head] by l.
static __device__ __forceinline__ void put_quotients(const attention_args &a, const uint32_t *row,
                                                     const uint32_t *head, const float *o,
                                                     const float *l, uint32_t n_queries)
{
    uint32_t n = a.kv.n_head;
    for (uint32_t i = threadIdx.x; i < n_queries * n; i += 256) {
        uint32_t q = i / n;
        a.out[((uint64_t)row[q] * a.n_heads + head[q]) * n + i % n] = __fdiv_rn(o[i], l[q]);
    }
}

#endif
