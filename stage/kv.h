/* kv.h - a stage's KV cache: pools per layer, block tables per branch, token history per block.
 *
 * Blocks of KV_BLOCK positions are ids that the coordinator hands out; an id means the same
 * positions in every stage's own memory and in every layer's pool. A branch is one sequence:
 * closed, or open under a generation with a table of blocks. Tables and histories live in host
 * memory (host_layout of common/plan.h), pools on the device.
 *
 * A block may stand in several tables (a shared prefix); users counts them, and what more than one
 * table holds is never written: a fork copies first. Owns nothing of the host memory; owns the
 * pools.
 *
 * Classes: only KV_CLASS_GLOBAL has blocks in this build; operations on others and snapshots of
 * state are refused by name. */
#ifndef STAGE_KV_H
#define STAGE_KV_H

#include "common/model.h"
#include "common/plan.h"
#include "common/wire.h"
#include "kernels/backend.h"

typedef struct {
    uint32_t open; /* 0 or 1 */
    uint32_t generation;
    uint32_t n_entries;     /* blocks in its table */
    uint32_t step;          /* the last step with a live row of it */
    uint32_t last_position; /* of that step's rows so far */
    uint32_t step_table;    /* where its table stands among the step's; WIRE_NONE: not yet */
} kv_branch;
_Static_assert(sizeof(kv_branch) == PLAN_BRANCH_BYTES, "as planned");

typedef struct {
    const backend *b;
    backend_device *device;
    uint32_t n_ctx, n_branches, n_blocks, per_ctx, n_layers;
    dtype type;
    uint32_t n_kv_heads, n_head;
    dev_ptr pools; /* [n_layers, 2, n_blocks, n_kv_heads, KV_BLOCK, n_head] */
    uint64_t pool_bytes, bytes;
    kv_branch *branches; /* [n_branches] */
    uint32_t *tables;    /* [n_branches, per_ctx] */
    uint32_t *users;     /* [n_blocks]: table entries that name the block */
    uint32_t *history;   /* [n_blocks, KV_BLOCK] tokens; NULL: not kept */
    uint32_t step;       /* counts kv_step_begin */
} kv_cache;

/* Allocate the pools of n_layers layers, zeroed. host: zeroed memory of `at`, which must outlive
 * the cache. ST_RESOURCES; *out can be closed then too. */
MUST_USE status kv_open(kv_cache *out, const backend *b, backend_device *device,
                        const model_desc *m, uint32_t n_layers, dtype type, const stage_limits *l,
                        char *host, const host_layout *at, errmsg *e);
void kv_close(kv_cache *c);

/* Check and apply operations in order; each is checked whole before it is applied. ST_PROTOCOL
 * names operation, field and bound: the ones before it have been applied then. Rules beyond wire.h:
 * OPEN: the branch is closed. FORK: the branch is open and empty, branch b another open one, whose
 * table covers a / KV_BLOCK blocks. ALLOC: a is at most the number of entries (a replaced entry is
 * let go). COPY, WIPE: block a stands in at most one table; branch and generation are not read. */
MUST_USE status kv_ops(kv_cache *c, backend_queue *q, const wire_kv_op *ops, uint32_t n_ops,
                       errmsg *e);

/* One layer's pools. */
kv_args kv_layer(const kv_cache *c, uint32_t layer_i);

/* Start the checks of a step's rows. */
void kv_step_begin(kv_cache *c);

/* A live row may write: its branch is open under its generation, the table covers the position, the
 * block is no one else's, and positions of one branch ascend within the step. row_i names the
 * row in messages. */
MUST_USE status kv_row_check(kv_cache *c, const wire_row *r, uint32_t row_i, errmsg *e);

/* Place the table of a checked row's branch among the step's tables, once per step, and remember
 * the row's token. *n_used: entries used in tables so far. Returns where the table starts. */
uint32_t kv_row_place(kv_cache *c, const wire_row *r, uint32_t *tables, uint32_t *n_used);

/* The n <= position + 1 tokens that end at position, oldest first; the cache keeps history. */
void kv_history(const kv_cache *c, uint32_t branch, uint32_t position, uint32_t *out, uint32_t n);

#endif
