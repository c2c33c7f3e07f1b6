/* Steps behind each other on the device.
 *
 * Rounds: while the device walks round r and draws its tokens, round r + 1 is put behind it, with
 * the tokens as the device has them, and only then the host waits for what round r drew. So it
 * knows the history before it says how round r + 1 draws, and its own work, messages included,
 * costs the device nothing. A row that drew a stop has ended on the device already: what is behind
 * it does nothing.
 *
 * Steps of one round: results stay on their way until the next step's walk is behind them, or
 * nothing else is there to do. */
#include "stage/worker_impl.h"

#include "common/clock.h"

#include <string.h>

static bool alone_and_queued(const worker *w)
{
    return w->config.n_stages == 1 && w->seam.n == 1 && !backend_of(w)->in_call;
}

bool worker_runs_ahead(const worker *w, const step_view *v)
{
    return alone_and_queued(w) && v->step->rounds > 1 && v->step->n_groups == 1 &&
           v->step->n_rows <= PLAN_HEAD_ROWS;
}

bool worker_lands_later(const worker *w, const piece *x)
{
    const wire_step *step = w->rounds.v.step;
    return is_last(w) && !backend_of(w)->in_call && step->rounds == 1 && step->n_groups == 1 &&
           x->n_rows <= PLAN_HEAD_ROWS;
}

poison_mark *worker_leave(worker *w, const piece *x)
{
    w->landing = *x;
    w->landing.seq = 0;
    w->landing.rows = memcpy(w->left_rows, x->rows, x->n_rows * sizeof *x->rows);
    w->landing.poison = memcpy(w->left_poison, x->poison, x->n_rows * sizeof *x->poison);
    return w->landing.poison;
}

status worker_land(worker *w, errmsg *e)
{
    const uint64_t seq = w->landing.seq;
    wire_result r = {0};
    if (seq == 0) return ST_OK;
    const piece x = w->landing;
    w->landing.seq = 0;
    TRY(stage_head_end(seam_last(&w->seam), &r.n_rows, e));
    TRY(worker_say_poisoned(w, &x, e));
    TRY(worker_say(w, WIRE_RESULT, seq, &r, sizeof r, e));
    worker_done(w, seq);
    return ST_OK;
}

static status begin_round(worker *w, piece *x, errmsg *e)
{
    uint32_t n_samplers = w->rounds.v.step->n_samplers;
    x->rows = rounds_group(&w->rounds, x->g, &x->n_rows);
    x->poison = rounds_poison(&w->rounds, x->g);
    x->n_live = rounds_live(&w->rounds, x->g);
    if (x->round == 0)
        TRY(stage_rows(w->body, x->rows, x->n_rows, n_samplers, e));
    else
        TRY(stage_rows_ahead(w->body, x->rows, x->n_rows, n_samplers, e));
    return worker_walk(w, x, e);
}

/* What round x drew, to the coordinator and to the rows of the round behind it. x->rows: as they
 * were. */
static status end_round(worker *w, const piece *x, uint64_t *begin_ns, errmsg *e)
{
    wire_result r = {.round = x->round, .group = x->g};
    if (x->n_live > 0) {
        span drawing = span_begin(TRACE_HEAD);
        status s = stage_head_end(w->body, &r.n_rows, e);
        span_end(s == ST_OK ? w->trace : NULL, &drawing, worker_shown(w, x, r.n_rows));
        TRY(s);
    }
    uint64_t now = now_ns();
    worker_count_piece(w, x, now - *begin_ns);
    *begin_ns = now;
    TRY(worker_say_poisoned(w, x, e));
    if (x->n_live > 0) rounds_settle(&w->rounds, x->round, x->g);
    return worker_say(w, WIRE_RESULT, x->seq, &r, sizeof r, e);
}

/* Round x behind `before`, which ends here: its walk, then what `before` drew, then its head. */
static status run_round(worker *w, piece *x, const piece *before, uint64_t *begin_ns, errmsg *e)
{
    const step_view *v = &w->rounds.v;
    const bool goes_on = x->round + 1 < v->step->rounds;
    const stage_head_args a = {.samplers = v->samplers,
                               .out = &w->results,
                               .seq = x->seq,
                               .drawn = rounds_drawn(&w->rounds, x->g),
                               .poison = rounds_poison(&w->rounds, x->g),
                               .feeds = goes_on,
                               .round = x->round,
                               .stops = v->stops};
    if (x->round == 0 || before->n_live > 0) TRY(begin_round(w, x, e));
    if (x->round == 0) TRY(worker_land(w, e));
    if (x->round > 0) TRY(end_round(w, before, begin_ns, e));
    if (x->round > 0 && before->n_live > 0) stage_rows_known(w->body, x->rows);
    x->n_live = rounds_live(&w->rounds, x->g);
    if (x->n_live > 0) TRY(stage_head_begin(w->body, &a, e));
    if (!goes_on) return end_round(w, x, begin_ns, e);
    if (x->n_live == 0) return ST_OK;
    x->rows = memcpy(w->left_rows, x->rows, x->n_rows * sizeof *x->rows);
    rounds_expire(&w->rounds, x->round, x->g);
    rounds_advance(&w->rounds, x->g);
    return ST_OK;
}

status worker_step_ahead(worker *w, piece *x, errmsg *e)
{
    uint64_t begin_ns = now_ns();
    piece before = *x;
    for (; x->round < w->rounds.v.step->rounds; x->round++) {
        span passing = span_begin(TRACE_DECODE);
        status s = run_round(w, x, &before, &begin_ns, e);
        span_end(s == ST_OK ? w->trace : NULL, &passing, worker_shown(w, x, x->n_live));
        TRY(s);
        before = *x;
    }
    worker_done(w, x->seq);
    return ST_OK;
}
