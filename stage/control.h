/* control.h - a stage's process: its control thread and its end.
 *
 * The control thread owns the socket to the coordinator, answers while device work runs, beats, and
 * ends the process when the coordinator says so, when the coordinator is gone (the inherited pipe
 * closes; beside PDEATHSIG) or when the worker has reported a fault. */
#ifndef STAGE_CONTROL_H
#define STAGE_CONTROL_H

#include "common/status.h"

#include <stdint.h>

typedef struct {
    const char *endpoint;   /* ipc://... of this incarnation */
    uint32_t stage_i, epoch;
    int death_fd;           /* read end of the coordinator's pipe */
    int run_block_fd;
} control_options;

/* Run until the end; returns the process's exit code. */
int control_run(const control_options *o);

#endif
