/* Host shared memory with futex words: `shm` for CPU stages and for any pair that shares nothing
 * else, `host` with the memory pinned, so that a device copies by itself. One of the two ends must
 * have a device for `host`; the offer's flag says whether the receiver has. */
#include "stage/transport.h"

#include "common/clock.h"
#include "kernels/peer.h"
#include "stage/lane.h"

#include <stdlib.h>

#define FLAG_DEVICE 1u
#define SPIN_LOOKS  4000u
#define PAUSE_NS    20000

struct transport_end {
    transport_options o;
    bool pinned;
};

static bool has_device(const transport_options *o)
{
    return o->backend->peer != NULL;
}

static bool shm_applies(const transport_options *o, bool rx)
{
    (void)o, (void)rx;
    return true;
}

static status open_end(transport_end **out, const transport_options *o, errmsg *e)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    (*out)->o = *o;
    return ST_OK;
}

static void shm_close(transport_end *t)
{
    if (t->pinned) t->o.backend->peer->host_unpin(t->o.queue, t->o.end->map);
    free(t);
}

static status open_pinned(transport_end **out, const transport_options *o, errmsg *e)
{
    TRY(open_end(out, o, e));
    if (!has_device(o)) return ST_OK;
    status s = o->backend->peer->host_pin(o->queue, o->end->map, o->end->bytes, e);
    if (s != ST_OK) {
        shm_close(*out);
        *out = NULL;
        return s;
    }
    (*out)->pinned = true;
    return ST_OK;
}

static status shm_offer(transport_end **out, const transport_options *o, talk_message *offer,
                        errmsg *e)
{
    (void)offer;
    boundary_lanes_clear(o->end);
    return open_end(out, o, e);
}

static status shm_accept(transport_end **out, const transport_options *o, const talk_message *offer,
                         talk_message *answer, errmsg *e)
{
    (void)offer, (void)answer;
    return open_end(out, o, e);
}

static status host_offer(transport_end **out, const transport_options *o, talk_message *offer,
                         errmsg *e)
{
    offer->flags = has_device(o) ? FLAG_DEVICE : 0;
    boundary_lanes_clear(o->end);
    return open_pinned(out, o, e);
}

static status host_accept(transport_end **out, const transport_options *o,
                          const talk_message *offer, talk_message *answer, errmsg *e)
{
    (void)answer;
    *out = NULL;
    if (!has_device(o) && (offer->flags & FLAG_DEVICE) == 0)
        return errmsg_set(e, ST_CLOSED, "neither end is on a device that memory is pinned for");
    return open_pinned(out, o, e);
}

static status shm_settle(transport_end *t, const talk_message *answer, errmsg *e)
{
    (void)t, (void)answer, (void)e;
    return ST_OK;
}

static void shm_wake(transport_end *t)
{
    lane_poison(t->o.end); /* all other waits are the boundary's own */
}

static const char *shm_signal(const transport_end *t)
{
    (void)t;
    return "futex";
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
    TRY(boundary_tx_begin(t->o.end, slot, timeout_ns, &v));
    transport_put_head(t->o.end, &v, kind, seq, rows, n_rows);
    if (v.hidden != NULL && n_rows > 0) {
        TRY(t->o.backend->download(t->o.queue, v.hidden, hidden,
                                   transport_hidden_bytes(t->o.end, n_rows)));
        TRY(finish_copy(t));
    }
    boundary_tx_end(t->o.end, slot);
    return ST_OK;
}

static status shm_receive(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                          row_header *rows, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                          errmsg *e)
{
    slot_view v;
    TRY(boundary_rx_begin(t->o.end, slot, timeout_ns, &v));
    TRY(transport_get_head(t->o.end, &v, slot, kind, seq, rows, n_rows, e));
    if (v.hidden != NULL && *n_rows > 0) {
        TRY(t->o.backend->upload(t->o.queue, hidden, v.hidden,
                                 transport_hidden_bytes(t->o.end, *n_rows)));
        TRY(finish_copy(t));
    }
    boundary_rx_end(t->o.end, slot);
    return ST_OK;
}

