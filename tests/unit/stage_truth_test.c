/* How far the logits of stage objects are from the truth: a reference in double precision on built
 * models, and recorded logits where the folder of test data is there. */
#include "tests/support/gguf_build.h"
#include "tests/support/ref_llama.h"
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_MAX 64u

/* Logits of the chain for n tokens in one chunk, [n, n_vocab]. */
static float *run(gguf *file, const chain_spec *s, const uint32_t *tokens, uint32_t n,
                  uint64_t *count)
{
    chain c;
    chain_session session;
    chain_open(&c, file, s);
    *count = (uint64_t)n * c.model->n_vocab;
    float *logits = malloc(*count * sizeof *logits);
    session_begin(&c, &session, 0);
    session_feed(&c, &session, tokens, n, n, logits);
    chain_close(&c);
    return logits;
}

static chain_spec spec_of(uint32_t n_ctx)
{
    chain_spec s = chain_spec_default();
    s.rows_max = N_MAX;
    s.n_ctx = n_ctx;
    return s;
}

/* --- built models against the reference --- */

#define FLOAT_LIMIT 1e-10
#define FIXED_LIMIT 1e-7 /* activations in fixed point (kernels/cpu/fixed.h) */

static void check_built(const char *name, gguf_build *b, dtype kv_type, double limit)
{
    uint32_t tokens[N_MAX], n_vocab;
    uint64_t count;
    errmsg e = {0};
    gguf *g[2];
    for (uint32_t i = 0; i < 2; i++) {
        int fd = gguf_build_fd(b);
        assert_int_equal(gguf_open_fds(&g[i], &fd, 1, &e), ST_OK);
    }
    for (uint32_t i = 0; i < N_MAX; i++)
        tokens[i] = (i * 2654435761u >> 7) % 320;
    chain_spec s = spec_of(128);
    s.kv_type = kv_type;
    double *truth = ref_llama_logits(g[0], tokens, N_MAX, &n_vocab);
    float *logits = run(g[1], &s, tokens, N_MAX, &count);
    assert_int_equal(count, N_MAX * n_vocab);
    double error = logits_error(logits, truth, count);
    print_message("# %s: %.2e (limit %.0e)\n", name, error, limit);
    assert_true(error <= limit);
    free(truth);
    free(logits);
    gguf_close(g[0]);
    gguf_build_free(b);
}

static llama_spec grouped(void)
{
    llama_spec m = llama_spec_default();
    m.n_heads = 6;
    m.n_kv_heads = 2;
    m.n_ff = 160;
    return m;
}

static void built_models_are_true(void **state)
{
    (void)state;
    const dtype type[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0};
    for (uint32_t i = 0; i < 4; i++) {
        llama_spec m = grouped();
        m.type = type[i];
        m.tied = i % 2 == 1;
        m.biases = i == 2;
        m.seed = 10 + i;
        check_built(dtype_get(type[i])->name, gguf_build_llama(&m), DT_F32,
                    type[i] == DT_Q8_0 ? FIXED_LIMIT : FLOAT_LIMIT);
    }
}

static void built_quants_are_true(void **state)
{
    (void)state;
    const dtype type[] = {DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1,   DT_Q2_K,  DT_Q3_K,
                          DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS};
    for (uint32_t i = 0; i < sizeof type / sizeof *type; i++) {
        llama_spec m = grouped();
        m.n_layers = 2;
        m.n_embd = 256;
        m.n_heads = 8;
        m.n_head = 32;
        m.n_ff = 512;
        m.type = type[i];
        m.tied = i % 2 == 1;
        m.seed = 20 + i;
        check_built(dtype_get(type[i])->name, gguf_build_llama(&m), DT_F32, FIXED_LIMIT);
    }
}

