/* banner.h - what a person is told of a run on stderr: the loading bar, what each stage holds, and
 * how busy each stage was. Lines are logged at info: --log-level warn hides them. */
#ifndef COORDINATOR_BANNER_H
#define COORDINATOR_BANNER_H

#include "coordinator/commands/options.h"

/* pipeline_open with the common options, showing progress on a terminal and then a line for the
 * model and one per stage. Errors as pipeline_open and options_model. */
MUST_USE status banner_open(pipeline **out, const common_options *c, errmsg *e);

/* The stages' work between two moments. */
typedef struct {
    uint32_t n_stages;
    uint64_t begin_ns, end_ns;
    uint64_t busy_ns[STAGES_MAX]; /* at the begin; then what was added until the end */
    uint64_t n_rows[STAGES_MAX];  /* at the begin */
} shares;

void shares_begin(shares *s, const pipeline *p);

/* n_rows: what every stage was given in between. Results may overtake a stage's own counters, so
 * they are waited for, for a tenth of a second at most. */
void shares_end(shares *s, const pipeline *p, uint64_t n_rows);

double shares_busy(const shares *s, uint32_t stage_i); /* 0..1; the rest is idle */

#endif
