/* model.c - a model's description, read from its file through the architecture's entry. */
#include "common/model_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

model_key model_key_of(const model_reader *r, const char *suffix)
{
    model_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", r->arch->name, suffix);
    return key;
}

status model_refuse(const model_reader *r, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return errmsg_set(r->e, ST_BAD_MODEL, "%s: %s", gguf_file_name(r->g, 0), text);
}

/* Found: true. Absent: false, a fault (in *s) only where the key is needed. */
static bool present(const model_reader *r, const char *key, bool *has, status *s)
{
    bool there = gguf_has(r->g, key);
    if (has != NULL) *has = there;
    *s = there || has != NULL ? ST_OK : model_refuse(r, "key %s is missing", key);
    return there;
}

status model_u32(const model_reader *r, const char *suffix, uint32_t min, uint32_t max,
                 uint32_t *out, bool *has)
{
    model_key key = model_key_of(r, suffix);
    status s;
    if (!present(r, key.text, has, &s)) return s;
    uint32_t value = 0;
    if (!gguf_u32(r->g, key.text, &value)) {
        return model_refuse(r, "key %s (%s) is not one whole number from %" PRIu32 " to %" PRIu32,
                            key.text, gguf_type_name(r->g, key.text), min, max);
    }
    if (value < min || value > max) {
        return model_refuse(r, "key %s is %" PRIu32 ", must be %" PRIu32 " to %" PRIu32, key.text,
                            value, min, max);
    }
    *out = value;
    return ST_OK;
}

status model_f32(const model_reader *r, const char *suffix, float min, float max, float *out,
                 bool *has)
{
    model_key key = model_key_of(r, suffix);
    status s;
    if (!present(r, key.text, has, &s)) return s;
    float value = 0;
    if (!gguf_f32(r->g, key.text, &value)) {
        return model_refuse(r, "key %s (%s) is not one f32 number", key.text,
                            gguf_type_name(r->g, key.text));
    }
    if (!(value >= min && value <= max)) { /* NaN too */
        return model_refuse(r, "key %s is %g, must be %g to %g", key.text, (double)value,
                            (double)min, (double)max);
    }
    *out = value;
    return ST_OK;
}

static status find_arch(model_reader *r)
{
    static const char key[] = "general.architecture";
    const char *name = NULL;
    uint64_t bytes = 0;
    if (!gguf_has(r->g, key)) return model_refuse(r, "key %s is missing", key);
    if (!gguf_string(r->g, key, &name, &bytes)) {
        return model_refuse(r, "key %s has type %s, must be string", key,
                            gguf_type_name(r->g, key));
    }
    r->arch = model_arch_find(name, bytes);
    if (r->arch == NULL) {
        return model_refuse(r, "architecture %.60s is not supported (supported: %s)", name,
                            model_archs());
    }
    if (gguf_n_tensors(r->g) == 0) {
        return model_refuse(r, "holds no tensors: a vocabulary without a model");
    }
    return ST_OK;
}

/* Keys that would change the arithmetic are refused unless they change nothing. */
static status check_neutral(const model_reader *r)
{
    for (uint32_t i = 0; i < r->arch->n_neutral; i++) {
        const neutral_key *k = &r->arch->neutral[i];
        model_key key = model_key_of(r, k->key);
        uint32_t u = 0;
        float f = 0;
        bool b = false;
        if (!gguf_has(r->g, key.text)) continue;
        char value[32] = "?";
        bool is_neutral = false;
        if (gguf_u32(r->g, key.text, &u)) {
            is_neutral = (double)u == k->neutral;
            snprintf(value, sizeof value, "%" PRIu32, u);
        } else if (gguf_f32(r->g, key.text, &f)) {
            is_neutral = (double)f == k->neutral;
            snprintf(value, sizeof value, "%g", (double)f);
        } else if (gguf_bool(r->g, key.text, &b)) {
            is_neutral = (b ? 1.0 : 0.0) == k->neutral;
            snprintf(value, sizeof value, "%s", b ? "true" : "false");
        } else {
            snprintf(value, sizeof value, "of type %s", gguf_type_name(r->g, key.text));
        }
        if (!is_neutral) {
            return model_refuse(
                r, "key %s is %s, which asks for %s: not supported for architecture %s", key.text,
                value, k->meaning, r->arch->name);
        }
    }
    return ST_OK;
}

