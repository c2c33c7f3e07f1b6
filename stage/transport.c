#include "stage/transport.h"

#include <string.h>

const transport *transport_at(uint32_t i)
{
    static const transport *(*const all[TRANSPORTS])(void) = {transport_ipc, transport_nccl,
                                                              transport_host, transport_shm};
    CHECK(i < TRANSPORTS);
    return all[i]();
}

const transport *transport_get(transport_kind kind)
{
    for (uint32_t i = 0; i < TRANSPORTS; i++) {
        if (transport_at(i)->kind == kind) return transport_at(i);
    }
    return NULL;
}

uint64_t transport_hidden_bytes(const boundary_end *b, uint32_t n_rows)
{
    return (uint64_t)n_rows * b->n_embd * sizeof(float);
}

void transport_put_head(const boundary_end *b, const slot_view *v, slot_kind kind, uint64_t seq,
                        const row_header *rows, uint32_t n_rows)
{
    CHECK(n_rows <= b->rows_max);
    *v->header =
        (slot_header){.seq = seq, .epoch = b->epoch, .n_rows = n_rows, .kind = (uint32_t)kind};
    memcpy(v->rows, rows, n_rows * sizeof *rows);
}

status transport_get_head(const boundary_end *b, const slot_view *v, uint32_t slot, slot_kind kind,
                          uint64_t seq, row_header *rows, uint32_t *n_rows, errmsg *e)
{
    slot_header h = *v->header; /* our own copy: what is checked is what is used */
    slot_view own = {.header = &h};
    if (!slot_valid(b, &own, kind, seq)) {
        return errmsg_set(e, ST_PROTOCOL,
                          "slot %u holds kind %u, step %llu, epoch %u, %u rows; expected kind %u, "
                          "step %llu, epoch %u, at most %u rows",
                          slot, h.kind, (unsigned long long)h.seq, h.epoch, h.n_rows,
                          (uint32_t)kind, (unsigned long long)seq, b->epoch, b->rows_max);
    }
    memcpy(rows, v->rows, h.n_rows * sizeof *rows);
    *n_rows = h.n_rows;
    return ST_OK;
}
