/* The cpu table: device, memory, queue and events. The ops are in ops.c and kv.c. */
#include "kernels/cpu/device.h"
#include "common/amount.h"

#include "kernels/cpu/loan.h"
#include "kernels/cpu/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void bind_worker(void *node)
{
    numa_bind_thread(node);
}

static void device_close(backend_device *d)
{
    if (d == NULL) return;
    pool_close(d->threads);
    memory_free(d->scratch, d->scratch_bytes);
    memory_free(d->fixed, FIXED_BYTES);
    numa_close(d->node);
    free(d);
}

static status device_open(backend_device **out, const device_spec *s, errmsg *e)
{
    *out = NULL;
    const cpu_isa *isa = cpu_isa_get(s->isa);
    if (isa == NULL)
        return errmsg_set(e, ST_RESOURCES,
                          "cpu: this machine does not run the instruction set '%s' (auto, ref, "
                          "avx2, avx512 and amx exist)",
                          s->isa);
    backend_device *d = calloc(1, sizeof *d);
    if (d == NULL) return errmsg_set(e, ST_RESOURCES, "cpu: no memory for the device");
    status st = ST_OK;
    d->isa = isa;
    if (s->numa_node != UINT32_MAX) {
        TRY_DONE(st, numa_open(&d->node, s->numa_node, e));
        numa_bind_thread(d->node); /* the caller too: it is thread 0 */
    }
    TRY_DONE(st, pool_open(&d->threads, s->n_threads, d->node != NULL ? bind_worker : NULL, d->node,
                           e));
    uint64_t bytes = (uint64_t)s->n_threads * CPU_SCRATCH_FLOATS * sizeof(float);
    void *scratch;
    TRY_DONE(st, memory_alloc(&scratch, bytes, e));
    d->scratch = scratch;
    d->scratch_bytes = bytes;
    void *fixed;
    TRY_DONE(st, memory_alloc(&fixed, FIXED_BYTES, e));
    d->fixed = fixed;
    int n = snprintf(d->name, sizeof d->name, "cpu %s, %u thread%s", isa->name, s->n_threads,
                     plural(s->n_threads));
    if (d->node != NULL)
        snprintf(d->name + n, sizeof d->name - (size_t)n, ", node %u", s->numa_node);
    *out = d;
done:
    if (st != ST_OK) device_close(d);
    return st;
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
        return dtype_get(t) != NULL && dtype_get(t)->supported;
    default:
        return backend_takes(op, t);
    }
}

static status device_alloc(backend_device *d, dev_ptr *out, uint64_t bytes, errmsg *e)
{
    *out = (dev_ptr){0};
    if (bytes == 0) return ST_OK;
    void *p;
    TRY(memory_alloc(&p, bytes, e));
    if (d->node != NULL) numa_bind_memory(d->node, p, bytes);
    out->addr = (uintptr_t)p;
    return ST_OK;
}

static void device_free(backend_device *d, dev_ptr p, uint64_t bytes)
{
    (void)d;
    memory_free(host_of(p), bytes);
}

static status weights_from_host(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                                errmsg *e)
{
    (void)d, (void)bytes, (void)e;
    out->addr = (uintptr_t)host;
    return ST_OK;
}

static status weight_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                          uint32_t n_in, uint32_t n_out, errmsg *e)
{
    (void)d, (void)e;
    *out = (dev_weight){{(uintptr_t)host}, type, n_in, n_out, 0};
    return ST_OK;
}

static status host_alloc(backend_device *d, void **out, uint64_t bytes, errmsg *e)
{
    (void)d;
    *out = calloc(1, bytes > 0 ? bytes : 1);
    if (*out != NULL) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "cpu: no memory for %s", amount_said(bytes));
}

static void host_free(backend_device *d, void *host)
{
    (void)d;
    free(host);
}

static status queue_open(backend_device *d, backend_queue **out, errmsg *e)
{
    *out = malloc(sizeof **out);
    if (*out == NULL) return errmsg_set(e, ST_RESOURCES, "cpu: no memory for a queue");
    (*out)->device = d;
    return ST_OK;
}

static void queue_close(backend_queue *q)
{
    free(q);
}

static status copy_bytes(void *to, const void *from, uint64_t bytes)
{
    if (bytes > 0) memmove(to, from, bytes);
    return ST_OK;
}

static status upload(backend_queue *q, dev_ptr to, const void *host, uint64_t bytes)
{
    (void)q;
    return copy_bytes(host_of(to), host, bytes);
}

static status download(backend_queue *q, void *host, dev_ptr from, uint64_t bytes)
{
    (void)q;
    return copy_bytes(host, host_of(from), bytes);
}

static status copy(backend_queue *q, dev_ptr to, dev_ptr from, uint64_t bytes)
{
    (void)q;
    return copy_bytes(host_of(to), host_of(from), bytes);
}

static status upload_all(backend_queue *q, const upload_piece *piece, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        TRY(upload(q, piece[i].to, piece[i].host, piece[i].bytes));
    return ST_OK;
}

static status event_record(backend_queue *q, backend_event *out)
{
    backend_device *d = q->device;
    out->value = ++d->n_events;
    atomic_store_explicit(&d->n_events_done, d->n_events, memory_order_release);
    return ST_OK;
}

static status drain(backend_queue *q, void *host, dev_ptr from, uint64_t bytes, backend_event *done)
{
    TRY(download(q, host, from, bytes));
    return event_record(q, done);
}

static bool event_done(backend_queue *q, backend_event ev)
{
    return ev.value <= atomic_load_explicit(&q->device->n_events_done, memory_order_acquire);
}

/* Everything that was recorded has run; an event from the future is the caller's mistake. */
static status event_reached(backend_queue *q, backend_event ev)
{
    CHECK(event_done(q, ev));
    return ST_OK;
}

const backend *backend_cpu(void)
{
    static const backend table = {
        .name = "cpu",
        .in_call = true,
        .device_open = device_open,
        .device_close = device_close,
        .device_name = device_name,
        .supports = supports,
        .alloc = device_alloc,
        .free = device_free,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .weights_from_host = weights_from_host,
        .weight_open = weight_open,
        .table_open = weight_open,
        .queue_open = queue_open,
        .queue_close = queue_close,
        .upload = upload,
        .download = download,
        .copy = copy,
        .upload_all = upload_all,
        .drain = drain,
        .event_record = event_record,
        .queue_wait = event_reached,
        .event_wait = event_reached,
        .event_done = event_done,
        .embed = cpu_embed,
        .rms_norm = cpu_rms_norm,
        .matmul = cpu_matmul,
        .rope_angles = cpu_rope_angles,
        .rope = cpu_rope,
        .kv_write = cpu_kv_write,
        .attention = cpu_attention,
        .silu_mul = cpu_silu_mul,
        .gelu_mul = cpu_gelu_mul,
        .add = cpu_add,
        .check_finite = cpu_check_finite,
        .sample = cpu_sample,
        .kv_copy_block = cpu_kv_copy_block,
        .kv_wipe_block = cpu_kv_wipe_block,
        .loan = &cpu_loan_table,
    };
    return &table;
}
