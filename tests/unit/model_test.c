/* model_test.c - what is read from a model file, and every model that is refused. */
#include "common/fmath.h"
#include "common/model.h"
#include "common/model_arch.h"
#include "tests/support/gguf_build.h"
#include "tests/support/tap.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static model_desc m; /* large; read anew by each test */

/* Read b, which must be right; b is freed, the gguf is the caller's. */
static gguf *read_model(gguf_build *b)
{
    int fd = gguf_build_fd(b);
    gguf *g = NULL;
    errmsg e = {0};
    if (gguf_open_fds(&g, &fd, 1, &e) != ST_OK || model_read(&m, g, &e) != ST_OK) {
        fail_msg("refused: %s", e.text);
    }
    gguf_build_free(b);
    return g;
}

static void expect_refusal(gguf *g, const char *one, const char *two)
{
    errmsg e = {0};
    status s = model_read(&m, g, &e);
    gguf_close(g);
    if (s != ST_BAD_MODEL) fail_msg("status %s, expected a refusal with '%s'", status_word(s), one);
    if (strstr(e.text, one) == NULL || strstr(e.text, two) == NULL) {
        fail_msg("'%s' does not say '%s' and '%s'", e.text, one, two);
    }
}

/* A right file that is no right model; b is freed. */
static void assert_refused(gguf_build *b, const char *one, const char *two)
{
    int fd = gguf_build_fd(b);
    gguf *g = NULL;
    errmsg e = {0};
    if (gguf_open_fds(&g, &fd, 1, &e) != ST_OK) fail_msg("not even opened: %s", e.text);
    gguf_build_free(b);
    expect_refusal(g, one, two);
}

static gguf_build *llama(void)
{
    llama_spec s = llama_spec_default();
    return gguf_build_llama(&s);
}

static void everything_is_described(void **state)
{
    (void)state;
    gguf *g = read_model(llama());
    assert_string_equal(m.arch, "llama");
    assert_true(m.n_layers == 3 && m.n_embd == 64 && m.n_ff == 96 && m.n_heads == 4);
    assert_true(m.n_kv_heads == 2 && m.n_head == 16 && m.n_vocab == 320 && m.n_ctx_train == 256);
    assert_true(m.rms_eps == 1e-5f && m.attn_scale == 0.25f && m.ffn == FFN_SWIGLU);
    assert_true(m.rope.kind == ROPE_PAIRS && m.rope.scaling == ROPE_SCALING_NONE);
    assert_true(m.rope.n_rot == 16 && m.rope.base == 10000.0f && m.rope.factor == 1.0f);
    assert_true(m.rope.attn_factor == 1.0f && m.rope.freq_factors.t == NULL);
    assert_true(!m.tied && m.output.t != m.token_embd.t && m.aux_bytes == 0);
    const layer_desc *l = &m.layer[2];
    assert_string_equal(l->attn_k.t->name, "blk.2.attn_k.weight");
    assert_string_equal(l->ffn_down.t->name, "blk.2.ffn_down.weight");
    assert_true(l->attn_q_bias.t == NULL && m.layer[3].attn_q.t == NULL);
    uint64_t values = 2 * 64 + 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96;
    assert_int_equal(model_layer_bytes(&m, 0), 4 * values);
    for (unsigned il = 0; il < LAYERS_MAX; il++)
        assert_false(m.cut_forbidden[il]);
    gguf_close(g);
}

static void variants(void **state)
{
    (void)state;
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};
    for (unsigned i = 0; i < 16; i++) {
        llama_spec s = llama_spec_default();
        s.type = types[i % 4];
        s.tied = (i & 4) != 0;
        s.biases = s.rope_freqs = (i & 8) != 0;
        gguf *g = read_model(gguf_build_llama(&s));
        assert_int_equal(m.layer[0].ffn_up.t->type, s.type);
        assert_int_equal(m.layer[0].ffn_norm.t->type, DT_F32);
        assert_true(m.tied == s.tied && (m.output.t == m.token_embd.t) == s.tied);
        assert_true((m.layer[1].attn_v_bias.t != NULL) == s.biases);
        assert_true((m.rope.freq_factors.t != NULL) == s.rope_freqs);
        gguf_close(g);
    }
}

