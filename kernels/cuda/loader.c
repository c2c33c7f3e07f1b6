/* A ring of pieces between one that puts and threads that take; each thread has two buffers and
 * fills one while the other is on the bus. The ring is long, so that who puts can do something slow
 * meanwhile (a table's registration). */
#include "kernels/cuda/loader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING 512u

_Static_assert(LOADER_BYTES == PLAN_CUDA_LOADER_BYTES,
               "what a loader allocates is what is planned");

typedef struct {
    loader *l;
    pthread_t thread;
    bool started;
    cudaStream_t stream;
    cudaEvent_t free[2]; /* the buffer's copy and repacking are done */
    char *host, *device; /* [2] pieces each */
    status result;
    errmsg why;
} worker;

struct loader {
    backend_device *d;
    const file_part *parts;
    uint32_t n_parts, n_workers;
    worker worker[LOADER_THREADS_MAX];
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t came, room;
    load_piece ring[RING];
    uint32_t first, n;
    bool closed;
};

static bool take(loader *l, load_piece *out)
{
    pthread_mutex_lock(&l->lock);
    while (l->n == 0 && !l->closed)
        pthread_cond_wait(&l->came, &l->lock);
    bool got = l->n > 0;
    if (got) {
        *out = l->ring[l->first];
        l->first = (l->first + 1) % RING;
        l->n--;
        pthread_cond_signal(&l->room);
    }
    pthread_mutex_unlock(&l->lock);
    return got;
}

void loader_put(loader *l, const load_piece *p)
{
    CHECK(p->bytes <= LOADER_PIECE_BYTES);
    pthread_mutex_lock(&l->lock);
    while (l->n == RING)
        pthread_cond_wait(&l->room, &l->lock);
    l->ring[(l->first + l->n++) % RING] = *p;
    pthread_cond_signal(&l->came);
    pthread_mutex_unlock(&l->lock);
}

/* The part that a piece lies in; NULL: it lies in memory alone. */
static const file_part *part_of(const loader *l, const load_piece *p)
{
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const file_part *x = &l->parts[i];
        uint64_t at = (uint64_t)((uintptr_t)p->from - (uintptr_t)x->map);
        if (at < x->bytes && p->bytes <= x->bytes - at) return x;
    }
    return NULL;
}

static status read_in(const worker *w, char *to, const load_piece *p, errmsg *e)
{
    const file_part *x = part_of(w->l, p);
    if (x == NULL) {
        memcpy(to, p->from, p->bytes);
        return ST_OK;
    }
    uint64_t at = x->offset + (uint64_t)((uintptr_t)p->from - (uintptr_t)x->map), done = 0;
    while (done < p->bytes) {
        ssize_t n = pread(x->fd, to + done, p->bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: weights cannot be read at %llu of the model file: %s",
                              w->l->d->name, (unsigned long long)(at + done),
                              n == 0 ? "it is cut short" : strerror(errno));
        }
        done += (uint64_t)n;
    }
    return ST_OK;
}

static status send(worker *w, const load_piece *p, uint32_t i, errmsg *e)
{
    const backend_device *d = w->l->d;
    TRY_CUDA(d, cudaEventSynchronize(w->free[i]), e);
    char *host = w->host + i * LOADER_PIECE_BYTES, *device = w->device + i * LOADER_PIECE_BYTES;
    TRY(read_in(w, host, p, e));
    void *to = p->form == FORM_ROWS ? p->to : device;
    TRY_CUDA(d, cudaMemcpyAsync(to, host, p->bytes, cudaMemcpyHostToDevice, w->stream), e);
    if (p->form != FORM_ROWS) {
        TRY_CUDA(
            d, cuda_repack(w->stream, p->to, p->form, to, p->type, p->n_in, p->n_rows, p->max_bits),
            e);
    }
    TRY_CUDA(d, cudaEventRecord(w->free[i], w->stream), e);
    return ST_OK;
}

/* Memory whose pages are there is pinned in a tenth of the time that the driver takes to make
 * pinned memory, and all threads' pages are made at once. */
