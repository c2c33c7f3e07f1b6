#include "coordinator/gates/gate_run.h"

#include "common/amount.h"

/* True: this status (ST_CLOSED: nobody reads any more) ends the whole gate; otherwise it is only
 * the arm's red. */
static bool ends_the_gate(status s)
{
    return s == ST_INTERRUPTED || s == ST_BAD_MODEL || s == ST_BAD_DOOR || s == ST_USAGE ||
           s == ST_RESOURCES || s == ST_CLOSED;
}

status gate_arm_ended(gate_arm *a, status s, const errmsg *why, errmsg *e)
{
    if (s == ST_OK) return ST_OK;
    if (ends_the_gate(s)) return errmsg_set(e, s, "%s", why->text);
    gate_arm_red(a, "%s", why->text);
    return ST_OK;
}

status gate_arm_not_started(gate_arm *a, uint32_t n_stages, status s, const errmsg *why, errmsg *e)
{
    if (ends_the_gate(s)) return errmsg_set(e, s, "%s", why->text);
    gate_arm_red(a, "%u stage%s did not start: %s", n_stages, plural(n_stages), why->text);
    return ST_OK;
}

static status run_reference(const gate_run *r, errmsg *e)
{
    gate_cuts one = gate_cuts_even(1);
    pipeline *p;
    gate_arm a;
    TRY(gate_pipe_open(&p, r->g, &one, &r->setup, e));
    status s = r->reference(r->ctx, p, &a, e);
    if (s == ST_OK && !r->g->canary) {
        gate_report_arm(r->g->report, &a);
        s = r->arms(r->ctx, p, e);
    }
    pipeline_close(p);
    return s;
}

static status run_cuts(const gate_run *r, const gate_cuts *c, errmsg *e)
{
    pipeline *p;
    errmsg why = {0};
    status s = gate_pipe_open(&p, r->g, c, &r->setup, &why);
    if (s != ST_OK) {
        gate_arm a;
        gate_arm_begin(&a, r->gate, "start");
        TRY(gate_arm_not_started(&a, c->n_stages, s, &why, e));
        gate_report_arm(r->g->report, &a);
        return ST_OK;
    }
    s = r->arms(r->ctx, p, e);
    pipeline_close(p);
    return s;
}

status gate_run_all(const gate_run *r, const gate_cuts *cuts, uint32_t n_cuts, errmsg *e)
{
    TRY(run_reference(r, e));
    if (r->g->canary) return r->canaries(r->ctx, &cuts[0], e);
    for (uint32_t i = 0; i < n_cuts; i++) {
        if (!r->after_only) TRY(run_cuts(r, &cuts[i], e));
        if (r->after != NULL) TRY(r->after(r->ctx, &cuts[i], e));
    }
    return ST_OK;
}

status gate_run_few(const gate_run *r, errmsg *e)
{
    gate_cuts cuts[4];
    uint32_t n_cuts;
    TRY(gate_cuts_few(cuts, &n_cuts, r->g, e));
    return gate_run_all(r, cuts, n_cuts, e);
}
