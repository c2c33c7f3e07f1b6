/* tokenizer_bpe_test.c - byte-level BPE: small vocabularies made here, the merging against a slow
 * reference, hostile files and texts. */
#include "common/clock.h"
#include "common/sampler.h"
#include "coordinator/text/tokenizer.h"
#include "tests/support/tap.h"
#include "tests/support/tokens.h"
#include "tests/support/vocab_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xE2\x96\x81" /* U+2581 */
#define SP    "\xC4\xA0"     /* U+0120: how the byte of a space is written */
#define LF    "\xC4\x8A"     /* U+010A: of a line feed */
#define END   UINT32_MAX     /* of a list of ids */

static vocab_file file; /* of the test that runs */
static tokenizer *tok;
static const tokenize_options plain = {.bos = false, .special = false};
static const tokenize_options with_special = {.special = true};
static const tokenize_options with_bos = {.bos = true, .special = true, .eos = true};

static void open_file_with(tokenizer_options o)
{
    gguf *g = vocab_file_open(&file);
    assert_non_null(g);
    errmsg e;
    errmsg_clear(&e);
    tokenizer_close(tok);
    if (tokenizer_open_with(&tok, g, file.n, o, &e) != ST_OK) fail_msg("%s", e.text);
    gguf_close(g);
}

static void open_file(void)
{
    open_file_with((tokenizer_options){0});
}

static uint32_t *encode_bytes(const char *text, uint64_t bytes, tokenize_options o, uint64_t *n)
{
    return tokens_encode(tok, text, bytes, o, n);
}

static void expect_bytes(const char *text, uint64_t bytes, tokenize_options o,
                         const uint32_t *wanted)
{
    tokens_expect(tok, text, bytes, o, wanted, END);
}

static void expect(const char *text, tokenize_options o, const uint32_t *wanted)
{
    expect_bytes(text, strlen(text), o, wanted);
}
#define IDS(...) ((const uint32_t[]){__VA_ARGS__, END})
#define NO_IDS   ((const uint32_t[]){END})

static void expect_round_trip(const char *text, uint64_t bytes, tokenize_options o)
{
    uint64_t n, out_bytes = 0;
    uint32_t *ids = encode_bytes(text, bytes, o, &n);
    char *out = malloc(bytes + 256 * (n + 1));
    for (uint64_t i = 0; i < n; i++) {
        const char *piece;
        uint32_t piece_bytes;
        tokenizer_piece(tok, ids[i], i == 0, o.special, &piece, &piece_bytes);
        assert_true(out_bytes + piece_bytes <= bytes);
        memcpy(out + out_bytes, piece, piece_bytes);
        out_bytes += piece_bytes;
    }
    assert_int_equal(out_bytes, bytes);
    assert_memory_equal(out, text, bytes);
    free(out);
    free(ids);
}

static const char *piece_of(uint32_t id, bool special)
{
    static char out[64];
    const char *text;
    uint32_t bytes;
    tokenizer_piece(tok, id, true, special, &text, &bytes);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return out;
}

/* ---- opening ---- */

