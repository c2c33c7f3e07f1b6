/* A pool that is lent is a piece of the loan's memfd; whoever borrows maps the same piece. */
#include "kernels/cpu/loan.h"
#include "common/amount.h"

#include "kernels/cpu/device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static status map_piece(dev_ptr *out, uint64_t bytes, const loan_place *at, errmsg *e)
{
    *out = (dev_ptr){0};
    if (bytes == 0) return ST_OK;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, at->fd, (off_t)at->offset);
    if (p == MAP_FAILED)
        return errmsg_set(e, ST_RESOURCES, "cpu: cannot map %s of shared memory: %s",
                          amount_said(bytes), strerror(errno));
    out->addr = (uintptr_t)p;
    return ST_OK;
}

static status lent_alloc(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                         loan_ticket *ticket, errmsg *e)
{
    *ticket = (loan_ticket){0};
    TRY(map_piece(out, bytes, at, e));
    if (bytes > 0 && d->node != NULL) numa_bind_memory(d->node, host_of(*out), bytes);
    return ST_OK;
}

static status borrow(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                     const loan_ticket *ticket, errmsg *e)
{
    (void)d;
    if (ticket->bytes != 0)
        return errmsg_set(e, ST_RESOURCES, "cpu: it lies on another kind of device");
    return map_piece(out, bytes, at, e);
}

static void unmap_piece(backend_device *d, dev_ptr p, uint64_t bytes)
{
    (void)d;
    if (p.addr != 0) munmap(host_of(p), bytes);
}

const backend_loan cpu_loan_table = {
    .alloc = lent_alloc,
    .free = unmap_piece,
    .borrow = borrow,
    .give_back = unmap_piece,
};
