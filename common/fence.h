/* fence.h - where a model's layers are cut into stages.
 *
 * A fence of N stages has N+1 entries: 0 = at[0] < at[1] < .. < at[N] = n_layers. Stage s runs the
 * layers [at[s], at[s+1]). It is computed once, by the coordinator; a stage is told its range. */
#ifndef COMMON_FENCE_H
#define COMMON_FENCE_H

#include "common/doors.h"
#include "common/model.h"

typedef struct {
    uint32_t n_stages;            /* 1 .. STAGES_MAX */
    uint32_t at[STAGES_MAX + 1];
    bool moved;                   /* an even cut was moved off a forbidden one; say so */
} fence;

#define FENCE_COST_UNIT 64u
#define FENCE_COST_MAX  (64u * FENCE_COST_UNIT)

/* Compute the fence that the doors ask for; d may be filled by hand: n_stages (1 .. STAGES_MAX),
 * splits, and for a list n_cuts and cut. Cuts are checked as if a person had written them.
 * even: cut s = floor(s * n_layers / N); where that cut is forbidden, or was taken by one that
 * moved, the nearest legal place that leaves room for the cuts after it (ties: the earlier).
 * auto: the cuts whose slowest stage (fence_step_bytes x the cost of a byte there) is fastest; of
 * those the most even ones (least sum of squares), then the earliest. cost[s] is relative: how long
 * the device of stage s takes for a byte, in units of FENCE_COST_UNIT for the fastest; 0 counts as
 * that, more than FENCE_COST_MAX as FENCE_COST_MAX. NULL: all alike. A model of 2^46 bytes and more
 * is cut as if all were alike.
 * ST_BAD_DOOR: more stages than layers or than the legal cuts allow, or a cut that breaks its rule
 * (at 0 or n_layers, repeated, out of order, forbidden, or a number of cuts that is not N - 1); *e
 * names variable or flag, value and rule. ST_RESOURCES: no memory (auto only). On error *out is the
 * one-stage fence. */
MUST_USE status fence_plan_costs(fence *out, const doors *d, const model_desc *m,
                                 const uint32_t cost[STAGES_MAX], errmsg *e);
/* The same with devices that are all alike. */
MUST_USE status fence_plan(fence *out, const doors *d, const model_desc *m, errmsg *e);

/* Bytes of weights of stage s under f: its layers, the embedding with the first stage, norm and
 * head with the last (a tied head counts with both; once when they are one stage), and with every
 * stage the tensors of the whole model that layers share (rope factors). */
uint64_t fence_stage_bytes(const fence *f, const model_desc *m, uint32_t s);
/* Of these what a step reads: all but the embedding, of which it gathers its rows. */
uint64_t fence_step_bytes(const fence *f, const model_desc *m, uint32_t s);

/* The stage that owns layer il; il >= n_layers (the model's own draft layers): the last stage. */
uint32_t fence_stage_of(const fence *f, uint32_t il);

#endif