static status read_heads(const model_reader *r)
{
    model_desc *m = r->m;
    bool has = false, has_value = false;
    uint32_t n_value = 0;
    TRY(model_u32(r, "attention.head_count", 1, MODEL_WIDTH_MAX, &m->n_heads, NULL));
    m->n_kv_heads = m->n_heads;
    TRY(model_u32(r, "attention.head_count_kv", 1, m->n_heads, &m->n_kv_heads, &has));
    if (m->n_heads % m->n_kv_heads != 0) {
        return model_refuse(r, "key %s is %" PRIu32 ", not a multiple of head_count_kv, %" PRIu32,
                            model_key_of(r, "attention.head_count").text, m->n_heads,
                            m->n_kv_heads);
    }
    TRY(model_u32(r, "attention.key_length", 2, 2 * ROPE_PAIRS_MAX, &m->n_head, &has));
    TRY(model_u32(r, "attention.value_length", 2, 2 * ROPE_PAIRS_MAX, &n_value, &has_value));
    if (!has) {
        if (m->n_embd % m->n_heads != 0) {
            return model_refuse(r, "key %s is %" PRIu32 ", not a multiple of head_count, %" PRIu32,
                                model_key_of(r, "embedding_length").text, m->n_embd, m->n_heads);
        }
        m->n_head = m->n_embd / m->n_heads;
    }
    if (has_value && n_value != m->n_head) {
        return model_refuse(
            r, "key %s is %" PRIu32 ", keys have %" PRIu32 ": different lengths are not supported",
            model_key_of(r, "attention.value_length").text, n_value, m->n_head);
    }
    if (m->n_head < 2 || m->n_head % 2 != 0 || m->n_head > 2 * ROPE_PAIRS_MAX) {
        return model_refuse(r, "heads of %" PRIu32 " elements (%s), must be even and 2 to %u",
                            m->n_head,
                            model_key_of(r, has ? "attention.key_length" : "embedding_length").text,
                            2 * ROPE_PAIRS_MAX);
    }
    if ((uint64_t)m->n_heads * m->n_head > MODEL_WIDTH_MAX) {
        return model_refuse(
            r, "%" PRIu32 " heads of %" PRIu32 " elements (%s), more than %u together", m->n_heads,
            m->n_head, model_key_of(r, "attention.head_count").text, MODEL_WIDTH_MAX);
    }
    float scale = 0;
    TRY(model_f32(r, "attention.scale", 0.0f, 1e6f, &scale, &has));
    bool wide = r->arch->wide_layers != 0 && m->n_layers == r->arch->wide_layers;
    double width = wide ? (double)(m->n_embd / m->n_heads) : (double)m->n_head;
    m->attn_scale = scale > 0 ? scale : (float)(1.0 / sqrt(width));
    return ST_OK;
}

static status read_numbers(const model_reader *r)
{
    model_desc *m = r->m;
    TRY(model_u32(r, "block_count", 1, LAYERS_MAX, &m->n_layers, NULL));
    TRY(model_u32(r, "embedding_length", 1, MODEL_WIDTH_MAX, &m->n_embd, NULL));
    TRY(model_u32(r, "feed_forward_length", 1, MODEL_WIDTH_MAX, &m->n_ff, NULL));
    TRY(model_u32(r, "context_length", 1, INT32_MAX, &m->n_ctx_train, NULL));
    TRY(model_f32(r, "attention.layer_norm_rms_epsilon", 1e-30f, 1.0f, &m->rms_eps, NULL));
    m->embd_scale = r->arch->embd_scaled ? sqrtf((float)m->n_embd) : 1.0f;
    TRY(read_heads(r));
    TRY(model_read_rope(r));
    return model_read_window(r);
}