/* --- rows that the devices tell each other --- */

/* A device that has memory of its own must see the boundary's, and have kernels for it. */
static bool shm_carries(const transport_end *t)
{
    if (!has_device(&t->o)) return t->o.backend->in_call;
    return t->pinned && t->o.backend->peer->lane_put != NULL;
}

static status shm_put(transport_end *t, uint32_t slot, uint64_t seq, const row_header *rows,
                      const peer_rows *x, dev_ptr hidden, uint64_t timeout_ns)
{
    const boundary_end *b = t->o.end;
    uint64_t bytes = transport_hidden_bytes(b, x->n_rows);
    slot_view v;
    TRY(boundary_tx_begin(t->o.end, slot, timeout_ns, &v));
    transport_put_head(b, &v, SLOT_STEP, seq, rows, x->n_rows);
    const peer_lane l = lane_of(b, slot, &v);
    if (has_device(&t->o)) {
        TRY(t->o.backend->peer->lane_put(t->o.queue, &l, hidden, bytes, x));
    } else {
        if (bytes > 0) TRY(t->o.backend->download(t->o.queue, v.hidden, hidden, bytes));
        lane_put_here(&l, x);
    }
    boundary_tx_end(t->o.end, slot);
    return ST_OK;
}

/* A device's lines may come long after the announcement. */
static status await_lines(const boundary_end *b, const peer_lane *l, const peer_rows *x,
                          uint64_t deadline_ns)
{
    for (uint32_t look = 0;; look++) {
        status s = lane_take_here(l, x);
        if (s != ST_TIMEOUT) return s;
        if (atomic_load_explicit(b->stop, memory_order_acquire) != 0) return ST_CLOSED;
        if (now_ns() >= deadline_ns) return ST_TIMEOUT;
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        if (look >= SPIN_LOOKS) nanosleep(&pause, NULL);
    }
}

static status shm_take(transport_end *t, uint32_t slot, uint64_t seq, row_header *rows,
                       const peer_rows *x, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                       errmsg *e)
{
    const boundary_end *b = t->o.end;
    uint64_t deadline_ns = now_ns() + timeout_ns;
    slot_view v;
    TRY(boundary_rx_begin(t->o.end, slot, timeout_ns, &v));
    TRY(transport_get_head(b, &v, slot, SLOT_STEP, seq, rows, n_rows, e));
    if (*n_rows != x->n_rows) return ST_OK; /* the caller says so */
    uint64_t bytes = transport_hidden_bytes(b, x->n_rows);
    const peer_lane l = lane_of(b, slot, &v);
    if (has_device(&t->o)) return t->o.backend->peer->lane_take(t->o.queue, &l, hidden, bytes, x);
    TRY(await_lines(b, &l, x, deadline_ns));
    return bytes > 0 ? t->o.backend->upload(t->o.queue, hidden, v.hidden, bytes) : ST_OK;
}

const transport *transport_shm(void)
{
    static const transport table = {.name = "shm",
                                    .kind = TRANSPORT_SHM,
                                    .applies = shm_applies,
                                    .offer = shm_offer,
                                    .accept = shm_accept,
                                    .settle = shm_settle,
                                    .close = shm_close,
                                    .wake = shm_wake,
                                    .signal = shm_signal,
                                    .send = shm_send,
                                    .receive = shm_receive,
                                    .carries = shm_carries,
                                    .put = shm_put,
                                    .take = shm_take};
    return &table;
}

/* The receiver cannot know whether the sender has a device: the sender's answer says. */
const transport *transport_host(void)
{
    static const transport table = {.name = "host",
                                    .kind = TRANSPORT_HOST,
                                    .applies = shm_applies,
                                    .offer = host_offer,
                                    .accept = host_accept,
                                    .settle = shm_settle,
                                    .close = shm_close,
                                    .wake = shm_wake,
                                    .signal = shm_signal,
                                    .send = shm_send,
                                    .receive = shm_receive,
                                    .carries = shm_carries,
                                    .put = shm_put,
                                    .take = shm_take};
    return &table;
}
