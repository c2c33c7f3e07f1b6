/* backend.h - the one table of device operations. cpu/ fills it, and cuda/ where a toolkit was
 * found.
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

#include "common/doors.h"
#include "common/dtype.h"
#include "common/kvclass.h"
#include "common/status.h"
#include "kernels/sample.h"

#include <stdbool.h>
#include <stdint.h>

#define ATTN_CELL 256u   /* keys in one cell of the attention grid; the grid starts at position 0 */

typedef struct {
    uint64_t addr;       /* 0: none */
} dev_ptr;

static inline dev_ptr dev_offset(dev_ptr p, uint64_t bytes)
{
    return (dev_ptr){p.addr + bytes};
}

/* A weight matrix: n_out rows of n_in values of a stored type, in whatever order the device reads
 * it (weight_open). */
typedef struct {
    dev_ptr data;
    dtype type;              /* as in the file */
    uint32_t n_in, n_out;
    int32_t exponent;        /* the device's own */
} dev_weight;

/* One of several products of the same rows. */
typedef struct {
    dev_ptr out;             /* f32 [n_rows, n_out] */
    const dev_weight *w;
    dev_ptr bias;            /* f32 [n_out] or none */
} dev_product;

typedef struct backend_peer backend_peer;
typedef struct backend_loan backend_loan;
typedef struct backend_device backend_device;
typedef struct backend_queue backend_queue;

/* A point of a queue. Valid until its queue closes. */
typedef struct {
    uint64_t value;
} backend_event;

typedef enum { OP_EMBED, OP_RMS_NORM, OP_MATMUL, OP_ROPE, OP_KV_WRITE, OP_ATTENTION, OP_SILU_MUL,
               OP_ADD, OP_COPY, OP_CHECK_FINITE, OP_GELU_MUL, OP_SAMPLE } op_kind;

/* Where to run: filled from the plan. */
typedef struct {
    uint32_t numa_node;      /* UINT32_MAX: anywhere */
    uint32_t n_threads;      /* >= 1 */
    const char *isa;         /* "auto", "ref", "avx2", "avx512", "amx" */
    uint32_t cuda_index;     /* cuda: the ordinal, unless */
    const char *cuda_uuid;   /* this names the device ("GPU-.."); NULL and "": no */
} device_spec;

/* Rotation tables for the rows of a step: cos and sin, f32 [n_rows, n_rot / 2]. */
typedef struct {
    dev_ptr cos, sin;
    uint32_t n_rot;
    bool neox;               /* pairs (i, i + n_rot/2); otherwise (2i, 2i+1) */
} rope_args;

/* What turns a head at a position: f64 [n_pairs], radians per position, in device memory. */
typedef struct {
    dev_ptr frequency;
    double magnitude;
    uint32_t n_pairs;
} rope_waves;

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
    dev_ptr live; /* u8 [n_rows]: 0: the row writes no KV; its other results are unused */
    uint32_t n_positions;    /* every position is below it, so that a device can spread a long
                                context; 0: not known. No bit depends on it */
    uint32_t n_runs; /* of live rows of one table, side by side; 0: not known. No bit depends
                        on it */
} row_args;

/* All that a step of one live row does between its embedding and its logits, for a device that does
 * it in one launch. Every address is the same in every step. */
#define WALK_KINDS 2u
typedef struct {             /* layers that turn heads and see positions alike */
    rope_args rope;
    row_args rows;           /* position, tables and live are one for all kinds */
    uint32_t window;         /* as attention's */
} walk_kind;

typedef struct {
    dev_ptr attn_norm, ffn_norm; /* f32 [n_embd] */
    dev_ptr attn_q_norm, attn_k_norm; /* f32 [n_head], of each head before its turn; none: addr 0 */
    dev_ptr attn_post_norm, ffn_post_norm; /* f32 [n_embd], of a block's output; none: addr 0 */
    dev_weight attn_q, attn_k, attn_v, attn_output, ffn_gate, ffn_up, ffn_down;
    dev_ptr attn_q_bias, attn_k_bias, attn_v_bias; /* none: addr 0 */
    kv_args kv;
    uint32_t kind_i;
} walk_layer;

