/* gate_streams.h - sessions at work, for the recovery gate: what a stage may be killed in.
 *
 * A stream is one user's session, walked again and again in the same way: a prompt, decode (greedy
 * in even streams, sampled with penalties in odd ones), deferred steps, a fork that goes its own way
 * beside its parent, a truncation, more prompt, more decode. Which tokens and lengths follows from
 * the gate's seed and the stream's number alone, so that every walk gives the same record. */
#ifndef COORDINATOR_GATE_STREAMS_H
#define COORDINATOR_GATE_STREAMS_H

#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"

#include <stdatomic.h>

#define STREAM_SESSIONS 2u /* that one stream may have open */

/* Rows of a stream's record. */
uint32_t stream_rows(const gate_context *g);

/* Walk stream i once, into *out, which is empty. *n_tokens goes up with every result. Errors are the
 * pipeline's; nothing stays open. */
MUST_USE status stream_walk(const gate_context *g, pipeline *p, uint32_t i, gate_record *out,
                            _Atomic uint64_t *n_tokens, errmsg *e);

#endif
