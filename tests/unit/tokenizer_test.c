/* tokenizer_test.c - the "llama" kind and what all kinds share: small vocabularies made here, the
 * merging against a slow reference, hostile files. */
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

#define SPACE   "\xE2\x96\x81"
#define BYTE(b) (3u + (b))
#define END     UINT32_MAX /* of a list of ids */

static vocab_file file; /* of the test that runs */
static tokenizer *tok;
static const tokenize_options plain = {.bos = false, .special = false};
static const tokenize_options with_special = {.special = true};

static void open_file(uint32_t n_vocab)
{
    gguf *g = vocab_file_open(&file);
    assert_non_null(g);
    errmsg e;
    errmsg_clear(&e);
    tokenizer_close(tok);
    if (tokenizer_open(&tok, g, n_vocab, &e) != ST_OK) fail_msg("%s", e.text);
    gguf_close(g);
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

/* The text of ids, as the run command puts it together: first is the first id that is not BOS. */
static uint64_t decode(const uint32_t *ids, uint64_t n, bool special, char *out)
{
    uint64_t bytes = 0;
    bool first = true;
    for (uint64_t i = 0; i < n; i++) {
        if (first && ids[i] == tokenizer_bos(tok) && !special) continue;
        const char *text;
        uint32_t piece_bytes;
        tokenizer_piece(tok, ids[i], first, special, &text, &piece_bytes);
        memcpy(out + bytes, text, piece_bytes);
        bytes += piece_bytes;
        first = false;
    }
    return bytes;
}

static void expect_round_trip(const char *text, uint64_t bytes, tokenize_options o)
{
    uint64_t n;
    uint32_t *ids = encode_bytes(text, bytes, o, &n);
    char *out = malloc(64 * n + 1);
    assert_int_equal(decode(ids, n, o.special, out), bytes);
    assert_memory_equal(out, text, bytes);
    free(out);
    free(ids);
}

static const char *piece_of(uint32_t id, bool first, bool special)
{
    static char out[64];
    const char *text;
    uint32_t bytes;
    tokenizer_piece(tok, id, first, special, &text, &bytes);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return out;
}

/* ---- opening ---- */

static void expect_refused(uint32_t n_vocab, const char *word)
{
    gguf *g = vocab_file_open(&file);
    assert_non_null(g);
    errmsg e;
    errmsg_clear(&e);
    tokenizer *t = (tokenizer *)&e;
    assert_int_equal(tokenizer_open(&t, g, n_vocab, &e), ST_BAD_MODEL);
    assert_null(t);
    if (strstr(e.text, word) == NULL) fail_msg("'%s' does not say '%s'", e.text, word);
    if (strstr(e.text, gguf_file_name(g, 0)) != e.text) fail_msg("'%s' names no file", e.text);
    gguf_close(g);
}

static void refuses_bad_files(void **state)
{
    (void)state;
#define REFUSED(change, word)                                                                      \
    do {                                                                                           \
        vocab_file_begin(&file);                                                                   \
        change;                                                                                    \
        expect_refused(1000, word);                                                                \
    } while (0)
    REFUSED(file.kind = NULL, "tokenizer.ggml.model");
    REFUSED(file.kind = "bert", "'bert'");
    REFUSED(file.kind = "bert", "supported: llama, gpt2, gemma4");
    REFUSED(file.kind = "llam", "'llam'");
    REFUSED(file.kind = "", "''");
    REFUSED(file.n_tokens = VOCAB_FILE_ABSENT, "tokenizer.ggml.tokens");
    REFUSED(file.n_scores = VOCAB_FILE_ABSENT, "tokenizer.ggml.scores");
    REFUSED(file.n_types = VOCAB_FILE_ABSENT, "tokenizer.ggml.token_type");
    REFUSED(file.n_scores--, "tokenizer.ggml.scores");
    REFUSED(file.n_types--, "tokenizer.ggml.token_type");
    REFUSED(file.n_tokens--, "tokenizer.ggml.scores");
    REFUSED(file.n_tokens = file.n_scores = file.n_types = 0, "tokenizer.ggml.tokens");
    REFUSED(strcpy(file.text[BYTE(0xAB)], "abcdef"); file.type[BYTE(0xAB)] = 1, "<0xAB>");
    REFUSED(strcpy(file.text[BYTE(0xAB)], "<0xAG>"), "<0xXX>");
    REFUSED(file.type[BYTE(1)] = 1, "<0x01>");
    REFUSED(file.n_tokens = file.n_scores = file.n_types = 258, "<0xFF>");
    REFUSED((void)(vocab_file_add(&file, "x", 0, 1), vocab_file_add(&file, "x", 0, 1)), "'x'");
    REFUSED(file.score[70] = NAN, "token 70");
    REFUSED(file.bos = file.n, "bos_token_id");
    REFUSED(file.bos = 0xFFFFFFFF, "bos_token_id");
    REFUSED(file.eos = file.n, "eos_token_id");
    REFUSED(file.eot = file.n, "eot_token_id");
    REFUSED(file.eom = file.n, "eom_token_id");
    REFUSED(file.unknown = file.n, "unknown_token_id");
#undef REFUSED
    vocab_file_begin(&file);
    expect_refused(258, "259 tokens for a model of 258");
    expect_refused(0, "tokenizer.ggml.tokens");
}

static void a_plain_character_serves_as_its_byte(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    strcpy(file.text[BYTE('a')], "a");
    file.type[BYTE('a')] = 1;
    file.add_space_prefix = 0;
    open_file(300);
    expect("ab", plain, IDS(BYTE('a'), BYTE('b')));
}

/* ---- ids ---- */

static void merges_by_score_then_leftmost(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.add_space_prefix = 0;
    uint32_t a = vocab_file_add(&file, "a", -9, 1), b = vocab_file_add(&file, "b", -9, 1);
    uint32_t aa = vocab_file_add(&file, "aa", -3, 1), ab = vocab_file_add(&file, "ab", -2, 1);
    uint32_t ba = vocab_file_add(&file, "ba", -3, 1), aba = vocab_file_add(&file, "aba", -5, 1);
    open_file(file.n);
    expect("aaa", plain, IDS(aa, a)); /* leftmost */
    expect("aab", plain, IDS(a, ab)); /* the better score */
    expect("baa", plain, IDS(ba, a));
    expect("aba", plain, IDS(aba));
    expect("abab", plain, IDS(ab, ab));
    expect("abba", plain, IDS(ab, ba));
    expect("bb", plain, IDS(b, b));
    expect("", plain, NO_IDS);
}

static void spaces_and_bytes(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    uint32_t space = vocab_file_add(&file, SPACE, -1, 1), a = vocab_file_add(&file, "a", -2, 1);
    uint32_t space_a = vocab_file_add(&file, SPACE "a", -3, 1);
    uint32_t e_acute = vocab_file_add(&file, "\xC3\xA9", -4, 1);
    open_file(file.n);
    expect("a", plain, IDS(space_a));
    expect(" a", plain, IDS(space, space_a));
    expect("a ", plain, IDS(space_a, space));
    expect(" ", plain, IDS(space, space));
    expect("\xC3\xA9", plain, IDS(space, e_acute));
    expect("z\n", plain, IDS(space, BYTE('z'), BYTE('\n')));
    expect("\xC3\xA8", plain, IDS(space, BYTE(0xC3), BYTE(0xA8)));
    expect("\xC3", plain, IDS(space, BYTE(0xC3)));
    expect("\xC3\x61", plain, IDS(space, BYTE(0xC3), a)); /* what follows is not swallowed */
    expect("\xE2 a", plain, IDS(space, BYTE(0xE2), space_a));
    expect_bytes("a\0a", 3, plain, IDS(space_a, BYTE(0), a));
    file.add_space_prefix = 0;
    open_file(file.n);
    expect("a", plain, IDS(a));
    expect(" a", plain, IDS(space_a));
}

static void bos_and_eos_as_the_file_says(void **state)
{
    (void)state;
    const tokenize_options bos = {.bos = true}, both = {.bos = true, .eos = true};
    const tokenize_options bos_special = {.bos = true, .special = true};
    vocab_file_begin(&file);
    uint32_t a = vocab_file_add(&file, SPACE "a", -1, 1);
    vocab_file_add(&file, SPACE, -1, 1);
    vocab_file_add(&file, "a", -1, 1);
    open_file(file.n);
    assert_int_equal(tokenizer_bos(tok), 1);
    expect("a", bos, IDS(1, a));
    expect("", bos, IDS(1));
    expect("a", both, IDS(1, a));           /* add_eos_token is off */
    expect("<s>a", bos_special, IDS(1, a)); /* not twice */
    expect("<s>", bos_special, IDS(1));
    expect("<s><s>a", bos_special, IDS(1, 1, a)); /* as the text says */
    expect("<s>a", with_special, IDS(1, a));
    file.add_bos = 0;
    file.add_eos = 1;
    file.bos = 2;
    file.eos = 1;
    open_file(file.n);
    assert_int_equal(tokenizer_bos(tok), 2);
    expect("a", both, IDS(a, 1));
    expect("a", bos, IDS(a));
    expect("", bos, NO_IDS);
}

static void special_tokens(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    uint32_t space = vocab_file_add(&file, SPACE, -1, 1), a = vocab_file_add(&file, "a", -1, 1);
    uint32_t space_a = vocab_file_add(&file, SPACE "a", -1, 1);
    uint32_t tool = vocab_file_add(&file, "<tool>", 0, 4),
             control = vocab_file_add(&file, "<c>", 0, 3);
    uint32_t x = vocab_file_add(&file, "[x", 0, 4), xyz = vocab_file_add(&file, "x]yz", 0, 4);
    vocab_file_add(&file, "", 0, 4); /* an empty piece matches nowhere */
    open_file(file.n);
    /* User-defined always, control and unknown only when asked; a space before each text. */
    expect("a<tool>a", plain, IDS(space_a, tool, space_a));
    expect("a<c>a", with_special, IDS(space_a, control, space_a));
    expect("<unk>", with_special, IDS(0));
    expect("<tool><tool>", plain, IDS(tool, tool));
    expect("<tool> a", plain, IDS(tool, space, space_a));
    expect("<c", with_special, IDS(space, BYTE('<'), BYTE('c')));
    expect("<c>", plain, IDS(space, BYTE('<'), BYTE('c'), BYTE('>')));
    expect("</s>a", plain, IDS(space, BYTE('<'), BYTE('/'), BYTE('s'), BYTE('>'), a));
    /* The longer token wins, though the shorter begins before it. */
    expect("[x]yz", plain, IDS(space, BYTE('['), xyz));
    expect("[x]y", plain, IDS(x, space, BYTE(']'), BYTE('y')));
}

/* Pieces that lead up to a control, unknown or byte token do not lead into it. */
static void plain_text_never_spells_a_special_token(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.add_space_prefix = 0;
    const char *steps[] = {"<",   ">",    "s",     "0", "x",  "A", "<s", "</", "</s", "<0",
                           "<0x", "<0x0", "<0x0A", "/", "<u", "u", "n",  "k",  "<un", "<unk"};
    uint32_t from = file.n;
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        vocab_file_add(&file, steps[i], -1 - (float)i, 1);
    open_file(file.n);
    const char *texts[] = {"<s>", "</s>", "<0x0A>", "<unk>"};
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t n;
        uint32_t *ids = encode_bytes(texts[i], strlen(texts[i]), plain, &n);
        for (uint64_t k = 0; k < n; k++)
            assert_true(ids[k] >= from);
        free(ids);
        expect_round_trip(texts[i], strlen(texts[i]), plain);
    }
}

