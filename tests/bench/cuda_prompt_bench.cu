// cuda_prompt_bench: what a prompt's layer of 8B shape is made of, on device 0: products beside
// cuBLASLt's own best choice, attention and the rest. Weights are random. Usage: cuda_prompt_bench
// [ROWS]: products of that many rows only
#include "kernels/cuda/launch.h"
#include "tests/bench/cuda_timing.cuh"

#include <cublasLt.h>

#include <cstdio>
#include <cstdlib>

static constexpr uint64_t POOL = 1ull << 28; // of weights

// A library's product of f16 rows with f16 weights to f32, by each of the algorithms it proposes.
struct lt_product {
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found[24];
    int n_found;
};

static constexpr uint64_t LT_WORKSPACE = 64 << 20;

static void lt_ok(cublasStatus_t s)
{
    if (s == CUBLAS_STATUS_SUCCESS) return;
    printf("cublasLt: %d\n", (int)s);
    exit(1);
}

static lt_product lt_open(cublasLtHandle_t lt, uint32_t n_in, uint32_t n_out, uint32_t rows)
{
    lt_product p = {};
    uint64_t workspace = LT_WORKSPACE;
    cublasOperation_t t = CUBLAS_OP_T;
    p.lt = lt;
    lt_ok(cublasLtMatmulDescCreate(&p.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    lt_ok(cublasLtMatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
    lt_ok(cublasLtMatrixLayoutCreate(&p.w, CUDA_R_16F, n_in, n_out, n_in));
    lt_ok(cublasLtMatrixLayoutCreate(&p.x, CUDA_R_16F, n_in, rows, n_in));
    lt_ok(cublasLtMatrixLayoutCreate(&p.out, CUDA_R_32F, n_out, rows, n_out));
    lt_ok(cublasLtMatmulPreferenceCreate(&p.pref));
    lt_ok(cublasLtMatmulPreferenceSetAttribute(p.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace));
    lt_ok(cublasLtMatmulAlgoGetHeuristic(lt, p.op, p.w, p.x, p.out, p.out, p.pref, 24, p.found,
                                         &p.n_found));
    return p;
}

static double lt_best_us(const lt_product &p, const void *w, const void *x, float *out,
                         void *workspace)
{
    float one = 1, zero = 0;
    double best = 1e30;
    for (int i = 0; i < p.n_found; i++) {
        auto once = [&](int) {
            return cublasLtMatmul(p.lt, p.op, &one, w, p.w, x, p.x, &zero, out, p.out, out, p.out,
                                  &p.found[i].algo, workspace, LT_WORKSPACE, stream);
        };
        if (once(0) == CUBLAS_STATUS_SUCCESS) best = std::min(best, median_us(4, once));
    }
    return best;
}

// Prompt products: ours from f16 and, expansion included, from q8_0 and q4_k; the library's best.
static void prompts(const char *pool, const float *x, float *out, void *prepared,
                    int32_t *exponents, const cuda_prompt *prompt, uint32_t only_rows)
{
    static const uint32_t shapes[][2] = {
        {4096, 1024}, {4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 28672}};
    cublasLtHandle_t lt;
    void *workspace, *expanded, *plain;
    lt_ok(cublasLtCreate(&lt));
    OK(cudaMalloc(&workspace, LT_WORKSPACE));
    OK(cudaMalloc(&expanded, 2ull * 4096 * 28672));
    OK(cudaMalloc(&plain, 2ull * 4096 * 14336));
    fill<<<2048, 256, 0, stream>>>((uint32_t *)plain, 4096ull * 14336 / 2, 7);
    printf("%-15s %5s %9s %8s %9s %8s %6s %9s %9s %9s %9s %9s\n", "n_in x n_out", "rows",
           "us", "TFLOP/s", "cublasLt", "TFLOP/s", "ratio", "q8_0 us", "q4_k us", "q8 expand",
           "q4 expand", "prepare");
    for (auto &shape : shapes) {
        for (uint32_t rows : {128u, 512u, 1024u, 4096u}) {
            if (only_rows != 0 && rows != only_rows) continue;
            uint32_t n_in = shape[0], n_out = shape[1];
            double flop = 2.0 * n_in * n_out * rows, us = 1e30, lt_us = 1e30;
            cuda_matrix m = {pool, FORM_F16, n_in, n_out, 0}, q = {pool, FORM_Q8, n_in, n_out, 0};
            cuda_matrix k = {pool, FORM_Q4K, n_in, n_out, 0};
            cuda_matrix e = {expanded, FORM_F16, n_in, n_out, 0};
            double prepare = median_us(4, [&](int) {
                OK(cuda_prepare_many(stream, prepared, exponents, x, n_in, rows));
            });
            lt_product p = lt_open(lt, n_in, n_out, rows);
            for (int turn = 0; turn < 2; turn++) {
                us = std::min(us, median_us(4, [&](int) {
                    OK(cuda_matmul_many(stream, prompt, out, n_out, &m, prepared, exponents,
                                        nullptr, rows));
                }));
                lt_us = std::min(lt_us, lt_best_us(p, pool, plain, out, workspace));
            }
            double q_expand = median_us(4, [&](int) {
                OK(cuda_expand(stream, expanded, &q, 0, n_out / TILE_OUT));
            });
            double k_expand = median_us(4, [&](int) {
                OK(cuda_expand(stream, expanded, &k, 0, n_out / TILE_OUT));
            });
            double q_us = median_us(4, [&](int) {
                OK(cuda_expand(stream, expanded, &q, 0, n_out / TILE_OUT));
                OK(cuda_matmul_many(stream, prompt, out, n_out, &e, prepared, exponents, nullptr,
                                    rows));
            });
            double k_us = median_us(4, [&](int) {
                OK(cuda_expand(stream, expanded, &k, 0, n_out / TILE_OUT));
                OK(cuda_matmul_many(stream, prompt, out, n_out, &e, prepared, exponents, nullptr,
                                    rows));
            });
            printf("%6u x %-6u %5u %9.1f %8.0f %9.1f %8.0f %6.2f %9.1f %9.1f %9.1f %9.1f %9.1f\n",
                   n_in, n_out, rows, us, flop / us / 1e6, lt_us, flop / lt_us / 1e6, lt_us / us,
                   q_us, k_us, q_expand, k_expand, prepare);
        }
    }
}

__global__ void fill_rows(uint32_t *position, uint32_t *tables, uint8_t *live, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    position[i] = i;
    live[i] = 1;
    if (i % 64 == 0) tables[i / 64] = i / 64;
}

// What else a prompt's layer is made of, 4096 rows of one session, 32/8 heads of 128.
static void layers(float *x, float *out, void *prepared, int32_t *exponents,
                   const cuda_prompt *prompt)
{
    const uint32_t rows = 4096, n = 4096, n_ff = 14336;
    cuda_kv kv = {};
    uint32_t *position, *table, *tables;
    uint8_t *live;
    float *turns;
    OK(cuda_attention_prompt_setup());
    OK(cudaMalloc(&kv.k, 2ull * rows * 1024));
    OK(cudaMalloc(&kv.v, 2ull * rows * 1024));
    OK(cudaMalloc(&position, 4 * rows));
    OK(cudaMalloc(&table, 4 * rows));
    OK(cudaMalloc(&tables, 4 * rows));
    OK(cudaMalloc(&live, rows));
    OK(cudaMalloc(&turns, 4ull * rows * 64));
    OK(cudaMemset(table, 0, 4 * rows));
    fill_f32<<<rows * 64 / 256, 256, 0, stream>>>(turns, (uint64_t)rows * 64);
    fill_rows<<<rows / 256, 256, 0, stream>>>(position, tables, live, rows);
    kv.type = DT_F16;
    kv.n_kv_heads = 8;
    kv.n_head = 128;
    kv.position = position;
    kv.table = table;
    kv.tables = tables;
    kv.live = live;
    auto show = [](const char *name, double us, double bytes, double flop) {
        printf("%-28s %9.1f us %8.0f GB/s %8.0f TFLOP/s\n", name, us, bytes / us / 1e3,
               flop / us / 1e6);
    };
    double wide = 4.0 * rows * n;
    const cuda_turn turn = {turns, turns, 128, false}, none = {};
    show("kv_write, k turned", median_us(4, [&](int) {
             OK(cuda_launch_kv_write(stream, &kv, x, x + rows * 1024, &turn, rows));
         }),
         wide * 3 / 4, 0);
    for (const cuda_turn *t : {&none, &turn})
        show(t == &none ? "attention" : "attention, q turned", median_us(4, [&](int) {
                 OK(cuda_launch_attention_prompt(stream, prompt, out, x, &kv, t, 32, 0.088f, 0,
                                                 rows));
             }),
             2 * wide, 4.0 * rows * rows / 2 * n);
    show("add, rms_norm, prepare", median_us(4, [&](int) {
             OK(cuda_launch_rms_norm_prepare(stream, out, out, x, x, n, 1e-5f, rows, prepared,
                                             exponents));
         }),
         4.5 * wide, 0);
    show("rope of q", median_us(4, [&](int) {
             OK(cuda_launch_rope(stream, out, turns, turns, 128, true, 32, 128, rows));
         }),
         2 * wide, 0);
    show("add", median_us(4, [&](int) { OK(cuda_launch_add(stream, out, x, (uint64_t)rows * n)); }),
         3 * wide, 0);
    show("silu_mul, prepare", median_us(4, [&](int) {
             OK(cuda_prepare_glu(stream, prepared, exponents, x, out, false, n_ff, rows));
         }),
         wide * 2.5 * 3.5, 0);
    for (uint32_t w : {n, n_ff})
        show(w == n ? "prepare 4096" : "prepare 14336", median_us(4, [&](int) {
                 OK(cuda_prepare_many(stream, prepared, exponents, x, w, rows));
             }),
             6.0 * rows * w, 0);
}

int main(int argc, char **argv)
{
    const uint32_t rows_max = 4096;
    int there = 0;
    if (cudaGetDeviceCount(&there) != cudaSuccess || there == 0) {
        printf("no CUDA device\n");
        return 0;
    }
    cudaDeviceProp p;
    OK(cudaGetDeviceProperties(&p, 0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda_prompt prompt = {};
    OK(cuda_prompt_setup(&prompt));
    prompt.n_sms = p.multiProcessorCount;
    char *pool;
    float *x, *out;
    void *prepared;
    int32_t *exponents;
    OK(cudaMalloc(&pool, POOL));
    OK(cudaMalloc(&x, 4ull * rows_max * 14336));
    OK(cudaMalloc(&out, 4ull * rows_max * 28672));
    OK(cudaMalloc(&prepared, 2ull * rows_max * 14336));
    OK(cudaMalloc(&exponents, 4 * rows_max));
    fill<<<2048, 256, 0, stream>>>((uint32_t *)pool, POOL / 4, 1);
    fill_f32<<<rows_max * 14336 / 256, 256, 0, stream>>>(x, (uint64_t)rows_max * 14336);
    printf("%s\n", p.name);
    layers(x, out, prepared, exponents, &prompt);
    prompts(pool, x, out, prepared, exponents, &prompt, argc > 1 ? (uint32_t)atoi(argv[1]) : 0);
    return 0;
}
