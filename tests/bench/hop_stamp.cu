// The device's clock into *at, for hop_bench.
#include "kernels/cuda/common.cuh"

__global__ static void stamp_kernel(uint64_t *at)
{
    uint64_t t;
    kernel_begin();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    *at = t;
}

extern "C" cudaError_t hop_stamp(cudaStream_t s, uint64_t *at)
{
    return start(stamp_kernel, 1, 1, 0, s, at);
}
