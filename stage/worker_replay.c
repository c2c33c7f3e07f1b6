/* When a stage was lost: the others become quiet, take boundaries of a new epoch, and those that
 * have lost rows walk them again, alone from their journal or together from tokens. */
#include "stage/worker_impl.h"

#include <string.h>

status worker_quiesce(worker *w, errmsg *e)
{
    atomic_fetch_sub_explicit(&w->interrupts, 1, memory_order_acq_rel);
    TRY(worker_inject_recovery(w, e));
    /* Whoever was lost has its memory back only when nobody else holds it. */
    stage_give_back(w->body);
    /* Senders let go first; receivers when all are quiet. */
    if (w->edges.open) edge_set(&w->edges, &w->edges.out, NULL, NULL);
    set_state(w, STAGE_QUIET);
    wire_quiesced q = {.applied_seq = w->applied_seq,
                       .done_seq =
                           atomic_load_explicit(&w->words->step_done, memory_order_relaxed)};
    return worker_say(w, WIRE_QUIESCED, 0, &q, sizeof q, e);
}

status worker_reattach(worker *w, const wire_reattach *r)
{
    w->config.edge_epoch = r->edge_epoch;
    if (!w->edges.open) return ST_OK;
    pthread_mutex_lock(&w->edges_lock);
    edge_renew(&w->edges, &w->edges.out, r->edge_epoch);
    edge_renew(&w->edges, &w->edges.in, r->edge_epoch);
    pthread_mutex_unlock(&w->edges_lock);
    return ST_OK;
}

/* Where replayed rows cross: apart from any step's number. */
#define REPLAY_SEQ (1ull << 63)

typedef struct {
    const step_view *v;
    uint64_t committed;         /* the last step that came back */
    incoming in;
    bool through;
    kept kept;                  /* of its input */
} replaying;

/* The rows' input: tokens, the boundary, or what the journal has kept. */
static status replay_input(worker *w, replaying *x, errmsg *e)
{
    if (is_first(w)) return stage_embed(w->body, e);
    if (x->through) return edges_receive(&w->edges, &x->in, e);
    return keep_read(&w->received, w->body, backend_of(w), x->committed,
                     (x->v->step->flags & STEP_OVERWRITTEN) != 0, x->in.rows, x->in.n_rows,
                     &x->kept, e);
}

/* On to the next stage; or, alone, into its journal where that has holes. */
static status replay_output(worker *w, const replaying *x, errmsg *e)
{
    const incoming *in = &x->in;
    if (is_last(w)) return ST_OK;
    if (!x->through) {
        if (x->kept != KEPT_ALL) return ST_OK;
        return keep_holes(&w->sent, x->committed, in->rows, in->n_rows, e);
    }
    TRY(keep_begin(&w->sent, in->rows, in->n_rows, e));
    TRY(edges_send(&w->edges, in->slot, in->seq, in->rows, in->poison, in->n_rows, in->hidden, e));
    return keep_rows(&w->sent, x->committed, in->rows, in->n_rows, e);
}

static status spoil(worker *w)
{
    uint32_t kinds = w->spoil_replay;
    w->spoil_replay = 0;
    inject_replayed(&w->injector);
    if (has_fault(kinds, FAULT_CORRUPT)) TRY(worker_flip_bit(w));
    return has_fault(kinds, FAULT_NAN) ? worker_put_nan(w, 0) : ST_OK;
}

static status replay_rows(worker *w, replaying *x, errmsg *e)
{
    w->walked_seq = 0; /* what goes on after a step finds others' rows here */
    TRY(rounds_begin(&w->rounds, x->v, e));
    x->in = (incoming){.slot = x->v->step->slot,
                       .seq = REPLAY_SEQ + w->n_replays,
                       .hidden = stage_hidden(w->body),
                       .poison = rounds_poison(&w->rounds, 0)};
    x->in.rows = rounds_group(&w->rounds, 0, &x->in.n_rows);
    TRY(seam_rows(&w->seam, x->in.rows, x->in.n_rows, 0, e));
    TRY(replay_input(w, x, e));
    if (x->kept == KEPT_NOT) return ST_OK;
    if (x->in.n_rows > 0) TRY(spoil(w));
    /* What was poisoned is so again: its session has ended, or ends with its next row. */
    TRY(seam_walk(&w->seam, x->in.n_rows, false, x->in.poison, e));
    return replay_output(w, x, e);
}

status worker_replay(worker *w, const void *frame, errmsg *e)
{
    step_view v = wire_step_view(frame);
    replaying x = {.v = &v,
                   .committed = wire_head(frame)->seq,
                   .through = (v.step->flags & STEP_THROUGH) != 0};
    if ((v.step->flags & STEP_RESET) != 0) {
        TRY(worker_inject_recovery(w, e));
        seam_reset(&w->seam);
        w->applied_seq = 0;
        w->n_replays = 0;
    }
    TRY(seam_kv_ops(&w->seam, v.kv_ops, v.step->n_kv_ops, e));
    seam_rewrite(&w->seam, true);
    span again = span_begin(TRACE_REPLAY);
    status s = replay_rows(w, &x, e);
    span_end(s == ST_OK ? w->trace : NULL, &again, (trace_event){.n_rows = x.in.n_rows});
    seam_rewrite(&w->seam, false);
    TRY(s);
    w->n_replays++;
    atomic_fetch_add_explicit(&w->words->progress, 1, memory_order_release);
    wire_replayed r = {.n = w->n_replays, .missing = x.kept == KEPT_NOT};
    return worker_say(w, WIRE_REPLAYED, 0, &r, sizeof r, e);
}
