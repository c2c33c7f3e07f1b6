#include "coordinator/commands/text_out.h"
#include "coordinator/commands/output.h"

#include <stdlib.h>
#include <unistd.h>

void text_out_free(text_out *t)
{
    free(t->buffer);
    *t = (text_out){0};
}

status text_out_collect(text_out *t, const char *text, uint64_t bytes, uint64_t *n, errmsg *e)
{
    uint64_t need = 3 * (bytes + 4);
    *n = 0;
    if (need > t->buffer_bytes) {
        char *more = realloc(t->buffer, need);
        if (more == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a piece of text");
        t->buffer = more;
        t->buffer_bytes = need;
    }
    *n = utf8_feed(&t->characters, text, bytes, t->buffer);
    return ST_OK;
}

static status put(text_out *t, const char *text, uint64_t bytes, errmsg *e)
{
    if (bytes == 0) return ST_OK;
    t->any = true;
    t->at_line_start = text[bytes - 1] == '\n';
    return output_write(STDOUT_FILENO, "standard output", text, bytes, e);
}

status text_out_put(text_out *t, const char *text, uint64_t bytes, errmsg *e)
{
    uint64_t n;
    TRY(text_out_collect(t, text, bytes, &n, e));
    return put(t, t->buffer, n, e);
}

status text_out_end(text_out *t, bool always, errmsg *e)
{
    char text[5];
    uint64_t n = utf8_end(&t->characters, text);
    if (n > 0 || ((always || t->any) && !t->at_line_start)) text[n++] = '\n';
    status s = put(t, text, n, e);
    t->any = t->at_line_start = false;
    return s;
}
