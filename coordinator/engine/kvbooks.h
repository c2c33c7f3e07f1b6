/* kvbooks.h - a session's KV blocks as the coordinator keeps them: tables, pools, admission.
 *
 * Whatever changes a table puts an operation into the pipeline's list, which goes with the next
 * step, in order; stages take steps in order, so a block that was let go may be handed out at once.
 * A block that is shared (fork) is copied before anything is written into it.
 *
 * Global blocks are taken for a whole request when it is submitted. Window blocks are taken and
 * released step by step, when one is issued: a session holds at most pipeline.window_blocks of
 * them, and only lets go of what slid out when it needs another. Their number is reserved on
 * submission, so that taking one never fails. All calls with the pipeline's lock held. */
#ifndef COORDINATOR_KVBOOKS_H
#define COORDINATOR_KVBOOKS_H

#include "coordinator/engine/engine.h"

/* Pools for p's plan; close what was opened, also after an error. */
MUST_USE status kvbooks_open(pipeline *p, errmsg *e);
void kvbooks_close(pipeline *p);

/* The tables of a new session; false: no memory. free is safe then too. */
MUST_USE bool kvbooks_make(session *s);
void kvbooks_free(session *s);

/* Room for n more operations in p's list. ST_RESOURCES. */
MUST_USE status kvbooks_room(pipeline *p, uint64_t n, errmsg *e);
/* Put one there: room was made before. */
void kvbooks_put(const session *s, kv_op_kind kind, kv_class class, uint32_t a, uint32_t b,
                 uint32_t c);

/* Blocks for all positions below end, of which those from `from` on will be written. Prefixes that
 * nobody holds are let go for them. ST_RESOURCES: not enough; nothing has changed. */
MUST_USE status kvbooks_reserve(session *s, uint64_t from, uint64_t end, errmsg *e);

/* Take over the blocks of others that hold the same tokens from position 0 on: s holds none.
 * s->n_adopted: positions, whole blocks, at most n. ST_RESOURCES: no memory for the operations. */
MUST_USE status kvbooks_adopt(session *s, const uint32_t *tokens, uint64_t n, errmsg *e);
/* The rows below n_done are done: let others have its whole blocks. */
void kvbooks_offer(session *s, uint64_t n_done);

/* Blocks that are free now, and those that the session holds. */
uint32_t kvbooks_free_blocks(const pipeline *p);

/* Before the rows of positions [position, position + n_rows) are issued: window blocks for them.
 * Asking again is harmless. ST_RESOURCES: no memory for the operations. */
MUST_USE status kvbooks_slide(session *s, uint64_t position, uint32_t n_rows, errmsg *e);

/* There are blocks for a fork of s. ST_RESOURCES. */
MUST_USE status kvbooks_can_fork(const session *s, errmsg *e);
/* to, an open session without blocks, gets s's up to s->position; the last, partly filled ones are
 * copied. After kvbooks_can_fork, with room for KVBOOKS_FORK_OPS operations. */
#define KVBOOKS_FORK_OPS (4u * KV_POOLS)
void kvbooks_fork(const session *s, session *to);

/* Forget positions >= n. ST_RESOURCES: no memory for the operations; nothing has changed. */
MUST_USE status kvbooks_truncate(session *s, uint64_t n, errmsg *e);

/* A row at position n could not see its whole window: blocks of it were released. */
bool kvbooks_window_gone(const session *s, uint64_t n);

/* There are blocks for n positions once s has let go of its own. ST_RESOURCES. */
MUST_USE status kvbooks_can_renew(const session *s, uint64_t n, errmsg *e);

/* What s holds from that position's block on is not to be read by others: its blocks are wiped when
 * they are taken again, whoever lets go of them last, and nobody new takes them over. */
void kvbooks_taint(session *s, uint64_t position);

/* Let go of everything. */
void kvbooks_drop(session *s);

#endif