static status pin_pieces(worker *w, errmsg *e)
{
    const backend_device *d = w->l->d;
    char *host = aligned_alloc(PLAN_CUDA_PAGE_BYTES, 2 * LOADER_PIECE_BYTES);
    if (host == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory to load weights", d->name);
    (void)madvise(host, 2 * LOADER_PIECE_BYTES, MADV_HUGEPAGE);
    (void)madvise(host, 2 * LOADER_PIECE_BYTES, MADV_POPULATE_WRITE); /* or pinning does it */
    status s = cuda_result(d, cudaHostRegister(host, 2 * LOADER_PIECE_BYTES,
                                               cudaHostRegisterDefault), "cudaHostRegister", e);
    if (s != ST_OK)
        free(host);
    else
        w->host = host;
    return s;
}

static status begin(worker *w, errmsg *e)
{
    const backend_device *d = w->l->d;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY(pin_pieces(w, e));
    TRY_CUDA(d, cudaMalloc((void **)&w->device, 2 * LOADER_PIECE_BYTES), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), e);
    for (uint32_t i = 0; i < 2; i++)
        TRY_CUDA(d, cudaEventCreateWithFlags(&w->free[i], cudaEventDisableTiming), e);
    return ST_OK;
}

static void end(worker *w)
{
    if (w->result == ST_OK)
        w->result = cuda_result(w->l->d, cudaStreamSynchronize(w->stream), "cudaStreamSynchronize",
                                &w->why);
    for (uint32_t i = 0; i < 2; i++)
        if (w->free[i] != NULL) (void)cudaEventDestroy(w->free[i]);
    if (w->stream != NULL) (void)cudaStreamDestroy(w->stream);
    if (w->host != NULL) (void)cudaHostUnregister(w->host);
    free(w->host);
    (void)cudaFree(w->device);
}

/* One that has failed leaves out what it takes. */
static void *work(void *arg)
{
    worker *w = arg;
    load_piece p;
    w->result = begin(w, &w->why);
    for (uint32_t i = 0; take(w->l, &p); i ^= 1)
        if (w->result == ST_OK) w->result = send(w, &p, i, &w->why);
    end(w);
    return NULL;
}

static status start_all(loader *l, errmsg *e)
{
    for (uint32_t i = 0; i < l->n_workers; i++) {
        worker *w = &l->worker[i];
        w->l = l;
        int error = pthread_create(&w->thread, NULL, work, w);
        w->started = error == 0;
        if (!w->started) {
            return errmsg_set(e, ST_RESOURCES,
                              "%s: a thread that loads weights cannot be started: %s", l->d->name,
                              strerror(error));
        }
    }
    return ST_OK;
}

status loader_open(loader **out, backend_device *d, uint32_t n_threads, const file_part *parts,
                   uint32_t n_parts, errmsg *e)
{
    *out = NULL;
    loader *l = calloc(1, sizeof *l);
    if (l == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory to load weights", d->name);
    l->d = d;
    l->parts = parts;
    l->n_parts = n_parts;
    l->n_workers = n_threads < LOADER_THREADS_MAX ? n_threads : LOADER_THREADS_MAX;
    if (l->n_workers == 0) l->n_workers = 1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->came, NULL);
    pthread_cond_init(&l->room, NULL);
    status s = start_all(l, e);
    if (s != ST_OK) {
        errmsg ignored = {0};
        (void)loader_close(l, &ignored);
        return s;
    }
    *out = l;
    return ST_OK;
}

status loader_close(loader *l, errmsg *e)
{
    status s = ST_OK;
    if (l == NULL) return ST_OK;
    pthread_mutex_lock(&l->lock);
    l->closed = true;
    pthread_cond_broadcast(&l->came);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < l->n_workers; i++) {
        worker *w = &l->worker[i];
        if (w->started) pthread_join(w->thread, NULL);
        if (s == ST_OK && w->result != ST_OK) s = errmsg_set(e, w->result, "%s", w->why.text);
    }
    pthread_cond_destroy(&l->came);
    pthread_cond_destroy(&l->room);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return s;
}
