/* threads.h - whether this process may start threads (ulimit -v, ulimit -u, a container's bounds):
 * asked before a library starts its own that aborts where it cannot, as zeromq does. */
#ifndef COMMON_THREADS_H
#define COMMON_THREADS_H

#include "common/status.h"

#include <stdint.h>

#define ZEROMQ_THREADS 2u /* of a context, from its first socket on */
#define THREADS_MAX    8u

/* ST_RESOURCES: n (THREADS_MAX at most) threads with stacks of the default size cannot run at once
 * here and now, or nothing is left beside them for what they allocate; *e says that `who` needs
 * them and which limits count. Takes a tenth of a millisecond. */
MUST_USE status threads_can_start(uint32_t n, const char *who, errmsg *e);

#endif
