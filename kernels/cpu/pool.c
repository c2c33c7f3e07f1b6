/* The mechanism: a `ticket` word that the caller advances to announce work, and a `left` word that
 * the threads count down. Each is the futex that its readers sleep on after spinning. A sleeper
 * says so in a counter before it looks at the word for the last time, so that the other side can
 * leave out the system call when nobody sleeps (both orders are sequentially consistent: either the
 * sleeper sees the new word, or the waker sees the sleeper).
 *
 * fn, arg and n_parts are plain: they are written before the ticket's release and read after its
 * acquire, and not written again before every thread has counted down. */
#include "kernels/cpu/pool.h"

#include "common/clock.h"

#include <errno.h>
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS 30000u

typedef struct {
    pool *p;
    uint32_t thread_i;
    pthread_t id;
} worker;

struct pool {
    _Alignas(64) atomic_uint ticket; /* written by the caller */
    atomic_uint n_asleep;            /* threads that sleep on ticket, or are about to */
    _Alignas(64) atomic_uint left;   /* parts that have not ended */
    atomic_uint caller_asleep;
    _Alignas(64) pool_fn fn;
    void *arg;
    uint32_t n_parts;
    bool closing;
    uint32_t n_threads, n_started;
    uint32_t spin_ns;
    pool_thread_start start;
    void *start_arg;
    worker *workers;
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Wait until *word differs from `seen`; sleepers is raised while the kernel may be asked. */
static unsigned wait_change(atomic_uint *word, unsigned seen, atomic_uint *sleepers,
                            uint32_t spin_ns)
{
    unsigned v = atomic_load_explicit(word, memory_order_acquire);
    if (v == seen && spin_ns > 0) {
        uint64_t end = now_ns() + spin_ns;
        do {
            for (int i = 0; i < 8 && v == seen; i++) {
                _mm_pause();
                v = atomic_load_explicit(word, memory_order_acquire);
            }
        } while (v == seen && now_ns() < end);
    }
    if (v != seen) return v;
    atomic_fetch_add(sleepers, 1);
    while ((v = atomic_load(word)) == seen) futex_wait(word, seen);
    atomic_fetch_sub(sleepers, 1);
    return v;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    pool *p = w->p;
    if (p->start != NULL) p->start(p->start_arg);
    for (unsigned seen = 0;;) {
        seen = wait_change(&p->ticket, seen, &p->n_asleep, p->spin_ns);
        if (p->closing) return NULL;
        if (w->thread_i < p->n_parts) p->fn(p->arg, w->thread_i, p->n_parts);
        /* The last one down wakes the caller if it sleeps. */
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_asleep) != 0)
            futex_wake_all(&p->left);
    }
}

static void announce(pool *p)
{
    atomic_fetch_add(&p->ticket, 1);
    if (atomic_load(&p->n_asleep) != 0) futex_wake_all(&p->ticket);
}

void pool_run(pool *p, pool_fn fn, void *arg, uint32_t n_parts)
{
    CHECK(n_parts >= 1 && n_parts <= p->n_threads);
    if (n_parts == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_parts = n_parts;
    atomic_store(&p->left, p->n_threads - 1);
    announce(p);
    fn(arg, 0, n_parts);
    for (unsigned left = atomic_load_explicit(&p->left, memory_order_acquire); left != 0;)
        left = wait_change(&p->left, left, &p->caller_asleep, p->spin_ns);
}

status pool_open(pool **out, uint32_t n_threads, pool_thread_start start, void *start_arg,
                 errmsg *e)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > POOL_THREADS_MAX)
        return errmsg_set(e, ST_RESOURCES, "cpu: %u threads asked, 1 to %u are possible", n_threads,
                          POOL_THREADS_MAX);
    pool *p = aligned_alloc(64, sizeof *p);
    worker *workers = calloc(n_threads, sizeof *workers);
    if (p == NULL || workers == NULL) {
        free(p);
        free(workers);
        return errmsg_set(e, ST_RESOURCES, "cpu: no memory for %u threads", n_threads);
    }
    memset(p, 0, sizeof *p);
    p->workers = workers;
    p->n_threads = n_threads;
    p->start = start;
    p->start_arg = start_arg;
    cpu_set_t set;
    bool crowded = sched_getaffinity(0, sizeof set, &set) == 0 &&
                   (uint32_t)CPU_COUNT(&set) < n_threads;
    p->spin_ns = crowded ? 0 : SPIN_NS;
    for (uint32_t i = 1; i < n_threads; i++) {
        worker *w = &workers[i];
        *w = (worker){.p = p, .thread_i = i};
        int error = pthread_create(&w->id, NULL, worker_main, w);
        if (error != 0) {
            pool_close(p);
            return errmsg_set(
                e, ST_RESOURCES,
                "cpu: thread %u of %u could not be started: %s; fewer (--threads), or "
                "a higher limit (ulimit -v, ulimit -u), would do",
                i, n_threads, strerror(error));
        }
        p->n_started++;
        char name[16];
        snprintf(name, sizeof name, "memra-cpu-%u", i);
        pthread_setname_np(w->id, name);
    }
    *out = p;
    return ST_OK;
}

void pool_close(pool *p)
{
    if (p == NULL) return;
    p->closing = true;
    announce(p);
    for (uint32_t i = 1; i <= p->n_started; i++) pthread_join(p->workers[i].id, NULL);
    free(p->workers);
    free(p);
}

uint32_t pool_n_threads(const pool *p)
{
    return p->n_threads;
}
