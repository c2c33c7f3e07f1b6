/* pretokenize_test.c - where each pre-tokenizer cuts, case by case, and how long it takes. */
#include "common/clock.h"
#include "coordinator/text/pretokenize.h"
#include "tests/support/tap.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pretokenizer *open_pre(const char *name)
{
    const pre_kind *kind = pre_kind_find(name, strlen(name));
    assert_non_null(kind);
    pretokenizer *p;
    errmsg e;
    errmsg_clear(&e);
    if (pretokenizer_open(&p, kind, &e) != ST_OK) fail_msg("%s: %s", name, e.text);
    assert_ptr_equal(pretokenizer_kind(p), kind);
    return p;
}

typedef struct {
    char text[512]; /* the words, each followed by a bar */
    uint64_t bytes;
} joined;

static status join(void *to, const char *word, uint64_t bytes, errmsg *e)
{
    (void)e;
    joined *j = to;
    assert_true(bytes > 0 && j->bytes + bytes + 2 < sizeof j->text);
    memcpy(j->text + j->bytes, word, bytes);
    j->bytes += bytes;
    j->text[j->bytes++] = '\xFE'; /* in no text here */
    j->text[j->bytes] = '\0';
    return ST_OK;
}

/* cut: the text with a bar after each word. */
static void expect(const char *name, const char *cut)
{
    char text[512], wanted[512];
    uint64_t n = 0;
    for (uint64_t i = 0; i <= strlen(cut); i++) {
        wanted[i] = cut[i] == '|' ? '\xFE' : cut[i];
        if (cut[i] != '|') text[n++] = cut[i];
    }
    joined j = {.bytes = 0};
    pretokenizer *p = open_pre(name);
    assert_int_equal(pretokenize(p, text, n - 1, join, &j, NULL), ST_OK);
    pretokenizer_close(p);
    if (strcmp(j.text, wanted) != 0) {
        for (char *at = j.text; *at != '\0'; at++)
            if (*at == '\xFE') *at = '|';
        fail_msg("%s: wanted '%s', got '%s'", name, cut, j.text);
    }
}

static void gpt_2(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "mpt", "olmo"};
    for (uint32_t i = 0; i < 3; i++) {
        expect(names[i], "Hello| world|!|");
        expect(names[i], "it|'s| they|'re| I|'ll| '|S|");
        expect(names[i], "a|  | b| \n|\n|c|");
        expect(names[i], "tab|\t|x|   |");
        expect(names[i], " 2024|-|08| ...| (|x|");
        expect(names[i], "abc|123|def|");
        expect(names[i], "\xC3\xA9t\xC3\xA9| \xE6\xBC\xA2\xE5\xAD\x97|\xE3\x80\x82|");
        expect(names[i], "\n\n|\n|a|");
    }
}

static void llama_3(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-bpe", "llama3", "llama-v3", "falcon3",
                                        "pixtral",   "dbrx",   "smaug-bpe"};
    for (uint32_t i = 0; i < 7; i++) {
        expect(names[i], "Hello| world|!|");
        expect(names[i], "It|'S| we|'LL|");
        expect(names[i], "123|456|7| |89|");
        expect(names[i], "\"quoted|\"|");
        expect(names[i], "(x|)\n\n|y|");
        expect(names[i], "a|  \n \n|  | b|");
        expect(names[i], "  | b|   |");
        expect(names[i], "a|\t|1|");
        expect(names[i], "\tb|");
    }
    assert_true(pre_kind_find("llama-bpe", 9)->ignore_merges);
    assert_true(pre_kind_find("llama-bpe", 9)->add_bos);
    assert_false(pre_kind_find("dbrx", 4)->ignore_merges || pre_kind_find("dbrx", 4)->add_bos);
}

static void qwen(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "deepseek-r1-qwen", "qwen35"};
    for (uint32_t i = 0; i < 3; i++) {
        expect(names[i], "x| |1|2|3| y|'D|.|");
        expect(names[i], "a|.\r\n|b|");
        expect(names[i], "a|\n\n|  | b|");
    }
    /* U+0301 after a letter: a part of the word, or not. */
    expect("qwen2", "e|\xCC\x81t| \xCC\x81|");
    expect("qwen35", "e\xCC\x81t| \xCC\x81|");
    expect("qwen35", "\xCC\x81\xCC\x81|\n|\xCC\x81|");
}

