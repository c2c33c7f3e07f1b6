/* Boxes and windows: slots on the receiver's device, opened by the sender through CUDA IPC.
 *
 * A box is one allocation of its own (of whole 2 MB pages: what is exported is exported whole):
 *
 *     words [bank][slot], a line each; lanes [bank][slot]; slots [bank][slot]
 *
 * Small messages of spinning ends travel as lines of a lane (signal.h), all others through a slot.
 * A bank's lanes are cleared when its epoch begins: a line's flag is the message's number in its
 * slot.
 *
 * Beside it, and never exported: the outcome of a wait in parts (device), and in host memory that
 * the device writes and reads: a valid word per slot, and the poison. The sender writes words and
 * slots, the receiver's device reads them; nobody waits on memory of another process. */
#include "kernels/cuda/peer.h"

#include "kernels/cuda/signal.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOB_MAGIC  0x584f424du /* "MBOX" */
#define LINE        64u
#define PAGE_BYTES  (2ull << 20)
#define LANES_AT    1024u
#define LANE_BYTES  ((PEER_SMALL_BYTES / 8 + CAME_ROWS) * SIGNAL_LINE_BYTES)
#define SLOTS_AT    (LANES_AT + PEER_BANKS * PEER_SLOTS * LANE_BYTES)
#define ERROR_LOOKS 1024u /* looks at a valid word between two at the device's health */

typedef CUresult (*stream_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned int);

typedef struct {
    uint32_t magic, epoch;
    uint64_t slot_bytes;
    cudaIpcMemHandle_t memory;
    cudaUUID_t device;
} offer_blob;

typedef struct {
    uint32_t magic, n_events; /* 0 or PEER_SLOTS */
    cudaIpcEventHandle_t event[PEER_SLOTS];
} answer_blob;

_Static_assert(PEER_BANKS * PEER_SLOTS * LINE <= LANES_AT, "words fit before the lanes");
_Static_assert(LANES_AT + PEER_BANKS * PEER_SLOTS * LANE_BYTES <= PLAN_CUDA_LANES_BYTES,
               "as planned");
_Static_assert(sizeof(offer_blob) <= PEER_BLOB_BYTES, "fits");
_Static_assert(sizeof(answer_blob) <= PEER_BLOB_BYTES, "fits");

/* Host memory that the device shares with us, a line per word. */
typedef struct {
    _Alignas(LINE) _Atomic uint64_t word;
} host_line;

struct peer_box {
    backend_queue *q;
    char *memory;
    uint64_t bytes, slot_bytes; /* a slot, rounded */
    uint32_t epoch;
    uint64_t *outcome;          /* device [PEER_SLOTS] */
    host_line *host;            /* valid [PEER_SLOTS], poison */
    host_line *host_there;      /* the same, as the device sees it */
    cudaStream_t poison_stream;
    stream_value write_value, wait_value; /* NULL: the driver lacks them */
    cudaEvent_t event[PEER_SLOTS];        /* the sender's */
    _Atomic uint32_t poisoned;  /* epoch, 0: none */
    uint32_t n_looks;
};

struct peer_window {
    backend_queue *q;
    char *memory; /* the box's, mapped */
    uint64_t slot_bytes;
    uint32_t epoch;
    stream_value write_value;
    cudaEvent_t event[PEER_SLOTS]; /* our own */
};

status cuda_may_fail(const backend_device *d, cudaError_t error, const char *call, errmsg *e)
{
    errmsg text = {0};
    if (error == cudaSuccess) return ST_OK;
    (void)cudaGetLastError();
    (void)cuda_result(d, error, call, &text);
    return errmsg_set(e, ST_RESOURCES, "%s", text.text);
}

#define TRY_SOFT(d, call, e) TRY(cuda_may_fail(d, call, #call, e))

static stream_value driver_call(const char *name)
{
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return (stream_value)f;
}

static uint32_t signals(backend_queue *q)
{
    int events = 0;
    bool values = driver_call("cuStreamWriteValue64") != NULL &&
                  driver_call("cuStreamWaitValue64") != NULL;
    if (cudaDeviceGetAttribute(&events, cudaDevAttrIpcEventSupport, q->device->ordinal) !=
        cudaSuccess)
        events = 0;
    return 1u << PEER_SPIN | (values ? 1u << PEER_MEMOP : 0) | (events ? 1u << PEER_EVENT : 0);
}

static uint64_t slot_place(uint32_t epoch, uint32_t slot)
{
    CHECK(slot < PEER_SLOTS);
    return epoch % PEER_BANKS * PEER_SLOTS + slot;
}

