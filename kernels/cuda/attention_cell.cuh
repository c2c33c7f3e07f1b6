// attention_cell.cuh - one cell of attention, shared by prompt and decode: a block of 256 threads
// serves up to 8 queries (rows of one block table, query heads of one KV head), cell by cell of 256
// keys. In a cell: thread j makes the scores of key j, each a chain of fused multiply-adds over the
// head; e = exp(s - m); l is the tree of block_sum over the 256 places (0 where masked); o is a
// chain over the keys, ascending, that skips keys whose e is 0. Cells meet in ascending order by
// backend.h's formula, in this block (n_cells 0) or later from `partial`: the same bits.
#ifndef KERNELS_CUDA_ATTENTION_CELL_CUH
#define KERNELS_CUDA_ATTENTION_CELL_CUH

#include "kernels/cuda/attention_runs.cuh"

static constexpr uint32_t QUERIES = 8; // of a block, at most

template <typename T> __device__ __forceinline__ float to_f32(T v);
template <> __device__ __forceinline__ float to_f32(float v)
{
    return v;
}
template <> __device__ __forceinline__ float to_f32(__half v)
{
    return __half2float(v);
}
template <> __device__ __forceinline__ float to_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

// Scores of one key for all queries: s[i] = sum over d of q[i][d] k[d].
template <typename T>
__device__ __forceinline__ void dots(float s[QUERIES], const float *q, const T *k, uint32_t n)
{
    constexpr uint32_t V = 16 / sizeof(T);
    for (uint32_t i = 0; i < QUERIES; i++)
        s[i] = 0;
    uint32_t d = 0;
    if (n % V == 0) { // rows begin on 16 bytes then
        for (; d < n; d += V) {
            uint4 packed = *reinterpret_cast<const uint4 *>(k + d);
            const T *kv = reinterpret_cast<const T *>(&packed);
#pragma unroll
            for (uint32_t j = 0; j < V; j += 4) {
#pragma unroll
                for (uint32_t i = 0; i < QUERIES; i++) {
                    float4 qv = *reinterpret_cast<const float4 *>(q + i * n + d + j);
                    s[i] = __fmaf_rn(qv.x, to_f32(kv[j]), s[i]);
                    s[i] = __fmaf_rn(qv.y, to_f32(kv[j + 1]), s[i]);
                    s[i] = __fmaf_rn(qv.z, to_f32(kv[j + 2]), s[i]);
                    s[i] = __fmaf_rn(qv.w, to_f32(kv[j + 3]), s[i]);
                }
            }
        }
    }
    for (; d < n; d++) {
        float kv = to_f32(k[d]);
#pragma unroll
        for (uint32_t i = 0; i < QUERIES; i++)
            s[i] = __fmaf_rn(q[i * n + d], kv, s[i]);
    }
}

struct __align__(16) block_state
{
    float e[QUERIES][CELL];
    float red[QUERIES][8];
    float m[QUERIES], l[QUERIES], wa[QUERIES], wb[QUERIES], cell_m[QUERIES], cell_l[QUERIES];
    uint32_t first[QUERIES], last[QUERIES], row[QUERIES], head[QUERIES];
    uint32_t block[CELL / BLOCK_KEYS];
    bool any[QUERIES]; // has met a cell
};

