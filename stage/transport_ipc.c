/* Device to device: the sender writes into slots that lie on the receiver's device
 * (kernels/peer.h).
 *
 * The host words say when a slot may be written and that something is on its way: the sender puts
 * the rows on its queue and announces at once. The receiver puts a take behind the device's own
 * signal and waits, bounded, for the word by which its device says that the rows are valid; only
 * then is the walk launched, so that an aborted wait has written nothing.
 *
 * Which signal a message uses is fixed by its size and by what both ends know since they met: rows
 * of a decode step are stored by a kernel and met by a spinning one, where each device is a stage's
 * own; prompt chunks, and everything on a shared device, go through the copy engine and memory
 * operations of the stream. */
#include "stage/transport.h"

#include "common/clock.h"
#include "kernels/peer.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define FLAG_SAME_DEVICE 1u
#define SPIN_LOOKS       4000u
#define PAUSE_NS         20000
#define PROBE_DATA_NS    (3 * NS_PER_S) /* announced rows of a probe that do not come for so long */
#define ABORT_NS         NS_PER_S

struct transport_end {
    transport_options o;
    const backend_peer *peer;
    peer_box *box;         /* the receiver's */
    peer_window *window;   /* the sender's */
    peer_signal small, large;
    bool signals_chosen;
    bool taking[BOUNDARY_SLOTS]; /* a take is on the queue */
    uint64_t announced_ns[BOUNDARY_SLOTS];
};

static bool ipc_applies(const transport_options *o, bool rx)
{
    (void)rx;
    return o->backend->peer != NULL;
}

static uint64_t slot_bytes(const boundary_end *b)
{
    return (uint64_t)b->rows_max * b->n_embd * sizeof(float);
}

static void blob_out(talk_message *m, const peer_blob *b)
{
    _Static_assert(PEER_BLOB_BYTES <= TALK_BLOB_BYTES, "a blob fits into a message");
    m->blob_bytes = b->bytes;
    memcpy(m->blob, b->data, b->bytes);
}

static peer_blob blob_in(const talk_message *m)
{
    peer_blob b = {.bytes = m->blob_bytes};
    memcpy(b.data, m->blob, m->blob_bytes);
    return b;
}

static const char *const signal_words[PEER_SIGNALS] = {"spin", "memop", "event"};

/* Both ends choose by the same rule from the same facts. common: what both devices can. */
static status choose_signals(transport_end *t, bool same_device, uint32_t both, errmsg *e)
{
    static const peer_signal forced[] = {
        [SIGNAL_EVENT] = PEER_EVENT, [SIGNAL_MEMOP] = PEER_MEMOP, [SIGNAL_SPIN] = PEER_SPIN};
    bool memop = (both & 1u << PEER_MEMOP) != 0;
    if (t->o.signal != SIGNAL_AUTO) {
        t->small = t->large = forced[t->o.signal];
    } else {
        t->large = memop ? PEER_MEMOP : PEER_EVENT;
        t->small = same_device ? t->large : PEER_SPIN;
    }
    t->signals_chosen = true;
    if ((both & 1u << t->small) != 0 && (both & 1u << t->large) != 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "the devices cannot signal by %s", signal_words[t->small]);
}

static peer_signal signal_of(const transport_end *t, uint64_t bytes)
{
    return bytes <= PEER_SMALL_BYTES ? t->small : t->large;
}