static void expect_refused(const char *word, const char *word_too)
{
    gguf *g = vocab_file_open(&file);
    assert_non_null(g);
    errmsg e;
    errmsg_clear(&e);
    tokenizer *t = (tokenizer *)&e;
    assert_int_equal(tokenizer_open(&t, g, 1000, &e), ST_BAD_MODEL);
    assert_null(t);
    if (strstr(e.text, word) == NULL || strstr(e.text, word_too) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", e.text, word, word_too);
    gguf_close(g);
}

static void refuses_bad_files(void **state)
{
    (void)state;
#define REFUSED(change, word, word_too)                                                            \
    do {                                                                                           \
        vocab_file_begin_bpe(&file, "gpt-2");                                                      \
        change;                                                                                    \
        expect_refused(word, word_too);                                                            \
    } while (0)
    REFUSED(file.pre = NULL, "tokenizer.ggml.pre", "--any-pre-tokenizer");
    REFUSED(file.pre = "", "''", "--any-pre-tokenizer");
    REFUSED(file.pre = "brand-new", "'brand-new'", "--any-pre-tokenizer");
    REFUSED(file.n_merges = VOCAB_FILE_ABSENT, "tokenizer.ggml.merges", "convert");
    REFUSED((file.kind = "gemma4", file.n_merges = VOCAB_FILE_ABSENT), "tokenizer.ggml.merges", "");
    REFUSED(file.n_tokens = VOCAB_FILE_ABSENT, "tokenizer.ggml.tokens", "");
    REFUSED(file.n_types--, "tokenizer.ggml.token_type", "");
    REFUSED(file.n_scores = file.n - 1, "tokenizer.ggml.scores", "");
    REFUSED((file.n_scores = file.n, file.score[7] = NAN), "token 7", "");
    REFUSED((void)(vocab_file_add(&file, "xy", 0, 1), vocab_file_add(&file, "xy", 0, 1)), "'xy'",
            "");
    REFUSED(file.bos = file.n, "bos_token_id", "");
    REFUSED(file.eos = 0xFFFFFFFF, "eos_token_id", "");
    REFUSED(file.add_bos = 1, "add_bos_token", "bos_token_id");
    REFUSED(file.add_eos = 1, "add_eos_token", "eos_token_id");
    /* A byte token that is no byte's, where byte tokens count. */
    REFUSED((file.kind = "gemma4", file.type[3] = 6), "token 3", "<0xXX>");
#undef REFUSED
}

static void any_pre_tokenizer_when_asked(void **state)
{
    (void)state;
    static const char *const names[] = {NULL, "", "brand-new"};
    for (uint32_t i = 0; i < 3; i++) {
        vocab_file_begin_bpe(&file, names[i]);
        uint32_t ab = vocab_file_merge(&file, "a", "b");
        open_file_with((tokenizer_options){.any_pre = true});
        expect("ab", plain, IDS(ab));
    }
    /* One that is known is taken: digits one by one here, so that no two merge. */
    vocab_file_begin_bpe(&file, "smollm");
    vocab_file_merge(&file, "1", "2");
    open_file_with((tokenizer_options){.any_pre = true});
    expect("12", plain, IDS('1', '2'));
}

static void scores_and_types_may_be_missing(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t control = vocab_file_add(&file, "<c>", 0, 3);
    file.n_types = VOCAB_FILE_ABSENT;
    open_file();
    expect("<c>", with_special, IDS('<', 'c', '>')); /* an ordinary piece that no merge makes */
    assert_string_equal(piece_of(control, false), "<c>");
}

static void odd_merges_are_passed_over(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    vocab_file_add_merge(&file, "#version: 0.2");
    vocab_file_add_merge(&file, "");
    vocab_file_add_merge(&file, " ");
    vocab_file_add_merge(&file, "  ");
    vocab_file_add_merge(&file, "a");
    vocab_file_add_merge(&file, "a ");
    vocab_file_add_merge(&file, " a");
    vocab_file_add_merge(&file, "a nowhere");
    vocab_file_add_merge(&file, "a c"); /* both are pieces, "ac" is none */
    vocab_file_add_merge(&file, "a b c");
    uint32_t control = vocab_file_add(&file, "xyz", 0, 3);
    vocab_file_merge(&file, "x", "y");
    vocab_file_add_merge(&file, "xy z"); /* plain text spells no control token */
    uint32_t ab = vocab_file_merge(&file, "a", "b");
    open_file();
    expect("abac", plain, IDS(ab, 'a', 'c'));
    expect("xyz", plain, IDS(control + 1, 'z'));
    file.n_merges = 0;
    open_file();
    expect("ab", plain, IDS('a', 'b'));
}

/* ---- ids ---- */

static void merges_by_rank_then_leftmost(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t ab = vocab_file_merge(&file, "a", "b"), aa = vocab_file_merge(&file, "a", "a");
    uint32_t aba = vocab_file_merge(&file, "ab", "a"), aaaa = vocab_file_merge(&file, "aa", "aa");
    vocab_file_merge(&file, "a", "b"); /* again, later: the first counts */
    open_file();
    expect("aaa", plain, IDS(aa, 'a'));
    expect("aab", plain, IDS('a', ab));
    expect("abaa", plain, IDS(ab, aa)); /* "a a" goes before "ab a" */
    expect("abac", plain, IDS(aba, 'c'));
    expect("aaaaaaa", plain, IDS(aaaa, aa, 'a'));
    expect("", plain, NO_IDS);
    expect_bytes("a\0b", 3, plain, IDS('a', 0, 'b'));
}

static void words_bound_merges(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t sp_a = vocab_file_merge(&file, SP, "a"), lf_lf = vocab_file_merge(&file, LF, LF);
    vocab_file_merge(&file, "a", SP); /* across a border: never used */
    open_file();
    expect("a a", plain, IDS('a', sp_a));
    expect("a  a", plain, IDS('a', ' ', sp_a));
    expect("\n\n", plain, IDS(lf_lf));
    expect("\n\na", plain, IDS('\n', '\n', 'a')); /* the last one stays before the word */
    assert_string_equal(piece_of(sp_a, false), " a");
    assert_string_equal(piece_of(lf_lf, false), "\n\n");
}

static void numbers_as_the_pre_tokenizer_says(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "llama-bpe", "qwen2", "smollm"};
    for (uint32_t i = 0; i < 4; i++) {
        vocab_file_begin_bpe(&file, names[i]);
        uint32_t two = vocab_file_merge(&file, "1", "1"),
                 four = vocab_file_merge(&file, "11", "11");
        open_file();
        if (i == 0) expect("1111", plain, IDS(four));
        if (i == 1) expect("1111", plain, IDS(two, '1', '1'));
        if (i >= 2) expect("1111", plain, IDS('1', '1', '1', '1'));
    }
}

