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

#endif
