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

#endif
