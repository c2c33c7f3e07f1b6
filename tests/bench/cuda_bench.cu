// cuda_bench: what the products of one 8B-shaped layer reach on device 0: GB/s of weights for 1 and
// 16 rows beside a plain read, TFLOP/s for prompts. Weights are random and many enough not to stay
// in the cache. Usage: cuda_bench
#include "kernels/cuda/launch.h"

#include <algorithm>
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

static constexpr uint64_t POOL = 2ull << 30;

// Bytes of both forms that are sane numbers: f16 of small exponents; any byte will do for q.
__global__ void fill(uint32_t *p, uint64_t n, uint32_t seed)
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

__global__ void fill_f32(float *p, uint64_t n)
{
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (i < n) p[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-23f - 1.0f;
}

__global__ void read_all(const uint4 *p, uint64_t n, uint32_t *out)
{
    uint32_t x = 0;
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
#pragma unroll 8
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += stride) {
        uint4 v = p[i];
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678u) *out = x;
}

static cudaStream_t stream;

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

int main()
{
    int there = 0;
    if (cudaGetDeviceCount(&there) != cudaSuccess || there == 0) {
        printf("no CUDA device\n");
        return 0;
    }
    cudaDeviceProp p;
    OK(cudaGetDeviceProperties(&p, 0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cuda_matmul_setup());
    uint32_t n_sms = p.multiProcessorCount, rows_max = 4096, *sink;
    char *pool;
    float *x, *out;
    void *prepared;
    int32_t *exponents;
    OK(cudaMalloc(&pool, POOL));
    OK(cudaMalloc(&sink, 4));
    OK(cudaMalloc(&x, 4ull * rows_max * 14336));
    OK(cudaMalloc(&out, 4ull * rows_max * 14336));
    OK(cudaMalloc(&prepared, 2ull * rows_max * 14336));
    OK(cudaMalloc(&exponents, 4 * rows_max));
    fill<<<2048, 256, 0, stream>>>((uint32_t *)pool, POOL / 4, 1);
    fill_f32<<<rows_max * 14336 / 256, 256, 0, stream>>>(x, (uint64_t)rows_max * 14336);
    double read =
        POOL /
        median_us(
            3,
            [&](int) { read_all<<<n_sms * 8, 512, 0, stream>>>((uint4 *)pool, POOL / 16, sink); }) /
        1e3;
    printf("%s, plain read %.0f GB/s\n", p.name, read);

    static const struct {
        uint32_t n_in, n_out;
    } shapes[] = {{4096, 1024}, {4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 128256}};
    static const cuda_form forms[] = {FORM_F16, FORM_Q8, FORM_Q4K, FORM_Q6K};
    static const char *const names[] = {"f16/bf16", "q8_0", "q4_k", "q6_k"};
    printf("%-9s %-14s %5s %9s %9s %7s\n", "form", "n_in x n_out", "rows", "us", "GB/s", "of read");
    for (int f = 0; f < 4; f++) {
        double total[2] = {0, 0}, bytes_total = 0;
        for (int i = 0; i < 5; i++) {
            uint32_t n_in = shapes[i].n_in, n_out = shapes[i].n_out;
            uint64_t bytes = (uint64_t)n_out / TILE_OUT * cuda_tile_bytes(forms[f], n_in);
            int copies = (int)(POOL / bytes), n = std::max(copies, 4);
            for (int few = 0; few < 2; few++) {
                uint32_t rows = few ? 16 : 1;
                OK(cuda_prepare_rows(stream, prepared, exponents, x, n_in, rows));
                double us = median_us(n, [&](int k) {
                    cuda_matrix m = {pool + k % copies * bytes, forms[f], n_in, n_out, 0};
                    OK(few ? cuda_matmul_few(stream, out, &m, prepared, exponents, nullptr, rows,
                                             n_sms)
                           : cuda_matmul_one(stream, out, &m, x, nullptr, n_sms));
                });
                printf("%-9s %6u x %-6u %5u %9.2f %9.0f %6.0f%%\n", names[f], n_in, n_out, rows, us,
                       bytes / us / 1e3, bytes / us / 10 / read);
                int times = i == 0 || i == 1 || i == 2 ? 2 : i == 3 ? 1 : 0; // of one layer
                total[few] += us * times;
                if (few) bytes_total += (double)bytes * times;
            }
        }
        for (int few = 0; few < 2; few++)
            printf("%-9s a layer's seven products, %2d rows: %.1f us, %.0f GB/s, %.0f%% of a plain "
                   "read\n",
                   names[f], few ? 16 : 1, total[few], bytes_total / total[few] / 1e3,
                   bytes_total / total[few] / 10 / read);
    }
    printf("%-9s %-14s %5s %9s %9s\n", "form", "n_in x n_out", "rows", "us", "TFLOP/s");
    for (int f = 0; f < 2; f++) {
        for (int i = 1; i < 4; i++) {
            for (uint32_t rows : {32u, 512u, 4096u}) {
                uint32_t n_in = shapes[i].n_in, n_out = shapes[i].n_out;
                cuda_matrix m = {pool, forms[f], n_in, n_out, 0};
                double prepare = median_us(4, [&](int) {
                    OK(cuda_prepare_rows(stream, prepared, exponents, x, n_in, rows));
                });
                double us = median_us(4, [&](int) {
                    OK(cuda_matmul_many(stream, out, &m, prepared, exponents, nullptr, rows));
                });
                printf("%-9s %6u x %-6u %5u %9.1f %9.1f   (rows prepared in %.1f us)\n", names[f],
                       n_in, n_out, rows, us, 2.0 * n_in * n_out * rows / us / 1e6, prepare);
            }
        }
    }
    return 0;
}
