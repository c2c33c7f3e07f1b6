/* gate_run.h - the frame of a gate: a reference through one stage, then arms over every set of
 * cuts.
 *
 * What a gate does differently is its reference and its arms; both get the gate's own work as ctx.
 * One thread. */
#ifndef COORDINATOR_GATE_RUN_H
#define COORDINATOR_GATE_RUN_H

#include "coordinator/gates/gate_pipe.h"

typedef struct {
    const gate_context *g;
    const char *gate; /* its name in the report */
    gate_setup setup; /* of every pipeline that nobody breaks */
    void *ctx;
    /* Walk the reference through p, of one stage, as an arm of its own. */
    status (*reference)(void *ctx, pipeline *p, gate_arm *a, errmsg *e);
    /* Walk and report the arms over p. */
    status (*arms)(void *ctx, pipeline *p, errmsg *e);
    /* NULL, or more arms over these cuts, on pipelines of their own. */
    status (*after)(void *ctx, const gate_cuts *c, errmsg *e);
    bool after_only; /* those alone, but for the reference's */
    /* Break the gate's mechanisms, one after the other, over these cuts, and report each. */
    status (*canaries)(void *ctx, const gate_cuts *c, errmsg *e);
} gate_run;

/* The reference; then the canaries over the first cuts, if those were asked for, or else the arms
 * through the reference's stage and over each of the n_cuts >= 1. A pipeline of those that does not
 * start is one red arm, "start". */
MUST_USE status gate_run_all(const gate_run *r, const gate_cuts *cuts, uint32_t n_cuts, errmsg *e);

/* The same over gate_cuts_few's. */
MUST_USE status gate_run_few(const gate_run *r, errmsg *e);

/* What becomes of the gate when an arm ended with s and `why`: ST_OK, the arm being red when s is a
 * fault of it alone; s, with *e, when it ends the whole gate. */
MUST_USE status gate_arm_ended(gate_arm *a, status s, const errmsg *why, errmsg *e);

/* The same of an arm whose pipeline of n_stages did not open. */
MUST_USE status gate_arm_not_started(gate_arm *a, uint32_t n_stages, status s, const errmsg *why,
                                     errmsg *e);

#endif
