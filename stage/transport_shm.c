/* Host shared memory with futex words: CPU stages, and any pair that shares no device. */
#include "stage/transport.h"

#include <stdlib.h>
#include <string.h>

struct transport_end {
    boundary_end end;
    transport_options o;
};

static status shm_end_open(transport_end **out, const transport_options *o, errmsg *e)
{
    *out = NULL;
    transport_end *t = calloc(1, sizeof *t);
    if (t == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    t->o = *o;
    status s = boundary_open(&t->end, o->fd, o->epoch, o->stop, e);
    if (s != ST_OK) {
        free(t);
        return s;
    }
    *out = t;
    return ST_OK;
}

static void shm_end_close(transport_end *t)
{
    if (t == NULL) return;
    boundary_close(&t->end);
    free(t);
}

static void shm_end_wake(transport_end *t)
{
    boundary_wake(&t->end);
}

static uint32_t shm_rows_max(const transport_end *t)
{
    return t->end.rows_max;
}

static uint32_t shm_n_embd(const transport_end *t)
{
    return t->end.n_embd;
}

/* Copies between slot and device; the slot may be announced or handed back only when it is done. */
static status finish_copy(transport_end *t)
{
    backend_event ev;
    TRY(t->o.backend->event_record(t->o.queue, &ev));
    return t->o.backend->event_wait(t->o.queue, ev);
}

static status shm_send(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                       const row_header *rows, dev_ptr hidden, uint32_t n_rows, uint64_t timeout_ns)
{
    slot_view v;
    CHECK(n_rows <= t->end.rows_max);
    TRY(boundary_tx_begin(&t->end, slot, timeout_ns, &v));
    *v.header = (slot_header){
        .seq = seq, .epoch = t->end.epoch, .n_rows = n_rows, .kind = (uint32_t)kind};
    memcpy(v.rows, rows, n_rows * sizeof *rows);
    if (v.hidden != NULL && n_rows > 0) {
        TRY(t->o.backend->download(t->o.queue, v.hidden, hidden,
                                   (uint64_t)n_rows * t->end.n_embd * sizeof(float)));
        TRY(finish_copy(t));
    }
    boundary_tx_end(&t->end, slot);
    return ST_OK;
}

static status shm_receive(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                          row_header *rows, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                          errmsg *e)
{
    slot_view v;
    TRY(boundary_rx_begin(&t->end, slot, timeout_ns, &v));
    slot_header h = *v.header; /* our own copy: what is checked is what is used */
    slot_view own = {.header = &h};
    if (!slot_valid(&t->end, &own, kind, seq)) {
        return errmsg_set(e, ST_PROTOCOL,
                          "slot %u holds kind %u, step %llu, epoch %u, %u rows; expected kind %u, "
                          "step %llu, epoch %u, at most %u rows",
                          slot, h.kind, (unsigned long long)h.seq, h.epoch, h.n_rows,
                          (uint32_t)kind, (unsigned long long)seq, t->end.epoch, t->end.rows_max);
    }
    memcpy(rows, v.rows, h.n_rows * sizeof *rows);
    if (v.hidden != NULL && h.n_rows > 0) {
        TRY(t->o.backend->upload(t->o.queue, hidden, v.hidden,
                                 (uint64_t)h.n_rows * t->end.n_embd * sizeof(float)));
        TRY(finish_copy(t));
    }
    boundary_rx_end(&t->end, slot);
    *n_rows = h.n_rows;
    return ST_OK;
}

const transport *transport_shm(void)
{
    static const transport table = {.name = "shm",
                                    .signal = "futex",
                                    .open = shm_end_open,
                                    .close = shm_end_close,
                                    .wake = shm_end_wake,
                                    .rows_max = shm_rows_max,
                                    .n_embd = shm_n_embd,
                                    .send = shm_send,
                                    .receive = shm_receive};
    return &table;
}
