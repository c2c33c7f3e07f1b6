#include "coordinator/bench/bench_stats.h"

#include "common/clock.h"
#include "common/status.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that is not below `share` of them. */
static double at_share(const double *sorted, uint64_t n, double share)
{
    uint64_t i = (uint64_t)ceil(share * (double)n);
    return sorted[i > 0 ? i - 1 : 0];
}

spread spread_of(double *x, uint64_t n)
{
    CHECK(n > 0);
    qsort(x, n, sizeof *x, ascending);
    return (spread){at_share(x, n, 0.5), at_share(x, n, 0.99), x[n - 1]};
}

uint64_t waits_of(double *out_ms, const uint64_t *told_ns, uint32_t n, uint64_t begin_ns)
{
    uint64_t n_waits = 0, last = begin_ns;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t silence = told_ns[i] - last;
        if (silence >= WAITS_LEAST_NS) out_ms[n_waits++] = (double)silence / NS_PER_MS;
        last = told_ns[i];
    }
    if (n_waits == 0 && n > 0) out_ms[n_waits++] = (double)(last - begin_ns) / n / NS_PER_MS;
    return n_waits;
}

stats stats_of(double *x, uint32_t n)
{
    CHECK(n > 0);
    qsort(x, n, sizeof *x, ascending);
    stats s = {.n = n, .min = x[0], .max = x[n - 1]};
    s.median = n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
    for (uint32_t i = 0; i < n; i++)
        s.mean += x[i] / n;
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (x[i] - s.mean) * (x[i] - s.mean);
    s.sd = n > 1 ? sqrt(squares / (n - 1)) : 0;
    return s;
}
