#include "stage/ring.h"

#include "common/clock.h"

typedef struct {
    bool takes;             /* its rows come over a boundary */
    incoming in;
    backend_event end;
    uint64_t begin_ns, waited_ns; /* waited_ns: until then */
} pass;

static bool in_call(const worker *w)
{
    return backend_of(w)->in_call;
}

static status rows_on(worker *w, const piece *x, bool takes, errmsg *e)
{
    uint32_t n_samplers = w->rounds.v.step->n_samplers;
    if (takes) return stage_rows_ahead(w->body, x->rows, x->n_rows, n_samplers, e);
    return stage_rows(w->body, x->rows, x->n_rows, n_samplers, e);
}

static status put_on(worker *w, const piece *x, errmsg *e)
{
    const peer_rows words = stage_row_words(w->body);
    const wire_row *rows = x->rows;
    wire_row next[WIRE_AHEAD_ROWS];
    dev_ptr hidden = {0};
    if (is_last(w)) {
        rounds_next(&w->rounds, x->g, next);
        rows = next;
    } else {
        hidden = stage_hidden(w->body);
    }
    span waiting = span_begin(TRACE_BLOCKED);
    status s = edges_put(&w->edges, worker_slot(w, x), x->seq, rows, &words, hidden, e);
    span_end(s == ST_OK ? w->trace : NULL, &waiting, worker_shown(w, x, x->n_rows));
    return s;
}

static bool sends(const worker *w, const piece *x)
{
    return !is_last(w) || x->round + 1 < w->rounds.v.step->rounds;
}

/* A row as it came is the expected one: the host of the last stage knows what was drawn, the others
 * only that a dead row stays dead. */
static bool is_expected(const worker *w, const wire_row *r, const came_row *c)
{
    bool lives = (r->flags & ROW_LIVE) != 0;
    if (c->live > lives || c->mark > 2 * w->config.n_stages || c->token >= w->model->n_vocab)
        return false;
    return !is_last(w) || (c->live == lives && (!lives || c->token == r->token));
}

