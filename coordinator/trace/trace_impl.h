/* trace_impl.h - trace.c keeps rings, thread and file; trace_json.c writes the text of an event. */
#ifndef COORDINATOR_TRACE_IMPL_H
#define COORDINATOR_TRACE_IMPL_H

#include "coordinator/trace/trace.h"

/* Text that goes to the file with the next write. */
typedef struct {
    char *at;                    /* [room] */
    uint64_t n, room;
    bool failed;                 /* no memory: what was to be added is not there */
} trace_text;
void trace_text_put(trace_text *t, const char *text, uint64_t n);

/* Crossings of one boundary whose other half has not been seen yet, oldest first: both rings tell
 * of them in order, and either may be read first. */
typedef struct {
    uint64_t n_put, n_taken;
    trace_event event[TRACE_RING_EVENTS];
} trace_halves;

typedef struct {
    trace_halves sent, received;
    uint64_t n_crossings;
} trace_boundary;

struct trace_run {
    trace_run *next;
    trace *t;
    uint32_t pid;                /* in the file */
    plan plan;
    trace_block *block;
    int fd;
    uint64_t dropped_seen[STAGES_MAX + 1];
    trace_boundary *boundary;    /* [n_stages]; 0: from the last stage. NULL with one stage */
};

/* Names of the run's process and tracks. */
void trace_json_names(trace_text *out, const trace_run *r, const char *model);
/* The event of ring ring_i; of a crossing, what is known when both halves are there. */
void trace_json_event(trace_text *out, trace_run *r, uint64_t begin_ns, uint32_t ring_i,
                      const trace_event *ev);
/* n events of that ring were lost, as far as is known now. */
void trace_json_dropped(trace_text *out, const trace_run *r, uint64_t begin_ns, uint32_t ring_i,
                        uint64_t n);

#endif