static void a_word_that_is_a_piece(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-bpe", "dbrx"};
    for (uint32_t i = 0; i < 2; i++) {
        vocab_file_begin_bpe(&file, names[i]);
        uint32_t ab = vocab_file_merge(&file, "a", "b");
        uint32_t word = vocab_file_add(&file, SP "abc", 0, 1); /* no merge makes it */
        vocab_file_add(&file, "control", 0, 3);
        open_file();
        if (i == 0) expect(" abc", plain, IDS(word));
        if (i == 1) expect(" abc", plain, IDS(' ', ab, 'c'));
        expect(" abcd", plain, IDS(' ', ab, 'c', 'd'));
        expect("control", plain, IDS('c', 'o', 'n', 't', 'r', 'o', 'l'));
        expect_round_trip("a word far longer than any piece of this vocabulary", 51, plain);
    }
}

static void bos_and_eos_as_the_file_says(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t bos = vocab_file_add(&file, "<bos>", 0, 3), eos = vocab_file_add(&file, "<e>", 0, 3);
    file.bos = bos;
    file.eos = eos;
    open_file();
    expect("a", with_bos, IDS('a'));
    file.add_bos = file.add_eos = 1;
    open_file();
    expect("a", with_bos, IDS(bos, 'a', eos));
    expect("<bos>a", with_bos, IDS(bos, 'a', eos)); /* not twice */
    expect("a", plain, IDS('a'));
    file.add_bos = file.add_eos = VOCAB_FILE_ABSENT;
    file.pre = "llama-bpe";
    open_file();
    expect("a", with_bos, IDS(bos, 'a')); /* what that name stands for */
    file.add_bos = 0;
    open_file();
    expect("a", with_bos, IDS('a'));
    /* Without ids in the file: 11 if that is a control token, else none. */
    file.add_bos = VOCAB_FILE_ABSENT;
    file.bos = file.eos = VOCAB_FILE_ABSENT;
    open_file();
    assert_int_equal(tokenizer_bos(tok), TOKEN_NONE);
    assert_false(tokenizer_is_end(tok, 11));
    expect("a", with_bos, IDS('a'));
    file.type[11] = 3;
    open_file();
    assert_int_equal(tokenizer_bos(tok), 11);
    assert_true(tokenizer_is_end(tok, 11));
    expect("a", with_bos, IDS(11, 'a'));
    file.add_space_prefix = 1; /* means nothing here */
    open_file();
    expect("a", with_bos, IDS(11, 'a'));
    assert_string_equal(piece_of(' ', false), " ");
}