/* What the rows came with, into the books. */
static status learn(worker *w, piece *x, const pass *p, errmsg *e)
{
    const rows_came *came = stage_came(w->body);
    if (!p->takes) return ST_OK;
    if (came->gone != 0) return ST_CLOSED;
    edges_taken(&w->edges, p->in.slot, x->n_rows);
    if (x->round > 0 || x->goes_on) {
        atomic_fetch_add_explicit(&w->words->n_ahead_rounds, 1, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < x->n_rows; i++) {
        wire_row *r = &x->rows[i];
        const came_row *c = &came->row[i];
        x->poison[i] = c->mark;
        if (!is_expected(w, r, c)) {
            return errmsg_set(
                e, ST_PROTOCOL,
                "stage %u: step %llu row %u of round %u came with token %u, live %u, mark %u, "
                "not with token %u, live %u",
                w->stage_i, (unsigned long long)x->seq, i, x->round, c->token, c->live, c->mark,
                r->token, (r->flags & ROW_LIVE) != 0);
        }
        if (c->live == 0) r->flags &= ~ROW_LIVE;
        if (c->live != 0) r->token = c->token;
    }
    stage_rows_known(w->body, x->rows);
    x->n_live = rounds_live(&w->rounds, x->g);
    return ST_OK;
}

/* For others, until now. */
static uint64_t waited(const worker *w)
{
    return atomic_load_explicit(&w->words->wait_in_ns, memory_order_relaxed) +
           atomic_load_explicit(&w->words->wait_out_ns, memory_order_relaxed);
}

static void count(worker *w, const piece *x, const pass *p)
{
    worker_count_piece(w, x, now_ns() - p->begin_ns - (waited(w) - p->waited_ns));
}

/* Layers and head. */
static status compute(worker *w, piece *x, errmsg *e)
{
    const step_view *v = &w->rounds.v;
    const stage_head_args a = {.samplers = v->samplers,
                               .out = &w->results,
                               .seq = x->seq,
                               .drawn = rounds_drawn(&w->rounds, x->g),
                               .poison = x->poison,
                               .feeds = true,
                               .round = x->round,
                               .rounds = v->step->rounds,
                               .stops = v->stops};
    x->n_live = rounds_live(&w->rounds, x->g);
    span passing = span_begin(TRACE_DECODE);
    status s = worker_walk(w, x, e);
    if (s == ST_OK && is_last(w)) {
        span drawing = span_begin(TRACE_HEAD);
        s = stage_head_begin(w->body, &a, e);
        span_end(s == ST_OK ? w->trace : NULL, &drawing, worker_shown(w, x, x->n_live));
    }
    span_end(s == ST_OK && in_call(w) ? w->trace : NULL, &passing, worker_shown(w, x, x->n_live));
    return s;
}

/* The take onto the queue; or the rows. */
static status take_on(worker *w, piece *x, const pass *p, errmsg *e)
{
    const peer_rows words = stage_row_words(w->body);
    span waiting = span_begin(TRACE_STARVED);
    status s = edges_take(&w->edges, &p->in, &words, e);
    span_end(s == ST_OK && in_call(w) ? w->trace : NULL, &waiting, worker_shown_in(w, x, &p->in));
    if (s != ST_OK || !in_call(w)) return s;
    TRY(stage_bring_came(w->body, e));
    return learn(w, x, p, e);
}

/* All of the round onto the queue. */
static status put_round(worker *w, piece *x, pass *p, errmsg *e)
{
    TRY(rows_on(w, x, p->takes, e));
    TRY(worker_land(w, e)); /* before waiting for others */
    if (keep_is_soon(&w->sent)) TRY(worker_keep(w, e));
    if (p->takes) TRY(take_on(w, x, p, e));
    TRY(compute(w, x, e));
    if (in_call(w)) count(w, x, p);
    if (!is_last(w)) TRY(keep_begin(&w->sent, x->rows, x->n_rows, e));
    if (sends(w, x)) TRY(put_on(w, x, e));
    if (p->takes && !in_call(w))
        TRY(stage_bring_came(w->body, e)); /* behind what others wait for */
    return stage_leave(w->body, &p->end, e);
}

/* Until the device is through with the round. */
static status await_end(worker *w, const piece *x, pass *p, errmsg *e)
{
    const backend *b = backend_of(w);
    if (in_call(w)) return ST_OK;
    span waiting = span_begin(TRACE_STARVED);
    status s = p->takes ? edges_coming(&w->edges, p->in.slot, p->end, e) : ST_OK;
    span_end(s == ST_OK && p->takes ? w->trace : NULL, &waiting, worker_shown_in(w, x, &p->in));
    TRY(s);
    worker_enter_layers(w);
    span passing = span_begin(TRACE_DECODE);
    s = b->event_wait(stage_queue(w->body), p->end);
    span_end(s == ST_OK ? w->trace : NULL, &passing, worker_shown(w, x, x->n_live));
    worker_leave_layers(w);
    if (s != ST_DEVICE) return s;
    return errmsg_set(e, s, "stage %u: the device failed in a step: %s", w->stage_i,
                      b->failure != NULL ? b->failure(stage_queue(w->body)) : "");
}

static status end_round(worker *w, piece *x, errmsg *e)
{
    wire_result r = {.round = x->round, .group = x->g};
    if (is_last(w)) {
        TRY(stage_head_end(w->body, &r.n_rows, e));
        return worker_end_piece(w, x, &r, e);
    }
    stage_mark(w->body, x->poison);
    TRY(worker_keep_on(w, x, e));
    rounds_expire(&w->rounds, x->round, x->g); /* what was drawn is not known here, this is */
    rounds_advance(&w->rounds, x->g);
    return ST_OK;
}

status ring_round(worker *w, piece *x, errmsg *e)
{
    pass p = {.takes = x->round > 0 || x->goes_on || !is_first(w),
              .begin_ns = now_ns(),
              .waited_ns = waited(w)};
    x->rows = rounds_group(&w->rounds, x->g, &x->n_rows);
    x->poison = rounds_poison(&w->rounds, x->g);
    if (p.takes) p.in = worker_incoming(w, x);
    TRY(put_round(w, x, &p, e));
    TRY(await_end(w, x, &p, e));
    if (!in_call(w)) TRY(learn(w, x, &p, e));
    if (sends(w, x)) edges_sent(&w->edges, worker_slot(w, x));
    if (!in_call(w)) count(w, x, &p);
    return end_round(w, x, e);
}

status ring_hand_on(worker *w, uint32_t slot, uint64_t seq, const wire_row *rows, uint32_t n_rows,
                    errmsg *e)
{
    peer_rows words;
    TRY(stage_tell(w->body, rows, n_rows, &words, e));
    TRY(edges_put(&w->edges, slot, seq, rows, &words, (dev_ptr){0}, e));
    edges_sent(&w->edges, slot);
    return ST_OK;
}
