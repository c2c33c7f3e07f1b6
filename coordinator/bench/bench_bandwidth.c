#include "coordinator/bench/bench_bandwidth.h"

#include "common/amount.h"
#include "common/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BUFFER_MIN (256ull << 20)
#define BUFFER_MAX (4ull << 30)
#define ROUNDS     4u
/* Every loop has its first turn, further ones while there is time. */
#define LIMIT_NS (3 * NS_PER_S)
#define THREADS_MAX 256u
#define LINE_WORDS  8u
#define PART_ALIGN  4096u
#define FILL_WORDS  (1u << 17) /* between two looks at the interrupt */

/* --- read loops: the sum of n words (a multiple of 4 * 512) -------------------------------- */

typedef uint64_t (*read_loop)(const uint64_t *p, uint64_t n);

static uint64_t read_plain(const uint64_t *p, uint64_t n)
{
    uint64_t s[LINE_WORDS] = {0};
    for (uint64_t i = 0; i < n; i += LINE_WORDS) {
        for (uint32_t k = 0; k < LINE_WORDS; k++)
            s[k] += p[i + k];
    }
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

#if defined(__x86_64__)
static __attribute__((target("avx2"))) uint64_t sum_avx2(__m256i a, __m256i b)
{
    __m256i s = _mm256_add_epi64(a, b);
    return (uint64_t)_mm256_extract_epi64(s, 0) + (uint64_t)_mm256_extract_epi64(s, 1) +
           (uint64_t)_mm256_extract_epi64(s, 2) + (uint64_t)_mm256_extract_epi64(s, 3);
}

static __attribute__((target("avx2"))) uint64_t read_avx2(const uint64_t *p, uint64_t n)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    for (uint64_t i = 0; i < n; i += LINE_WORDS) {
        _mm_prefetch((const char *)(p + i + 256), _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_load_si256((const __m256i *)(p + i)));
        b = _mm256_add_epi64(b, _mm256_load_si256((const __m256i *)(p + i + 4)));
    }
    return sum_avx2(a, b);
}

/* Four places at once: more misses in flight. */
static __attribute__((target("avx2"))) uint64_t read_avx2_streams(const uint64_t *p, uint64_t n)
{
    __m256i s[4];
    for (uint32_t k = 0; k < 4; k++)
        s[k] = _mm256_setzero_si256();
    uint64_t part = n / 4;
    for (uint64_t i = 0; i < part; i += LINE_WORDS) {
        for (uint32_t k = 0; k < 4; k++) {
            const __m256i *at = (const __m256i *)(p + k * part + i);
            s[k] = _mm256_add_epi64(
                s[k], _mm256_add_epi64(_mm256_load_si256(at), _mm256_load_si256(at + 1)));
        }
    }
    return sum_avx2(_mm256_add_epi64(s[0], s[1]), _mm256_add_epi64(s[2], s[3]));
}

static __attribute__((target("avx512f"))) uint64_t read_avx512(const uint64_t *p, uint64_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a;
    for (uint64_t i = 0; i < n; i += 2 * LINE_WORDS) {
        _mm_prefetch((const char *)(p + i + 256), _MM_HINT_T0);
        _mm_prefetch((const char *)(p + i + 264), _MM_HINT_T0);
        a = _mm512_add_epi64(a, _mm512_load_si512(p + i));
        b = _mm512_add_epi64(b, _mm512_load_si512(p + i + 8));
    }
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
}

static __attribute__((target("avx512f"))) uint64_t read_avx512_streams(const uint64_t *p,
                                                                       uint64_t n)
{
    __m512i s[4];
    for (uint32_t k = 0; k < 4; k++)
        s[k] = _mm512_setzero_si512();
    uint64_t part = n / 4;
    for (uint64_t i = 0; i < part; i += LINE_WORDS) {
        for (uint32_t k = 0; k < 4; k++)
            s[k] = _mm512_add_epi64(s[k], _mm512_load_si512(p + k * part + i));
    }
    return (uint64_t)_mm512_reduce_add_epi64(
        _mm512_add_epi64(_mm512_add_epi64(s[0], s[1]), _mm512_add_epi64(s[2], s[3])));
}
#endif

typedef struct {
    const char *name;
    read_loop read;
} loop_entry;

#define LOOPS_MAX 5u
static uint32_t loops_here(loop_entry out[LOOPS_MAX])
{
    uint32_t n = 0;
    out[n++] = (loop_entry){"plain", read_plain};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        out[n++] = (loop_entry){"avx2", read_avx2};
        out[n++] = (loop_entry){"avx2, four streams", read_avx2_streams};
    }
    if (__builtin_cpu_supports("avx512f")) {
        out[n++] = (loop_entry){"avx512", read_avx512};
        out[n++] = (loop_entry){"avx512, four streams", read_avx512_streams};
    }
#endif
    return n;
}

/* --- threads ------------------------------------------------------------------------------- */

typedef struct {
    pthread_mutex_t starting; /* held until all readers are there, or one could not be had: */
    bool refused;             /* then they end before they meet */
    pthread_barrier_t barrier;
    read_loop read;
    bool over;
    const volatile int *interrupt;
} crew;

typedef struct {
    crew *crew;
    uint64_t *part, n_words;
    uint64_t sum;              /* so that the reads are wanted */
    uint64_t begin_ns, end_ns; /* of the last round */
    pthread_t thread;
} reader;

