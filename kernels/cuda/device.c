/* The cuda table: device, memory, streams, events, copies. Ops are in ops.c, weights in weight.c.
 */
#include "kernels/cuda/device.h"
#include "common/amount.h"

#include "common/log.h"
#include "kernels/cuda/loan.h"
#include "kernels/cuda/peer.h"
#include "kernels/cuda/walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *name_of(const backend_device *d)
{
    return d != NULL && d->name[0] != '\0' ? d->name : "cuda";
}

status cuda_result(const backend_device *d, cudaError_t error, const char *call, errmsg *e)
{
    if (error == cudaSuccess) return ST_OK;
    const char *paren = strchr(call, '(');
    int n = paren != NULL ? (int)(paren - call) : (int)strlen(call);
    status code = error == cudaErrorMemoryAllocation ? ST_RESOURCES : ST_DEVICE;
    if (e != NULL)
        return errmsg_set(e, code, "%s: %.*s: %s (%s)", name_of(d), n, call,
                          cudaGetErrorString(error), cudaGetErrorName(error));
    log_error("%s: %.*s: %s (%s)", name_of(d), n, call, cudaGetErrorString(error),
              cudaGetErrorName(error));
    if (d != NULL && d->failure[0] == '\0')
        snprintf(d->failure, CUDA_FAILURE_BYTES, "%.*s: %s (%s)", n, call,
                 cudaGetErrorString(error), cudaGetErrorName(error));
    return code;
}

status cuda_enter(backend_queue *q)
{
    const backend_device *d = q->device;
    q->prepared_rows = 0;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), NULL);
    return ST_OK;
}

/* --- device --------------------------------------------------------------------------------- */

static void uuid_text(char out[BACKEND_UUID_BYTES], const cudaUUID_t *u)
{
    char *at = out + sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned)(unsigned char)u->bytes[i]);
}

static status fill_info(backend_gpu *out, int ordinal, errmsg *e)
{
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total = 0;
    int mode = cudaComputeModeDefault, mps = 0;
    TRY_CUDA(NULL, cudaGetDeviceProperties(&p, ordinal), e);
    TRY_CUDA(NULL, cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, ordinal), e);
    TRY_CUDA(NULL, cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, ordinal), e);
    if (mode == cudaComputeModeDefault) { /* otherwise it may be another's */
        TRY_CUDA(NULL, cudaSetDevice(ordinal), e);
        TRY_CUDA(NULL, cudaMemGetInfo(&free_bytes, &total), e);
    }
    *out = (backend_gpu){.ordinal = (uint32_t)ordinal,
                         .major = (uint32_t)p.major,
                         .minor = (uint32_t)p.minor,
                         .memory_bytes = p.totalGlobalMem,
                         .memory_free_bytes = free_bytes,
                         .exclusive = mode != cudaComputeModeDefault,
                         .mps = mps != 0};
    uuid_text(out->uuid, &p.uuid);
    snprintf(out->name, sizeof out->name, "%s", p.name);
    return ST_OK;
}

static int count_devices(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

status backend_gpus(backend_gpu *out, uint32_t n_max, uint32_t *n, errmsg *e)
{
    int there = count_devices();
    *n = 0;
    for (int i = 0; i < there && *n < n_max; i++) {
        TRY(fill_info(&out[*n], i, e));
        ++*n;
    }
    return ST_OK;
}

static status find_ordinal(int *out, const device_spec *s, errmsg *e)
{
    int n = count_devices();
    if (n == 0) return errmsg_set(e, ST_RESOURCES, "cuda: no CUDA device here (or no driver)");
    if (s->cuda_uuid == NULL || s->cuda_uuid[0] == '\0') {
        *out = (int)s->cuda_index;
        if (s->cuda_index < (uint32_t)n) return ST_OK;
        return errmsg_set(e, ST_RESOURCES, "cuda: no device %u: there %s %d, from 0", s->cuda_index,
                          n == 1 ? "is" : "are", n);
    }
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp p;
        char uuid[BACKEND_UUID_BYTES];
        TRY_CUDA(NULL, cudaGetDeviceProperties(&p, i), e);
        uuid_text(uuid, &p.uuid);
        *out = i;
        if (strcmp(uuid, s->cuda_uuid) == 0) return ST_OK;
    }
    return errmsg_set(e, ST_RESOURCES, "cuda: no device %s among the %d here", s->cuda_uuid, n);
}

