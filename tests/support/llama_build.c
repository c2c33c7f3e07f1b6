/* llama_build.c - a small random llama model and its vocabulary, for tests. */
#include "tests/support/gguf_build.h"

#include "common/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64: the same model for the same seed, everywhere. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Bell-shaped, mean 0, variance 1: three uniform numbers. */
static float draw_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += (double)(draw(state) >> 11) / 9007199254740992.0 - 0.5;
    return (float)(2.0 * sum);
}

static uint16_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* To nearest even; the numbers here are far from f16's largest. */
static uint16_t f16_of(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    int e = 0;
    if (a == 0) return sign;
    frexp(a, &e);         /* a = m * 2^e, 0.5 <= m < 1 */
    if (e < -13) e = -13; /* denormals share the exponent of the smallest normal number */
    double units = nearbyint(ldexp(a, 11 - e)); /* 1024..2048 where normal */
    return (uint16_t)(sign | ((uint32_t)(e + 13) * 1024 + (uint32_t)units));
}

static void store_q8_0(uint8_t *to, const float *x, uint64_t n)
{
    for (uint64_t b = 0; b < n / 32; b++, to += 34, x += 32) {
        float max = 0;
        for (int i = 0; i < 32; i++)
            max = fmaxf(max, fabsf(x[i]));
        float scale = max / 127.0f;
        uint16_t d = f16_of(scale);
        memcpy(to, &d, 2);
        for (int i = 0; i < 32; i++)
            to[2 + i] = (uint8_t)(int8_t)(scale > 0 ? rintf(x[i] / scale) : 0);
    }
}

/* Random bits for quants and inner scales, under f16 scales that give values a mean near 0 and the
 * spread: value = d * (about rms) + second, second = factor * d. Offsets in a block of bytes. */
static const struct {
    dtype type;
    uint32_t d_at, second_at; /* equal: no second scale */
    float rms, factor;
} random_quants[] = {
    {DT_Q4_0, 0, 0, 4.6f, 0},       {DT_Q4_1, 0, 2, 4.6f, -7.5f},   {DT_Q5_0, 0, 0, 9.2f, 0},
    {DT_Q5_1, 0, 2, 9.2f, -15.5f},  {DT_Q2_K, 80, 82, 13.9f, 1.5f}, {DT_Q3_K, 108, 108, 43.3f, 0},
    {DT_Q4_K, 0, 2, 258.0f, 7.5f},  {DT_Q5_K, 0, 2, 527.0f, 15.5f}, {DT_Q6_K, 208, 208, 1366.0f, 0},
    {DT_IQ4_NL, 0, 0, 67.4f, 0},    {DT_IQ4_XS, 0, 0, 1246.0f, 0},
};

static void store_random_quants(uint8_t *to, dtype type, uint64_t bytes, float spread,
                                uint64_t *seed)
{
    for (unsigned t = 0; t < sizeof random_quants / sizeof *random_quants; t++) {
        if (random_quants[t].type != type) continue;
        float d = spread / random_quants[t].rms;
        uint16_t first = f16_of(d), second = f16_of(d * random_quants[t].factor);
        for (uint64_t i = 0; i < bytes; i++)
            to[i] = (uint8_t)draw(seed);
        for (uint64_t i = 0; i < bytes; i += dtype_get(type)->block_bytes) {
            memcpy(to + i + random_quants[t].second_at, &second, 2);
            memcpy(to + i + random_quants[t].d_at, &first, 2);
        }
    }
}

static void add(gguf_build *b, const char *name, dtype type, uint64_t row, uint64_t rows,
                float mean, float spread, uint64_t *seed)
{
    uint64_t n = row * (rows == 0 ? 1 : rows);
    float *x = malloc(n * sizeof *x);
    uint8_t *stored = malloc(n * sizeof *x);
    CHECK(x != NULL && stored != NULL);
    for (uint64_t i = 0; i < n; i++)
        x[i] = mean + spread * draw_normal(seed);
    for (uint64_t i = 0; i < n && (type == DT_F16 || type == DT_BF16); i++) {
        uint16_t half = type == DT_F16 ? f16_of(x[i]) : bf16_of(x[i]);
        memcpy(stored + 2 * i, &half, 2);
    }
    if (type == DT_Q8_0) store_q8_0(stored, x, n);
    store_random_quants(stored, type, type == DT_F32 ? 0 : dtype_bytes(type, n), spread, seed);
    gguf_build_tensor(b, name, type, row, rows, type == DT_F32 ? (const void *)x : stored);
    free(x);
    free(stored);
}

