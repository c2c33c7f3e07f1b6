/* kernels_bench - speed of the cpu kernels on this machine: decode products in GB/s beside a plain
 * read, prompt products in GFLOP/s, attention.
 *
 *     kernels_bench [isa [n_in n_out]]        default: auto 4096 4096; types of 256 values a block
 *                                             only where n_in is a multiple of it
 *
 * Decode weights are many copies of one matrix, more than the caches hold, so that each product
 * comes from memory. Each figure is the best of several runs: the machine may be shared. */
#include "common/clock.h"
#include "kernels/backend.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_NS (300 * NS_PER_MS)
#define ROWS_MAX 512u

static const dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q8_0, DT_Q4_0,
                              DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q2_K, DT_Q3_K,
                              DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};

typedef struct {
    const backend *b;
    backend_device *d;
    backend_queue *q;
} device;

static device open_device(const char *isa, uint32_t n_threads)
{
    device d = {.b = backend_cpu()};
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = n_threads, .isa = isa};
    errmsg e = {0};
    if (d.b->device_open(&d.d, &spec, &e) != ST_OK || d.b->queue_open(d.d, &d.q, &e) != ST_OK) {
        fprintf(stderr, "kernels_bench: %s\n", e.text);
        exit(status_exit_code(e.code));
    }
    return d;
}

static void close_device(device *d)
{
    d->b->queue_close(d->q);
    d->b->device_close(d->d);
}

static dev_ptr get(device *d, uint64_t bytes)
{
    errmsg e = {0};
    dev_ptr p;
    if (d->b->alloc(d->d, &p, bytes, &e) != ST_OK) {
        fprintf(stderr, "kernels_bench: %s\n", e.text);
        exit(status_exit_code(e.code));
    }
    return p;
}

/* Finite values of any type: a pattern in each byte that is a small f16, too. */
static void fill(dev_ptr p, dtype type, uint64_t bytes)
{
    unsigned char *c = (unsigned char *)(uintptr_t)p.addr;
    memset(c, type == DT_Q8_0 ? 0x11 : 0x2d, bytes);
}

/* The plain read: every cache line loaded once, summed as integers. By thread, in one pool's op it
 * cannot be written; so one thread only, as the measure of what a core gets. */
static double plain_read_gbs(const void *p, uint64_t bytes)
{
    double best = 0;
    for (int run = 0; run < 5; run++) {
        uint64_t start = now_ns();
        __m128i s[4] = {_mm_setzero_si128()};
        const __m128i *v = p;
        for (uint64_t i = 0; i + 16 <= bytes / 16; i += 16) {
            for (int k = 0; k < 16; k++) {
                if (k % 4 == 0) _mm_prefetch((const char *)(v + i + k) + 2048, _MM_HINT_T0);
                s[k % 4] = _mm_add_epi32(s[k % 4], _mm_load_si128(v + i + k));
            }
        }
        volatile int sink = _mm_cvtsi128_si32(
            _mm_add_epi32(_mm_add_epi32(s[0], s[1]), _mm_add_epi32(s[2], s[3])));
        (void)sink;
        double gbs = (double)bytes / (double)(now_ns() - start);
        if (gbs > best) best = gbs;
    }
    return best;
}

static void bench_matmul(const char *isa, uint32_t n_threads, uint32_t n_in, uint32_t n_out)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256, 512};
    device d = open_device(isa, n_threads);
    uint64_t pool_bytes = 768ull << 20;
    dev_ptr weights = get(&d, pool_bytes), x = get(&d, 4ull * ROWS_MAX * n_in),
            out = get(&d, 4ull * ROWS_MAX * n_out);
    fill(x, DT_F32, 4ull * ROWS_MAX * n_in);
    if (n_threads == 1) {
        fill(weights, DT_F32, pool_bytes);
        printf("plain read, 1 thread: %.1f GB/s\n\n",
               plain_read_gbs((void *)(uintptr_t)weights.addr, pool_bytes));
    }
    for (uint32_t t = 0; t < sizeof types / sizeof *types; t++) {
        if (n_in % dtype_get(types[t])->block_values != 0) continue;
        fill(weights, types[t], pool_bytes);
        uint64_t bytes = dtype_bytes(types[t], (uint64_t)n_in * n_out);
        uint64_t n_copies = pool_bytes / bytes;
        for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double best = 1e30;
            uint64_t copy = 0, end = now_ns() + RUN_NS;
            do {
                /* A group of products at a time, so that the clock does not weigh. */
                uint32_t n = rows[i] <= 4 ? 4 : 1;
                uint64_t start = now_ns();
                for (uint32_t k = 0; k < n; k++) {
                    dev_weight w = {dev_offset(weights, copy++ % n_copies * bytes), types[t], n_in,
                                    n_out, 0};
                    if (d.b->matmul(d.q, out, &w, x, (dev_ptr){0}, rows[i]) != ST_OK) exit(1);
                }
                double ns = (double)(now_ns() - start) / n;
                if (ns < best) best = ns;
            } while (now_ns() < end);
            double flops = 2.0 * n_in * n_out * rows[i];
            printf("%-6s %u thread%s %4u rows: %7.1f GB/s %8.1f GFLOP/s\n",
                   dtype_get(types[t])->name, n_threads, n_threads == 1 ? " " : "s", rows[i],
                   (double)bytes / best, flops / best);
        }
    }
    d.b->free(d.d, weights, pool_bytes);
    d.b->free(d.d, x, 4ull * ROWS_MAX * n_in);
    d.b->free(d.d, out, 4ull * ROWS_MAX * n_out);
    close_device(&d);
}

