/* weights.h - a stage's weights: the byte ranges of the model's files that its layers need, mapped
 * and read ahead, used in place where the device can.
 *
 * Owns the mappings; each is page-aligned, holds what lies between needed tensors only where they
 * share a page; its tensors are handed to the backend one by one. The embedding belongs to the
 * first stage, output_norm and head to the last, a tied head to both; rope factors to all. A file
 * that is cut short while it is mapped ends the process by SIGBUS: the coordinator sees a lost
 * stage. */
#ifndef STAGE_WEIGHTS_H
#define STAGE_WEIGHTS_H

#include "common/loan.h"
#include "common/model.h"
#include "kernels/backend.h"
#include "stage/stage.h"

typedef struct {
    dev_ptr attn_norm; /* f32 [n_embd] */
    dev_weight attn_q, attn_k, attn_v;
    dev_ptr attn_q_bias, attn_k_bias, attn_v_bias; /* none: addr 0 */
    dev_ptr attn_q_norm, attn_k_norm;              /* f32 [n_head]; none: addr 0 */
    dev_weight attn_output;
    dev_ptr attn_post_norm; /* f32 [n_embd]; none: addr 0 */
    dev_ptr ffn_norm;       /* f32 [n_embd] */
    dev_weight ffn_gate, ffn_up, ffn_down;
    dev_ptr ffn_post_norm; /* as attn_post_norm */
} layer_weights;

/* Needed bytes of one file that lie together, page-aligned. */
typedef struct {
    uint32_t file_i;
    uint64_t begin, end; /* in the file */
    void *map;
} weight_span;

typedef struct {
    layer_weights *layer;          /* [layer_end - layer_begin] */
    dev_weight token_embd, output; /* where the stage has them */
    dev_ptr output_norm;
    const float *freq_factors; /* host, f32 [n_rot / 2]; NULL: none */
    weight_span *spans;
    uint32_t n_spans;
    uint64_t bytes;  /* of the tensors: fence_stage_bytes */
    uint64_t loaded; /* of the mappings: all that progress counts */
} weights;

typedef struct {
    const gguf *file;
    const model_desc *model;
    uint32_t layer_begin, layer_end;
    const backend *backend;
    backend_device *device;
    stage_progress on_progress;
    void *progress_ctx;
    bool layers_only; /* neither embedding nor head, whatever the range */
} weights_options;

/* The device has every product the range needs. ST_BAD_MODEL names tensor, type and device. */
MUST_USE status weights_supported(const weights_options *o, errmsg *e);

/* What they take on a device with memory of its own; 0 where they are used in place. */
uint64_t weights_device_bytes(const weights_options *o);

/* Of all tensors, in the file. */
uint64_t weights_file_bytes(const weights_options *o);

/* Map, read ahead in pieces (on_progress after each: bytes of the mappings) and hand over.
 * ST_BAD_MODEL: the file changed or is cut short; ST_RESOURCES; ST_CLOSED. *out can be closed in
 * every case. */
MUST_USE status weights_open(weights *out, const weights_options *o, errmsg *e);
void weights_close(weights *w);

/* --- lent and borrowed (common/loan.h): devices with memory of their own ---------------------- */

/* Weights that weights_open has put into one allocation at base: an entry for each tensor, at most
 * n_max of them. Returns how many. */
uint32_t weights_entries(const weights *w, const weights_options *o, dev_ptr base, loan_entry *out,
                         uint32_t n_max);

/* The same tensors as another process's entries say, in its allocation of `bytes`, which is here at
 * base: borrowed until weights_close. With o->layers_only the entries may go on behind them.
 * ST_PROTOCOL: an entry is not possible; errors of weights_open. *out can be closed in every
 * case. */
typedef struct {
    dev_ptr base;
    uint64_t bytes;
    const loan_entry *entry; /* copies */
    uint32_t n_entries;
} weights_lent;
MUST_USE status weights_borrow(weights *out, const weights_options *o, const weights_lent *from,
                               errmsg *e);

#endif
