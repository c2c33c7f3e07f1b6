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
    bool exclusive, mps; /* compute mode is not the default; contexts are shared through MPS */
} gpu;

typedef enum { GPU_LINK_NONE, GPU_LINK_PCIE, GPU_LINK_NVLINK } gpu_link;

typedef struct {
    bool built; /* memra-stage has a cuda table */
    bool asked; /* it was started; what did not come may be the devices' fault */
    uint32_t n;
    gpu at[GPUS_MAX];
    unsigned char link[GPUS_MAX][GPUS_MAX]; /* gpu_link, by place in `at`: from, to */
} gpu_list;

/* Ask the stage program (NULL: the one beside this program), for at most limit_ms. No such program,
 * no answer in time or one of another form: *out is empty, not built, and *e says why
 * (ST_RESOURCES). ST_INTERRUPTED, *out is empty: *interrupt (may be NULL), which is polled, is not
 * 0 any more. */
MUST_USE status gpus_read(gpu_list *out, const char *stage_program, uint32_t limit_ms,
                          const volatile int *interrupt, errmsg *e);

/* The list in that program's words (stage/devices.h). ST_RESOURCES: it is none, and *out is
 * empty. */
MUST_USE status gpus_parse(gpu_list *out, const char *text, errmsg *e);

const gpu *gpus_get(const gpu_list *l, uint32_t ordinal); /* NULL: no such one */
bool gpus_same(const gpu_list *l, uint32_t a, uint32_t b); /* one device, however it is written */
gpu_link gpus_link(const gpu_list *l, uint32_t from, uint32_t to);
const char *gpu_link_word(gpu_link k); /* "NVLink" */

/* Whether stages can run there; otherwise *e says why not and what would help (ST_RESOURCES). */
MUST_USE status gpu_usable(const gpu *g, errmsg *e);

#endif
