/* edges.h - a stage's two boundaries: rows in from the stage before, rows out to the stage after.
 *
 * Owned by the worker thread, but for edges_wake. With one stage there are none. Opened while
 * loading, with their host memory alone; connected (stage/connect.h) after the load barrier, when
 * each gets its transport. Waits show in the stage's words (starved, wait_in_ns, wait_out_ns) and
 * end with ST_TIMEOUT after wait_limit_ms, with ST_CLOSED when *stop is set: the stage is to end,
 * or a neighbour was lost. */
#ifndef STAGE_EDGES_H
#define STAGE_EDGES_H

#include "common/runblock.h"
#include "common/wire.h"
#include "stage/inject.h"
#include "stage/transport.h"

#include <pthread.h>

typedef struct {
    boundary_end end;               /* host words, headers, and the talk before traffic */
    const transport *kind;          /* NULL: not connected */
    transport_end *way;
    uint32_t from, to;              /* stages */
} edge;

typedef struct {
    edge in, out;
    pthread_mutex_t lock;           /* `kind` and `way` of both, against edges_wake */
    bool open;                      /* false with one stage */
    const backend *backend;
    backend_queue *queue;
    stage_words *words;
    const _Atomic uint32_t *stop;
    uint32_t stage_i, n_stages, rows_max;
    transport_kind transport;       /* as forced by the doors, or auto */
    signal_kind signal;
    uint64_t wait_limit_ms;
    row_header *rows;               /* [rows_max]: what came in or goes out */
    float *pattern;                 /* host [rows_max, n_embd]: the probe's */
} edges;

MUST_USE status edges_open(edges *out, const wire_config *c, const backend *b, backend_queue *q,
                           stage_words *words, const _Atomic uint32_t *stop, errmsg *e);
void edges_close(edges *x);
void edges_wake(edges *x); /* any thread, between open and close */

/* Give the edge this transport (its end becomes the edge's), or take it away and close it
 * (NULL). */
void edge_set(edges *x, edge *g, const transport *kind, transport_end *way);

/* A live stage's edge to a replaced neighbour: disconnect (the neighbour is dead and reaped, or has
 * disconnected as the sender) and use the boundary's host memory for this epoch. Connect it again
 * before rows. */
void edge_renew(edges *x, edge *g, uint32_t epoch);

/* Rows of step `seq` from the stage before into hidden (device f32); every header is compared with
 * the step's row: ST_PROTOCOL names the first that differs. drawn: the tokens were drawn after the
 * step was made: each row takes its token, which is below n_vocab, and its live bit, which can only
 * have been cleared, from the header. poison: NULL, or the rows' marks, as they
 * came. */
typedef struct {
    uint32_t slot;
    uint64_t seq;
    wire_row *rows;                 /* [n_rows] */
    uint32_t n_rows;
    bool drawn;
    uint32_t n_vocab;
    poison_mark *poison;            /* [n_rows] or NULL */
    dev_ptr hidden;
} incoming;
MUST_USE status edges_receive(edges *x, const incoming *in, errmsg *e);
/* poison: NULL (none has one), or the marks that go with the rows. */
MUST_USE status edges_send(edges *x, uint32_t slot, uint64_t seq, const wire_row *rows,
                           const poison_mark *poison, uint32_t n_rows, dev_ptr hidden, errmsg *e);

/* --- rows that the devices tell each other (stage/ring.h) --- */

/* Whether both boundaries carry them, as they are connected. */
bool edges_carry(const edges *x);
/* Announce the rows, as far as they are known here, and put them on the queue; they leave when the
 * queue comes to them, and edges_sent, called when it has, says so to the receiver's host. */
MUST_USE status edges_put(edges *x, uint32_t slot, uint64_t seq, const wire_row *rows,
                          const peer_rows *words, dev_ptr hidden, errmsg *e);
void edges_sent(edges *x, uint32_t slot);
/* Wait for the announcement, whose headers are compared but for what is drawn (in->drawn and poison
 * are not read), and put the take on the queue. Then wait until the rows are on their way, or *end
 * is done: what is left then is work of our own; and, when it is done, hand the slot back. */
MUST_USE status edges_take(edges *x, const incoming *in, const peer_rows *words, errmsg *e);
MUST_USE status edges_coming(edges *x, uint32_t slot, backend_event end, errmsg *e);
void edges_taken(edges *x, uint32_t slot, uint32_t n_rows);

/* One crossing, in slices of bounded waits: send x->rows, or receive into them. */
typedef struct {
    bool sending;
    uint32_t slot, n_rows;          /* n_rows: given when sending, found when receiving */
    slot_kind kind;
    uint64_t seq;
    dev_ptr hidden;
} crossing;
MUST_USE status edges_cross(edges *x, crossing *c, errmsg *e);

/* Call slice(ctx, timeout_ns, e) until it is not ST_TIMEOUT, for at most wait_limit_ms. Shown as
 * starved of input, or of room in the output. */
typedef status (*edges_slice)(void *ctx, uint64_t timeout_ns, errmsg *e);
MUST_USE status edges_wait(edges *x, bool sending, edges_slice slice, void *ctx, errmsg *e);

bool row_header_equal(const row_header *a, const row_header *b);

#endif
