#include "stage/edges.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

#define WAIT_SLICE_NS (50 * NS_PER_MS)
#define SPIN_LOOKS    4000u
#define PAUSE_NS      20000

static void add(_Atomic uint64_t *word, uint64_t n)
{
    atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

static status open_edge(edge *g, edges *x, int fd, uint32_t epoch, uint32_t from, errmsg *e)
{
    TRY(boundary_open(&g->end, fd, epoch, x->stop, e));
    g->from = from;
    g->to = (from + 1) % x->n_stages;
    if (g->end.rows_max == x->rows_max) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "boundary %u -> %u is not %u rows long", g->from, g->to,
                      x->rows_max);
}

status edges_open(edges *out, const wire_config *c, const backend *b, backend_queue *q,
                  stage_words *words, const _Atomic uint32_t *stop, errmsg *e)
{
    *out = (edges){.backend = b,
                   .queue = q,
                   .words = words,
                   .stop = stop,
                   .stage_i = c->stage_i,
                   .n_stages = c->n_stages,
                   .rows_max = c->rows_max,
                   .transport = (transport_kind)c->transport,
                   .signal = (signal_kind)c->signal,
                   .wait_limit_ms = c->wait_limit_ms};
    if (c->n_stages == 1) return ST_OK;
    pthread_mutex_init(&out->lock, NULL);
    out->open = true;
    status s = ST_OK;
    uint32_t before = (c->stage_i + c->n_stages - 1) % c->n_stages;
    TRY_DONE(s, open_edge(&out->in, out, c->in_fd, c->edge_epoch, before, e));
    TRY_DONE(s, open_edge(&out->out, out, c->out_fd, c->edge_epoch, c->stage_i, e));
    uint32_t n_embd = out->in.end.n_embd;
    if (out->out.end.n_embd > n_embd) n_embd = out->out.end.n_embd;
    out->rows = calloc(c->rows_max, sizeof *out->rows);
    out->pattern = calloc((size_t)c->rows_max * n_embd + 1, sizeof *out->pattern);
    if (out->rows == NULL || out->pattern == NULL)
        s = errmsg_set(e, ST_RESOURCES, "no memory for a boundary's rows");
done:
    if (s != ST_OK) edges_close(out);
    return s;
}

void edge_set(edges *x, edge *g, const transport *kind, transport_end *way)
{
    pthread_mutex_lock(&x->lock);
    const transport *old_kind = g->kind;
    transport_end *old_way = g->way;
    g->kind = kind;
    g->way = way;
    pthread_mutex_unlock(&x->lock);
    if (old_way != NULL) old_kind->close(old_way);
}

void edge_renew(edges *x, edge *g, uint32_t epoch)
{
    edge_set(x, g, NULL, NULL);
    boundary_renew(&g->end, epoch);
}

void edges_close(edges *x)
{
    if (!x->open) return;
    edge *both[] = {&x->out, &x->in}; /* the sender's end first */
    for (int i = 0; i < 2; i++) {
        edge_set(x, both[i], NULL, NULL);
        boundary_close(&both[i]->end);
    }
    free(x->rows);
    free(x->pattern);
    x->rows = NULL;
    x->pattern = NULL;
    pthread_mutex_destroy(&x->lock);
    x->open = false;
}

void edges_wake(edges *x)
{
    if (!x->open) return;
    pthread_mutex_lock(&x->lock);
    edge *both[] = {&x->in, &x->out};
    for (int i = 0; i < 2; i++) {
        if (both[i]->way != NULL) both[i]->kind->wake(both[i]->way);
        boundary_wake(&both[i]->end);
    }
    pthread_mutex_unlock(&x->lock);
}

status edges_wait(edges *x, bool sending, edges_slice slice, void *ctx, errmsg *e)
{
    uint64_t begin = now_ns();
    atomic_store_explicit(&x->words->starved, sending ? STARVED_OUTPUT_FULL : STARVED_INPUT_EMPTY,
                          memory_order_relaxed);
    status s;
    do {
        s = slice(ctx, WAIT_SLICE_NS, e);
    } while (s == ST_TIMEOUT && now_ns() - begin < x->wait_limit_ms * NS_PER_MS);
    atomic_store_explicit(&x->words->starved, STARVED_NO, memory_order_relaxed);
    add(sending ? &x->words->wait_out_ns : &x->words->wait_in_ns, now_ns() - begin);
    if (s == ST_TIMEOUT) {
        const edge *g = sending ? &x->out : &x->in;
        return errmsg_set(e, ST_TIMEOUT, "stage %u: boundary %u -> %u stayed %s for %llu ms",
                          x->stage_i, g->from, g->to, sending ? "full" : "empty",
                          (unsigned long long)x->wait_limit_ms);
    }
    return s;
}

