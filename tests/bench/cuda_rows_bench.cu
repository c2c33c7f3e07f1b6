// cuda_rows_bench: what the parts of an 8B-shaped layer take on device 0 for a step of a few rows,
// each a session of its own. Weights are random and many enough not to stay in the cache. Usage:
// cuda_rows_bench [POSITION of every row, 511]
#include "kernels/cuda/launch.h"
#include "tests/bench/cuda_timing.cuh"

#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>

static constexpr uint64_t POOL = 2ull << 30;
static constexpr uint32_t EMBD = 4096, FF = 14336, HEADS = 32, KV_HEADS = 8, HEAD = 128,
                          VOCAB = 128256;
static constexpr uint32_t KV = KV_HEADS * HEAD, ROWS = 64, KEYS = 64;

struct product {
    const char *name;
    uint32_t n_in, n, n_out[3];
};

static const product products[] = {{"q, k, v", EMBD, 3, {EMBD, KV, KV}},
                                   {"output", EMBD, 1, {EMBD}},
                                   {"gate, up", EMBD, 2, {FF, FF}},
                                   {"down", FF, 1, {EMBD}},
                                   {"head", EMBD, 1, {VOCAB}}};
static const cuda_form forms[] = {FORM_F16, FORM_Q8, FORM_Q4K, FORM_Q6K};
static const char *const names[] = {"f16/bf16", "q8_0", "q4_k", "q6_k"};
static const uint32_t counts[] = {2, 8, 16, 32, 64};

static char *pool, *expanded;
static float *x, *out;
static void *prepared;
static int32_t *exponents;

template <class T> static T *device(uint64_t n)
{
    T *p;
    OK(cudaMalloc(&p, n * sizeof(T)));
    OK(cudaMemset(p, 0, n * sizeof(T)));
    return p;
}

static uint64_t bytes_of(const product &p, cuda_form form)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p.n; i++)
        bytes += (uint64_t)p.n_out[i] / TILE_OUT * cuda_tile_bytes(form, p.n_in);
    return bytes;
}

// The same as a prompt's rows: packed weights are expanded first.
static double prompt_us(const cuda_prompt &prompt, const product &p, cuda_form form,
                        uint32_t n_rows)
{
    uint64_t bytes = bytes_of(p, form);
    int copies = (int)(POOL / bytes);
    OK(cuda_prepare_many(stream, prepared, exponents, x, p.n_in, n_rows));
    return median_us(std::max(copies, 4), [&](int k) {
        const char *at = pool + k % copies * bytes;
        for (uint32_t i = 0; i < p.n; i++) {
            cuda_matrix m = {at, form, p.n_in, p.n_out[i], 0};
            at += (uint64_t)p.n_out[i] / TILE_OUT * cuda_tile_bytes(form, p.n_in);
            if (form != FORM_F16) {
                OK(cuda_expand(stream, expanded, &m, 0, p.n_out[i] / TILE_OUT));
                m = {expanded, FORM_F16, p.n_in, p.n_out[i], 0};
            }
            OK(cuda_matmul_many(stream, &prompt, out, p.n_out[i], &m, prepared, exponents, nullptr,
                                n_rows));
        }
    });
}

static double product_us(const product &p, cuda_form form, uint32_t n_rows, uint32_t n_sms)
{
    uint64_t bytes = bytes_of(p, form);
    int copies = (int)(POOL / bytes);
    OK(cuda_prepare_many(stream, prepared, exponents, x, p.n_in, n_rows));
    return median_us(std::max(copies, 4), [&](int k) {
        cuda_matrix m[3];
        cuda_product all[3];
        const char *at = pool + k % copies * bytes;
        float *to = out;
        for (uint32_t i = 0; i < p.n; i++) {
            m[i] = {at, form, p.n_in, p.n_out[i], 0};
            all[i] = {to, &m[i], nullptr};
            at += (uint64_t)p.n_out[i] / TILE_OUT * cuda_tile_bytes(form, p.n_in);
            to += (uint64_t)n_rows * p.n_out[i];
        }
        OK(cuda_matmul_rows(stream, all, p.n, prepared, exponents, n_rows, n_sms));
    });
}

