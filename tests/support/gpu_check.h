/* gpu_check.h - what the tests on a GPU share: both backends side by side, and data on each.
 *
 * A program begins with gpu_begin: without a CUDA device it prints TAP's skip and the program ends
 * well. Functions assert that the device did what was asked. */
#ifndef TESTS_SUPPORT_GPU_CHECK_H
#define TESTS_SUPPORT_GPU_CHECK_H

#include "kernels/backend.h"
#include "tests/support/kernel_check.h"

typedef struct {
    const backend *b;
    backend_device *d;
    backend_queue *q;
} side;

/* Open the cpu (all threads) and device 0. false: no device; say so and return 0 from main. */
bool gpu_begin(side *cpu, side *gpu, unsigned limit_s);
void gpu_end(side *cpu, side *gpu);

/* Memory with these bytes in it (NULL: zeroed). */
dev_ptr side_put(const side *s, const void *host, uint64_t bytes);
void side_get(const side *s, void *host, dev_ptr from, uint64_t bytes);
void side_free(const side *s, dev_ptr p, uint64_t bytes);

/* Sum (a-b)^2 / sum b^2. */
double distance(const float *a, const float *b, uint64_t n);

#endif
