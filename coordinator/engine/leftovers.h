/* leftovers.h - what a process that was killed leaves in /dev/shm.
 *
 * The CUDA driver makes /dev/shm/cuda.shm.UID.PIDHEX.N for what a process exports, and a process
 * that is killed cannot remove it. */
#ifndef COORDINATOR_LEFTOVERS_H
#define COORDINATOR_LEFTOVERS_H

#include <sys/types.h>

/* Remove those of our user's process pid, which is dead. Names of others stay. */
void leftovers_remove(pid_t pid);

/* The same in another directory. Returns how many were removed. */
unsigned leftovers_remove_in(const char *dir, uid_t uid, pid_t pid);

#endif