static void defaults(void **state)
{
    (void)state;
    llama_spec s = llama_spec_default();
    s.n_kv_heads = 4;
    gguf_build *b = gguf_build_llama(&s);
    gguf_build_unset(b, "llama.attention.head_count_kv");
    gguf_build_unset(b, "llama.attention.key_length");
    gguf_build_unset(b, "llama.attention.value_length");
    gguf_build_unset(b, "llama.rope.dimension_count");
    gguf_build_unset(b, "llama.rope.freq_base");
    gguf_build_unset(b, "tokenizer.ggml.tokens");
    gguf_build_f32(b, "llama.attention.scale", 0.5f);
    gguf *g = read_model(b);
    assert_true(m.n_kv_heads == 4 && m.n_head == 16 && m.rope.n_rot == 16);
    assert_true(m.rope.base == 10000.0f && m.attn_scale == 0.5f);
    gguf_close(g);
}

static void neutral_extras(void **state)
{
    (void)state;
    gguf_build *b = llama();
    gguf_build_u32(b, "llama.expert_count", 0);
    gguf_build_f32(b, "llama.logit_scale", 1.0f);
    gguf_build_bool(b, "llama.attention.causal", true);
    gguf_build_bool(b, "llama.use_parallel_residual", false);
    gguf_build_tensor(b, "blk.0.attn_rot_embd.weight", DT_F32, 8, 0, NULL);
    gguf_build_tensor(b, "blk.1.attn_rot_embd", DT_F32, 8, 0, NULL);
    gguf_close(read_model(b));
}

static void rope_scalings(void **state)
{
    (void)state;
    gguf_build *b = llama();
    gguf_build_f32(b, "llama.rope.scale_linear", 4.0f);
    gguf_close(read_model(b));
    assert_true(m.rope.scaling == ROPE_SCALING_LINEAR && m.rope.factor == 4.0f);
    b = llama();
    gguf_build_f32(b, "llama.rope.scale_linear", 4.0f);
    gguf_build_f32(b, "llama.rope.scaling.factor", 2.0f); /* the newer key wins */
    gguf_close(read_model(b));
    assert_true(m.rope.scaling == ROPE_SCALING_LINEAR && m.rope.factor == 2.0f);
    b = llama();
    gguf_build_str(b, "llama.rope.scaling.type", "none");
    gguf_build_f32(b, "llama.rope.scaling.factor", 2.0f);
    gguf_close(read_model(b));
    assert_true(m.rope.scaling == ROPE_SCALING_NONE && m.rope.factor == 1.0f);
    b = llama();
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 4.0f);
    gguf_close(read_model(b));
    assert_true(m.rope.scaling == ROPE_SCALING_YARN && m.rope.factor == 4.0f);
    assert_true(m.rope.n_ctx_orig == 256 && m.rope.beta_fast == 32.0f && m.rope.beta_slow == 1.0f);
    assert_true(m.rope.attn_factor == (float)(1.0 + 0.1 * fm_log(4.0)));
    b = llama();
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 4.0f);
    gguf_build_u32(b, "llama.rope.scaling.original_context_length", 128);
    gguf_build_f32(b, "llama.rope.scaling.yarn_beta_fast", 16.0f);
    gguf_build_f32(b, "llama.rope.scaling.yarn_beta_slow", 2.0f);
    gguf_build_f32(b, "llama.rope.scaling.attn_factor", 0.5f);
    gguf_build_f32(b, "llama.rope.scaling.yarn_ext_factor", 1.0f);
    gguf_close(read_model(b));
    assert_true(m.rope.n_ctx_orig == 128 && m.rope.beta_fast == 16.0f && m.rope.beta_slow == 2.0f);
    assert_true(m.rope.attn_factor == (float)(0.5 * (1.0 + 0.1 * fm_log(4.0))));
}

