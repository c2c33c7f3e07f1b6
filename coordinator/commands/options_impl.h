/* options_impl.h - what the files of the option parser share; nobody else includes it. */
#ifndef COORDINATOR_OPTIONS_IMPL_H
#define COORDINATOR_OPTIONS_IMPL_H

#include "coordinator/commands/options.h"

#define OPTION_NAME_BYTES 64

/* An option as a person wrote it and its value. */
typedef struct {
    const option *o;
    char name[OPTION_NAME_BYTES]; /* "--ctx", "-n" */
    const char *value;
    errmsg *e;
} option_given;

/* Read the value into what the option's out points to. ST_USAGE. */
MUST_USE status option_take(const option_given *g);

/* "is ..., rule: ..." for a value that is none of an option's words. */
status option_refuse(const option_given *g, const char *why, const char *rule);

/* Texts and numbers as given, before they become common_options. */
typedef struct {
    const char *kv_type, *log_level;
    float start_timeout_s, hang_timeout_s, restart_window_s;
} shared_texts;

#define N_SHARED 19u

/* The options of all commands, writing into *c and *t. */
void options_shared(option out[N_SHARED], common_options *c, shared_texts *t);

/* The row of a table by name (bytes long), or by letter when that is not 0; NULL: none. */
const option *option_find(const option *table, uint32_t n, const char *name, size_t bytes,
                          char letter);

#endif