static void device_close(backend_device *d)
{
    if (d == NULL) return;
    (void)cudaSetDevice(d->ordinal);
    cuda_weights_close(d);
    for (uint32_t i = 0; i < CUDA_EVENTS; i++)
        if (d->event[i] != NULL) (void)cudaEventDestroy(d->event[i]);
    free(d->failure);
    free(d);
}

static status open_all(backend_device *d, errmsg *e)
{
    struct cudaDeviceProp p;
    TRY_CUDA(d, cudaGetDeviceProperties(&p, d->ordinal), e);
    snprintf(d->name, sizeof d->name, "cuda:%d %.40s, sm_%d%d", d->ordinal, p.name, p.major,
             p.minor);
    if (p.major != 9 || p.minor != 0) {
        return errmsg_set(e, ST_RESOURCES,
                          "%s: the kernels of this build need compute capability 9.0", d->name);
    }
    d->n_sms = d->prompt.n_sms = (uint32_t)p.multiProcessorCount;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (uint32_t i = 0; i < CUDA_EVENTS; i++)
        TRY_CUDA(d, cudaEventCreateWithFlags(&d->event[i], cudaEventDisableTiming), e);
    TRY_CUDA(d, cuda_matmul_setup(), e);
    TRY_CUDA(d, cuda_matmul_rows_setup(), e);
    TRY_CUDA(d, cuda_prompt_setup(&d->prompt), e);
    TRY_CUDA(d, cuda_attention_prompt_setup(), e);
    TRY_CUDA(d, cuda_walk_setup(), e);
    TRY_CUDA(d, cuda_sample_setup(), e);
    return ST_OK;
}

static status device_open(backend_device **out, const device_spec *s, errmsg *e)
{
    int ordinal;
    *out = NULL;
    TRY(find_ordinal(&ordinal, s, e));
    backend_device *d = calloc(1, sizeof *d);
    if (d != NULL) d->failure = calloc(1, CUDA_FAILURE_BYTES);
    if (d == NULL || d->failure == NULL) {
        free(d);
        return errmsg_set(e, ST_RESOURCES, "cuda: no memory for the device");
    }
    d->ordinal = ordinal;
    d->n_threads = s->n_threads;
    status st = open_all(d, e);
    if (st != ST_OK) {
        device_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

static const char *device_name(const backend_device *d)
{
    return d->name;
}

static bool supports(const backend_device *d, op_kind op, dtype t)
{
    (void)d;
    switch (op) {
    case OP_EMBED:
    case OP_MATMUL:
        return cuda_weight_type(t);
    default:
        return backend_takes(op, t);
    }
}

static status device_alloc(backend_device *d, dev_ptr *out, uint64_t bytes, errmsg *e)
{
    *out = (dev_ptr){0};
    if (bytes == 0) return ST_OK;
    void *p = NULL;
    size_t free_bytes = 0, total = 0;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* not sticky: the context lives on */
        (void)cudaMemGetInfo(&free_bytes, &total);
        return errmsg_set(e, ST_RESOURCES, "%s: %s cannot be had: %s of %s are free", d->name,
                          amount_said(bytes), amount_said(free_bytes), amount_said(total));
    }
    TRY_CUDA(d, error, e);
    out->addr = (uintptr_t)p;
    d->allocated_bytes += bytes;
    TRY_CUDA(d, cudaMemset(p, 0, bytes), e);
    TRY_CUDA(d, cudaStreamSynchronize(0), e);
    return ST_OK;
}

static void device_free(backend_device *d, dev_ptr p, uint64_t bytes)
{
    (void)cudaSetDevice(d->ordinal);
    (void)cudaFree(cuda_address(p));
    d->allocated_bytes -= bytes;
}

static status device_memory(backend_device *d, uint64_t *free_bytes, uint64_t *allocated_bytes,
                            errmsg *e)
{
    size_t now = 0, total = 0;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_CUDA(d, cudaMemGetInfo(&now, &total), e);
    *free_bytes = now;
    *allocated_bytes = d->allocated_bytes;
    return ST_OK;
}

static const char *failure(const backend_queue *q)
{
    return q->device->failure;
}

static status host_alloc(backend_device *d, void **out, uint64_t bytes, errmsg *e)
{
    *out = NULL;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_CUDA(d, cudaHostAlloc(out, bytes > 0 ? bytes : 1, cudaHostAllocDefault), e);
    memset(*out, 0, bytes);
    return ST_OK;
}

static void host_free(backend_device *d, void *host)
{
    (void)cudaSetDevice(d->ordinal);
    if (host != NULL) (void)cudaFreeHost(host);
}

/* --- queues --------------------------------------------------------------------------------- */

static void queue_close(backend_queue *q)
{
    if (q == NULL) return;
    (void)cudaSetDevice(q->device->ordinal);
    if (q->stream != NULL) {
        (void)cudaStreamSynchronize(q->stream);
        (void)cudaStreamDestroy(q->stream);
    }
    if (q->beside != NULL) {
        (void)cudaStreamSynchronize(q->beside);
        (void)cudaStreamDestroy(q->beside);
    }
    (void)cudaFree(q->prepared);
    (void)cudaFree(q->exponents);
    (void)cudaFree(q->expanded);
    (void)cudaFree(q->partial);
    free(q);
}

#define PAGES(bytes) (((bytes) + PLAN_CUDA_PAGE_BYTES - 1) / PLAN_CUDA_PAGE_BYTES * PLAN_CUDA_PAGE_BYTES)
_Static_assert(PLAN_CUDA_QUEUE_BYTES == PAGES(CUDA_PREPARED_BYTES) + PAGES(CUDA_EXPANDED_BYTES) +
                                            PAGES(CUDA_PARTIAL_BYTES) +
                                            PAGES(CUDA_PREPARED_ROWS * sizeof(int32_t)),
               "what queue_fill allocates is what is planned");

static status queue_fill(backend_queue *q, errmsg *e)
{
    const backend_device *d = q->device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&q->beside, cudaStreamNonBlocking), e);
    TRY_CUDA(d, cudaMalloc(&q->prepared, CUDA_PREPARED_BYTES), e);
    TRY_CUDA(d, cudaMalloc((void **)&q->exponents, CUDA_PREPARED_ROWS * sizeof(int32_t)), e);
    TRY_CUDA(d, cudaMalloc(&q->expanded, CUDA_EXPANDED_BYTES), e);
    TRY_CUDA(d, cudaMalloc((void **)&q->partial, CUDA_PARTIAL_BYTES), e);
    return ST_OK;
}