static uint64_t *word_of(char *memory, uint32_t epoch, uint32_t slot)
{
    return (uint64_t *)(memory + slot_place(epoch, slot) * LINE);
}

static void *lane_of(char *memory, uint32_t epoch, uint32_t slot)
{
    return memory + LANES_AT + slot_place(epoch, slot) * LANE_BYTES;
}

static void *slot_of(char *memory, uint64_t slot_bytes, uint32_t epoch, uint32_t slot)
{
    return memory + SLOTS_AT + slot_place(epoch, slot) * slot_bytes;
}

static status own_uuid(const backend_device *d, cudaUUID_t *out, errmsg *e)
{
    struct cudaDeviceProp p;
    TRY_CUDA(d, cudaGetDeviceProperties(&p, d->ordinal), e);
    *out = p.uuid;
    return ST_OK;
}

/* --- the receiver --- */

static void box_close(peer_box *b)
{
    (void)cudaSetDevice(b->q->device->ordinal);
    (void)cudaStreamSynchronize(b->q->stream);
    if (b->poison_stream != NULL) {
        (void)cudaStreamSynchronize(b->poison_stream);
        (void)cudaStreamDestroy(b->poison_stream);
    }
    for (uint32_t i = 0; i < PEER_SLOTS; i++)
        if (b->event[i] != NULL) (void)cudaEventDestroy(b->event[i]);
    (void)cudaFree(b->memory);
    (void)cudaFree(b->outcome);
    if (b->host != NULL) (void)cudaFreeHost(b->host);
    free(b);
}

static status box_fill(peer_box *b, errmsg *e)
{
    const backend_device *d = b->q->device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY_SOFT(d, cudaMalloc((void **)&b->memory, b->bytes), e);
    TRY_SOFT(d, cudaMalloc((void **)&b->outcome, PEER_SLOTS * sizeof *b->outcome), e);
    TRY_SOFT(d, cudaHostAlloc((void **)&b->host, (PEER_SLOTS + 1) * sizeof *b->host,
                              cudaHostAllocMapped | cudaHostAllocPortable), e);
    memset(b->host, 0, (PEER_SLOTS + 1) * sizeof *b->host);
    TRY_CUDA(d, cudaHostGetDevicePointer((void **)&b->host_there, b->host, 0), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&b->poison_stream, cudaStreamNonBlocking), e);
    b->write_value = driver_call("cuStreamWriteValue64");
    b->wait_value = driver_call("cuStreamWaitValue64");
    return ST_OK;
}

