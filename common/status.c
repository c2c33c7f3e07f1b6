#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    int exit_code;
    const char *word;
} status_table[STATUS_COUNT] = {
#define X(name, exit_code, word) [name] = {exit_code, word},
    STATUS_LIST(X)
#undef X
};

int status_exit_code(status s)
{
    CHECK((unsigned)s < STATUS_COUNT);
    return status_table[s].exit_code;
}

const char *status_word(status s)
{
    CHECK((unsigned)s < STATUS_COUNT);
    return status_table[s].word;
}

status errmsg_set(errmsg *e, status code, const char *format, ...)
{
    if (e == NULL || e->code != ST_OK) return code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    /* One line for a person and for a log: what came from a file or another process stays on it. */
    for (char *c = e->text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    e->code = code;
    return code;
}

void errmsg_clear(errmsg *e)
{
    e->code = ST_OK;
    e->text[0] = '\0';
}

void check_failed(const char *file, int line, const char *expr)
{
    fprintf(stderr, "memra-pp: bug: %s:%d: %s\n", file, line, expr);
    abort();
}
