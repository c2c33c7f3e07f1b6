/* worker_impl.h - what the files of the worker share; nobody else includes it.
 *
 * worker.c loads, runs steps and is the thread; worker_replay.c is what it does when a stage was lost. */
#ifndef STAGE_WORKER_IMPL_H
#define STAGE_WORKER_IMPL_H

#include "common/wire.h"
#include "stage/connect.h"
#include "stage/inject.h"
#include "stage/keep.h"
#include "stage/rounds.h"
#include "stage/span.h"
#include "stage/stage.h"
#include "stage/worker.h"

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
    stage *body;
    edges edges;
    readback results;
    journal sent, received;          /* of the boundaries out and in; without a map: none */
    rounds rounds;
    trace_block *traces;             /* NULL: no trace is written */
    trace_ring *trace;               /* ours in it, or NULL */
    injector injector;
    bool corrupt_probe;              /* kind=corrupt,at=load */
    bool corrupt_replay;             /* kind=corrupt,at=recovery: the next row that it replays */
    bool faulted;
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

/* A message to the coordinator. */
MUST_USE status worker_say(worker *w, wire_kind kind, uint64_t seq, const void *body,
                           uint32_t body_bytes, errmsg *e);
/* The faults of at=recovery. */
void worker_inject_recovery(worker *w);
/* kind=corrupt: the top mantissa bit of the first value, on the device. */
MUST_USE status worker_flip_bit(worker *w);

/* Let go of the boundaries and say what was applied. */
MUST_USE status worker_quiesce(worker *w, errmsg *e);
/* Boundaries of another epoch; the probe connects them. */
MUST_USE status worker_reattach(worker *w, const wire_reattach *r);
/* Rows that this stage, or another, has lost: their K and V are written where they were. */
MUST_USE status worker_replay(worker *w, const void *frame, errmsg *e);

#endif
