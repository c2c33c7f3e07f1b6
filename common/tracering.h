/* tracering.h - what the processes of a run did and when, for its trace
 * (coordinator/trace/trace.h).
 *
 * One shared mapping holds a ring of events for each stage and, behind them, one for the
 * coordinator's engine. A ring has one writing thread and one reader. The writer never waits: what
 * does not fit is counted and dropped. An event is there when `head` has passed it, so that a
 * writer killed in between leaves nothing half written, and its replacement goes on where it was.
 * The mapping exists only while a trace is written: without one a stage has no ring (NULL) and
 * spends a comparison on it.
 *
 * Times are CLOCK_MONOTONIC, which all processes of a machine share. The reader believes nothing:
 * an event is trace_event_valid, or it is left out. */
#ifndef COMMON_TRACERING_H
#define COMMON_TRACERING_H

#include "common/runblock.h"

#define TRACE_BLOCK_MAGIC 0x52435254u /* "TRCR" */
#define TRACE_RING_EVENTS 8192u

/* name, word. Of a stage: stretches of its worker's time, one after the other or one inside
 * another. Of the engine: a step from its issue to its last result; the ways of a lost stage. */
#define TRACE_KIND_LIST(X)                                                                         \
    X(TRACE_LOAD, "load")                                                                          \
    X(TRACE_PROBE, "probe")                                                                        \
    X(TRACE_DECODE, "decode")   /* rows of sessions through the stage's layers, and its head */    \
    X(TRACE_PROMPT, "prompt")   /* a chunk, likewise */                                            \
    X(TRACE_VERIFY, "verify")   /* tokens and their drafts, likewise */                            \
    X(TRACE_HEAD, "head")       /* inside one of those: norm, logits, draws; or their end */       \
    X(TRACE_REPLAY, "replay")   /* rows that a lost stage must know */                             \
    X(TRACE_JOURNAL, "journal") /* rows that were sent are kept for a replay */                    \
    X(TRACE_STARVED, "starved") /* until rows came over the boundary into the stage */             \
    X(TRACE_BLOCKED, "blocked") /* until rows were handed to the boundary out of it */             \
    X(TRACE_STEP, "step")       /* engine: of decode, prompts or drafts, as its rows say */        \
    X(TRACE_LOST, "lost")       /* engine: a stage, until it is reaped */                          \
    X(TRACE_RESTART, "restart") /* until it is back on its boundaries */                           \
    X(TRACE_RESUME, "resume")   /* until steps go on */
typedef enum {
#define X(name, word) name,
    TRACE_KIND_LIST(X)
#undef X
    TRACE_KIND_COUNT
} trace_kind;

/* Fields that a kind has no use for are 0. */
typedef struct {
    uint64_t begin_ns, end_ns;
    uint64_t seq;                /* the step's */
    uint32_t kind, n_rows;
    uint32_t round, group, slot; /* of a walk or crossing */
    uint32_t of; /* TRACE_STEP: the kind of its walks; TRACE_LOST and on: which stage */
} trace_event;

typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t head; /* writer: events put so far */
    _Atomic uint64_t n_dropped;                 /* writer */
    _Alignas(CACHE_LINE) _Atomic uint64_t tail; /* reader: events taken so far */
    _Alignas(CACHE_LINE) trace_event event[TRACE_RING_EVENTS];
} trace_ring;

typedef struct {
    uint32_t magic, n_rings;     /* written once by the coordinator */
    uint64_t bytes;
    trace_ring ring[];           /* [n_rings] */
} trace_block;

_Static_assert(sizeof(trace_event) == 48, "layout");
_Static_assert((TRACE_RING_EVENTS & (TRACE_RING_EVENTS - 1)) == 0, "a power of two");

const char *trace_kind_word(uint32_t kind); /* "unknown" when out of range */

/* Map fd (create: size, fill the header and seal it first). *out is NULL on error. ST_PROTOCOL: not
 * a block of n_rings (map). */
MUST_USE status trace_block_create(trace_block **out, int *fd, uint32_t n_rings, errmsg *e);
MUST_USE status trace_block_map(trace_block **out, int fd, uint32_t n_rings, errmsg *e);
void trace_block_unmap(trace_block *b); /* NULL is legal */

/* Writer; r NULL: nothing. */
void trace_put(trace_ring *r, const trace_event *ev);

/* Reader: the oldest event that was not taken. False: none. One that is not valid is left out. */
bool trace_take(trace_ring *r, trace_event *out);

bool trace_event_valid(const trace_event *ev);

#endif
