#include "tests/support/fake_peer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

fake_peer fake;

/* The two ends see each other's memory at one address here, and meet in words that they map at two:
 * this is what orders their accesses for a race detector. */
static pthread_mutex_t ends = PTHREAD_MUTEX_INITIALIZER;

static void order(void)
{
    pthread_mutex_lock(&ends);
    pthread_mutex_unlock(&ends);
}

struct peer_box {
    uint64_t slot_bytes;
    uint32_t epoch;
    unsigned char *slots[PEER_SLOTS];
    _Atomic uint64_t word[PEER_SLOTS];
    _Atomic bool poisoned;
    _Atomic uint32_t n_windows;
    void *to[PEER_SLOTS];
    uint64_t bytes[PEER_SLOTS];
};

struct peer_window {
    peer_box *box;
};

static uint32_t fake_signals(backend_queue *q)
{
    (void)q;
    return 1u << PEER_SPIN | 1u << PEER_EVENT | (fake.no_memop ? 0 : 1u << PEER_MEMOP);
}

static status fake_box_open(backend_queue *q, peer_box **out, uint64_t slot_bytes, errmsg *e)
{
    (void)q;
    *out = NULL;
    if (fake.no_box) return errmsg_set(e, ST_RESOURCES, "no box here");
    peer_box *b = calloc(1, sizeof *b);
    b->slot_bytes = slot_bytes;
    for (uint32_t i = 0; i < PEER_SLOTS; i++)
        b->slots[i] = calloc(1, slot_bytes);
    fake.n_boxes++;
    *out = b;
    return ST_OK;
}

static void fake_box_close(peer_box *b)
{
    order();
    if (b->n_windows != 0) fake.n_orphans++;
    for (uint32_t i = 0; i < PEER_SLOTS; i++)
        free(b->slots[i]);
    free(b);
    fake.n_boxes--;
}

static uint64_t fake_box_bytes(const peer_box *b)
{
    return PEER_SLOTS * b->slot_bytes;
}

static status fake_box_offer(peer_box *b, uint32_t epoch, peer_blob *out, errmsg *e)
{
    order();
    (void)e;
    b->epoch = epoch;
    out->bytes = sizeof b;
    memcpy(out->data, &b, sizeof b);
    order();
    return ST_OK;
}

static status fake_box_meet(peer_box *b, const peer_blob *answer, errmsg *e)
{
    order();
    (void)b;
    if (answer->bytes == 3 && memcmp(answer->data, "met", 3) == 0) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "not met");
}

static status fake_take(peer_box *b, uint32_t slot, peer_signal how, uint64_t value, dev_ptr to,
                        uint64_t bytes, const peer_rows *rows)
{
    CHECK(rows == NULL);
    if (how == PEER_EVENT && b->word[slot] != value) return ST_TIMEOUT;
    b->to[slot] = (void *)(uintptr_t)to.addr;
    b->bytes[slot] = bytes;
    return ST_OK;
}

static status fake_taken(peer_box *b, uint32_t slot, uint64_t value, peer_state *out)
{
    order();
    *out = PEER_WAITING;
    if (b->word[slot] == value) {
        order();
        memcpy(b->to[slot], b->slots[slot], b->bytes[slot]);
        order();
        *out = PEER_VALID;
    } else if (b->poisoned) {
        *out = PEER_ABORTED;
    }
    return ST_OK;
}

static void fake_poison(peer_box *b)
{
    b->poisoned = true;
}

static status fake_window_open(backend_queue *q, peer_window **out, const peer_blob *offer,
                               peer_blob *answer, bool *same_device, errmsg *e)
{
    order();
    (void)q;
    *out = NULL;
    if (fake.no_window) return errmsg_set(e, ST_RESOURCES, "no window here");
    *out = calloc(1, sizeof **out);
    memcpy(&(*out)->box, offer->data, sizeof(peer_box *));
    (*out)->box->n_windows++;
    fake.n_windows++;
    answer->bytes = 3;
    memcpy(answer->data, "met", 3);
    *same_device = fake.same_device;
    return ST_OK;
}

static void fake_window_close(peer_window *w)
{
    order();
    w->box->n_windows--;
    free(w);
    fake.n_windows--;
}

static status fake_put(peer_window *w, uint32_t slot, peer_signal how, uint64_t value, dev_ptr from,
                       uint64_t bytes, const peer_rows *rows)
{
    CHECK(rows == NULL);
    order();
    peer_box *b = w->box;
    CHECK(bytes <= b->slot_bytes && value >> 32 == b->epoch);
    memcpy(b->slots[slot], (const void *)(uintptr_t)from.addr, bytes);
    if (fake.corrupt) b->slots[slot][bytes - 1] ^= 1;
    fake.n_puts[how]++;
    order();
    if (!fake.silent) b->word[slot] = value;
    return ST_OK;
}

static status fake_pin(backend_queue *q, void *host, uint64_t bytes, errmsg *e)
{
    (void)q, (void)host, (void)bytes, (void)e;
    fake.n_pins++;
    return ST_OK;
}