/* Windows shorter than the prompt, longer than it, and none; a linear scale for global layers. */
static void other_architectures_are_true(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        static const char *const arch[] = {"qwen2", "qwen3", "gemma3"};
        for (uint32_t i = 0; i < 3; i++) {
            llama_spec m = llama_spec_arch(arch[i]);
            m.seed = seed;
            m.n_heads = 6;
            m.tied = seed == 2;
            if (m.window > 0) m.window = seed == 1 ? 5 : seed == 2 ? 24 : 1;
            check_built(arch[i], gguf_build_llama(&m), DT_F32, FLOAT_LIMIT);
        }
    }
    llama_spec m = llama_spec_arch("gemma3");
    m.period = 0; /* the default, 6 */
    gguf_build *b = gguf_build_llama(&m);
    gguf_build_str(b, "gemma3.rope.scaling.type", "linear");
    gguf_build_f32(b, "gemma3.rope.scaling.factor", 8.0f);
    gguf_build_f32(b, "gemma3.rope.freq_base_swa", 20000.0f);
    check_built("gemma3, scaled", b, DT_F32, FLOAT_LIMIT);
    m.window = 100;
    check_built("gemma3, long window", gguf_build_llama(&m), DT_F32, FLOAT_LIMIT);
    m.window = 0;
    check_built("gemma3, no window", gguf_build_llama(&m), DT_F32, FLOAT_LIMIT);
    m.window = 7;
    m.type = DT_Q8_0;
    check_built("gemma3, Q8_0", gguf_build_llama(&m), DT_F32, FIXED_LIMIT);
}

static void kv_types_are_near(void **state)
{
    (void)state;
    llama_spec m = grouped();
    check_built("KV F16", gguf_build_llama(&m), DT_F16, 1e-6);
    check_built("KV BF16", gguf_build_llama(&m), DT_BF16, 1e-4);
}

static void rope_kinds_are_true(void **state)
{
    (void)state;
    llama_spec m = grouped();
    m.rope_freqs = true;
    check_built("llama3 factors", gguf_build_llama(&m), DT_F32, FLOAT_LIMIT);
    m.rope_freqs = false;
    gguf_build *b = gguf_build_llama(&m);
    gguf_build_str(b, "llama.rope.scaling.type", "linear");
    gguf_build_f32(b, "llama.rope.scaling.factor", 4.0f);
    check_built("linear", b, DT_F32, FLOAT_LIMIT);
    b = gguf_build_llama(&m);
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 8.0f);
    gguf_build_u32(b, "llama.rope.scaling.original_context_length", 64);
    check_built("yarn", b, DT_F32, FLOAT_LIMIT);
    m.n_head = 32;
    b = gguf_build_llama(&m);
    gguf_build_u32(b, "llama.rope.dimension_count", 20); /* the rest of a head stays */
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 2.5f);
    gguf_build_u32(b, "llama.rope.scaling.original_context_length", 4096);
    gguf_build_f32(b, "llama.rope.scaling.yarn_beta_fast", 16.0f);
    gguf_build_f32(b, "llama.rope.scaling.attn_factor", 1.25f);
    check_built("yarn, partial, magnitude", b, DT_F32, FLOAT_LIMIT);
}

/* --- recorded logits --- */

static const char *shared(const char *format, const char *name)
{
    static char path[600];
    const char *dir = tap_shared_dir();
    if (dir == NULL) return NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(path, sizeof path, "%s/", dir);
    snprintf(path + n, sizeof path - (size_t)n, format, name);
#pragma GCC diagnostic pop
    return access(path, R_OK) == 0 ? path : NULL;
}

static uint32_t read_tokens(const char *path, uint32_t *tokens)
{
    uint32_t n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (n < N_MAX && fscanf(f, "%u", &tokens[n]) == 1)
        n++;
    fclose(f);
    return n;
}

static double *read_truth(const char *path, uint64_t count)
{
    float x;
    double *truth = malloc(count * sizeof *truth);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(fread(&x, sizeof x, 1, f), 1);
        truth[i] = (double)x;
    }
    fclose(f);
    return truth;
}

/* Every cut of the model at `model` gives the same bits; their distance from the recorded truth. */
static double recorded_error(const char *model, const char *truth_path, const char *ids,
                             uint32_t n_layers, dtype kv_type)
{
    uint32_t tokens[N_MAX], n = read_tokens(ids, tokens);
    uint64_t count = 0;
    float *first = NULL;
    for (uint32_t mask = 0; mask < 1u << (n_layers - 1); mask++) {
        gguf *g = NULL;
        errmsg e = {0};
        chain_spec s = spec_of(128);
        s.kv_type = kv_type;
        for (uint32_t cut = 1; cut < n_layers; cut++) {
            if ((mask >> (cut - 1)) & 1) s.cut[s.n_cuts++] = cut;
        }
        assert_int_equal(gguf_open(&g, model, &e), ST_OK);
        float *logits = run(g, &s, tokens, n, &count);
        if (first == NULL) {
            first = logits;
        } else {
            assert_memory_equal(first, logits, count * sizeof(float));
            free(logits);
        }
    }
    double *truth = read_truth(truth_path, count), error = logits_error(first, truth, count);
    free(first);
    free(truth);
    return error;
}

