/* kvpool.h - which KV blocks are in use: the coordinator's books.
 *
 * A block id means the same positions in every stage's own memory. Blocks are counted: a fork
 * shares whole blocks; a block goes back when the last session that has it lets go. Ids are handed
 * out lowest first. A block of a session that was poisoned is tainted: who takes it has it
 * wiped. */
#ifndef COORDINATOR_KVPOOL_H
#define COORDINATOR_KVPOOL_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t n_blocks, n_used;
    uint32_t *refs; /* [n_blocks] */
    bool *tainted;  /* [n_blocks] */
} kvpool;

MUST_USE status kvpool_open(kvpool *out, uint32_t n_blocks, errmsg *e);
void kvpool_close(kvpool *p);
/* A free block with one holder, or UINT32_MAX when there is none. It may be tainted. */
uint32_t kvpool_take(kvpool *p);
void kvpool_taint(kvpool *p, uint32_t block);
/* The block is one's own; true: it was tainted, and is to be wiped before anything else. */
bool kvpool_untaint(kvpool *p, uint32_t block);
void kvpool_share(kvpool *p, uint32_t block);
void kvpool_drop(kvpool *p, uint32_t block);

#endif
