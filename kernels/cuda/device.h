/* device.h - inside of the cuda backend: device, queue, and how a CUDA error becomes a status.
 *
 * Nothing is at file scope: a device object holds all that its calls need. A stream is a queue.
 * Weights belong to the device object and live until it closes. Every call sets the current device
 * first, so that one thread may hold several. A CUDA error is logged once with the call and the
 * device (or put into the errmsg where the op has one), and is final: the context is lost. */
#ifndef KERNELS_CUDA_DEVICE_H
#define KERNELS_CUDA_DEVICE_H

#include "common/plan.h"
#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

#include <stdatomic.h>

#define CUDA_FAILURE_BYTES  200u
#define CUDA_EVENTS         256u          /* recorded and not yet done, at most */
#define CUDA_WEIGHT_ALIGN   PLAN_CUDA_ALIGN_BYTES
#define CUDA_PREPARED_BYTES (112ull << 20) /* activations in the tensor core's order, per queue */
#define CUDA_PREPARED_ROWS  4096u
#define CUDA_EXPANDED_BYTES                                                                        \
    (112ull << 20)                        /* a packed weight's values, or a part of it, per queue */
#define CUDA_PARTIAL_BYTES  (64ull << 20) /* attention cells that wait to be merged, per queue */

typedef struct cuda_weight cuda_weight;

struct backend_device {
    int ordinal;
    uint32_t n_sms;
    cuda_prompt prompt;
    char name[96];
    cudaEvent_t event[CUDA_EVENTS];
    _Atomic uint64_t event_value[CUDA_EVENTS]; /* what the event was recorded as */
    uint64_t n_events;
    uint64_t allocated_bytes; /* by alloc, less what was freed */
    char *failure;            /* [CUDA_FAILURE_BYTES]: the first CUDA error, "" */
    uint32_t n_threads;       /* that may load weights */
    bool lends_weights;       /* weights_begin takes whole pages (loan.c) */
    cuda_weight *weights;
    struct cuda_loading *loading; /* between weights_begin and weights_end; else NULL */
    struct cuda_table *tables;    /* in host memory */
};

struct backend_queue {
    backend_device *device;
    cudaStream_t stream;
    cudaStream_t beside; /* for what is drained */
    void *prepared;     /* CUDA_PREPARED_BYTES */
    int32_t *exponents; /* [CUDA_PREPARED_ROWS] */
    void *expanded;     /* CUDA_EXPANDED_BYTES */
    float *partial;     /* CUDA_PARTIAL_BYTES */
    /* What `prepared` holds: x [prepared_rows, prepared_n] as it was; 0 rows: nothing. */
    uint64_t prepared_x;
    uint32_t prepared_n, prepared_rows;
};

/* The error as a status: ST_OK, or ST_RESOURCES (memory) or ST_DEVICE with a line that names the
 * call and the device: in *e, or, when e is NULL, in the log and for `failure`. */
status cuda_result(const backend_device *d, cudaError_t error, const char *call, errmsg *e);

#define TRY_CUDA(d, call, e) TRY(cuda_result(d, call, #call, e))

/* Make the queue's device the current one; what was prepared before may be gone after the op. */
status cuda_enter(backend_queue *q);

static inline void *cuda_address(dev_ptr p)
{
    return (void *)(uintptr_t)p.addr;
}

/* weight.c */
status cuda_weights_begin(backend_device *d, uint64_t bytes, uint32_t n, const file_part *parts,
                          uint32_t n_parts, errmsg *e);
status cuda_weights_end(backend_device *d, errmsg *e);
void cuda_weights_close(backend_device *d);
status cuda_table_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                       uint32_t n_in, uint32_t n_out, errmsg *e);
status cuda_weight_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                        uint32_t n_in, uint32_t n_out, errmsg *e);
status cuda_weights_from_host(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                              errmsg *e);
/* What the last weights_begin has reserved. */
void *cuda_weights_last(const backend_device *d, uint64_t *bytes);
bool cuda_weight_type(dtype t); /* products and embeddings of it exist */
cuda_matrix cuda_matrix_of(const dev_weight *w);

/* ops.c: the ops of the table */
status cuda_embed(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                  float scale, uint32_t n_rows);
status cuda_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                     uint32_t n_rows);
status cuda_add_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr y, dev_ptr w, uint32_t n,
                         float eps, uint32_t n_rows);
status cuda_ffn(backend_queue *q, dev_ptr out, const dev_weight *gate, const dev_weight *up,
                const dev_weight *down, dev_ptr x, dev_ptr a, dev_ptr b, bool gelu,
                uint32_t n_rows);
status cuda_matmul(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                   uint32_t n_rows);
status cuda_matmuls(backend_queue *q, const dev_product *p, uint32_t n, dev_ptr x, uint32_t n_rows);
status cuda_rope_angles(backend_queue *q, dev_ptr cos, dev_ptr sin, const rope_waves *w,
                        dev_ptr position, uint32_t n_rows);
status cuda_rope(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads, uint32_t n_head,
                 uint32_t n_rows);
status cuda_kv_write(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v,
                     const row_args *rows, uint32_t n_rows);
status cuda_attention(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                      const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                      uint32_t n_rows);
status cuda_turn_attention(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr k, dev_ptr v,
                           const rope_args *turn, const kv_args *kv, const row_args *rows,
                           uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows);
status cuda_silu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
status cuda_gelu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n);
status cuda_add(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n);
status cuda_check_finite(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows);
status cuda_sample(backend_queue *q, dev_ptr out, dev_ptr logits, const sample_args *a,
                   uint32_t n_rows);
status cuda_kv_copy_block(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                          uint32_t n_positions);
status cuda_kv_wipe_block(backend_queue *q, const kv_args *kv, uint32_t block);

/* walk.c */
status cuda_walk_open(backend_device *d, backend_walk **out, const walk_desc *w, errmsg *e);
void cuda_walk_close(backend_walk *w);
status cuda_walk(backend_queue *q, const backend_walk *w, bool head);

#endif
