/* Nothing but trying tells: the limits are several, and some are shared with other processes. What
 * the tries took is free again when this returns, and the system keeps their stacks at hand. */
#include "common/threads.h"

#include "common/amount.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define BESIDE_BYTES (4ull << 20) /* for what a context of zeromq and its sockets allocate */

static void *wait_and_end(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* 0, or an error number, with so many threads running as there may be; *n becomes their number. */
static int try_threads(pthread_t *thread, uint32_t *n, pthread_mutex_t *gate)
{
    for (uint32_t i = 0; i < *n; i++) {
        int error = pthread_create(&thread[i], NULL, wait_and_end, gate);
        if (error == 0) continue;
        *n = i;
        return error;
    }
    void *room = mmap(NULL, BESIDE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return errno;
    munmap(room, BESIDE_BYTES);
    return 0;
}

status threads_can_start(uint32_t n, const char *who, errmsg *e)
{
    CHECK(n <= THREADS_MAX);
    pthread_t thread[THREADS_MAX];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    uint32_t n_running = n;
    pthread_mutex_lock(&gate);
    int error = try_threads(thread, &n_running, &gate);
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < n_running; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&gate);
    if (error == 0) return ST_OK;
    return errmsg_set(
        e, ST_RESOURCES,
        "%s needs %u thread%s and %s beside their stacks, and there is no room: %s; a "
        "higher limit on address space (ulimit -v) or on processes (ulimit -u) would "
        "do",
        who, n, plural(n), amount_said(BESIDE_BYTES), strerror(error));
}
