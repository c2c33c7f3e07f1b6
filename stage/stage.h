/* stage.h - one stage as an object: a layer range with its weights, KV cache and scratch on one
 * device. No globals, no processes, no messages: several may live in one process (tests, and the
 * same-stream seam).
 *
 * Life of a step: stage_kv_ops, then either stage_embed (first stage) or the boundary's rows into
 * stage_hidden, then stage_walk, then stage_head (last stage) or stage_hidden to the boundary. One
 * thread. Everything from a message is checked against the configuration before it is used:
 * ST_PROTOCOL names field, value and bound. The operations of a step depend on each other, so each
 * is checked when its turn comes and the ones before it have been applied; of rows and samplers
 * nothing has been applied then. A stage that refused is only good for stage_close: the process
 * ends. Zero operations and zero rows are legal everywhere. */
#ifndef STAGE_STAGE_H
#define STAGE_STAGE_H

#include "common/loan.h"
#include "common/model.h"
#include "common/readback.h"
#include "common/wire.h"
#include "kernels/backend.h"

typedef struct stage stage;

/* Told after every layer, load piece and head tile, from the stage's thread. done and total count
 * bytes while loading, layers while walking (all of them, in the head). Non-zero return: stop now
 * (ST_CLOSED). */
typedef int (*stage_progress)(void *ctx, uint64_t done, uint64_t total);

typedef struct {
    const backend *backend;
    const wire_config *config;
    const gguf *file;           /* open as long as the stage */
    const model_desc *model;    /* of file, the same life */
    stage_progress on_progress; /* may be NULL */
    void *progress_ctx;
    const stage *beside;        /* NULL, or an open stage whose device and queue this one uses too: it is
                                   closed after this one */
    const loan *loan;           /* where it lends and borrows; NULL: it does not. The same life */
} stage_options;

/* Check that the backend has every op and type needed (by name, before loading), allocate KV,
 * scratch and host memory (sizes as common/plan.h says), map and load the range. ST_PROTOCOL: the
 * configuration does not fit the model; ST_RESOURCES, ST_BAD_MODEL, ST_CLOSED. *out is NULL on
 * error and nothing stays behind. The configuration and options are copied. */
MUST_USE status stage_open(stage **out, const stage_options *o, errmsg *e);
void stage_close(stage *s);

/* With a loan, before stage_walk_all: every stage has loaded, epoch[s] being its incarnation. What was
 * borrowed before is given back first. ST_PROTOCOL: what is lent is not what the model needs;
 * ST_RESOURCES: it cannot be reached from here; ST_CLOSED. */
MUST_USE status stage_borrow(stage *s, const uint32_t *epoch, errmsg *e);
/* Nothing of another stage is used from here on. Harmless where nothing was borrowed. */
void stage_give_back(stage *s);

typedef struct {
    uint64_t weights_bytes, kv_bytes, scratch_bytes, host_bytes;
    const char *device_name;
} stage_facts;
stage_facts stage_facts_get(const stage *s);

backend_queue *stage_queue(stage *s);

/* Check and apply the KV operations of a step, in order (rules: stage/kv.h). */
MUST_USE status stage_kv_ops(stage *s, const wire_kv_op *ops, uint32_t n_ops, errmsg *e);

/* Forget every branch, as after stage_open; K and V stay where they are. */
void stage_reset(stage *s);

/* The rows of the next stage_rows were here before (a replay): they may lie in blocks that several
 * tables have. Until it is called again with false. */
void stage_rewrite(stage *s, bool on);

/* The KV block (class global) that a row which was given to stage_rows lies in. */
uint32_t stage_block(const stage *s, const wire_row *r);

/* Check the step's rows, put positions, tables and rotations on the device, remember the tokens by
 * KV block (the sampler's history). Every row: known flags, branch < n_branches, position < n_ctx,
 * token < n_vocab, readback (once in a step; none for a row that only samples: the branch's ring) and
 * sampler in range. A live row also: branch open and
 * of that generation, position covered by its table, in a block that no other table has, and above
 * the positions of the branch's rows before it. A dead row writes nothing. rows may go after the
 * call. */
MUST_USE status stage_rows(stage *s, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers,
                           errmsg *e);

/* First stage: the rows' embeddings into stage_hidden. */
MUST_USE status stage_embed(stage *s, errmsg *e);

/* f32 [rows_max, n_embd] on the device: the residual stream between embed or boundary and walk or
 * head. */
dev_ptr stage_hidden(const stage *s);

/* Walk the stage's layers over the rows given to stage_rows. ST_NAN: NaN or infinity in the result
 * of a live row; *e names the stage, its layers, session and position. head_follows: stage_head is
 * the next call, so that a last stage may begin it here; the wait and ST_NAN are stage_head's then. */
MUST_USE status stage_walk(stage *s, bool head_follows, errmsg *e);

/* First stage, after stage_borrow: the same over all layers of the model. */
MUST_USE status stage_walk_all(stage *s, errmsg *e);

/* Wait until the device has done all that was asked of it. */
MUST_USE status stage_settle(stage *s, errmsg *e);

/* Last stage: output norm and head for the live rows that ask for logits or a token, in row order;
 * draws tokens (sampler.h, history by KV block), commits each result with seq. samplers: as many as
 * stage_rows was told; out: n_vocab of the model, at least n_readback rows and n_branches rings. A
 * row of NaN logits is committed with status ST_NAN and no token. ST_PROTOCOL: a sampler that a row
 * names is out of range. *n_committed: results written. drawn: NULL, or [n_rows], the token of each
 * row, TOKEN_NONE where none was drawn. */
MUST_USE status stage_head(stage *s, const sampler_params *samplers, readback *out, uint64_t seq,
                           uint32_t *n_committed, uint32_t *drawn, errmsg *e);

#endif