static status box_open(backend_queue *q, peer_box **out, uint64_t slot_bytes, errmsg *e)
{
    *out = NULL;
    peer_box *b = calloc(1, sizeof *b);
    if (b == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    b->q = q;
    b->slot_bytes = (slot_bytes + 255) / 256 * 256;
    uint64_t bytes = SLOTS_AT + PEER_BANKS * PEER_SLOTS * b->slot_bytes;
    b->bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    status s = box_fill(b, e);
    if (s != ST_OK) {
        box_close(b);
        return s;
    }
    *out = b;
    return ST_OK;
}

static uint64_t box_bytes(const peer_box *b)
{
    return b->bytes;
}

static status box_offer(peer_box *b, uint32_t epoch, peer_blob *out, errmsg *e)
{
    const backend_device *d = b->q->device;
    offer_blob o = {.magic = BLOB_MAGIC, .epoch = epoch, .slot_bytes = b->slot_bytes};
    b->epoch = epoch;
    atomic_store(&b->host[PEER_SLOTS].word, 0);
    atomic_store(&b->poisoned, 0);
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (uint32_t i = 0; i < PEER_SLOTS; i++) {
        TRY_CUDA(d, cudaMemsetAsync(word_of(b->memory, epoch, i), 0, LINE, b->q->stream), e);
        TRY_CUDA(d, cudaMemsetAsync(lane_of(b->memory, epoch, i), 0, LANE_BYTES, b->q->stream), e);
    }
    TRY_CUDA(d, cudaStreamSynchronize(b->q->stream), e);
    TRY_SOFT(d, cudaIpcGetMemHandle(&o.memory, b->memory), e);
    TRY(own_uuid(d, &o.device, e));
    out->bytes = sizeof o;
    memcpy(out->data, &o, sizeof o);
    return ST_OK;
}

static status box_meet(peer_box *b, const peer_blob *answer, errmsg *e)
{
    const backend_device *d = b->q->device;
    answer_blob a;
    if (answer->bytes != sizeof a) return errmsg_set(e, ST_PROTOCOL, "the answer has another form");
    memcpy(&a, answer->data, sizeof a);
    if (a.magic != BLOB_MAGIC) return errmsg_set(e, ST_PROTOCOL, "the answer has another form");
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (uint32_t i = 0; a.n_events == PEER_SLOTS && i < PEER_SLOTS; i++)
        TRY_SOFT(d, cudaIpcOpenEventHandle(&b->event[i], a.event[i]), e);
    return ST_OK;
}

/* An event of another process goes on our stream only when it is seen complete: the wait is then
 * one for what has happened. */
static status wait_event(peer_box *b, uint32_t slot)
{
    const backend_device *d = b->q->device;
    cudaError_t seen = cudaEventQuery(b->event[slot]);
    if (seen == cudaErrorNotReady) return ST_TIMEOUT;
    TRY(cuda_result(d, seen, "cudaEventQuery", NULL));
    return cuda_result(d, cudaStreamWaitEvent(b->q->stream, b->event[slot], 0),
                       "cudaStreamWaitEvent", NULL);
}

static status wait_value(peer_box *b, const uint64_t *word, uint64_t value)
{
    CUresult r = b->wait_value((CUstream)b->q->stream, (CUdeviceptr)(uintptr_t)word, value,
                               CU_STREAM_WAIT_VALUE_GEQ);
    return cuda_result(b->q->device, (cudaError_t)r, "cuStreamWaitValue64", NULL);
}

/* Both ends know by this alone whether the message's bytes are lines. */
static bool is_lines(uint64_t bytes)
{
    return bytes <= PEER_SMALL_BYTES && bytes % 16 == 0;
}

static signal_rows rows_of(const peer_rows *r)
{
    if (r == NULL) return (signal_rows){0};
    CHECK(r->n_rows <= CAME_ROWS);
    return (signal_rows){.tokens = cuda_address(r->tokens),
                         .live = cuda_address(r->live),
                         .finite = cuda_address(r->finite),
                         .came = cuda_address(r->came),
                         .n_rows = r->n_rows,
                         .mark = r->mark};
}

/* bytes that are no lines are copied before them. */
static status send_lines(backend_queue *q, void *line, void *slot, uint64_t value, bool lines,
                         dev_ptr from, uint64_t bytes, const peer_rows *rows)
{
    const backend_device *d = q->device;
    const signal_lane l = {line, (uint32_t)value, !lines && bytes > 0};
    const signal_rows r = rows_of(rows);
    if (l.beside)
        TRY_CUDA(d, cudaMemcpyAsync(slot, cuda_address(from), bytes, cudaMemcpyDefault, q->stream),
                 NULL);
    return cuda_result(d,
                       cuda_signal_send(q->stream, &l, cuda_address(from), lines ? bytes : 0, &r),
                       "cuda_signal_send", NULL);
}

static status catch_lines(backend_queue *q, void *line, const void *slot, const uint64_t *poison,
                          uint64_t value, bool lines, dev_ptr to, uint64_t bytes,
                          const peer_rows *rows, uint64_t *valid)
{
    const backend_device *d = q->device;
    const signal_lane l = {line, (uint32_t)value, !lines && bytes > 0};
    const signal_rows r = rows_of(rows);
    TRY(cuda_result(d,
                    cuda_signal_catch(q->stream, &l, poison, value, cuda_address(to),
                                      lines ? bytes : 0, &r, valid),
                    "cuda_signal_catch", NULL));
    if (!l.beside) return ST_OK;
    return cuda_result(d,
                       cudaMemcpyAsync(cuda_address(to), slot, bytes, cudaMemcpyDefault, q->stream),
                       "cudaMemcpyAsync", NULL);
}

static status take(peer_box *b, uint32_t slot, peer_signal how, uint64_t value, dev_ptr to,
                   uint64_t bytes, const peer_rows *rows)
{
    const backend_device *d = b->q->device;
    cudaStream_t s = b->q->stream;
    uint64_t *word = word_of(b->memory, b->epoch, slot);
    uint64_t *valid = (uint64_t *)&b->host_there[slot].word;
    const void *from = slot_of(b->memory, b->slot_bytes, b->epoch, slot);
    signal_wait w = {.word = word,
                     .poison = (const uint64_t *)&b->host_there[PEER_SLOTS].word,
                     .want = value,
                     .spin = how == PEER_SPIN};
    CHECK(bytes <= b->slot_bytes && value >> 32 == b->epoch);
    CHECK(rows == NULL || how == PEER_SPIN);
    TRY(cuda_enter(b->q));
    if (rows != NULL || (how == PEER_SPIN && is_lines(bytes))) {
        atomic_store_explicit(&b->host[slot].word, 0, memory_order_release);
        return catch_lines(b->q, lane_of(b->memory, b->epoch, slot), from, w.poison, value,
                           is_lines(bytes), to, bytes, rows, rows == NULL ? valid : NULL);
    }
    if (how == PEER_EVENT) TRY(wait_event(b, slot));
    atomic_store_explicit(&b->host[slot].word, 0, memory_order_release);
    if (how == PEER_MEMOP) TRY(wait_value(b, word, value));
    if (how == PEER_EVENT) {
        TRY_CUDA(d, cudaMemcpyAsync(cuda_address(to), from, bytes, cudaMemcpyDefault, s), NULL);
        return cuda_result(d, cuda_signal_tell_value(s, value, valid), "cuda_signal_tell", NULL);
    }
    if (bytes <= PEER_SMALL_BYTES) {
        return cuda_result(d, cuda_signal_take(s, &w, cuda_address(to), from, bytes, valid),
                           "cuda_signal_take", NULL);
    }
    TRY_CUDA(d, cuda_signal_wait(s, &w, &b->outcome[slot]), NULL);
    TRY_CUDA(d, cudaMemcpyAsync(cuda_address(to), from, bytes, cudaMemcpyDefault, s), NULL);
    return cuda_result(d, cuda_signal_tell(s, &b->outcome[slot], valid), "cuda_signal_tell", NULL);
}

static status taken(peer_box *b, uint32_t slot, uint64_t value, peer_state *out)
{
    uint64_t now = atomic_load_explicit(&b->host[slot].word, memory_order_acquire);
    *out = now == value                    ? PEER_VALID
           : now == signal_poisoned(value) ? PEER_ABORTED
                                           : PEER_WAITING;
    if (*out != PEER_WAITING || ++b->n_looks % ERROR_LOOKS != 0) return ST_OK;
    cudaError_t health = cudaStreamQuery(b->q->stream);
    if (health == cudaErrorNotReady) return ST_OK;
    return cuda_result(b->q->device, health, "cudaStreamQuery", NULL);
}

/* The spinning kernel reads the host's word; a stream that waits for a value is let go by a write
 * from another stream. */
static void box_poison(peer_box *b)
{
    if (atomic_exchange(&b->poisoned, b->epoch) == b->epoch) return;
    atomic_store_explicit(&b->host[PEER_SLOTS].word, b->epoch, memory_order_release);
    if (b->write_value == NULL || cudaSetDevice(b->q->device->ordinal) != cudaSuccess) return;
    for (uint32_t i = 0; i < PEER_SLOTS; i++) {
        (void)b->write_value((CUstream)b->poison_stream,
                             (CUdeviceptr)(uintptr_t)word_of(b->memory, b->epoch, i),
                             signal_poisoned((uint64_t)b->epoch << 32), 0);
    }
}

/* --- the sender --- */

static void window_close(peer_window *w)
{
    (void)cudaSetDevice(w->q->device->ordinal);
    (void)cudaStreamSynchronize(w->q->stream);
    if (w->memory != NULL) (void)cudaIpcCloseMemHandle(w->memory);
    for (uint32_t i = 0; i < PEER_SLOTS; i++)
        if (w->event[i] != NULL) (void)cudaEventDestroy(w->event[i]);
    free(w);
}

static status make_events(peer_window *w, answer_blob *a, errmsg *e)
{
    const backend_device *d = w->q->device;
    if ((signals(w->q) & 1u << PEER_EVENT) == 0) return ST_OK;
    for (uint32_t i = 0; i < PEER_SLOTS; i++) {
        TRY_SOFT(d, cudaEventCreateWithFlags(&w->event[i],
                                             cudaEventInterprocess | cudaEventDisableTiming), e);
        TRY_SOFT(d, cudaIpcGetEventHandle(&a->event[i], w->event[i]), e);
    }
    a->n_events = PEER_SLOTS;
    return ST_OK;
}

static status window_fill(peer_window *w, const offer_blob *o, peer_blob *answer,
                          bool *same_device, errmsg *e)
{
    const backend_device *d = w->q->device;
    answer_blob a = {.magic = BLOB_MAGIC};
    cudaUUID_t ours;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY(own_uuid(d, &ours, e));
    *same_device = memcmp(&ours, &o->device, sizeof ours) == 0;
    TRY_SOFT(d, cudaIpcOpenMemHandle((void **)&w->memory, o->memory,
                                     cudaIpcMemLazyEnablePeerAccess), e);
    TRY(make_events(w, &a, e));
    answer->bytes = sizeof a;
    memcpy(answer->data, &a, sizeof a);
    return ST_OK;
}

static status window_open(backend_queue *q, peer_window **out, const peer_blob *offer,
                          peer_blob *answer, bool *same_device, errmsg *e)
{
    offer_blob o;
    *out = NULL;
    if (offer->bytes != sizeof o) return errmsg_set(e, ST_RESOURCES, "the offer has another form");
    memcpy(&o, offer->data, sizeof o);
    if (o.magic != BLOB_MAGIC) return errmsg_set(e, ST_RESOURCES, "the offer has another form");
    peer_window *w = calloc(1, sizeof *w);
    if (w == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a boundary");
    w->q = q;
    w->slot_bytes = o.slot_bytes;
    w->epoch = o.epoch;
    w->write_value = driver_call("cuStreamWriteValue64");
    status s = window_fill(w, &o, answer, same_device, e);
    if (s != ST_OK) {
        window_close(w);
        return s;
    }
    *out = w;
    return ST_OK;
}

static status put(peer_window *w, uint32_t slot, peer_signal how, uint64_t value, dev_ptr from,
                  uint64_t bytes, const peer_rows *rows)
{
    const backend_device *d = w->q->device;
    cudaStream_t s = w->q->stream;
    uint64_t *word = word_of(w->memory, w->epoch, slot);
    void *to = slot_of(w->memory, w->slot_bytes, w->epoch, slot);
    CHECK(bytes <= w->slot_bytes && value >> 32 == w->epoch);
    TRY(cuda_enter(w->q));
    CHECK(rows == NULL || how == PEER_SPIN);
    if (rows != NULL || (how == PEER_SPIN && is_lines(bytes)))
        return send_lines(w->q, lane_of(w->memory, w->epoch, slot), to, value, is_lines(bytes),
                          from, bytes, rows);
    TRY_CUDA(d, cudaMemcpyAsync(to, cuda_address(from), bytes, cudaMemcpyDefault, s), NULL);
    if (how == PEER_SPIN)
        return cuda_result(d, cuda_signal_release(s, word, value), "cuda_signal_release", NULL);
    if (how == PEER_EVENT)
        return cuda_result(d, cudaEventRecord(w->event[slot], s), "cudaEventRecord", NULL);
    CUresult r = w->write_value((CUstream)s, (CUdeviceptr)(uintptr_t)word, value, 0);
    return cuda_result(d, (cudaError_t)r, "cuStreamWriteValue64", NULL);
}

/* --- host memory --- */

static status host_pin(backend_queue *q, void *host, uint64_t bytes, errmsg *e)
{
    const backend_device *d = q->device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    return cuda_may_fail(
        d, cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister", e);
}

static void host_unpin(backend_queue *q, void *host)
{
    (void)cudaSetDevice(q->device->ordinal);
    (void)cudaStreamSynchronize(q->stream);
    (void)cudaHostUnregister(host);
}

static status lane_put(backend_queue *q, const peer_lane *l, dev_ptr from, uint64_t bytes,
                       const peer_rows *rows)
{
    const backend_device *d = q->device;
    void *line = NULL;
    TRY(cuda_enter(q));
    TRY_CUDA(d, cudaHostGetDevicePointer(&line, l->line, 0), NULL);
    return send_lines(q, line, l->slot, l->value, false, from, bytes, rows);
}

static status lane_take(backend_queue *q, const peer_lane *l, dev_ptr to, uint64_t bytes,
                        const peer_rows *rows)
{
    const backend_device *d = q->device;
    void *line = NULL, *poison = NULL;
    TRY(cuda_enter(q));
    TRY_CUDA(d, cudaHostGetDevicePointer(&line, l->line, 0), NULL);
    TRY_CUDA(d, cudaHostGetDevicePointer(&poison, (void *)(uintptr_t)l->poison, 0), NULL);
    return catch_lines(q, line, l->slot, poison, l->value, false, to, bytes, rows, NULL);
}

const backend_peer cuda_peer_table = {
    .signals = signals,
    .box_open = box_open,
    .box_close = box_close,
    .box_bytes = box_bytes,
    .box_offer = box_offer,
    .box_meet = box_meet,
    .take = take,
    .taken = taken,
    .box_poison = box_poison,
    .window_open = window_open,
    .window_close = window_close,
    .put = put,
    .host_pin = host_pin,
    .host_unpin = host_unpin,
    .lane_put = lane_put,
    .lane_take = lane_take,
    .link_offer = cuda_link_offer,
    .link_accept = cuda_link_accept,
    .link_ready = cuda_link_ready,
    .link_send = cuda_link_send,
    .link_receive = cuda_link_receive,
    .link_received = cuda_link_received,
    .link_abort = cuda_link_abort,
    .link_close = cuda_link_close,
};