static status queue_open(backend_device *d, backend_queue **out, errmsg *e)
{
    *out = NULL;
    backend_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return errmsg_set(e, ST_RESOURCES, "cuda: no memory for a queue");
    q->device = d;
    status st = queue_fill(q, e);
    if (st != ST_OK) {
        queue_close(q);
        return st;
    }
    *out = q;
    return ST_OK;
}

static status copy_bytes(backend_queue *q, void *to, const void *from, uint64_t bytes)
{
    TRY(cuda_enter(q));
    if (bytes == 0) return ST_OK;
    return cuda_result(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream),
                       "cudaMemcpyAsync", NULL);
}

static status upload(backend_queue *q, dev_ptr to, const void *host, uint64_t bytes)
{
    return copy_bytes(q, cuda_address(to), host, bytes);
}

static status download(backend_queue *q, void *host, dev_ptr from, uint64_t bytes)
{
    return copy_bytes(q, host, cuda_address(from), bytes);
}

static status copy(backend_queue *q, dev_ptr to, dev_ptr from, uint64_t bytes)
{
    return copy_bytes(q, cuda_address(to), cuda_address(from), bytes);
}

/* Few bytes travel with a launch: one call instead of n, and the copy engine is left alone. */
static bool pack(cuda_parcels *to, const upload_piece *piece, uint32_t n)
{
    uint64_t bytes = 0;
    to->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (piece[i].bytes == 0) continue;
        if (to->n == PARCELS_MAX || piece[i].bytes > PARCEL_BYTES - bytes) return false;
        memcpy(to->data + bytes, piece[i].host, piece[i].bytes);
        to->piece[to->n].to = cuda_address(piece[i].to);
        to->piece[to->n].at = (uint32_t)bytes;
        to->piece[to->n++].bytes = (uint32_t)piece[i].bytes;
        bytes += piece[i].bytes;
    }
    return true;
}

static status upload_all(backend_queue *q, const upload_piece *piece, uint32_t n)
{
    cuda_parcels p;
    if (!pack(&p, piece, n)) {
        for (uint32_t i = 0; i < n; i++)
            TRY(upload(q, piece[i].to, piece[i].host, piece[i].bytes));
        return ST_OK;
    }
    if (p.n == 0) return ST_OK;
    TRY(cuda_enter(q));
    return cuda_result(q->device, cuda_launch_put(q->stream, &p), "cuda_launch_put", NULL);
}

/* --- events: a ring; one that comes round again has been done for long ----------------------- */

static uint32_t place_of(backend_event ev)
{
    return (uint32_t)(ev.value % CUDA_EVENTS);
}