static void fake_unpin(backend_queue *q, void *host)
{
    (void)q, (void)host;
    fake.n_pins--;
}

/* --- links: one message at a time in each slot's turn, through a queue of two --- */

typedef struct {
    pthread_mutex_t lock;
    uint32_t users;
    unsigned char *message[PEER_SLOTS];
    uint64_t bytes[PEER_SLOTS];
    uint32_t n_sent, n_received;
    bool aborted;
} fake_wire;

struct peer_link {
    fake_wire *wire;
    void *to;
};

static peer_link *link_to(fake_wire *wire)
{
    peer_link *l = calloc(1, sizeof *l);
    l->wire = wire;
    pthread_mutex_lock(&wire->lock);
    wire->users++;
    pthread_mutex_unlock(&wire->lock);
    fake.n_links++;
    return l;
}

static status fake_link_offer(backend_queue *q, peer_link **out, uint64_t slot_bytes,
                              peer_blob *offer, errmsg *e)
{
    (void)q;
    *out = NULL;
    if (!fake.link_works) return errmsg_set(e, ST_RESOURCES, "no link here");
    fake_wire *w = calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    for (uint32_t i = 0; i < PEER_SLOTS; i++)
        w->message[i] = malloc(slot_bytes);
    *out = link_to(w);
    offer->bytes = sizeof w;
    memcpy(offer->data, &w, sizeof w);
    order();
    return ST_OK;
}

static status fake_link_accept(backend_queue *q, peer_link **out, uint64_t slot_bytes,
                               const peer_blob *offer, errmsg *e)
{
    order();
    (void)q, (void)slot_bytes, (void)e;
    fake_wire *w;
    memcpy(&w, offer->data, sizeof w);
    *out = link_to(w);
    return ST_OK;
}

static status fake_link_ready(peer_link *l, errmsg *e)
{
    (void)e;
    pthread_mutex_lock(&l->wire->lock);
    bool both_there = l->wire->users == 2;
    pthread_mutex_unlock(&l->wire->lock);
    return both_there ? ST_OK : ST_TIMEOUT;
}

static status fake_link_send(peer_link *l, uint32_t slot, dev_ptr from, uint64_t bytes)
{
    fake_wire *w = l->wire;
    (void)slot;
    pthread_mutex_lock(&w->lock);
    bool room = w->n_sent - w->n_received < PEER_SLOTS;
    if (room) {
        uint32_t i = w->n_sent++ % PEER_SLOTS;
        memcpy(w->message[i], (const void *)(uintptr_t)from.addr, bytes);
        w->bytes[i] = bytes;
    }
    pthread_mutex_unlock(&w->lock);
    return room ? ST_OK : ST_TIMEOUT;
}

static status fake_link_receive(peer_link *l, dev_ptr to, uint64_t bytes)
{
    (void)bytes;
    l->to = (void *)(uintptr_t)to.addr;
    return ST_OK;
}

static status fake_link_received(peer_link *l, peer_state *out)
{
    fake_wire *w = l->wire;
    *out = PEER_WAITING;
    pthread_mutex_lock(&w->lock);
    if (w->n_sent != w->n_received) {
        uint32_t i = w->n_received++ % PEER_SLOTS;
        memcpy(l->to, w->message[i], w->bytes[i]);
        *out = PEER_VALID;
    } else if (w->aborted) {
        *out = PEER_ABORTED;
    }
    pthread_mutex_unlock(&w->lock);
    return ST_OK;
}

static void fake_link_abort(peer_link *l)
{
    pthread_mutex_lock(&l->wire->lock);
    l->wire->aborted = true;
    pthread_mutex_unlock(&l->wire->lock);
}

static void fake_link_close(peer_link *l)
{
    fake_wire *w = l->wire;
    pthread_mutex_lock(&w->lock);
    bool last = --w->users == 0;
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; last && i < PEER_SLOTS; i++)
        free(w->message[i]);
    if (last) {
        pthread_mutex_destroy(&w->lock);
        free(w);
    }
    free(l);
    fake.n_links--;
}

const backend *fake_peer_backend(void)
{
    static const backend_peer peer = {
        .signals = fake_signals,
        .box_open = fake_box_open,
        .box_close = fake_box_close,
        .box_bytes = fake_box_bytes,
        .box_offer = fake_box_offer,
        .box_meet = fake_box_meet,
        .take = fake_take,
        .taken = fake_taken,
        .box_poison = fake_poison,
        .window_open = fake_window_open,
        .window_close = fake_window_close,
        .put = fake_put,
        .host_pin = fake_pin,
        .host_unpin = fake_unpin,
        .link_offer = fake_link_offer,
        .link_accept = fake_link_accept,
        .link_ready = fake_link_ready,
        .link_send = fake_link_send,
        .link_receive = fake_link_receive,
        .link_received = fake_link_received,
        .link_abort = fake_link_abort,
        .link_close = fake_link_close,
    };
    static backend table;
    if (table.peer == NULL) {
        table = *backend_cpu();
        table.peer = &peer;
    }
    memset(&fake, 0, sizeof fake);
    return &table;
}