/* Fills its own part first, which places the memory near it. Times itself: whoever waits for the
 * others may be woken late. */
static void *reader_main(void *reader_)
{
    reader *r = reader_;
    pthread_mutex_lock(&r->crew->starting);
    pthread_mutex_unlock(&r->crew->starting);
    if (r->crew->refused) return NULL;
    for (uint64_t i = 0; i < r->n_words; i++) {
        if (i % FILL_WORDS == 0 && *r->crew->interrupt != 0) break;
        r->part[i] = i;
    }
    for (;;) {
        pthread_barrier_wait(&r->crew->barrier);
        if (r->crew->over) return NULL;
        r->begin_ns = now_ns();
        r->sum += r->crew->read(r->part, r->n_words);
        r->end_ns = now_ns();
        pthread_barrier_wait(&r->crew->barrier);
    }
}

static uint64_t largest_cache(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    long c = l3 > 0 ? l3 : l2;
    return c > 0 ? (uint64_t)c : 0;
}

/* Twice the largest cache and a bit, within bounds and a fifth of what is free. */
static uint64_t buffer_size(uint64_t cache)
{
    uint64_t bytes = 2 * cache + cache / 8;
    if (bytes < BUFFER_MIN) bytes = BUFFER_MIN;
    if (bytes > BUFFER_MAX) bytes = BUFFER_MAX;
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t room = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 5 : BUFFER_MIN;
    return bytes < room ? bytes : room;
}

static uint32_t cores_usable(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* One timed read of all parts: from the first begin to the last end. */
static double round_bytes_per_s(crew *c, const reader *r, uint32_t n, uint64_t bytes)
{
    pthread_barrier_wait(&c->barrier);
    pthread_barrier_wait(&c->barrier);
    uint64_t begin = r[0].begin_ns, end = r[0].end_ns;
    for (uint32_t i = 1; i < n; i++) {
        if (r[i].begin_ns < begin) begin = r[i].begin_ns;
        if (r[i].end_ns > end) end = r[i].end_ns;
    }
    return (double)bytes * 1e9 / (double)(end - begin + 1);
}

static void measure(bandwidth *out, crew *c, const reader *r, const volatile int *interrupt)
{
    loop_entry loops[LOOPS_MAX];
    uint32_t n = loops_here(loops);
    uint64_t begin = now_ns();
    for (uint32_t i = 0; i < n * ROUNDS && *interrupt == 0; i++) {
        if (i >= n && now_ns() - begin > LIMIT_NS) break;
        c->read = loops[i % n].read;
        double b = round_bytes_per_s(c, r, out->n_threads, out->buffer_bytes);
        if (b <= out->bytes_per_s) continue;
        out->bytes_per_s = b;
        out->loop = loops[i % n].name;
    }
    c->over = true;
    pthread_barrier_wait(&c->barrier);
}

/* All readers, or none: the ones that started before one could not be had end at once. */
static status crew_run(bandwidth *out, reader *r, const volatile int *interrupt, errmsg *e)
{
    crew c = {.interrupt = interrupt};
    if (pthread_barrier_init(&c.barrier, NULL, out->n_threads + 1) != 0)
        return errmsg_set(e, ST_RESOURCES, "no barrier to measure the read bandwidth with");
    pthread_mutex_init(&c.starting, NULL);
    pthread_mutex_lock(&c.starting);
    uint32_t n = 0;
    while (n < out->n_threads) {
        r[n].crew = &c;
        if (pthread_create(&r[n].thread, NULL, reader_main, &r[n]) != 0) break;
        n++;
    }
    c.refused = n < out->n_threads;
    pthread_mutex_unlock(&c.starting);
    if (n == out->n_threads) measure(out, &c, r, interrupt);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(r[i].thread, NULL);
    pthread_barrier_destroy(&c.barrier);
    pthread_mutex_destroy(&c.starting);
    if (n < out->n_threads)
        return errmsg_set(e, ST_RESOURCES, "only %u of %u threads could be started", n,
                          out->n_threads);
    return *interrupt != 0 ? errmsg_set(e, ST_INTERRUPTED, "interrupted") : ST_OK;
}

status bandwidth_measure(bandwidth *out, uint32_t n_threads, const volatile int *interrupt,
                         errmsg *e)
{
    if (n_threads == 0) n_threads = cores_usable();
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    uint64_t cache = largest_cache(), unit = 4 * PART_ALIGN;
    uint64_t part = (buffer_size(cache) / n_threads / unit + 1) * unit, bytes = part * n_threads;
    *out = (bandwidth){.n_threads = n_threads,
                       .cache_bytes = cache,
                       .buffer_bytes = bytes,
                       .beyond_cache = bytes >= 2 * cache};
    reader *r = calloc(n_threads, sizeof *r);
    void *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r == NULL || buffer == MAP_FAILED) {
        free(r);
        if (buffer != MAP_FAILED) munmap(buffer, bytes);
        return errmsg_set(e, ST_RESOURCES,
                          "no memory to measure the read bandwidth with: %s are needed (ulimit -v "
                          "bounds it too)",
                          amount_said(bytes));
    }
    madvise(buffer, bytes, MADV_HUGEPAGE);
    for (uint32_t i = 0; i < n_threads; i++) {
        r[i].part = (uint64_t *)((char *)buffer + part * i);
        r[i].n_words = part / sizeof(uint64_t);
    }
    status s = crew_run(out, r, interrupt, e);
    munmap(buffer, bytes);
    free(r);
    return s;
}
