/* model_arch_test.c - the entries of the table beside llama: what they add to the description, and
 * files that almost fit them. */
#include "common/model.h"
#include "common/model_arch.h"
#include "tests/support/gguf_build.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static model_desc m; /* large; read anew by each test */

static gguf_build *file_of(const char *arch)
{
    llama_spec s = llama_spec_arch(arch);
    return gguf_build_llama(&s);
}

static status try_read(gguf_build *b, errmsg *e)
{
    int fd = gguf_build_fd(b);
    gguf *g = NULL;
    gguf_build_free(b);
    status s = gguf_open_fds(&g, &fd, 1, e);
    if (s != ST_OK) return s;
    s = model_read(&m, g, e);
    gguf_close(g); /* tensors are only compared with NULL from here on */
    return s;
}

static void good(gguf_build *b)
{
    errmsg e = {0};
    if (try_read(b, &e) != ST_OK) fail_msg("refused: %s", e.text);
}

static void bad(gguf_build *b, const char *part)
{
    errmsg e = {0};
    assert_int_equal(try_read(b, &e), ST_BAD_MODEL);
    if (strstr(e.text, part) == NULL) fail_msg("'%s' does not say '%s'", e.text, part);
}

static void every_name_is_found(void **state)
{
    (void)state;
    char names[256], *rest = NULL;
    uint32_t n = 0;
    strcpy(names, model_archs());
    for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest), n++) {
        const model_arch *a = model_arch_find(name, strlen(name));
        assert_non_null(a);
        assert_string_equal(a->name, name);
    }
    assert_int_equal(n, 4);
    assert_null(model_arch_find("gemma", 5));
    assert_null(model_arch_find("qwen2moe", 8));
}

static void qwens_are_described(void **state)
{
    (void)state;
    good(file_of("qwen2"));
    assert_true(m.rope.kind == ROPE_NEOX && m.ffn == FFN_SWIGLU && m.embd_scale == 1.0f);
    assert_true(m.layer[2].attn_q_bias.t != NULL && m.layer[2].attn_q_norm.t == NULL);
    assert_true(m.window == 0 && model_n_kinds(&m) == 1 && m.rope_window.n_rot == 0);
    good(file_of("qwen3"));
    assert_true(m.rope.kind == ROPE_NEOX && m.layer[0].attn_k_norm.t != NULL);
    assert_true(m.layer[0].attn_q_bias.t == NULL && m.layer[0].attn_post_norm.t == NULL);
    llama_spec s = llama_spec_arch("qwen3");
    s.n_head = 32; /* not n_embd / n_heads */
    good(gguf_build_llama(&s));
    assert_true(m.n_head == 32 && m.attn_scale == (float)(1 / sqrt(32.0)));
}

static void gemma3_is_described(void **state)
{
    (void)state;
    good(file_of("gemma3"));
    assert_true(m.rope.kind == ROPE_NEOX && m.ffn == FFN_GEGLU && m.embd_scale == 8.0f && m.tied);
    assert_true(m.layer[1].attn_post_norm.t != NULL && m.layer[1].ffn_post_norm.t != NULL);
    assert_true(m.window == 24 && model_n_kinds(&m) == 2);
    for (uint32_t il = 0; il < 7; il++)
        assert_int_equal(m.layer[il].kind, il % 3 == 2 ? LAYER_GLOBAL : LAYER_WINDOW);
    assert_int_equal(model_n_layers_of(&m, LAYER_WINDOW, 0, 7), 5);
    assert_int_equal(model_n_layers_of(&m, LAYER_GLOBAL, 2, 6), 2);
    assert_true(m.rope.base == 1e6f && m.rope_window.base == 10000.0f);
    assert_true(m.rope_window.n_rot == 16 && m.rope_window.kind == ROPE_NEOX);
    assert_true(model_rope_of(&m, LAYER_WINDOW) == &m.rope_window);
    gguf_build *b = file_of("gemma3");
    gguf_build_unset(b, "gemma3.attention.sliding_window_pattern");
    gguf_build_f32(b, "gemma3.rope.freq_base_swa", 5000.0f);
    gguf_build_str(b, "gemma3.rope.scaling.type", "linear");
    gguf_build_f32(b, "gemma3.rope.scaling.factor", 8.0f);
    gguf_build_f32(b, "gemma3.final_logit_softcapping", 0.0f);
    good(b);
    assert_true(m.layer[5].kind == LAYER_GLOBAL && model_n_layers_of(&m, LAYER_GLOBAL, 0, 7) == 1);
    assert_true(m.rope.scaling == ROPE_SCALING_LINEAR && m.rope.factor == 8.0f);
    assert_true(m.rope_window.scaling == ROPE_SCALING_NONE && m.rope_window.base == 5000.0f);
}