/* n_rows rows that end at position n_keys - 1 of one sequence. */
static void bench_attention(const char *isa, uint32_t n_threads, dtype type, uint32_t n_keys,
                            uint32_t n_rows)
{
    enum { HEADS = 32, KV_HEADS = 8, HEAD = 128 };
    device d = open_device(isa, n_threads);
    uint32_t n_blocks = (n_keys + KV_BLOCK - 1) / KV_BLOCK;
    uint64_t pool = dtype_bytes(type, (uint64_t)n_blocks * KV_HEADS * KV_BLOCK * HEAD);
    uint64_t x_bytes = 4ull * n_rows * HEADS * HEAD;
    kv_args kv = {get(&d, pool), get(&d, pool), type, KV_HEADS, HEAD};
    dev_ptr x = get(&d, x_bytes), out = get(&d, x_bytes);
    fill(kv.k, type, pool);
    fill(kv.v, type, pool);
    fill(x, DT_F32, x_bytes);
    row_args rows = {get(&d, 4ull * n_rows), get(&d, 4ull * n_rows), get(&d, 4ull * n_blocks),
                     get(&d, n_rows), 0, 0};
    for (uint32_t r = 0; r < n_rows; r++) {
        ((uint32_t *)(uintptr_t)rows.position.addr)[r] = n_keys - n_rows + r;
        ((uint8_t *)(uintptr_t)rows.live.addr)[r] = 1;
    }
    for (uint32_t i = 0; i < n_blocks; i++) ((uint32_t *)(uintptr_t)rows.tables.addr)[i] = i;
    double best = 1e30;
    uint64_t end = now_ns() + RUN_NS;
    do {
        uint64_t start = now_ns();
        if (d.b->attention(d.q, out, x, &kv, &rows, HEADS, 0.088f, 0, n_rows) != ST_OK) exit(1);
        double ns = (double)(now_ns() - start);
        if (ns < best) best = ns;
    } while (now_ns() < end);
    double keys = 0;
    for (uint32_t r = 0; r < n_rows; r++) keys += n_keys - n_rows + r + 1;
    printf("attention %-4s %u thread%s %4u rows to %u keys, 32/8 heads of 128: %8.1f us, "
           "%.1f GFLOP/s\n",
           dtype_get(type)->name, n_threads, n_threads == 1 ? " " : "s", n_rows, n_keys,
           best / 1000, 4.0 * keys * HEADS * HEAD / best);
    d.b->free(d.d, kv.k, pool);
    d.b->free(d.d, kv.v, pool);
    d.b->free(d.d, x, x_bytes);
    d.b->free(d.d, out, x_bytes);
    d.b->free(d.d, rows.position, 4ull * n_rows);
    d.b->free(d.d, rows.table, 4ull * n_rows);
    d.b->free(d.d, rows.tables, 4ull * n_blocks);
    d.b->free(d.d, rows.live, n_rows);
    close_device(&d);
}

int main(int argc, char **argv)
{
    const char *isa = argc > 1 ? argv[1] : "auto";
    uint32_t n_in = argc > 3 ? (uint32_t)atoi(argv[2]) : 4096;
    uint32_t n_out = argc > 3 ? (uint32_t)atoi(argv[3]) : 4096;
    if (n_in == 0 || n_in % 32 != 0 || n_in > 65536 || n_out == 0 || n_out > 65536) {
        fprintf(stderr, "kernels_bench: n_in is a multiple of 32; both are 1 to 65536\n");
        return 2;
    }
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    for (uint32_t n_threads = 1; n_threads <= (uint32_t)n_cpus; n_threads *= 2) {
        bench_matmul(isa, n_threads, n_in, n_out);
        bench_attention(isa, n_threads, DT_F16, 1024, 1);
        bench_attention(isa, n_threads, DT_F16, 1024, 256);
        printf("\n");
    }
    return 0;
}
