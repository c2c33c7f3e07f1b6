/* gpus.h - the CUDA devices of this machine, asked of a short-lived memra-stage --probe: this
 * program links no CUDA, and a driver that hangs costs the time limit, not the run. */
#ifndef COORDINATOR_GPUS_H
#define COORDINATOR_GPUS_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define GPUS_MAX 64u

typedef struct {
    uint32_t ordinal, major, minor; /* compute capability */
    uint64_t memory_bytes, memory_free_bytes;
    char uuid[48], name[64];
} gpu;

typedef struct {
    bool built; /* memra-stage has a cuda table */
    uint32_t n;
    gpu at[GPUS_MAX];
} gpu_list;

/* Ask the stage program beside this one, for at most limit_ms. No such program, no answer in time
 * or one of another form: *out is empty, not built, and *e says why (ST_RESOURCES). */
MUST_USE status gpus_read(gpu_list *out, uint32_t limit_ms, errmsg *e);

#endif
