/* boundaries.h - which transport the boundaries of a run will have, as far as devices and doors
 * say; the stages find out (stage/connect.h). What cannot be is refused before anything starts. */
#ifndef COORDINATOR_BOUNDARIES_H
#define COORDINATOR_BOUNDARIES_H

#include "common/doors.h"
#include "coordinator/machine/gpus.h"

/* The doors TRANSPORT and SIGNAL against this build, each other and the devices of neighbours (of
 * resolved doors: placement_resolve). ST_BAD_DOOR: door, boundary, devices and what is missing. */
MUST_USE status boundaries_check(const doors *d, const gpu_list *gpus, errmsg *e);

typedef struct {
    const char *transport, *signal; /* static */
} boundary_words;

/* Of the boundary from one device to the other. */
boundary_words boundaries_expect(const doors *d, const gpu_list *gpus, device_door from,
                                 device_door to);

#endif
