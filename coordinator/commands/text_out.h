/* text_out.h - generated text on its way to standard output: whole characters only, as they come.
 *
 * A character that stays unfinished at the end is U+FFFD; a newline ends the text if it has none.
 */
#ifndef COORDINATOR_TEXT_OUT_H
#define COORDINATOR_TEXT_OUT_H

#include "common/status.h"
#include "coordinator/text/utf8.h"

#include <stdbool.h>

/* Start with all zero; text_out_free in any case. */
typedef struct {
    utf8_stream characters;
    bool any, at_line_start; /* of what was written */
    char *buffer;
    uint64_t buffer_bytes;
} text_out;

void text_out_free(text_out *t);

/* Whole characters of the bytes so far into t->buffer: *n bytes there. ST_RESOURCES: no memory. */
MUST_USE status text_out_collect(text_out *t, const char *text, uint64_t bytes, uint64_t *n,
                                 errmsg *e);

/* Write them to standard output. Errors as output_write too. */
MUST_USE status text_out_put(text_out *t, const char *text, uint64_t bytes, errmsg *e);

/* The end of a text. always: end the line even when nothing was written. t is ready for another
 * text. Errors as output_write. */
MUST_USE status text_out_end(text_out *t, bool always, errmsg *e);

#endif
