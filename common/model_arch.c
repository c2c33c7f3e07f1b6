/* model_arch.c - the table of architectures. Sources: the GGUF specification's tensor names and
 * keys, the published model descriptions. */
#include "common/model_arch.h"

#include <string.h>

#define COUNT(a)     ((uint32_t)(sizeof(a) / sizeof *(a)))
#define LAYER(field) offsetof(layer_desc, field)
#define MODEL(field) offsetof(model_desc, field)

/* Of every architecture here. */
#define MODEL_RULES                                                                                \
    {"token_embd.weight", MODEL(token_embd), USE_MATRIX, DIM_EMBD, DIM_VOCAB, false},              \
        {"output_norm.weight", MODEL(output_norm), USE_VECTOR, DIM_EMBD, DIM_1, false},            \
        {"output.weight", MODEL(output), USE_MATRIX, DIM_EMBD, DIM_VOCAB, true}

#define LAYER_RULES                                                                                \
    {"attn_norm.weight", LAYER(attn_norm), USE_VECTOR, DIM_EMBD, DIM_1, false},                    \
        {"attn_q.weight", LAYER(attn_q), USE_MATRIX, DIM_EMBD, DIM_Q, false},                      \
        {"attn_k.weight", LAYER(attn_k), USE_MATRIX, DIM_EMBD, DIM_KV, false},                     \
        {"attn_v.weight", LAYER(attn_v), USE_MATRIX, DIM_EMBD, DIM_KV, false},                     \
        {"attn_output.weight", LAYER(attn_output), USE_MATRIX, DIM_Q, DIM_EMBD, false},            \
        {"ffn_norm.weight", LAYER(ffn_norm), USE_VECTOR, DIM_EMBD, DIM_1, false},                  \
        {"ffn_gate.weight", LAYER(ffn_gate), USE_MATRIX, DIM_EMBD, DIM_FF, false},                 \
        {"ffn_up.weight", LAYER(ffn_up), USE_MATRIX, DIM_EMBD, DIM_FF, false},                     \
        {"ffn_down.weight", LAYER(ffn_down), USE_MATRIX, DIM_FF, DIM_EMBD, false}

#define QKV_BIAS_RULES(optional)                                                                   \
    {"attn_q.bias", LAYER(attn_q_bias), USE_VECTOR, DIM_Q, DIM_1, optional},                       \
        {"attn_k.bias", LAYER(attn_k_bias), USE_VECTOR, DIM_KV, DIM_1, optional},                  \
        {"attn_v.bias", LAYER(attn_v_bias), USE_VECTOR, DIM_KV, DIM_1, optional}

#define QK_NORM_RULES                                                                              \
    {"attn_q_norm.weight", LAYER(attn_q_norm), USE_VECTOR, DIM_HEAD, DIM_1, false},                \
        {"attn_k_norm.weight", LAYER(attn_k_norm), USE_VECTOR, DIM_HEAD, DIM_1, false}

static const tensor_rule llama_model[] = {
    MODEL_RULES,
    {"rope_freqs.weight", MODEL(rope.freq_factors), USE_VECTOR, DIM_ROT_PAIRS, DIM_1, true},
};
static const tensor_rule llama_layer[] = {LAYER_RULES, QKV_BIAS_RULES(true)};

static const tensor_rule plain_model[] = {MODEL_RULES};
static const tensor_rule qwen2_layer[] = {LAYER_RULES, QKV_BIAS_RULES(false)};
static const tensor_rule qwen3_layer[] = {LAYER_RULES, QK_NORM_RULES};
static const tensor_rule gemma3_layer[] = {
    LAYER_RULES,
    QK_NORM_RULES,
    {"post_attention_norm.weight", LAYER(attn_post_norm), USE_VECTOR, DIM_EMBD, DIM_1, false},
    {"post_ffw_norm.weight", LAYER(ffn_post_norm), USE_VECTOR, DIM_EMBD, DIM_1, false},
};

/* Written by early converters: the plain rotation frequencies, which follow from rope.freq_base. */
static const char *const llama_ignored[] = {"attn_rot_embd", "attn_rot_embd.weight"};

/* The first is read by architectures with windows, whose list begins after it. */
static const neutral_key neutral[] = {
    {"attention.sliding_window", 0, "sliding-window attention"},
    {"expert_count", 0, "a mixture of experts"},
    {"attention.causal", 1, "attention to later tokens"},
    {"attention.clamp_kqv", 0, "clamped q, k and v"},
    {"attention.max_alibi_bias", 0, "alibi positions"},
    {"attention.temperature_length", 0, "attention temperature"},
    {"attention.temperature_scale", 0, "attention temperature"},
    {"attn_logit_softcapping", 0, "a soft cap of attention scores"},
    {"final_logit_softcapping", 0, "a soft cap of logits"},
    {"logit_scale", 1, "scaled logits"},
    {"residual_scale", 1, "scaled residuals"},
    {"embedding_scale", 1, "scaled embeddings"},
    {"use_parallel_residual", 0, "parallel residuals"},
    {"nextn_predict_layers", 0, "draft layers"},
    {"attention.shared_kv_layers", 0, "layers that share KV"},
    {"embedding_length_per_layer_input", 0, "embeddings per layer"},
    {"rope.scaling.yarn_ext_factor", 1, "another yarn blend"},
    {"rope.scaling.yarn_log_multiplier", 0, "another yarn magnitude"},
    {"rope.scaling.alpha", 0, "another rope scaling"},
};

#define RULES(model, layer)                                                                        \
    .model_rule = model, .n_model_rules = COUNT(model), .layer_rule = layer,                       \
    .n_layer_rules = COUNT(layer)
#define NEUTRAL(first) .neutral = &neutral[first], .n_neutral = COUNT(neutral) - (first)

static const model_arch table[] = {
    {
        .name = "llama",
        .rope = ROPE_PAIRS,
        .ffn = FFN_SWIGLU,
        RULES(llama_model, llama_layer),
        NEUTRAL(0),
        .ignored = llama_ignored,
        .n_ignored = COUNT(llama_ignored),
    },
    {
        .name = "qwen2",
        .rope = ROPE_NEOX,
        .ffn = FFN_SWIGLU,
        RULES(plain_model, qwen2_layer),
        NEUTRAL(0),
    },
    {
        .name = "qwen3",
        .rope = ROPE_NEOX,
        .ffn = FFN_SWIGLU,
        RULES(plain_model, qwen3_layer),
        NEUTRAL(0),
    },
    {
        .name = "gemma3",
        .rope = ROPE_NEOX,
        .ffn = FFN_GEGLU,
        .embd_scaled = true,
        .wide_layers = 62, /* the 27B, which no key tells from the others */
        .window_period = 6,
        .window_base = 10000.0f,
        RULES(plain_model, gemma3_layer),
        NEUTRAL(1),
    },
};

const model_arch *model_arch_find(const char *name, uint64_t bytes)
{
    for (uint32_t i = 0; i < COUNT(table); i++) {
        if (strlen(table[i].name) == bytes && memcmp(table[i].name, name, bytes) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

const char *model_archs(void)
{
    return "llama, qwen2, qwen3, gemma3"; /* the names of the table, in its order */
}