typedef struct {
    uint32_t n_layers, n_embd, n_ff, n_heads, n_ctx, n_kinds;
    float rms_eps, attn_scale;
    bool gelu;                   /* gelu_mul, otherwise silu_mul */
    walk_kind kind[WALK_KINDS];
    const walk_layer *layer;     /* read by walk_open only */
    dev_ptr hidden;              /* f32 [n_embd]: the walk's input and output */
    dev_ptr q, k, v, attn, gate; /* f32, one row each */
    dev_weight output;           /* the head, and its norm and result; data 0: none */
    dev_ptr output_norm, logits;
    dev_ptr finite; /* u8 [2]: 1 when hidden, when logits hold NaN or infinity, else 0 */
} walk_desc;

typedef struct backend_walk backend_walk;

typedef struct {
    const sample_row *rows;  /* [n_rows], of host_alloc; as upload's host memory */
    dev_ptr flags;           /* u8 by row_i: 1 where the hidden state holds NaN or infinity */
    dev_ptr tokens, live;    /* 0: none; u32 and u8 by row_i: what the next walk of the row begins
                                with: the token drawn, 0 where none was; live becomes 0 where the
                                row ends, drew a stop or nothing */
    dev_ptr scratch;         /* sampler_scratch_bytes(n_vocab); unused where the device has memory
                                of its own: there a queue has it */
    uint32_t n_vocab;
} sample_args;

/* A part of a file, and where it is mapped. */
typedef struct {
    const void *map;
    uint64_t bytes;
    int fd;
    uint64_t offset; /* in the file */
} file_part;

/* A part of an upload. */
typedef struct {
    dev_ptr to;
    const void *host;
    uint64_t bytes;
} upload_piece;

