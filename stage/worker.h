/* worker.h - the thread of a stage that loads, probes and walks.
 *
 * It takes frames (CONFIG, PROBE, STEP, QUIESCE, REATTACH, REPLAY) from its inbox, in order, and
 * puts what it has to say (LOADED, PROBED, RESULT, QUIESCED, REPLAYED, FAULT) into its outbox; the
 * control thread carries both. After a fault it takes nothing more. It repairs nothing. */
#ifndef STAGE_WORKER_H
#define STAGE_WORKER_H

#include "common/runblock.h"
#include "stage/mailbox.h"

typedef struct worker worker;

/* Start the thread of stage stage_i, epoch. words: its part of the mapped run block. */
MUST_USE status worker_open(worker **out, uint32_t stage_i, uint32_t epoch, run_block *block,
                            errmsg *e);
MUST_USE status worker_post(worker *w, const void *frame, uint64_t bytes, errmsg *e);
mailbox *worker_outbox(worker *w);

/* A QUIESCE is about to be posted: waits end at once, the walk after the layer in hand, and steps
 * that wait in the inbox are dropped, until that frame's turn comes. Any thread. */
void worker_interrupt(worker *w);

/* Tell it to stop: waits end at once, the walk ends after the layer in hand. Any thread. */
void worker_stop(worker *w);

/* Wait for the thread at most limit_ms and free everything; false: it did not end (the caller exits
 * the process). */
bool worker_close(worker *w, uint32_t limit_ms);

#endif