static void white_space_after_phi_3s_tokens(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.name = "A Phi-3 model";
    uint32_t space = vocab_file_add(&file, SPACE, -1, 1), a = vocab_file_add(&file, "a", -1, 1);
    uint32_t space_a = vocab_file_add(&file, SPACE "a", -1, 1);
    uint32_t user = vocab_file_add(&file, "<|user|>", 0, 3);
    open_file(file.n);
    expect("<|user|> \n a", with_special, IDS(user, space_a));
    expect("<|user|> \n", with_special, IDS(user));
    expect("<s>\na", with_special, IDS(1, space, BYTE('\n'), a)); /* not after this one */
    file.name = "another";
    open_file(file.n);
    expect("<|user|>\n", with_special, IDS(user, space, BYTE('\n')));
}

/* Gemma's form: no space prefix, runs of spaces and of line feeds as user-defined tokens (the file
 * has them with plain spaces), special tokens of its own. */
static void gemmas_form(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.add_space_prefix = 0;
    file.bos = 2;
    file.eos = 1;
    strcpy(file.text[1], "<eos>");
    strcpy(file.text[2], "<bos>");
    uint32_t space_a = vocab_file_add(&file, SPACE "a", -2, 1);
    uint32_t space = vocab_file_add(&file, SPACE, -1, 1), a = vocab_file_add(&file, "a", -1, 1);
    uint32_t two = vocab_file_add(&file, "  ", -1000, 4);
    uint32_t three = vocab_file_add(&file, "   ", -1000, 4);
    uint32_t lines = vocab_file_add(&file, "\n\n", -1000, 4);
    uint32_t turn = vocab_file_add(&file, "<start_of_turn>", -1000, 3);
    uint32_t end = vocab_file_add(&file, "<end_of_turn>", -1000, 1);
    open_file(file.n);
    const tokenize_options bos_special = {.bos = true, .special = true};
    expect("<start_of_turn>a a\n\na<end_of_turn>", bos_special,
           IDS(2, turn, a, space_a, lines, a, end));
    expect("a     a", plain, IDS(a, three, two, a));
    expect("a    a", plain, IDS(a, three, space_a));
    expect("  ", plain, IDS(two));
    expect(" ", plain, IDS(space));
    expect_round_trip("  a   a \n\n\n a", 13, plain);
    assert_true(tokenizer_is_end(tok, 1) && tokenizer_is_end(tok, end));
    assert_false(tokenizer_is_end(tok, turn));
    assert_string_equal(piece_of(three, true, false), "   ");
}

