/* boundary.h - a boundary between two stages in shared host memory: layout, words, waits.
 *
 * Two slots, each with one writer per word:
 *
 *   free -- tx begins --> being written -- tx --> full -- rx --> being read -- rx done --> free
 *
 * A slot's `full` word counts how often tx filled it, its `free` word how often rx emptied it; both
 * carry the epoch in their upper half. tx may write when free == full, rx may read when
 * full == free + 1. Slots and words exist in two banks that alternate by epoch (bank = epoch & 1),
 * so that a dead incarnation cannot write into what its replacement uses. Boundary i leads from
 * stage i to stage (i + 1) mod N; the last one (last stage to first) carries sampled tokens and has
 * no hidden state (n_embd 0).
 *
 * Before traffic both ends talk, in messages that alternate, through a talk area of each bank: the
 * receiver offers a transport with what the sender needs for it, the sender accepts or refuses, and
 * so on until the receiver says that it is done (stage/connect.c).
 *
 * Mapping, in order: boundary_header; words [bank][slot]; talk [bank]; then [bank][slot] each:
 * slot_header, row_header [rows_max], hidden f32 [rows_max, n_embd], aux [rows_max, aux_bytes];
 * parts start on cache lines. Behind the talk: lanes [bank], for rows whose tokens the devices tell
 * each other (stage/lane.h). Created by the coordinator as a sealed memfd.
 *
 * Waits are bounded and use futexes on the count half of a word; `stop` (the waiter's own flag, set
 * by its control thread) ends one at once after boundary_wake. Nothing from a slot is an index
 * until it was compared with its bound: slot_valid. */
#ifndef COMMON_BOUNDARY_H
#define COMMON_BOUNDARY_H

#include "common/runblock.h"

#include <stdbool.h>

#define BOUNDARY_MAGIC 0x59444e42u /* "BNDY" */
#define BOUNDARY_VERSION 3u
#define BOUNDARY_SLOTS 2u
#define BOUNDARY_BANKS 2u

typedef struct {
    uint32_t magic, version;
    uint32_t rows_max, n_embd, aux_bytes; /* aux_bytes: per row, a multiple of 4 */
    uint32_t reserved;
    uint64_t slot_bytes;   /* one slot with its headers, a multiple of CACHE_LINE */
    uint64_t slots_offset; /* of bank 0, slot 0 */
    uint64_t bytes;        /* the whole mapping */
} boundary_header;

typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t full; /* written by tx: epoch << 32 | count */
    _Atomic uint64_t sent; /* the same: what was announced before it was there has left (ring.h) */
    _Alignas(CACHE_LINE) _Atomic uint64_t free; /* written by rx: epoch << 32 | count */
} slot_words;

#define TALK_BLOB_BYTES 512u
#define TALK_WHY_BYTES  400u
typedef enum { TALK_OFFER = 1, TALK_ACCEPT, TALK_REFUSE, TALK_DONE } talk_kind;

typedef struct {
    uint32_t kind;              /* talk_kind */
    uint32_t transport, signal; /* transport_kind, signal_kind */
    uint32_t flags;             /* the transport's own */
    uint32_t filled[BOUNDARY_SLOTS]; /* TALK_ACCEPT: how often the sender has filled each slot */
    uint32_t blob_bytes;
    unsigned char blob[TALK_BLOB_BYTES]; /* opaque: the transport's own */
    char why[TALK_WHY_BYTES];            /* terminated; a refusal's cause, "": not worth a line */
} talk_message;

/* What one end says, in order; written by it alone, read by the other. */
typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t said; /* epoch << 32 | count */
    talk_message message;
} talk_side;

typedef struct {
    talk_side rx, tx;
} boundary_talk;

/* Lines of came.h of one slot, written by tx or its device; the poison, by rx: the epoch whose
 * takes end. */
#define BOUNDARY_LANE_ROWS 64u
typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t line[BOUNDARY_LANE_ROWS][2];
} boundary_lane;

typedef struct {
    boundary_lane slot[BOUNDARY_SLOTS];
    _Alignas(CACHE_LINE) _Atomic uint64_t poison;
} boundary_lanes;

typedef enum { SLOT_STEP = 1, SLOT_PROBE = 2 } slot_kind;

typedef struct {
    _Alignas(CACHE_LINE) uint64_t seq; /* the coordinator's step, or the probe's number */
    uint32_t epoch, n_rows, kind, reserved;
} slot_header;

/* Poison: where a row was found to hold NaN or infinity; 0: nowhere. The mark travels with the row:
 * the stages after go on with it, as they would, so that nothing of the step changes for the
 * others, and the last one reports it (WIRE_POISONED). */
typedef uint16_t poison_mark;

static inline poison_mark poison_hidden(uint32_t stage)
{
    return (poison_mark)(1 + 2 * stage);
}

static inline poison_mark poison_logits(uint32_t stage)
{
    return (poison_mark)(2 + 2 * stage);
}

