/* worker_impl.h - what the files of the worker share; nobody else includes it.
 *
 * worker.c runs steps and is the thread; worker_load.c what comes before them; worker_ahead.c puts steps behind each other on the device;
 * worker_inject.c is what faults on purpose are to it;
 * worker_replay.c what it does when a stage was lost. */
#ifndef STAGE_WORKER_IMPL_H
#define STAGE_WORKER_IMPL_H

#include "common/plan.h"
#include "common/wire.h"
#include "stage/connect.h"
#include "stage/inject.h"
#include "stage/keep.h"
#include "stage/rounds.h"
#include "stage/seam.h"
#include "stage/span.h"
#include "stage/stage.h"
#include "stage/worker.h"

/* One group in one round. */
typedef struct {
    uint64_t seq;
    uint32_t round, g, n_rows, n_live;
    wire_row *rows;
    poison_mark *poison;
    bool prime, goes_on; /* of its step */
    bool unsplit; /* the first stage walks for all */
} piece;

struct worker {
    pthread_t thread;
    uint32_t stage_i, epoch;
    run_block *block;
    stage_words *words;
    mailbox inbox, outbox;
    _Atomic uint32_t stop;
    _Atomic uint32_t interrupts;     /* stop, and QUIESCE frames that wait in the inbox */
    pthread_mutex_t edges_lock;      /* edges are opened and closed under it: worker_stop wakes them */
    bool edges_open;

    wire_config config;
    bool configured;
    gguf *file;
    model_desc *model;
    seam seam;                       /* the stage, or all of them */
    stage *body;                     /* its first; NULL: not open */
    edges edges;
    loan loan;                       /* without a map: nobody borrows */
    readback results;
    keeper sent;                     /* what crosses the boundary out goes to its journal */
    journal received;                /* of the boundary in; without a map: none */
    rounds rounds;
    trace_block *traces;             /* NULL: no trace is written */
    trace_ring *trace;               /* ours in it, or NULL */
    injector injector;
    bool corrupt_probe;              /* kind=corrupt,at=load */
    uint32_t spoil_replay;           /* at=recovery: kinds corrupt and nan, for the next row replayed */
    bool faulted;
    piece landing;                   /* whose results are on their way (worker_land); seq 0: none */
    wire_row left_rows[PLAN_HEAD_ROWS];      /* what the worker still says of such a piece, or of the */
    poison_mark left_poison[PLAN_HEAD_ROWS]; /* round before the one in hand (worker_leave) */
    uint64_t applied_seq;            /* the last step whose KV operations were applied */
    uint64_t walked_seq;             /* the last step of which all groups were walked, if since then no
                                      * other message came; 0: none */
    uint32_t n_rounds, n_rounds_before; /* of the step in hand, of the one before */
    uint32_t n_handed;               /* of its groups, in its last round, went back to the first stage */
    uint32_t n_replays;              /* since the one with STEP_RESET */
};

static inline bool is_first(const worker *w)
{
    return w->config.stage_i == 0;
}

static inline bool is_last(const worker *w)
{
    return w->config.stage_i + 1 == w->config.n_stages;
}

static inline void set_state(worker *w, stage_state s)
{
    atomic_store_explicit(&w->words->state, s, memory_order_release);
}

static inline const backend *backend_of(const worker *w)
{
    return backend_get((device_kind)w->config.device);
}

/* Somebody waits for the worker to leave what it does: to stop, or to be quiet. */
static inline bool worker_interrupted(const worker *w)
{
    return atomic_load_explicit(&w->interrupts, memory_order_acquire) != 0;
}

/* A configuration: once. And the probe of the boundaries, once for each of their epochs. */
MUST_USE status worker_load(worker *w, const wire_config *c, errmsg *e);
MUST_USE status worker_probe(worker *w, errmsg *e);

/* A message to the coordinator. */
MUST_USE status worker_say(worker *w, wire_kind kind, uint64_t seq, const void *body,
                           uint32_t body_bytes, errmsg *e);

/* Rows that were sent, if any are on their way to the journal, are there. */
MUST_USE status worker_keep(worker *w, errmsg *e);

/* The layers, over rows of which one lives at least. A step without rows is neither prompt nor decode. */
MUST_USE status worker_walk(worker *w, const piece *x, errmsg *e);
void worker_count_piece(worker *w, const piece *x, uint64_t busy_ns);
/* What a trace says of a piece, n rows of it. */
trace_event worker_shown(const worker *w, const piece *x, uint32_t n_rows);
/* Say which rows are marked: the first of each session, whose rows are neighbours. */
MUST_USE status worker_say_poisoned(worker *w, const piece *x, errmsg *e);
/* All that a step asked for is done. */
void worker_done(worker *w, uint64_t seq);

/* Where the device works while the host does and nothing crosses a boundary, the rounds of a step are
 * put behind each other: the device feeds each one itself. */
bool worker_runs_ahead(const worker *w, const step_view *v);
MUST_USE status worker_step_ahead(worker *w, piece *x, errmsg *e);

/* Whether the results of a piece of the step in hand may be fetched while the next step is walked. Its
 * rows and marks are then left aside, to outlive the step (worker_leave; returns the marks). */
bool worker_lands_later(const worker *w, const piece *x);
poison_mark *worker_leave(worker *w, const piece *x);
/* Fetch and tell the results that are on their way, if any are. */
MUST_USE status worker_land(worker *w, errmsg *e);

/* The faults that fit here and now (inject.h). *left: those that spoil a row or a message of the
 * caller's, corrupt and nan. ST_DEVICE, ST_RESOURCES: cuda, oom. */
MUST_USE status worker_inject(worker *w, fault_at at, uint64_t seq, uint32_t *left, errmsg *e);
/* Those of at=recovery. */
MUST_USE status worker_inject_recovery(worker *w, errmsg *e);
/* kind=corrupt: the top mantissa bit of the first value of the hidden state, on the device. */
MUST_USE status worker_flip_bit(worker *w);
/* kind=nan: the first value of row row_i of the hidden state. */
MUST_USE status worker_put_nan(worker *w, uint32_t row_i);

static inline bool has_fault(uint32_t kinds, fault_kind k)
{
    return (kinds >> k & 1) != 0;
}

/* Let go of the boundaries and say what was applied. */
MUST_USE status worker_quiesce(worker *w, errmsg *e);
/* Boundaries of another epoch; the probe connects them. */
MUST_USE status worker_reattach(worker *w, const wire_reattach *r);
/* Rows that this stage, or another, has lost: their K and V are written where they were. */
MUST_USE status worker_replay(worker *w, const void *frame, errmsg *e);

#endif
