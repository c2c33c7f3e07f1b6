/* gguf_seeds.c - writes the inputs that gguf_fuzz starts from: gguf_seeds DIR. */
#include "common/status.h"
#include "tests/support/gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void save(const char *dir, const char *name, const uint8_t *bytes, uint64_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static void save_build(const char *dir, const char *name, gguf_build *b)
{
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    save(dir, name, bytes, n);
    free(bytes);
    gguf_build_free(b);
}

/* A whole model in about two kilobytes: four tokens, one layer. */
static gguf_build *tiny(dtype type, bool tied, bool extras)
{
    static const char *const words[] = {"<unk>", "<s>", "</s>", "a"};
    uint32_t width = type == DT_Q8_0 ? 32 : 4;
    llama_spec s = {.n_layers = 1,
                    .n_embd = width,
                    .n_ff = width,
                    .n_heads = 2,
                    .n_kv_heads = 1,
                    .n_head = width / 2,
                    .n_vocab = 300,
                    .n_ctx = 16,
                    .type = type,
                    .tied = tied,
                    .biases = extras,
                    .rope_freqs = extras,
                    .seed = 1};
    gguf_build *b = gguf_build_llama(&s);
    gguf_build_strs(b, "tokenizer.ggml.tokens", words, 4);
    gguf_build_unset(b, "tokenizer.ggml.scores");
    gguf_build_unset(b, "tokenizer.ggml.token_type");
    gguf_build_remove(b, "token_embd.weight");
    gguf_build_tensor(b, "token_embd.weight", type, width, 4, NULL);
    if (!tied) {
        gguf_build_remove(b, "output.weight");
        gguf_build_tensor(b, "output.weight", type, width, 4, NULL);
    }
    return b;
}

static void save_split(const char *dir)
{
    gguf_build *whole = tiny(DT_F32, true, false);
    gguf_build *one = gguf_build_part(whole, 0, 2, 0, 3);
    gguf_build *two = gguf_build_part(whole, 1, 2, 3, whole->n_tensors);
    uint64_t n_one = 0, n_two = 0;
    uint8_t *a = gguf_build_bytes(one, &n_one), *b = gguf_build_bytes(two, &n_two);
    uint8_t *both = malloc(5 + n_one + n_two);
    CHECK(both != NULL);
    both[0] = 'S';
    for (int i = 0; i < 4; i++)
        both[1 + i] = (uint8_t)(n_one >> (8 * i));
    memcpy(both + 5, a, n_one);
    memcpy(both + 5 + n_one, b, n_two);
    save(dir, "split", both, 5 + n_one + n_two);
    free(both);
    free(a);
    free(b);
    gguf_build_free(one);
    gguf_build_free(two);
    gguf_build_free(whole);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: gguf_seeds DIR\n");
        return 2;
    }
    const char *dir = argv[1];
    static const float x[4] = {1, 2, 3, 4};
    static const uint8_t nested[] = {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0,
                                     0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0};
    save_build(dir, "f32", tiny(DT_F32, false, false));
    save_build(dir, "f16-tied", tiny(DT_F16, true, true));
    save_build(dir, "q8_0", tiny(DT_Q8_0, true, false));
    gguf_build *b = tiny(DT_F32, true, true);
    b->version = 2;
    b->alignment = 64;
    gguf_build_u32(b, "general.alignment", 64);
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 4.0f);
    save_build(dir, "yarn-v2", b);
    b = gguf_build_new();
    for (uint32_t kind = B_U8; kind <= B_F64; kind++) {
        char key[] = {'k', (char)('a' + kind), '\0'};
        if (kind != B_STRING && kind != B_ARRAY) gguf_build_scalar(b, key, kind, 1);
    }
    gguf_build_raw(b, "x", B_ARRAY, nested, sizeof nested);
    gguf_build_array(b, "tokenizer.ggml.scores", B_F32, x, 4, 4);
    gguf_build_tensor(b, "t", DT_F32, 4, 0, x);
    save_build(dir, "kinds", b);
    save_build(dir, "nothing", gguf_build_new());
    save_split(dir);
    return 0;
}