/* ---- pieces ---- */

static void pieces(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    uint32_t two = vocab_file_add(&file, SPACE SPACE "a" SPACE, -1, 1);
    uint32_t user = vocab_file_add(&file, " " SPACE, 0, 4), empty = vocab_file_add(&file, "", 0, 1);
    uint32_t odd = vocab_file_add(&file, "odd", 0, 77), unused = vocab_file_add(&file, "un", 0, 5);
    open_file(file.n + 10);
    assert_string_equal(piece_of(two, false, false), "  a ");
    assert_string_equal(piece_of(two, true, false), " a ");      /* exactly one */
    assert_string_equal(piece_of(user, true, false), " " SPACE); /* as it stands in the file */
    assert_string_equal(piece_of(empty, true, true), "");
    assert_string_equal(piece_of(odd, true, true), "odd");
    assert_string_equal(piece_of(unused, true, true), "un");
    assert_string_equal(piece_of(BYTE('A'), false, false), "A");
    assert_string_equal(piece_of(BYTE(' '), true, false), " ");
    assert_string_equal(piece_of(1, false, false), "");
    assert_string_equal(piece_of(1, false, true), "<s>");
    assert_string_equal(piece_of(0, false, false), "");
    assert_string_equal(piece_of(file.n, true, true), ""); /* of a padded head */
    assert_string_equal(piece_of(file.n + 9, true, true), "");
    assert_int_equal(tokenizer_n(tok), file.n);
    file.add_space_prefix = 0;
    open_file(file.n);
    assert_string_equal(piece_of(two, true, false), "  a "); /* nothing was added */
}