llama_spec llama_spec_default(void)
{
    return (llama_spec){.n_layers = 3,
                        .n_embd = 64,
                        .n_ff = 96,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .n_head = 16,
                        .n_vocab = 320,
                        .n_ctx = 256,
                        .type = DT_F32,
                        .seed = 1};
}

llama_spec llama_spec_arch(const char *arch)
{
    llama_spec s = llama_spec_default();
    s.arch = arch;
    if (strcmp(arch, "gemma3") == 0) {
        s.n_layers = 7;
        s.window = 24;
        s.period = 3;
        s.tied = true;
    }
    return s;
}

static bool is(const llama_spec *s, const char *arch)
{
    return strcmp(s->arch != NULL ? s->arch : "llama", arch) == 0;
}

static void add_layer(gguf_build *b, const llama_spec *s, uint32_t il, uint64_t *seed)
{
    char name[64];
    uint64_t n_q = (uint64_t)s->n_heads * s->n_head, n_kv = (uint64_t)s->n_kv_heads * s->n_head;
    float wide = 1.0f / sqrtf((float)s->n_embd);
    const bool gemma3 = is(s, "gemma3"), qk_norm = gemma3 || is(s, "qwen3");
    const bool biases = is(s, "qwen2") || (is(s, "llama") && s->biases);
    const struct {
        const char *name;
        bool there;
        uint64_t row, rows;
        float mean, spread;
    } list[] = {
        {"attn_norm.weight", true, s->n_embd, 0, 1, 0.1f},
        {"attn_q.weight", true, s->n_embd, n_q, 0, wide},
        {"attn_k.weight", true, s->n_embd, n_kv, 0, wide},
        {"attn_v.weight", true, s->n_embd, n_kv, 0, wide},
        {"attn_output.weight", true, n_q, s->n_embd, 0, 1.0f / sqrtf((float)n_q)},
        {"ffn_norm.weight", true, s->n_embd, 0, 1, 0.1f},
        {"ffn_gate.weight", true, s->n_embd, s->n_ff, 0, wide},
        {"ffn_up.weight", true, s->n_embd, s->n_ff, 0, wide},
        {"ffn_down.weight", true, s->n_ff, s->n_embd, 0, 1.0f / sqrtf((float)s->n_ff)},
        {"attn_q.bias", biases, n_q, 0, 0, 0.1f},
        {"attn_k.bias", biases, n_kv, 0, 0, 0.1f},
        {"attn_v.bias", biases, n_kv, 0, 0, 0.1f},
        {"attn_q_norm.weight", qk_norm, s->n_head, 0, 1, 0.2f},
        {"attn_k_norm.weight", qk_norm, s->n_head, 0, 1, 0.2f},
        {"post_attention_norm.weight", gemma3, s->n_embd, 0, 1, 0.2f},
        {"post_ffw_norm.weight", gemma3, s->n_embd, 0, 1, 0.2f},
    };
    for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
        if (!list[i].there) continue;
        snprintf(name, sizeof name, "blk.%u.%s", il, list[i].name);
        add(b, name, list[i].rows == 0 ? DT_F32 : s->type, list[i].row, list[i].rows, list[i].mean,
            list[i].spread, seed);
    }
}

static const char *key_of(const llama_spec *s, const char *suffix)
{
    static char key[96];
    snprintf(key, sizeof key, "%s.%s", s->arch != NULL ? s->arch : "llama", suffix);
    return key;
}

