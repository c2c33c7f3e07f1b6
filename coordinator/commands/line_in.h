/* line_in.h - lines from the person: edited, with a history, on a terminal; as they are from a pipe
 * or file.
 *
 * On a terminal (standard input and error both are) editing is libedit's, and prompt and echo go to
 * standard error, so that standard output is the program's text alone. Elsewhere nothing is
 * prompted. A wait wakes a few times a second to ask its caller whether to go on.
 *
 * One at a time in a process (the terminal is). */
#ifndef COORDINATOR_LINE_IN_H
#define COORDINATOR_LINE_IN_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct line_in line_in;

typedef struct {
    const char *prompt; /* on a terminal */
    uint64_t bytes_max; /* longer lines are refused */
    /* While it waits: ST_OK goes on, anything else ends the wait with that status. */
    status (*waiting)(void *ctx, errmsg *e);
    void *ctx;
    volatile int *interrupted; /* a signal handler sets it: the wait ends, see line_in_next */
} line_in_options;

/* ST_RESOURCES: no memory, or the terminal cannot be used. */
MUST_USE status line_in_open(line_in **out, const line_in_options *o, errmsg *e);
void line_in_close(line_in *l); /* l may be NULL; the terminal is as it was */

bool line_in_on_terminal(const line_in *l);

/* The next line without its newline; *text is l's until the next call, and NULL at the end of
 * input. May hold NUL bytes; on a terminal what cannot be decoded is left out. ST_INTERRUPTED:
 * *interrupted was set (it is 0 again); on a terminal a line that had begun is given up first, and
 * the wait goes on. ST_RESOURCES: reading failed, or the line is longer than bytes_max. */
MUST_USE status line_in_next(line_in *l, const char **text, uint64_t *bytes, errmsg *e);

#endif
