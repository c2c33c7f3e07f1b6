/* bench_bandwidth.h - how fast this machine reads memory: what a token's bytes are compared with.
 *
 * Threads, pinned to nothing, read a buffer of their own part after part from its start to its end,
 * all at the same time, and only sum it. The buffer is much larger than the caches where the memory
 * allows. Several read loops are tried (plain, four streams, prefetched; AVX2 or AVX-512 where the
 * processor has them), each several times; the best counts: a bound that a read of weights can come
 * near to and not pass. */
#ifndef COORDINATOR_BENCH_BANDWIDTH_H
#define COORDINATOR_BENCH_BANDWIDTH_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double bytes_per_s; /* the best */
    uint32_t n_threads;
    uint64_t buffer_bytes; /* all threads together */
    uint64_t cache_bytes;  /* the largest cache of this machine; 0: unknown */
    bool beyond_cache;     /* the buffer is at least twice that cache */
    const char *loop;      /* the read loop that was best, static */
} bandwidth;

/* Measure with n_threads (0: one per usable core); takes about a second. ST_RESOURCES: no memory or
 * no threads; ST_INTERRUPTED: *interrupt became non-zero. */
MUST_USE status bandwidth_measure(bandwidth *out, uint32_t n_threads, const volatile int *interrupt,
                                  errmsg *e);

#endif
