/* lane.h - rows that the devices tell each other, through a boundary's host memory: came.h's lines
 * beside the hidden state of a slot. A device with kernels for it (kernels/peer.h: lane_put,
 * lane_take) writes and reads them in the turn of its queue; where ops run in the call, these do.
 *
 * The lines of the end's bank are cleared by the receiver before it offers them (boundary.h). */
#ifndef STAGE_LANE_H
#define STAGE_LANE_H

#include "common/boundary.h"
#include "kernels/peer.h"

/* The lane of a slot, for the message that is put into it next, or is full there. */
peer_lane lane_of(const boundary_end *b, uint32_t slot, const slot_view *v);

/* The rows' lines; the hidden state is in the slot already. */
void lane_put_here(const peer_lane *l, const peer_rows *x);

/* The rows, if all their lines are there; ST_TIMEOUT: not yet, nothing was written. */
MUST_USE status lane_take_here(const peer_lane *l, const peer_rows *x);

/* End takes of the end's epoch; any thread. */
void lane_poison(const boundary_end *b);

#endif