static void ends(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    uint32_t a = vocab_file_add(&file, "a", 0, 1), b = vocab_file_add(&file, "b", 0, 1);
    uint32_t turn = vocab_file_add(&file, "<|im_end|>", 0, 1);
    file.eot = a;
    open_file(file.n + 5);
    assert_true(tokenizer_is_end(tok, 2) && tokenizer_is_end(tok, a) &&
                tokenizer_is_end(tok, turn));
    assert_false(tokenizer_is_end(tok, b) || tokenizer_is_end(tok, 0) || tokenizer_is_end(tok, 1));
    assert_false(tokenizer_is_end(tok, file.n) || tokenizer_is_end(tok, TOKEN_NONE));
    expect("<|im_end|>", with_special, IDS(turn)); /* control, though the file says normal */
    assert_string_equal(piece_of(turn, false, false), "");
    file.eos = b;
    file.eom = BYTE(7);
    open_file(file.n);
    assert_true(tokenizer_is_end(tok, b) && tokenizer_is_end(tok, BYTE(7)));
}

/* Texts that mean something wherever they occur, and the formats in which they mean another. */
static void known_texts(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    file.add_space_prefix = 0;
    uint32_t end = vocab_file_add(&file, "<|end|>", 0, 3);
    uint32_t ret = vocab_file_add(&file, "<|return|>", 0, 3);
    uint32_t channel = vocab_file_add(&file, "<|channel|>", 0, 3);
    uint32_t prefix = vocab_file_add(&file, "<|fim_prefix|>", 0, 4);
    uint32_t gap = vocab_file_add(&file, "<|fim_pad|>", 0, 4);
    open_file(file.n);
    assert_true(tokenizer_is_end(tok, end) && tokenizer_is_end(tok, ret));
    assert_true(tokenizer_is_end(tok, gap));
    assert_false(tokenizer_is_end(tok, prefix) || tokenizer_is_end(tok, channel));
    expect("<|channel|>", plain, IDS(channel)); /* always a token */
    expect("<|fim_prefix|>", with_special, IDS(prefix));
    expect_round_trip("<|fim_prefix|>", 14, plain); /* never without special */
    uint32_t call = vocab_file_add(&file, "<|call|>", 0, 3);
    uint32_t tool = vocab_file_add(&file, "<|tool_response>", 0, 3);
    open_file(file.n);
    assert_false(tokenizer_is_end(tok, end)); /* ends a message here, not a turn */
    assert_false(tokenizer_is_end(tok, 2));   /* </s> */
    assert_true(tokenizer_is_end(tok, call) && tokenizer_is_end(tok, tool));
}

