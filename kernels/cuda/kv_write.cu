// K and V of a step's rows into the pools, rounded to the cache type. One block per row.
#include "kernels/cuda/turn.cuh"

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

// Pieces of four values; k turned on the way.
template <typename T>
static __global__ void __launch_bounds__(256)
    kv_write(const cuda_kv kv, const float *k, const float *v, const cuda_turn turn)
{
    struct __align__(4 * sizeof(T)) piece {
        T value[4];
    };
    kernel_begin();
    uint32_t r = blockIdx.x, n = kv.n_head / 4, n_pieces = kv.n_kv_heads * n;
    if (kv.live[r] == 0) return;
    uint32_t p = kv.position[r];
    uint64_t block = kv.tables[kv.table[r] + p / KEYS];
    for (uint32_t i = threadIdx.x; i < n_pieces; i += 256) {
        uint64_t from = ((uint64_t)r * kv.n_kv_heads + i / n) * kv.n_head;
        uint64_t to = ((block * kv.n_kv_heads + i / n) * KEYS + p % KEYS) * n + i % n;
        floats<4> x = turned<4>(turn, r, k + from, i % n * 4);
        floats<4> y = *(const floats<4> *)(v + from + i % n * 4);
        piece kp, vp;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            kp.value[j] = from_f32<T>(x.value[j]);
            vp.value[j] = from_f32<T>(y.value[j]);
        }
        ((piece *)kv.k)[to] = kp;
        ((piece *)kv.v)[to] = vp;
    }
}

// The same for any head and address, value by value and without a turn.
template <typename T>
static __global__ void __launch_bounds__(256)
    kv_write_any(const cuda_kv kv, const float *k, const float *v)
{
    kernel_begin();
    uint32_t r = blockIdx.x, n = kv.n_head;
    if (kv.live[r] == 0) return;
    uint32_t p = kv.position[r];
    uint64_t block = kv.tables[kv.table[r] + p / KEYS];
    for (uint32_t i = threadIdx.x; i < kv.n_kv_heads * n; i += 256) {
        uint64_t from = (uint64_t)r * kv.n_kv_heads * n + i;
        uint64_t to = ((block * kv.n_kv_heads + i / n) * KEYS + p % KEYS) * n + i % n;
        ((T *)kv.k)[to] = from_f32<T>(k[from]);
        ((T *)kv.v)[to] = from_f32<T>(v[from]);
    }
}

static bool by_fours(const cuda_kv *kv, const float *k, const float *v)
{
    return kv->n_head % 4 == 0 && ((uintptr_t)k | (uintptr_t)v) % 16 == 0;
}

bool cuda_turns(const cuda_turn *turn, const cuda_kv *kv, const float *x, const float *k,
                const float *v)
{
    uintptr_t all = (uintptr_t)turn->cos | (uintptr_t)turn->sin | (uintptr_t)x;
    return by_fours(kv, k, v) && turn->n_rot % 8 == 0 && all % 16 == 0;
}

template <typename T>
static cudaError_t launch(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                          const cuda_turn *turn, uint32_t n_rows)
{
    if (by_fours(kv, k, v)) return start(kv_write<T>, n_rows, 256, 0, s, *kv, k, v, *turn);
    if (turn->cos != nullptr) return cudaErrorInvalidValue;
    return start(kv_write_any<T>, n_rows, 256, 0, s, *kv, k, v);
}

cudaError_t cuda_launch_kv_write(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                                 const cuda_turn *turn, uint32_t n_rows)
{
    if (kv->type == DT_F32) return launch<float>(s, kv, k, v, turn, n_rows);
    if (kv->type == DT_F16) return launch<__half>(s, kv, k, v, turn, n_rows);
    return launch<__nv_bfloat16>(s, kv, k, v, turn, n_rows);
}
