/* stack.h - room for the stacks of this process, its threads and its stages (ulimit -s). */
#ifndef COORDINATOR_STACK_H
#define COORDINATOR_STACK_H

#include "common/status.h"

/* Bytes that are needed; sanitized and unoptimised builds included. */
#define STACK_BYTES_MIN (1ull << 20)

/* Where the limit is below that, raise it as far as the system lets us, for stages as well, which
 * inherit it, and for threads from now on. ST_RESOURCES: it lets us not far enough. Before any
 * thread is started. */
MUST_USE status stack_make_room(errmsg *e);

#endif
