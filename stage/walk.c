/* walk.c - the layer walk: the backend's operations in the order that the model's description asks
 * for. Rows of one step see each other's K and V after rounding to the cache type, as those of
 * earlier steps: all rows are written before attention reads. */
#include "stage/stage_impl.h"

/* Heads are rows of their own: q and k norms are n_head wide. */
static status norm_heads(stage *s, dev_ptr x, dev_ptr weight, uint32_t n_heads, errmsg *e)
{
    if (weight.addr == 0) return ST_OK;
    TRY_OP(rms_norm, x, x, weight, s->m->n_head, s->m->rms_eps, s->n_rows * n_heads);
    return ST_OK;
}

/* Several products of the same rows. */
static status multiply(stage *s, const dev_product *p, uint32_t n, dev_ptr x, errmsg *e)
{
    if (s->b->matmuls != NULL) {
        TRY_OP(matmuls, p, n, x, s->n_rows);
        return ST_OK;
    }
    for (uint32_t i = 0; i < n; i++)
        TRY_OP(matmul, p[i].out, p[i].w, x, p[i].bias, s->n_rows);
    return ST_OK;
}

/* Layers to run: the stage's own, or those of another that it has borrowed. */
typedef struct {
    const layer_weights *layer; /* [end - begin] */
    const kv_cache *kv;
    uint32_t begin, end;
} layer_span;

/* normed -> the block's output, added to the residual stream by the caller. */
static status attention_block(stage *s, const layer_span *x, uint32_t layer_i, errmsg *e)
{
    const model_desc *m = s->m;
    const layer_weights *w = &x->layer[layer_i];
    const layer_kind kind = m->layer[x->begin + layer_i].kind;
    const rope_desc *turn = model_rope_of(m, kind);
    const dev_ptr normed = SCRATCH(s, normed), q = SCRATCH(s, q), k = SCRATCH(s, k);
    const dev_ptr v = SCRATCH(s, v), attn = SCRATCH(s, attn);
    const uint32_t window = kind == LAYER_WINDOW ? m->window : 0;
    kv_args kv = kv_layer(x->kv, layer_i);
    row_args rows = {SCRATCH(s, position), stage_table(s, kind), SCRATCH(s, tables),
                     SCRATCH(s, live), s->n_positions, s->n_runs};
    rope_args rope = {SCRATCH(s, cos[kind]), SCRATCH(s, sin[kind]), turn->n_rot,
                      turn->kind == ROPE_NEOX};
    const dev_product qkv[3] = {{q, &w->attn_q, w->attn_q_bias}, /* [R, n_heads, n_head] */
                                {k, &w->attn_k, w->attn_k_bias}, /* [R, n_kv_heads, n_head] */
                                {v, &w->attn_v, w->attn_v_bias}};
    TRY(multiply(s, qkv, 3, normed, e));
    TRY(norm_heads(s, q, w->attn_q_norm, m->n_heads, e));
    TRY(norm_heads(s, k, w->attn_k_norm, m->n_kv_heads, e));
    if (s->b->turn_attention != NULL) {
        TRY_OP(turn_attention, attn, q, k, v, &rope, &kv, &rows, m->n_heads, m->attn_scale, window,
               s->n_rows);
    } else {
        TRY_OP(rope, q, &rope, m->n_heads, m->n_head, s->n_rows);
        TRY_OP(rope, k, &rope, m->n_kv_heads, m->n_head, s->n_rows);
        TRY_OP(kv_write, &kv, k, v, &rows, s->n_rows);
        TRY_OP(attention, attn, q, &kv, &rows, m->n_heads, m->attn_scale, window, s->n_rows);
    }
    TRY_OP(matmul, normed, &w->attn_output, attn, (dev_ptr){0}, s->n_rows); /* [R, n_embd] */
    return ST_OK;
}

static status ffn_block(stage *s, const layer_weights *w, errmsg *e)
{
    const dev_ptr normed = SCRATCH(s, normed), gate = SCRATCH(s, gate), up = SCRATCH(s, up);
    uint64_t n = (uint64_t)s->n_rows * s->m->n_ff;
    if (s->b->ffn != NULL) {
        TRY_OP(ffn, normed, &w->ffn_gate, &w->ffn_up, &w->ffn_down, normed, gate, up,
               s->m->ffn == FFN_GEGLU, s->n_rows);
        return ST_OK;
    }
    TRY_OP(matmul, gate, &w->ffn_gate, normed, (dev_ptr){0}, s->n_rows); /* [R, n_ff] */
    TRY_OP(matmul, up, &w->ffn_up, normed, (dev_ptr){0}, s->n_rows);
    switch (s->m->ffn) {
    case FFN_SWIGLU:
        TRY_OP(silu_mul, gate, gate, up, n);
        break;
    case FFN_GEGLU:
        TRY_OP(gelu_mul, gate, gate, up, n);
        break;
    }
    TRY_OP(matmul, normed, &w->ffn_down, gate, (dev_ptr){0}, s->n_rows); /* [R, n_embd] */
    return ST_OK;
}

