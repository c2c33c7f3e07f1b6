// Attention where each block walks the cells of its rows itself (attention_cell.cuh).
#include "kernels/cuda/attention_cell.cuh"

template <typename T>
static __global__ void __launch_bounds__(256) attention(const attention_args a)
{
    __shared__ block_state b;
    extern __shared__ __align__(16) float floats[];
    kernel_begin();
    attention_block<T>(a, b, floats);
}

template <typename T> static cudaError_t launch(cudaStream_t s, const attention_args &a)
{
    cudaError_t e = cudaFuncSetAttribute(attention<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         attention_shared_bytes(ATTENTION_HEAD_MAX));
    if (e != cudaSuccess) return e;
    return start(attention<T>, attention_grid(a, 1), 256, attention_shared_bytes(a.kv.n_head), s,
                 a);
}

cudaError_t cuda_launch_attention(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                  uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows)
{
    attention_args a = attention_args_of(out, x, kv, n_heads, scale, window, n_rows, QUERIES);
    if (kv->type == DT_F32) return launch<float>(s, a);
    if (kv->type == DT_F16) return launch<__half>(s, a);
    return launch<__nv_bfloat16>(s, a);
}