static void wrong_rope(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        float factor;
        const char *key;
        float value;
        const char *one, *two;
    } cases[] = {
        {"longrope", 4, NULL, 0, "key llama.rope.scaling.type is longrope",
         "none, linear and yarn"},
        {"", 4, NULL, 0, "key llama.rope.scaling.type is ,", "not supported"},
        {"yarn", 0, NULL, 0, "yarn but key llama.rope.scaling.factor is missing", ""},
        {"linear", 0.5f, NULL, 0, "key llama.rope.scaling.factor is 0.5", "must be 1 to"},
        {"linear", NAN, NULL, 0, "key llama.rope.scaling.factor is", "must be 1 to"},
        {NULL, INFINITY, NULL, 0, "key llama.rope.scaling.factor is inf", "must be 1 to"},
        {"yarn", 4, "llama.rope.scaling.yarn_beta_fast", 0.5f, "yarn_beta_fast is 0.5",
         "beta_slow, 1"},
        {"yarn", 4, "llama.rope.scaling.yarn_beta_slow", -1, "yarn_beta_slow is -1", "must be"},
        {"yarn", 4, "llama.rope.scaling.attn_factor", 0, "attn_factor is 0", "must be"},
        {"yarn", 4, "llama.rope.scaling.yarn_ext_factor", 0.5f, "yarn_ext_factor is 0.5",
         "another yarn blend: not supported"},
        {"yarn", 4, "llama.rope.scaling.yarn_log_multiplier", 0.1f, "yarn_log_multiplier is 0.1",
         "not supported"},
        {"linear", 4, "llama.rope.scaling.attn_factor", 1.5f,
         "key llama.rope.scaling.attn_factor is 1.5 without yarn", ""},
        {NULL, 0, "llama.rope.scale_linear", 0, "key llama.rope.scale_linear is 0", "must be 1 to"},
        {NULL, 0, "llama.rope.freq_base", 0, "key llama.rope.freq_base is 0", "must be"},
        {NULL, 0, "llama.rope.freq_base", NAN, "key llama.rope.freq_base is", "must be"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_build *b = llama();
        if (cases[i].type != NULL) gguf_build_str(b, "llama.rope.scaling.type", cases[i].type);
        if (cases[i].factor != 0) gguf_build_f32(b, "llama.rope.scaling.factor", cases[i].factor);
        if (cases[i].key != NULL) gguf_build_f32(b, cases[i].key, cases[i].value);
        assert_refused(b, cases[i].one, cases[i].two);
    }
    gguf_build *b = llama();
    gguf_build_u32(b, "llama.rope.scaling.type", 2);
    assert_refused(b, "key llama.rope.scaling.type has type u32, must be string", "");
    b = llama();
    gguf_build_u32(b, "llama.rope.scaling.factor", 2);
    assert_refused(b, "key llama.rope.scaling.factor (u32) is not one f32 number", "");
}

static void wrong_freq_factors(void **state)
{
    (void)state;
    static const float wrong[] = {0.0f, -1.0f, NAN, INFINITY};
    for (unsigned i = 0; i < 4; i++) {
        float factor[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        factor[5] = wrong[i];
        gguf_build *b = llama();
        gguf_build_tensor(b, "rope_freqs.weight", DT_F32, 8, 0, factor);
        assert_refused(b, "tensor rope_freqs.weight: factor 5 is", "must be finite and above 0");
    }
    gguf_build *b = llama();
    gguf_build_tensor(b, "rope_freqs.weight", DT_F32, 16, 0, NULL);
    assert_refused(b, "tensor rope_freqs.weight has shape [16, 1, 1, 1]", "expected [8, 1]");
}

static void wrong_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *says;
    } cases[] = {
        {"llama.block_count", 0, "is 0, must be 1 to 512"},
        {"llama.block_count", 513, "is 513, must be 1 to 512"},
        {"llama.block_count", UINT32_MAX, "is 4294967295, must be"},
        {"llama.embedding_length", 0, "is 0, must be 1 to 1048576"},
        {"llama.feed_forward_length", 0, "is 0, must be"},
        {"llama.feed_forward_length", 2000000, "is 2000000, must be"},
        {"llama.context_length", 0, "is 0, must be"},
        {"llama.attention.head_count", 0, "is 0, must be"},
        {"llama.attention.head_count", 1000000, "1000000 heads of 16 elements"},
        {"llama.attention.head_count_kv", 0, "is 0, must be 1 to 4"},
        {"llama.attention.head_count_kv", 8, "is 8, must be 1 to 4"},
        {"llama.attention.head_count", 3, "is 3, not a multiple of head_count_kv, 2"},
        {"llama.attention.head_count_kv", 3, "head_count is 4, not a multiple of head_count_kv, 3"},
        {"llama.attention.key_length", 15, "heads of 15 elements"},
        {"llama.attention.key_length", 514, "is 514, must be 2 to 512"},
        {"llama.attention.key_length", 0, "is 0, must be"},
        {"llama.attention.value_length", 32, "is 32, keys have 16"},
        {"llama.rope.dimension_count", 0, "is 0, must be 2 to 16"},
        {"llama.rope.dimension_count", 18, "is 18, must be 2 to 16"},
        {"llama.rope.dimension_count", 7, "is 7, must be even"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_build *b = llama();
        gguf_build_u32(b, cases[i].key, cases[i].value);
        if (strcmp(cases[i].key, "llama.attention.key_length") == 0) {
            gguf_build_unset(b, "llama.attention.value_length");
        }
        assert_refused(b, strstr(cases[i].says, "head") != NULL ? "llama.attention" : cases[i].key,
                       cases[i].says);
    }
    static const char *const needed[] = {"general.architecture",
                                         "llama.block_count",
                                         "llama.embedding_length",
                                         "llama.feed_forward_length",
                                         "llama.context_length",
                                         "llama.attention.head_count",
                                         "llama.attention.layer_norm_rms_epsilon"};
    for (unsigned i = 0; i < 7; i++) {
        char says[80];
        gguf_build *b = llama();
        gguf_build_unset(b, needed[i]);
        snprintf(says, sizeof says, "key %s is missing", needed[i]);
        assert_refused(b, says, "");
    }
    static const float eps[] = {0.0f, -1e-5f, NAN, INFINITY, 2.0f};
    for (unsigned i = 0; i < 5; i++) {
        gguf_build *b = llama();
        gguf_build_f32(b, "llama.attention.layer_norm_rms_epsilon", eps[i]);
        assert_refused(b, "key llama.attention.layer_norm_rms_epsilon is", "must be");
    }
    static const uint32_t per_layer[] = {2, 2, 1};
    gguf_build *b = llama();
    gguf_build_array(b, "llama.attention.head_count_kv", B_U32, per_layer, 3, 4);
    assert_refused(b, "key llama.attention.head_count_kv (array of u32)", "not one whole number");
    b = llama();
    gguf_build_scalar(b, "llama.block_count", B_I32, UINT32_MAX);
    assert_refused(b, "key llama.block_count (i32)", "not one whole number from 1 to 512");
    b = llama();
    gguf_build_u32(b, "llama.attention.head_count", 3);
    gguf_build_u32(b, "llama.attention.head_count_kv", 3);
    gguf_build_unset(b, "llama.attention.key_length");
    assert_refused(b, "key llama.embedding_length is 64", "not a multiple of head_count, 3");
}