static void ipc_close(transport_end *t)
{
    if (t->window != NULL) t->peer->window_close(t->window);
    if (t->box != NULL) t->peer->box_close(t->box);
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

static status ipc_offer(transport_end **out, const transport_options *o, talk_message *offer,
                        errmsg *e)
{
    transport_end *t;
    peer_blob blob = {0};
    status s = ST_OK;
    TRY(open_end(&t, o, e));
    TRY_DONE(s, t->peer->box_open(o->queue, &t->box, slot_bytes(o->end), e));
    TRY_DONE(s, t->peer->box_offer(t->box, o->end->epoch, &blob, e));
    blob_out(offer, &blob);
    offer->flags = t->peer->signals(o->queue) << 8;
done:
    if (s != ST_OK) {
        ipc_close(t);
        t = NULL;
    }
    *out = t;
    return s;
}

static status ipc_accept(transport_end **out, const transport_options *o, const talk_message *offer,
                         talk_message *answer, errmsg *e)
{
    transport_end *t;
    peer_blob theirs = blob_in(offer), ours = {0};
    bool same_device = false;
    status s = ST_OK;
    TRY(open_end(&t, o, e));
    TRY_DONE(s, t->peer->window_open(o->queue, &t->window, &theirs, &ours, &same_device, e));
    uint32_t both = (offer->flags >> 8) & t->peer->signals(o->queue);
    TRY_DONE(s, choose_signals(t, same_device, both, e));
    blob_out(answer, &ours);
    answer->flags = both << 8 | (same_device ? FLAG_SAME_DEVICE : 0);
done:
    if (s != ST_OK) {
        ipc_close(t);
        t = NULL;
    }
    *out = t;
    return s;
}

static status ipc_settle(transport_end *t, const talk_message *answer, errmsg *e)
{
    if (t->window != NULL) return ST_OK;
    peer_blob theirs = blob_in(answer);
    TRY(t->peer->box_meet(t->box, &theirs, e));
    return choose_signals(t, (answer->flags & FLAG_SAME_DEVICE) != 0, answer->flags >> 8, e);
}

static void ipc_wake(transport_end *t)
{
    if (t->box != NULL) t->peer->box_poison(t->box);
}

static const char *ipc_signal(const transport_end *t)
{
    if (!t->signals_chosen) return "-";
    return t->small == t->large ? signal_words[t->small] : "spin, memop";
}

static uint64_t value_of(const boundary_end *b, uint32_t slot)
{
    return (uint64_t)b->epoch << 32 | (b->count[slot] + 1);
}

static status ipc_send(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                       const row_header *rows, dev_ptr hidden, uint32_t n_rows, uint64_t timeout_ns)
{
    slot_view v;
    uint64_t bytes = transport_hidden_bytes(t->o.end, n_rows);
    TRY(boundary_tx_begin(t->o.end, slot, timeout_ns, &v));
    transport_put_head(t->o.end, &v, kind, seq, rows, n_rows);
    if (bytes > 0) {
        TRY(t->peer->put(t->window, slot, signal_of(t, bytes), value_of(t->o.end, slot), hidden,
                         bytes, NULL));
    }
    boundary_tx_end(t->o.end, slot);
    return ST_OK;
}

static bool told_to_stop(const transport_end *t)
{
    return atomic_load_explicit(t->o.end->stop, memory_order_acquire) != 0;
}

/* Look for the device's word until the deadline; first often, then with pauses. */
static status await_taken(transport_end *t, uint32_t slot, uint64_t deadline_ns, peer_state *state)
{
    for (uint32_t look = 0;; look++) {
        TRY(t->peer->taken(t->box, slot, value_of(t->o.end, slot), state));
        if (*state != PEER_WAITING) return ST_OK;
        if (look < SPIN_LOOKS) {
            __builtin_ia32_pause();
            continue;
        }
        if (told_to_stop(t)) t->peer->box_poison(t->box);
        if (now_ns() >= deadline_ns) return ST_TIMEOUT;
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        nanosleep(&pause, NULL);
    }
}

/* Put the take on the queue; an event is looked at until it is complete. */
static status begin_take(transport_end *t, uint32_t slot, dev_ptr hidden, uint64_t bytes,
                         uint64_t deadline_ns)
{
    for (;;) {
        status s = t->peer->take(t->box, slot, signal_of(t, bytes), value_of(t->o.end, slot),
                                 hidden, bytes, NULL);
        if (s == ST_OK) t->taking[slot] = true;
        if (s != ST_TIMEOUT) return s;
        if (told_to_stop(t)) return ST_CLOSED;
        if (now_ns() >= deadline_ns) return ST_TIMEOUT;
        sched_yield();
    }
}

static status take_rows(transport_end *t, uint32_t slot, dev_ptr hidden, uint64_t bytes,
                        uint64_t deadline_ns)
{
    peer_state state = PEER_WAITING;
    if (!t->taking[slot]) TRY(begin_take(t, slot, hidden, bytes, deadline_ns));
    TRY(await_taken(t, slot, deadline_ns, &state));
    t->taking[slot] = false;
    return state == PEER_VALID ? ST_OK : ST_CLOSED;
}

/* A probe's rows are on their way when they are announced; when they do not come, the signal
 * lies. */
static status probe_overdue(transport_end *t, uint32_t slot, slot_kind kind, uint64_t announced_ns,
                            errmsg *e)
{
    peer_state state = PEER_WAITING;
    if (kind != SLOT_PROBE || now_ns() - announced_ns < PROBE_DATA_NS) return ST_TIMEOUT;
    if (t->taking[slot]) {
        t->peer->box_poison(t->box);
        status s = await_taken(t, slot, now_ns() + ABORT_NS, &state);
        if (s != ST_OK && s != ST_TIMEOUT) return s;
    }
    return errmsg_set(e, ST_PROTOCOL, "rows announced in slot %u did not come within %llu s", slot,
                      (unsigned long long)(PROBE_DATA_NS / NS_PER_S));
}

static status ipc_receive(transport_end *t, uint32_t slot, slot_kind kind, uint64_t seq,
                          row_header *rows, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                          errmsg *e)
{
    slot_view v;
    uint64_t deadline_ns = now_ns() + timeout_ns;
    TRY(boundary_rx_begin(t->o.end, slot, timeout_ns, &v)); /* a slot that is full stays full */
    TRY(transport_get_head(t->o.end, &v, slot, kind, seq, rows, n_rows, e));
    uint64_t bytes = transport_hidden_bytes(t->o.end, *n_rows);
    if (t->announced_ns[slot] == 0) t->announced_ns[slot] = now_ns();
    if (bytes > 0) {
        status s = take_rows(t, slot, hidden, bytes, deadline_ns);
        if (s == ST_TIMEOUT) return probe_overdue(t, slot, kind, t->announced_ns[slot], e);
        TRY(s);
    }
    t->announced_ns[slot] = 0;
    boundary_rx_end(t->o.end, slot);
    return ST_OK;
}

/* --- rows that the devices tell each other: by lines alone, which spinning kernels wait for --- */

static bool ipc_carries(const transport_end *t)
{
    return t->signals_chosen && t->small == PEER_SPIN && t->peer->lane_put != NULL;
}

static status ipc_put(transport_end *t, uint32_t slot, uint64_t seq, const row_header *rows,
                      const peer_rows *x, dev_ptr hidden, uint64_t timeout_ns)
{
    slot_view v;
    uint64_t bytes = transport_hidden_bytes(t->o.end, x->n_rows);
    TRY(boundary_tx_begin(t->o.end, slot, timeout_ns, &v));
    transport_put_head(t->o.end, &v, SLOT_STEP, seq, rows, x->n_rows);
    TRY(t->peer->put(t->window, slot, PEER_SPIN, value_of(t->o.end, slot), hidden, bytes, x));
    boundary_tx_end(t->o.end, slot);
    return ST_OK;
}

static status ipc_take(transport_end *t, uint32_t slot, uint64_t seq, row_header *rows,
                       const peer_rows *x, dev_ptr hidden, uint32_t *n_rows, uint64_t timeout_ns,
                       errmsg *e)
{
    slot_view v;
    TRY(boundary_rx_begin(t->o.end, slot, timeout_ns, &v));
    TRY(transport_get_head(t->o.end, &v, slot, SLOT_STEP, seq, rows, n_rows, e));
    if (*n_rows != x->n_rows) return ST_OK; /* the caller says so */
    return t->peer->take(t->box, slot, PEER_SPIN, value_of(t->o.end, slot), hidden,
                         transport_hidden_bytes(t->o.end, x->n_rows), x);
}

const transport *transport_ipc(void)
{
    static const transport table = {.name = "ipc",
                                    .kind = TRANSPORT_IPC,
                                    .has_signals = true,
                                    .applies = ipc_applies,
                                    .offer = ipc_offer,
                                    .accept = ipc_accept,
                                    .settle = ipc_settle,
                                    .close = ipc_close,
                                    .wake = ipc_wake,
                                    .signal = ipc_signal,
                                    .send = ipc_send,
                                    .receive = ipc_receive,
                                    .carries = ipc_carries,
                                    .put = ipc_put,
                                    .take = ipc_take};
    return &table;
}
