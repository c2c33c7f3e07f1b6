/* peer.h - what a device can do at a boundary between two processes, beside the ops of backend.h.
 *
 * A box is the receiver's end: the slots of two banks and their words, in dedicated memory of its own
 * device. A window is the sender's view of a box in another process, on another device or the same
 * one. The sender puts rows into a slot and signals; the receiver takes them out and learns, by a
 * word that the device writes into host memory, whether they are valid.
 *
 * What is waited on lies in the waiter's own memory (words) or has been seen complete by the host
 * (events): a peer that dies leaves nobody waiting for ever. A word holds epoch << 32 | count, and a
 * take wants exactly one value; peer_box_poison ends all takes of that epoch, now and to come, as
 * aborted. Handles travel in opaque blobs.
 *
 * A link is the same over NCCL: both ends are of one kind.
 *
 * One thread uses an object, but for the calls marked any thread. */
#ifndef KERNELS_PEER_H
#define KERNELS_PEER_H

#include "kernels/backend.h"

#define PEER_SLOTS      2u
#define PEER_BANKS      2u
#define PEER_BLOB_BYTES 512u
#define PEER_SMALL_BYTES (64u << 10) /* up to here a kernel stores the rows, beyond a copy engine */

typedef struct peer_box peer_box;
typedef struct peer_window peer_window;
typedef struct peer_link peer_link;

typedef enum { PEER_SPIN, PEER_MEMOP, PEER_EVENT, PEER_SIGNALS } peer_signal;
typedef enum { PEER_WAITING, PEER_VALID, PEER_ABORTED } peer_state;

typedef struct {
    uint32_t bytes;
    unsigned char data[PEER_BLOB_BYTES];
} peer_blob;

struct backend_peer {
    /* Signals that this device can do, a bit per peer_signal. */
    uint32_t (*signals)(backend_queue *q);

    /* --- the receiver --- */
    /* Two slots of slot_bytes for each bank. ST_RESOURCES: no memory, or it cannot be exported. */
    status (*box_open)(backend_queue *q, peer_box **out, uint64_t slot_bytes, errmsg *e);
    void (*box_close)(peer_box *b); /* the sender has closed its window, or is dead and reaped */
    uint64_t (*box_bytes)(const peer_box *b); /* on the device */
    /* Begin an epoch on its bank: words at 0, not poisoned; *out is for the sender. */
    status (*box_offer)(peer_box *b, uint32_t epoch, peer_blob *out, errmsg *e);
    /* What the sender answered (window_open). */
    status (*box_meet)(peer_box *b, const peer_blob *answer, errmsg *e);
    /* On the queue: wait for `value` in the slot's word, then copy bytes of the slot to `to`, or
     * nothing when poisoned. ST_TIMEOUT: (events alone) not signalled yet, nothing was put on the
     * queue; call again. */
    status (*take)(peer_box *b, uint32_t slot, peer_signal how, uint64_t value, dev_ptr to,
                   uint64_t bytes);
    /* How that take went; a device that failed is ST_DEVICE. */
    status (*taken)(peer_box *b, uint32_t slot, uint64_t value, peer_state *out);
    void (*box_poison)(peer_box *b); /* any thread */

    /* --- the sender --- */
    /* ST_RESOURCES: the box cannot be reached from here (*e: why). *answer is for the receiver;
     * *same_device: it lies on our own device. */
    status (*window_open)(backend_queue *q, peer_window **out, const peer_blob *offer,
                          peer_blob *answer, bool *same_device, errmsg *e);
    void (*window_close)(peer_window *w);
    /* On the queue: bytes of `from` into the slot, then the signal. */
    status (*put)(peer_window *w, uint32_t slot, peer_signal how, uint64_t value, dev_ptr from,
                  uint64_t bytes);

    /* --- host memory that both sides map --- */
    /* Make [host, host + bytes) known to the device, so that copies are its own. Any thread.
     * ST_RESOURCES. */
    status (*host_pin)(backend_queue *q, void *host, uint64_t bytes, errmsg *e);
    void (*host_unpin)(backend_queue *q, void *host);

    /* --- NCCL --- */
    /* The receiver's end; *offer is for the sender. slot_bytes: of the largest message. ST_RESOURCES:
     * NCCL cannot be used here (*e: why). */
    status (*link_offer)(backend_queue *q, peer_link **out, uint64_t slot_bytes, peer_blob *offer,
                         errmsg *e);
    status (*link_accept)(backend_queue *q, peer_link **out, uint64_t slot_bytes,
                          const peer_blob *offer, errmsg *e);
    /* Both ends, until it is ST_OK: ST_TIMEOUT: call again. The receiver's first call begins. */
    status (*link_ready)(peer_link *l, errmsg *e);
    /* bytes of `from` are sent when the other end receives; `from` may be reused by what is put on
     * the queue afterwards. The message before in that slot must have been received. ST_TIMEOUT: the
     * call before is not through, nothing was done; ST_CLOSED: aborted. */
    status (*link_send)(peer_link *l, uint32_t slot, dev_ptr from, uint64_t bytes);
    /* The next message goes to `to`, behind what is on the queue now. */
    status (*link_receive)(peer_link *l, dev_ptr to, uint64_t bytes);
    /* How that went; what is put on the queue after PEER_VALID sees the message. */
    status (*link_received)(peer_link *l, peer_state *out);
    void (*link_abort)(peer_link *l); /* any thread: what waits for the other end ends */
    void (*link_close)(peer_link *l);
};

#endif