typedef struct {
    const char *name;        /* "cpu", "cuda" */
    bool in_call; /* an op has run when its call returns: to put work behind work that runs
                     gains nothing */

    /* Open a device. ST_RESOURCES with *e: no such device, no memory, ISA not on this machine. */
    status (*device_open)(backend_device **out, const device_spec *s, errmsg *e);
    void (*device_close)(backend_device *d);
    /* One line for the banner ("cpu avx512, 2 threads"), owned by d. */
    const char *(*device_name)(const backend_device *d);
    bool (*supports)(const backend_device *d, op_kind op, dtype t);

    /* Zeroed memory, 64-byte aligned. ST_RESOURCES with *e saying bytes and what was free. */
    status (*alloc)(backend_device *d, dev_ptr *out, uint64_t bytes, errmsg *e);
    void (*free)(backend_device *d, dev_ptr p, uint64_t bytes);
    /* Zeroed host memory that the device reads and writes fast (cuda: pinned), and that ops can
     * name by a dev_ptr of its address; ST_RESOURCES. */
    status (*host_alloc)(backend_device *d, void **out, uint64_t bytes, errmsg *e);
    void (*host_free)(backend_device *d, void *host);

    /* Make f32 vectors that lie in host memory [host, host + bytes) usable: in place where the
     * device can (cpu: *out is the same memory, owned by the caller, must stay mapped), by upload
     * otherwise; what was uploaded is the device's until it closes. */
    status (*weights_from_host)(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                                errmsg *e);
    /* The same for a matrix of n_out rows of n_in values, as the file stores them: cpu in place;
     * cuda uploads it and orders it for its kernels; the weight is the device's until it closes.
     * ST_RESOURCES: no memory; ST_BAD_MODEL: host lies in a file that cannot be read. */
    status (*weight_open)(backend_device *d, dev_weight *out, const void *host, dtype type,
                          uint32_t n_in, uint32_t n_out, errmsg *e);
    /* A table that embed alone reads: it stays in host memory, which a device reads where it lies
     * (cuda: through a mapping of its own), and host must stay mapped until the device closes. */
    status (*table_open)(backend_device *d, dev_weight *out, const void *host, dtype type,
                         uint32_t n_in, uint32_t n_out, errmsg *e);
    /* Optional (NULL), both or none: what is loaded between them comes as one. begin reserves
     * memory for n weights and vectors of `bytes` in all; then weight_open and weights_from_host
     * need not wait, host and *out must stay where they are, and only end says that all are in
     * place, and complete. What lies in one of the parts, which are disjoint and stay until end, is
     * read from its file instead of through the mapping. Without begin each of them waits by
     * itself. Errors as theirs; after one of begin there is no end. */
    status (*weights_begin)(backend_device *d, uint64_t bytes, uint32_t n, const file_part *parts,
                            uint32_t n_parts, errmsg *e);
    status (*weights_end)(backend_device *d, errmsg *e);

    status (*queue_open)(backend_device *d, backend_queue **out, errmsg *e);
    void (*queue_close)(backend_queue *q);
    /* Host memory to device and back, on the queue. host must stay valid until an event recorded
     * afterwards is done. */
    status (*upload)(backend_queue *q, dev_ptr to, const void *host, uint64_t bytes);
    status (*download)(backend_queue *q, void *host, dev_ptr from, uint64_t bytes);
    status (*copy)(backend_queue *q, dev_ptr to, dev_ptr from, uint64_t bytes);
    /* n uploads in one; host as with upload. */
    status (*upload_all)(backend_queue *q, const upload_piece *piece, uint32_t n);
    /* download beside the queue: it begins when what was put there before has run, and what is put
     * there later does not wait for it; `from` must not be written until *done is done. Those of a
     * queue come one after the other. */
    status (*drain)(backend_queue *q, void *host, dev_ptr from, uint64_t bytes,
                    backend_event *done);
    status (*event_record)(backend_queue *q, backend_event *out);
    status (*queue_wait)(backend_queue *q, backend_event ev);     /* q goes on after ev */
    status (*event_wait)(backend_queue *q, backend_event ev);     /* the host waits */
    bool (*event_done)(backend_queue *q, backend_event ev);       /* any thread */

    /* out[r, :] = row tokens[r] of table (table_open), as f32, times scale (1: exact). tokens: u32
     * [n_rows], each < table->n_out (checked by the caller). */
    status (*embed)(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                    float scale, uint32_t n_rows);
    /* out[r, i] = x[r, i] / sqrt(mean(x[r]^2) + eps) * w[i]; w f32 [n]. out may be x. */
    status (*rms_norm)(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                       uint32_t n_rows);
    /* out[r, o] = sum_i w[o, i] x[r, i] (+ bias[o]); bias f32 [n_out] or none. */
    status (*matmul)(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                     uint32_t n_rows);
    /* cos and sin, f32 [n_rows, n_pairs], of position[r] * frequency[i] (position: u32): the
     * product and fm_sincos in double, times magnitude in double, rounded once. The same bits
     * everywhere. */
    status (*rope_angles)(backend_queue *q, dev_ptr cos, dev_ptr sin, const rope_waves *w,
                          dev_ptr position, uint32_t n_rows);
    /* Rotate x[n_rows, n_heads, n_head] in place; elements past n_rot stay. */
    status (*rope)(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads,
                   uint32_t n_head, uint32_t n_rows);
    /* k, v [n_rows, n_kv_heads, n_head] into the pools at the rows' positions. */
    status (*kv_write)(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v,
                       const row_args *rows, uint32_t n_rows);
    /* out[r, h, :] = attention of query x[r, h, :] over positions [max(0, p + 1 - window), p] of
     * its row, p = position[r]; window 0: all. Query head h reads KV head h / (n_heads /
     * n_kv_heads). Cells of ATTN_CELL keys on the absolute grid: scores s_j = scale * dot(q, k_j);
     * m = max s_j; e_j = exp(s_j - m); l = sum e_j; o = sum e_j v_j, keys ascending; cells merge in
     * ascending order: M = max(m1, m2), o = o1 exp(m1 - M) + o2 exp(m2 - M), l likewise; out = o /
     * l. What stands outside of those positions does not touch the row, NaN and infinity
     * neither. */
    status (*attention)(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                        const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                        uint32_t n_rows);
    /* out[i] = silu(gate[i]) * up[i]; silu(x) = x / (1 + exp(-x)). out may be gate. */
    status (*silu_mul)(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
    /* out[i] = gelu(gate[i]) * up[i], the tanh form: gelu(x) = x / (1 + exp(-2u)), u = sqrt(2/pi) x
     * (1 + 0.044715 x^2). out may be gate. */
    status (*gelu_mul)(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
    /* x[i] += y[i] */
    status (*add)(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n);
    /* flags[r] = 1 when row r of x [n_rows, n] holds NaN or infinity, else 0; u8 [n_rows]. */
    status (*check_finite)(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows);
    /* out[r], sample_result: the token that sampler_draw gives for row r of logits [n_rows,
     * n_vocab], the same one on every device. */
    status (*sample)(backend_queue *q, dev_ptr out, dev_ptr logits, const sample_args *a,
                     uint32_t n_rows);
    /* Optional (NULL), with the bits of the ops above in turn. matmul of each p[i] with the same x,
     * n >= 1; no out is x: */
    status (*matmuls)(backend_queue *q, const dev_product *p, uint32_t n, dev_ptr x,
                      uint32_t n_rows);
    /* add, then rms_norm of x: */
    status (*add_rms_norm)(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr y, dev_ptr w,
                           uint32_t n, float eps, uint32_t n_rows);
    /* rope of x and of k, kv_write of k and v, attention of x to out; x and k hold nothing
     * afterwards: */
    status (*turn_attention)(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr k, dev_ptr v,
                             const rope_args *turn, const kv_args *kv, const row_args *rows,
                             uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows);
    /* matmul of gate to a and of up to b, silu_mul (gelu: gelu_mul) of both, matmul of down to out;
     * a and b, f32 [n_rows, n_ff], are scratch and hold nothing afterwards. out may be x. */
    status (*ffn)(backend_queue *q, dev_ptr out, const dev_weight *gate, const dev_weight *up,
                  const dev_weight *down, dev_ptr x, dev_ptr a, dev_ptr b, bool gelu,
                  uint32_t n_rows);
    /* KV block operations, every layer's pools handed one by one: copy the first n_positions of
     * block `from` to block `to`; set a whole block to zero bytes. */
    status (*kv_copy_block)(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                            uint32_t n_positions);
    status (*kv_wipe_block)(backend_queue *q, const kv_args *kv, uint32_t block);

    /* Optional, all or none (NULL): a step of one row in one launch, with the bits of the ops
     * above, in the walk's order. walk_open: *out NULL with ST_OK where the device has no such
     * launch for these shapes and types. *out must be closed before its device. ST_RESOURCES. */
    status (*walk_open)(backend_device *d, backend_walk **out, const walk_desc *w, errmsg *e);
    void (*walk_close)(backend_walk *w);
    /* Everything but the embedding; head: the output's norm and product too. A row that is not
     * live: nothing. */
    status (*walk)(backend_queue *q, const backend_walk *w, bool head);

    /* Devices with memory of their own; NULL: weights are used where the file's pages lie.
     * weight_bytes: what weight_open takes; memory: what is free there, and what alloc and the
     * weights of d hold. ST_DEVICE. */
    uint64_t (*weight_bytes)(dtype type, uint32_t n_in, uint32_t n_out);
    status (*memory)(backend_device *d, uint64_t *free_bytes, uint64_t *allocated_bytes, errmsg *e);
    /* What an op that failed said of itself: the call and its error, "" when none has; NULL:
     * never. */
    const char *(*failure)(const backend_queue *q);

    /* Boundaries between devices (peer.h); NULL: rows cross through host memory. */
    const backend_peer *peer;
    /* Memory that another process uses (loan.h). */
    const backend_loan *loan;
} backend;

/* Whether every table of this build has `op` on type t: the ops that read no weight matrix
 * (OP_EMBED and OP_MATMUL are each table's own to answer; false here). */
bool backend_takes(op_kind op, dtype t);

/* The cpu table. */
const backend *backend_cpu(void);

/* The cuda table; NULL in a build without it. */
const backend *backend_cuda(void);

/* The table that a stage on such a device uses; NULL: not in this build. */
const backend *backend_get(device_kind kind);

/* Devices of this build by name, as one line "cpu" or "cpu, cuda", static. */
const char *backend_names(void);

/* CUDA devices that this process can use, in the driver's order. */
#define BACKEND_UUID_BYTES 41u
typedef struct {
    uint32_t ordinal, major, minor; /* compute capability */
    uint64_t memory_bytes, memory_free_bytes;
    char uuid[BACKEND_UUID_BYTES], name[64];
    bool exclusive; /* compute mode: one process at a time, or none */
    bool mps;       /* its contexts are shared through MPS */
} backend_gpu;

/* Fill up to n_max of them; *n 0 without a device, a driver or a cuda table. Makes a context on
 * each (some 100 MB there until the process ends): for a short-lived process. ST_DEVICE: the driver
 * failed. */
MUST_USE status backend_gpus(backend_gpu *out, uint32_t n_max, uint32_t *n, errmsg *e);

/* How device `from` reaches the memory of `to` (ordinals): "nvlink", "pcie", or "none". */
const char *backend_gpu_link(uint32_t from, uint32_t to);

#endif
