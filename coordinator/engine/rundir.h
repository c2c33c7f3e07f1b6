/* rundir.h - one private directory per run, for sockets; swept by the next start if all were killed.
 *
 * The base (--run-dir; default $XDG_RUNTIME_DIR/memra-pp, else /tmp/memra-pp-UID) is a directory of
 * ours: owned by this user, closed to others (made 0700 if absent). A run's own directory
 * base/run-PID-N holds a lock file, locked (flock) as long as the coordinator lives, and sockets.
 * Whatever lock can be had belongs to a dead run and is removed. */
#ifndef COORDINATOR_RUNDIR_H
#define COORDINATOR_RUNDIR_H

#include "common/status.h"

#include <stdint.h>

#define RUNDIR_PATH_MAX 95 /* so that "/s63.1000000" still fits a socket address (108 bytes) */

typedef struct {
    char path[RUNDIR_PATH_MAX + 1];
    int lock_fd;
} rundir;

/* The base directory that `base` (may be NULL) means. ST_RESOURCES: too long. */
MUST_USE status rundir_base(char out[RUNDIR_PATH_MAX + 1], const char *base, errmsg *e);

/* Sweep dead runs below the base and make our own directory. ST_RESOURCES with *e: not a directory,
 * not ours, open to others, not writable, path too long. */
MUST_USE status rundir_open(rundir *out, const char *base, errmsg *e);
void rundir_close(rundir *r);

/* Call visit for each live run below base ("run-PID-N" directories whose lock is held). Returns their
 * number. No base directory: 0. */
uint32_t rundir_list(const char *base, void (*visit)(void *ctx, const char *path), void *ctx);

#endif
