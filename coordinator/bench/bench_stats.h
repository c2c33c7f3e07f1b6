/* bench_stats.h - what a few repetitions of a measurement say together. */
#ifndef COORDINATOR_BENCH_STATS_H
#define COORDINATOR_BENCH_STATS_H

#include <stdint.h>

typedef struct {
    uint32_t n;
    double mean, sd; /* sd: of the sample (n - 1); 0 for one value */
    double median, min, max;
} stats;

/* n >= 1; sorts x. */
stats stats_of(double *x, uint32_t n);

/* How far single waits go: the values at 50 and 99 % of n, and the last. */
typedef struct {
    double p50, p99, max;
} spread;

/* n >= 1; sorts x. */
spread spread_of(double *x, uint64_t n);

/* How long somebody who is told something at these n times, ascending from begin_ns, waits: into
 * out_ms [n] goes each stretch of silence; how many there are, at least 1 for n >= 1. What comes at
 * once, as the accepted drafts of a step do, is one wait, not one and many of nothing: less than
 * WAITS_LEAST_NS is none (should there be no other, the mean is the one). */
#define WAITS_LEAST_NS 20000u
uint64_t waits_of(double *out_ms, const uint64_t *told_ns, uint32_t n, uint64_t begin_ns);

#endif
