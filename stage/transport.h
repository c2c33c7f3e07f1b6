/* transport.h - how rows cross a boundary: one table per transport, one end of one boundary.
 *
 * A transport moves rows into a slot and announces it, or takes them out and hands the slot back.
 * Headers and the slots' words always lie in the boundary's host memory (common/boundary.h), so
 * that waits, deadlines and blame are the same for all; what differs is the way of the hidden
 * state.
 *
 * Opening, after the load barrier: the receiver offers, the sender accepts, the receiver settles
 * (stage/connect.c). The worker thread uses an end; `wake` alone may come from another thread.
 * Waits are bounded: ST_TIMEOUT leaves everything as it was (call again), ST_CLOSED when the stage
 * is told to stop. Closing: the sender's end first, unless it is dead. An end may be opened and
 * closed again on a live stage, with another epoch. */
#ifndef STAGE_TRANSPORT_H
#define STAGE_TRANSPORT_H

#include "common/boundary.h"
#include "kernels/backend.h"
#include "kernels/peer.h"

typedef struct transport_end transport_end;

typedef struct {
    boundary_end *end;             /* open as long as the transport */
    const backend *backend;
    backend_queue *queue;          /* copies to and from the device run here */
    signal_kind signal;            /* as forced; SIGNAL_AUTO: the transport's choice */
} transport_options;

typedef struct {
    const char *name;              /* "shm" */
    transport_kind kind;
    bool has_signals;              /* MEMRA_PP_SIGNAL chooses among its signals */
    /* This side's device could: false needs no word, another transport is meant for it. */
    bool (*applies)(const transport_options *o, bool rx);
    /* The receiver's end; fills the offer's blob. ST_RESOURCES with *e: it cannot work here. */
    MUST_USE status (*offer)(transport_end **out, const transport_options *o, talk_message *offer,
                             errmsg *e);
    /* The sender's end; fills the answer. ST_RESOURCES likewise. */
    MUST_USE status (*accept)(transport_end **out, const transport_options *o,
                              const talk_message *offer, talk_message *answer, errmsg *e);
    /* Both ends, the receiver with what the sender answered (the sender: its own answer), until
     * ST_OK; ST_TIMEOUT: call again. */
    MUST_USE status (*settle)(transport_end *t, const talk_message *answer, errmsg *e);
    void (*close)(transport_end *t);
    void (*wake)(transport_end *t);
    const char *(*signal)(const transport_end *t); /* "futex": for status; static */
    /* Rows rows[n_rows] with hidden f32 [n_rows, n_embd] into `slot`. */
    MUST_USE status (*send)(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                            const row_header *rows, dev_ptr hidden, uint32_t n_rows,
                            uint64_t timeout_ns);
    /* Rows of a step whose tokens the devices tell each other (STEP_AHEAD). carries: whether this
     * end can, once it is settled; NULL: never. put: as send, the header announced before the rows
     * are drawn; x: what they are on the device (kernels/peer.h). take: as receive, and what is put
     * on the queue after it sees the rows; the slot is the caller's until it calls boundary_rx_end,
     * when the rows have come (x->came says how). Where ops run in the call they have come when it
     * returns, aborted: ST_CLOSED. */
    bool (*carries)(const transport_end *t);
    MUST_USE status (*put)(transport_end *t, uint32_t slot, uint64_t seq, const row_header *rows,
                           const peer_rows *x, dev_ptr hidden, uint64_t timeout_ns);
    MUST_USE status (*take)(transport_end *t, uint32_t slot, uint64_t seq, row_header *rows,
                            const peer_rows *x, dev_ptr hidden, uint32_t *n_rows,
                            uint64_t timeout_ns, errmsg *e);
    /* The rows of `slot`, which must carry kind and seq (else ST_PROTOCOL with *e); rows has room
     * for rows_max. After ST_OK hidden may be read by what is put on the queue. */
    MUST_USE status (*receive)(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                               row_header *rows, dev_ptr hidden, uint32_t *n_rows,
                               uint64_t timeout_ns, errmsg *e);
} transport;

/* All, in the order in which they are tried: ipc, nccl, host, shm. */
#define TRANSPORTS 4u
const transport *transport_at(uint32_t i);
const transport *transport_get(transport_kind kind); /* NULL: auto, or none */

const transport *transport_ipc(void);  /* device memory of the receiver, mapped by the sender */
const transport *transport_nccl(void); /* NCCL send and receive */
const transport *
transport_host(void); /* the boundary's host memory, pinned for the device's copies */
const transport *transport_shm(void);  /* the same, not pinned: CPU stages */

/* What the transports share: bytes of n rows of hidden state (0 where none crosses); a slot's
 * header and rows, written and read with its checks. */
uint64_t transport_hidden_bytes(const boundary_end *b, uint32_t n_rows);
void transport_put_head(const boundary_end *b, const slot_view *v, slot_kind kind, uint64_t seq,
                        const row_header *rows, uint32_t n_rows);
MUST_USE status transport_get_head(const boundary_end *b, const slot_view *v, uint32_t slot,
                                   slot_kind kind, uint64_t seq, row_header *rows,
                                   uint32_t *n_rows, errmsg *e);

#endif
