#include "coordinator/gates/gate_pipe.h"

#include "common/amount.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

#define CHUNKS_WANTED 6u
#define CHUNKS_MIN    3u
#define DEFERRED_MAX  16u

/* --- which cuts ---------------------------------------------------------------------------- */

typedef struct {
    gate_cuts *list;
    uint32_t n, room;
} cuts_list;

static status push(cuts_list *l, const gate_cuts *c, errmsg *e)
{
    if (l->n == l->room) {
        uint32_t room = l->room == 0 ? 16 : 2 * l->room;
        gate_cuts *more = realloc(l->list, room * sizeof *more);
        if (more == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for %u sets of cuts", room);
        l->list = more;
        l->room = room;
    }
    l->list[l->n++] = *c;
    return ST_OK;
}

/* Places where a boundary may stand, ascending. */
static uint32_t legal_cuts(uint32_t out[LAYERS_MAX], const gate_model *m)
{
    uint32_t n = 0;
    for (uint32_t il = 1; il < m->n_layers; il++) {
        if (!m->cut_forbidden[il]) out[n++] = il;
    }
    return n;
}

/* Number of ways to take k of n, at most limit + 1. */
static uint64_t choices(uint32_t n, uint32_t k, uint64_t limit)
{
    uint64_t c = 1;
    for (uint32_t i = 1; i <= k; i++) {
        c = c * (n - k + i) / i;
        if (c > limit) return limit + 1;
    }
    return c;
}

/* All sets of k of the n places, in ascending order. */
static status push_choices(cuts_list *l, const uint32_t *place, uint32_t n, uint32_t k, errmsg *e)
{
    uint32_t at[STAGES_MAX];
    for (uint32_t i = 0; i < k; i++)
        at[i] = i;
    for (;;) {
        gate_cuts c = {.n_stages = k + 1, .splits = SPLITS_LIST};
        for (uint32_t i = 0; i < k; i++)
            c.cut[i] = place[at[i]];
        TRY(push(l, &c, e));
        uint32_t i = k;
        while (i > 0 && at[i - 1] == n - k + i - 1)
            i--;
        if (i == 0) return ST_OK;
        at[i - 1]++;
        for (; i < k; i++)
            at[i] = at[i - 1] + 1;
    }
}

static status push_stages(cuts_list *l, const uint32_t *place, uint32_t n, uint32_t n_stages,
                          errmsg *e)
{
    uint32_t k = n_stages - 1;
    if (choices(n, k, GATE_CUTS_ALL_MAX) <= GATE_CUTS_ALL_MAX)
        return push_choices(l, place, n, k, e);
    gate_cuts c = gate_cuts_even(n_stages);
    TRY(push(l, &c, e));
    c.splits = SPLITS_LIST;
    memcpy(c.cut, place, k * sizeof *place);
    TRY(push(l, &c, e));
    memcpy(c.cut, place + n - k, k * sizeof *place);
    return push(l, &c, e);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static status push_model(cuts_list *l, const gate_model *m, const uint32_t *place, uint32_t n,
                         errmsg *e)
{
    if (m->n_layers <= GATE_LAYERS_SMALL) {
        for (uint32_t k = 1; k <= n; k++)
            TRY(push_choices(l, place, n, k, e));
        return ST_OK;
    }
    for (uint32_t s = 2; s <= least(n + 1, GATE_EVEN_STAGES_MAX); s++) {
        gate_cuts c = gate_cuts_even(s);
        TRY(push(l, &c, e));
    }
    return push_choices(l, place, n, 1, e);
}

static bool doors_name_cuts(const doors *d)
{
    return d->stages_set && d->splits != SPLITS_EVEN;
}

static gate_cuts cuts_of_doors(const doors *d)
{
    gate_cuts c = {.n_stages = d->n_stages, .splits = d->splits};
    memcpy(c.cut, d->cut, sizeof c.cut);
    return c;
}

static status no_cut(const gate_model *m, errmsg *e)
{
    return errmsg_set(e, ST_USAGE,
                      "a model of %u layer%s has no legal cut: there is no pipeline to compare",
                      m->n_layers, plural(m->n_layers));
}

static status too_many(uint32_t n_stages, uint32_t n_legal, errmsg *e)
{
    return errmsg_set(e, ST_BAD_DOOR,
                      "--stages %u: the model has %u legal cuts, enough for %u stages", n_stages,
                      n_legal, n_legal + 1);
}

status gate_cuts_all(gate_cuts **out, uint32_t *n, const gate_context *g, errmsg *e)
{
    const doors *d = &g->common->doors;
    cuts_list l = {0};
    uint32_t place[LAYERS_MAX];
    uint32_t n_legal = legal_cuts(place, &g->model);
    status s = ST_OK;
    if (n_legal == 0) {
        s = no_cut(&g->model, e);
    } else if (doors_name_cuts(d)) {
        gate_cuts c = cuts_of_doors(d);
        s = push(&l, &c, e);
    } else if (d->stages_set) {
        s = d->n_stages - 1 > n_legal ? too_many(d->n_stages, n_legal, e)
                                      : push_stages(&l, place, n_legal, d->n_stages, e);
    } else {
        s = push_model(&l, &g->model, place, n_legal, e);
    }
    if (s != ST_OK) {
        free(l.list);
        l = (cuts_list){0};
    }
    *out = l.list;
    *n = l.n;
    return s;
}

status gate_cuts_few(gate_cuts out[4], uint32_t *n, const gate_context *g, errmsg *e)
{
    const doors *d = &g->common->doors;
    uint32_t place[LAYERS_MAX];
    uint32_t most = legal_cuts(place, &g->model) + 1;
    *n = 0;
    if (most == 1) return no_cut(&g->model, e);
    if (d->stages_set) {
        if (d->n_stages > most) return too_many(d->n_stages, most - 1, e);
        out[(*n)++] = cuts_of_doors(d);
        return ST_OK;
    }
    out[(*n)++] = gate_cuts_even(2);
    if (most >= 3) out[(*n)++] = gate_cuts_even(3);
    if (most >= 4) out[(*n)++] = gate_cuts_even(least(most, GATE_EVEN_STAGES_MAX));
    return ST_OK;
}

/* --- opening ------------------------------------------------------------------------------- */

/* The person's doors with these cuts; faults are for the arms: what they are compared with runs
 * undisturbed. */
static status doors_for(doors *out, const doors *given, const gate_cuts *c, const gate_setup *setup,
                        errmsg *e)
{
    *out = *given;
    out->n_stages = c->n_stages;
    out->stages_set = c->n_stages > 1;
    out->splits = c->splits;
    out->split_old = false;
    out->n_cuts = c->splits == SPLITS_LIST ? c->n_stages - 1 : 0;
    memcpy(out->cut, c->cut, sizeof out->cut);
    out->step.batch_pp = out->step.spec_pp = out->step.prime_pp = true; /* the gates' own to flip */
    doors_deal_devices(out);
    out->streams = !setup->one_stream;
    if (setup->one_stream) out->transport = TRANSPORT_AUTO;
    if (setup->one_stream) out->signal = SIGNAL_AUTO;
    if (setup->transport != TRANSPORT_AUTO) out->transport = setup->transport;
    if (setup->signal != SIGNAL_AUTO) out->signal = setup->signal;
    if (c->n_stages == 1) {
        out->faults.n = 0;
        out->fault_text[0] = '\0';
    }
    if (setup->fault == NULL) return ST_OK;
    CHECK(strlen(setup->fault) < sizeof out->fault_text);
    strcpy(out->fault_text, setup->fault);
    return fault_parse(&out->faults, setup->fault, e);
}

status gate_pipe_open(pipeline **out, const gate_context *g, const gate_cuts *c,
                      const gate_setup *setup, errmsg *e)
{
    doors d;
    *out = NULL;
    TRY(gate_report_arrived(g->report, e)); /* else nobody hears of what would follow */
    TRY(doors_for(&d, &g->common->doors, c, setup, e));
    pipeline_options o = options_pipeline(g->common);
    o.model_path = g->model_path;
    o.doors = &d;
    o.called = setup->called;
    if (setup->fault != NULL) o.faults_met = NULL; /* the arm's own, not the doors' */
    o.on_progress = NULL;
    o.unsplit = setup->unsplit;
    if (o.plan.n_ctx == 0) o.plan.n_ctx = (uint32_t)gate_positions(g);
    o.restarts = setup->restarts;
    if (o.restarts > 0) o.restart_window_ms = 1; /* a gate's kills are no sign of anything */
    if (setup->hang_ms != 0) o.hang_timeout_ms = least(o.hang_timeout_ms, setup->hang_ms);
    o.plan.n_sessions = setup->n_sessions == 0 ? 1 : setup->n_sessions;
    o.plan.n_chunk = setup->n_chunk == 0 ? g->n_prompt : setup->n_chunk;
    /* Every row of the prompt may be in flight: a chunk is never cut short for want of a result
     * row, so that the number of chunks is known. */
    o.plan.n_readback = g->n_prompt + DEFERRED_MAX;
    return pipeline_open(out, &o, &interrupted, e);
}

uint32_t gate_chunk(const gate_context *g)
{
    uint32_t asked = g->common->doors.step.prime_chunk;
    uint32_t chunk =
        least(asked > 0 ? asked : g->n_prompt / CHUNKS_WANTED, g->n_prompt / CHUNKS_MIN);
    return chunk > 0 ? chunk : 1;
}

step_doors gate_doors(const gate_context *g, uint32_t chunk, bool pipe, bool overlap)
{
    step_doors d = g->common->doors.step;
    d.batch_pp = d.spec_pp = d.prime_pp = true;
    d.prime_chunk = chunk;
    d.prime_pipe = pipe;
    d.overlap = overlap;
    return d;
}

bool gate_may_unsplit(const gate_context *g, pipeline *p, const step_doors *d)
{
    errmsg why = {0};
    if (pipeline_plan(p)->cuts.n_stages == 1) return false;
    if (pipeline_set_step_doors(p, d, &why) == ST_OK) return true;
    gate_report_note(g->report, "left out: %s", why.text);
    return false;
}

bool gate_may_try(const gate_arm *a, uint64_t begin_ns)
{
    return a->green && (a->tries < GATE_TRIES_MIN || now_ns() - begin_ns < GATE_TRIES_S * NS_PER_S);
}
