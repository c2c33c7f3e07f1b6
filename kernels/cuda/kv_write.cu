// K and V of a step's rows into the pools, rounded to the cache type. One block per row and KV
// head.
#include "kernels/cuda/common.cuh"

static constexpr uint32_t KEYS = 64; // in a block of a pool

template <typename T> __device__ __forceinline__ T from_f32(float v);
template <> __device__ __forceinline__ float from_f32(float v)
{
    return v;
}
template <> __device__ __forceinline__ __half from_f32(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_f32(float v)
{
    return __float2bfloat16_rn(v);
}

template <typename T>
static __global__ void kv_write(const cuda_kv kv, const float *k, const float *v)
{
    kernel_begin();
    uint32_t r = blockIdx.x, h = blockIdx.y, n = kv.n_head;
    if (kv.live[r] == 0) return;
    uint32_t p = kv.position[r];
    uint64_t block = kv.tables[kv.table[r] + p / KEYS];
    uint64_t to = ((block * kv.n_kv_heads + h) * KEYS + p % KEYS) * n;
    uint64_t from = ((uint64_t)r * kv.n_kv_heads + h) * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        ((T *)kv.k)[to + i] = from_f32<T>(k[from + i]);
        ((T *)kv.v)[to + i] = from_f32<T>(v[from + i]);
    }
}

cudaError_t cuda_launch_kv_write(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                                 uint32_t n_rows)
{
    dim3 grid(n_rows, kv->n_kv_heads);
    if (kv->type == DT_F32) return start(kv_write<float>, grid, 128, 0, s, *kv, k, v);
    if (kv->type == DT_F16) return start(kv_write<__half>, grid, 128, 0, s, *kv, k, v);
    return start(kv_write<__nv_bfloat16>, grid, 128, 0, s, *kv, k, v);
}
