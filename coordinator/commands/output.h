/* output.h - what commands write for their reader: bytes to a descriptor, whole or refused.
 *
 * SIGPIPE and SIGXFSZ are ignored by main, so that a reader that went away and a file that may not
 * grow are errors of the write. No buffering: text is seen as it comes. */
#ifndef COORDINATOR_OUTPUT_H
#define COORDINATOR_OUTPUT_H

#include "common/status.h"

#include <stdint.h>

/* Write all bytes to fd. ST_CLOSED with an empty text: the reader is gone (nothing to tell
 * anybody); ST_INTERRUPTED: a signal asked to stop while the write had to wait; ST_RESOURCES: it
 * failed, *e names `what` ("standard output", a file) and the reason. */
MUST_USE status output_write(int fd, const char *what, const void *data, uint64_t bytes, errmsg *e);

/* The same for text to standard output. */
MUST_USE status output_text(const char *text, errmsg *e);
MUST_USE status output_line(errmsg *e, const char *format, ...) PRINTF_LIKE(2, 3);

/* Standard output through stdio, for tables: flush what has been printed, and keep the reason when
 * that fails. */
void output_flush(void);
/* Whether all of it has arrived so far. ST_CLOSED and ST_RESOURCES as output_write. */
MUST_USE status output_flushed(errmsg *e);

/* Write a JSON value as one line and free it; NULL (no memory to build it): ST_RESOURCES. */
struct json_t;
MUST_USE status output_json(struct json_t *owned, errmsg *e);

/* Read all of the file at path ("-": standard input) into an owned, also terminated array.
 * ST_USAGE: more than max_bytes; ST_RESOURCES: it cannot be read; ST_INTERRUPTED. *out is NULL
 * then. */
MUST_USE status input_read(const char *path, uint64_t max_bytes, char **out, uint64_t *bytes,
                           errmsg *e);

/* A text that came from elsewhere, for a terminal: control bytes become '?'. In place. */
void output_clean(char *text);

#endif
