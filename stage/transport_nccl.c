/* NCCL send and receive: one communicator per boundary (kernels/peer.h, link). The sender copies
 * the rows aside and announces at once; the receiver posts its receive when it sees the
 * announcement and waits for it, bounded. */
#include "stage/transport.h"

#include "common/clock.h"
#include "kernels/peer.h"

#include <stdlib.h>
#include <string.h>

#define SPIN_LOOKS 4000u
#define PAUSE_NS   20000

struct transport_end {
    transport_options o;
    const backend_peer *peer;
    peer_link *link;
    bool receiving[BOUNDARY_SLOTS];
};

static bool nccl_applies(const transport_options *o, bool rx)
{
    (void)rx;
    return o->backend->peer != NULL;
}

static uint64_t slot_bytes(const boundary_end *b)
{
    return (uint64_t)b->rows_max * b->n_embd * sizeof(float);
}

static void nccl_close(transport_end *t)
{
    if (t->link != NULL) t->peer->link_close(t->link);
    free(t);
}

static status open_end(transport_end **out, const transport_options *o, errmsg *e)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    (*out)->o = *o;
    (*out)->peer = o->backend->peer;
    return ST_OK;
}

static status nccl_offer(transport_end **out, const transport_options *o, talk_message *offer,
                         errmsg *e)
{
    transport_end *t;
    peer_blob blob = {0};
    TRY(open_end(&t, o, e));
    status s = t->peer->link_offer(o->queue, &t->link, slot_bytes(o->end), &blob, e);
    *out = t;
    if (s != ST_OK) {
        nccl_close(t);
        *out = NULL;
        return s;
    }
    offer->blob_bytes = blob.bytes;
    memcpy(offer->blob, blob.data, blob.bytes);
    return ST_OK;
}

static status nccl_accept(transport_end **out, const transport_options *o,
                          const talk_message *offer, talk_message *answer, errmsg *e)
{
    transport_end *t;
    peer_blob blob = {.bytes = offer->blob_bytes};
    (void)answer;
    memcpy(blob.data, offer->blob, offer->blob_bytes);
    TRY(open_end(&t, o, e));
    status s = t->peer->link_accept(o->queue, &t->link, slot_bytes(o->end), &blob, e);
    *out = t;
    if (s != ST_OK) {
        nccl_close(t);
        *out = NULL;
    }
    return s;
}

static status nccl_settle(transport_end *t, const talk_message *answer, errmsg *e)
{
    (void)answer;
    return t->peer->link_ready(t->link, e);
}

static void nccl_wake(transport_end *t)
{
    t->peer->link_abort(t->link);
}

static const char *nccl_signal(const transport_end *t)
{
    (void)t;
    return "nccl";
}

static status nccl_send(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                        const row_header *rows, dev_ptr hidden, uint32_t n_rows,
                        uint64_t timeout_ns)
{
    slot_view v;
    uint64_t bytes = transport_hidden_bytes(t->o.end, n_rows);
    TRY(boundary_tx_begin(t->o.end, slot, timeout_ns, &v));
    transport_put_head(t->o.end, &v, kind, seq, rows, n_rows);
    if (bytes > 0) TRY(t->peer->link_send(t->link, slot, hidden, bytes));
    boundary_tx_end(t->o.end, slot);
    return ST_OK;
}

static bool told_to_stop(const transport_end *t)
{
    return atomic_load_explicit(t->o.end->stop, memory_order_acquire) != 0;
}

static status receive_rows(transport_end *t, uint32_t slot, dev_ptr hidden, uint64_t bytes,
                           uint64_t deadline_ns)
{
    if (!t->receiving[slot]) TRY(t->peer->link_receive(t->link, hidden, bytes));
    t->receiving[slot] = true;
    for (uint32_t look = 0;; look++) {
        peer_state state = PEER_WAITING;
        TRY(t->peer->link_received(t->link, &state));
        if (state != PEER_WAITING) {
            t->receiving[slot] = false;
            return state == PEER_VALID ? ST_OK : ST_CLOSED;
        }
        if (told_to_stop(t)) t->peer->link_abort(t->link);
        if (now_ns() >= deadline_ns) return ST_TIMEOUT;
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        if (look >= SPIN_LOOKS) nanosleep(&pause, NULL);
    }
}

static status nccl_receive(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                           row_header *rows, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                           errmsg *e)
{
    slot_view v;
    uint64_t deadline_ns = now_ns() + timeout_ns;
    TRY(boundary_rx_begin(t->o.end, slot, timeout_ns, &v));
    TRY(transport_get_head(t->o.end, &v, slot, kind, seq, rows, n_rows, e));
    uint64_t bytes = transport_hidden_bytes(t->o.end, *n_rows);
    if (bytes > 0) TRY(receive_rows(t, slot, hidden, bytes, deadline_ns));
    boundary_rx_end(t->o.end, slot);
    return ST_OK;
}

const transport *transport_nccl(void)
{
    static const transport table = {.name = "nccl",
                                    .kind = TRANSPORT_NCCL,
                                    .applies = nccl_applies,
                                    .offer = nccl_offer,
                                    .accept = nccl_accept,
                                    .settle = nccl_settle,
                                    .close = nccl_close,
                                    .wake = nccl_wake,
                                    .signal = nccl_signal,
                                    .send = nccl_send,
                                    .receive = nccl_receive};
    return &table;
}