static void bench_products(const cuda_prompt &prompt)
{
    printf("%-9s %5s %-6s", "us", "rows", "by");
    for (const product &p : products)
        printf(" %9s", p.name);
    printf("  a layer: us, GB/s\n");
    for (int f = 0; f < 4; f++) {
        for (uint32_t n_rows : counts) {
            for (bool prompts : {false, true}) {
                double total = 0, bytes = 0;
                if (prompts && n_rows < 16) continue;
                printf("%-9s %5u %-6s", names[f], n_rows, prompts ? "prompt" : "rows");
                for (const product &p : products) {
                    double us = prompts ? prompt_us(prompt, p, forms[f], n_rows)
                                        : product_us(p, forms[f], n_rows, prompt.n_sms);
                    printf(" %9.1f", us);
                    if (p.n_out[0] == VOCAB) continue;
                    total += us;
                    bytes += (double)bytes_of(p, forms[f]);
                }
                printf("  %.1f, %.0f\n", total, bytes / total / 1e3);
            }
        }
    }
}

static void bench_others(uint32_t position)
{
    uint32_t n_blocks = position / KEYS + 1, host[3 * ROWS],
             *tables = device<uint32_t>(ROWS * n_blocks);
    for (uint32_t r = 0; r < ROWS; r++) {
        host[r] = position;
        host[ROWS + r] = r * n_blocks;
    }
    std::vector<uint32_t> blocks(ROWS * n_blocks);
    for (uint32_t i = 0; i < ROWS * n_blocks; i++)
        blocks[i] = i;
    uint32_t *at = device<uint32_t>(2 * ROWS);
    uint8_t *live = device<uint8_t>(ROWS);
    OK(cudaMemset(live, 1, ROWS));
    OK(cudaMemcpy(at, host, 2 * ROWS * 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(tables, blocks.data(), blocks.size() * 4, cudaMemcpyHostToDevice));
    uint64_t pool_halves = (uint64_t)ROWS * n_blocks * KEYS * KV;
    cuda_kv kv = {};
    kv.k = device<__half>(pool_halves);
    kv.v = device<__half>(pool_halves);
    kv.type = DT_F16;
    kv.n_kv_heads = KV_HEADS;
    kv.n_head = HEAD;
    kv.position = at;
    kv.table = at + ROWS;
    kv.tables = tables;
    kv.live = live;
    const cuda_turn none = {};
    uint32_t n_cells = (position + 256) / 256;
    float *partial = device<float>(cuda_partial_floats(ROWS, HEADS, HEAD, n_cells));
    float *turns = device<float>(ROWS * HEAD), *norm = device<float>(EMBD);
    printf("%-9s %5s %9s %9s %9s %9s %9s %9s %9s\n", "us", "rows", "norm", "rows", "silu", "rope q",
           "kv", "attention", "shared");
    for (uint32_t n : counts) {
        const int times = 50;
        printf("%-9s %5u", "", n);
        auto show = [&](auto f) { printf(" %9.1f", median_us(times, [&](int) { OK(f()); })); };
        show([&] {
            return cuda_launch_rms_norm_prepare(stream, out, x, out + ROWS * EMBD, norm, EMBD,
                                                1e-5f, n, prepared, exponents);
        });
        show([&] { return cuda_prepare_many(stream, prepared, exponents, x, EMBD, n); });
        show([&] { return cuda_prepare_glu(stream, prepared, exponents, x, x, false, FF, n); });
        show([&] {
            return cuda_launch_rope(stream, out, turns, turns, HEAD, false, HEADS, HEAD, n);
        });
        show([&] { return cuda_launch_kv_write(stream, &kv, x, x, &none, n); });
        show([&] {
            return cuda_launch_attention_rows(stream, out, x, &kv, &none, HEADS, 0.09f, 0, n,
                                              partial, n_cells);
        });
        show([&] {
            return cuda_launch_attention_f16(stream, out, x, &kv, HEADS, 0.09f, 0, n, partial,
                                             n_cells);
        });
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    int there = 0;
    if (cudaGetDeviceCount(&there) != cudaSuccess || there == 0) {
        printf("no CUDA device\n");
        return 0;
    }
    cudaDeviceProp p;
    OK(cudaGetDeviceProperties(&p, 0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cuda_matmul_rows_setup());
    pool = device<char>(POOL);
    expanded = device<char>((uint64_t)VOCAB * EMBD * 2);
    x = device<float>((uint64_t)ROWS * FF);
    out = device<float>((uint64_t)ROWS * VOCAB);
    prepared = device<char>((uint64_t)ROWS * FF * 2);
    exponents = device<int32_t>(ROWS);
    fill<<<2048, 256, 0, stream>>>((uint32_t *)pool, POOL / 4, 1);
    fill_f32<<<ROWS * FF / 256, 256, 0, stream>>>(x, (uint64_t)ROWS * FF);
    cuda_prompt prompt = {};
    OK(cuda_prompt_setup(&prompt));
    prompt.n_sms = p.multiProcessorCount;
    bench_products(prompt);
    bench_others(argc > 1 ? (uint32_t)atoi(argv[1]) : 511);
    return 0;
}
