/* prefix.h - which KV blocks hold what: sessions that begin with the same tokens share them.
 *
 * A whole block is known by its KV_BLOCK tokens and by the entry of the block before it, so that
 * equal entries mean equal tokens from position 0 on, and by the law equal bits. Entries are
 * compared token by token; the hash only finds them. The table holds one reference to each of its
 * blocks: what it holds alone is let go, least recently used first, when blocks are needed. A block
 * that is in the table is never written: kvbooks.c copies what is shared. Only whole blocks whose
 * rows are done are entered, and only for sessions that asked to share; models with window layers
 * have none (their blocks of the window are released while it slides). One per block, indexed by
 * its id. Lock held. */
#ifndef COORDINATOR_PREFIX_H
#define COORDINATOR_PREFIX_H

#include "common/status.h"
#include "coordinator/engine/kvpool.h"

#include <stdbool.h>

/* An entry, as those remember it who found or made it: it is there while its block has that
 * serial. */
typedef struct {
    uint32_t block;
    uint64_t serial;  /* 0: none, which stands before a first block */
} prefix_link;

typedef struct {
    uint64_t serial;  /* of this entry, never used again; 0: none */
    prefix_link parent;
    uint64_t used;    /* when it was last found */
    uint32_t n_children;
    uint32_t next;    /* in its bucket; UINT32_MAX: none */
} prefix_entry;

typedef struct {
    kvpool *pool;
    uint32_t n_entries, n_buckets, block_tokens;
    prefix_entry *entry; /* [n_blocks of the pool] */
    uint32_t *tokens;    /* [n_blocks, block_tokens] */
    uint32_t *bucket;    /* [n_buckets]: first block */
    uint64_t next_serial, clock;
} prefix_table;

/* ST_RESOURCES; close what was opened, also after an error. */
MUST_USE status prefix_open(prefix_table *out, kvpool *pool, uint32_t block_tokens, errmsg *e);
void prefix_close(prefix_table *t);

/* The entry that follows `parent` with these tokens; false: not known. */
MUST_USE bool prefix_find(prefix_table *t, prefix_link parent, const uint32_t *tokens,
                          prefix_link *out);

/* Enter a block; takes a reference. False: its parent is gone, or the block is entered already. */
MUST_USE bool prefix_enter(prefix_table *t, uint32_t block, prefix_link parent,
                           const uint32_t *tokens, prefix_link *out);

/* Let go of the block that was not found for the longest time, of those that nobody else holds and
 * that none follows. False: there is none. */
MUST_USE bool prefix_evict(prefix_table *t);

/* Forget this block, if it is entered: nobody finds it, nor what follows it, any more. */
void prefix_forget(prefix_table *t, uint32_t block);

/* Forget every block that nobody else holds, also those that others follow: what is left is in the
 * tables of open sessions. */
void prefix_forget_unheld(prefix_table *t);

#endif