static void wrong_architectures(void **state)
{
    (void)state;
    gguf_build *b = llama();
    gguf_build_str(b, "general.architecture", "mamba");
    assert_refused(b, "architecture mamba is not supported", "(supported: llama, ");
    b = llama();
    gguf_build_str(b, "general.architecture", "llama4");
    assert_refused(b, "architecture llama4 is not supported", "");
    b = llama();
    gguf_build_u32(b, "general.architecture", 1);
    assert_refused(b, "key general.architecture has type u32, must be string", "");
    b = gguf_build_new();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_vocab(b, 300);
    assert_refused(b, "holds no tensors", "vocabulary");
}

static void other_arithmetic(void **state)
{
    (void)state;
    gguf_build *b = llama();
    gguf_build_u32(b, "llama.expert_count", 8);
    assert_refused(b, "key llama.expert_count is 8", "a mixture of experts: not supported");
    b = llama();
    gguf_build_u32(b, "llama.attention.sliding_window", 4096);
    assert_refused(b, "key llama.attention.sliding_window is 4096", "not supported");
    b = llama();
    gguf_build_f32(b, "llama.final_logit_softcapping", 30.0f);
    assert_refused(b, "key llama.final_logit_softcapping is 30", "not supported");
    b = llama();
    gguf_build_bool(b, "llama.attention.causal", false);
    assert_refused(b, "key llama.attention.causal is false", "not supported");
    b = llama();
    gguf_build_str(b, "llama.residual_scale", "much");
    assert_refused(b, "key llama.residual_scale is of type string", "not supported");
}

