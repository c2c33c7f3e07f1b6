/* walk.c - the layer walk: the backend's operations in the order that the model's description asks
 * for. Rows of one step see each other's K and V after rounding to the cache type, as those of
 * earlier steps: all rows are written before attention reads. */
#include "stage/stage_impl.h"

static row_args row_args_of(const stage *s)
{
    return (row_args){SCRATCH(s, position), SCRATCH(s, table), SCRATCH(s, tables),
                      SCRATCH(s, live)};
}

/* normed -> the block's output, added to the residual stream by the caller. */
static status attention_block(stage *s, const layer_weights *w, uint32_t layer_i, errmsg *e)
{
    const model_desc *m = s->m;
    const dev_ptr normed = SCRATCH(s, normed), q = SCRATCH(s, q), k = SCRATCH(s, k);
    const dev_ptr v = SCRATCH(s, v), attn = SCRATCH(s, attn);
    kv_args kv = kv_layer(&s->kv, layer_i);
    row_args rows = row_args_of(s);
    rope_args rope = {SCRATCH(s, cos), SCRATCH(s, sin), m->rope.n_rot, m->rope.kind == ROPE_NEOX};
    TRY_OP(matmul, q, &w->attn_q, normed, w->attn_q_bias, s->n_rows); /* [R, n_heads, n_head] */
    TRY_OP(matmul, k, &w->attn_k, normed, w->attn_k_bias, s->n_rows); /* [R, n_kv_heads, n_head] */
    TRY_OP(matmul, v, &w->attn_v, normed, w->attn_v_bias, s->n_rows);
    TRY_OP(rope, q, &rope, m->n_heads, m->n_head, s->n_rows);
    TRY_OP(rope, k, &rope, m->n_kv_heads, m->n_head, s->n_rows);
    TRY_OP(kv_write, &kv, k, v, &rows, s->n_rows);
    TRY_OP(attention, attn, q, &kv, &rows, m->n_heads, m->attn_scale, 0, s->n_rows);
    TRY_OP(matmul, normed, &w->attn_output, attn, (dev_ptr){0}, s->n_rows); /* [R, n_embd] */
    return ST_OK;
}

static status swiglu_block(stage *s, const layer_weights *w, errmsg *e)
{
    const dev_ptr normed = SCRATCH(s, normed), gate = SCRATCH(s, gate), up = SCRATCH(s, up);
    TRY_OP(matmul, gate, &w->ffn_gate, normed, (dev_ptr){0}, s->n_rows); /* [R, n_ff] */
    TRY_OP(matmul, up, &w->ffn_up, normed, (dev_ptr){0}, s->n_rows);
    TRY_OP(silu_mul, gate, gate, up, (uint64_t)s->n_rows * s->m->n_ff);
    TRY_OP(matmul, normed, &w->ffn_down, gate, (dev_ptr){0}, s->n_rows); /* [R, n_embd] */
    return ST_OK;
}

static status (*const ffn_table[])(stage *s, const layer_weights *w, errmsg *e) = {
    [FFN_SWIGLU] = swiglu_block,
};

static status walk_layer(stage *s, uint32_t layer_i, errmsg *e)
{
    const model_desc *m = s->m;
    const layer_weights *w = &s->w.layer[layer_i];
    const dev_ptr hidden = SCRATCH(s, hidden), normed = SCRATCH(s, normed);
    uint64_t n = (uint64_t)s->n_rows * m->n_embd;
    TRY_OP(rms_norm, normed, hidden, w->attn_norm, m->n_embd, m->rms_eps, s->n_rows);
    TRY(attention_block(s, w, layer_i, e));
    TRY_OP(add, hidden, normed, n);
    TRY_OP(rms_norm, normed, hidden, w->ffn_norm, m->n_embd, m->rms_eps, s->n_rows);
    TRY(ffn_table[m->ffn](s, w, e));
    TRY_OP(add, hidden, normed, n);
    return ST_OK;
}

/* Waits for the walk: its result is looked at before it leaves the stage. */
static status check_result(stage *s, errmsg *e)
{
    uint8_t *finite = HOST(s, uint8_t, finite);
    const wire_row *rows = HOST(s, wire_row, rows);
    backend_event ev;
    TRY_OP(check_finite, SCRATCH(s, finite), SCRATCH(s, hidden), s->m->n_embd, s->n_rows);
    TRY_OP(download, finite, SCRATCH(s, finite), s->n_rows);
    TRY_OP(event_record, &ev);
    TRY_OP(event_wait, ev);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (finite[i] == 0 || (rows[i].flags & ROW_LIVE) == 0) continue;
        return errmsg_set(
            e, ST_NAN,
            "stage %u (layers %u..%u): NaN or infinity in the hidden state of session "
            "%u at position %u",
            s->config.stage_i, s->config.layer_begin, s->config.layer_end - 1, rows[i].session,
            rows[i].position);
    }
    return ST_OK;
}

status stage_walk(stage *s, errmsg *e)
{
    if (s->n_rows == 0) return ST_OK;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        TRY(walk_layer(s, i, e));
        TRY(stage_walked(s, i + 1, e));
    }
    return check_result(s, e);
}