static void check_recorded(const char *model_at, const char *truth_at, const char *name,
                           double limit)
{
    const char *path = shared(model_at, name);
    if (path == NULL) {
        print_message("# skipped: no folder of test data for %s\n", name);
        return;
    }
    char model[600], truth[600], ids[600];
    strcpy(model, path);
    strcpy(truth, shared(truth_at, name));
    strcpy(ids, shared("models/stories-q256/token_ids.txt%s", ""));
    double error = recorded_error(model, truth, ids, 5, DT_F32);
    print_message("# stories %s: %.2e (limit %.1e), equal at every cut\n", name, error, limit);
    assert_true(error <= limit);
}

static void stories_are_as_recorded(void **state)
{
    (void)state;
    check_recorded("models/stories260K/stories260K-%s.gguf",
                   "models/stories260K/stories260K-%s.f64ref.f32", "f32", 1e-10);
    /* No further than llama.cpp's own arithmetic is (the folder's README). */
    static const struct {
        const char *name;
        double limit;
    } files[] = {
        {"F16", 1.7e-8},    {"Q8_0", 2.0e-5},   {"Q4_0", 1.9e-5},   {"Q4_1", 3.0e-5},
        {"Q5_0", 4.3e-5},   {"Q5_1", 2.7e-5},   {"Q2_K", 8.2e-5},   {"Q3_K_M", 6.4e-5},
        {"Q4_K_M", 5.1e-5}, {"Q5_K_M", 8.2e-5}, {"Q6_K", 7.7e-5},   {"IQ4_NL", 2.6e-5},
        {"IQ4_XS", 6.0e-5},
    };
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++)
        check_recorded("models/stories-q256/stories-%s.gguf",
                       "models/stories-q256/stories-%s.f64ref.f32", files[i].name, files[i].limit);
}

/* gemma3 was recorded with a gate rounded to f16 on both sides (a table of llama.cpp), which is
 * what its distance is made of: float64 is as far from it. */
static const struct {
    const char *name, *truth;
    uint32_t n_layers;
    double limit;
} fixtures[] = {
    {"llama", "f64ref", 3, 1e-10},
    {"qwen2", "f64ref", 3, 1e-10},
    {"qwen3", "f64ref", 3, 1e-10},
    {"gemma3", "logits", 7, 3e-7},
};

static void check_fixture(const char *dir, uint32_t i)
{
    char model[128], truth[600], ids[600], name[64];
    snprintf(name, sizeof name, "%s.%s", fixtures[i].name, fixtures[i].truth);
    strcpy(truth, shared("models/fixtures/rnd-%s.f32", name));
    strcpy(ids, shared("models/fixtures/token_ids.txt%s", ""));
    snprintf(model, sizeof model, "%s/rnd-%s.gguf", dir, fixtures[i].name);
    double error = recorded_error(model, truth, ids, fixtures[i].n_layers, DT_F32);
    print_message("# rnd-%s: %.2e (limit %.0e), equal at every cut\n", name, error,
                  fixtures[i].limit);
    assert_true(error <= fixtures[i].limit);
}