/* The ring still holds the event. If not, it was done before its place was taken. */
static bool is_held(const backend_device *d, backend_event ev)
{
    return atomic_load_explicit(&d->event_value[place_of(ev)], memory_order_acquire) == ev.value;
}

static status record_on(backend_device *d, cudaStream_t stream, backend_event *out)
{
    backend_event ev = {d->n_events + 1};
    uint32_t i = place_of(ev);
    TRY_CUDA(d, cudaSetDevice(d->ordinal), NULL);
    if (ev.value > CUDA_EVENTS) TRY_CUDA(d, cudaEventSynchronize(d->event[i]), NULL);
    TRY_CUDA(d, cudaEventRecord(d->event[i], stream), NULL);
    d->n_events++;
    atomic_store_explicit(&d->event_value[i], ev.value, memory_order_release);
    *out = ev;
    return ST_OK;
}

static status event_record(backend_queue *q, backend_event *out)
{
    return record_on(q->device, q->stream, out);
}

static status drain(backend_queue *q, void *host, dev_ptr from, uint64_t bytes, backend_event *done)
{
    backend_device *d = q->device;
    backend_event here;
    TRY(event_record(q, &here));
    TRY_CUDA(d, cudaStreamWaitEvent(q->beside, d->event[place_of(here)], 0), NULL);
    TRY_CUDA(d, cudaMemcpyAsync(host, cuda_address(from), bytes, cudaMemcpyDeviceToHost, q->beside),
             NULL);
    return record_on(d, q->beside, done);
}

static status queue_wait(backend_queue *q, backend_event ev)
{
    backend_device *d = q->device;
    CHECK(ev.value <= d->n_events);
    TRY_CUDA(d, cudaSetDevice(d->ordinal), NULL);
    if (!is_held(d, ev)) return ST_OK;
    return cuda_result(d, cudaStreamWaitEvent(q->stream, d->event[place_of(ev)], 0),
                       "cudaStreamWaitEvent", NULL);
}

static status event_wait(backend_queue *q, backend_event ev)
{
    backend_device *d = q->device;
    CHECK(ev.value <= d->n_events);
    TRY_CUDA(d, cudaSetDevice(d->ordinal), NULL);
    if (!is_held(d, ev)) return ST_OK;
    return cuda_result(d, cudaEventSynchronize(d->event[place_of(ev)]), "cudaEventSynchronize",
                       NULL);
}

/* Any thread: between the look and the query the place may be taken again, and then ev is done. */
static bool event_done(backend_queue *q, backend_event ev)
{
    const backend_device *d = q->device;
    if (!is_held(d, ev)) return true;
    return cudaEventQuery(d->event[place_of(ev)]) == cudaSuccess || !is_held(d, ev);
}

const backend *backend_cuda(void)
{
    static const backend table = {
        .name = "cuda",
        .device_open = device_open,
        .device_close = device_close,
        .device_name = device_name,
        .supports = supports,
        .alloc = device_alloc,
        .free = device_free,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .weights_from_host = cuda_weights_from_host,
        .weight_open = cuda_weight_open,
        .weights_begin = cuda_weights_begin,
        .weights_end = cuda_weights_end,
        .table_open = cuda_table_open,
        .queue_open = queue_open,
        .queue_close = queue_close,
        .upload = upload,
        .download = download,
        .copy = copy,
        .upload_all = upload_all,
        .drain = drain,
        .event_record = event_record,
        .queue_wait = queue_wait,
        .event_wait = event_wait,
        .event_done = event_done,
        .embed = cuda_embed,
        .rms_norm = cuda_rms_norm,
        .matmul = cuda_matmul,
        .matmuls = cuda_matmuls,
        .add_rms_norm = cuda_add_rms_norm,
        .turn_attention = cuda_turn_attention,
        .ffn = cuda_ffn,
        .rope_angles = cuda_rope_angles,
        .rope = cuda_rope,
        .kv_write = cuda_kv_write,
        .attention = cuda_attention,
        .silu_mul = cuda_silu_mul,
        .gelu_mul = cuda_gelu_mul,
        .add = cuda_add,
        .check_finite = cuda_check_finite,
        .sample = cuda_sample,
        .kv_copy_block = cuda_kv_copy_block,
        .kv_wipe_block = cuda_kv_wipe_block,
        .weight_bytes = cuda_form_bytes,
        .memory = device_memory,
        .failure = failure,
        .peer = &cuda_peer_table,
        .loan = &cuda_loan_table,
        .walk_open = cuda_walk_open,
        .walk_close = cuda_walk_close,
        .walk = cuda_walk,
    };
    return &table;
}
