// K and V of a step's rows into the pools, rounded to the cache type. One block per row.
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

// EACH values at a time, 1 or 4.
template <typename T, uint32_t EACH>
static __global__ void __launch_bounds__(256) kv_write(const cuda_kv kv, const float *k, const float *v)
{
    struct __align__(EACH * sizeof(T)) piece {
        T value[EACH];
    };
    struct __align__(EACH * 4) floats {
        float value[EACH];
    };
    kernel_begin();
    uint32_t r = blockIdx.x, n = kv.n_head / EACH, n_pieces = kv.n_kv_heads * n;
    if (kv.live[r] == 0) return;
    uint32_t p = kv.position[r];
    uint64_t block = kv.tables[kv.table[r] + p / KEYS];
    for (uint32_t i = threadIdx.x; i < n_pieces; i += 256) {
        uint64_t from = (uint64_t)r * n_pieces + i;
        uint64_t to = ((block * kv.n_kv_heads + i / n) * KEYS + p % KEYS) * n + i % n;
        floats x = ((const floats *)k)[from], y = ((const floats *)v)[from];
        piece kp, vp;
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            kp.value[j] = from_f32<T>(x.value[j]);
            vp.value[j] = from_f32<T>(y.value[j]);
        }
        ((piece *)kv.k)[to] = kp;
        ((piece *)kv.v)[to] = vp;
    }
}

template <typename T>
static cudaError_t launch(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                          uint32_t n_rows)
{
    if (kv->n_head % 4 == 0 && ((uintptr_t)k | (uintptr_t)v) % 16 == 0)
        return start(kv_write<T, 4>, n_rows, 256, 0, s, *kv, k, v);
    return start(kv_write<T, 1>, n_rows, 256, 0, s, *kv, k, v);
}

cudaError_t cuda_launch_kv_write(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                                 uint32_t n_rows)
{
    if (kv->type == DT_F32) return launch<float>(s, kv, k, v, n_rows);
    if (kv->type == DT_F16) return launch<__half>(s, kv, k, v, n_rows);
    return launch<__nv_bfloat16>(s, kv, k, v, n_rows);
}
