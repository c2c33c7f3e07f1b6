/* trace.h - a file to look at: what every stage, boundary and step did, and when.
 *
 * The file is a Chrome trace (JSON, an object with traceEvents), which ui.perfetto.dev and
 * chrome://tracing open. Each pipeline that is traced is a process of it, named by its model and
 * stages:
 *
 *   a track per stage      slices: load, probe; decode, prompt, verify, replay, with head and
 *                          journal; starved and blocked. What is between slices is idle: a bubble
 *   a track per boundary   "0 -> 1": rows from when they are in a slot until they are taken out
 *   tracks per kind        steps, from their issue to their last result
 *   of step
 *
 * with the step's number, round, group, slot and rows as arguments. A stage that is lost and
 * replaced shows that in its own track. Times are microseconds since the trace was opened.
 *
 * A thread takes the events from the rings (common/tracering.h) a hundred times a second and writes
 * them with one write each time, which also ends the document anew, so that the file is whole when
 * this process is killed at any time but that of a write. Memory is bounded by the rings and that
 * buffer; the file grows by some 150 bytes an event. Events that did not fit into a ring are
 * counted in the track that lacks them. A disk that is full ends the trace with a warning, not the
 * run: it goes on, and exits with 4 if nothing else is wrong. */
#ifndef COORDINATOR_TRACE_H
#define COORDINATOR_TRACE_H

#include "common/plan.h"
#include "common/tracering.h"

typedef struct trace trace;
typedef struct trace_run trace_run;

/* Begin a trace in the file called path, which is emptied, and start the thread. The file is locked
 * (flock) until close. ST_RESOURCES: it cannot be written, is no regular file, or another trace is
 * being written to it, which is left as it is; no memory or thread. *out is NULL then. */
MUST_USE status trace_open(trace **out, const char *path, errmsg *e);

/* Write what is left and close the file; every run has ended. False: the trace is not whole, which
 * was said when it happened. NULL is legal: true. */
MUST_USE bool trace_close(trace *t);

/* One pipeline. *fd, the rings' memory for the stages, is the run's. model: a name for people.
 * ST_RESOURCES; *out is NULL then. Any thread. */
MUST_USE status trace_begin(trace_run **out, trace *t, const plan *p, const char *model, errmsg *e);
int trace_fd(const trace_run *r); /* 0 for NULL */
trace_ring *trace_engine(const trace_run *r); /* the engine's; NULL for NULL */

/* Its stages have ended: what is left in the rings is written. NULL is legal. */
void trace_end(trace_run *r);

#endif