static void add_keys(gguf_build *b, const llama_spec *s)
{
    gguf_build_str(b, "general.architecture", s->arch != NULL ? s->arch : "llama");
    gguf_build_str(b, "general.name", "random model");
    const struct {
        const char *suffix;
        uint32_t value;
    } numbers[] = {
        {"block_count", s->n_layers},
        {"context_length", s->n_ctx},
        {"embedding_length", s->n_embd},
        {"feed_forward_length", s->n_ff},
        {"attention.head_count", s->n_heads},
        {"attention.head_count_kv", s->n_kv_heads},
        {"attention.key_length", s->n_head},
        {"attention.value_length", s->n_head},
        {"rope.dimension_count", s->n_head},
        {"attention.sliding_window", s->window},
        {"attention.sliding_window_pattern", s->period},
    };
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value == 0) continue;
        gguf_build_u32(b, key_of(s, numbers[i].suffix), numbers[i].value);
    }
    gguf_build_f32(b, key_of(s, "rope.freq_base"), is(s, "gemma3") ? 1e6f : 10000.0f);
    gguf_build_f32(b, key_of(s, "attention.layer_norm_rms_epsilon"), 1e-5f);
    gguf_build_vocab(b, s->n_vocab);
}

gguf_build *gguf_build_llama(const llama_spec *s)
{
    gguf_build *b = gguf_build_new();
    uint64_t seed = s->seed;
    float wide = 1.0f / sqrtf((float)s->n_embd); /* gemma3 multiplies embeddings by its inverse */
    add_keys(b, s);
    add(b, "token_embd.weight", s->type, s->n_embd, s->n_vocab, 0, is(s, "gemma3") ? wide : 1,
        &seed);
    for (uint32_t il = 0; il < s->n_layers; il++)
        add_layer(b, s, il, &seed);
    add(b, "output_norm.weight", DT_F32, s->n_embd, 0, 1, 0.1f, &seed);
    if (!s->tied) add(b, "output.weight", s->type, s->n_embd, s->n_vocab, 0, wide, &seed);
    if (s->rope_freqs) add(b, "rope_freqs.weight", DT_F32, s->n_head / 2, 0, 4, 1, &seed);
    return b;
}

/* Piece i of the vocabulary, and its type (1 normal, 2 unknown, 3 control, 6 byte). */
static int32_t piece(uint32_t i, char text[16])
{
    static const char letters[] = "etaoinshrdlucmfwypvbgk.,";
    const uint32_t n = sizeof letters - 1;
    if (i < 3) {
        strcpy(text, i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        return i == 0 ? 2 : 3;
    }
    if (i < 259) {
        snprintf(text, 16, "<0x%02X>", i - 3);
        return 6;
    }
    uint32_t k = i - 259;
    if (k == 0)
        strcpy(text, "\xe2\x96\x81");
    else if (k <= n)
        snprintf(text, 16, "%c", letters[k - 1]);
    else if (k <= 2 * n)
        snprintf(text, 16, "\xe2\x96\x81%c", letters[k - n - 1]);
    else {
        /* words of letters, two and then more, no two alike */
        uint32_t w = k - 2 * n - 1 + n;
        uint64_t at = 0;
        char reversed[12];
        for (; w > 0 || at < 2; w /= n)
            reversed[at++] = letters[w % n];
        for (uint64_t j = 0; j < at; j++)
            text[j] = reversed[at - 1 - j];
        text[at] = '\0';
    }
    return 1;
}

void gguf_build_vocab(gguf_build *b, uint32_t n_vocab)
{
    CHECK(n_vocab >= 300);
    char(*text)[16] = calloc(n_vocab, sizeof *text);
    const char **list = calloc(n_vocab, sizeof *list);
    float *score = calloc(n_vocab, sizeof *score);
    int32_t *type = calloc(n_vocab, sizeof *type);
    CHECK(text != NULL && list != NULL && score != NULL && type != NULL);
    for (uint32_t i = 0; i < n_vocab; i++) {
        type[i] = piece(i, text[i]);
        score[i] = i < 259 ? 0.0f : -(float)(i - 259);
        list[i] = text[i];
    }
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", list, n_vocab);
    gguf_build_array(b, "tokenizer.ggml.scores", B_F32, score, n_vocab, 4);
    gguf_build_array(b, "tokenizer.ggml.token_type", B_I32, type, n_vocab, 4);
    gguf_build_u32(b, "tokenizer.ggml.unknown_token_id", 0);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", 1);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", 2);
    gguf_build_bool(b, "tokenizer.ggml.add_bos_token", true);
    free(text);
    free(list);
    free(score);
    free(type);
}
