/* model_rope.c - how a model's heads are rotated, from its metadata. */
#include "common/model_impl.h"

#include "common/fmath.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FACTOR_MAX 1048576.0f

/* rope.scaling.type, linear where only a factor is given: that was its meaning before the key. */
static status read_scaling(const model_reader *r, bool has_factor)
{
    rope_desc *rope = &r->m->rope;
    model_key key = model_key_of(r, "rope.scaling.type");
    const char *word = has_factor ? "linear" : "none";
    uint64_t bytes = strlen(word);
    if (gguf_has(r->g, key.text) && !gguf_string(r->g, key.text, &word, &bytes)) {
        return model_refuse(r, "key %s has type %s, must be string", key.text,
                            gguf_type_name(r->g, key.text));
    }
    if (bytes == strlen(word)) {
        if (strcmp(word, "none") == 0) {
            rope->scaling = ROPE_SCALING_NONE;
            return ST_OK;
        }
        if (strcmp(word, "linear") == 0) {
            rope->scaling = has_factor ? ROPE_SCALING_LINEAR : ROPE_SCALING_NONE;
            return ST_OK;
        }
        if (strcmp(word, "yarn") == 0) {
            rope->scaling = ROPE_SCALING_YARN;
            return ST_OK;
        }
    }
    return model_refuse(r, "key %s is %.40s, which is not supported (none, linear and yarn are)",
                        key.text, word);
}

static status read_yarn(const model_reader *r, bool has_factor)
{
    rope_desc *rope = &r->m->rope;
    bool has = false;
    float first = 1.0f, second = 1.0f;
    if (!has_factor) {
        return model_refuse(r, "rope scaling is yarn but key %s is missing",
                            model_key_of(r, "rope.scaling.factor").text);
    }
    rope->n_ctx_orig = r->m->n_ctx_train;
    TRY(model_u32(r, "rope.scaling.original_context_length", 1, INT32_MAX, &rope->n_ctx_orig,
                  &has));
    TRY(model_f32(r, "rope.scaling.yarn_beta_fast", 1e-6f, 1e6f, &rope->beta_fast, &has));
    TRY(model_f32(r, "rope.scaling.yarn_beta_slow", 1e-6f, 1e6f, &rope->beta_slow, &has));
    if (rope->beta_fast < rope->beta_slow) {
        return model_refuse(r, "key %s is %g, must be at least yarn_beta_slow, %g",
                            model_key_of(r, "rope.scaling.yarn_beta_fast").text,
                            (double)rope->beta_fast, (double)rope->beta_slow);
    }
    TRY(model_f32(r, "rope.scaling.attn_factor", 1e-6f, 1e6f, &first, &has));
    TRY(model_f32(r, "rope.scaling.yarn_attn_factor", 1e-6f, 1e6f, &second, &has));
    double magnitude = 1.0 + 0.1 * fm_log((double)rope->factor);
    rope->attn_factor = (float)((double)first * (double)second * magnitude);
    return ST_OK;
}

/* Outside yarn a magnitude would be ignored. */
static status no_magnitude(const model_reader *r)
{
    static const char *const suffix[] = {"rope.scaling.attn_factor",
                                         "rope.scaling.yarn_attn_factor"};
    for (unsigned i = 0; i < 2; i++) {
        bool has = false;
        float value = 1.0f;
        TRY(model_f32(r, suffix[i], 1e-6f, 1e6f, &value, &has));
        if (value != 1.0f) {
            return model_refuse(r, "key %s is %g without yarn scaling, which is not supported",
                                model_key_of(r, suffix[i]).text, (double)value);
        }
    }
    return ST_OK;
}

status model_read_rope(const model_reader *r)
{
    model_desc *m = r->m;
    bool has = false, has_factor = false;
    m->rope = (rope_desc){.kind = r->arch->rope,
                          .n_rot = m->n_head,
                          .base = 10000.0f,
                          .factor = 1.0f,
                          .beta_fast = 32.0f,
                          .beta_slow = 1.0f,
                          .attn_factor = 1.0f};
    TRY(model_u32(r, "rope.dimension_count", 2, m->n_head, &m->rope.n_rot, &has));
    if (m->rope.n_rot % 2 != 0) {
        return model_refuse(r, "key %s is %" PRIu32 ", must be even",
                            model_key_of(r, "rope.dimension_count").text, m->rope.n_rot);
    }
    TRY(model_f32(r, "rope.freq_base", 1.0f, 1e30f, &m->rope.base, &has));
    TRY(model_f32(r, "rope.scaling.factor", 1.0f, FACTOR_MAX, &m->rope.factor, &has_factor));
    if (!has_factor) {
        TRY(model_f32(r, "rope.scale_linear", 1.0f, FACTOR_MAX, &m->rope.factor, &has_factor));
    }
    TRY(read_scaling(r, has_factor));
    if (m->rope.scaling == ROPE_SCALING_YARN) return read_yarn(r, has_factor);
    if (m->rope.scaling == ROPE_SCALING_NONE) m->rope.factor = 1.0f;
    return no_magnitude(r);
}

status model_check_freq_factors(const model_reader *r)
{
    const gguf_tensor *t = r->m->rope.freq_factors.t;
    if (t == NULL) return ST_OK;
    float factor[ROPE_PAIRS_MAX];
    uint32_t n = r->m->rope.n_rot / 2;
    CHECK(n <= ROPE_PAIRS_MAX && t->bytes == n * sizeof *factor);
    TRY(gguf_tensor_read(r->g, t, factor, t->bytes, r->e));
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(factor[i]) || factor[i] <= 0.0f) {
            return model_refuse(r,
                                "tensor %s: factor %" PRIu32 " is %g, must be finite and above 0",
                                t->name, i, (double)factor[i]);
        }
    }
    return ST_OK;
}