static void special_tokens(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t user = vocab_file_add(&file, "  ", 0, 4);
    file.type[0xE9] = 4; /* written as U+00E9, for which it then stands */
    uint32_t start = vocab_file_add(&file, "<|im_start|>", 0, 3);
    uint32_t end = vocab_file_add(&file, "<|im_end|>", 0, 1);
    uint32_t deepseek = vocab_file_add(&file,
                                       "<\xEF\xBD\x9C"
                                       "end" SPACE "of" SPACE "sentence\xEF\xBD\x9C>",
                                       0, 3);
    open_file();
    expect("a  a", plain, IDS('a', user, 'a'));
    expect("<|im_start|>a<|im_end|>", with_special, IDS(start, 'a', end));
    expect("\xC3\xA9", plain, IDS(0xE9));
    expect("\xE9", plain, NO_IDS);
    expect_round_trip("<|im_end|>", 10, plain);
    assert_true(tokenizer_is_end(tok, end) && tokenizer_is_end(tok, deepseek));
    assert_false(tokenizer_is_end(tok, start) || tokenizer_is_end(tok, user));
    assert_string_equal(piece_of(user, false), "  ");
    assert_string_equal(piece_of(0xE9, false), "\xC3\xA9");
    assert_string_equal(piece_of(start, false), "");
    assert_string_equal(piece_of(start, true), "<|im_start|>");
}

static void bytes_without_a_token_are_left_out(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    strcpy(file.text['b'], "bb");
    uint32_t ab = vocab_file_merge(&file, "a", "c");
    open_file();
    expect("abc", plain, IDS('a', 'c')); /* what stood apart is not joined */
    expect("ac", plain, IDS(ab));
    expect("b", plain, NO_IDS);
}

static void odd_pieces(void **state)
{
    (void)state;
    vocab_file_begin_bpe(&file, "gpt-2");
    uint32_t foreign = vocab_file_add(&file, SPACE "a" SP, 0, 1);
    uint32_t broken = vocab_file_add(&file,
                                     "\xC4"
                                     "a\xC4",
                                     0, 5);
    uint32_t empty = vocab_file_add(&file, "", 0, 1), odd = vocab_file_add(&file, "odd", 0, 77);
    open_file();
    assert_string_equal(piece_of(foreign, false), SPACE "a ");
    assert_string_equal(piece_of(broken, false), "\xC4"
                                                 "a\xC4");
    assert_string_equal(piece_of(empty, true), "");
    assert_string_equal(piece_of(odd, true), "odd");
    for (uint32_t b = 1; b < 256; b++) {
        char text[2] = {(char)b};
        assert_string_equal(piece_of(b, false), text);
    }
}

/* ---- gemma 4 ---- */

