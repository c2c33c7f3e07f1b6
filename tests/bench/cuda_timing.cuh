// cuda_timing.cuh - what the measuring programs share: calls that end the program when they fail,
// random weights and rows, and the time of a piece of work on the program's stream.
#ifndef TESTS_BENCH_CUDA_TIMING_CUH
#define TESTS_BENCH_CUDA_TIMING_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%s: %s\n", #call, cudaGetErrorString(e_));                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// Bytes of both forms that are sane numbers: f16 of small exponents; any byte will do for q.
static __global__ void fill(uint32_t *p, uint64_t n, uint32_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        p[i] = (x & 0x83ff83ffu) | 0x20002000u;
    }
}

static __global__ void fill_f32(float *p, uint64_t n)
{
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < n) p[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-23f - 1.0f;
}

static cudaStream_t stream;

// Microseconds of one of n calls of f(i): the median of 7 repetitions after 2 that are not counted.
template <class F> static double median_us(int n, F f)
{
    cudaEvent_t a, b;
    std::vector<float> times;
    OK(cudaEventCreate(&a));
    OK(cudaEventCreate(&b));
    for (int rep = -2; rep < 7; rep++) {
        OK(cudaEventRecord(a, stream));
        for (int i = 0; i < n; i++)
            f(i);
        OK(cudaEventRecord(b, stream));
        OK(cudaStreamSynchronize(stream));
        float ms;
        OK(cudaEventElapsedTime(&ms, a, b));
        if (rep >= 0) times.push_back(ms * 1e3f / n);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

#endif
