#include "coordinator/machine/limits.h"

#include "common/amount.h"

#include <dirent.h>
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
        if (rc == 0 && bytes < LIMITS_STACK_BYTES)
            rc = pthread_attr_setstacksize(&a, LIMITS_STACK_BYTES);
        if (rc == 0 && bytes < LIMITS_STACK_BYTES) rc = pthread_setattr_default_np(&a);
        pthread_attr_destroy(&a);
    }
    if (rc == 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "no room for the stacks of threads: %s", strerror(rc));
}

status limits_stack(errmsg *e)
{
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= LIMITS_STACK_BYTES) return ST_OK;
    stack.rlim_cur = stack.rlim_max < LIMITS_STACK_BYTES ? stack.rlim_max : LIMITS_STACK_BYTES;
    if (stack.rlim_max < LIMITS_STACK_BYTES || setrlimit(RLIMIT_STACK, &stack) != 0)
        return errmsg_set(e, ST_RESOURCES,
                          "the stack is limited to %s (ulimit -s), and %s are needed",
                          amount_said(stack.rlim_cur), amount_said(LIMITS_STACK_BYTES));
    return raise_threads(e);
}

#define DESCRIPTORS_USUAL 1024u /* the soft limit of most systems */

/* UINT32_MAX: there is none left to look with. */
static uint32_t n_open(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL) return UINT32_MAX;
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n - 3; /* ".", "..", and d itself */
}

status limits_descriptors(uint32_t n, const char *who, errmsg *e)
{
    struct rlimit files;
    uint32_t open = n_open();
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return ST_OK;
    if (open == UINT32_MAX) open = (uint32_t)files.rlim_cur;
    rlim_t want = (rlim_t)open + n, cur = files.rlim_cur;
    if (cur >= want) return ST_OK;
    /* Stages inherit it, and a device's driver opens dozens. */
    files.rlim_cur = want > DESCRIPTORS_USUAL ? want : DESCRIPTORS_USUAL;
    if (files.rlim_cur > files.rlim_max) files.rlim_cur = files.rlim_max;
    if (files.rlim_max >= want && setrlimit(RLIMIT_NOFILE, &files) == 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES,
                      "%u descriptors are open of %llu (ulimit -n), and %s needs %u more", open,
                      (unsigned long long)cur, who, n);
}
