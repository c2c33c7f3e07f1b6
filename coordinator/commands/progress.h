/* progress.h - how far the stages have loaded, on a terminal: one line per stage, redrawn in place
 * and wiped at the end. In a pipe, a file or a terminal without cursor movement nothing is shown.
 */
#ifndef COORDINATOR_PROGRESS_H
#define COORDINATOR_PROGRESS_H

#include "common/doors.h"

typedef struct {
    int fd;
    bool shown; /* a bar may be drawn */
    uint32_t n_stages;
    uint32_t n_lines; /* on the screen now */
    uint64_t drawn_ns;
    uint64_t done[STAGES_MAX], total[STAGES_MAX];
} progress;

/* Begin for a run of n_stages; wanted: false keeps it silent. */
void progress_begin(progress *p, uint32_t n_stages, bool wanted);

/* A pipeline_progress; ctx is the progress. Called by one thread until progress_end. */
void progress_update(void *ctx, uint32_t stage, uint64_t done_bytes, uint64_t total_bytes);

/* Wipe what was drawn. */
void progress_end(progress *p);

#endif
