/* placement.h - the plan of a run on this machine: what the model and the doors say (plan.h), and
 * what the devices behind the doors can do. */
#ifndef COORDINATOR_PLACEMENT_H
#define COORDINATOR_PLACEMENT_H

#include "common/plan.h"
#include "coordinator/machine/gpus.h"

/* Put a device in place of what the doors leave open, and check that each exists here and that the
 * boundaries between them can be as forced (boundaries.h). Unset: all stages on the first usable
 * CUDA device, without one on the cpu; auto: a CUDA device that no other stage has while they last,
 * then each again in turn. *gpus: the CUDA devices, asked of stage_program (gpus_read) when one may
 * be used; no answer is told, and taken for none. ST_RESOURCES, ST_BAD_DOOR, ST_INTERRUPTED
 * (*interrupt). */
MUST_USE status placement_resolve(doors *d, gpu_list *gpus, const char *stage_program,
                                  const volatile int *interrupt, errmsg *e);

/* The first half of it: devices for what is unset or auto, from this list. */
void placement_choose(doors *d, const gpu_list *gpus);

/* plan_make; auto cuts also look at the bandwidth of each stage's device, see placement_costs. */
MUST_USE status placement_plan(plan *out, const model_desc *m, const doors *d,
                               const plan_request *r, errmsg *e);

/* What the stages on a CUDA device take there together, at their peak (stage_plan.device_bytes). */
uint64_t placement_gpu_bytes(const plan *p, const gpu_list *gpus, uint32_t ordinal);

/* Each of those is free. ST_RESOURCES naming device, stages, needed and free bytes, and what would
 * fit. */
MUST_USE status placement_fits(const plan *p, const gpu_list *gpus, errmsg *e);

/* What a byte costs on the device of each stage, for fence.h: the inverse of the device's bandwidth
 * (bytes_per_s[s]; 0: unknown, and if one is unknown all count as equal), divided among the stages
 * that share the device: a pipeline that is full has them read at the same time. False: all alike,
 * cost is not written. */
bool placement_costs(uint32_t cost[STAGES_MAX], const doors *d, const uint64_t *bytes_per_s);

#endif
