/* Allocations that are exported through CUDA IPC: of whole 2 MB pages, as what is exported is
 * exported whole, so that nothing else of this process lies there. Opening a handle twice in one
 * process is never done: each allocation is borrowed once until it is given back. */
#include "kernels/cuda/loan.h"

#include "kernels/cuda/peer.h"

#include <stdlib.h>
#include <string.h>

#define TICKET_MAGIC 0x4e414f4cu /* "LOAN" */
#define PAGE_BYTES   PLAN_CUDA_PAGE_BYTES

typedef struct {
    uint32_t magic, reserved;
    uint64_t bytes;
    cudaIpcMemHandle_t memory;
} loan_blob;

_Static_assert(sizeof(loan_blob) <= LOAN_TICKET_BYTES, "fits");

#define TRY_SOFT(d, call, e) TRY(cuda_may_fail(d, call, #call, e))

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static status write_ticket(const backend_device *d, loan_ticket *out, void *base, uint64_t bytes,
                           errmsg *e)
{
    loan_blob b = {.magic = TICKET_MAGIC, .bytes = bytes};
    TRY_SOFT(d, cudaIpcGetMemHandle(&b.memory, base), e);
    *out = (loan_ticket){.bytes = sizeof b};
    memcpy(out->data, &b, sizeof b);
    return ST_OK;
}

static status lent_alloc(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                         loan_ticket *ticket, errmsg *e)
{
    (void)at;
    *ticket = (loan_ticket){0};
    *out = (dev_ptr){0};
    if (bytes == 0) return ST_OK;
    TRY(backend_cuda()->alloc(d, out, whole_pages(bytes), e));
    return write_ticket(d, ticket, cuda_address(*out), bytes, e);
}

static void lent_free(backend_device *d, dev_ptr p, uint64_t bytes)
{
    backend_cuda()->free(d, p, whole_pages(bytes));
}

static status borrow(backend_device *d, dev_ptr *out, uint64_t bytes, const loan_place *at,
                     const loan_ticket *ticket, errmsg *e)
{
    loan_blob b;
    void *p = NULL;
    (void)at;
    *out = (dev_ptr){0};
    if (bytes == 0) return ST_OK;
    memcpy(&b, ticket->data, sizeof b);
    if (ticket->bytes != sizeof b || b.magic != TICKET_MAGIC || b.bytes != bytes)
        return errmsg_set(e, ST_RESOURCES, "%s: it lies on another kind of device", d->name);
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_SOFT(d, cudaIpcOpenMemHandle(&p, b.memory, cudaIpcMemLazyEnablePeerAccess), e);
    out->addr = (uintptr_t)p;
    return ST_OK;
}

static void give_back(backend_device *d, dev_ptr p, uint64_t bytes)
{
    (void)bytes;
    (void)cudaSetDevice(d->ordinal);
    if (p.addr != 0) (void)cudaIpcCloseMemHandle(cuda_address(p));
}

/* --- weights: weights_begin reserves one allocation for all --- */

static void lend_weights(backend_device *d, bool on)
{
    d->lends_weights = on;
}

static status lent_weights(backend_device *d, dev_ptr *base, uint64_t *bytes, loan_ticket *ticket,
                           errmsg *e)
{
    void *p = cuda_weights_last(d, bytes);
    base->addr = (uintptr_t)p;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    return write_ticket(d, ticket, p, *bytes, e);
}

const backend_loan cuda_loan_table = {
    .alloc = lent_alloc,
    .free = lent_free,
    .borrow = borrow,
    .give_back = give_back,
    .lend_weights = lend_weights,
    .lent_weights = lent_weights,
};
