/* backend.h - the one table of device operations. cpu/ fills it now, cuda/ later.
 *
 * Asynchronous from the start: an op is put on a queue and runs after what was put there before; a
 * caller learns that it ran by an event. The cpu backend runs each op inside the call, on its own
 * threads, which is one legal schedule. Device addresses have a type of their own, so that a memcpy
 * on one does not compile. An op that a backend lacks is refused by name before loading
 * (`supports`), never skipped.
 *
 * The law: a row's result depends on that row's inputs alone, and has one summation order fixed by
 * shape and type. Zero rows are legal everywhere. All activations are f32, row-major, rows packed.
 *
 * One thread uses a device at a time, except where said. Nothing is allocated after device_open,
 * alloc and queue_open. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "common/dtype.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define KV_BLOCK 64u     /* positions in one KV block */
#define ATTN_CELL 256u   /* keys in one cell of the attention grid; the grid starts at position 0 */

typedef struct {
    uint64_t addr;       /* 0: none */
} dev_ptr;

static inline dev_ptr dev_offset(dev_ptr p, uint64_t bytes)
{
    return (dev_ptr){p.addr + bytes};
}

/* A weight matrix: n_out rows of n_in stored values. */
typedef struct {
    dev_ptr data;
    dtype type;
    uint32_t n_in, n_out;
} dev_weight;

typedef struct backend_device backend_device;
typedef struct backend_queue backend_queue;

/* A point of a queue. Valid until its queue closes. */
typedef struct {
    uint64_t value;
} backend_event;

typedef enum { OP_EMBED, OP_RMS_NORM, OP_MATMUL, OP_ROPE, OP_KV_WRITE, OP_ATTENTION, OP_SILU_MUL,
               OP_ADD, OP_COPY, OP_CHECK_FINITE } op_kind;

/* Where to run: filled from the plan. */
typedef struct {
    uint32_t numa_node;      /* UINT32_MAX: anywhere */
    uint32_t n_threads;      /* >= 1 */
    const char *isa;         /* "auto", "ref", "avx2", "avx512" */
} device_spec;

/* Rotation tables for the rows of a step: cos and sin, f32 [n_rows, n_rot / 2]. */
typedef struct {
    dev_ptr cos, sin;
    uint32_t n_rot;
    bool neox;               /* pairs (i, i + n_rot/2); otherwise (2i, 2i+1) */
} rope_args;

/* One layer's K and V pools: [n_blocks, n_kv_heads, KV_BLOCK, n_head] of `type` (F32, F16, BF16).
 * A value is rounded to the type when it is written (to nearest even) and read as rounded. */
typedef struct {
    dev_ptr k, v;
    dtype type;
    uint32_t n_kv_heads, n_head;
} kv_args;

/* Per row of a step, in device memory: position[r]; table[r]: start of the row's block table in
 * `tables` (block id of position p is tables[table[r] + p / KV_BLOCK]). */
typedef struct {
    dev_ptr position;        /* u32 [n_rows] */
    dev_ptr table;           /* u32 [n_rows] */
    dev_ptr tables;          /* u32 [..] */
    dev_ptr live;            /* u8 [n_rows]: 0: the row writes no KV; its other results are unused */
} row_args;

typedef struct {
    const char *name;        /* "cpu", "cuda" */

    /* Open a device. ST_RESOURCES with *e: no such device, no memory, ISA not on this machine. */
    status (*device_open)(backend_device **out, const device_spec *s, errmsg *e);
    void (*device_close)(backend_device *d);
    /* One line for the banner ("cpu avx512, 2 threads"), owned by d. */
    const char *(*device_name)(const backend_device *d);
    bool (*supports)(const backend_device *d, op_kind op, dtype t);

    /* Zeroed memory, 64-byte aligned. ST_RESOURCES with *e saying bytes and what was free. */
    status (*alloc)(backend_device *d, dev_ptr *out, uint64_t bytes, errmsg *e);
    void (*free)(backend_device *d, dev_ptr p, uint64_t bytes);

    /* Make weights that lie in host memory [host, host + bytes) usable: in place where the device
     * can (cpu: *out is the same memory, owned by the caller, must stay mapped), by upload
     * otherwise. */
    status (*weights_from_host)(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                                errmsg *e);

    status (*queue_open)(backend_device *d, backend_queue **out, errmsg *e);
    void (*queue_close)(backend_queue *q);
    /* Host memory to device and back, on the queue. host must stay valid until an event recorded
     * afterwards is done. */
    status (*upload)(backend_queue *q, dev_ptr to, const void *host, uint64_t bytes);
    status (*download)(backend_queue *q, void *host, dev_ptr from, uint64_t bytes);
    status (*copy)(backend_queue *q, dev_ptr to, dev_ptr from, uint64_t bytes);
    status (*event_record)(backend_queue *q, backend_event *out);
    status (*queue_wait)(backend_queue *q, backend_event ev);     /* q goes on after ev */
    status (*event_wait)(backend_queue *q, backend_event ev);     /* the host waits */
    bool (*event_done)(backend_queue *q, backend_event ev);       /* any thread */

    /* out[r, :] = row tokens[r] of table, as f32, times scale (1: exact). tokens: u32 [n_rows],
     * each < table->n_out (checked by the caller). */
    status (*embed)(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                    float scale, uint32_t n_rows);
    /* out[r, i] = x[r, i] / sqrt(mean(x[r]^2) + eps) * w[i]; w f32 [n]. out may be x. */
    status (*rms_norm)(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                       uint32_t n_rows);
    /* out[r, o] = sum_i w[o, i] x[r, i] (+ bias[o]); bias f32 [n_out] or none. */
    status (*matmul)(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                     uint32_t n_rows);
    /* Rotate x[n_rows, n_heads, n_head] in place; elements past n_rot stay. */
    status (*rope)(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads,
                   uint32_t n_head, uint32_t n_rows);
    /* k, v [n_rows, n_kv_heads, n_head] into the pools at the rows' positions. */
    status (*kv_write)(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v,
                       const row_args *rows, uint32_t n_rows);
    /* out[r, h, :] = attention of query x[r, h, :] over positions [max(0, p + 1 - window), p] of its
     * row, p = position[r]; window 0: all. Query head h reads KV head h / (n_heads / n_kv_heads).
     * Cells of ATTN_CELL keys on the absolute grid: scores s_j = scale * dot(q, k_j); m = max s_j;
     * e_j = exp(s_j - m); l = sum e_j; o = sum e_j v_j, keys ascending; cells merge in ascending
     * order: M = max(m1, m2), o = o1 exp(m1 - M) + o2 exp(m2 - M), l likewise; out = o / l. */
    status (*attention)(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                        const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                        uint32_t n_rows);
    /* out[i] = silu(gate[i]) * up[i]; silu(x) = x / (1 + exp(-x)). out may be gate. */
    status (*silu_mul)(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
    /* x[i] += y[i] */
    status (*add)(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n);
    /* flags[r] = 1 when row r of x [n_rows, n] holds NaN or infinity, else 0; u8 [n_rows]. */
    status (*check_finite)(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows);
    /* KV block operations, every layer's pools handed one by one: copy the first n_positions of
     * block `from` to block `to`; set a whole block to zero bytes. */
    status (*kv_copy_block)(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                            uint32_t n_positions);
    status (*kv_wipe_block)(backend_queue *q, const kv_args *kv, uint32_t block);
} backend;

/* The cpu table. */
const backend *backend_cpu(void);

/* Devices of this build by name, as one line "cpu" or "cpu, cuda", static. */
const char *backend_names(void);

#endif