/* The fixtures are written by a script of the test data, which needs python modules. */
static void fixtures_are_as_recorded(void **state)
{
    (void)state;
    char dir[] = "/tmp/memra-fixture-XXXXXX", command[2000];
    if (shared("models/fixtures/rnd-%s.f64ref.f32", "llama") == NULL) {
        print_message("# skipped: no folder of test data for the fixtures\n");
        return;
    }
    if (system("python3 -c 'import numpy, gguf' 2>/dev/null") != 0) {
        print_message("# skipped: the fixtures need python3 with numpy and gguf\n");
        return;
    }
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof command,
             "cd '%s' && SEED=1 python3 tools/make_fixtures.py models/stories260K/tok512.bin %s "
             ">/dev/null",
             tap_shared_dir(), dir);
    assert_int_equal(system(command), 0);
    for (uint32_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
        check_fixture(dir, i);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* What the Hugging Face library says of small models with random weights, llama3, yarn and linear
 * rotations and windows among them (tests/fixtures/make_hf.py). */
static void library_agrees(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n_layers;
        double limit; /* with KV of f32; of f16: 1e-6 */
    } of[] = {{"llama", 3, 1e-11},
              {"qwen2", 3, 1e-11},
              {"qwen3", 3, 1e-11},
              {"gemma3", 6, 1e-11},
              {"mixed", 2, FIXED_LIMIT}};
    for (uint32_t i = 0; i < sizeof of / sizeof *of; i++) {
        const char *dir = MEMRA_SOURCE_DIR "/tests/fixtures";
        char model[600], truth[600], ids[600];
        snprintf(model, sizeof model, "%s/hf-%s.gguf", dir, of[i].name);
        snprintf(truth, sizeof truth, "%s/hf-%s.f64ref.f32", dir, of[i].name);
        snprintf(ids, sizeof ids, "%s/token_ids.txt", dir);
        double f32 = recorded_error(model, truth, ids, of[i].n_layers, DT_F32);
        double f16 = recorded_error(model, truth, ids, of[i].n_layers, DT_F16);
        print_message("# library, %s: %.1e, with KV of f16 %.1e\n", of[i].name, f32, f16);
        assert_true(f32 <= of[i].limit);
        assert_true(f16 <= 1e-6);
    }
}

/* --- text --- */

static void append_piece(char *text, const gguf_str *piece)
{
    size_t at = strlen(text);
    for (uint32_t i = 0; i < piece->bytes; i++) {
        if (i + 3 <= piece->bytes && memcmp(piece->text + i, "\xe2\x96\x81", 3) == 0) {
            text[at++] = ' ';
            i += 2;
        } else {
            text[at++] = piece->text[i];
        }
    }
    text[at] = '\0';
}

static void greedy_story_is_as_recorded(void **state)
{
    (void)state;
    static const char start[] =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
        "park. "
        "One day, she saw a big, red ball. She wanted to play with it, but it was too high.";
    const uint32_t prompt[] = {1, 403, 407, 261, 378};
    const char *path = shared("models/stories260K/stories260K-%s.gguf", "f32");
    if (path == NULL) {
        print_message("# skipped: no folder of test data for the story\n");
        return;
    }
    for (uint32_t n_cuts = 0; n_cuts < 3; n_cuts++) {
        chain c;
        chain_session s;
        gguf *g = NULL;
        gguf_str *pieces = NULL;
        uint64_t n_pieces;
        errmsg e = {0};
        char text[4096] = "";
        chain_spec spec = spec_of(256);
        sampler_params greedy = sampler_default();
        spec.n_cuts = n_cuts;
        spec.cut[0] = 1;
        spec.cut[1] = 3;
        assert_int_equal(gguf_open(&g, path, &e), ST_OK);
        assert_int_equal(gguf_array_str(g, "tokenizer.ggml.tokens", 0, &pieces, &n_pieces, &e),
                         ST_OK);
        chain_open(&c, g, &spec);
        session_begin(&c, &s, 0);
        session_feed(&c, &s, prompt, 4, 4, NULL);
        for (uint32_t i = 1; i < 5; i++)
            append_piece(text, &pieces[prompt[i]]);
        uint32_t token = prompt[4];
        while (strlen(text) < sizeof start + 1) {
            token = session_sample(&c, &s, token, &greedy);
            assert_true(token < n_pieces);
            append_piece(text, &pieces[token]);
        }
        assert_int_equal(text[0], ' ');
        assert_int_equal(strncmp(text + 1, start, sizeof start - 1), 0);
        free(pieces);
        chain_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_models_are_true),
        cmocka_unit_test(built_quants_are_true),
        cmocka_unit_test(other_architectures_are_true),
        cmocka_unit_test(kv_types_are_near),
        cmocka_unit_test(rope_kinds_are_true),
        cmocka_unit_test(stories_are_as_recorded),
        cmocka_unit_test(fixtures_are_as_recorded),
        cmocka_unit_test(library_agrees),
        cmocka_unit_test(greedy_story_is_as_recorded),
    };
    tap_begin(240);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
