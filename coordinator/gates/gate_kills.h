/* gate_kills.h - stages lost on purpose, for the recovery gate, and what each loss took.
 *
 * A strike waits for its moment, which is in turn any, one in which a stream is being primed, and
 * one in which a stream verifies drafts; then a stage is lost, by SIGKILL, by SIGSTOP or because it
 * hangs (KILLS_BLOCK strikes have one of each of the latter, where the seed says); at times a
 * second one at once, or while the first is being replaced. It ends when all are replaced and a
 * token has come. */
#ifndef COORDINATOR_GATE_KILLS_H
#define COORDINATOR_GATE_KILLS_H

#include "coordinator/gates/gate_streams.h"

#define KILLS_FAULT       "stage=all,at=asked,kind=hang,every=1" /* the pipeline's MEMRA_PP_FAULT */
#define KILLS_PATIENCE_NS (60 * NS_PER_S)
#define KILLS_BLOCK       10u

enum {
    KILLS_ENDED,    /* SIGKILL to the end of the process: the system's */
    KILLS_NOTICED,  /* from there to noticed */
    KILLS_LATE,     /* SIGSTOP or hang to noticed, beyond what it may stand still */
    KILLS_REAPED,   /* from there on, each after the one before */
    KILLS_WAITED,   /* where there was a pause: a millisecond or more */
    KILLS_STARTED,
    KILLS_REPLAYED,
    KILLS_RESUMED,  /* noticed to resume, of all */
    KILLS_TOTAL,    /* SIGKILL to resume, to next token; */
    KILLS_TOKEN,
    KILLS_TOKEN_TWO, /* the latter where two were lost together */
    KILLS_SERIES
};

typedef struct {
    uint32_t n;
    double *ms; /* [room]; sorted when reported */
} kills_series;

typedef enum { LOSS_KILL, LOSS_STOP, LOSS_HANG, LOSS_KINDS } loss_kind;

typedef struct {
    pipeline *p;
    const stream_counts *counts;
    const _Atomic uint32_t *stop; /* non-zero: waits end */
    uint64_t random;
    uint32_t room, n_strikes, at_stop, at_hang; /* of the block: which strikes they are */
    uint32_t n_kind[LOSS_KINDS], n_primed, n_drafted; /* losses; strikes at such moments */
    kills_series series[KILLS_SERIES];
} kills;

/* For up to n losses in p; the same seed, the same ways. ST_RESOURCES; close it then too. */
MUST_USE status kills_open(kills *out, pipeline *p, const stream_counts *counts,
                           const _Atomic uint32_t *stop, uint32_t n, uint64_t seed, errmsg *e);
void kills_close(kills *k);

/* One strike. False: *stop, a signal, or no replacement within KILLS_PATIENCE_NS. */
MUST_USE bool kills_strike(kills *k);
/* SIGKILL of this stage alone, at any moment; ends when it is replaced. */
MUST_USE bool kills_strike_plainly(kills *k, uint32_t stage);

/* Wait until is(ctx). False as above. */
MUST_USE bool kills_wait(const kills *k, bool (*is)(const void *ctx), const void *ctx);

/* Notes: how many of what, and p50 and p99 of every series. */
void kills_report(kills *k, gate_report *r);

#endif
