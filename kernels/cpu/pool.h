/* pool.h - the threads of one cpu device.
 *
 * Fork and join: the caller hands out one function, every thread (the caller is thread 0) runs it
 * on its own static part, and pool_run returns when all have ended. Idle threads spin for a moment
 * (the next op of a step follows within microseconds) and then sleep in the kernel; so does the
 * caller while it waits for the others. When there are more threads than processors, nobody spins.
 *
 * Which thread runs which part is fixed by the part's number alone: thread i runs part i. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include "common/status.h"

#include <stdint.h>

#define POOL_THREADS_MAX 256u

typedef struct pool pool;

/* Part part_i of n_parts, on its own thread. */
typedef void (*pool_fn)(void *arg, uint32_t part_i, uint32_t n_parts);

/* Called once on every new thread before its first part (to bind it); never on the caller. */
typedef void (*pool_thread_start)(void *arg);

/* n_threads in all, the caller among them: n_threads - 1 are started, named "memra-cpu-i". start
 * may be NULL. ST_RESOURCES: a thread could not be started, *e says which and why; none is left. */
MUST_USE status pool_open(pool **out, uint32_t n_threads, pool_thread_start start, void *start_arg,
                          errmsg *e);

/* End and join all threads. NULL is legal. */
void pool_close(pool *p);

uint32_t pool_n_threads(const pool *p);

/* Run fn as n_parts parts, 1 <= n_parts <= n_threads; with 1 part nobody is woken. Returns when all
 * parts have ended, and what they wrote is then visible to the caller. One caller at a time; fn
 * must not call pool_run. */
void pool_run(pool *p, pool_fn fn, void *arg, uint32_t n_parts);

/* The range [*begin, *end) of part part_i when n items are cut into n_parts runs of whole units. */
static inline void pool_range(uint64_t n, uint64_t unit, uint32_t part_i, uint32_t n_parts,
                              uint64_t *begin, uint64_t *end)
{
    uint64_t n_units = (n + unit - 1) / unit;
    uint64_t b = n_units * part_i / n_parts * unit, e = n_units * (part_i + 1) / n_parts * unit;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
