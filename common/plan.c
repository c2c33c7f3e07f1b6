/* One set of formulas for the plan and for the allocations: a layout is a list of pieces, each
 * taken from a running end. KV_BLOCK is the backend's; common/ must not include kernels/, so that
 * the number is repeated here and compared by stage/kv.c. */
#include "common/plan.h"

#include "common/boundary.h"
#include "common/readback.h"
#include "common/wire.h"

#include <stdio.h>
#include <string.h>

#define BLOCK_POSITIONS 64u

/* Room for n pieces of `bytes` each at the end of a layout. */
static uint64_t take(uint64_t *end, uint64_t n, uint64_t bytes)
{
    uint64_t at = *end;
    *end += (n * bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return at;
}

uint32_t plan_blocks_per_ctx(uint32_t n_ctx)
{
    return (uint32_t)(((uint64_t)n_ctx + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS);
}

void scratch_layout_make(scratch_layout *out, const model_desc *m, uint32_t rows_max,
                         uint32_t n_ctx, bool last_stage)
{
    uint64_t r = rows_max, end = 0, f32 = sizeof(float), u32 = sizeof(uint32_t);
    uint64_t q_width = (uint64_t)m->n_heads * m->n_head;
    uint64_t kv_width = (uint64_t)m->n_kv_heads * m->n_head;
    out->hidden = take(&end, r * m->n_embd, f32);
    out->normed = take(&end, r * m->n_embd, f32);
    out->q = take(&end, r * q_width, f32);
    out->k = take(&end, r * kv_width, f32);
    out->v = take(&end, r * kv_width, f32);
    out->attn = take(&end, r * q_width, f32);
    out->gate = take(&end, r * m->n_ff, f32);
    out->up = take(&end, r * m->n_ff, f32);
    out->cos = take(&end, r * (m->rope.n_rot / 2), f32);
    out->sin = take(&end, r * (m->rope.n_rot / 2), f32);
    out->tokens = take(&end, r, u32);
    out->position = take(&end, r, u32);
    out->table = take(&end, r, u32);
    out->tables = take(&end, r * plan_blocks_per_ctx(n_ctx), u32);
    out->live = take(&end, r, 1);
    out->finite = take(&end, r, 1);
    out->logits = end;
    if (last_stage) out->logits = take(&end, (uint64_t)PLAN_LOGITS_ROWS * m->n_vocab, f32);
    out->bytes = end;
}

void host_layout_make(host_layout *out, const model_desc *m, const stage_limits *l)
{
    uint64_t r = l->rows_max, end = 0, f32 = sizeof(float), u32 = sizeof(uint32_t);
    uint64_t per_ctx = plan_blocks_per_ctx(l->n_ctx);
    out->rows = take(&end, r, sizeof(wire_row));
    out->tokens = take(&end, r, u32);
    out->position = take(&end, r, u32);
    out->table = take(&end, r, u32);
    out->tables = take(&end, r * per_ctx, u32);
    out->live = take(&end, r, 1);
    out->finite = take(&end, r, 1);
    out->cos = take(&end, r * (m->rope.n_rot / 2), f32);
    out->sin = take(&end, r * (m->rope.n_rot / 2), f32);
    out->readback_seen = take(&end, l->n_readback, u32);
    out->branches = take(&end, l->n_branches, PLAN_BRANCH_BYTES);
    out->branch_tables = take(&end, l->n_branches * per_ctx, u32);
    out->block_users = take(&end, l->n_blocks, u32);
    out->history = out->logits = out->sampler = end;
    if (l->last_stage) {
        out->history = take(&end, (uint64_t)l->n_blocks * BLOCK_POSITIONS, u32);
        out->logits = take(&end, (uint64_t)PLAN_LOGITS_ROWS * m->n_vocab, f32);
        out->sampler = take(&end, 1, sampler_scratch_bytes(m->n_vocab));
    }
    out->bytes = end;
}

uint64_t plan_kv_bytes(const model_desc *m, uint32_t n_layers, uint32_t n_blocks, dtype kv_type)
{
    uint64_t pool = (uint64_t)n_blocks * m->n_kv_heads * BLOCK_POSITIONS * m->n_head;
    return 2 * (uint64_t)n_layers * dtype_bytes(kv_type, pool);
}

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

static status in_range(const char *what, uint64_t n, uint64_t most, errmsg *e)
{
    if (n >= 1 && n <= most) return ST_OK;
    return errmsg_set(e, ST_USAGE, "%s of %llu is out of range: 1 to %llu", what,
                      (unsigned long long)n, (unsigned long long)most);
}

/* The request with its defaults filled in, checked. */
static status settle(plan *p, const model_desc *m, const doors *d, const plan_request *r, errmsg *e)
{
    p->n_ctx = r->n_ctx != 0 ? r->n_ctx : at_most(PLAN_CTX_DEFAULT, m->n_ctx_train);
    p->n_sessions = r->n_sessions != 0 ? r->n_sessions : PLAN_SESSIONS_DEFAULT;
    p->rows_max = r->n_chunk != 0 ? r->n_chunk : at_most(PLAN_CHUNK_DEFAULT, p->n_ctx);
    p->n_readback = r->n_readback != 0 ? r->n_readback : PLAN_READBACK_DEFAULT;
    p->kv_type = r->kv_type;
    if (d->step.prime_chunk > p->rows_max) p->rows_max = d->step.prime_chunk;
    TRY(in_range("a context", p->n_ctx, PLAN_CTX_MAX, e));
    TRY(in_range("a number of sessions", p->n_sessions, PLAN_SESSIONS_MAX, e));
    TRY(in_range("a prompt chunk", p->rows_max, WIRE_ROWS_MAX, e));
    TRY(in_range("a number of readback rows", p->n_readback, PLAN_READBACK_MAX, e));
    if (p->kv_type != DT_F32 && p->kv_type != DT_F16 && p->kv_type != DT_BF16) {
        const dtype_info *t = dtype_get(p->kv_type);
        return errmsg_set(e, ST_USAGE, "a KV cache of %s does not exist: f32, f16 or bf16",
                          t != NULL ? t->name : "an unknown type");
    }
    return ST_OK;
}

/* How many blocks the run gets: sessions x context, or as many as kv_bytes pays for. */
static status settle_blocks(plan *p, const model_desc *m, uint64_t kv_bytes, errmsg *e)
{
    uint32_t per_ctx = plan_blocks_per_ctx(p->n_ctx);
    uint64_t block_bytes = plan_kv_bytes(m, m->n_layers, 1, p->kv_type);
    uint64_t n_blocks = (uint64_t)p->n_sessions * per_ctx;
    if (kv_bytes != 0 && kv_bytes / block_bytes < n_blocks) n_blocks = kv_bytes / block_bytes;
    if (n_blocks < per_ctx) {
        char fits[80] = "not even the smallest context fits";
        if (n_blocks > 0) {
            snprintf(fits, sizeof fits, "a context of %llu would fit",
                     (unsigned long long)(n_blocks * BLOCK_POSITIONS));
        }
        return errmsg_set(e, ST_USAGE,
                          "%llu bytes of KV are too few for one session of context %u, which needs "
                          "%llu: %s",
                          (unsigned long long)kv_bytes, p->n_ctx,
                          (unsigned long long)(per_ctx * block_bytes), fits);
    }
    if (n_blocks > PLAN_BYTES_MAX / block_bytes) {
        return errmsg_set(e, ST_USAGE,
                          "%u sessions of context %u need more than 2^60 bytes of KV: fewer "
                          "sessions or a smaller context would fit",
                          p->n_sessions, p->n_ctx);
    }
    p->n_blocks = (uint32_t)n_blocks;
    return ST_OK;
}

static uint64_t slots_bytes(const plan *p, const model_desc *m, uint32_t s)
{
    if (p->cuts.n_stages == 1) return 0;
    /* The first stage receives sampled tokens from the last: no hidden state. */
    return s == 0 ? boundary_bytes(p->rows_max, 0, 0)
                  : boundary_bytes(p->rows_max, m->n_embd, m->aux_bytes);
}

/* All sizes, from the settled numbers and the cuts. */
static void fill_bytes(plan *p, const model_desc *m)
{
    uint32_t n = p->cuts.n_stages;
    p->readback_bytes = readback_bytes(p->n_readback, m->n_vocab);
    p->run_block_bytes = sizeof(run_block);
    p->slots_total_bytes = p->journal_bytes = p->weights_total_bytes = 0;
    p->total_bytes = p->readback_bytes + p->run_block_bytes;
    for (uint32_t s = 0; s < n; s++) {
        stage_plan *sp = &p->stage[s];
        scratch_layout scratch;
        host_layout host;
        stage_limits limits = {p->n_ctx,      p->n_sessions, p->rows_max,
                               p->n_readback, p->n_blocks,   s + 1 == n};
        scratch_layout_make(&scratch, m, p->rows_max, p->n_ctx, s + 1 == n);
        host_layout_make(&host, m, &limits);
        sp->layer_begin = p->cuts.at[s];
        sp->layer_end = p->cuts.at[s + 1];
        sp->weights_bytes = fence_stage_bytes(&p->cuts, m, s);
        sp->kv_bytes = plan_kv_bytes(m, sp->layer_end - sp->layer_begin, p->n_blocks, p->kv_type);
        sp->scratch_bytes = scratch.bytes;
        sp->host_bytes = host.bytes;
        sp->slots_bytes = slots_bytes(p, m, s);
        p->slots_total_bytes += sp->slots_bytes;
        p->weights_total_bytes += sp->weights_bytes;
        p->total_bytes += sp->kv_bytes + sp->scratch_bytes + sp->host_bytes + sp->slots_bytes;
    }
}

static device_door device_of(const doors *d, uint32_t s)
{
    device_door device = {.kind = DEVICE_CPU};
    if (s < d->n_devices && d->device[s].kind != DEVICE_AUTO) device = d->device[s];
    return device;
}

status plan_make(plan *out, const model_desc *m, const doors *d, const plan_request *r, errmsg *e)
{
    memset(out, 0, sizeof *out);
    if (m->n_vocab > SAMPLER_VOCAB_MAX) {
        return errmsg_set(e, ST_BAD_MODEL, "a vocabulary of %u tokens: the sampler knows %u",
                          m->n_vocab, SAMPLER_VOCAB_MAX);
    }
    TRY(fence_plan(&out->cuts, d, m, e));
    TRY(settle(out, m, d, r, e));
    TRY(settle_blocks(out, m, r->kv_bytes, e));
    for (uint32_t s = 0; s < out->cuts.n_stages; s++)
        out->stage[s].device = device_of(d, s);
    fill_bytes(out, m);
    return ST_OK;
}

/* A tied head that two stages map lies in the page cache once. */
static uint64_t needed_bytes(const plan *p, const model_desc *m)
{
    uint64_t twice = m->tied && p->cuts.n_stages > 1 ? m->output.t->bytes : 0;
    return p->total_bytes + p->weights_total_bytes - twice;
}

static uint64_t stage_bytes(const stage_plan *s)
{
    return s->weights_bytes + s->kv_bytes + s->scratch_bytes + s->host_bytes + s->slots_bytes;
}

/* The largest context with which p would need at most free_bytes, 0: none. The chunk shrinks with
 * the context as a default chunk does. */
static uint32_t context_that_fits(const plan *p, const model_desc *m, uint64_t free_bytes)
{
    uint32_t fits = 0, too_large = p->n_ctx;
    while (too_large - fits > 1) {
        plan q = *p;
        q.n_ctx = fits + (too_large - fits) / 2;
        q.rows_max = at_most(q.rows_max, q.n_ctx);
        uint64_t n_blocks = (uint64_t)q.n_sessions * plan_blocks_per_ctx(q.n_ctx);
        if (n_blocks < q.n_blocks) q.n_blocks = (uint32_t)n_blocks;
        fill_bytes(&q, m);
        if (needed_bytes(&q, m) <= free_bytes) {
            fits = q.n_ctx;
        } else {
            too_large = q.n_ctx;
        }
    }
    return fits;
}

status plan_fits(const plan *p, const model_desc *m, uint64_t free_bytes, errmsg *e)
{
    const double mb = 1e6;
    if (free_bytes == 0 || needed_bytes(p, m) <= free_bytes) return ST_OK;
    uint32_t largest = 0;
    for (uint32_t s = 1; s < p->cuts.n_stages; s++) {
        if (stage_bytes(&p->stage[s]) > stage_bytes(&p->stage[largest])) largest = s;
    }
    const stage_plan *l = &p->stage[largest];
    char fits[80] = "no context would fit";
    uint32_t n_ctx = context_that_fits(p, m, free_bytes);
    if (n_ctx > 0) snprintf(fits, sizeof fits, "--ctx %u would fit", n_ctx);
    return errmsg_set(
        e, ST_RESOURCES,
        "the run needs %.1f MB and %.1f MB are free; the largest stage is %u (layers %u..%u) with "
        "%.1f MB: weights %.1f, KV %.1f, scratch %.1f; %u sessions of context %u; %s",
        (double)needed_bytes(p, m) / mb, (double)free_bytes / mb, largest, l->layer_begin,
        l->layer_end - 1, (double)stage_bytes(l) / mb, (double)l->weights_bytes / mb,
        (double)l->kv_bytes / mb, (double)(l->scratch_bytes + l->host_bytes + l->slots_bytes) / mb,
        p->n_sessions, p->n_ctx, fits);
}
