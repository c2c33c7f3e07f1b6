/* devices.h - what `memra-stage --probe F` does: the CUDA devices that a stage could use, as lines
 * of text for the coordinator, which links no CUDA.
 *
 *     cuda N                                          (N -1: this build has no cuda table)
 *     gpu ORDINAL UUID MAJOR.MINOR MEMORY FREE MODE NAME
 *                                 (N lines; memory in bytes; MODE shared, exclusive or mps; the
 *                                 name
 *                                  may hold spaces and ends the line)
 *     link FROM TO KIND           (N * (N - 1) lines: ordinals; nvlink, pcie or none) */
#ifndef STAGE_DEVICES_H
#define STAGE_DEVICES_H

#include "common/status.h"

/* Write them to the descriptor. ST_RESOURCES: it cannot be written; ST_DEVICE: the driver
 * failed. */
MUST_USE status devices_write(int fd, errmsg *e);

#endif