/* A block's output, in normed, onto the residual stream, through its own norm if it has one; then
 * the next block's norm, if one follows, to normed. */
static status add_block(stage *s, dev_ptr post_norm, dev_ptr next_norm, errmsg *e)
{
    const model_desc *m = s->m;
    const dev_ptr hidden = SCRATCH(s, hidden), normed = SCRATCH(s, normed);
    if (post_norm.addr != 0)
        TRY_OP(rms_norm, normed, normed, post_norm, m->n_embd, m->rms_eps, s->n_rows);
    if (next_norm.addr != 0 && s->b->add_rms_norm != NULL) {
        TRY_OP(add_rms_norm, normed, hidden, normed, next_norm, m->n_embd, m->rms_eps, s->n_rows);
        return ST_OK;
    }
    TRY_OP(add, hidden, normed, (uint64_t)s->n_rows * m->n_embd);
    if (next_norm.addr != 0)
        TRY_OP(rms_norm, normed, hidden, next_norm, m->n_embd, m->rms_eps, s->n_rows);
    return ST_OK;
}

static status run_layer(stage *s, const layer_span *x, uint32_t layer_i, errmsg *e)
{
    const model_desc *m = s->m;
    const layer_weights *w = &x->layer[layer_i];
    if (layer_i == 0)
        TRY_OP(rms_norm, SCRATCH(s, normed), SCRATCH(s, hidden), w->attn_norm, m->n_embd,
               m->rms_eps, s->n_rows);
    TRY(attention_block(s, x, layer_i, e));
    TRY(add_block(s, w->attn_post_norm, w->ffn_norm, e));
    TRY(ffn_block(s, w, e));
    const dev_ptr next = x->begin + layer_i + 1 < x->end ? w[1].attn_norm : (dev_ptr){0};
    return add_block(s, w->ffn_post_norm, next, e);
}

static status run_span(stage *s, const layer_span *x, errmsg *e)
{
    for (uint32_t i = 0; i < x->end - x->begin; i++) {
        TRY(run_layer(s, x, i, e));
        TRY(stage_walked(s, i + 1, e));
    }
    return ST_OK;
}

static layer_span own_layers(const stage *s)
{
    return (layer_span){s->w.layer, &s->kv, s->config.layer_begin, s->config.layer_end};
}

void stage_mark_hidden(const stage *s, const wire_row *rows, uint32_t n_rows, poison_mark *poison)
{
    const uint8_t *finite = HOST(s, uint8_t, finite);
    for (uint32_t i = 0; i < n_rows; i++) {
        bool found = finite[i] != 0 && (rows[i].flags & ROW_LIVE) != 0;
        if (found && poison[i] == 0) poison[i] = poison_hidden(s->config.stage_i);
    }
}

/* Waits for the walk: its result is looked at before it leaves the stage. */
static status wait_finite(stage *s, poison_mark *poison, errmsg *e)
{
    backend_event ev;
    TRY_OP(download, HOST(s, void, finite), SCRATCH(s, finite), s->n_rows);
    TRY_OP(event_record, &ev);
    if (s->meanwhile != NULL) TRY(s->meanwhile(s->meanwhile_ctx, e));
    TRY_OP(event_wait, ev);
    stage_mark_hidden(s, s->rows, s->n_rows, poison);
    return ST_OK;
}

static status end_layers(stage *s, poison_mark *poison, errmsg *e)
{
    TRY_OP(check_finite, SCRATCH(s, finite), SCRATCH(s, hidden), s->m->n_embd, s->n_rows);
    return s->unchecked || poison == NULL ? ST_OK : wait_finite(s, poison, e);
}

/* --- one row in one launch ------------------------------------------------------------------ */

