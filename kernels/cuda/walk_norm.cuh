// walk_norm.cuh - norms of a whole row, by rms_norm.cu's operations, in a block of which its 256
// threads are the first; and the sum of such a norm and another row.
#ifndef KERNELS_CUDA_WALK_NORM_CUH
#define KERNELS_CUDA_WALK_NORM_CUH

#include "kernels/cuda/walk_ring.cuh"

static constexpr uint32_t NORM_THREADS = 256;

// 512 threads.
__device__ __forceinline__ void meet_block()
{
    asm volatile("bar.sync 1, 512;" ::: "memory");
}

// A thread's values of a row of n that a norm goes over: EACH, zeros past the end. load(p): from
// where.
template <uint32_t EACH, class F>
__device__ __forceinline__ void norm_values(float (&v)[EACH], const float *row, uint32_t n, F load)
{
    uint32_t t = threadIdx.x % NORM_THREADS;
    row += t;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        v[j] = j * NORM_THREADS + t < n ? load(row + j * NORM_THREADS) : 0.0f;
}

// Past the first cache, where others write; and what nobody writes.
__device__ __forceinline__ float load_row(const float *p)
{
    return __ldcg(p);
}

__device__ __forceinline__ float load_norm(const float *p)
{
    return __ldg(p);
}

// What a norm scales the row by whose values v are. room: [8]; it is read when the block has met
// once.
template <uint32_t EACH>
static __device__ __forceinline__ float row_scale(const float (&v)[EACH], uint32_t n, float eps,
                                                  float *room)
{
    uint32_t t = threadIdx.x;
    float sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        sum = __fmaf_rn(v[j], v[j], sum); // past the end 0 is added: the same sum
    sum = warp_sum(sum);
    if (t < NORM_THREADS && t % 32 == 0) room[t / 32] = sum;
    meet_block();
    sum = room[0];
    for (int i = 1; i < 8; i++)
        sum = __fadd_rn(sum, room[i]);
    return norm_scale(sum, n, eps);
}

// v: the product's x + y through its norm post; the first block keeps it, and sets *finite (null:
// it does not) where it holds NaN or infinity. meet: called before y is asked for.
template <uint32_t EACH, class M>
static __device__ __forceinline__ void sum_row(float (&v)[EACH], const walk_product &p, float eps,
                                               float *room, uint8_t *finite, M meet)
{
    float x[EACH], w[EACH];
    uint32_t n = p.n_in;
    norm_values(w, p.post, n, load_norm);
    norm_values(x, p.x, n, load_row);
    meet();
    norm_values(v, p.y, n, load_row);
    float s = row_scale(v, n, eps, room);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        v[j] = __fadd_rn(x[j], __fmul_rn(__fmul_rn(v[j], s), w[j]));
    if (blockIdx.x != 0 || threadIdx.x >= NORM_THREADS) return;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        if (j * NORM_THREADS + threadIdx.x >= n) break;
        p.sum[j * NORM_THREADS + threadIdx.x] = v[j];
        if (finite != nullptr && magnitude_bits(v[j]) >= 0x7f800000u) *finite = 1;
    }
}

#endif
