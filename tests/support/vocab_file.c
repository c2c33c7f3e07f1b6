#include "tests/support/vocab_file.h"

#include "tests/support/gguf_build.h"

#include <stdio.h>
#include <string.h>

static void begin(vocab_file *v, const char *kind)
{
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->bos = v->eos = v->eot = v->eom = v->unknown = VOCAB_FILE_ABSENT;
    v->add_bos = v->add_eos = v->add_space_prefix = VOCAB_FILE_ABSENT;
    v->n_merges = VOCAB_FILE_ABSENT;
}

void vocab_file_begin(vocab_file *v)
{
    begin(v, "llama");
    vocab_file_add(v, "<unk>", 0, 2);
    vocab_file_add(v, "<s>", 0, 3);
    vocab_file_add(v, "</s>", 0, 3);
    for (unsigned b = 0; b < 256; b++) {
        char text[16];
        snprintf(text, sizeof text, "<0x%02X>", b);
        vocab_file_add(v, text, 0, 6);
    }
}

void vocab_file_begin_bpe(vocab_file *v, const char *pre)
{
    begin(v, "gpt2");
    v->pre = pre;
    v->n_merges = 0;
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        unsigned c = itself ? b : next++;
        char text[3] = {(char)c};
        if (c >= 0x80) {
            text[0] = (char)(0xC0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3F));
        }
        vocab_file_add(v, text, 0, 1);
    }
    v->n_scores = VOCAB_FILE_ABSENT;
}

void vocab_file_add_merge(vocab_file *v, const char *line)
{
    CHECK(v->n_merges < VOCAB_FILE_MERGES_MAX && strlen(line) < sizeof v->merge[0]);
    strcpy(v->merge[v->n_merges++], line);
}

uint32_t vocab_file_merge(vocab_file *v, const char *left, const char *right)
{
    char text[64];
    snprintf(text, sizeof text, "%s %s", left, right);
    vocab_file_add_merge(v, text);
    snprintf(text, sizeof text, "%s%s", left, right);
    for (uint32_t id = 0; id < v->n; id++)
        if (strcmp(v->text[id], text) == 0) return id;
    return vocab_file_add(v, text, 0, 1);
}

uint32_t vocab_file_add(vocab_file *v, const char *text, float score, int32_t type)
{
    CHECK(v->n < VOCAB_FILE_TOKENS_MAX && strlen(text) < sizeof v->text[0]);
    strcpy(v->text[v->n], text);
    v->score[v->n] = score;
    v->type[v->n++] = type;
    v->n_tokens = v->n_types = v->n;
    if (v->n_scores != VOCAB_FILE_ABSENT) v->n_scores = v->n;
    return v->n - 1;
}

static void put_ids(gguf_build *b, const vocab_file *v)
{
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", v->bos},
               {"tokenizer.ggml.eos_token_id", v->eos},
               {"tokenizer.ggml.eot_token_id", v->eot},
               {"tokenizer.ggml.eom_token_id", v->eom},
               {"tokenizer.ggml.unknown_token_id", v->unknown}};
    for (uint32_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (ids[i].id != VOCAB_FILE_ABSENT) gguf_build_u32(b, ids[i].key, (uint32_t)ids[i].id);
}

static void put_flags(gguf_build *b, const vocab_file *v)
{
    const struct {
        const char *key;
        int flag;
    } flags[] = {{"tokenizer.ggml.add_bos_token", v->add_bos},
                 {"tokenizer.ggml.add_eos_token", v->add_eos},
                 {"tokenizer.ggml.add_space_prefix", v->add_space_prefix}};
    for (uint32_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].flag != VOCAB_FILE_ABSENT) gguf_build_bool(b, flags[i].key, flags[i].flag);
}

static void put_arrays(gguf_build *b, const vocab_file *v)
{
    const char *text[VOCAB_FILE_TOKENS_MAX];
    for (uint32_t i = 0; i < v->n; i++)
        text[i] = v->text[i];
    if (v->n_tokens != VOCAB_FILE_ABSENT)
        gguf_build_strs(b, "tokenizer.ggml.tokens", text, (uint64_t)v->n_tokens);
    if (v->n_scores != VOCAB_FILE_ABSENT)
        gguf_build_array(b, "tokenizer.ggml.scores", B_F32, v->score, (uint64_t)v->n_scores, 4);
    if (v->n_types != VOCAB_FILE_ABSENT)
        gguf_build_array(b, "tokenizer.ggml.token_type", B_I32, v->type, (uint64_t)v->n_types, 4);
    for (int64_t i = 0; i < v->n_merges; i++)
        text[i] = v->merge[i];
    if (v->n_merges != VOCAB_FILE_ABSENT)
        gguf_build_strs(b, "tokenizer.ggml.merges", text, (uint64_t)v->n_merges);
}

gguf *vocab_file_open(const vocab_file *v)
{
    gguf_build *b = gguf_build_new();
    if (v->name != NULL) gguf_build_str(b, "general.name", v->name);
    if (v->kind != NULL) gguf_build_str(b, "tokenizer.ggml.model", v->kind);
    if (v->pre != NULL) gguf_build_str(b, "tokenizer.ggml.pre", v->pre);
    put_ids(b, v);
    put_flags(b, v);
    put_arrays(b, v);
    int fd = gguf_build_fd(b);
    gguf_build_free(b);
    gguf *g = NULL;
    return gguf_open_fds(&g, &fd, 1, NULL) == ST_OK ? g : NULL;
}