typedef struct {
    edges *x;
    crossing *c;
} cross_context;

static status cross_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    const cross_context *a = ctx;
    edges *x = a->x;
    crossing *c = a->c;
    if (c->sending) {
        return x->out.kind->send(x->out.way, c->slot, c->kind, c->seq, x->rows, c->hidden,
                                 c->n_rows, timeout_ns);
    }
    return x->in.kind->receive(x->in.way, c->slot, c->kind, c->seq, x->rows, c->hidden, &c->n_rows,
                               timeout_ns, e);
}

/* A device that failed in a crossing says at which boundary. */
static status named(const edges *x, const edge *g, status s, errmsg *e)
{
    if (s != ST_DEVICE) return s;
    return errmsg_set(e, s, "stage %u: the device failed at boundary %u -> %u (%s): %s", x->stage_i,
                      g->from, g->to, g->kind->name,
                      x->backend->failure != NULL ? x->backend->failure(x->queue) : "");
}

status edges_cross(edges *x, crossing *c, errmsg *e)
{
    cross_context a = {x, c};
    const edge *g = c->sending ? &x->out : &x->in;
    CHECK(g->way != NULL);
    return named(x, g, edges_wait(x, c->sending, cross_slice, &a, e), e);
}

static row_header header_of(const wire_row *r)
{
    return (row_header){.session_step = r->session_step,
                        .session = r->session,
                        .generation = r->generation,
                        .branch = r->branch,
                        .position = r->position,
                        .token = r->token,
                        .live = (r->flags & ROW_LIVE) != 0};
}

bool row_header_equal(const row_header *a, const row_header *b)
{
    return a->session_step == b->session_step && a->session == b->session &&
           a->generation == b->generation && a->branch == b->branch && a->position == b->position &&
           a->token == b->token && a->live == b->live;
}

/* The row that a header must be; what was found or drawn on the way is the header's own. */
static bool take_header(const edges *x, const incoming *in, uint32_t row_i, const row_header *h)
{
    wire_row *r = &in->rows[row_i];
    row_header want = header_of(r);
    if (h->poison > 2 * x->n_stages) return false;
    if (in->poison != NULL) in->poison[row_i] = h->poison;
    if (!in->drawn) return row_header_equal(&want, h);
    bool fine = h->token < in->n_vocab && h->live <= want.live;
    want.token = h->token;
    want.live = h->live;
    if (!fine || !row_header_equal(&want, h)) return false;
    r->token = h->token;
    if (h->live == 0) r->flags &= ~ROW_LIVE;
    return true;
}

static status check_n_rows(const edges *x, const incoming *in, uint32_t n_rows, errmsg *e)
{
    if (n_rows == in->n_rows) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "stage %u: step %llu brought %u rows, expected %u",
                      x->stage_i, (unsigned long long)in->seq, n_rows, in->n_rows);
}

static status another_row(const edges *x, const incoming *in, uint32_t r, errmsg *e)
{
    const wire_row *want = &in->rows[r];
    return errmsg_set(e, ST_PROTOCOL,
                      "stage %u: step %llu row %u is session %u position %u token %u, "
                      "expected session %u position %u token %u%s",
                      x->stage_i, (unsigned long long)in->seq, r, x->rows[r].session,
                      x->rows[r].position, x->rows[r].token, want->session, want->position,
                      want->token, in->drawn ? " or one drawn since" : "");
}

static void count_received(edges *x, uint32_t slot, uint32_t n_rows)
{
    add(&x->words->rx_rows, n_rows);
    add(&x->words->rx_bytes, n_rows * boundary_row_bytes(x->in.end.n_embd, 0));
    add(&x->words->rx_crossings[slot], 1);
}

status edges_receive(edges *x, const incoming *in, errmsg *e)
{
    crossing c = {.slot = in->slot, .kind = SLOT_STEP, .seq = in->seq, .hidden = in->hidden};
    TRY(edges_cross(x, &c, e));
    TRY(check_n_rows(x, in, c.n_rows, e));
    for (uint32_t r = 0; r < in->n_rows; r++)
        if (!take_header(x, in, r, &x->rows[r])) return another_row(x, in, r, e);
    count_received(x, in->slot, in->n_rows);
    return ST_OK;
}

/* Counted first, so that whoever sees the result of the step sees it counted; a crossing that fails
 * ends the process or, when a stage was lost, is no crossing. */
static void count_sent(edges *x, uint32_t slot, uint32_t n_rows)
{
    add(&x->words->tx_rows, n_rows);
    add(&x->words->tx_bytes, n_rows * boundary_row_bytes(x->out.end.n_embd, 0));
    add(&x->words->tx_crossings[slot], 1);
}

