/* A boundary over NCCL: one communicator of two ranks, the sender 0 and the receiver 1, not blocking,
 * on a stream of its own, so that the stage's queue never stands behind a peer that does not come.
 *
 * NCCL is loaded when it is asked for (libnccl.so.2, on the loader's path): a build needs neither its
 * headers nor the library. What is declared here is the part of its C interface that is used, stable
 * since version 2.14: the configuration may be given as far as a caller knows it, with the version
 * that it knows. */
#include "common/amount.h"
#include "kernels/cuda/peer.h"

#include "common/clock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define LIBRARY        "libnccl.so.2"
#define READY_NS       (20 * NS_PER_S) /* for both ends to come up */
#define SHM_BYTES_LEAST (32ull << 20)  /* of /dev/shm, for a communicator of two */

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking;
} nccl_config;
#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u /* 2.14: the fields above */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_CHAR = 0 };

typedef struct {
    void *handle;
    char error[200];
    int (*get_unique_id)(ncclUniqueId *);
    int (*init_rank)(ncclComm_t *, int, ncclUniqueId, int, nccl_config *);
    int (*async_error)(ncclComm_t, int *);
    int (*send)(const void *, size_t, int, int, ncclComm_t, cudaStream_t);
    int (*receive)(void *, size_t, int, int, ncclComm_t, cudaStream_t);
    int (*abort)(ncclComm_t);
    const char *(*error_string)(int);
    const char *(*last_error)(ncclComm_t);
} nccl_library;

typedef struct {
    ncclUniqueId id;
    cudaUUID_t device;
} link_blob;
_Static_assert(sizeof(link_blob) <= PEER_BLOB_BYTES, "fits");

struct peer_link {
    backend_queue *q;
    const nccl_library *nccl;
    ncclUniqueId id;
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t queued;       /* what the queue had to do before a call of ours */
    cudaEvent_t came;         /* a receive */
    char *slots;              /* the sender's: rows on their way [PEER_SLOTS, slot_bytes] */
    uint64_t slot_bytes, began_ns;
    bool pending;             /* the last call is not through yet */
    bool recorded;            /* `came`, for the receive under way */
    pthread_mutex_t lock;     /* comm, against link_abort */
    bool aborted;
};

static nccl_library library;
static pthread_once_t library_once = PTHREAD_ONCE_INIT;

static void load_library(void)
{
    nccl_library *l = &library;
    const struct {
        const char *name;
        void *to;
    } calls[] = {
        {"ncclGetUniqueId", &l->get_unique_id}, {"ncclCommInitRankConfig", &l->init_rank},
        {"ncclCommGetAsyncError", &l->async_error}, {"ncclSend", &l->send},
        {"ncclRecv", &l->receive}, {"ncclCommAbort", &l->abort},
        {"ncclGetErrorString", &l->error_string}, {"ncclGetLastError", &l->last_error},
    };
    l->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (l->handle == NULL) {
        snprintf(l->error, sizeof l->error, "%.150s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *f = dlsym(l->handle, calls[i].name);
        memcpy(calls[i].to, &f, sizeof f);
        if (f == NULL) snprintf(l->error, sizeof l->error, "%s lacks %s", LIBRARY, calls[i].name);
    }
}

static status get_library(const nccl_library **out, errmsg *e)
{
    struct statvfs shm;
    pthread_once(&library_once, load_library);
    *out = &library;
    if (library.error[0] != '\0')
        return errmsg_set(e, ST_RESOURCES,
                          "NCCL cannot be used: %s (its directory belongs on LD_LIBRARY_PATH)",
                          library.error);
    if (statvfs("/dev/shm", &shm) != 0) return ST_OK;
    unsigned long long left = (unsigned long long)shm.f_bavail * shm.f_frsize;
    if (left >= SHM_BYTES_LEAST) return ST_OK;
    return errmsg_set(e, ST_RESOURCES,
                      "/dev/shm has %s left and NCCL needs %s: make it larger (of a container: "
                      "--shm-size)",
                      amount_said(left), amount_said(SHM_BYTES_LEAST));
}

/* Lock held or nobody else there yet. */
static status nccl_failed(const peer_link *l, int result, const char *call, errmsg *e)
{
    const char *more = l->comm != NULL ? l->nccl->last_error(l->comm) : "";
    return errmsg_set(e, ST_RESOURCES, "%s: %s: %s%s%.200s", l->q->device->name, call,
                      l->nccl->error_string(result), more[0] != '\0' ? ": " : "", more);
}

static status open_link(backend_queue *q, peer_link **out, int rank, uint64_t slot_bytes, errmsg *e)
{
    const backend_device *d = q->device;
    peer_link *l = calloc(1, sizeof *l);
    *out = l;
    if (l == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    pthread_mutex_init(&l->lock, NULL);
    l->q = q;
    l->rank = rank;
    l->slot_bytes = slot_bytes;
    TRY(get_library(&l->nccl, e));
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), e);
    TRY_CUDA(d, cudaEventCreateWithFlags(&l->queued, cudaEventDisableTiming), e);
    TRY_CUDA(d, cudaEventCreateWithFlags(&l->came, cudaEventDisableTiming), e);
    if (rank != 0) return ST_OK;
    return cuda_may_fail(d, cudaMalloc((void **)&l->slots, PEER_SLOTS * slot_bytes), "cudaMalloc",
                         e);
}

