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

#include "common/boundary.h"
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

/* Called when all of a walk is on the device and the stage is about to wait for it: host work that
 * nobody waits for. From the stage's thread; an error of it ends the walk. */
typedef status (*stage_meanwhile)(void *ctx, errmsg *e);

typedef struct {
    const backend *backend;
    const wire_config *config;
    const gguf *file;           /* open as long as the stage */
    const model_desc *model;    /* of file, the same life */
    stage_progress on_progress; /* may be NULL */
    void *progress_ctx;
    stage_meanwhile meanwhile;  /* may be NULL */
    void *meanwhile_ctx;
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

/* Where one stage is the whole trunk: rows that go on from the step whose head is in flight
 * (stage_head_begin with feeds), the same rows in the same order, each at its next position. Its token
 * is what it draws there, and it lives unless it draws a stop: both are found on the device, where the
 * walk may be put behind that head at once. What the host knows of them here (dead rows: those that had
 * their rounds) is checked as above. stage_rows_known tells the rest, token and live bit, after that
 * head's end and before the next one begins. */
MUST_USE status stage_rows_ahead(stage *s, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers,
                                 errmsg *e);
void stage_rows_known(stage *s, const wire_row *rows);

/* First stage: the rows' embeddings into stage_hidden. */
MUST_USE status stage_embed(stage *s, errmsg *e);

/* f32 [rows_max, n_embd] on the device: the residual stream between embed or boundary and walk or
 * head. */
dev_ptr stage_hidden(const stage *s);

/* Room for a copy of stage_hidden, on the device and in host memory that it writes fast: for what was
 * sent and is to be kept (keep.h). None, 0 and NULL, where no journal is behind the stage, or ops run
 * in their call. */
dev_ptr stage_sent(const stage *s, float **host);

/* Walk the stage's layers over the rows given to stage_rows. poison [n_rows]: the marks that the rows
 * have; a live one without, whose result holds NaN or infinity, gets this stage's (boundary.h). That
 * is no error: rows do not touch each other. head_follows: a stage_head or stage_head_begin is the next
 * call, so that a last stage need not wait and may begin it here; the marks are the head's then. */
MUST_USE status stage_walk(stage *s, bool head_follows, poison_mark *poison, errmsg *e);

typedef struct {
    const sampler_params *samplers; /* as many as stage_rows was told; read during the call */
    readback *out;                  /* n_vocab of the model, at least n_readback rows and n_branches
                                       rings; until the end */
    uint64_t seq;                   /* what results are committed with */
    uint32_t *drawn;                /* NULL, or [n_rows] until the end: the token of each row,
                                       TOKEN_NONE where none was drawn */
    poison_mark *poison;            /* [n_rows] until the end: the marks that the rows have, and get */
    bool feeds;                     /* stage_rows_ahead follows: what the rows draw in this round, whose
                                       rounds are over then, and which ids stop them */
    uint32_t round;
    const wire_stops *stops;        /* by wire_row.stop_i; read during the call */
} stage_head_args;

/* First stage, after stage_borrow: the same over all layers of the model. */
MUST_USE status stage_walk_all(stage *s, poison_mark *poison, errmsg *e);

/* Wait until the device has done all that was asked of it. */
MUST_USE status stage_settle(stage *s, errmsg *e);

/* Last stage: output norm and head for the live rows that ask for logits or a token, in row order;
 * draws tokens (sampler.h, history by KV block) on the device. stage_head_end waits for it and commits
 * each result with seq. Until then the results of the step's last PLAN_HEAD_ROWS rows (PLAN_LOGITS_ROWS
 * where one wants logits) are on the device, and stage_rows and stage_walk of the next step may come in
 * between: what the host wants is read beside them. What stands before those rows is committed at once.
 * A head that was begun and not ended is dropped by the next stage_head_begin. A row with a mark, or
 * whose logits hold NaN or infinity, which gives it this stage's, is committed with status ST_NAN and
 * no token. ST_PROTOCOL: a sampler that a row names is out of range. *n_committed: results written. */
MUST_USE status stage_head_begin(stage *s, const stage_head_args *a, errmsg *e);
MUST_USE status stage_head_end(stage *s, uint32_t *n_committed, errmsg *e);

/* Both, one after the other; nothing is fed. */
MUST_USE status stage_head(stage *s, const sampler_params *samplers, readback *out, uint64_t seq,
                           uint32_t *n_committed, uint32_t *drawn, poison_mark *poison,
                           errmsg *e);

#endif