static void gemma_4(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.n_merges = 0;
    file.bos = 1;
    file.add_bos = 0; /* files say so, and are wrong */
    strcpy(file.text[2], "<turn|>");
    uint32_t space = vocab_file_add(&file, SPACE, 0, 1), a = vocab_file_add(&file, "a", 0, 1);
    uint32_t lf = vocab_file_add(&file, "\n", 0, 1), b = vocab_file_add(&file, "b", 0, 1);
    uint32_t e_acute = vocab_file_add(&file, "\xC3\xA9", 0, 1);
    uint32_t lf3 = vocab_file_add(&file, "\n\n\n", 0, 1); /* no merge makes it */
    uint32_t sp_a = vocab_file_merge(&file, SPACE, "a");
    uint32_t a_sp_a = vocab_file_merge(&file, "a", SPACE "a");
    uint32_t ea = vocab_file_merge(&file, "\xC3\xA9", "a");
    for (uint32_t i = 0; i < 2; i++) {
        file.kind = i == 0 ? "gemma4" : "gpt2";
        file.pre = i == 0 ? NULL : "gemma4";
        open_file();
        expect("a", with_bos, IDS(1, a));
        expect(" a", plain, IDS(sp_a)); /* no space is put before it */
        expect("a a a", plain, IDS(a_sp_a, sp_a));
        expect("b a  b", plain, IDS(b, sp_a, space, space, b)); /* over the borders of words */
        expect("a\n\n\na", plain, IDS(a, lf3, a));
        expect("\n\n", plain, IDS(lf, lf));
        expect("\xC3\xA9\x61\xC3\xA9z", plain, IDS(ea, e_acute, 3 + 'z'));
        expect("\xE2\x82\xAC\xC3", plain, IDS(3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 0xC3));
        expect("<s>", plain, IDS(3 + '<', 3 + 's', 3 + '>'));
        expect_round_trip("a \xE2\x82\xAC \xFF\n  \n\xF0\x9F\x98\x80", 15, plain);
        assert_true(tokenizer_is_end(tok, 2));
        assert_string_equal(piece_of(a_sp_a, false), "a a");
        assert_string_equal(piece_of(sp_a, false), " a");
    }
}

/* ---- against a slow reference ---- */

static uint64_t rng_state = 11;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static uint32_t reference_rank(const char *left, const char *right)
{
    char line[96];
    snprintf(line, sizeof line, "%s %s", left, right);
    for (uint32_t i = 0; i < file.n_merges; i++)
        if (strcmp(file.merge[i], line) == 0) return i;
    return END;
}

static uint32_t reference_find(const char *text)
{
    for (uint32_t id = 0; id < file.n; id++)
        if (strcmp(file.text[id], text) == 0) return id;
    return END;
}

/* One word of letters: scan for the best pair until none is left. */
static void reference_encode(const char *word, uint32_t *out)
{
    char symbol[64][32];
    uint32_t n = 0;
    for (; word[n] != '\0'; n++)
        snprintf(symbol[n], sizeof symbol[n], "%c", word[n]);
    for (;;) {
        uint32_t best = END, best_i = 0;
        for (uint32_t i = 0; i + 1 < n; i++) {
            uint32_t rank = reference_rank(symbol[i], symbol[i + 1]);
            if (rank >= best) continue;
            best = rank;
            best_i = i;
        }
        if (best == END) break;
        char both[64];
        snprintf(both, sizeof both, "%s%s", symbol[best_i], symbol[best_i + 1]);
        memcpy(symbol[best_i], both, sizeof symbol[0]);
        memmove(symbol[best_i + 1], symbol[best_i + 2], (n - best_i - 2) * sizeof symbol[0]);
        n--;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = reference_find(symbol[i]);
    out[n] = END;
}

static void equals_the_reference(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 300; round++) {
        vocab_file_begin_bpe(&file, "gpt-2");
        uint32_t made[64] = {'a', 'b', 'c'}, n_made = 3, n_merges = 1 + rng(40);
        for (uint32_t i = 0; i < n_merges; i++) {
            const char *left = file.text[made[rng(n_made)]], *right = file.text[made[rng(n_made)]];
            if (strlen(left) + strlen(right) > 12) continue;
            made[n_made++] = vocab_file_merge(&file, left, right);
        }
        open_file();
        for (uint32_t k = 0; k < 40; k++) {
            char word[64];
            uint32_t length = 1 + rng(60), wanted[64];
            for (uint32_t i = 0; i < length; i++)
                word[i] = "abc"[rng(3)];
            word[length] = '\0';
            reference_encode(word, wanted);
            expect(word, plain, wanted);
        }
    }
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    static const char likely[] = "  a1\n\r'sL.\xC3\xA9\xE2\xF0\x9F\x98\x80\xFF\0<|";
    static const char *const names[] = {"gpt-2",  "llama-bpe",    "qwen35",
                                        "smollm", "deepseek-llm", "falcon"};
    for (uint32_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        vocab_file_begin_bpe(&file, names[k]);
        vocab_file_merge(&file, SP, SP);
        vocab_file_merge(&file, SP, "a");
        vocab_file_merge(&file, "\xC3\x83", "\xC2\xA9");
        vocab_file_add(&file, "<|x|>", 0, 4);
        open_file();
        for (uint32_t round = 0; round < 5000; round++) {
            char text[40];
            uint32_t bytes = rng(sizeof text);
            for (uint32_t i = 0; i < bytes; i++)
                text[i] = rng(8) ? likely[rng(sizeof likely - 1)] : (char)rng(256);
            expect_round_trip(text, bytes, plain);
        }
    }
}

