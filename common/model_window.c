/* model_window.c - which of a model's layers see a window only, and how those rotate. */
#include "common/model_impl.h"

#include <inttypes.h>
#include <stdlib.h>

const rope_desc *model_rope_of(const model_desc *m, layer_kind kind)
{
    return kind == LAYER_WINDOW ? &m->rope_window : &m->rope;
}

uint32_t model_n_kinds(const model_desc *m)
{
    return m->window != 0 ? LAYER_KINDS : LAYER_GLOBAL + 1;
}

uint32_t model_n_layers_of(const model_desc *m, layer_kind kind, uint32_t begin, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t il = begin; il < end; il++)
        n += m->layer[il].kind == kind;
    return n;
}

/* A period, or one entry per layer that is not 0 where the layer sees a window. */
static status read_pattern(const model_reader *r)
{
    static const char suffix[] = "attention.sliding_window_pattern";
    model_desc *m = r->m;
    model_key key = model_key_of(r, suffix);
    uint32_t period = r->arch->window_period, *each = NULL;
    bool has = false;
    if (gguf_array_n(r->g, key.text) > 0) {
        uint64_t n = 0;
        TRY(gguf_array_u32(r->g, key.text, m->n_layers, &each, &n, r->e));
    } else {
        TRY(model_u32(r, suffix, 1, LAYERS_MAX, &period, &has));
    }
    for (uint32_t il = 0; il < m->n_layers; il++) {
        bool window = each != NULL ? each[il] != 0 : il % period < period - 1;
        m->layer[il].kind = window ? LAYER_WINDOW : LAYER_GLOBAL;
    }
    free(each);
    return ST_OK;
}

/* Window layers with heads of another size are arithmetic that no entry has. */
static status same_heads(const model_reader *r)
{
    static const char *const suffix[] = {"attention.key_length_swa", "attention.value_length_swa"};
    for (unsigned i = 0; i < 2; i++) {
        bool has = false;
        uint32_t n = r->m->n_head;
        TRY(model_u32(r, suffix[i], 1, MODEL_WIDTH_MAX, &n, &has));
        if (n != r->m->n_head) {
            return model_refuse(r,
                                "key %s is %" PRIu32 ", heads of global layers have %" PRIu32
                                ": different sizes are not supported",
                                model_key_of(r, suffix[i]).text, n, r->m->n_head);
        }
    }
    return ST_OK;
}

/* As the global layers, but unscaled and with a base of its own. */
static status read_window_rope(const model_reader *r)
{
    rope_desc *rope = &r->m->rope_window;
    bool has = false;
    if (r->m->rope.scaling == ROPE_SCALING_YARN) {
        return model_refuse(r, "key %s is yarn beside window layers, which is not supported",
                            model_key_of(r, "rope.scaling.type").text);
    }
    *rope = r->m->rope;
    rope->scaling = ROPE_SCALING_NONE;
    rope->factor = 1.0f;
    rope->base = r->arch->window_base;
    TRY(model_f32(r, "rope.freq_base_swa", 1.0f, 1e30f, &rope->base, &has));
    TRY(model_u32(r, "rope.dimension_count_swa", 2, r->m->n_head, &rope->n_rot, &has));
    if (rope->n_rot % 2 != 0) {
        return model_refuse(r, "key %s is %" PRIu32 ", must be even",
                            model_key_of(r, "rope.dimension_count_swa").text, rope->n_rot);
    }
    return ST_OK;
}

status model_read_window(const model_reader *r)
{
    model_desc *m = r->m;
    bool has = false;
    if (r->arch->window_period == 0) return ST_OK;
    TRY(model_u32(r, "attention.sliding_window", 0, INT32_MAX, &m->window, &has));
    if (m->window == 0) return ST_OK; /* the file has none: every layer is global */
    TRY(read_pattern(r));
    TRY(same_heads(r));
    if (model_n_layers_of(m, LAYER_WINDOW, 0, m->n_layers) == 0) {
        m->window = 0;
        return ST_OK;
    }
    return read_window_rope(r);
}