static void wrong_tensors(void **state)
{
    (void)state;
    static const char *const needed[] = {
        "token_embd.weight",        "output_norm.weight",    "blk.0.attn_norm.weight",
        "blk.1.attn_q.weight",      "blk.2.attn_k.weight",   "blk.0.attn_v.weight",
        "blk.0.attn_output.weight", "blk.2.ffn_norm.weight", "blk.1.ffn_gate.weight",
        "blk.0.ffn_up.weight",      "blk.2.ffn_down.weight"};
    char says[80];
    for (unsigned i = 0; i < 11; i++) {
        gguf_build *b = llama();
        gguf_build_remove(b, needed[i]);
        snprintf(says, sizeof says, "tensor %s is missing", needed[i]);
        assert_refused(b, says, "");
        if (i == 0) continue; /* its rows are the vocabulary */
        b = llama();
        built_tensor *t = gguf_build_find(b, needed[i]);
        uint64_t rows = t->n_dims > 1 ? t->dim[1] : 0, row = t->dim[0];
        gguf_build_remove(b, needed[i]);
        gguf_build_tensor(b, needed[i], DT_F32, row + 32, rows, NULL);
        snprintf(says, sizeof says, "tensor %s has shape [%u,", needed[i], (unsigned)row + 32);
        assert_refused(b, says, "expected [");
        b = llama();
        gguf_build_remove(b, needed[i]);
        gguf_build_tensor(b, needed[i], DT_F32, row, rows + 2, NULL);
        snprintf(says, sizeof says, "tensor %s has shape [%u, %u,", needed[i], (unsigned)row,
                 (unsigned)rows + 2);
        assert_refused(b, says, "expected [");
    }
    gguf_build *b = llama();
    gguf_build_find(b, "blk.0.attn_q.weight")->n_dims = 3;
    gguf_build_find(b, "blk.0.attn_q.weight")->dim[1] = 32;
    gguf_build_find(b, "blk.0.attn_q.weight")->dim[2] = 2;
    assert_refused(b, "tensor blk.0.attn_q.weight has shape [64, 32, 2, 1]", "expected [64, 64]");
    b = llama();
    gguf_build_tensor(b, "blk.1.attn_q.bias", DT_F32, 63, 0, NULL);
    assert_refused(b, "tensor blk.1.attn_q.bias has shape [63, 1, 1, 1]", "expected [64, 1]");
    b = llama();
    gguf_build_remove(b, "output.weight");
    gguf_build_tensor(b, "output.weight", DT_F32, 64, 321, NULL);
    assert_refused(b, "tensor output.weight has shape [64, 321, 1, 1]", "expected [64, 320]");
}

static void wrong_types(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        dtype type;
        const char *says;
    } cases[] = {
        {"blk.0.attn_q.weight", DT_Q8_1, "has type Q8_1, which this build cannot multiply"},
        {"token_embd.weight", DT_MXFP4, "has type MXFP4, which this build cannot multiply"},
        {"output.weight", DT_I8, "has type I8, which this build cannot multiply"},
        {"blk.2.ffn_down.weight", DT_F64, "has type F64, which this build cannot multiply"},
        {"blk.1.attn_norm.weight", DT_F16, "has type F16, norms, biases and factors must be F32"},
        {"output_norm.weight", DT_Q8_0, "has type Q8_0, norms, biases and factors must be F32"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_build *b = llama();
        built_tensor *t = gguf_build_find(b, cases[i].name);
        uint64_t rows = t->n_dims > 1 ? t->dim[1] : 0, row = t->dim[0];
        gguf_build_remove(b, cases[i].name);
        gguf_build_tensor(b, cases[i].name, cases[i].type, row, rows, NULL);
        assert_refused(b, cases[i].name, cases[i].says);
    }
    gguf_build *b = llama();
    gguf_build_tensor(b, "blk.0.attn_k.bias", DT_BF16, 32, 0, NULL);
    assert_refused(b, "tensor blk.0.attn_k.bias has type BF16", "must be F32");
    b = llama();
    gguf_build_remove(b, "blk.0.ffn_up.weight");
    gguf_build_tensor(b, "blk.0.ffn_up.weight", DT_MXFP4, 64, 96, NULL);
    assert_refused(
        b,
        "cannot multiply (supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, "
        "Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16)",
        "");
}

static void left_over_tensors(void **state)
{
    (void)state;
    static const char *const extra[] = {"blk.0.ffn_gate_exps.weight",
                                        "blk.1.attn_q_norm.weight",
                                        "blk.0.attn_output.bias",
                                        "blk.2.post_attention_norm.weight",
                                        "rope_factors_long.weight",
                                        "token_types.weight",
                                        "output.bias",
                                        "blk.0.",
                                        "blk.x.attn_q.weight",
                                        "blk.00.attn_q.weight",
                                        "blk.1",
                                        "blk.-1.attn_q.weight",
                                        "attn_q.weight",
                                        "blk.0.token_embd.weight"};
    for (unsigned i = 0; i < sizeof extra / sizeof *extra; i++) {
        char says[80];
        gguf_build *b = llama();
        gguf_build_tensor(b, extra[i], DT_F32, 64, 0, NULL);
        snprintf(says, sizeof says, "tensor %s is not one that architecture llama", extra[i]);
        assert_refused(b, says, "ignored");
    }
    static const char *const beyond[] = {"blk.3.attn_q.weight", "blk.4294967296.attn_q.weight",
                                         "blk.99999999999999999999.attn_q.weight"};
    for (unsigned i = 0; i < 3; i++) {
        gguf_build *b = llama();
        gguf_build_tensor(b, beyond[i], DT_F32, 64, 64, NULL);
        assert_refused(b, beyond[i], "is beyond the last layer (key llama.block_count is 3)");
    }
}

