// Attention by attention_cell.cuh: a block walks the cells of its rows, or takes one of them; those meet
// in attention_merge in ascending order, which other kernels' cells use too.
#include "kernels/cuda/attention_cell.cuh"
#include "kernels/cuda/attention_core.cuh"

template <typename T>
static __global__ void __launch_bounds__(256) attention(const attention_args a)
{
    __shared__ block_state b;
    extern __shared__ __align__(16) float floats[];
    kernel_begin();
    attention_block<T>(a, b, floats);
}

static __global__ void attention_merge(const attention_args a)
{
    kernel_begin();
    uint32_t r = blockIdx.x, h = blockIdx.y, n = a.kv.n_head, p = a.kv.position[r];
    float *out = a.out + ((uint64_t)r * a.n_heads + h) * n;
    uint32_t first = first_seen(a, p);
    for (uint32_t d = threadIdx.x; d < n; d += blockDim.x) {
        if (a.kv.live[r] == 0) {
            out[d] = 0.0f;
            continue;
        }
        const float *at = partial_at(a, r, h, first / CELL);
        float m = at[0], l = at[1], o = at[2 + d];
        for (uint32_t c = first / CELL + 1; c <= p / CELL; c++) {
            at += n + 2;
            float both = fmaxf(m, at[0]);
            float wa = exp_f32(__fsub_rn(m, both)), wb = exp_f32(__fsub_rn(at[0], both));
            l = __fmaf_rn(at[1], wb, __fmul_rn(l, wa));
            o = __fmaf_rn(at[2 + d], wb, __fmul_rn(o, wa));
            m = both;
        }
        out[d] = __fdiv_rn(o, l);
    }
}

cudaError_t attention_merge_cells(cudaStream_t s, const attention_args &a)
{
    return start(attention_merge, dim3(a.n_rows, a.n_heads), min(a.kv.n_head, 256u), 0, s, a);
}

uint32_t cuda_attention_blocks(uint32_t n_rows, uint32_t n_heads, uint32_t n_kv_heads, bool f16)
{
    attention_args a = {};
    a.n_heads = n_heads;
    a.kv.n_kv_heads = n_kv_heads;
    attention_shape(&a, f16 ? CORE_QUERIES : QUERIES);
    return (n_rows + a.rows_per_block - 1) / a.rows_per_block * n_kv_heads * a.n_sub;
}

uint64_t cuda_partial_floats(uint32_t n_rows, uint32_t n_heads, uint32_t n_head, uint32_t n_cells)
{
    return (uint64_t)n_rows * n_heads * n_cells * (n_head + 2);
}

template <typename T> static cudaError_t launch(cudaStream_t s, const attention_args &a)
{
    cudaError_t e = cudaFuncSetAttribute(attention<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         attention_shared_bytes(ATTENTION_HEAD_MAX));
    if (e != cudaSuccess) return e;
    e = start(attention<T>, attention_grid(a, a.n_cells > 0 ? min(a.n_cells, 64u) : 1u), 256,
              attention_shared_bytes(a.kv.n_head), s, a);
    return e != cudaSuccess || a.n_cells == 0 ? e : attention_merge_cells(s, a);
}

cudaError_t cuda_launch_attention(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                  uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows,
                                  float *partial, uint32_t n_cells)
{
    attention_args a = attention_args_of(out, x, kv, n_heads, scale, window, n_rows, QUERIES);
    a.n_cells = n_cells;
    a.partial = partial;
    if (kv->type == DT_F32) return launch<float>(s, a);
    if (kv->type == DT_F16) return launch<__half>(s, a);
    return launch<__nv_bfloat16>(s, a);
}
