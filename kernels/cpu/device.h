/* device.h - the cpu device as the backend's files see it: an ISA table, a pool, scratch per
 * thread.
 *
 * Ops run inside the call, so that an event is done as soon as it is recorded; the counters exist
 * because callers are written against an asynchronous table. */
#ifndef KERNELS_CPU_DEVICE_H
#define KERNELS_CPU_DEVICE_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/numa.h"
#include "kernels/cpu/pool.h"

#include <stdatomic.h>

struct backend_device {
    const cpu_isa *isa;
    pool *threads;
    numa *node;                     /* NULL: anywhere */
    float *scratch;                 /* CPU_SCRATCH_FLOATS per thread */
    uint64_t scratch_bytes;
    char *fixed;                    /* FIXED_BYTES: rows in fixed point, for all threads */
    uint64_t n_events;              /* recorded; by the device's one caller */
    _Atomic uint64_t n_events_done; /* read from any thread */
    char name[64];
};

struct backend_queue {
    backend_device *device;
};

static inline void *host_of(dev_ptr p)
{
    return (void *)(uintptr_t)p.addr; /* NULL for no address */
}

static inline float *device_scratch(const backend_device *d, uint32_t thread_i)
{
    return d->scratch + (uint64_t)thread_i * CPU_SCRATCH_FLOATS;
}

/* How many threads share an op of that much work (about one per nanosecond of it), when waking one
 * costs a few microseconds. The bits do not depend on the answer. */
static inline uint32_t device_n_parts(const backend_device *d, uint64_t work)
{
    uint64_t n = work / 4096;
    uint32_t n_threads = pool_n_threads(d->threads);
    return n < 1 ? 1 : n < n_threads ? (uint32_t)n : n_threads;
}

/* The table's ops (backend.h). */
status cpu_embed(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                 float scale, uint32_t n_rows);
status cpu_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                    uint32_t n_rows);
status cpu_matmul(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                  uint32_t n_rows);
status cpu_rope_angles(backend_queue *q, dev_ptr cos, dev_ptr sin, const rope_waves *w,
                       dev_ptr position, uint32_t n_rows);
status cpu_rope(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads, uint32_t n_head,
                uint32_t n_rows);
status cpu_kv_write(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v, const row_args *rows,
                    uint32_t n_rows);
status cpu_attention(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                     const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                     uint32_t n_rows);
status cpu_silu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
status cpu_gelu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
status cpu_add(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n);
status cpu_check_finite(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows);
status cpu_sample(backend_queue *q, dev_ptr out, dev_ptr logits, const sample_args *a,
                  uint32_t n_rows);
status cpu_kv_copy_block(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                         uint32_t n_positions);
status cpu_kv_wipe_block(backend_queue *q, const kv_args *kv, uint32_t block);

#endif
