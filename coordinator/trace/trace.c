#include "coordinator/trace/trace_impl.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS (10 * NS_PER_MS)
#define FLUSH_BYTES (256u << 10)

static const char head[] =
    "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\"},"
    "\"traceEvents\":[";
static const char tail[] = "\n]}\n";

struct trace {
    pthread_mutex_t lock;        /* runs, and what the writing thread uses */
    pthread_cond_t wake;
    pthread_t thread;
    bool closing;
    int fd;                      /* -1: writing failed */
    char *path;
    uint64_t begin_ns;
    uint64_t n_bytes;            /* of the file without its tail */
    trace_text text;
    trace_run *runs;
    uint32_t n_runs;             /* of all time */
};

/* --- the file --------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *at, uint64_t n, uint64_t offset)
{
    while (n > 0) {
        ssize_t done = pwrite(fd, at, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        offset += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return true;
}

/* What was put, over the tail of what is there, and the tail again. Where that has no room the file
 * ends as it did before. */
static void flush(trace *t)
{
    uint64_t n = t->text.n;
    if (n == 0 || t->fd < 0) {
        t->text.n = 0;
        return;
    }
    trace_text_put(&t->text, tail, sizeof tail - 1);
    bool ok = !t->text.failed && write_all(t->fd, t->text.at, t->text.n, t->n_bytes);
    const char *why = t->text.failed ? "no memory" : strerror(errno);
    t->text.n = 0;
    if (ok) {
        t->n_bytes += n;
        return;
    }
    log_warn("--trace %s: %s; the trace ends here, the run goes on (exit code 4 in the end)",
             t->path, why);
    if (ftruncate(t->fd, (off_t)t->n_bytes) != 0 ||
        !write_all(t->fd, tail, sizeof tail - 1, t->n_bytes))
        log_warn("--trace %s: its end could not be written: %s", t->path, strerror(errno));
    close(t->fd);
    t->fd = -1;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* What is in the rings of r. Lock held. */
static void drain(trace *t, trace_run *r)
{
    for (uint32_t i = 0; i < r->block->n_rings; i++) {
        trace_ring *ring = &r->block->ring[i];
        trace_event ev;
        /* No more than one ring's fill at a time: its writer does not wait for us. */
        for (uint32_t k = 0; k < TRACE_RING_EVENTS && trace_take(ring, &ev); k++) {
            trace_json_event(&t->text, r, t->begin_ns, i, &ev);
            if (t->text.n >= FLUSH_BYTES) flush(t);
        }
        uint64_t dropped = atomic_load_explicit(&ring->n_dropped, memory_order_relaxed);
        if (dropped != r->dropped_seen[i]) trace_json_dropped(&t->text, r, t->begin_ns, i, dropped);
        r->dropped_seen[i] = dropped;
    }
}

static void *write_main(void *trace_)
{
    trace *t = trace_;
    pthread_setname_np(pthread_self(), "trace");
    pthread_mutex_lock(&t->lock);
    while (!t->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)LOOK_NS;
        until.tv_sec += until.tv_nsec / (long)NS_PER_S;
        until.tv_nsec %= (long)NS_PER_S;
        pthread_cond_timedwait(&t->wake, &t->lock, &until);
        for (trace_run *r = t->runs; r != NULL; r = r->next) drain(t, r);
        flush(t);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* --- open and close --------------------------------------------------------------------------- */

static status open_file(trace *t, const char *path, errmsg *e)
{
    struct stat st;
    t->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0 || fstat(t->fd, &st) != 0)
        return errmsg_set(e, ST_RESOURCES, "--trace %s cannot be written: %s", path,
                          strerror(errno));
    if (!S_ISREG(st.st_mode))
        return errmsg_set(e, ST_RESOURCES,
                          "--trace %s: no regular file, and it is written in place", path);
    if (flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return errmsg_set(e, ST_RESOURCES,
                          "--trace %s is being written by another run: name another file", path);
    if (ftruncate(t->fd, 0) != 0 || !write_all(t->fd, head, sizeof head - 1, 0) ||
        !write_all(t->fd, tail, sizeof tail - 1, sizeof head - 1))
        return errmsg_set(e, ST_RESOURCES, "--trace %s cannot be written: %s", path,
                          strerror(errno));
    t->n_bytes = sizeof head - 1;
    return ST_OK;
}

static void release(trace *t)
{
    if (t->fd >= 0) close(t->fd);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t->text.at);
    free(t->path);
    free(t);
}

static void make_wake(trace *t)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

status trace_open(trace **out, const char *path, errmsg *e)
{
    *out = NULL;
    trace *t = calloc(1, sizeof *t);
    if (t == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a trace");
    t->fd = -1;
    t->begin_ns = now_ns();
    pthread_mutex_init(&t->lock, NULL);
    make_wake(t);
    t->path = strdup(path);
    status s = t->path != NULL ? open_file(t, path, e)
                               : errmsg_set(e, ST_RESOURCES, "no memory for a trace");
    if (s == ST_OK && pthread_create(&t->thread, NULL, write_main, t) != 0)
        s = errmsg_set(e, ST_RESOURCES, "cannot start the trace's thread");
    if (s != ST_OK) {
        release(t);
        return s;
    }
    *out = t;
    return ST_OK;
}

bool trace_close(trace *t)
{
    if (t == NULL) return true;
    pthread_mutex_lock(&t->lock);
    CHECK(t->runs == NULL);
    t->closing = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    flush(t);
    bool whole = t->fd >= 0;
    release(t);
    return whole;
}

/* --- one pipeline ----------------------------------------------------------------------------- */

static void free_run(trace_run *r)
{
    trace_block_unmap(r->block);
    if (r->fd >= 0) close(r->fd);
    free(r->boundary);
    free(r);
}

status trace_begin(trace_run **out, trace *t, const plan *p, const char *model, errmsg *e)
{
    const uint32_t n_stages = p->cuts.n_stages;
    *out = NULL;
    trace_run *r = calloc(1, sizeof *r);
    if (r == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a trace");
    r->t = t;
    r->plan = *p;
    r->fd = -1;
    if (n_stages > 1) r->boundary = calloc(n_stages, sizeof *r->boundary);
    status s = n_stages > 1 && r->boundary == NULL
                   ? errmsg_set(e, ST_RESOURCES, "no memory for a trace")
                   : trace_block_create(&r->block, &r->fd, n_stages + 1, e);
    if (s != ST_OK) {
        free_run(r);
        return s;
    }
    pthread_mutex_lock(&t->lock);
    r->pid = ++t->n_runs;
    r->next = t->runs;
    t->runs = r;
    trace_json_names(&t->text, r, model);
    pthread_mutex_unlock(&t->lock);
    *out = r;
    return ST_OK;
}

int trace_fd(const trace_run *r)
{
    return r != NULL ? r->fd : 0;
}

trace_ring *trace_engine(const trace_run *r)
{
    return r != NULL ? &r->block->ring[r->plan.cuts.n_stages] : NULL;
}

void trace_end(trace_run *r)
{
    if (r == NULL) return;
    trace *t = r->t;
    pthread_mutex_lock(&t->lock);
    drain(t, r);
    flush(t);
    trace_run **at = &t->runs;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    pthread_mutex_unlock(&t->lock);
    free_run(r);
}
