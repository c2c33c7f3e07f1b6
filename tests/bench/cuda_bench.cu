// cuda_bench: what a step of one row through an 8B shape, and its single products, reach on device 0:
// GB/s beside a plain read. Weights are random and many enough not to stay in the cache. A few rows:
// cuda_rows_bench; prompts: cuda_prompt_bench. Usage: cuda_bench [walk: only whole steps]
extern "C" {
#include "kernels/backend.h"
}
#include "kernels/cuda/launch.h"
#include "tests/bench/cuda_timing.cuh"

#include <chrono>
#include <cstdio>
#include <cstdlib>

static constexpr uint64_t POOL = 2ull << 30;

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

// A matrix of random bytes in the pool, where those before it end.
static dev_weight next_weight(char *pool, uint64_t *at, dtype type, uint32_t n_in, uint32_t n_out)
{
    uint64_t bytes = cuda_form_bytes(type, n_in, n_out);
    if (*at + bytes > POOL) *at = 0;
    dev_weight w = {{(uint64_t)(uintptr_t)(pool + *at)}, type, n_in, n_out, 0};
    *at += (bytes + 127) / 128 * 128;
    return w;
}

static dev_ptr zeros(backend_device *d, uint64_t bytes)
{
    dev_ptr p;
    errmsg e = {};
    if (backend_cuda()->alloc(d, &p, bytes, &e) != ST_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
    return p;
}

// Steps of one row through an 8B shape in one launch, KV of f16 at 2047 positions.
static void bench_walk(char *pool, double read)
{
    static const dtype types[] = {DT_BF16, DT_Q8_0, DT_Q4_K, DT_Q6_K};
    const uint32_t n_embd = 4096, n_ff = 14336, n_vocab = 128256, n_kv = 1024, n_ctx = 2048;
    const backend *b = backend_cuda();
    errmsg e = {};
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = 4, .isa = "auto"};
    backend_device *d;
    backend_queue *q;
    if (b->device_open(&d, &spec, &e) != ST_OK || b->queue_open(d, &q, &e) != ST_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
    uint32_t tables[n_ctx / KV_BLOCK], position = n_ctx - 1;
    for (uint32_t i = 0; i < n_ctx / KV_BLOCK; i++)
        tables[i] = i;
    dev_ptr at = zeros(d, 4), table = zeros(d, 4), blocks = zeros(d, sizeof tables);
    dev_ptr live = zeros(d, 1);
    OK(cudaMemset((void *)live.addr, 1, 1));
    OK(cudaMemcpy((void *)at.addr, &position, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy((void *)blocks.addr, tables, sizeof tables, cudaMemcpyHostToDevice));
    dev_ptr ones = zeros(d, 4ull * n_embd), hidden = zeros(d, 4ull * n_embd);
    fill_f32<<<n_embd / 256, 256>>>((float *)ones.addr, n_embd);
    fill_f32<<<n_embd / 256, 256>>>((float *)hidden.addr, n_embd);
    std::vector<walk_layer> layers(32);
    uint64_t kv_bytes = 0;
    for (walk_layer &l : layers) {
        l = walk_layer{};
        l.attn_norm = l.ffn_norm = ones;
        l.kv.k = zeros(d, 2ull * n_ctx * n_kv);
        l.kv.v = zeros(d, 2ull * n_ctx * n_kv);
        l.kv.type = DT_F16;
        l.kv.n_kv_heads = 8;
        l.kv.n_head = 128;
        kv_bytes += 4ull * n_ctx * n_kv;
    }
    walk_desc w = {};
    w.n_layers = 32;
    w.n_embd = n_embd;
    w.n_ff = n_ff;
    w.n_heads = 32;
    w.n_ctx = n_ctx;
    w.rms_eps = 1e-5f;
    w.attn_scale = 0.088f;
    w.layer = layers.data();
    w.hidden = hidden;
    w.q = zeros(d, 4ull * n_embd);
    w.k = zeros(d, 4ull * n_kv);
    w.v = zeros(d, 4ull * n_kv);
    w.attn = zeros(d, 4ull * n_embd);
    w.gate = zeros(d, 4ull * n_ff);
    w.n_kinds = 1;
    w.kind[0] = walk_kind{rope_args{ones, ones, 128, false}, row_args{at, table, blocks, live, 0, 0}, 0};
    w.output_norm = ones;
    w.logits = zeros(d, 4ull * n_vocab);
    w.finite = zeros(d, 2);
    OK(cudaDeviceSynchronize());
    for (dtype t : types) {
        uint64_t place = 0, bytes = kv_bytes;
        auto next = [&](uint32_t n_in, uint32_t n_out) {
            bytes += cuda_form_bytes(t, n_in, n_out);
            return next_weight(pool, &place, t, n_in, n_out);
        };
        for (walk_layer &l : layers) {
            l.attn_q = next(n_embd, n_embd);
            l.attn_k = next(n_embd, n_kv);
            l.attn_v = next(n_embd, n_kv);
            l.attn_output = next(n_embd, n_embd);
            l.ffn_gate = next(n_embd, n_ff);
            l.ffn_up = next(n_embd, n_ff);
            l.ffn_down = next(n_ff, n_embd);
        }
        w.output = next(n_embd, n_vocab);
        backend_walk *walk;
        backend_event done;
        double best = 1e30;
        if (b->walk_open(d, &walk, &w, &e) != ST_OK || walk == nullptr) {
            printf("no walk: %s\n", e.text);
            exit(1);
        }
        for (int rep = 0; rep < 6; rep++) {
            auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < 20; i++)
                (void)b->walk(q, walk, true);
            (void)b->event_record(q, &done);
            if (b->event_wait(q, done) != ST_OK) exit(1);
            std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
            best = std::min(best, us.count() / 20);
        }
        printf("%-6s a step of 32 layers and head: %.1f us, %.0f GB/s, %.1f%% of a plain read\n",
               dtype_get(t)->name, best, bytes / best / 1e3, bytes / best / 10 / read);
        b->walk_close(walk);
    }
    b->queue_close(q);
    b->device_close(d);
}

int main(int argc, char **)
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
    uint32_t n_sms = p.multiProcessorCount, *sink;
    char *pool;
    float *x, *out;
    OK(cudaMalloc(&pool, POOL));
    OK(cudaMalloc(&sink, 4));
    OK(cudaMalloc(&x, 4ull * 14336));
    OK(cudaMalloc(&out, 4ull * 128256));
    fill<<<2048, 256, 0, stream>>>((uint32_t *)pool, POOL / 4, 1);
    fill_f32<<<14336 / 256, 256, 0, stream>>>(x, 14336);
    double read =
        POOL /
        median_us(
            3,
            [&](int) { read_all<<<n_sms * 8, 512, 0, stream>>>((uint4 *)pool, POOL / 16, sink); }) /
        1e3;
    printf("%s, plain read %.0f GB/s\n", p.name, read);
    bench_walk(pool, read);
    if (argc > 1) return 0;

    static const struct {
        uint32_t n_in, n_out;
    } shapes[] = {{4096, 1024}, {4096, 4096}, {4096, 14336}, {14336, 4096}, {4096, 128256}};
    static const cuda_form forms[] = {FORM_F16, FORM_Q8, FORM_Q4K, FORM_Q6K};
    static const char *const names[] = {"f16/bf16", "q8_0", "q4_k", "q6_k"};
    printf("%-9s %-14s %9s %9s %7s\n", "form", "n_in x n_out", "us", "GB/s", "of read");
    for (int f = 0; f < 4; f++) {
        double total = 0, bytes_total = 0;
        for (int i = 0; i < 5; i++) {
            uint32_t n_in = shapes[i].n_in, n_out = shapes[i].n_out;
            uint64_t bytes = (uint64_t)n_out / TILE_OUT * cuda_tile_bytes(forms[f], n_in);
            int copies = (int)(POOL / bytes), n = std::max(copies, 4);
            double us = median_us(n, [&](int k) {
                cuda_matrix m = {pool + k % copies * bytes, forms[f], n_in, n_out, 0};
                OK(cuda_matmul_one(stream, out, &m, x, nullptr, n_sms));
            });
            printf("%-9s %6u x %-6u %9.2f %9.0f %6.0f%%\n", names[f], n_in, n_out, us, bytes / us / 1e3,
                   bytes / us / 10 / read);
            int times = i == 0 || i == 1 || i == 2 ? 2 : i == 3 ? 1 : 0; // of one layer
            total += us * times;
            bytes_total += (double)bytes * times;
        }
        printf("%-9s a layer's seven products: %.1f us, %.0f GB/s, %.0f%% of a plain read\n", names[f],
               total, bytes_total / total / 1e3, bytes_total / total / 10 / read);
    }
    return 0;
}
