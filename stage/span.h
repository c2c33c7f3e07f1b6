/* span.h - a stretch of the worker's time, for those who look: the run's trace, where one is
 * written (common/tracering.h), and profilers (kernels/range.h). The worker's thread; spans lie
 * inside one another. */
#ifndef STAGE_SPAN_H
#define STAGE_SPAN_H

#include "common/clock.h"
#include "common/tracering.h"
#include "kernels/range.h"

typedef struct {
    trace_kind kind;
    uint64_t begin_ns;
} span;

static inline span span_begin(trace_kind kind)
{
    range_push(trace_kind_word(kind));
    return (span){kind, now_ns()};
}

/* r NULL: nobody writes a trace, or what was begun did not come to its end. of: what it was about;
 * kind and times are set here. */
static inline void span_end(trace_ring *r, const span *s, trace_event of)
{
    range_pop();
    if (r == NULL) return;
    of.kind = s->kind;
    of.begin_ns = s->begin_ns;
    of.end_ns = now_ns();
    trace_put(r, &of);
}

#endif
