/* ring.h - the rounds of a step where the devices of several stages feed each other (STEP_AHEAD).
 *
 * A round's rows are hidden states on their way up, and drawn tokens on the way back from the last
 * stage to the first; both are messages of a boundary. Without this, each is announced when its
 * sender's host has seen that it is there, and a walk is launched when its receiver's host has.
 * Here every stage puts the whole of a round on its queue before anything of it has come:
 *
 *     take what the stage before sends -> (embed) -> layers -> (head, draw) -> put it to the next
 *
 * and the row's token, its live bit and its mark (kernels/came.h) travel with it from device to
 * device. The hosts follow: each waits for the end of the round on its own device, learns there
 * what the rows were, keeps its books, and puts the next round on the queue while the others walk
 * this one. So a host's own work, and the time until it wakes, is nobody's wait, as long as the
 * others walk for longer.
 *
 * Where ops run in the call there is no queue to be ahead of: rows have come when the take returns,
 * and a round is the same calls in the same order, with nothing left to learn at its end.
 *
 * Who waits for what
 *   device: for the lines of one message, in memory of its own side (its own, or the boundary's
 *           host memory). Messages follow each other round the ring, so none waits for a later one.
 *   host, before it puts a round on the queue: for the announcement, which the sender's host makes
 *           when it has put its part there (headers are compared then, but for what is drawn), and
 *           for the slot that it will fill to be handed back; both as in every other step. It waits
 *           for no device.
 *   host, at the end: until the sender's host has said that the rows left (`sent`; the stage is
 *           starved as long), then for its own device. A stage that hangs is thus the one that the
 *           coordinator blames.
 *
 * How it ends
 *   A row that draws a stop, has had its rounds, or is poisoned is dead from then on: the device
 *   that draws clears its live bit, and it writes nothing in any stage. Rounds of dead rows cross
 *   all the same. A stage that dies, or a step that is to end: `wake` poisons the epoch. Takes of
 *   it, on the queue and to come, end as gone; their rows are dead, so that what follows on the
 *   queue writes no K and V, and the put behind them sends nothing. The host finds the rows gone,
 *   commits nothing of the round, keeps nothing of it and leaves the step with ST_CLOSED. Rounds
 *   that were told before have been applied by all stages; the others are issued again, as in every
 *   other step. A refusal (a row that is not the expected one) is ST_PROTOCOL, and the process
 *   ends.
 *
 * The same bits: what is walked, and in what order, is what the other way walks; a drawn token is
 * looked at by the host as well, and is compared with the one that comes back round the ring. */
#ifndef STAGE_RING_H
#define STAGE_RING_H

#include "stage/worker_impl.h"

/* A round of the step in hand. ST_CLOSED: interrupted, or its rows are gone. */
MUST_USE status ring_round(worker *w, piece *x, errmsg *e);

/* Last stage, when the next step goes on: the rows as the last round left them, to the first
 * stage. */
MUST_USE status ring_hand_on(worker *w, uint32_t slot, uint64_t seq, const wire_row *rows,
                             uint32_t n_rows, errmsg *e);

#endif