/* ---- against a slow reference ---- */

static uint64_t rng_state = 5;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static uint32_t reference_find(const char *text, uint64_t bytes)
{
    for (uint32_t id = BYTE(256); id < file.n; id++)
        if (strlen(file.text[id]) == bytes && memcmp(file.text[id], text, bytes) == 0) return id;
    return END;
}

/* text: characters of one byte and U+2581, escaped already. Scan for the best pair until none is
 * left. */
static uint64_t reference_encode(const char *text, uint64_t bytes, uint32_t *out)
{
    uint64_t border[128], n = 0, n_out = 0; /* border[i], border[i + 1]: symbol i */
    for (uint64_t at = 0; at < bytes; n++) {
        border[n] = at;
        at += memcmp(text + at, SPACE, 3) == 0 ? 3 : 1;
    }
    border[n] = bytes;
    for (;;) {
        uint64_t best = n;
        float best_score = 0;
        for (uint64_t i = 0; i + 1 < n; i++) {
            uint32_t id = reference_find(text + border[i], border[i + 2] - border[i]);
            if (id == END || (best < n && file.score[id] <= best_score)) continue;
            best = i;
            best_score = file.score[id];
        }
        if (best == n) break;
        memmove(border + best + 1, border + best + 2, (n - best - 1) * sizeof *border);
        n--;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t id = reference_find(text + border[i], border[i + 1] - border[i]);
        if (id != END) out[n_out++] = id;
        for (uint64_t k = border[i]; id == END && k < border[i + 1]; k++)
            out[n_out++] = BYTE((unsigned char)text[k]);
    }
    return n_out;
}

static void equals_the_reference(void **state)
{
    (void)state;
    static const char *const letters[] = {"a", "b", SPACE, "c"};
    for (uint32_t round = 0; round < 300; round++) {
        vocab_file_begin(&file);
        file.add_space_prefix = 0;
        uint32_t n_pieces = 1 + rng(40), n_scores = 1 + rng(6);
        for (uint32_t i = 0; i < n_pieces; i++) {
            char piece[20] = "";
            uint32_t length = 1 + rng(6);
            for (uint32_t k = 0; k < length; k++)
                strcat(piece, letters[rng(3)]);
            if (reference_find(piece, strlen(piece)) == END)
                vocab_file_add(&file, piece, -(float)rng(n_scores), 1);
        }
        open_file(file.n);
        for (uint32_t k = 0; k < 40; k++) {
            char text[64] = "", escaped[128] = "";
            uint32_t length = rng(40);
            for (uint32_t i = 0; i < length; i++) {
                const char *letter = letters[rng(4)];
                strcat(escaped, letter);
                strcat(text, strcmp(letter, SPACE) == 0 ? " " : letter);
            }
            uint32_t wanted[400];
            wanted[reference_encode(escaped, strlen(escaped), wanted)] = END;
            expect(text, plain, wanted);
        }
    }
}