// One cell's part of the output for the thread's places, merged into o (or written to partial).
template <typename T>
static __device__ void add_values(const attention_args &a, block_state &b, float *o, const T *v,
                                  uint64_t head_at, uint32_t cell, uint32_t begin, uint32_t end,
                                  uint32_t n_queries)
{
    uint32_t n = a.kv.n_head, width = min(n, 256u), lanes = 256 / width;
    uint32_t q0 = threadIdx.x / width;
    if (q0 >= lanes || q0 >= n_queries) return;
    for (uint32_t d = threadIdx.x % width; d < n; d += width) {
        float acc[QUERIES];
#pragma unroll
        for (uint32_t i = 0; i < QUERIES; i++)
            acc[i] = 0;
        for (uint32_t j = begin; j < end;) {
            uint32_t stop = min(end, (j / BLOCK_KEYS + 1) * BLOCK_KEYS);
            const T *at =
                v + b.block[j % CELL / BLOCK_KEYS] * (uint64_t)a.kv.n_kv_heads * BLOCK_KEYS * n +
                head_at + (uint64_t)(j % BLOCK_KEYS) * n + d;
#pragma unroll 4
            for (; j < stop; j++, at += n) {
                float value = to_f32(*at);
#pragma unroll
                for (uint32_t i = 0; i < QUERIES; i++) {
                    if (q0 + lanes * i >= n_queries) continue;
                    float e = b.e[q0 + lanes * i][j % CELL];
                    acc[i] = e != 0.0f ? __fmaf_rn(e, value, acc[i]) : acc[i];
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < QUERIES; i++) {
            uint32_t q = q0 + lanes * i;
            if (q >= n_queries || b.last[q] / CELL < cell || b.first[q] / CELL > cell) continue;
            if (a.n_cells > 0) {
                partial_at(a, b.row[q], b.head[q], cell)[2 + d] = acc[i];
            } else {
                float *to = &o[q * n + d];
                *to = b.any[q] ? __fmaf_rn(acc[i], b.wb[q], __fmul_rn(*to, b.wa[q])) : acc[i];
            }
        }
    }
}

// Scores, weights, sums of one cell, for all queries of the run.
template <typename T>
static __device__ void weigh(const attention_args &a, block_state &b, const float *qs, const T *k,
                             uint64_t head_at, uint32_t cell, uint32_t begin, uint32_t end,
                             uint32_t n_queries)
{
    uint32_t n = a.kv.n_head, j = cell * CELL + threadIdx.x, warp = threadIdx.x / 32;
    float s[QUERIES];
    if (j >= begin && j < end) {
        const T *key =
            k + b.block[threadIdx.x / BLOCK_KEYS] * (uint64_t)a.kv.n_kv_heads * BLOCK_KEYS * n +
            head_at + (uint64_t)(j % BLOCK_KEYS) * n;
        dots(s, qs, key, n);
    }
#pragma unroll
    for (uint32_t i = 0; i < QUERIES; i++) {
        bool in = i < n_queries && j >= b.first[i] && j <= b.last[i];
        s[i] = in ? __fmul_rn(a.scale, s[i]) : -INFINITY;
        float m = s[i];
        for (int half = 16; half >= 1; half /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, half));
        if (threadIdx.x % 32 == 0) b.red[i][warp] = m;
    }
    __syncthreads();
    float e[QUERIES];
#pragma unroll
    for (uint32_t i = 0; i < QUERIES; i++) {
        float m = b.red[i][0];
        for (int w = 1; w < 8; w++)
            m = fmaxf(m, b.red[i][w]);
        bool in = i < n_queries && j >= b.first[i] && j <= b.last[i];
        e[i] = in ? exp_f32(__fsub_rn(s[i], m)) : 0.0f;
        b.e[i][threadIdx.x] = e[i];
        if (threadIdx.x == 0) b.cell_m[i] = m;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < QUERIES; i++) {
        float l = warp_sum(e[i]);
        if (threadIdx.x % 32 == 0) b.red[i][warp] = l;
    }
    __syncthreads();
    if (threadIdx.x < n_queries) {
        uint32_t q = threadIdx.x;
        float l = b.red[q][0];
        for (int w = 1; w < 8; w++)
            l = __fadd_rn(l, b.red[q][w]);
        b.cell_l[q] = l;
        bool in = b.last[q] / CELL >= cell && b.first[q] / CELL <= cell;
        if (in && a.n_cells > 0) {
            float *to = partial_at(a, b.row[q], b.head[q], cell);
            to[0] = b.cell_m[q];
            to[1] = l;
        } else if (in && b.any[q]) {
            float m = fmaxf(b.m[q], b.cell_m[q]);
            b.wa[q] = exp_f32(__fsub_rn(b.m[q], m));
            b.wb[q] = exp_f32(__fsub_rn(b.cell_m[q], m));
            b.l[q] = __fmaf_rn(l, b.wb[q], __fmul_rn(b.l[q], b.wa[q]));
            b.m[q] = m;
        } else if (in) {
            b.m[q] = b.cell_m[q];
            b.l[q] = l;
        }
    }
    __syncthreads();
}

// Rows [r0, r1) of one table, all live.
template <typename T>
static __device__ void serve(const attention_args &a, block_state &b, float *qs, float *o,
                             uint32_t r0, uint32_t r1, uint32_t kv_head, uint32_t head0,
                             uint32_t n_heads)
{
    uint32_t n = a.kv.n_head, n_queries = (r1 - r0) * n_heads;
    __syncthreads();
    if (threadIdx.x < n_queries) {
        uint32_t q = threadIdx.x, r = r0 + q / n_heads, p = a.kv.position[r];
        b.row[q] = r;
        b.head[q] = head0 + q % n_heads;
        b.first[q] = first_seen(a, p);
        b.last[q] = p;
        b.any[q] = false;
    }
    __syncthreads();
    uint32_t first = b.first[0], last = b.last[0];
    for (uint32_t q = 1; q < n_queries; q++) {
        first = min(first, b.first[q]);
        last = max(last, b.last[q]);
    }
    for (uint32_t i = threadIdx.x; i < QUERIES * n; i += 256) {
        uint32_t q = i / n;
        qs[i] =
            q < n_queries ? a.x[((uint64_t)b.row[q] * a.n_heads + b.head[q]) * n + i % n] : 0.0f;
    }
    uint64_t head_at = (uint64_t)kv_head * BLOCK_KEYS * n;
    for_cells(a, r0, first, last, b.block, [&](uint32_t cell, uint32_t begin, uint32_t end) {
        weigh(a, b, qs, (const T *)a.kv.k, head_at, cell, begin, end, n_queries);
        add_values(a, b, o, (const T *)a.kv.v, head_at, cell, begin, end, n_queries);
        __syncthreads();
        if (threadIdx.x < n_queries) {
            uint32_t q = threadIdx.x;
            if (b.last[q] / CELL >= cell && b.first[q] / CELL <= cell) b.any[q] = true;
        }
    });
    if (a.n_cells > 0) return;
    __syncthreads();
    put_quotients(a, b.row, b.head, o, b.l, n_queries);
}

template <typename T>
static __device__ void attention_block(const attention_args &a, block_state &b, float *floats)
{
    for_runs(a, [&](uint32_t r0, uint32_t r1, uint32_t kv_head, uint32_t head0, uint32_t n_heads) {
        serve<T>(a, b, floats, floats + QUERIES * a.kv.n_head, r0, r1, kv_head, head0, n_heads);
    });
}

static inline uint32_t attention_shared_bytes(uint32_t n_head)
{
    return 2 * QUERIES * n_head * sizeof(float); // queries, then outputs
}

#endif