/* Numbers are taken apart first, so that no space stays before a digit. */
static void single_digits_first(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm", "starcoder", "refact", "command-r"};
    for (uint32_t i = 0; i < 4; i++) {
        expect(names[i], "a|1|2| |3| b|");
        expect(names[i], "x|  |7|  | y|");
        expect(names[i], "don|'t|\n|4|");
        expect(names[i], "\xC2\xB2|\xE2\x85\xA7|"); /* all numbers, U+00B2 and U+2167 too */
    }
}

static void falcon(void **state)
{
    (void)state;
    expect("falcon", "a|+=|b| |$|1|");
    expect("falcon", "123|456|78|");
    expect("falcon", " |123|4| x|"); /* the digits are searched inside of " 1234" */
    expect("falcon", "it|'|s|");    /* signs go before 's */
    expect("default", "it|'|s| |123|4|`|");
    expect("falcon", "`|");
}

static void deepseek(void **state)
{
    (void)state;
    expect("deepseek-coder", "if| x|1|2|\n|\n| y| ;|");
    expect("deepseek-coder", "a| (|b|),|  | c|");
    expect("deepseek-coder", "\xE4\xB8\x80\xE4\xB8\x81|9|");
    expect("deepseek-llm", "Hello|,| world| |123|\n|x|   |");
    expect("deepseek-llm", "a|   | b| (|c|)|1234|");
    /* Japanese and Hangul run together with Han, Arabic with none of the lists. */
    expect("deepseek-llm", "\xE4\xB8\x80\xEA\xB0\x80|\xD8\xA7 \xD8\xA7|");
    /* U+3000 is a space, not one of the signs that it stands among. */
    expect("deepseek-llm", "\xE3\x80\x80"
                           "a|\xE3\x80\x82|\xE3\x80\x80|");
    expect("deepseek-v3", "123|45| |\xE4\xB8\x80|");
    expect("deepseek-v3", "123|4| x| ==\n|_y|.\n|");
}

static void mixed_case(void **state)
{
    (void)state;
    expect("gpt-4o", "camel|Case|HTTPServer's| |123|4|");
    expect("tekken", "camel|Case|1|2|'s|/\n|");
}

static void gemma_4(void **state)
{
    (void)state;
    expect("gemma4", "Hello  world! 12|\n\n|\tx|");
    assert_true(pre_kind_find("gemma4", 6)->raw);
}

/* ---- text that is not well-formed, names, limits ---- */

static void stray_bytes_count_as_a_sign(void **state)
{
    (void)state;
    expect("llama-bpe", "a|\xC3\n|");
    expect("gpt-2", "a| \xFF\xFF|b|\xE2\x82|1| \xE2\x82\xAC|");
    expect("gpt-2", "\xED\xA0\x80|a|"); /* a surrogate is three stray bytes */
    expect("smollm", "\x80|1|\x80|");
}

static void an_empty_text_has_no_words(void **state)
{
    (void)state;
    pretokenizer *p = open_pre("falcon");
    joined j = {.bytes = 0};
    assert_int_equal(pretokenize(p, "", 0, join, &j, NULL), ST_OK);
    assert_int_equal(j.bytes, 0);
    pretokenizer_close(p);
    pretokenizer_close(NULL);
}

