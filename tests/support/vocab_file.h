/* vocab_file.h - a model file with a vocabulary and nothing else, in memory, for tests. */
#ifndef TESTS_SUPPORT_VOCAB_FILE_H
#define TESTS_SUPPORT_VOCAB_FILE_H

#include "common/gguf.h"

#define VOCAB_FILE_TOKENS_MAX 1024u
#define VOCAB_FILE_MERGES_MAX 256u
#define VOCAB_FILE_ABSENT     (-1)

typedef struct {
    const char *kind, *name;              /* tokenizer.ggml.model, general.name; NULL: absent */
    uint32_t n;                           /* tokens */
    char text[VOCAB_FILE_TOKENS_MAX][32]; /* tokenizer.ggml.tokens, terminated */
    float score[VOCAB_FILE_TOKENS_MAX];
    int32_t type[VOCAB_FILE_TOKENS_MAX];    /* 1 normal, 2 unknown, 3 control, 4 user-defined, .. */
    int64_t n_tokens, n_scores, n_types;    /* array lengths where they differ from n, or absent */
    int64_t bos, eos, eot, eom, unknown;    /* ids, or absent */
    int add_bos, add_eos, add_space_prefix; /* 0, 1, or absent */
    const char *pre;                        /* tokenizer.ggml.pre; NULL: absent */
    int64_t n_merges;                       /* tokenizer.ggml.merges, or absent */
    char merge[VOCAB_FILE_MERGES_MAX][64];
} vocab_file;

/* <unk>, <s>, </s>, then the 256 byte tokens: ids 0, 1, 2, 3 + byte. No other keys. */
void vocab_file_begin(vocab_file *v);

/* The 256 bytes as "gpt2" writes them: id = byte. Kind "gpt2", that pre-tokenizer, no merges yet,
 * no scores, no other keys. */
void vocab_file_begin_bpe(vocab_file *v, const char *pre);

/* Add the piece left followed by right, unless there is one, and the merge that makes it; returns
 * the piece's id. */
uint32_t vocab_file_merge(vocab_file *v, const char *left, const char *right);

/* Add the line of a merge, whatever it says. */
void vocab_file_add_merge(vocab_file *v, const char *line);

/* Add a token; returns its id. */
uint32_t vocab_file_add(vocab_file *v, const char *text, float score, int32_t type);

/* Open the file; NULL when that fails (never for what vocab_file_begin gives). */
gguf *vocab_file_open(const vocab_file *v);

#endif
