/* child.h - one child process: started with inherited descriptors, watched by pidfd, reaped.
 *
 * The child dies with us (PDEATHSIG, so the thread that spawns must outlive it) and is in our
 * process group, but gets no descriptor except those named. */
#ifndef COORDINATOR_CHILD_H
#define COORDINATOR_CHILD_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;       /* 0: none */
    int pidfd;       /* readable when it has ended */
    bool ended;      /* reaped */
    int wait_status; /* of waitpid, when ended */
    bool no_program; /* it could not be started, for what it is: another try would end alike */
} child;

/* Start argv[0] with these descriptors kept open (same numbers). ST_RESOURCES: cannot fork, or the
 * program cannot be executed (*e says why). */
MUST_USE status child_start(child *out, char *const argv[], const int *fds, uint32_t n_fds,
                            errmsg *e);

/* The same of the program that program_fd holds open (O_PATH will do), whatever argv[0] names by
 * now: it may have been removed or replaced. A script is started by its name. */
MUST_USE status child_start_open(child *out, int program_fd, char *const argv[], const int *fds,
                                 uint32_t n_fds, errmsg *e);

/* Reap it if it has ended, and remove what it left behind (leftovers.h). Returns c->ended. */
bool child_reap(child *c);

/* Send a signal; nothing when it has ended. */
void child_signal(const child *c, int signal_number);

/* Wait until it has ended, at most limit_ms; returns c->ended. */
bool child_wait(child *c, uint32_t limit_ms);

/* SIGKILL, wait, close the pidfd. */
void child_destroy(child *c);

/* The signal that has stopped it (SIGSTOP, SIGTSTP, ..), 0 while it may run. */
int child_stopped_by(const child *c);

/* "killed by SIGKILL", "exit code 4": how it ended, into text. */
void child_describe(const child *c, char *text, uint32_t text_bytes);

#endif