/* The embedding says how many tokens there are; a vocabulary may have fewer (padded rows), not
 * more. */
static status read_vocab(const model_reader *r)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const gguf_tensor *t = gguf_tensor_find(r->g, "token_embd.weight");
    if (t == NULL) return model_refuse(r, "tensor token_embd.weight is missing");
    if (t->dim[1] > MODEL_VOCAB_MAX) {
        return model_refuse(r, "tensor %s has %" PRIu64 " rows, more than the limit of %u tokens",
                            t->name, t->dim[1], MODEL_VOCAB_MAX);
    }
    r->m->n_vocab = (uint32_t)t->dim[1];
    if (gguf_array_n(r->g, key) > t->dim[1]) {
        return model_refuse(r, "key %s has %" PRIu64 " tokens, tensor %s only %" PRIu64 " rows",
                            key, gguf_array_n(r->g, key), t->name, t->dim[1]);
    }
    return ST_OK;
}

static const tensor_rule *rule_find(const tensor_rule *rule, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(rule[i].name, name) == 0) return &rule[i];
    }
    return NULL;
}

/* "blk.12.rest": the layer, and rest in *rest; false for any other name. */
static bool layer_name(const char *name, uint64_t *il, const char **rest)
{
    if (strncmp(name, "blk.", 4) != 0) return false;
    const char *p = name + 4;
    if (*p < '0' || *p > '9' || (p[0] == '0' && p[1] != '.')) return false;
    *il = strtoull(p, (char **)rest, 10);
    if (**rest != '.') return false;
    (*rest)++;
    return true;
}

/* No tensor may be left over: what we would ignore, the model would need. */
static status check_leftovers(const model_reader *r)
{
    const model_arch *a = r->arch;
    for (uint64_t i = 0; i < gguf_n_tensors(r->g); i++) {
        const char *name = gguf_tensor_at(r->g, i)->name, *rest = NULL;
        uint64_t il = 0;
        bool known = false;
        if (layer_name(name, &il, &rest)) {
            if (il >= r->m->n_layers) {
                return model_refuse(r, "tensor %s is beyond the last layer (key %s is %" PRIu32 ")",
                                    name, model_key_of(r, "block_count").text, r->m->n_layers);
            }
            known = rule_find(a->layer_rule, a->n_layer_rules, rest) != NULL;
            for (uint32_t k = 0; k < a->n_ignored && !known; k++) {
                known = strcmp(a->ignored[k], rest) == 0;
            }
        } else {
            known = rule_find(a->model_rule, a->n_model_rules, name) != NULL;
        }
        if (!known) {
            return model_refuse(r,
                                "tensor %s is not one that architecture %s of this build uses; it "
                                "would have to be ignored",
                                name, a->name);
        }
    }
    return ST_OK;
}

static uint64_t dim_of(const model_desc *m, model_dim d)
{
    switch (d) {
    case DIM_1:
        return 1;
    case DIM_EMBD:
        return m->n_embd;
    case DIM_Q:
        return (uint64_t)m->n_heads * m->n_head;
    case DIM_KV:
        return (uint64_t)m->n_kv_heads * m->n_head;
    case DIM_HEAD:
        return m->n_head;
    case DIM_FF:
        return m->n_ff;
    case DIM_VOCAB:
        return m->n_vocab;
    case DIM_ROT_PAIRS:
        return m->rope.n_rot / 2;
    }
    CHECK(false);
}

/* "F32, F16, BF16": the types with products, in the order of their numbers. */
static void supported_types(char *out, size_t bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t t = 0; t < DT_COUNT; t++) {
        const dtype_info *info = dtype_get(t);
        if (info == NULL || !info->supported || at >= bytes) continue;
        int n = snprintf(out + at, bytes - at, "%s%s", at > 0 ? ", " : "", info->name);
        at += (size_t)n;
    }
}

