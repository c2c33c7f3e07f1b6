/* mirror.h - the state that every stage had when the last step that came back ended.
 *
 * Stages are ahead of it by what is in flight, the books (kvbooks.h) by what waits to be issued
 * too. A stage that is replaced is brought to the mirror's state, and the steps in flight are
 * issued to it again. So the mirror follows the same KV operations and rows, in the same order,
 * step by step, as they come back: tables by branch and class, and the token of every position by
 * block, which outlives the session it belonged to as long as an operation in flight may still read
 * its blocks.
 *
 * It is told what the coordinator itself has sent and the stages have applied: an operation that
 * does not fit is a bug. Owned by the engine thread. */
#ifndef COORDINATOR_MIRROR_H
#define COORDINATOR_MIRROR_H

#include "common/plan.h"
#include "common/wire.h"

/* Entries [first, n) hold blocks; those below first were released. */
typedef struct {
    uint32_t first, n;
    uint32_t *block; /* [per_ctx] */
} mirror_table;

typedef struct {
    bool open;
    uint32_t generation;
    uint32_t n; /* positions that hold rows */
    mirror_table table[KV_POOLS];
} mirror_branch;

typedef struct {
    uint64_t seq; /* the last step that came back; 0: none */
    uint32_t n_branches, per_ctx, n_pools, n_blocks[KV_POOLS];
    mirror_branch *branch; /* [n_branches] */
    uint32_t *entries;     /* the tables' memory */
    uint32_t *token;       /* [n_blocks of class global, KV_BLOCK] */
    uint32_t *copied;      /* [n_blocks of class global]: positions that a COPY put there, until the
                              block gets its place in a table */
} mirror;

/* For n_branches branches and the plan's blocks, n_pools classes. ST_RESOURCES; *out can be closed
 * then too. */
MUST_USE status mirror_open(mirror *out, const plan *p, uint32_t n_pools, errmsg *e);
void mirror_close(mirror *m);

/* Step seq, higher than those before it, came back. */
void mirror_step(mirror *m, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops,
                 const wire_row *rows, uint32_t n_rows);

/* A row more of the step that was given last, to its branch: one that was drawn on the way. */
void mirror_row(mirror *m, uint32_t branch, uint32_t position, uint32_t token);

/* The token at a position of an open branch that holds a row. */
uint32_t mirror_token(const mirror *m, uint32_t branch, uint32_t position);

/* users[n_blocks of the class]: how many table entries name each block. */
void mirror_users(const mirror *m, kv_class class, uint32_t *users);

#endif
