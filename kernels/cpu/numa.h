/* numa.h - binding threads and memory to one NUMA node, by hwloc. */
#ifndef KERNELS_CPU_NUMA_H
#define KERNELS_CPU_NUMA_H

#include "common/status.h"

#include <stdint.h>

typedef struct numa numa;

/* Node number `node` as the operating system counts. ST_RESOURCES: no such node, none of its
 * processors may be used, or no memory; *e lists the nodes there are; *out is NULL then. */
MUST_USE status numa_open(numa **out, uint32_t node, errmsg *e);
void numa_close(numa *n); /* NULL is legal */

/* Bind the calling thread to the node's processors. What the kernel refuses is logged as a warning:
 * results do not depend on it. */
void numa_bind_thread(numa *n);

/* Ask for pages of [p, p + bytes) on the node, before they are touched. Refusals as above. */
void numa_bind_memory(numa *n, void *p, uint64_t bytes);

#endif
