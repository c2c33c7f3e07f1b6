/* plan_cuda.c - what a stage takes of a CUDA device. The driver gives whole pages; a stage asks for
 * few allocations: its weights together, each class of KV, scratch, a queue's, a boundary's. */
#include "common/plan.h"

#include "common/boundary.h"
#include "common/cuda_form.h"

static uint64_t whole(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static uint64_t pages(uint64_t bytes)
{
    return whole(bytes, PLAN_CUDA_PAGE_BYTES);
}

/* Vectors lie there as they are. */
static uint64_t tensor_bytes(const gguf_tensor *t)
{
    uint64_t bytes = t->dim[1] == 1
                         ? t->bytes
                         : cuda_form_bytes(t->type, (uint32_t)t->dim[0], (uint32_t)t->dim[1]);
    return whole(bytes, PLAN_CUDA_ALIGN_BYTES);
}

/* Of the layers [begin, end), with what belongs to the last. */
static uint64_t weights_bytes(const model_desc *m, uint32_t begin, uint32_t end)
{
    const gguf_tensor *t[MODEL_LAYER_TENSORS];
    uint64_t bytes = 0;
    for (uint32_t il = begin; il < end; il++) {
        for (uint32_t n = model_layer_tensors(m, il, t); n > 0; n--)
            bytes += tensor_bytes(t[n - 1]);
    }
    if (end == m->n_layers)
        bytes += tensor_bytes(m->output_norm.t) + tensor_bytes(m->output.t);
    return bytes;
}

/* Of all ranges that the stage has the weights of. */
static uint64_t held_bytes(const plan *p, const model_desc *m, uint32_t s)
{
    uint64_t bytes = 0;
    if (!p->gathered) return pages(weights_bytes(m, p->cuts.at[s], p->cuts.at[s + 1]));
    for (uint32_t i = 0; s == 0 && i < p->cuts.n_stages; i++)
        bytes += pages(weights_bytes(m, p->cuts.at[i], p->cuts.at[i + 1]));
    return bytes;
}

uint64_t plan_cuda_bytes(const plan *p, const model_desc *m, uint32_t s)
{
    const stage_plan *sp = &p->stage[s];
    uint64_t bytes = PLAN_CUDA_CONTEXT_BYTES + PLAN_CUDA_QUEUE_BYTES + PLAN_CUDA_LOADER_BYTES;
    if (p->one_process && s > 0) bytes = 0; /* they are the process's */
    bytes += held_bytes(p, m, s) + pages(sp->scratch_bytes);
    for (uint32_t k = 0; k < model_n_kinds(m); k++) {
        uint32_t n = model_n_layers_of(m, (layer_kind)k, sp->layer_begin, sp->layer_end);
        bytes += pages(plan_kv_bytes(m, n, p->n_blocks[k], p->kv_type));
    }
    /* The slots that it receives hidden state through, in both banks, and the lanes beside them. */
    uint64_t slot = (uint64_t)p->rows_max * m->n_embd * sizeof(float);
    if (s > 0 && !p->one_process)
        bytes += pages(PLAN_CUDA_LANES_BYTES + BOUNDARY_BANKS * BOUNDARY_SLOTS * slot);
    return bytes;
}