static void count_unsent(edges *x, uint32_t slot, uint32_t n_rows)
{
    add(&x->words->tx_rows, -(uint64_t)n_rows);
    add(&x->words->tx_bytes, -(n_rows * boundary_row_bytes(x->out.end.n_embd, 0)));
    add(&x->words->tx_crossings[slot], -(uint64_t)1);
}

status edges_send(edges *x, uint32_t slot, uint64_t seq, const wire_row *rows,
                  const poison_mark *poison, uint32_t n_rows, dev_ptr hidden, errmsg *e)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        x->rows[r] = header_of(&rows[r]);
        if (poison != NULL) x->rows[r].poison = poison[r];
    }
    crossing c = {.sending = true,
                  .slot = slot,
                  .n_rows = n_rows,
                  .kind = SLOT_STEP,
                  .seq = seq,
                  .hidden = hidden};
    count_sent(x, slot, n_rows);
    status s = edges_cross(x, &c, e);
    if (s != ST_OK) count_unsent(x, slot, n_rows);
    return s;
}

/* --- rows that the devices tell each other --- */

static bool carries(const edge *g)
{
    return g->way != NULL && g->kind->carries != NULL && g->kind->carries(g->way);
}

bool edges_carry(const edges *x)
{
    return x->open && carries(&x->in) && carries(&x->out);
}

typedef struct {
    edges *x;
    const peer_rows *words;
    uint32_t slot, n_rows;  /* n_rows: found when taking */
    uint64_t seq;
    dev_ptr hidden;
    backend_event end;      /* coming */
} telling;

static status put_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    telling *t = ctx;
    const edge *g = &t->x->out;
    (void)e;
    return g->kind->put(g->way, t->slot, t->seq, t->x->rows, t->words, t->hidden, timeout_ns);
}

static status take_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    telling *t = ctx;
    const edge *g = &t->x->in;
    return g->kind->take(g->way, t->slot, t->seq, t->x->rows, t->words, t->hidden, &t->n_rows,
                         timeout_ns, e);
}

/* First often, then with pauses. */
static status coming_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    telling *t = ctx;
    const edges *x = t->x;
    const uint64_t deadline_ns = now_ns() + timeout_ns;
    (void)e;
    for (uint32_t look = 0;; look++) {
        if (boundary_rx_sent(&x->in.end, t->slot) || x->backend->event_done(x->queue, t->end))
            return ST_OK;
        if (atomic_load_explicit(x->stop, memory_order_acquire) != 0) return ST_CLOSED;
        if (now_ns() >= deadline_ns) return ST_TIMEOUT;
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        if (look >= SPIN_LOOKS) nanosleep(&pause, NULL);
    }
}

status edges_put(edges *x, uint32_t slot, uint64_t seq, const wire_row *rows,
                 const peer_rows *words, dev_ptr hidden, errmsg *e)
{
    telling t = {.x = x, .words = words, .slot = slot, .seq = seq, .hidden = hidden};
    for (uint32_t r = 0; r < words->n_rows; r++)
        x->rows[r] = header_of(&rows[r]);
    count_sent(x, slot, words->n_rows);
    status s = named(x, &x->out, edges_wait(x, true, put_slice, &t, e), e);
    if (s != ST_OK) count_unsent(x, slot, words->n_rows);
    return s;
}

void edges_sent(edges *x, uint32_t slot)
{
    boundary_tx_sent(&x->out.end, slot);
}

/* Of the same row, whatever is drawn for it. */
static bool same_row(const wire_row *r, const row_header *h)
{
    row_header want = header_of(r), got = *h;
    got.token = want.token;
    got.live = want.live;
    return row_header_equal(&want, &got);
}

status edges_take(edges *x, const incoming *in, const peer_rows *words, errmsg *e)
{
    telling t = {.x = x, .words = words, .slot = in->slot, .seq = in->seq, .hidden = in->hidden};
    TRY(named(x, &x->in, edges_wait(x, false, take_slice, &t, e), e));
    TRY(check_n_rows(x, in, t.n_rows, e));
    for (uint32_t r = 0; r < in->n_rows; r++)
        if (!same_row(&in->rows[r], &x->rows[r])) return another_row(x, in, r, e);
    return ST_OK;
}

status edges_coming(edges *x, uint32_t slot, backend_event end, errmsg *e)
{
    telling t = {.x = x, .slot = slot, .end = end};
    return edges_wait(x, false, coming_slice, &t, e);
}

void edges_taken(edges *x, uint32_t slot, uint32_t n_rows)
{
    boundary_rx_end(&x->in.end, slot);
    count_received(x, slot, n_rows);
}
