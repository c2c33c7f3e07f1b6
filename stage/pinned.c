#include "stage/pinned.h"

#include "common/log.h"
#include "kernels/peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STEP_BYTES (256ull << 10) /* pages made at a time: others of the process may want some meanwhile */

struct pinned {
    const backend *b;
    backend_queue *q;
    char *map;
    uint64_t bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t goal;          /* under lock; at most bytes */
    _Atomic bool stop;      /* set under lock */
    _Atomic uint64_t end;   /* whole pieces, or bytes */
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The next piece. False: that was the last that can be had. */
static bool pin_piece(pinned *p)
{
    uint64_t at = atomic_load_explicit(&p->end, memory_order_relaxed);
    uint64_t end = least(at + PINNED_PIECE_BYTES, p->bytes);
    errmsg e = {0};
    for (uint64_t i = at; i < end; i += STEP_BYTES) {
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return false;
        (void)madvise(p->map + i, least(STEP_BYTES, end - i), MADV_POPULATE_WRITE); /* or pinning does it */
    }
    if (p->b->peer->host_pin(p->q, p->map + at, end - at, &e) != ST_OK) {
        log_debug("rows go to the journal by way of other memory from byte %llu on: %s", (unsigned long long)at, e.text);
        return false;
    }
    atomic_store_explicit(&p->end, end, memory_order_release);
    return true;
}

static void *pin_all(void *arg)
{
    pinned *p = arg;
    pthread_setname_np(pthread_self(), "pin");
    bool goes_on = true;
    while (goes_on && atomic_load_explicit(&p->end, memory_order_relaxed) < p->bytes) {
        pthread_mutex_lock(&p->lock);
        while (!atomic_load(&p->stop) && p->goal <= atomic_load(&p->end)) pthread_cond_wait(&p->more, &p->lock);
        goes_on = !atomic_load(&p->stop);
        pthread_mutex_unlock(&p->lock);
        goes_on = goes_on && pin_piece(p);
    }
    return NULL;
}

status pinned_open(pinned **out, const backend *b, backend_queue *q, void *map, uint64_t bytes, errmsg *e)
{
    *out = NULL;
    if (b->peer == NULL) return ST_OK;
    pinned *p = calloc(1, sizeof *p);
    if (p == NULL) return errmsg_set(e, ST_RESOURCES, "no memory to pin a journal with");
    p->b = b;
    p->q = q;
    p->map = map;
    p->bytes = bytes;
    p->goal = least(PINNED_AHEAD_BYTES, bytes);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    int rc = pthread_create(&p->thread, NULL, pin_all, p);
    if (rc != 0) {
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->more);
        free(p);
        return errmsg_set(e, ST_RESOURCES, "cannot start the thread that pins a journal: %s", strerror(rc));
    }
    *out = p;
    return ST_OK;
}

void pinned_close(pinned *p)
{
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    for (uint64_t at = 0; at < atomic_load(&p->end); at += PINNED_PIECE_BYTES)
        p->b->peer->host_unpin(p->q, p->map + at);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->more);
    free(p);
}

void pinned_use(pinned *p, uint64_t end)
{
    if (p == NULL) return;
    uint64_t goal = least(end + PINNED_AHEAD_BYTES, p->bytes);
    if (goal <= atomic_load_explicit(&p->end, memory_order_relaxed)) return;
    pthread_mutex_lock(&p->lock);
    if (goal > p->goal) p->goal = goal;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

uint64_t pinned_end(const pinned *p)
{
    return p == NULL ? 0 : atomic_load_explicit(&p->end, memory_order_acquire);
}
