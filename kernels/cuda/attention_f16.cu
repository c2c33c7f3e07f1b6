// Attention over an f16 cache (attention_core.cuh): a block of 256 threads serves up to 16 queries,
// rows of one block table and query heads of one KV head. It walks its rows' cells, or takes one of
// them, whose results attention_merge joins: the same bits.
#include "kernels/cuda/attention_core.cuh"
#include "kernels/cuda/attention_runs.cuh"

struct __align__(16) f16_block
{
    core_state st;
    float m[CORE_QUERIES], l[CORE_QUERIES];
    uint32_t row[CORE_QUERIES], head[CORE_QUERIES], block[CORE_CELL / CORE_BLOCK];
    bool any[CORE_QUERIES]; // has met a cell
};

static __device__ __forceinline__ bool sees(const core_state &st, uint32_t q, uint32_t cell)
{
    return st.first[q] <= st.last[q] && st.last[q] / CORE_CELL >= cell &&
           st.first[q] / CORE_CELL <= cell;
}

// The cell of all queries into o [query, n], or to partial.
static __device__ void take_cell(const attention_args &a, f16_block &b, float *o, uint32_t cell,
                                 uint32_t begin, uint32_t end, uint32_t kv_head)
{
    uint32_t n = a.kv.n_head;
    core_state &st = b.st;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, at0 = cell * CORE_CELL;
    auto block_at = [&](uint32_t i) {
        return ((uint64_t)b.block[i] * a.kv.n_kv_heads + kv_head) * CORE_BLOCK * n + lane % 4 * 2;
    };
    const __half *key_at[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t at = (warp * 4 + j) * 8;
        bool in = at0 + at + 8 > begin && at0 + at < end;
        key_at[j] = in ? (const __half *)a.kv.k + block_at(at / CORE_BLOCK) +
                             (uint64_t)(at % CORE_BLOCK + lane / 4) * n
                       : nullptr;
    }
    auto key = [&](uint32_t j, uint32_t t, uint32_t c) {
        uint32_t d = t * 16 + c * 8;
        return key_at[j] != nullptr && d < n ? *(const uint32_t *)(key_at[j] + d) : 0u;
    };
    auto value = [&](uint32_t t, uint32_t r, uint32_t c) {
        uint32_t at = t * 16 + c * 8 + lane / 4;
        if (at0 + at < begin || at0 + at >= end) return 0u;
        return *(const uint32_t *)((const __half *)a.kv.v + block_at(t / 4) +
                                   (uint64_t)(at % CORE_BLOCK) * n + (r * 8 + warp) * 8);
    };
    auto put = [&](uint32_t q, uint32_t d, float o0, float o1) {
        if (!sees(st, q, cell)) return;
        if (a.n_cells > 0) {
            float *to = partial_at(a, b.row[q], b.head[q], cell) + 2 + d;
            to[0] = o0;
            to[1] = o1;
            return;
        }
        float *to = o + q * n + d;
        if (b.any[q]) {
            float m = fmaxf(b.m[q], st.m[q]);
            float wa = exp_f32(__fsub_rn(b.m[q], m)), wb = exp_f32(__fsub_rn(st.m[q], m));
            o0 = __fmaf_rn(o0, wb, __fmul_rn(to[0], wa));
            o1 = __fmaf_rn(o1, wb, __fmul_rn(to[1], wa));
        }
        to[0] = o0;
        to[1] = o1;
    };
    core_cell<8, CORE_HEAD_MAX / 16, true>(st, n, cell, begin, end, key, value,
                                            [] { __syncthreads(); }, put);
    __syncthreads();
    if (threadIdx.x >= CORE_QUERIES || !sees(st, threadIdx.x, cell)) return;
    uint32_t q = threadIdx.x;
    if (a.n_cells > 0) {
        float *to = partial_at(a, b.row[q], b.head[q], cell);
        to[0] = st.m[q];
        to[1] = st.l[q];
    } else if (b.any[q]) {
        float m = fmaxf(b.m[q], st.m[q]);
        float wa = exp_f32(__fsub_rn(b.m[q], m)), wb = exp_f32(__fsub_rn(st.m[q], m));
        b.l[q] = __fmaf_rn(st.l[q], wb, __fmul_rn(b.l[q], wa));
        b.m[q] = m;
    } else {
        b.m[q] = st.m[q];
        b.l[q] = st.l[q];
        b.any[q] = true;
    }
}

// Rows [r0, r1) of one table, all live.
static __device__ void serve_f16(const attention_args &a, f16_block &b, float *o, uint32_t r0,
                                 uint32_t r1, uint32_t kv_head, uint32_t head0, uint32_t n_heads)
{
    uint32_t n = a.kv.n_head, n_queries = (r1 - r0) * n_heads;
    __syncthreads();
    if (threadIdx.x < CORE_QUERIES) {
        uint32_t q = threadIdx.x, r = q < n_queries ? r0 + q / n_heads : r0;
        uint32_t p = a.kv.position[r];
        b.row[q] = r;
        b.head[q] = head0 + q % n_heads;
        b.st.first[q] = q < n_queries ? first_seen(a, p) : UINT32_MAX;
        b.st.last[q] = q < n_queries ? p : 0;
        b.any[q] = false;
    }
    __syncthreads();
    uint32_t first = b.st.first[0], last = b.st.last[0];
    for (uint32_t q = 1; q < n_queries; q++) {
        first = min(first, b.st.first[q]);
        last = max(last, b.st.last[q]);
    }
    for (uint32_t q = threadIdx.x / 32; q < CORE_QUERIES; q += 8) {
        const float *x = a.x + ((uint64_t)b.row[q] * a.n_heads + b.head[q]) * n;
        float v[CORE_HEAD_MAX / 32];
        core_head<CORE_HEAD_MAX>(v, n, [&](uint32_t d) { return q < n_queries ? x[d] : 0.0f; });
        core_query<CORE_HEAD_MAX>(b.st, q, n, a.scale, v);
    }
    for_cells(a, r0, first, last, b.block, [&](uint32_t cell, uint32_t begin, uint32_t end) {
        take_cell(a, b, o, cell, begin, end, kv_head);
    });
    if (a.n_cells > 0) return;
    __syncthreads();
    put_quotients(a, b.row, b.head, o, b.l, n_queries);
}

static __global__ void __launch_bounds__(256, 1) attention_f16(const attention_args a)
{
    __shared__ f16_block b;
    extern __shared__ __align__(16) float o[];
    kernel_begin();
    for_runs(a, [&](uint32_t r0, uint32_t r1, uint32_t kv_head, uint32_t head0, uint32_t n_heads) {
        serve_f16(a, b, o, r0, r1, kv_head, head0, n_heads);
    });
}

cudaError_t cuda_launch_attention_f16(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                      uint32_t n_heads, float scale, uint32_t window,
                                      uint32_t n_rows, float *partial, uint32_t n_cells)
{
    attention_args a = attention_args_of(out, x, kv, n_heads, scale, window, n_rows, CORE_QUERIES);
    a.n_cells = n_cells;
    a.partial = partial;
    cudaError_t e = start(attention_f16, attention_grid(a, n_cells > 0 ? min(n_cells, 64u) : 1u),
                          256, CORE_QUERIES * kv->n_head * sizeof(float), s, a);
    return e != cudaSuccess || n_cells == 0 ? e : attention_merge_cells(s, a);
}