static void vocabularies(void **state)
{
    (void)state;
    gguf_build *b = llama();
    gguf_build_vocab(b, 321);
    assert_refused(b, "key tokenizer.ggml.tokens has 321 tokens",
                   "tensor token_embd.weight only 320 rows");
    b = llama();
    gguf_build_vocab(b, 300); /* padded rows behind it */
    gguf_close(read_model(b));
    assert_int_equal(m.n_vocab, 320);
}

/* The handed files, where they are: shared/models/DIR, every *.gguf of it. */
static unsigned each_shared(const char *dir, void (*check)(const char *path, gguf *g))
{
    const char *shared = tap_shared_dir();
    char path[512];
    unsigned n = 0;
    if (shared == NULL) {
        printf("# skipped: no shared folder with models/%s\n", dir);
        return 0;
    }
    snprintf(path, sizeof path, "%s/models/%s", shared, dir);
    DIR *d = opendir(path);
    if (d == NULL) {
        printf("# skipped: %s is not there\n", path);
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        size_t bytes = strlen(entry->d_name);
        if (bytes < 5 || strcmp(entry->d_name + bytes - 5, ".gguf") != 0) continue;
        snprintf(path, sizeof path, "%s/models/%s/%s", shared, dir, entry->d_name);
        gguf *g = NULL;
        errmsg e = {0};
        if (gguf_open(&g, path, &e) != ST_OK) fail_msg("%s", e.text);
        check(entry->d_name, g);
        n++;
    }
    closedir(d);
    return n;
}

static void check_story(const char *name, gguf *g)
{
    errmsg e = {0};
    if (strcmp(name, "stories260K-f32.gguf") == 0) {
        if (model_read(&m, g, &e) != ST_OK) fail_msg("%s", e.text);
        assert_true(m.n_layers == 5 && m.n_embd == 64 && m.n_ff == 172 && m.n_heads == 8);
        assert_true(m.n_kv_heads == 4 && m.n_head == 8 && m.n_vocab == 512 && m.tied);
        gguf_close(g);
    } else {
        if (model_read(&m, g, &e) != ST_OK) fail_msg("%s", e.text);
        assert_true(m.n_layers == 5 && m.n_embd == 256 && m.n_heads == 32 && m.n_head == 8 &&
                    !m.tied);
        gguf_close(g);
    }
}

static void shared_stories(void **state)
{
    (void)state;
    if (tap_shared_dir() == NULL) {
        printf("# skipped: no shared folder with models\n");
        return;
    }
    assert_int_equal(each_shared("stories260K", check_story), 1);
    assert_true(each_shared("stories-q256", check_story) >= 2);
}

static void check_vocab(const char *name, gguf *g)
{
    (void)name;
    gguf_str *s = NULL;
    uint64_t n = 0;
    errmsg e = {0};
    assert_int_equal(gguf_array_str(g, "tokenizer.ggml.tokens", 0, &s, &n, &e), ST_OK);
    assert_true(n > 30000);
    free(s);
    const char *arch = NULL;
    uint64_t bytes = 0;
    assert_true(gguf_string(g, "general.architecture", &arch, &bytes));
    bool ours = model_arch_find(arch, bytes) != NULL;
    expect_refusal(g, ours ? "holds no tensors" : "is not supported", ours ? "" : "architecture");
}

static void shared_vocabularies(void **state)
{
    (void)state;
    each_shared("vocab", check_vocab);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_described),
        cmocka_unit_test(variants),
        cmocka_unit_test(defaults),
        cmocka_unit_test(neutral_extras),
        cmocka_unit_test(rope_scalings),
        cmocka_unit_test(wrong_rope),
        cmocka_unit_test(wrong_freq_factors),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(wrong_architectures),
        cmocka_unit_test(other_arithmetic),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(left_over_tensors),
        cmocka_unit_test(vocabularies),
        cmocka_unit_test(shared_stories),
        cmocka_unit_test(shared_vocabularies),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
