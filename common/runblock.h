/* runblock.h - the run block: one shared mapping of coordinator and all stages, in which each stage
 * shows where it is. The coordinator creates it (a sealed memfd), stages inherit it.
 *
 * Every cache line has one writing thread, named below; everybody reads. Words are atomics: plain
 * counters relaxed, `progress` and `step_done` release/acquire. Nothing read here is an index until
 * it was compared with its bound: the coordinator believes nothing that a stage writes. */
#ifndef COMMON_RUNBLOCK_H
#define COMMON_RUNBLOCK_H

#include "common/doors.h"

#include <stdatomic.h>
#include <stdint.h>

#define CACHE_LINE 64
#define RUN_BLOCK_MAGIC 0x4b4c4252u /* "RBLK" */
#define RUN_BLOCK_VERSION 8u

#define STAGE_STATE_LIST(X)                                                                        \
    X(STAGE_STARTING, "starting")                                                                  \
    X(STAGE_LOADING, "loading")                                                                    \
    X(STAGE_LOADED, "loaded")                                                                      \
    X(STAGE_PROBING, "probing")                                                                    \
    X(STAGE_READY, "ready")                                                                        \
    X(STAGE_QUIET, "quiet")                                                                        \
    X(STAGE_STOPPING, "stopping")                                                                  \
    X(STAGE_FAILED, "failed")
typedef enum {
#define X(name, word) name,
    STAGE_STATE_LIST(X)
#undef X
    STAGE_STATE_COUNT
} stage_state;

typedef enum { STARVED_NO, STARVED_INPUT_EMPTY, STARVED_OUTPUT_FULL } starved_kind;

typedef struct {
    /* line 0, written by the stage's control thread */
    _Alignas(CACHE_LINE) _Atomic uint64_t heartbeat; /* goes up every 50 ms or so */
    _Atomic uint64_t n_bad_messages; /* of the coordinator's, that failed their check */
    /* line 1, written by the stage's worker thread */
    _Alignas(CACHE_LINE) _Atomic uint32_t state;     /* stage_state */
    _Atomic uint32_t starved;                        /* starved_kind */
    _Atomic uint32_t inside;                         /* 1 while inside its own layers */
    _Atomic uint32_t epoch;
    _Atomic uint64_t progress;                       /* goes up with every layer and load piece */
    _Atomic uint64_t load_done_bytes, load_total_bytes;
    _Atomic uint64_t step_entered, step_done;        /* sequences, 0: none */
    _Atomic uint32_t faults_fired;                   /* bit i: injected fault i has run, in whatever
                                                        incarnation of the stage */
    _Atomic uint32_t faults_met;                     /* likewise; of those with every=1 too */
    /* line 2, worker: what was done */
    _Alignas(CACHE_LINE) _Atomic uint64_t n_steps;
    _Atomic uint64_t n_rows;
    _Atomic uint64_t n_chunks;    /* prompt chunks that walked this stage's layers */
    _Atomic uint64_t n_overlaps;  /* entered its layers while another stage was inside its own */
    _Atomic uint64_t busy_ns, wait_in_ns, wait_out_ns;
    _Atomic uint64_t n_probes;    /* boundary probes received and equal in every byte */
    /* line 3, worker: crossings of the boundaries */
    _Alignas(CACHE_LINE) _Atomic uint64_t tx_rows;
    _Atomic uint64_t tx_bytes;
    _Atomic uint64_t tx_crossings[2];                /* by slot */
    _Atomic uint64_t rx_rows, rx_bytes;
    _Atomic uint64_t rx_crossings[2];
    /* line 4, worker: steps that carried rows of several sessions, and those of them that walked a
     * model cut into stages */
    _Alignas(CACHE_LINE) _Atomic uint64_t n_batches; /* decode */
    _Atomic uint64_t n_batches_split;
    _Atomic uint64_t n_prime_batches;                /* prompt chunks */
    _Atomic uint64_t n_prime_batches_split;
    _Atomic uint64_t n_free_rounds; /* groups walked in rounds after a step's first one */
    _Atomic uint64_t n_verifies;    /* steps that verified drafts, and those that walked it cut */
    _Atomic uint64_t n_verifies_split;
    _Atomic uint64_t n_unsplit;     /* steps whose layers this stage walked all, the others' too */
    /* line 5, worker */
    _Alignas(CACHE_LINE) _Atomic uint64_t n_ahead_rounds; /* groups whose rows came with what the
                                                             device before had drawn or passed on,
                                                             the hosts not knowing (stage/ring.h) */
    /* line 6, written by the coordinator */
    _Alignas(CACHE_LINE) _Atomic uint32_t asked; /* the incarnation that is asked for its faults of
                                                    at=asked */
    _Atomic uint32_t ending; /* 1: stages are being told to stop, one after the other; who waits for
                                that is not idle as faults mean it */
} stage_words;

typedef struct {
    uint32_t magic, version, n_stages, bytes; /* written once by the coordinator */
    stage_words stage[STAGES_MAX];
} run_block;

_Static_assert(sizeof(stage_words) == 7 * CACHE_LINE, "a stage has seven lines");
_Static_assert(_Alignof(run_block) == CACHE_LINE, "lines start on lines");

const char *stage_state_word(uint32_t state); /* "unknown" when out of range */

/* Stage s's incarnation is reaped: where it was is forgotten, what it counted stays. */
void run_block_forget(run_block *b, uint32_t s);

/* Map fd (create: size, fill the header and seal it first). *out is NULL on error. */
MUST_USE status run_block_create(run_block **out, int *fd, uint32_t n_stages, errmsg *e);
MUST_USE status run_block_map(run_block **out, int fd, errmsg *e);
void run_block_unmap(run_block *b);

#endif