static void any_bytes_come_back(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    vocab_file_add(&file, SPACE, -1, 1);
    vocab_file_add(&file, "a", -1, 1);
    vocab_file_add(&file, SPACE "a", -2, 1);
    vocab_file_add(&file, "\xC3\xA9\x61", -2, 1);
    vocab_file_add(&file, "\xC3\xA9", -2, 1);
    vocab_file_add(&file, "\xF0\x9F\x98\x80", -2, 1);
    static const char likely[] = "  aa\xC3\xA9\xE2\xF0\x9F\x98\x80\xFF\0z";
    for (int prefix = 0; prefix < 2; prefix++) {
        file.add_space_prefix = prefix;
        open_file(file.n);
        for (uint32_t round = 0; round < 20000; round++) {
            char text[40];
            uint32_t bytes = rng(sizeof text);
            for (uint32_t i = 0; i < bytes; i++)
                text[i] = rng(8) ? likely[rng(sizeof likely - 1)] : (char)rng(256);
            if (memmem(text, bytes, SPACE, 3) != NULL) continue; /* comes back as a space */
            expect_round_trip(text, bytes, plain);
        }
    }
}

/* ---- size ---- */

static void long_texts_are_fast(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    char *text = malloc(BYTES);
    vocab_file_begin(&file);
    const char *steps[] = {"a",   "aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa",
                           SPACE, "b",  "ab",   " "};
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        vocab_file_add(&file, steps[i], -(float)i, 1);
    open_file(file.n);
    for (uint32_t way = 0; way < 4; way++) {
        for (uint32_t i = 0; i < BYTES; i++)
            text[i] = "aaz "[way == 0 ? 0 : way == 1 ? 2 : rng(way == 2 ? 4 : 3)];
        if (way == 3)
            for (uint32_t i = 0; i + 3 <= BYTES; i += 3)
                memcpy(text + i, "<s>", 3);
        uint64_t from = now_ns(), n = 0;
        uint32_t *ids = encode_bytes(text, BYTES, way == 3 ? with_special : plain, &n);
        uint64_t ns = now_ns() - from;
        print_message("# %d bytes, way %u: %.0f ms\n", BYTES, way, (double)ns / NS_PER_MS);
        assert_true(ns < 5 * NS_PER_S); /* seconds, not minutes, under a sanitizer too */
        if (way == 0) assert_int_equal(n, BYTES / 16 + 1);
        if (way == 3) assert_int_equal(n, BYTES / 3 + 2);
        free(ids);
    }
    free(text);
}

static void too_long_a_text_is_refused(void **state)
{
    (void)state;
    vocab_file_begin(&file);
    open_file(file.n);
    uint32_t *ids = &file.n;
    uint64_t n = 1;
    errmsg e;
    errmsg_clear(&e);
    assert_int_equal(
        tokenizer_encode(tok, "", TOKENIZER_TEXT_BYTES_MAX + 1ull, plain, &ids, &n, &e),
        ST_RESOURCES);
    assert_null(ids);
    assert_int_equal(n, 0);
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
        cmocka_unit_test(a_plain_character_serves_as_its_byte),
        cmocka_unit_test(merges_by_score_then_leftmost),
        cmocka_unit_test(spaces_and_bytes),
        cmocka_unit_test(bos_and_eos_as_the_file_says),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(plain_text_never_spells_a_special_token),
        cmocka_unit_test(white_space_after_phi_3s_tokens),
        cmocka_unit_test(gemmas_form),
        cmocka_unit_test(pieces),
        cmocka_unit_test(ends),
        cmocka_unit_test(known_texts),
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(long_texts_are_fast),
        cmocka_unit_test(too_long_a_text_is_refused),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, close_all);
}
