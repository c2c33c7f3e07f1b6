/* loan.h - memory of one device object that another process uses (common/loan.h says why and when),
 * beside the ops of backend.h.
 *
 * What is lent is an allocation of its own. Whoever borrows gives back before the lender frees, or
 * when the lender is dead and reaped: its memory is there as long as somebody has it. Neither side
 * may have work on its way in memory that the other reads: both wait for their queues first.
 *
 * Where weights lie in the file's mapping, they are nobody's to lend: those calls are NULL. */
#ifndef KERNELS_LOAN_H
#define KERNELS_LOAN_H

#include "common/loan.h"
#include "kernels/backend.h"

/* A piece of shared memory, for devices whose memory is the host's. */
typedef struct {
    int fd;
    uint64_t offset; /* of whole pages */
} loan_place;

struct backend_loan {
    /* As alloc, but others may borrow it; zeroed unless an earlier incarnation had it. free ends
     * it. */
    status (*alloc)(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                    loan_ticket *ticket, errmsg *e);
    void (*free)(backend_device *d, dev_ptr p, uint64_t bytes);
    /* ST_RESOURCES: it cannot be reached from this device (*e: why). */
    status (*borrow)(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                     const loan_ticket *ticket, errmsg *e);
    void (*give_back)(backend_device *d, dev_ptr p, uint64_t bytes);

    /* What weights_begin reserves from here on, until it is off, others may borrow. */
    void (*lend_weights)(backend_device *d, bool on);
    /* The last of it, after weights_end. ST_RESOURCES: it cannot be exported. */
    status (*lent_weights)(backend_device *d, dev_ptr *base, uint64_t *bytes, loan_ticket *ticket,
                           errmsg *e);
};

#define LOAN_ALIGN 256u /* of a weight in it */

#endif
