/* tokenizer_fuzz.c - any bytes as a text: encoding never crashes, gives ids of the vocabulary, and
 * the pieces of the ids give the text again; the pieces then go through the character stream, whole
 * and cut, with the same result.
 *
 * The first byte chooses the vocabulary (with or without space prefix, with or without special
 * tokens), whether special tokens are parsed, and the kind with its pre-tokenizer; the rest is the
 * text. */
#include "common/sampler.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/utf8.h"
#include "tests/support/vocab_file.h"

#include <stdlib.h>
#include <string.h>

#define SPACE "\xE2\x96\x81"

typedef struct {
    const char *name, *pre; /* NULL: what the file has without it */
} kind_choice;

static const kind_choice kinds[16] = {{NULL, NULL},
                                      {NULL, NULL},
                                      {"gemma4", NULL},
                                      {"gpt2", "gpt-2"},
                                      {"gpt2", "llama-bpe"},
                                      {"gpt2", "qwen2"},
                                      {"gpt2", "qwen35"},
                                      {"gpt2", "smollm"},
                                      {"gpt2", "falcon"},
                                      {"gpt2", "default"},
                                      {"gpt2", "deepseek-coder"},
                                      {"gpt2", "deepseek-llm"},
                                      {"gpt2", "deepseek-v3"},
                                      {"gpt2", "tekken"},
                                      {"gpt2", "gpt-4o"},
                                      {"gpt2", "glm4"}};

/* space, line: how a piece writes them. */
static void add_merges(vocab_file *file, const char *space, const char *line)
{
    vocab_file_merge(file, "t", "h");
    vocab_file_merge(file, "h", "e");
    vocab_file_merge(file, "th", "e");
    vocab_file_merge(file, space, "t");
    vocab_file_merge(file, space, "the");
    vocab_file_merge(file, space, space);
    vocab_file_merge(file, "a", "a");
    vocab_file_merge(file, "aa", "aa");
    vocab_file_merge(file, line, line);
    vocab_file_merge(file, "\xC3\x83", "\xC2\xA9"); /* of U+00E9, byte by byte */
    vocab_file_merge(file, "<", "s");
    vocab_file_merge(file, "<s", ">"); /* a control token: never formed */
}

static tokenizer *vocabulary(const kind_choice *kind, bool prefix, bool special_tokens)
{
    static const char *const pieces[] = {SPACE,
                                         SPACE SPACE,
                                         "a",
                                         "b",
                                         "t",
                                         "h",
                                         "e",
                                         "<",
                                         ">",
                                         "s",
                                         "<s",
                                         "he",
                                         "the",
                                         SPACE "the",
                                         SPACE "t",
                                         "ab",
                                         "ba",
                                         "aa",
                                         "aaaa",
                                         "\xC3\xA9",
                                         "\xC3\xA9\x61",
                                         "\xF0\x9F\x98\x80",
                                         "<0x",
                                         "\n",
                                         "\n\n",
                                         "0",
                                         "x"};
    static vocab_file file;
    if (kind->name != NULL && kind->pre != NULL) {
        vocab_file_begin_bpe(&file, kind->pre);
        file.bos = vocab_file_add(&file, "<s>", 0, 3);
        file.add_bos = 1;
        add_merges(&file, "\xC4\xA0", "\xC4\x8A");
    } else {
        vocab_file_begin(&file);
        for (uint32_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
            vocab_file_add(&file, pieces[i], -(float)(i % 5), 1);
    }
    if (kind->name != NULL) file.kind = kind->name;
    if (kind->name != NULL && kind->pre == NULL) {
        file.bos = 1;
        file.n_merges = 0;
        add_merges(&file, SPACE, "\n");
    }
    file.add_space_prefix = prefix;
    if (special_tokens) {
        vocab_file_add(&file, "<tool>", 0, 4);
        vocab_file_add(&file, "tool", 0, 4);
        vocab_file_add(&file, "\xFF\xFE", 0, 4);
        vocab_file_add(&file, "<c>", 0, 3);
        vocab_file_add(&file, "> ", 0, 4);
    }
    gguf *g = vocab_file_open(&file);
    CHECK(g != NULL);
    tokenizer *t;
    CHECK(tokenizer_open(&t, g, file.n + 3, NULL) == ST_OK);
    gguf_close(g);
    return t;
}

/* The text of the ids, with special tokens shown. */
static uint64_t decode(const tokenizer *t, const uint32_t *ids, uint64_t n, char *out)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        CHECK(ids[i] < tokenizer_n(t));
        const char *text;
        uint32_t piece_bytes;
        tokenizer_piece(t, ids[i], i == 0, true, &text, &piece_bytes);
        memcpy(out + bytes, text, piece_bytes);
        bytes += piece_bytes;
    }
    return bytes;
}

