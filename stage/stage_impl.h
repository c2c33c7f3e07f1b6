/* stage_impl.h - what the files of one stage share; nobody else includes it.
 *
 * stage.c opens and closes, rows.c takes a step's rows in, walk.c runs the layers, head.c ends it;
 * loans.c is what it lends and borrows. */
#ifndef STAGE_STAGE_IMPL_H
#define STAGE_STAGE_IMPL_H

#include "common/plan.h"
#include "stage/kv.h"
#include "stage/rope.h"
#include "stage/stage.h"
#include "stage/weights.h"

/* Layers that follow each other, with their weights and K and V: the stage's own, or another's. */
typedef struct {
    uint32_t begin, end; /* of the model's layers */
    const weights *w;
    kv_cache kv;
} stretch;

/* Weights in another process's allocation, or in the file's mapping beside its; what is here besides. */
typedef struct {
    weights w;
    dev_ptr lent;       /* the allocation; 0: none */
    uint64_t lent_bytes;
} borrowed_weights;

/* The end of a step, from stage_head_begin to stage_head_end. */
typedef struct {
    bool flying;                  /* what was put on the device may still run */
    readback *out;
    uint64_t seq;
    uint32_t *drawn;              /* by row; may be NULL */
    poison_mark *poison;          /* by row */
    const wire_row *rows;         /* [n_rows] of its step */
    uint32_t n_rows, n_committed;
    uint32_t n, row_i[PLAN_HEAD_ROWS]; /* rows whose results are on their way */
    bool keeps;                   /* logits among them */
    bool unchecked;               /* nobody has looked yet whether the hidden states are finite */
    bool flags;                   /* they are told by the host's flags; otherwise by the results */
    backend_event done, drained;
} head_flight;

struct stage {
    const backend *b;
    backend_device *device;
    backend_queue *q;
    bool beside;        /* both are another's */
    wire_config config;
    const model_desc *m;
    stage_progress on_progress;
    void *progress_ctx;
    stage_meanwhile meanwhile;
    void *meanwhile_ctx;
    uint32_t n_layers; /* of the range */
    bool first, last;
    bool keeps; /* there is room for what it sends (stage_sent) */

    weights w;
    kv_cache kv;
    const loan *loan;   /* NULL: nothing is lent or borrowed */
    const gguf *file;
    weights *held;      /* [n_stages - 1]: those of the ranges behind it; first stage, LOAN_GATHERED */
    bool began;         /* its weights are here: the walk and the rotations are made */
    /* stage_borrow's */
    stretch *ahead;     /* [n_ahead]: the ranges behind it, in their order; first stage */
    borrowed_weights *borrowed; /* [n_borrowed]: of those, or its own */
    uint32_t n_ahead, n_borrowed;
    rope_table rope[LAYER_KINDS];
    uint32_t n_kinds; /* of layers of the model */
    scratch_layout at; /* in scratch */
    dev_ptr scratch;
    host_layout host_at; /* in host */
    char *host;
    backend_walk *walk;          /* a step of one row in one launch; NULL: by ops */
    bool walked_head;            /* of the step in hand: its one row's logits are on the way */
    bool unchecked;              /* the same: stage_head must look whether hidden states are finite */
    head_flight head;

    wire_row *rows;              /* of the step in hand, in one of host_layout's two places */
    uint32_t n_rows, n_samplers; /* of the step in hand */
    uint32_t n_positions;        /* its rows' are below it */
    uint32_t n_runs;             /* of live rows of one branch, side by side */
    bool staged;                 /* uploads of the last step may still read host memory */
    backend_event staged_event;
};

/* A piece of scratch, and of host memory. */
#define SCRATCH(s, piece)    dev_offset((s)->scratch, (s)->at.piece)
#define HOST(s, type, piece) ((type *)((s)->host + (s)->host_at.piece))

/* Where the rows' block tables of that kind of layer start: u32 [n_rows], on the device. */
static inline dev_ptr stage_table(const stage *s, layer_kind kind)
{
    return dev_offset(SCRATCH(s, table), (uint64_t)kind * s->config.rows_max * sizeof(uint32_t));
}

/* Put backend op on the stage's queue; a device that fails is named in *e. Needs s and e in scope.
 */
#define TRY_OP(op, ...)                                                                            \
    do {                                                                                           \
        status op_status_ = s->b->op(s->q, __VA_ARGS__);                                           \
        if (op_status_ != ST_OK) return stage_op_failed(s, op_status_, #op, e);                    \
    } while (0)
status stage_op_failed(const stage *s, status code, const char *op, errmsg *e);

/* Have the backend's one launch for a step of one row, if it has one for this model. */
MUST_USE status stage_walk_open(stage *s, errmsg *e);

/* Load the range's weights, and where they can be lent if somebody borrows them; with LOAN_GATHERED the
 * first stage all ranges', the others none: theirs come with stage_borrow. Errors of weights_open. */
MUST_USE status stage_load(stage *s, const weights_options *own, errmsg *e);
uint64_t stage_load_bytes(const stage *s, const weights_options *own); /* on the device; 0: in place */
void stage_unload(stage *s);
/* What needs the weights: once they are here, and when they have come again. */
MUST_USE status stage_begin(stage *s, errmsg *e);

/* Mark the live ones of rows whose hidden state is not finite, by the host's flags. */
void stage_mark_hidden(const stage *s, const wire_row *rows, uint32_t n_rows, poison_mark *poison);

/* Whether the row wants logits or a token. */
static inline bool stage_row_asks(const wire_row *r)
{
    return (r->flags & ROW_LIVE) != 0 && (r->flags & (ROW_LOGITS | ROW_SAMPLE)) != 0;
}

/* Tell how far the walk is; ST_CLOSED when told to stop. */
MUST_USE status stage_walked(const stage *s, uint32_t n_layers_done, errmsg *e);

#endif