static status begin(peer_link *l, errmsg *e)
{
    nccl_config c = {.size = sizeof c,
                     .magic = NCCL_CONFIG_MAGIC,
                     .version = NCCL_CONFIG_VERSION,
                     .blocking = 0};
    l->began_ns = now_ns();
    int r = l->nccl->init_rank(&l->comm, 2, l->id, l->rank, &c);
    if (r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS) return ST_OK;
    return nccl_failed(l, r, "ncclCommInitRankConfig", e);
}

status cuda_link_offer(backend_queue *q, peer_link **out, uint64_t slot_bytes, peer_blob *offer,
                       errmsg *e)
{
    link_blob blob;
    struct cudaDeviceProp p;
    status s = open_link(q, out, 1, slot_bytes, e);
    if (s == ST_OK) {
        int r = (*out)->nccl->get_unique_id(&(*out)->id);
        if (r != NCCL_SUCCESS) s = nccl_failed(*out, r, "ncclGetUniqueId", e);
    }
    if (s == ST_OK)
        s = cuda_result(q->device, cudaGetDeviceProperties(&p, q->device->ordinal),
                        "cudaGetDeviceProperties", e);
    if (s != ST_OK) {
        cuda_link_close(*out);
        *out = NULL;
        return s;
    }
    blob = (link_blob){(*out)->id, p.uuid};
    offer->bytes = sizeof blob;
    memcpy(offer->data, &blob, sizeof blob);
    return ST_OK;
}

static status accept_blob(peer_link *l, const peer_blob *offer, errmsg *e)
{
    link_blob blob;
    struct cudaDeviceProp p;
    const backend_device *d = l->q->device;
    if (offer->bytes != sizeof blob)
        return errmsg_set(e, ST_RESOURCES, "the offer has another form");
    memcpy(&blob, offer->data, sizeof blob);
    TRY_CUDA(d, cudaGetDeviceProperties(&p, d->ordinal), e);
    if (memcmp(&p.uuid, &blob.device, sizeof p.uuid) == 0)
        return errmsg_set(e, ST_RESOURCES, "NCCL makes no communicator between two stages of one "
                                           "device");
    l->id = blob.id;
    return begin(l, e);
}

status cuda_link_accept(backend_queue *q, peer_link **out, uint64_t slot_bytes,
                        const peer_blob *offer, errmsg *e)
{
    status s = open_link(q, out, 0, slot_bytes, e);
    if (s == ST_OK) s = accept_blob(*out, offer, e);
    if (s != ST_OK) {
        cuda_link_close(*out);
        *out = NULL;
    }
    return s;
}

/* What the communicator is at: NCCL_SUCCESS, NCCL_IN_PROGRESS or an error; aborted is an error. */
static int state_of(peer_link *l)
{
    int state = NCCL_SUCCESS;
    pthread_mutex_lock(&l->lock);
    int r = l->aborted || l->comm == NULL ? 1 : l->nccl->async_error(l->comm, &state);
    pthread_mutex_unlock(&l->lock);
    return r != NCCL_SUCCESS ? r : state;
}

status cuda_link_ready(peer_link *l, errmsg *e)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    if (l->comm == NULL) TRY(begin(l, e));
    int state = state_of(l);
    if (state == NCCL_SUCCESS) return ST_OK;
    if (state != NCCL_IN_PROGRESS) return nccl_failed(l, state, "ncclCommInitRankConfig", e);
    if (now_ns() - l->began_ns > READY_NS)
        return errmsg_set(e, ST_RESOURCES, "%s: NCCL did not come up within %llu s",
                          l->q->device->name, (unsigned long long)(READY_NS / NS_PER_S));
    nanosleep(&pause, NULL);
    return ST_TIMEOUT;
}

