#include "coordinator/machine/stack.h"

#include "common/amount.h"

#include <pthread.h>
#include <string.h>
#include <sys/resource.h>

/* The system took the default of threads from the limit when the program began. */
static status raise_threads(errmsg *e)
{
    pthread_attr_t a;
    size_t bytes = 0;
    int rc = pthread_getattr_default_np(&a);
    if (rc == 0) {
        rc = pthread_attr_getstacksize(&a, &bytes);
        if (rc == 0 && bytes < STACK_BYTES_MIN)
            rc = pthread_attr_setstacksize(&a, STACK_BYTES_MIN);
        if (rc == 0 && bytes < STACK_BYTES_MIN) rc = pthread_setattr_default_np(&a);
        pthread_attr_destroy(&a);
    }
    if (rc == 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "no room for the stacks of threads: %s", strerror(rc));
}

status stack_make_room(errmsg *e)
{
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= STACK_BYTES_MIN) return ST_OK;
    stack.rlim_cur = stack.rlim_max < STACK_BYTES_MIN ? stack.rlim_max : STACK_BYTES_MIN;
    if (stack.rlim_max < STACK_BYTES_MIN || setrlimit(RLIMIT_STACK, &stack) != 0)
        return errmsg_set(e, ST_RESOURCES,
                          "the stack is limited to %s (ulimit -s), and %s are needed",
                          amount_said(stack.rlim_cur), amount_said(STACK_BYTES_MIN));
    return raise_threads(e);
}
