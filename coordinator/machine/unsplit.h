/* unsplit.h - where a path may be walked unsplit: the whole model on the primary (stage 0); and
 * where its weights may lie there alone (MEMRA_PP_SHARD=0), or all stages be in its process
 * (MEMRA_PP_STREAMS=0).
 *
 * The primary reads the other stages' weights, and reads and writes their K and V, where they lie.
 * With all stages on one device that is as good as its own memory. On several devices every weight
 * crosses the link between them in every step: decode and speculation are refused there, unless
 * MEMRA_PP_ALLOW_UNSPLIT_BATCH says that it is for measurement; a prompt stays callable, as the
 * other arm of a comparison. Stages on a CPU and on a GPU share no memory. */
#ifndef COORDINATOR_UNSPLIT_H
#define COORDINATOR_UNSPLIT_H

#include "coordinator/machine/gpus.h"
#include "coordinator/machine/placement.h"

/* A step door of these asks for an unsplit walk. */
bool unsplit_asked(const step_doors *d);

/* The primary can reach what stages of this plan lend. */
bool unsplit_possible(const plan *p, const gpu_list *gpus);

/* These step doors with this plan. named: whose doors they are, for the message. ST_BAD_DOOR: door,
 * path, and what to do instead. */
MUST_USE status unsplit_check(const plan *p, const gpu_list *gpus, const doors *named,
                              const step_doors *d, errmsg *e);

/* Every stage can read weights that lie on the primary, where the plan has them there. ST_BAD_DOOR.
 */
MUST_USE status unsplit_check_shard(const plan *p, const gpu_list *gpus, const doors *named,
                                    errmsg *e);

/* All stages are on one device, where the plan has them in one process. ST_BAD_DOOR. */
MUST_USE status unsplit_check_streams(const plan *p, const gpu_list *gpus, const doors *named,
                                      errmsg *e);

#endif