static walk_layer layer_of(const stage *s, uint32_t layer_i)
{
    const layer_weights *w = &s->w.layer[layer_i];
    return (walk_layer){.attn_norm = w->attn_norm,
                        .ffn_norm = w->ffn_norm,
                        .attn_q_norm = w->attn_q_norm,
                        .attn_k_norm = w->attn_k_norm,
                        .attn_post_norm = w->attn_post_norm,
                        .ffn_post_norm = w->ffn_post_norm,
                        .attn_q = w->attn_q,
                        .attn_k = w->attn_k,
                        .attn_v = w->attn_v,
                        .attn_output = w->attn_output,
                        .ffn_gate = w->ffn_gate,
                        .ffn_up = w->ffn_up,
                        .ffn_down = w->ffn_down,
                        .attn_q_bias = w->attn_q_bias,
                        .attn_k_bias = w->attn_k_bias,
                        .attn_v_bias = w->attn_v_bias,
                        .kv = kv_layer(&s->kv, layer_i),
                        .kind_i = s->m->layer[s->config.layer_begin + layer_i].kind};
}

_Static_assert((unsigned)LAYER_KINDS == WALK_KINDS, "kinds of layers");

static walk_kind kind_of(const stage *s, layer_kind kind)
{
    const rope_desc *turn = model_rope_of(s->m, kind);
    return (walk_kind){.rope = {SCRATCH(s, cos[kind]), SCRATCH(s, sin[kind]), turn->n_rot,
                                turn->kind == ROPE_NEOX},
                       .rows = {SCRATCH(s, position), stage_table(s, kind), SCRATCH(s, tables),
                                SCRATCH(s, live), 0, 0},
                       .window = kind == LAYER_WINDOW ? s->m->window : 0};
}

status stage_walk_open(stage *s, errmsg *e)
{
    const model_desc *m = s->m;
    if (s->b->walk_open == NULL) return ST_OK;
    walk_layer layers[LAYERS_MAX];
    for (uint32_t i = 0; i < s->n_layers; i++)
        layers[i] = layer_of(s, i);
    walk_desc w = {.n_layers = s->n_layers,
                   .n_embd = m->n_embd,
                   .n_ff = m->n_ff,
                   .n_heads = m->n_heads,
                   .n_ctx = s->config.n_ctx,
                   .n_kinds = s->n_kinds,
                   .rms_eps = m->rms_eps,
                   .attn_scale = m->attn_scale,
                   .gelu = m->ffn == FFN_GEGLU,
                   .layer = layers,
                   .hidden = SCRATCH(s, hidden),
                   .q = SCRATCH(s, q),
                   .k = SCRATCH(s, k),
                   .v = SCRATCH(s, v),
                   .attn = SCRATCH(s, attn),
                   .gate = SCRATCH(s, gate),
                   .finite = SCRATCH(s, finite)};
    for (uint32_t i = 0; i < s->n_kinds; i++)
        w.kind[i] = kind_of(s, (layer_kind)i);
    if (s->last) {
        w.output = s->w.output;
        w.output_norm = s->w.output_norm;
        w.logits = SCRATCH(s, logits);
    }
    return s->b->walk_open(s->device, &s->walk, &w, e);
}

static status walk_one(stage *s, poison_mark *poison, errmsg *e)
{
    s->walked_head = s->unchecked && stage_row_asks(s->rows);
    TRY_OP(walk, s->walk, s->walked_head);
    TRY(stage_walked(s, s->n_layers, e));
    return s->unchecked || poison == NULL ? ST_OK : wait_finite(s, poison, e);
}

status stage_walk(stage *s, bool head_follows, poison_mark *poison, errmsg *e)
{
    s->walked_head = false;
    if (s->n_rows == 0) return ST_OK;
    s->unchecked = head_follows && s->last;
    if (s->walk != NULL && s->n_rows == 1 && (s->rows->flags & ROW_LIVE) != 0)
        return walk_one(s, poison, e);
    const layer_span own = own_layers(s);
    TRY(run_span(s, &own, e));
    return end_layers(s, poison, e);
}

status stage_walk_all(stage *s, poison_mark *poison, errmsg *e)
{
    s->walked_head = s->unchecked = false;
    if (s->n_rows == 0) return ST_OK;
    if (s->n_ahead + 1 != s->config.n_stages)
        return errmsg_set(e, ST_PROTOCOL,
                          "stage %u: it is to walk all layers and has borrowed none",
                          s->config.stage_i);
    const layer_span own = own_layers(s);
    TRY(run_span(s, &own, e));
    for (uint32_t i = 0; i < s->n_ahead; i++) {
        const stretch *x = &s->ahead[i];
        TRY(run_span(s, &(layer_span){x->w->layer, &x->kv, x->begin, x->end}, e));
    }
    return end_layers(s, poison, e);
}
