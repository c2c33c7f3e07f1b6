/* rundir.h - one private directory per run, for sockets; swept by the next start if all were
 * killed.
 *
 * The base (--run-dir; default $XDG_RUNTIME_DIR/memra-pp, else /tmp/memra-pp-UID) is a directory of
 * ours: owned by this user, closed to others (made 0700 if absent). A run's own directory
 * base/run-PID-N holds a lock file, locked (flock) as long as the coordinator lives, sockets, and
 * an empty file per process that it started. Whatever lock can be had belongs to a dead run and is
 * removed, with what its dead processes left in /dev/shm (leftovers.h). */
#ifndef COORDINATOR_RUNDIR_H
#define COORDINATOR_RUNDIR_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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

/* A folder in /tmp may be cleaned while a run goes on: make our directory and its lock anew where
 * they are gone; *anew says so, and nothing else is in it then. ST_RESOURCES as rundir_open. */
MUST_USE status rundir_keep(rundir *r, bool *anew, errmsg *e);

/* Remember that this run started the process. What cannot be written is not remembered. */
void rundir_note_process(const rundir *r, pid_t pid);
/* It is reaped, and what it left is removed. */
void rundir_forget_process(const rundir *r, pid_t pid);

/* Call visit for each live run below base ("run-PID-N" directories whose lock is held). No default
 * base (base NULL or empty): there are none. ST_RESOURCES: the base that was named is missing, none
 * can be read, path too long. */
MUST_USE status rundir_list(const char *base, void (*visit)(void *ctx, const char *path), void *ctx,
                            errmsg *e);

/* Whether the run that was listed by this path lives on: its lock is held. */
bool rundir_lives(const char *path);

#endif