/* What has to come back: the text with each U+2581 as a space. */
static uint64_t unescape(char *text, uint64_t bytes)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < bytes; n++) {
        bool space = bytes - i >= 3 && memcmp(text + i, SPACE, 3) == 0;
        text[n] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    return n;
}

static void check_stream(const char *text, uint64_t bytes, uint8_t chunk)
{
    char *whole = malloc(3 * (bytes + 4)), *cut = malloc(3 * (2 * bytes + 8));
    utf8_stream s = {0};
    uint64_t n_whole = utf8_feed(&s, text, bytes, whole), n_cut = 0;
    n_whole += utf8_end(&s, whole + n_whole);
    for (uint64_t at = 0, take; at < bytes; at += take) {
        take = 1 + (at * 7 + chunk) % 5;
        if (take > bytes - at) take = bytes - at;
        n_cut += utf8_feed(&s, text + at, take, cut + n_cut);
    }
    n_cut += utf8_end(&s, cut + n_cut);
    CHECK(n_whole == n_cut && memcmp(whole, cut, n_whole) == 0);
    for (uint64_t at = 0, length; at < n_whole; at += length) {
        length = utf8_char_bytes(whole + at, n_whole - at);
        CHECK(length > 0);
    }
    free(whole);
    free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tokenizer *opened[64];
    if (size == 0) return 0;
    uint32_t kind_i = data[0] >> 3 & 15;
    bool bytewise = kinds[kind_i].pre != NULL, spm = kinds[kind_i].name == NULL;
    bool prefix = data[0] & 1, special_tokens = data[0] & 2, special = data[0] & 4;
    tokenizer **t = &opened[kind_i * 4 + (data[0] & 3)];
    if (*t == NULL) *t = vocabulary(&kinds[kind_i], prefix, special_tokens);
    char *text = malloc(size);
    uint64_t bytes = size - 1, n, n_bos;
    memcpy(text, data + 1, bytes);

    uint32_t *ids, *bos_ids;
    tokenize_options o = {.special = special};
    CHECK(tokenizer_encode(*t, text, bytes, o, &ids, &n, NULL) == ST_OK);
    o.bos = true;
    CHECK(tokenizer_encode(*t, text, bytes, o, &bos_ids, &n_bos, NULL) == ST_OK);
    bool has_bos = n > 0 && ids[0] == tokenizer_bos(*t);
    CHECK(n_bos == n + !has_bos && bos_ids[0] == tokenizer_bos(*t));
    CHECK(memcmp(bos_ids + !has_bos, ids, n * sizeof *ids) == 0);

    /* A prefix is put after each special token: the text comes back where there can be none. */
    char *out = malloc(64 * n + 1);
    uint64_t out_bytes = decode(*t, ids, n, out);
    if (!spm || !prefix || (!special_tokens && !special)) {
        if (!bytewise) bytes = unescape(text, bytes);
        CHECK(out_bytes == bytes && memcmp(out, text, bytes) == 0);
    }
    check_stream(out, out_bytes, data[0]);
    free(out);
    free(ids);
    free(bos_ids);
    free(text);
    return 0;
}
