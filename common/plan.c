/* One set of formulas for the plan and for the allocations: a layout is a list of pieces, each
 * taken from a running end. */
#include "common/plan.h"

#include "common/amount.h"
#include "common/boundary.h"
#include "common/journal.h"
#include "common/kvclass.h"
#include "common/readback.h"
#include "common/wire.h"

#include <stdio.h>
#include <string.h>

/* Room for n pieces of `bytes` each at the end of a layout. */
static uint64_t take(uint64_t *end, uint64_t n, uint64_t bytes)
{
    uint64_t at = *end;
    *end += (n * bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return at;
}

uint32_t plan_blocks_per_ctx(uint32_t n_ctx)
{
    return (uint32_t)(((uint64_t)n_ctx + KV_BLOCK - 1) / KV_BLOCK);
}

uint32_t plan_window_blocks(const model_desc *m, uint32_t n_ctx, uint32_t rows_max)
{
    if (m->window == 0) return 0;
    uint64_t span = (uint64_t)m->window - 1 + rows_max; /* positions that the rows read or write */
    uint64_t n = (span + KV_BLOCK - 2) / KV_BLOCK + 1;
    uint64_t all = plan_blocks_per_ctx(n_ctx);
    return (uint32_t)(n < all ? n : all);
}

/* The rotations of a step's rows, for each kind of layer. */
static void take_angles(scratch_layout *out, uint64_t *end, const model_desc *m, uint64_t rows)
{
    for (uint32_t k = 0; k < LAYER_KINDS; k++) {
        uint64_t n_pairs = model_rope_of(m, (layer_kind)k)->n_rot / 2;
        out->frequency[k] = take(end, n_pairs, sizeof(double));
        out->cos[k] = take(end, rows * n_pairs, sizeof(float));
        out->sin[k] = take(end, rows * n_pairs, sizeof(float));
    }
}

void scratch_layout_make(scratch_layout *out, const model_desc *m, uint32_t rows_max,
                         uint32_t n_ctx, stage_role role)
{
    uint64_t r = rows_max, end = 0, f32 = sizeof(float), u32 = sizeof(uint32_t);
    uint64_t q_width = (uint64_t)m->n_heads * m->n_head, n_kinds = model_n_kinds(m);
    uint64_t kv_width = (uint64_t)m->n_kv_heads * m->n_head;
    out->hidden = take(&end, r * m->n_embd, f32);
    out->normed = take(&end, r * m->n_embd, f32);
    out->q = take(&end, r * q_width, f32);
    out->k = take(&end, r * kv_width, f32);
    out->v = take(&end, r * kv_width, f32);
    out->attn = take(&end, r * q_width, f32);
    out->gate = take(&end, r * m->n_ff, f32);
    out->up = take(&end, r * m->n_ff, f32);
    take_angles(out, &end, m, r);
    out->tokens = take(&end, r, u32);
    out->position = take(&end, r, u32);
    out->table = take(&end, n_kinds * r, u32);
    out->tables = take(&end, n_kinds * r * plan_blocks_per_ctx(n_ctx), u32);
    out->live = take(&end, r, 1);
    out->finite = take(&end, r + PLAN_HEAD_ROWS, 1);
    out->came = take(&end, 1, PLAN_CAME_BYTES);
    out->sent = take(&end, role.keeps ? r * m->n_embd : 0, f32);
    out->logits = out->kept_logits = out->sampler = end;
    if (role.last_stage) {
        out->logits = take(&end, (uint64_t)PLAN_LOGITS_ROWS * m->n_vocab, f32);
        out->kept_logits = take(&end, (uint64_t)PLAN_LOGITS_ROWS * m->n_vocab, f32);
        out->sampler = take(&end, role.on_cuda ? 0 : 1, sampler_scratch_bytes(m->n_vocab));
    }
    out->bytes = end;
}

void host_layout_make(host_layout *out, const model_desc *m, const stage_limits *l)
{
    uint64_t r = l->rows_max, end = 0, f32 = sizeof(float), u32 = sizeof(uint32_t);
    uint64_t per_ctx = plan_blocks_per_ctx(l->n_ctx), n_kinds = model_n_kinds(m);
    out->rows = take(&end, 2 * r, sizeof(wire_row));
    out->tokens = take(&end, r, u32);
    out->position = take(&end, r, u32);
    out->table = take(&end, n_kinds * r, u32);
    out->tables = take(&end, n_kinds * r * per_ctx, u32);
    out->live = take(&end, r, 1);
    out->finite = take(&end, r + PLAN_HEAD_ROWS, 1);
    out->came = take(&end, 1, PLAN_CAME_BYTES);
    out->none_came = take(&end, 1, PLAN_CAME_BYTES);
    out->sent = take(&end, l->keeps ? r * m->n_embd : 0, f32);
    out->readback_seen = take(&end, l->n_readback, u32);
    out->branches = take(&end, l->n_branches, PLAN_BRANCH_BYTES);
    for (uint32_t k = 0; k < KV_POOLS; k++) {
        out->branch_tables[k] = take(&end, k < n_kinds ? l->n_branches * per_ctx : 0, u32);
        out->block_users[k] = take(&end, l->n_blocks[k], u32);
    }
    out->history = out->logits = out->sample_rows = out->sample_results = end;
    if (l->last_stage) {
        out->history = take(&end, (uint64_t)l->n_blocks[KV_CLASS_GLOBAL] * KV_BLOCK, u32);
        out->logits = take(&end, (uint64_t)PLAN_LOGITS_ROWS * m->n_vocab, f32);
        out->sample_rows = take(&end, PLAN_HEAD_ROWS, PLAN_SAMPLE_BYTES);
        out->sample_results = take(&end, PLAN_HEAD_ROWS, PLAN_RESULT_BYTES);
    }
    out->bytes = end;
}

uint64_t plan_kv_bytes(const model_desc *m, uint32_t n_layers, uint32_t n_blocks, dtype kv_type)
{
    uint64_t pool = (uint64_t)n_blocks * m->n_kv_heads * KV_BLOCK * m->n_head;
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

/* GPUs are fast with many rows; over several stages the chunks of a prompt overlap. */
static uint32_t chunk_default(const doors *d)
{
    for (uint32_t i = 0; i < d->n_devices; i++) {
        if (d->device[i].kind == DEVICE_CUDA)
            return d->n_stages == 1 ? PLAN_CHUNK_CUDA : PLAN_CHUNK_CUDA_PIPE;
    }
    return PLAN_CHUNK_DEFAULT;
}

/* Rows that a step can have: of a prompt, or one of each session. */
static uint32_t rows_there(const plan *p)
{
    return p->n_ctx > p->n_sessions ? p->n_ctx : p->n_sessions;
}

/* The request with its defaults filled in, checked. */
static status settle(plan *p, const model_desc *m, const doors *d, const plan_request *r, errmsg *e)
{
    p->n_ctx = r->n_ctx != 0 ? r->n_ctx : at_most(PLAN_CTX_DEFAULT, m->n_ctx_train);
    p->n_sessions = r->n_sessions != 0 ? r->n_sessions : PLAN_SESSIONS_DEFAULT;
    p->rows_max = r->n_chunk != 0 ? r->n_chunk : at_most(chunk_default(d), rows_there(p));
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

static uint64_t class_bytes(const plan *p, const model_desc *m, uint32_t class, uint32_t begin,
                            uint32_t end, uint32_t n_blocks)
{
    return plan_kv_bytes(m, model_n_layers_of(m, (layer_kind)class, begin, end), n_blocks,
                         p->kv_type);
}

/* What one session fills and what a block of each class costs in all layers. */
typedef struct {
    uint64_t n[KV_POOLS], block_bytes[KV_POOLS], bytes;
} session_need;

static session_need need_of(const plan *p, const model_desc *m)
{
    session_need one = {.n = {plan_blocks_per_ctx(p->n_ctx),
                              plan_window_blocks(m, p->n_ctx, p->rows_max)}};
    for (uint32_t k = 0; k < KV_POOLS; k++) {
        one.block_bytes[k] = class_bytes(p, m, k, 0, m->n_layers, 1);
        one.bytes += one.n[k] * one.block_bytes[k];
    }
    return one;
}

static status too_few(const plan *p, const session_need *one, uint64_t kv_bytes, errmsg *e)
{
    /* While a context is shorter than the window both classes grow with it. */
    uint64_t both = one->block_bytes[KV_CLASS_GLOBAL] + one->block_bytes[KV_CLASS_WINDOW];
    uint64_t window_bytes = one->n[KV_CLASS_WINDOW] * one->block_bytes[KV_CLASS_WINDOW];
    uint64_t n = kv_bytes < one->n[KV_CLASS_WINDOW] * both
                     ? kv_bytes / both
                     : (kv_bytes - window_bytes) / one->block_bytes[KV_CLASS_GLOBAL];
    char fits[80] = "not even the smallest context fits";
    if (n > 0) {
        snprintf(fits, sizeof fits, "a context of %llu would fit",
                 (unsigned long long)(n * KV_BLOCK));
    }
    return errmsg_set(e, ST_RESOURCES,
                      "%llu byte%s of KV: too few for one session of context %u, which needs "
                      "%llu: %s (--kv-bytes, --ctx)",
                      (unsigned long long)kv_bytes, plural(kv_bytes), p->n_ctx,
                      (unsigned long long)one->bytes, fits);
}

/* How many blocks the run gets: what all sessions fill, or what kv_bytes pays for: the window class
 * its share, which holds one session's window at least, and the global class the rest. */
static status settle_blocks(plan *p, const model_desc *m, uint64_t kv_bytes, errmsg *e)
{
    session_need one = need_of(p, m);
    if (one.bytes > PLAN_BYTES_MAX / p->n_sessions) {
        return errmsg_set(e, ST_RESOURCES,
                          "%u session%s of context %u need%s more than 2^60 bytes of KV: fewer "
                          "sessions or a smaller context would fit",
                          p->n_sessions, plural(p->n_sessions), p->n_ctx,
                          p->n_sessions == 1 ? "s" : "");
    }
    uint64_t all_bytes = one.bytes * p->n_sessions;
    for (uint32_t k = 0; k < KV_POOLS; k++)
        p->n_blocks[k] = (uint32_t)(one.n[k] * p->n_sessions);
    if (kv_bytes == 0 || kv_bytes >= all_bytes) return ST_OK;
    if (kv_bytes < one.bytes) return too_few(p, &one, kv_bytes, e);
    uint64_t window = (uint64_t)((unsigned __int128)p->n_blocks[KV_CLASS_WINDOW] * kv_bytes /
                                 all_bytes);
    if (window < one.n[KV_CLASS_WINDOW]) window = one.n[KV_CLASS_WINDOW];
    p->n_blocks[KV_CLASS_WINDOW] = (uint32_t)window;
    if (one.block_bytes[KV_CLASS_GLOBAL] == 0) return ST_OK;
    uint64_t rest = kv_bytes - window * one.block_bytes[KV_CLASS_WINDOW];
    uint64_t global = rest / one.block_bytes[KV_CLASS_GLOBAL];
    if (global < p->n_blocks[KV_CLASS_GLOBAL]) p->n_blocks[KV_CLASS_GLOBAL] = (uint32_t)global;
    return ST_OK;
}

static uint64_t slots_bytes(const plan *p, const model_desc *m, uint32_t s)
{
    if (p->cuts.n_stages == 1) return 0;
    /* The first stage receives sampled tokens from the last: no hidden state. */
    return s == 0 ? boundary_bytes(p->rows_max, 0, 0)
                  : boundary_bytes(p->rows_max, m->n_embd, m->aux_bytes);
}

/* stage/edges.c: the rows of a crossing, and the pattern of a probe; stage/rounds.c: a step's. */
static uint64_t edges_bytes(const plan *p, const model_desc *m)
{
    uint64_t rows = p->rows_max > p->n_sessions ? p->rows_max : p->n_sessions;
    uint64_t bytes = rows * (sizeof(wire_row) + sizeof(uint32_t));
    if (p->cuts.n_stages == 1) return bytes;
    return bytes + p->rows_max * (sizeof(row_header) + (uint64_t)m->n_embd * sizeof(float));
}

static bool has_blocks(const tensor_ref *t)
{
    return t->t != NULL && dtype_get(t->t->type)->block_values > 1;
}

/* kernels/cpu/fixed.h: a chunk's rows for the widest product with quantised weights, 9/4 bytes a
 * value, in huge pages. */
static uint64_t fixed_bytes(const plan *p, const model_desc *m, const stage_plan *s)
{
    if (s->device.kind != DEVICE_CPU) return 0;
    bool any = s->layer_end == m->n_layers && has_blocks(&m->output);
    for (uint32_t il = s->layer_begin; il < s->layer_end && !any; il++) {
        const layer_desc *l = &m->layer[il];
        any = has_blocks(&l->attn_q) || has_blocks(&l->attn_v) || has_blocks(&l->attn_output) ||
              has_blocks(&l->ffn_gate) || has_blocks(&l->ffn_down);
    }
    if (!any) return 0;
    uint64_t width = (uint64_t)m->n_heads * m->n_head;
    if (width < m->n_embd) width = m->n_embd;
    if (width < m->n_ff) width = m->n_ff;
    uint64_t bytes = p->rows_max * width * 9 / 4, page = 2u << 20;
    bytes = (bytes + page - 1) / page * page;
    return bytes < PLAN_FIXED_BYTES ? bytes : PLAN_FIXED_BYTES;
}

static bool on_device(const stage_plan *s)
{
    return s->device.kind == DEVICE_CUDA;
}

/* coordinator/engine: of each session its tokens, tables by class and links of blocks (kvbooks.c);
 * the mirror's tables and tokens (mirror.c); where prefixes can be shared, those of each block
 * (prefix.c). */
static uint64_t books_bytes(const plan *p, const model_desc *m)
{
    const uint64_t u32 = sizeof(uint32_t), link = 16, prefix_entry = 40;
    uint64_t per_ctx = plan_blocks_per_ctx(p->n_ctx), n_kinds = model_n_kinds(m);
    uint64_t n_blocks = p->n_blocks[KV_CLASS_GLOBAL];
    uint64_t session = p->n_ctx * u32 + per_ctx * (n_kinds * u32 + link);
    uint64_t bytes = p->n_sessions * (session + n_kinds * per_ctx * u32);
    bytes += n_blocks * (KV_BLOCK + 1) * u32;
    if (n_kinds == 1) bytes += n_blocks * (KV_BLOCK * u32 + prefix_entry);
    return bytes;
}

/* All sizes, from the settled numbers and the cuts. */
static void fill_bytes(plan *p, const model_desc *m)
{
    uint32_t n = p->cuts.n_stages;
    p->readback_bytes = readback_bytes(p->n_readback, m->n_vocab, p->n_sessions);
    p->run_block_bytes = sizeof(run_block);
    p->slots_total_bytes = p->weights_total_bytes = 0;
    p->n_journal_blocks = at_most(p->n_journal_blocks, p->n_blocks[KV_CLASS_GLOBAL]);
    p->journal_bytes =
        p->n_journal_blocks > 0 ? (n - 1) * journal_bytes(p->n_journal_blocks, m->n_embd) : 0;
    p->coordinator_bytes = PLAN_PROCESS_BYTES + m->n_vocab * PLAN_PIECE_BYTES + books_bytes(p, m);
    p->total_bytes =
        p->readback_bytes + p->run_block_bytes + p->coordinator_bytes + p->journal_bytes;
    for (uint32_t s = 0; s < n; s++) {
        stage_plan *sp = &p->stage[s];
        scratch_layout scratch;
        host_layout host;
        stage_limits limits = {.n_ctx = p->n_ctx,
                               .n_branches = p->n_sessions,
                               .rows_max = p->rows_max,
                               .n_readback = p->n_readback,
                               .last_stage = s + 1 == n,
                               .keeps =
                                   on_device(&p->stage[s]) && s + 1 < n && p->n_journal_blocks > 0};
        memcpy(limits.n_blocks, p->n_blocks, sizeof limits.n_blocks);
        const stage_role role = {limits.last_stage, limits.keeps, on_device(sp)};
        scratch_layout_make(&scratch, m, p->rows_max, p->n_ctx, role);
        host_layout_make(&host, m, &limits);
        sp->layer_begin = p->cuts.at[s];
        sp->layer_end = p->cuts.at[s + 1];
        sp->weights_bytes = 0;
        p->stage[p->gathered ? 0 : s].weights_bytes += fence_stage_bytes(&p->cuts, m, s);
        sp->kv_bytes = 0;
        for (uint32_t k = 0; k < KV_POOLS; k++)
            sp->kv_bytes += class_bytes(p, m, k, sp->layer_begin, sp->layer_end, p->n_blocks[k]);
        sp->scratch_bytes = scratch.bytes;
        sp->host_bytes = host.bytes;
        sp->process_bytes = PLAN_PROCESS_BYTES + edges_bytes(p, m) + fixed_bytes(p, m, sp);
        sp->slots_bytes = slots_bytes(p, m, s);
        if (p->one_process) sp->slots_bytes = 0;
        if (p->one_process)
            sp->process_bytes = s == 0 ? PLAN_PROCESS_BYTES + fixed_bytes(p, m, sp) : 0;
        sp->device_bytes = on_device(sp) ? plan_cuda_bytes(p, m, s) : 0;
        p->slots_total_bytes += sp->slots_bytes;
        p->weights_total_bytes += fence_stage_bytes(&p->cuts, m, s);
        p->total_bytes += sp->kv_bytes + sp->scratch_bytes + sp->host_bytes + sp->process_bytes +
                          sp->slots_bytes;
    }
}

/* Blocks of one journal, as many as the bound has room for. */
static uint32_t journal_blocks(const plan *p, const model_desc *m, uint64_t bound)
{
    uint32_t n_journals = p->cuts.n_stages - 1, all = p->n_blocks[KV_CLASS_GLOBAL];
    if (n_journals == 0 || bound == 0 || p->one_process) return 0;
    uint64_t none = journal_bytes(0, m->n_embd), block = journal_bytes(1, m->n_embd) - none;
    uint64_t each = bound / n_journals;
    if (each < none) return 0;
    uint64_t n = (each - none) / block;
    return n < all ? (uint32_t)n : all;
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
    TRY(fence_plan_costs(&out->cuts, d, m, r->costs ? r->cost : NULL, e));
    out->one_process = !d->streams && out->cuts.n_stages > 1;
    out->gathered = !d->shard && out->cuts.n_stages > 1 && !out->one_process;
    TRY(settle(out, m, d, r, e));
    TRY(settle_blocks(out, m, r->kv_bytes, e));
    for (uint32_t s = 0; s < out->cuts.n_stages; s++)
        out->stage[s].device = device_of(d, s);
    out->n_journal_blocks = journal_blocks(out, m, r->journal_bytes);
    out->journal_may_go = r->journal_bytes == PLAN_JOURNAL_ALL;
    fill_bytes(out, m);
    return ST_OK;
}

/* Of the host. A tied head that two stages map lies in the page cache once. What a CUDA device
 * holds is not the host's: its weights pass through the page cache and need not stay there, but for
 * the embedding, which the device reads where it lies. */
uint64_t plan_needed_bytes(const plan *p, const model_desc *m)
{
    const stage_plan *first = &p->stage[0], *last = &p->stage[p->cuts.n_stages - 1];
    bool twice = m->tied && first != last && !on_device(first) && !on_device(last);
    uint64_t n = p->total_bytes + p->weights_total_bytes - (twice ? m->output.t->bytes : 0);
    for (uint32_t s = 0; s < p->cuts.n_stages; s++) {
        const stage_plan *sp = &p->stage[s];
        if (!on_device(sp)) continue;
        n -= sp->weights_bytes + sp->kv_bytes + sp->scratch_bytes;
        if (s == 0) n += m->token_embd.t->bytes;
    }
    return n;
}

static uint64_t stage_bytes(const stage_plan *s)
{
    return s->weights_bytes + s->kv_bytes + s->scratch_bytes + s->host_bytes + s->process_bytes +
           s->slots_bytes;
}

/* The largest context with which p would need at most free_bytes, 0: none. The chunk shrinks with
 * the context as a default chunk does. */
static uint32_t context_that_fits(const plan *p, const model_desc *m, uint64_t free_bytes)
{
    uint32_t fits = 0, too_large = p->n_ctx;
    while (too_large - fits > 1) {
        plan q = *p;
        q.n_ctx = fits + (too_large - fits) / 2;
        q.rows_max = at_most(q.rows_max, rows_there(&q));
        session_need one = need_of(&q, m);
        for (uint32_t k = 0; k < KV_POOLS; k++) {
            uint64_t n_blocks = q.n_sessions * one.n[k];
            if (n_blocks < q.n_blocks[k]) q.n_blocks[k] = (uint32_t)n_blocks;
        }
        fill_bytes(&q, m);
        if (plan_needed_bytes(&q, m) <= free_bytes) {
            fits = q.n_ctx;
        } else {
            too_large = q.n_ctx;
        }
    }
    return fits;
}

status plan_fits(plan *p, const model_desc *m, uint64_t free_bytes, errmsg *e)
{
    if (free_bytes != 0 && plan_needed_bytes(p, m) > free_bytes && p->journal_may_go) {
        p->n_journal_blocks = 0;
        fill_bytes(p, m);
    }
    if (free_bytes == 0 || plan_needed_bytes(p, m) <= free_bytes) return ST_OK;
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
        "the run needs %s and %s are free; the largest stage is %u (layers %u-%u) with %s: weights "
        "%s, KV %s, scratch %s; %u session%s of context %u; %s",
        amount_said(plan_needed_bytes(p, m)), amount_said(free_bytes), largest, l->layer_begin,
        l->layer_end - 1, amount_said(stage_bytes(l)), amount_said(l->weights_bytes),
        amount_said(l->kv_bytes),
        amount_said(l->scratch_bytes + l->host_bytes + l->process_bytes + l->slots_bytes),
        p->n_sessions, plural(p->n_sessions), p->n_ctx, fits);
}
