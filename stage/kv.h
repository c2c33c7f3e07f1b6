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
 * Classes (common/kvclass.h) have pools, tables and counts of their own. A table of the window
 * class loses its first entries as they slide out (KV_RELEASE); an entry that was released is
 * WIRE_NONE and is never read: a row is refused whose window begins before the entries that are
 * left. A model without window layers has the global class only; operations on a class without
 * blocks and snapshots of state are refused by name. */
#ifndef STAGE_KV_H
#define STAGE_KV_H

#include "common/loan.h"
#include "common/model.h"
#include "common/plan.h"
#include "common/wire.h"
#include "kernels/backend.h"

typedef struct {
    uint32_t first, n;   /* entries [first, n) hold blocks; those below first were released */
    uint32_t step_table; /* where it stands among the step's tables; WIRE_NONE: not yet */
} kv_table;

typedef struct {
    uint32_t open; /* 0 or 1 */
    uint32_t generation;
    uint32_t step;          /* the last step with a live row of it */
    uint32_t last_position; /* of that step's rows so far */
    kv_table table[KV_POOLS];
} kv_branch;
_Static_assert(sizeof(kv_branch) == PLAN_BRANCH_BYTES, "as planned");

/* Whose the pools are: alloc's; alloc's of kernels/loan.h; another process's. */
typedef enum { POOLS_OWN, POOLS_LENT, POOLS_BORROWED } pool_holder;

/* The blocks of one class. */
typedef struct {
    uint32_t n_blocks, n_layers;
    pool_holder holder;
    dev_ptr pools; /* [n_layers, 2, n_blocks, n_kv_heads, KV_BLOCK, n_head] */
    uint64_t pool_bytes, bytes;
    uint32_t *tables; /* [n_branches, per_ctx] */
    uint32_t *users;  /* [n_blocks]: table entries that name the block */
} kv_pool;

typedef struct {
    const backend *b;
    backend_device *device;
    uint32_t n_ctx, n_branches, per_ctx, n_layers;
    uint32_t window;  /* of window layers */
    uint32_t n_pools; /* classes that the model has: those below */
    dtype type;
    uint32_t n_kv_heads, n_head;
    kv_pool pool[KV_POOLS];
    struct {
        kv_class class;
        uint32_t i; /* among its class's layers of this range */
    } layer[LAYERS_MAX];
    kv_branch *branches; /* [n_branches] */
    uint32_t *history;   /* [n_blocks, KV_BLOCK] tokens, by the global class; NULL: not kept */
    uint32_t step;       /* counts kv_step_begin */
    bool rewriting;      /* the rows of a replay: kv_rewrite */
} kv_cache;

/* One range's place in a loan, in the hands of an incarnation. */
typedef struct {
    const loan *in;
    uint32_t range, epoch;
} kv_place;

/* Allocate the pools of the layers [layer_begin, layer_end), zeroed. host: zeroed memory of `at`,
 * which must outlive the cache. lent: NULL, or where others find the pools, said there at once:
 * they are zeroed for the first incarnation only. ST_RESOURCES; *out can be closed then too. */
MUST_USE status kv_open(kv_cache *out, const backend *b, backend_device *device,
                        const model_desc *m, uint32_t layer_begin, uint32_t layer_end, dtype type,
                        const stage_limits *l, char *host, const host_layout *at,
                        const kv_place *lent, errmsg *e);
void kv_close(kv_cache *c);

/* The pools of another stage's cache, as that incarnation of it has lent them, on a device of the
 * same kind: only kv_layer and kv_close may be called. Whoever closes has no work on its way in
 * them. ST_PROTOCOL, ST_RESOURCES; *out can be closed then too. */
MUST_USE status kv_borrow(kv_cache *out, const kv_cache *like, const model_desc *m,
                          uint32_t layer_begin, uint32_t layer_end, const kv_place *from,
                          errmsg *e);

uint64_t kv_bytes(const kv_cache *c); /* of all pools */

/* Check and apply operations in order; each is checked whole before it is applied. ST_PROTOCOL
 * names operation, field and bound: the ones before it have been applied then. Rules beyond wire.h:
 * OPEN: the branch is closed. FORK: the branch is open, its table empty, branch b another open one,
 * whose table covers a / KV_BLOCK blocks; what b has released the fork does not have either. ALLOC:
 * a is at most the number of entries (a replaced entry is let go) and not released. RELEASE: class
 * window, a at most the number of entries. COPY, WIPE: block a stands in at most one table; branch
 * and generation are not read; tokens go with the global class. */
MUST_USE status kv_ops(kv_cache *c, backend_queue *q, const wire_kv_op *ops, uint32_t n_ops,
                       errmsg *e);

/* Close every branch and forget all tables; the pools keep their bytes. */
void kv_reset(kv_cache *c);

/* Until told otherwise rows are those of a replay. They may lie in blocks that several tables have:
 * what they write is what stood there. */
void kv_rewrite(kv_cache *c, bool on);

/* One layer's pools. */
kv_args kv_layer(const kv_cache *c, uint32_t layer_i);

/* Start the checks of a step's rows. */
void kv_step_begin(kv_cache *c);

/* A live row may write: its branch is open under its generation, the tables cover the position (the
 * window class: the whole window that ends there), the blocks are no one else's, and positions of
 * one branch ascend within the step. row_i names the row in messages. */
MUST_USE status kv_row_check(kv_cache *c, const wire_row *r, uint32_t row_i, errmsg *e);

/* Place the tables of a checked row's branch among the step's tables, once per step, and remember
 * the row's token. *n_used: entries used in tables so far. at[class]: where its table starts, for
 * the model's classes. */
void kv_row_place(kv_cache *c, const wire_row *r, uint32_t *tables, uint32_t *n_used,
                  uint32_t at[KV_POOLS]);

/* The token of a placed row is another one. */
void kv_row_remember(kv_cache *c, const wire_row *r);

/* The global block that a placed row's position lies in. */
uint32_t kv_block_of(const kv_cache *c, uint32_t branch, uint32_t position);

/* The n <= position + 1 tokens that end at position, oldest first; the cache keeps history. */
void kv_history(const kv_cache *c, uint32_t branch, uint32_t position, uint32_t *out, uint32_t n);

#endif
