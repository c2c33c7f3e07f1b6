/* limits.h - what the system allows this process (ulimit): room is made as far as it lets us, and
 * what is not enough is refused before work begins, not met in the midst of it, where libraries
 * abort. */
#ifndef COORDINATOR_LIMITS_H
#define COORDINATOR_LIMITS_H

#include "common/status.h"

#include <stdint.h>

/* Bytes of a stack that are needed; sanitized and unoptimised builds included. */
#define LIMITS_STACK_BYTES (1ull << 20)

/* Where stacks are limited to less (ulimit -s), raise the limit, for stages as well, which inherit
 * it, and for threads from now on. ST_RESOURCES: it may not be. Before any thread is started. */
MUST_USE status limits_stack(errmsg *e);

/* Where fewer than n descriptors can still be opened (ulimit -n), raise the limit. ST_RESOURCES: it
 * may not be; *e says that `who` needs them. */
MUST_USE status limits_descriptors(uint32_t n, const char *who, errmsg *e);

#endif
