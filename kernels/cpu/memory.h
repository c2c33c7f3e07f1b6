/* memory.h - zeroed host memory for tensors, 64-byte aligned. */
#ifndef KERNELS_CPU_MEMORY_H
#define KERNELS_CPU_MEMORY_H

#include "common/status.h"

#include <stdint.h>

/* Zeroed memory of `bytes` (> 0), 64-byte aligned. ST_RESOURCES: *e says how much was asked and
 * what is there (the process's limit or the machine's free memory); *out is NULL then. Asking for
 * more than the machine has available is refused here, rather than found out when a page is
 * touched. */
MUST_USE status memory_alloc(void **out, uint64_t bytes, errmsg *e);

/* Give back what memory_alloc returned for the same number of bytes. */
void memory_free(void *p, uint64_t bytes);

#endif
