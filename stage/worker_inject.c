/* The faults of MEMRA_PP_FAULT that the worker carries out itself (inject.h has the rest). */
#include "stage/worker_impl.h"

#include <math.h>

/* A frame that fails every check, sent as if it were one. */
static status say_nonsense(worker *w, errmsg *e)
{
    const wire_header h = {.magic = ~WIRE_MAGIC, .version = 0, .kind = 0, .stage = w->stage_i};
    return mailbox_push(&w->outbox, &h, sizeof h, e);
}

status worker_inject(worker *w, fault_at at, uint64_t seq, uint32_t *left, errmsg *e)
{
    uint32_t kinds = inject_at(&w->injector, at, seq);
    *left = kinds & (1u << FAULT_CORRUPT | 1u << FAULT_NAN);
    if (kinds == *left) return ST_OK;
    if (has_fault(kinds, FAULT_BADMSG)) TRY(say_nonsense(w, e));
    if (has_fault(kinds, FAULT_OOM)) {
        return errmsg_set(e, ST_RESOURCES,
                          "no memory, an allocation was refused (injected: kind=oom); "
                          "MEMRA_PP_FAULT or --fault asks for it");
    }
    if (has_fault(kinds, FAULT_CUDA)) {
        return errmsg_set(e, ST_DEVICE,
                          "the device failed (injected: kind=cuda); MEMRA_PP_FAULT or "
                          "--fault asks for it");
    }
    return ST_OK;
}

status worker_inject_recovery(worker *w, errmsg *e)
{
    uint32_t left;
    TRY(worker_inject(w, FAULT_AT_RECOVERY, FAULT_STEP_ANY, &left, e));
    w->spoil_replay |= left;
    return ST_OK;
}

static status finish(const backend *b, backend_queue *q)
{
    backend_event ev;
    TRY(b->event_record(q, &ev));
    return b->event_wait(q, ev);
}

status worker_flip_bit(worker *w)
{
    const backend *b = backend_of(w);
    backend_queue *q = stage_queue(w->body);
    dev_ptr at = stage_hidden(seam_last(&w->seam));
    uint32_t bits;
    TRY(b->download(q, &bits, at, sizeof bits));
    TRY(finish(b, q));
    bits ^= 1u << 22;
    TRY(b->upload(q, at, &bits, sizeof bits));
    return finish(b, q);
}

status worker_put_nan(worker *w, uint32_t row_i)
{
    const backend *b = backend_of(w);
    backend_queue *q = stage_queue(w->body);
    const float nan = NAN;
    uint64_t row_bytes = (uint64_t)w->model->n_embd * sizeof(float);
    TRY(b->upload(q, dev_offset(stage_hidden(w->body), row_i * row_bytes), &nan, sizeof nan));
    return finish(b, q);
}