static void patterns(void **state)
{
    (void)state;
    const char *key = "gemma3.attention.sliding_window_pattern";
    const uint8_t each[7] = {1, 0, 1, 1, 0, 0, 1};
    gguf_build *b = file_of("gemma3");
    gguf_build_array(b, key, B_BOOL, each, 7, 1);
    good(b);
    for (uint32_t il = 0; il < 7; il++)
        assert_int_equal(m.layer[il].kind, each[il] ? LAYER_WINDOW : LAYER_GLOBAL);
    b = file_of("gemma3");
    gguf_build_array(b, key, B_BOOL, each, 6, 1);
    bad(b, key);
    b = file_of("gemma3");
    gguf_build_u32(b, key, 0);
    bad(b, "is 0, must be 1 to");
    b = file_of("gemma3");
    gguf_build_u32(b, key, 1); /* every layer is global: there is no window then */
    good(b);
    assert_true(m.window == 0 && model_n_kinds(&m) == 1);
    b = file_of("gemma3");
    gguf_build_unset(b, "gemma3.attention.sliding_window");
    good(b);
    assert_true(m.window == 0 && m.layer[0].kind == LAYER_GLOBAL);
}

static void the_widest_scales_by_width(void **state)
{
    (void)state;
    llama_spec s = llama_spec_arch("gemma3");
    s.n_layers = 62;
    s.n_head = 8;
    good(gguf_build_llama(&s));
    assert_true(m.attn_scale == 0.25f); /* 1 / sqrt(64 / 4) */
    gguf_build *b = gguf_build_llama(&s);
    gguf_build_f32(b, "gemma3.attention.scale", 0.3f);
    good(b);
    assert_true(m.attn_scale == 0.3f);
    s.n_layers = 61;
    good(gguf_build_llama(&s));
    assert_true(m.attn_scale == (float)(1 / sqrt(8.0)));
}

static void what_almost_fits_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *tensor;
    } needed[] = {
        {"qwen2", "blk.1.attn_k.bias"},
        {"qwen3", "blk.2.attn_q_norm.weight"},
        {"gemma3", "blk.6.post_ffw_norm.weight"},
        {"gemma3", "blk.0.post_attention_norm.weight"},
    };
    for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++) {
        gguf_build *b = file_of(needed[i].arch);
        gguf_build_remove(b, needed[i].tensor);
        bad(b, needed[i].tensor);
        b = file_of("llama"); /* and llama does not know it, but for the bias */
        if (i == 0) {
            gguf_build_free(b);
            continue;
        }
        gguf_build_tensor(b, "blk.0.attn_q_norm.weight", DT_F32, 16, 0, NULL);
        bad(b, "blk.0.attn_q_norm.weight is not one that architecture llama");
    }
    static const struct {
        const char *key;
        float value;
        const char *says;
    } keys[] = {
        {"gemma3.attn_logit_softcapping", 50.0f, "a soft cap of attention scores: not supported"},
        {"gemma3.final_logit_softcapping", 30.0f, "a soft cap of logits: not supported"},
        {"gemma3.rope.freq_base_swa", 0.0f, "freq_base_swa is 0"},
    };
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
        gguf_build *b = file_of("gemma3");
        gguf_build_f32(b, keys[i].key, keys[i].value);
        bad(b, keys[i].says);
    }
    gguf_build *b = file_of("gemma3");
    gguf_build_u32(b, "gemma3.attention.key_length_swa", 8);
    bad(b, "heads of global layers have 16");
    b = file_of("gemma3");
    gguf_build_str(b, "gemma3.rope.scaling.type", "yarn");
    gguf_build_f32(b, "gemma3.rope.scaling.factor", 4.0f);
    bad(b, "yarn beside window layers");
    b = file_of("qwen3");
    gguf_build_u32(b, "qwen3.attention.sliding_window", 64);
    bad(b, "sliding-window attention: not supported for architecture qwen3");
    b = file_of("qwen3");
    gguf_build_find(b, "blk.1.attn_k_norm.weight")->dim[0] = 8;
    gguf_build_find(b, "blk.1.attn_k_norm.weight")->bytes = 32;
    bad(b, "expected [16, 1]");
    b = file_of("gemma3");
    gguf_build_tensor(b, "blk.3.layer_output_scale.weight", DT_F32, 1, 0, NULL);
    bad(b, "blk.3.layer_output_scale.weight is not one that architecture gemma3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_found),
        cmocka_unit_test(qwens_are_described),
        cmocka_unit_test(gemma3_is_described),
        cmocka_unit_test(patterns),
        cmocka_unit_test(the_widest_scales_by_width),
        cmocka_unit_test(what_almost_fits_is_refused),
    };
    tap_begin(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