/* ---- size ---- */

static void long_texts_are_fast(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    static const char *const names[] = {"gpt-2", "llama-bpe", "deepseek-llm", "gemma4"};
    char *text = malloc(BYTES);
    for (uint32_t k = 0; k < 4; k++) {
        bool raw = k == 3;
        if (raw) {
            vocab_file_begin(&file);
            file.kind = names[k];
            file.n_merges = 0;
            static const char *const letters[] = {"a", "b", "z", "\n", SPACE};
            for (uint32_t i = 0; i < 5; i++)
                vocab_file_add(&file, letters[i], 0, 1);
        } else {
            vocab_file_begin_bpe(&file, names[k]);
        }
        vocab_file_merge(&file, "a", "a");
        vocab_file_merge(&file, "aa", "aa");
        uint32_t eight = vocab_file_merge(&file, "aaaa", "aaaa");
        vocab_file_merge(&file, "a", "b");
        vocab_file_merge(&file, raw ? SPACE : SP, raw ? SPACE : SP);
        vocab_file_merge(&file, raw ? "\n" : LF, raw ? "\n" : LF);
        open_file();
        for (uint32_t way = 0; way < 5; way++) {
            for (uint32_t i = 0; i < BYTES; i++)
                text[i] = way < 3 ? "a \n"[way] : way == 3 ? "aab z\n"[rng(6)] : "a1.\n "[i % 5];
            uint64_t from = now_ns(), n;
            uint32_t *ids = encode_bytes(text, BYTES, plain, &n);
            uint64_t ns = now_ns() - from;
            print_message("# %s, %d bytes, way %u: %.0f ms\n", names[k], BYTES, way,
                          (double)ns / NS_PER_MS);
            assert_true(ns < 10 * NS_PER_S); /* seconds, not hours, under a sanitizer too */
            if (way == 0) {
                assert_int_equal(n, BYTES / 8);
                assert_int_equal(ids[n - 1], eight);
            }
            free(ids);
        }
    }
    free(text);
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
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(any_pre_tokenizer_when_asked),
        cmocka_unit_test(scores_and_types_may_be_missing),
        cmocka_unit_test(odd_merges_are_passed_over),
        cmocka_unit_test(merges_by_rank_then_leftmost),
        cmocka_unit_test(words_bound_merges),
        cmocka_unit_test(numbers_as_the_pre_tokenizer_says),
        cmocka_unit_test(a_word_that_is_a_piece),
        cmocka_unit_test(bos_and_eos_as_the_file_says),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
        cmocka_unit_test(odd_pieces),
        cmocka_unit_test(gemma_4),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(long_texts_are_fast),
    };
    return cmocka_run_group_tests_name("tokenizer_bpe", tests, NULL, close_all);
}
