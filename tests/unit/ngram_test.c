/* Prompt lookup: what it finds, and that it is no more than a search of the tokens. */
#include "tests/support/tap.h"

#include "coordinator/engine/ngram.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define N 700u
#define ROOM 8u

/* What the index must find, searched for plainly: the latest earlier end of the longest n-gram. */
static uint32_t plainly(const uint32_t *tokens, uint64_t n, uint32_t *out)
{
    for (uint32_t length = NGRAM_MAX; length > NGRAM_MAX - NGRAM_LENGTHS; length--) {
        for (uint64_t end = n - 1; n > length && end >= length; end--) {
            if (memcmp(tokens + end - length, tokens + n - length, length * sizeof *tokens) != 0)
                continue;
            for (uint32_t k = 0; k < ROOM; k++)
                out[k] = end + k < n ? tokens[end + k] : out[end + k - n];
            return ROOM;
        }
    }
    return 0;
}

static void compare(uint32_t n_kinds, uint32_t n_max, uint32_t stride)
{
    uint32_t tokens[N], found = 0, missed = 0;
    uint64_t x = 88172645463325252u;
    for (uint32_t i = 0; i < N; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        tokens[i] = (uint32_t)(x % n_kinds) * 7919u;
    }
    ngram_index *d = ngram_index_open(n_max);
    assert_non_null(d);
    for (uint32_t n = 1; n <= N; n += stride) {
        uint32_t want[ROOM], got[ROOM];
        uint32_t n_want = plainly(tokens, n, want),
                 n_got = ngram_index_guess(d, tokens, n, got, ROOM);
        if (n_got == 0) {
            missed += n_want != 0; /* its place was taken by another */
            continue;
        }
        found++;
        assert_int_equal(n_got, ROOM);
        if (memcmp(want, got, sizeof want) != 0) missed++; /* a shorter n-gram's */
    }
    assert_true(found > 20);
    assert_true(missed * 20 <= found);
    ngram_index_close(d);
}

static void finds_what_a_search_finds(void **state)
{
    (void)state;
    compare(6, 1 << 16, 1);
    compare(9, 1 << 16, 3);
    compare(4, 1 << 16, 17); /* several tokens between two questions */
}

static void a_repetition_goes_on(void **state)
{
    (void)state;
    const uint32_t tokens[] = {9, 5, 6, 5, 6, 5, 6};
    uint32_t out[ROOM];
    ngram_index *d = ngram_index_open(64);
    assert_int_equal(ngram_index_guess(d, tokens, 7, out, 7), 7);
    for (uint32_t k = 0; k < 7; k++) assert_int_equal(out[k], k % 2 == 0 ? 5 : 6);
    ngram_index_close(d);
}

static void nothing_to_find(void **state)
{
    (void)state;
    uint32_t tokens[100], out[ROOM];
    ngram_index *d = ngram_index_open(100);
    for (uint32_t i = 0; i < 100; i++) tokens[i] = i;
    assert_int_equal(ngram_index_guess(d, tokens, 0, out, ROOM), 0);
    for (uint32_t n = 1; n <= 100; n++)
        assert_int_equal(ngram_index_guess(d, tokens, n, out, ROOM), 0);
    ngram_index_close(d);
    ngram_index_close(NULL);
}

/* Far more tokens than places: what is found is still true. */
static void crowded_tables_find_nothing_false(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    static uint32_t tokens[MANY];
    ngram_index *d = ngram_index_open(64);
    for (uint32_t i = 0; i < MANY; i++) tokens[i] = i * 2654435761u % 97;
    for (uint32_t n = 1; n <= MANY; n++) {
        uint32_t out[ROOM];
        if (ngram_index_guess(d, tokens, n, out, ROOM) == 0) continue;
        bool stood = false;
        for (uint32_t end = 2; end < n && !stood; end++)
            stood = memcmp(tokens + end - 2, tokens + n - 2, 2 * sizeof *tokens) == 0 &&
                    tokens[end] == out[0];
        assert_true(stood);
    }
    ngram_index_close(d);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_a_search_finds),
        cmocka_unit_test(a_repetition_goes_on),
        cmocka_unit_test(nothing_to_find),
        cmocka_unit_test(crowded_tables_find_nothing_false),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