static void names(void **state)
{
    (void)state;
    static const char *const unknown[] = {"",       "gpt",     "gpt-22",      "llama", "GPT-2",
                                          "qwen2 ", "qwen2 x", "gpt-2 phi-2", " "};
    for (uint32_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_null(pre_kind_find(unknown[i], strlen(unknown[i])));
    assert_non_null(pre_kind_find("gpt-2x", 5));
}

static status refuse(void *to, const char *word, uint64_t bytes, errmsg *e)
{
    (void)word, (void)bytes;
    return --*(int *)to == 0 ? errmsg_set(e, ST_INTERRUPTED, "enough") : ST_OK;
}

static void a_refused_word_ends_it(void **state)
{
    (void)state;
    pretokenizer *p = open_pre("smollm");
    int left = 3;
    errmsg e;
    errmsg_clear(&e);
    assert_int_equal(pretokenize(p, "1 2 3 4 5", 9, refuse, &left, &e), ST_INTERRUPTED);
    assert_int_equal(left, 0);
    pretokenizer_close(p);
}

typedef struct {
    const char *at;
    uint64_t n;
} walk;

static status follow(void *to, const char *word, uint64_t bytes, errmsg *e)
{
    (void)e;
    walk *w = to;
    assert_true(bytes > 0 && word == w->at);
    w->at += bytes;
    w->n++;
    return ST_OK;
}

static const char *const all[] = {
    "gpt-2",          "llama-bpe",   "glm4",   "qwen2",  "qwen35", "smollm", "deepseek-llm",
    "deepseek-coder", "deepseek-v3", "falcon", "tekken", "gpt-4o", "gemma4", "default"};
#define N_ALL (sizeof all / sizeof all[0])

static void hostile_texts_are_linear(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    static const char *const unit[] = {"a",        " ",    "\n",           "A",    "1",
                                       "'",        ".",    "\t",           "\r\n", " \n",
                                       "a1",       "aA",   ". ",           " a",   "\xE3\x80\x80",
                                       "\xCC\x81", "\xFF", "\xE6\xBC\xA2", " '",   "Aa\n1. "};
    char *text = malloc(BYTES + 1);
    for (uint32_t k = 0; k < N_ALL; k++) {
        pretokenizer *p = open_pre(all[k]);
        uint64_t slowest = 0;
        for (uint32_t i = 0; i < 2 * sizeof unit / sizeof unit[0]; i++) {
            const char *u = unit[i / 2];
            uint64_t n = strlen(u), bytes = BYTES - BYTES % n;
            for (uint64_t at = 0; at < bytes; at += n)
                memcpy(text + at, u, n);
            if (i % 2 == 1) text[bytes++] = 'x'; /* what runs on, and what ends elsewhere */
            walk w = {.at = text};
            uint64_t from = now_ns();
            assert_int_equal(pretokenize(p, text, bytes, follow, &w, NULL), ST_OK);
            uint64_t ns = now_ns() - from;
            assert_ptr_equal(w.at, text + bytes);
            if (ns > slowest) slowest = ns;
        }
        print_message("# %s: %.0f ms at most\n", all[k], (double)slowest / NS_PER_MS);
        assert_true(slowest < 10 * NS_PER_S); /* seconds, not hours, under a sanitizer too */
        pretokenizer_close(p);
    }
    free(text);
}

static uint64_t rng_state = 7;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static void words_put_together_are_the_text(void **state)
{
    (void)state;
    static const char likely[] = "aZ 1\n\r\t'sllT.,$\xC3\xA9\xE3\x80\x80\xF0\x9F\x98\x80\0_";
    for (uint32_t k = 0; k < N_ALL; k++) {
        pretokenizer *p = open_pre(all[k]);
        for (uint32_t round = 0; round < 3000; round++) {
            char text[60];
            uint32_t bytes = rng(sizeof text);
            for (uint32_t i = 0; i < bytes; i++)
                text[i] = rng(10) ? likely[rng(sizeof likely - 1)] : (char)rng(256);
            walk w = {.at = text};
            assert_int_equal(pretokenize(p, text, bytes, follow, &w, NULL), ST_OK);
            assert_ptr_equal(w.at, text + bytes);
            assert_true(w.n <= bytes);
        }
        pretokenizer_close(p);
    }
}

int main(void)
{
    tap_begin(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt_2),
        cmocka_unit_test(llama_3),
        cmocka_unit_test(qwen),
        cmocka_unit_test(single_digits_first),
        cmocka_unit_test(falcon),
        cmocka_unit_test(deepseek),
        cmocka_unit_test(mixed_case),
        cmocka_unit_test(gemma_4),
        cmocka_unit_test(stray_bytes_count_as_a_sign),
        cmocka_unit_test(an_empty_text_has_no_words),
        cmocka_unit_test(names),
        cmocka_unit_test(a_refused_word_ends_it),
        cmocka_unit_test(hostile_texts_are_linear),
        cmocka_unit_test(words_put_together_are_the_text),
    };
    return cmocka_run_group_tests_name("pretokenize", tests, NULL, NULL);
}