static inline uint32_t poison_stage(poison_mark m)
{
    return (m - 1u) / 2;
}

static inline bool poison_in_logits(poison_mark m)
{
    return m % 2 == 0;
}

/* What travels with a row. Compared with the step message before use. */
typedef struct {
    uint64_t session_step;
    uint32_t session, generation, branch, position, token;
    uint16_t live;                     /* 1; 0: ended, writes nothing, nobody skips a round */
    poison_mark poison;                /* not compared: below 1 + 2 * number of stages */
} row_header;
_Static_assert(sizeof(row_header) == 32, "layout");

typedef struct {
    slot_header *header;
    row_header *rows;                  /* [rows_max] */
    float *hidden;                     /* [rows_max, n_embd]; NULL when n_embd is 0 */
    unsigned char *aux;                /* [rows_max, aux_bytes]; NULL when 0 */
} slot_view;

/* One end of a mapped boundary. Owned by one thread, but for `stop`. */
typedef struct {
    void *map;
    uint32_t rows_max, n_embd, aux_bytes; /* own copies of the header, checked once */
    uint64_t slot_bytes, slots_offset, bytes;
    uint32_t epoch;
    uint32_t count[BOUNDARY_SLOTS];    /* tx: fills; rx: reads */
    uint32_t n_said, n_heard;          /* of the talk */
    const _Atomic uint32_t *stop;      /* non-zero: waits end with ST_CLOSED */
} boundary_end;

/* Bytes of the whole mapping for these sizes. */
uint64_t boundary_bytes(uint32_t rows_max, uint32_t n_embd, uint32_t aux_bytes);
/* Bytes that one row puts on the boundary: row header, hidden state and aux. */
uint64_t boundary_row_bytes(uint32_t n_embd, uint32_t aux_bytes);

/* The layout is whole and lies inside bytes. Called by both sides. */
bool boundary_valid(const boundary_header *h, uint64_t bytes);

/* Create and seal (coordinator). ST_RESOURCES with *e. */
MUST_USE status boundary_create(int *fd, uint32_t rows_max, uint32_t n_embd, uint32_t aux_bytes,
                                errmsg *e);
/* Map one end (stage). ST_RESOURCES: no address space; ST_PROTOCOL: the layout is not ours. */
MUST_USE status boundary_open(boundary_end *out, int fd, uint32_t epoch,
                              const _Atomic uint32_t *stop, errmsg *e);
void boundary_close(boundary_end *b);

/* Use the end for another epoch: its bank, counts from 0. No wait may be under way, and the peer of
 * the epoch before the last must be gone. */
void boundary_renew(boundary_end *b, uint32_t epoch);

/* Say m as the receiver (rx) or the sender. The end before it must have been heard and answered. */
void boundary_say(boundary_end *b, bool rx, const talk_message *m);
/* Wait for the next message of the other end; rx: who we are. ST_TIMEOUT (call again), ST_CLOSED;
 * ST_PROTOCOL: it is none (*out is empty then). */
MUST_USE status boundary_hear(boundary_end *b, bool rx, uint64_t timeout_ns, talk_message *out);
/* Whether it is there. */
bool boundary_spoken(const boundary_end *b, bool rx);

/* The receiver, while the sender fills nothing: both slots are free again, after the sender has
 * filled them so often. What was in them is given up. */
void boundary_rx_resume(boundary_end *b, const uint32_t filled[BOUNDARY_SLOTS]);

/* Wait until slot may be written and view it. ST_TIMEOUT after timeout_ns (nothing changed; call
 * again), ST_CLOSED when *stop. */
MUST_USE status boundary_tx_begin(boundary_end *b, uint32_t slot, uint64_t timeout_ns,
                                  slot_view *out);
/* Announce it: what was written is seen by the receiver. */
void boundary_tx_end(boundary_end *b, uint32_t slot);

/* Wait until slot is full and view it; then hand it back. */
MUST_USE status boundary_rx_begin(boundary_end *b, uint32_t slot, uint64_t timeout_ns,
                                  slot_view *out);
void boundary_rx_end(boundary_end *b, uint32_t slot);

/* The sender: what the slot was announced with has left. The receiver: it has, for the slot that is
 * full. */
void boundary_tx_sent(boundary_end *b, uint32_t slot);
bool boundary_rx_sent(const boundary_end *b, uint32_t slot);

/* The lanes of the end's bank; the receiver clears them before it offers them. */
boundary_lanes *boundary_lanes_of(const boundary_end *b);
void boundary_lanes_clear(const boundary_end *b);

/* Header of a full slot: epoch, kind and seq are the expected ones and n_rows <= rows_max. */
bool slot_valid(const boundary_end *b, const slot_view *v, slot_kind kind, uint64_t seq);

/* End the waits of this end's thread after *stop was set; any thread. */
void boundary_wake(boundary_end *b);

#endif
