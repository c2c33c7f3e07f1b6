/* One block each: the rows of a decode step are some 16 KB, and one block of 1024 threads moves them
 * in one instruction per thread. */
#include "kernels/cuda/signal.h"

#define THREADS       1024
#define POISON_THREAD 32   /* of another warp than the one that spins */
#define LOOK_NS       20000 /* between two looks at host memory, which cost a microsecond each */

__device__ static uint64_t load_acquire(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ static void store_release(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ static uint64_t now_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ static void copy_block(void *to, const void *from, uint64_t bytes)
{
    uint64_t n16 = bytes / 16, n4 = bytes / 4;
    for (uint64_t i = threadIdx.x; i < n16; i += blockDim.x)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (uint64_t i = n16 * 4 + threadIdx.x; i < n4; i += blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

__global__ static void put_kernel(void *to, const void *from, uint64_t bytes, uint64_t *word,
                                  uint64_t value)
{
    copy_block(to, from, bytes);
    __syncthreads(); /* the release below covers what the block wrote before */
    if (threadIdx.x == 0) store_release(word, value);
}

__global__ static void release_kernel(uint64_t *word, uint64_t value)
{
    store_release(word, value);
}

/* All threads of the block: what the wait came to. One thread looks at the word, and one of another
 * warp now and then at the poison, so that neither slows the other. */
__device__ static uint64_t wait_block(const signal_wait &w)
{
    __shared__ uint64_t outcome;
    __shared__ int ended;
    volatile int *ended_now = &ended;
    if (threadIdx.x == 0) ended = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t v = load_acquire(w.word);
        while (w.spin && v != w.want && v != signal_poisoned(w.want) && *ended_now == 0)
            v = load_acquire(w.word);
        outcome = v == w.want ? v : signal_poisoned(w.want);
        *ended_now = 1;
    } else if (threadIdx.x == POISON_THREAD && w.spin) {
        uint64_t looked = now_ns();
        while (*ended_now == 0) {
            if (now_ns() - looked < LOOK_NS) continue;
            if (load_acquire(w.poison) == w.want >> 32) *ended_now = 1;
            looked = now_ns();
        }
    }
    __syncthreads();
    return outcome;
}

__global__ static void take_kernel(signal_wait w, void *to, const void *from, uint64_t bytes,
                                   uint64_t *valid)
{
    uint64_t outcome = wait_block(w);
    if (outcome == w.want) copy_block(to, from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) store_release(valid, outcome);
}

__global__ static void wait_kernel(signal_wait w, uint64_t *out)
{
    uint64_t outcome = wait_block(w);
    if (threadIdx.x == 0) *out = outcome;
}

__global__ static void tell_kernel(const uint64_t *outcome, uint64_t *valid)
{
    store_release(valid, *outcome);
}

__global__ static void tell_value_kernel(uint64_t value, uint64_t *valid)
{
    store_release(valid, value);
}

cudaError_t cuda_signal_put(cudaStream_t s, void *to, const void *from, uint64_t bytes,
                            uint64_t *word, uint64_t value)
{
    put_kernel<<<1, THREADS, 0, s>>>(to, from, bytes, word, value);
    return cudaGetLastError();
}

cudaError_t cuda_signal_release(cudaStream_t s, uint64_t *word, uint64_t value)
{
    release_kernel<<<1, 1, 0, s>>>(word, value);
    return cudaGetLastError();
}

cudaError_t cuda_signal_take(cudaStream_t s, const signal_wait *w, void *to, const void *from,
                             uint64_t bytes, uint64_t *valid)
{
    take_kernel<<<1, THREADS, 0, s>>>(*w, to, from, bytes, valid);
    return cudaGetLastError();
}

cudaError_t cuda_signal_wait(cudaStream_t s, const signal_wait *w, uint64_t *outcome)
{
    wait_kernel<<<1, 2 * POISON_THREAD, 0, s>>>(*w, outcome);
    return cudaGetLastError();
}

cudaError_t cuda_signal_tell(cudaStream_t s, const uint64_t *outcome, uint64_t *valid)
{
    tell_kernel<<<1, 1, 0, s>>>(outcome, valid);
    return cudaGetLastError();
}

cudaError_t cuda_signal_tell_value(cudaStream_t s, uint64_t value, uint64_t *valid)
{
    tell_value_kernel<<<1, 1, 0, s>>>(value, valid);
    return cudaGetLastError();
}
