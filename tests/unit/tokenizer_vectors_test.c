/* tokenizer_vectors_test.c - known vocabularies against recorded ids, where the handed data is
 * there: each text gives these ids, and the ids give the text again. */
#include "coordinator/text/tokenizer.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS_MAX 512u

static tokenizer *tok;

static bool open_shared(const char *name)
{
    char path[1024];
    gguf *g;
    if (tap_shared_dir() != NULL) {
        snprintf(path, sizeof path, "%s/models/%s", tap_shared_dir(), name);
        if (gguf_open(&g, path, NULL) == ST_OK) {
            errmsg e;
            errmsg_clear(&e);
            tokenizer_close(tok);
            uint64_t n = gguf_array_n(g, "tokenizer.ggml.tokens");
            if (tokenizer_open(&tok, g, (uint32_t)n, &e) != ST_OK) fail_msg("%s", e.text);
            gguf_close(g);
            return true;
        }
    }
    print_message("# skipped: no %s\n", name);
    return false;
}

static char *read_file(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/models/vocab/%s", tap_shared_dir(), name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    enum { ROOM = 1 << 20 };
    char *text = calloc(ROOM + 1, 1);
    uint64_t bytes = fread(text, 1, ROOM, f);
    assert_true(bytes < ROOM);
    fclose(f);
    return text;
}

static void check(const char *text, uint64_t bytes, tokenize_options o, const uint32_t *wanted,
                  uint64_t n_wanted)
{
    uint32_t *ids;
    uint64_t n, out_bytes = 0;
    errmsg e;
    errmsg_clear(&e);
    if (tokenizer_encode(tok, text, bytes, o, &ids, &n, &e) != ST_OK) fail_msg("%s", e.text);
    bool same = n == n_wanted && memcmp(ids, wanted, n * sizeof *ids) == 0;
    if (!same) {
        print_message("# '%.40s' gives", text);
        for (uint64_t i = 0; i < n && i < 40; i++)
            print_message(" %u", ids[i]);
        print_message("\n");
    }
    assert_true(same);
    bool first = true;
    for (uint64_t i = 0; i < n; i++) {
        const char *piece;
        uint32_t piece_bytes;
        if (first && ids[i] == tokenizer_bos(tok)) continue;
        tokenizer_piece(tok, ids[i], first, false, &piece, &piece_bytes);
        assert_true(out_bytes + piece_bytes <= bytes);
        assert_memory_equal(piece, text + out_bytes, piece_bytes);
        out_bytes += piece_bytes;
        first = false;
    }
    assert_int_equal(out_bytes, bytes);
    free(ids);
}

/* The numbers of a line; *line moves to the next one. */
static uint64_t read_ids(char **line, uint32_t *ids)
{
    uint64_t n = 0;
    char *end = strchr(*line, '\n');
    assert_non_null(end);
    for (char *at = *line; n < IDS_MAX; n++) {
        char *next;
        ids[n] = (uint32_t)strtoul(at, &next, 10);
        if (next == at || next > end) break;
        at = next;
    }
    assert_true(n < IDS_MAX);
    *line = end + 1;
    return n;
}

static void recorded_ids(void **state)
{
    (void)state;
    static const char separator[] = "\n__ggml_vocab_test__\n";
    static const char *const pairs[][2] = {
        {"ggml-vocab-llama-spm", "ggml-vocab-llama-spm"},
        {"ggml-vocab-gpt-2", "ggml-vocab-gpt-2"},
        {"gen-vocab-llama3", "ggml-vocab-llama-bpe"},
        {"gen-vocab-qwen3", "ggml-vocab-qwen2"},
        {"gen-vocab-qwen3", "ggml-vocab-qwen35"},
        {"ggml-vocab-starcoder", "ggml-vocab-starcoder"},
        {"ggml-vocab-refact", "ggml-vocab-refact"},
        {"ggml-vocab-deepseek-coder", "ggml-vocab-deepseek-coder"},
    };
    for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "vocab/%s.gguf", pairs[i][0]);
        if (!open_shared(name)) continue;
        snprintf(name, sizeof name, "%s.gguf.inp", pairs[i][1]);
        char *texts = read_file(name);
        snprintf(name, sizeof name, "%s.gguf.out", pairs[i][1]);
        char *lines = read_file(name), *line = lines, *text = texts;
        assert_true(texts != NULL && lines != NULL);
        uint32_t n_texts = 0, ids[IDS_MAX];
        for (char *end; (end = strstr(text, separator)) != NULL; n_texts++) {
            uint64_t n = read_ids(&line, ids);
            check(text, (uint64_t)(end - text), (tokenize_options){.bos = false}, ids, n);
            text = end + strlen(separator);
        }
        print_message("# %s: %u texts\n", pairs[i][1], n_texts);
        assert_true(n_texts > 40);
        free(texts);
        free(lines);
    }
}

static void stories260k(void **state)
{
    (void)state;
    if (!open_shared("stories260K/stories260K-f32.gguf")) return;
    static const uint32_t ids[] = {1, 403, 407, 261, 378};
    check("Once upon a time", 16, (tokenize_options){.bos = true}, ids, 5);
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_close(tok);
    tok = NULL;
    return 0;
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_ids),
        cmocka_unit_test(stories260k),
    };
    return cmocka_run_group_tests_name("tokenizer_vectors", tests, NULL, close_all);
}
