/* transport.h - how rows cross a boundary: one table per transport, one end of one boundary.
 *
 * A transport moves rows (headers on the host, hidden state on the device) into a slot and announces
 * it, or takes them out and hands the slot back. The worker thread uses an end; `wake` alone may come
 * from another thread. Waits are bounded: ST_TIMEOUT leaves everything as it was (call again),
 * ST_CLOSED when the stage is told to stop. */
#ifndef STAGE_TRANSPORT_H
#define STAGE_TRANSPORT_H

#include "common/boundary.h"
#include "kernels/backend.h"

typedef struct transport_end transport_end;

typedef struct {
    int fd;                        /* what the coordinator made for this boundary */
    uint32_t epoch;
    const _Atomic uint32_t *stop;  /* non-zero: waits end */
    const backend *backend;
    backend_queue *queue;          /* copies to and from the device run here */
} transport_options;

typedef struct {
    const char *name;              /* "shm" */
    const char *signal;            /* "futex" */
    MUST_USE status (*open)(transport_end **out, const transport_options *o, errmsg *e);
    void (*close)(transport_end *t);
    void (*wake)(transport_end *t);
    uint32_t (*rows_max)(const transport_end *t);
    uint32_t (*n_embd)(const transport_end *t);
    /* Rows rows[n_rows] with hidden f32 [n_rows, n_embd] into `slot`. */
    MUST_USE status (*send)(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                            const row_header *rows, dev_ptr hidden, uint32_t n_rows,
                            uint64_t timeout_ns);
    /* The rows of `slot`, which must carry kind and seq (else ST_PROTOCOL with *e); rows has room for
     * rows_max. */
    MUST_USE status (*receive)(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                               row_header *rows, dev_ptr hidden, uint32_t *n_rows,
                               uint64_t timeout_ns, errmsg *e);
} transport;

const transport *transport_shm(void);

#endif