/* Our stream goes on after what is on the queue now. */
static status after_queue(peer_link *l)
{
    const backend_device *d = l->q->device;
    TRY_CUDA(d, cudaEventRecord(l->queued, l->q->stream), NULL);
    return cuda_result(d, cudaStreamWaitEvent(l->stream, l->queued, 0), "cudaStreamWaitEvent",
                       NULL);
}

/* The call before is through; ST_TIMEOUT: not yet, ST_CLOSED: aborted, or the other end is gone. */
static status settle(peer_link *l)
{
    if (!l->pending) return ST_OK;
    int state = state_of(l);
    if (state == NCCL_IN_PROGRESS) return ST_TIMEOUT;
    l->pending = false;
    return state == NCCL_SUCCESS ? ST_OK : ST_CLOSED;
}

/* One call on the communicator, begun. */
static status call(peer_link *l, bool sending, void *at, uint64_t bytes)
{
    pthread_mutex_lock(&l->lock);
    int r = l->aborted ? 1
            : sending  ? l->nccl->send(at, bytes, NCCL_CHAR, 1, l->comm, l->stream)
                       : l->nccl->receive(at, bytes, NCCL_CHAR, 0, l->comm, l->stream);
    pthread_mutex_unlock(&l->lock);
    l->pending = r == NCCL_IN_PROGRESS;
    return r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS ? ST_OK : ST_CLOSED;
}

status cuda_link_send(peer_link *l, uint32_t slot, dev_ptr from, uint64_t bytes)
{
    const backend_device *d = l->q->device;
    char *aside = l->slots + slot * l->slot_bytes;
    CHECK(slot < PEER_SLOTS && bytes <= l->slot_bytes);
    TRY(settle(l));
    TRY(cuda_enter(l->q));
    TRY_CUDA(d, cudaMemcpyAsync(aside, cuda_address(from), bytes, cudaMemcpyDefault, l->q->stream),
             NULL);
    TRY(after_queue(l));
    return call(l, true, aside, bytes);
}

status cuda_link_receive(peer_link *l, dev_ptr to, uint64_t bytes)
{
    TRY(settle(l));
    TRY(cuda_enter(l->q));
    TRY(after_queue(l));
    l->recorded = false;
    return call(l, false, cuda_address(to), bytes);
}

status cuda_link_received(peer_link *l, peer_state *out)
{
    const backend_device *d = l->q->device;
    *out = PEER_WAITING;
    status s = settle(l);
    if (s == ST_TIMEOUT) return ST_OK;
    if (s == ST_OK && !l->recorded) {
        TRY_CUDA(d, cudaEventRecord(l->came, l->stream), NULL);
        l->recorded = true;
    }
    cudaError_t seen = s == ST_OK ? cudaEventQuery(l->came) : cudaSuccess;
    if (seen == cudaErrorNotReady && state_of(l) == NCCL_SUCCESS) return ST_OK;
    if (seen != cudaErrorNotReady) TRY(cuda_result(d, seen, "cudaEventQuery", NULL));
    *out = state_of(l) == NCCL_SUCCESS && s == ST_OK ? PEER_VALID : PEER_ABORTED;
    return ST_OK;
}

void cuda_link_abort(peer_link *l)
{
    pthread_mutex_lock(&l->lock);
    if (!l->aborted && l->comm != NULL) {
        (void)cudaSetDevice(l->q->device->ordinal);
        (void)l->nccl->abort(l->comm);
    }
    l->aborted = true;
    pthread_mutex_unlock(&l->lock);
}

void cuda_link_close(peer_link *l)
{
    if (l == NULL) return;
    (void)cudaSetDevice(l->q->device->ordinal);
    cuda_link_abort(l);
    if (l->stream != NULL) {
        (void)cudaStreamSynchronize(l->stream);
        (void)cudaStreamDestroy(l->stream);
    }
    (void)cudaStreamSynchronize(l->q->stream);
    if (l->queued != NULL) (void)cudaEventDestroy(l->queued);
    if (l->came != NULL) (void)cudaEventDestroy(l->came);
    (void)cudaFree(l->slots);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
