/* process.h - what the system says of another process. */
#ifndef COMMON_PROCESS_H
#define COMMON_PROCESS_H

#include <sys/types.h>

/* The letter of /proc/PID/stat (proc(5)): R, S, T stopped, Z dead and not waited for; 0: there
 * is no such process. */
char process_state(pid_t pid);

#endif
