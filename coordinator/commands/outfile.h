/* outfile.h - a file that is there whole or not at all.
 *
 * Written without a name, or where the file system cannot do that under the name PATH.part-PID, and
 * put in the place of PATH when it is complete; a program that is killed on the way leaves PATH as
 * it was. "-" is standard output; a PATH that exists and is no regular file (a device, a pipe) is
 * written as it is. */
#ifndef COORDINATOR_OUTFILE_H
#define COORDINATOR_OUTFILE_H

#include "common/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int fd;                /* -1: closed */
    bool standard, direct; /* "-"; no regular file */
    bool named;            /* temp exists */
    char path[PATH_MAX];   /* where it will be, links followed */
    char temp[PATH_MAX];
} outfile;

/* That what `option` asks to write at path is no model (a file that begins as GGUF does), nor the
 * file `other` (NULL: none), which is written already. ST_USAGE. */
MUST_USE status outfile_spares(const char *option, const char *path, const char *other, errmsg *e);

/* For an option that writes no standard output: "-" is none. ST_USAGE, naming option and reason. */
MUST_USE status outfile_is_file(const char *option, const char *path, const char *because,
                                errmsg *e);

/* ST_RESOURCES with *e naming the path and the reason; *out is closed then. */
MUST_USE status outfile_open(outfile *out, const char *path, errmsg *e);

/* Errors as output_write. */
MUST_USE status outfile_write(outfile *f, const void *data, uint64_t bytes, errmsg *e);

/* Everything is written: put it in place and close. ST_RESOURCES. */
MUST_USE status outfile_commit(outfile *f, errmsg *e);

/* Close; what was not committed is gone. Legal on a closed one. */
void outfile_close(outfile *f);

#endif