static status check_type(const model_reader *r, const tensor_rule *rule, const gguf_tensor *t)
{
    const dtype_info *info = dtype_get(t->type);
    if (rule->use == USE_VECTOR && t->type != DT_F32) {
        return model_refuse(r, "tensor %s has type %s, norms, biases and factors must be F32",
                            t->name, info->name);
    }
    if (!info->supported) {
        char types[160];
        supported_types(types, sizeof types);
        return model_refuse(r,
                            "tensor %s has type %s, which this build cannot multiply (supported: "
                            "%s)",
                            t->name, info->name, types);
    }
    return ST_OK;
}

static status resolve(const model_reader *r, const tensor_rule *rule, const char *name,
                      tensor_ref *out)
{
    const gguf_tensor *t = gguf_tensor_find(r->g, name);
    out->t = t;
    if (t == NULL) {
        return rule->optional ? ST_OK : model_refuse(r, "tensor %s is missing", name);
    }
    TRY(check_type(r, rule, t));
    uint64_t row = dim_of(r->m, rule->row), rows = dim_of(r->m, rule->rows);
    if (t->dim[0] != row || t->dim[1] != rows || t->dim[2] != 1 || t->dim[3] != 1) {
        return model_refuse(r,
                            "tensor %s has shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                            "], expected [%" PRIu64 ", %" PRIu64 "]",
                            name, t->dim[0], t->dim[1], t->dim[2], t->dim[3], row, rows);
    }
    return ST_OK;
}

static tensor_ref *ref_at(void *base, const tensor_rule *rule)
{
    return (tensor_ref *)((char *)base + rule->at);
}

static status resolve_all(const model_reader *r)
{
    const model_arch *a = r->arch;
    for (uint32_t i = 0; i < a->n_model_rules; i++) {
        const tensor_rule *rule = &a->model_rule[i];
        TRY(resolve(r, rule, rule->name, ref_at(r->m, rule)));
    }
    for (uint32_t il = 0; il < r->m->n_layers; il++) {
        for (uint32_t i = 0; i < a->n_layer_rules; i++) {
            const tensor_rule *rule = &a->layer_rule[i];
            char name[GGUF_NAME_BYTES];
            snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", il, rule->name);
            TRY(resolve(r, rule, name, ref_at(&r->m->layer[il], rule)));
        }
    }
    return ST_OK;
}

status model_read(model_desc *out, const gguf *g, errmsg *e)
{
    model_reader r = {.g = g, .m = out, .e = e};
    memset(out, 0, sizeof *out);
    TRY(find_arch(&r));
    out->arch = r.arch->name;
    out->ffn = r.arch->ffn;
    TRY(check_neutral(&r));
    TRY(read_numbers(&r));
    TRY(read_vocab(&r));
    TRY(check_leftovers(&r));
    TRY(resolve_all(&r));
    TRY(model_check_freq_factors(&r));
    out->tied = out->output.t == NULL;
    if (out->tied) out->output = out->token_embd;
    return ST_OK;
}

uint32_t model_layer_tensors(const model_desc *m, uint32_t il, const gguf_tensor **out)
{
    const model_arch *a = model_arch_find(m->arch, strlen(m->arch));
    uint32_t n = 0;
    CHECK(a != NULL && il < m->n_layers && a->n_layer_rules <= MODEL_LAYER_TENSORS);
    for (uint32_t i = 0; i < a->n_layer_rules; i++) {
        const tensor_ref *ref =
            (const tensor_ref *)((const char *)&m->layer[il] + a->layer_rule[i].at);
        if (ref->t != NULL) out[n++] = ref->t;
    }
    return n;
}

uint64_t model_layer_bytes(const model_desc *m, uint32_t il)
{
    const gguf_tensor *t[MODEL_LAYER_TENSORS];
    uint64_t bytes = 0;
    for (uint32_t n = model_layer_tensors(m, il, t); n > 0; n--)
        bytes += t[n - 1]->bytes;
    return bytes;
}
