#include "stage/stage_impl.h"

#include "common/clock.h"
#include "common/log.h"
#include "kernels/peer.h"
#include "stage/fits.h"

#include <stdlib.h>
#include <string.h>

status stage_op_failed(const stage *s, status code, const char *op, errmsg *e)
{
    const char *call = s->b->failure != NULL ? s->b->failure(s->q) : "";
    return errmsg_set(e, code, "stage %u: the device (%s) failed in %s%s%s", s->config.stage_i,
                      s->b->device_name(s->device), op, call[0] != '\0' ? ": " : "", call);
}

status stage_walked(const stage *s, uint32_t n_layers_done, errmsg *e)
{
    if (s->on_progress == NULL ||
        s->on_progress(s->progress_ctx, n_layers_done, s->n_layers) == 0) {
        return ST_OK;
    }
    return errmsg_set(e, ST_CLOSED, "stage %u: told to stop", s->config.stage_i);
}

static status check_range(const char *field, uint64_t value, uint64_t min, uint64_t max, errmsg *e)
{
    if (value >= min && value <= max) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "configuration: %s %llu is out of range: %llu to %llu", field,
                      (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

static status check_config(const wire_config *c, const model_desc *m, errmsg *e)
{
    TRY(check_range("n_layers", c->n_layers, m->n_layers, m->n_layers, e));
    TRY(check_range("n_vocab", m->n_vocab, 1, SAMPLER_VOCAB_MAX, e));
    TRY(check_range("layer_end", c->layer_end, 1, m->n_layers, e));
    TRY(check_range("layer_begin", c->layer_begin, 0, c->layer_end - 1, e));
    TRY(check_range("n_ctx", c->n_ctx, 1, PLAN_CTX_MAX, e));
    TRY(check_range("n_branches", c->n_branches, 1, PLAN_SESSIONS_MAX, e));
    TRY(check_range("rows_max", c->rows_max, 1, WIRE_ROWS_MAX, e));
    TRY(check_range("n_readback", c->n_readback, 1, PLAN_READBACK_MAX, e));
    TRY(check_range("n_threads", c->n_threads, 1, UINT32_MAX, e));
    for (uint32_t i = 0; i < KV_CLASS_COUNT; i++) {
        if (i < model_n_kinds(m)) {
            TRY(check_range(i == KV_CLASS_GLOBAL ? "n_blocks" : "n_blocks of the window class",
                            c->n_blocks[i], 1,
                            PLAN_BYTES_MAX / plan_kv_bytes(m, m->n_layers, 1, DT_F32), e));
        } else {
            TRY(check_range("n_blocks of a class that this model lacks", c->n_blocks[i], 0, 0, e));
        }
    }
    if (c->kv_type != DT_F32 && c->kv_type != DT_F16 && c->kv_type != DT_BF16) {
        return errmsg_set(e, ST_PROTOCOL, "configuration: KV type %u is none", c->kv_type);
    }
    return ST_OK;
}

static status check_ops(const stage *s, errmsg *e)
{
    const struct {
        op_kind op;
        dtype type;
        const char *word;
    } needed[] = {
        {OP_RMS_NORM, DT_F32, "rms_norm"},
        {OP_ROPE, DT_F32, "rope"},
        {s->m->ffn == FFN_GEGLU ? OP_GELU_MUL : OP_SILU_MUL, DT_F32,
         s->m->ffn == FFN_GEGLU ? "gelu_mul" : "silu_mul"},
        {OP_ADD, DT_F32, "add"},
        {OP_COPY, DT_F32, "copy"},
        {OP_SAMPLE, DT_F32, "sample"},
        {OP_CHECK_FINITE, DT_F32, "check_finite"},
        {OP_KV_WRITE, s->kv.type, "kv_write"},
        {OP_ATTENTION, s->kv.type, "attention"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (s->b->supports(s->device, needed[i].op, needed[i].type)) continue;
        return errmsg_set(e, ST_BAD_MODEL, "device %s has no operation %s for %s",
                          s->b->device_name(s->device), needed[i].word,
                          dtype_get(needed[i].type)->name);
    }
    return ST_OK;
}

static status open_device(stage *s, const stage *beside, errmsg *e)
{
    s->beside = beside != NULL;
    if (beside != NULL) {
        s->device = beside->device;
        s->q = beside->q;
        return ST_OK;
    }
    s->config.isa[sizeof s->config.isa - 1] = '\0';
    s->config.cuda_uuid[sizeof s->config.cuda_uuid - 1] = '\0';
    device_spec spec = {.numa_node = s->config.numa_node,
                        .n_threads = s->config.n_threads,
                        .isa = s->config.isa[0] != '\0' ? s->config.isa : "auto",
                        .cuda_index = s->config.cuda_index,
                        .cuda_uuid = s->config.cuda_uuid};
    uint64_t begin_ns = now_ns();
    TRY(s->b->device_open(&s->device, &spec, e));
    TRY(s->b->queue_open(s->device, &s->q, e));
    log_debug("stage %u: %s opened in %.3f s", s->config.stage_i, s->b->device_name(s->device),
              (double)(now_ns() - begin_ns) / NS_PER_S);
    return ST_OK;
}

/* KV, scratch and host memory, all that the stage will ever have. */
static stage_role role_of(const stage *s)
{
    return (stage_role){.last_stage = s->last, .keeps = s->keeps, .on_cuda = s->b->memory != NULL};
}

static status allocate(stage *s, errmsg *e)
{
    const wire_config *c = &s->config;
    stage_limits limits = {.n_ctx = c->n_ctx,
                           .n_branches = c->n_branches,
                           .rows_max = c->rows_max,
                           .n_readback = c->n_readback,
                           .last_stage = s->last,
                           .keeps = s->keeps};
    memcpy(limits.n_blocks, c->n_blocks, sizeof limits.n_blocks);
    scratch_layout_make(&s->at, s->m, c->rows_max, c->n_ctx, role_of(s));
    host_layout_make(&s->host_at, s->m, &limits);
    void *host;
    TRY(s->b->host_alloc(s->device, &host, s->host_at.bytes, e));
    s->host = host;
    TRY(s->b->alloc(s->device, &s->scratch, s->at.bytes, e));
    bool lends = s->loan != NULL && (c->loans & LOAN_UNSPLIT) != 0;
    const kv_place lent = {s->loan, c->stage_i, c->epoch};
    return kv_open(&s->kv, s->b, s->device, s->m, c->layer_begin, c->layer_end, (dtype)c->kv_type,
                   &limits, s->host, &s->host_at, lends ? &lent : NULL, e);
}

/* What the stage takes on its device. The slots of the boundary into it: stage/transport_ipc.c. */
static device_need need_of(const stage *s, const weights_options *load)
{
    const wire_config *c = &s->config;
    device_need n = {.backend = s->b,
                     .device = s->device,
                     .stage_i = c->stage_i,
                     .layer_begin = c->layer_begin,
                     .layer_end = c->layer_end,
                     .n_ctx = c->n_ctx,
                     .weights_bytes = stage_load_bytes(s, load),
                     .load_bytes = PLAN_CUDA_LOADER_BYTES};
    scratch_layout scratch;
    scratch_layout_make(&scratch, s->m, c->rows_max, c->n_ctx, role_of(s));
    n.scratch_bytes = scratch.bytes;
    for (uint32_t k = 0; k < s->n_kinds; k++) {
        uint32_t layers = model_n_layers_of(s->m, (layer_kind)k, c->layer_begin, c->layer_end);
        n.kv_bytes += plan_kv_bytes(s->m, layers, c->n_blocks[k], (dtype)c->kv_type);
    }
    if (!s->first && c->in_fd >= 0)
        n.slots_bytes = PLAN_CUDA_LANES_BYTES + PEER_BANKS * PEER_SLOTS * (uint64_t)c->rows_max *
                                                    s->m->n_embd * sizeof(float);
    return n;
}

static status load_weights(stage *s, const weights_options *load, const device_need *need,
                           errmsg *e)
{
    uint64_t held_bytes, begin_ns = now_ns();
    TRY(fits_begin_load(need, &held_bytes, e));
    TRY(stage_load(s, load, e));
    uint64_t bytes = stage_facts_get(s).weights_bytes;
    double gb = (double)bytes / 1e9, seconds = (double)(now_ns() - begin_ns) / NS_PER_S;
    log_debug("stage %u: %.3f GB of weights loaded in %.3f s, %.1f GB/s", s->config.stage_i, gb,
              seconds, gb / seconds);
    return fits_end_load(need, held_bytes, e);
}

/* By kind of layer; their frequencies on the device. */
static status make_ropes(stage *s, errmsg *e)
{
    for (uint32_t k = 0; k < s->n_kinds; k++) {
        const float *factors = k == LAYER_GLOBAL ? s->w.freq_factors : NULL;
        TRY(rope_make(&s->rope[k], model_rope_of(s->m, (layer_kind)k), factors, e));
        TRY_OP(upload, SCRATCH(s, frequency[k]), s->rope[k].frequency,
               s->rope[k].n_pairs * sizeof(double));
    }
    return ST_OK;
}

static status open_all(stage *s, const stage *beside, errmsg *e)
{
    TRY(open_device(s, beside, e));
    const weights_options load = {.file = s->file,
                                  .model = s->m,
                                  .layer_begin = s->config.layer_begin,
                                  .layer_end = s->config.layer_end,
                                  .backend = s->b,
                                  .device = s->device,
                                  .on_progress = s->on_progress,
                                  .progress_ctx = s->progress_ctx};
    s->kv.type = (dtype)s->config.kv_type;
    TRY(check_ops(s, e));
    TRY(weights_supported(&load, e));
    const device_need need = need_of(s, &load);
    TRY(fits_check(&need, e));
    TRY(allocate(s, e));
    TRY(load_weights(s, &load, &need, e));
    return s->w.layer != NULL ? stage_begin(s, e) : ST_OK;
}

status stage_begin(stage *s, errmsg *e)
{
    TRY(stage_walk_open(s, e));
    TRY(make_ropes(s, e));
    s->began = true;
    return ST_OK;
}

status stage_open(stage **out, const stage_options *o, errmsg *e)
{
    *out = NULL;
    TRY(check_config(o->config, o->model, e));
    stage *s = calloc(1, sizeof *s);
    if (s == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a stage");
    s->b = o->backend;
    s->config = *o->config;
    s->m = o->model;
    s->on_progress = o->on_progress;
    s->progress_ctx = o->progress_ctx;
    s->meanwhile = o->meanwhile;
    s->meanwhile_ctx = o->meanwhile_ctx;
    s->n_layers = s->config.layer_end - s->config.layer_begin;
    s->n_kinds = model_n_kinds(s->m);
    s->first = s->config.layer_begin == 0;
    s->last = s->config.layer_end == s->m->n_layers;
    s->keeps = !s->last && s->config.journal_out_fd >= 0 && !s->b->in_call;
    s->file = o->file;
    s->loan = o->loan;
    status result = open_all(s, o->beside, e);
    if (result != ST_OK) {
        stage_close(s);
        return result;
    }
    *out = s;
    return ST_OK;
}

void stage_close(stage *s)
{
    if (s == NULL) return;
    stage_give_back(s);
    errmsg ignored = {0};
    if (s->beside && stage_settle(s, &ignored) != ST_OK) log_debug("%s", ignored.text);
    if (s->q != NULL && !s->beside) s->b->queue_close(s->q);
    if (s->walk != NULL) s->b->walk_close(s->walk);
    kv_close(&s->kv);
    if (s->scratch.addr != 0) s->b->free(s->device, s->scratch, s->at.bytes);
    if (s->host != NULL) s->b->host_free(s->device, s->host);
    if (s->device != NULL && !s->beside) s->b->device_close(s->device);
    stage_unload(s);
    free(s);
}

stage_facts stage_facts_get(const stage *s)
{
    uint64_t bytes = s->n_borrowed > 0 && !s->first ? 0 : s->w.bytes;
    for (uint32_t i = 0; s->held != NULL && i + 1 < s->config.n_stages; i++)
        bytes += s->held[i].bytes;
    return (stage_facts){bytes, kv_bytes(&s->kv), s->at.bytes, s->host_at.bytes,
                         s->b->device_name(s->device)};
}

backend_queue *stage_queue(stage *s)
{
    return s->q;
}

dev_ptr stage_hidden(const stage *s)
{
    return SCRATCH(s, hidden);
}

dev_ptr stage_sent(const stage *s, float **host)
{
    *host = s->keeps ? HOST(s, float, sent) : NULL;
    return s->keeps ? SCRATCH(s, sent) : (dev_ptr){0};
}

status stage_kv_ops(stage *s, const wire_kv_op *ops, uint32_t n_ops, errmsg *e)
{
    return kv_ops(&s->kv, s->q, ops, n_ops, e);
}

status stage_settle(stage *s, errmsg *e)
{
    backend_event ev;
    TRY_OP(event_record, &ev);
    TRY_OP(event_wait, ev);
    return ST_OK;
}

void stage_reset(stage *s)
{
    kv_reset(&s->kv);
}

void stage_rewrite(stage *s, bool on)
{
    kv_rewrite(&s->kv, on);
}

uint32_t stage_block(const stage *s, const wire_row *r)
{
    return kv_block_of(&s->kv, r->branch, r->position);
}

status stage_embed(stage *s, errmsg *e)
{
    CHECK(s->first);
    TRY_OP(embed, SCRATCH(s, hidden), &s->w.token_embd, SCRATCH(s, tokens),
           s->m->embd_scale, s->n_rows);
    return ST_OK;
}
