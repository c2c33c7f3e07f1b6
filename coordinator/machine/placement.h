/* placement.h - the plan of a run on this machine: what the model and the doors say (plan.h), and
 * what the devices behind the doors can do. */
#ifndef COORDINATOR_PLACEMENT_H
#define COORDINATOR_PLACEMENT_H

#include "common/plan.h"

/* plan_make; auto cuts also look at the bandwidth of each stage's device, see placement_costs. */
MUST_USE status placement_plan(plan *out, const model_desc *m, const doors *d,
                               const plan_request *r, errmsg *e);

/* What a byte costs on the device of each stage, for fence.h: the inverse of the device's bandwidth
 * (bytes_per_s[s]; 0: unknown, and if one is unknown all count as equal), divided among the stages
 * that share the device: a pipeline that is full has them read at the same time. False: all alike,
 * cost is not written. */
bool placement_costs(uint32_t cost[STAGES_MAX], const doors *d, const uint64_t *bytes_per_s);

#endif
