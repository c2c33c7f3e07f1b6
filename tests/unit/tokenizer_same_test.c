/* When two vocabularies are the same, so that one model's tokens mean to another what they mean to
 * it. */
#include "coordinator/text/tokenizer.h"
#include "tests/support/tap.h"
#include "tests/support/vocab_file.h"

#include <string.h>

static tokenizer *open_file(const vocab_file *f, uint32_t n_vocab)
{
    gguf *g = vocab_file_open(f);
    errmsg e = {0};
    tokenizer *t;
    assert_non_null(g);
    if (tokenizer_open(&t, g, n_vocab, &e) != ST_OK) fail_msg("%s", e.text);
    gguf_close(g);
    return t;
}

/* The answer either way round; *at must not depend on that. */
static bool same(const vocab_file *a, const vocab_file *b, uint32_t *at)
{
    tokenizer *x = open_file(a, 500), *y = open_file(b, 600);
    uint32_t other;
    bool is = tokenizer_same(x, y, at);
    assert_int_equal(tokenizer_same(y, x, &other), is);
    assert_int_equal(other, *at);
    tokenizer_close(x);
    tokenizer_close(y);
    return is;
}

static vocab_file a, b;
static uint32_t first_id;

static void begin(void)
{
    vocab_file_begin(&a);
    first_id = vocab_file_add(&a, "word", -1, 1);
    vocab_file_add(&a, "other", -2, 1);
    vocab_file_add(&a, "<end>", 0, 3);
    b = a;
}

static void the_same(void **state)
{
    (void)state;
    uint32_t at;
    begin();
    assert_true(same(&a, &b, &at));
    b.name = "another name, a padded head"; /* n_vocab differs in same() */
    assert_true(same(&a, &b, &at));
}

static void another_text_or_type(void **state)
{
    (void)state;
    uint32_t at;
    begin();
    strcpy(b.text[first_id + 1], "order");
    assert_false(same(&a, &b, &at));
    assert_int_equal(at, first_id + 1);
    begin();
    strcpy(b.text[first_id], "words");
    assert_false(same(&a, &b, &at));
    assert_int_equal(at, first_id);
    begin();
    b.type[first_id + 2] = 1;
    assert_false(same(&a, &b, &at));
    assert_int_equal(at, first_id + 2);
}

static void another_size_or_kind(void **state)
{
    (void)state;
    uint32_t at;
    begin();
    vocab_file_add(&b, "more", -3, 1);
    assert_false(same(&a, &b, &at));
    assert_int_equal(at, first_id + 3);
    vocab_file_begin_bpe(&b, "gpt-2");
    b.n_merges = 0;
    assert_false(same(&a, &b, &at));
    assert_int_equal(at, UINT32_MAX);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same),
        cmocka_unit_test(another_text_or_type),
        cmocka_unit_test(another_size_or_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
