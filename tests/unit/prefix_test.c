/* The table of prefixes: found by tokens and what comes before, let go from the end of a chain. */
#include "tests/support/tap.h"

#include "coordinator/engine/prefix.h"

#include <string.h>

#define N_BLOCKS 8u
#define N_TOKENS 4u

static kvpool pool;
static prefix_table table;
static const prefix_link start;

static int open_all(void **state)
{
    (void)state;
    errmsg e = {0};
    return kvpool_open(&pool, N_BLOCKS, &e) != ST_OK ||
           prefix_open(&table, &pool, N_TOKENS, &e) != ST_OK;
}

static int close_all(void **state)
{
    (void)state;
    prefix_close(&table);
    kvpool_close(&pool);
    return 0;
}

static const uint32_t a[N_TOKENS] = {1, 2, 3, 4}, b[N_TOKENS] = {1, 2, 3, 5}, c[N_TOKENS] = {0};

/* A session's block, entered; the session goes. */
static prefix_link enter(prefix_link parent, const uint32_t *tokens)
{
    uint32_t block = kvpool_take(&pool);
    prefix_link l;
    assert_true(prefix_enter(&table, block, parent, tokens, &l));
    assert_int_equal(l.block, block);
    kvpool_drop(&pool, block);
    return l;
}

static void found_by_tokens_and_what_comes_before(void **state)
{
    (void)state;
    prefix_link x, first = enter(start, a), second = enter(first, b);
    assert_true(prefix_find(&table, start, a, &x) && x.block == first.block);
    assert_true(prefix_find(&table, first, b, &x) && x.block == second.block);
    assert_false(prefix_find(&table, start, b, &x)); /* the same tokens elsewhere */
    assert_false(prefix_find(&table, second, b, &x));
    assert_false(prefix_find(&table, first, c, &x));
    assert_false(prefix_enter(&table, first.block, second, c, &x)); /* is one already */
    assert_int_equal(pool.n_used, 2);
}

static void the_end_of_a_chain_goes_first(void **state)
{
    (void)state;
    prefix_link x, first = enter(start, a), second = enter(first, b), other = enter(start, c);
    assert_true(prefix_find(&table, start, a, &x));
    assert_true(prefix_find(&table, first, b, &x)); /* used later than `other` */
    assert_true(prefix_evict(&table));
    assert_false(prefix_find(&table, start, c, &x));
    assert_true(prefix_evict(&table)); /* first was used before second, but is needed to find it */
    assert_true(prefix_find(&table, start, a, &x));
    assert_false(prefix_find(&table, first, b, &x));
    kvpool_share(&pool, first.block); /* somebody has it */
    assert_false(prefix_evict(&table));
    kvpool_drop(&pool, first.block);
    assert_true(prefix_evict(&table));
    assert_false(prefix_evict(&table));
    assert_int_equal(pool.n_used, 0);
    /* What is gone is not a parent, though its block is another entry now. */
    prefix_link again = enter(start, b);
    assert_int_equal(again.block, first.block);
    uint32_t block = kvpool_take(&pool);
    assert_false(prefix_enter(&table, block, first, a, &x));
    assert_true(prefix_enter(&table, block, again, a, &x));
    (void)second;
    (void)other;
}

static void what_nobody_holds_is_forgotten(void **state)
{
    (void)state;
    prefix_link x, first = enter(start, a), second = enter(first, b);
    kvpool_share(&pool, second.block); /* held, though what comes before it is not */
    prefix_forget_unheld(&table);
    assert_int_equal(table.n_entries, 1);
    assert_int_equal(pool.n_used, 1);
    assert_false(prefix_find(&table, start, a, &x));
    prefix_link again =
        enter(start, a); /* another entry: what followed the old one does not follow */
    assert_false(prefix_find(&table, again, b, &x));
    kvpool_drop(&pool, second.block);
    prefix_forget_unheld(&table);
    assert_int_equal(pool.n_used, 0);
}

/* Random chains beside a plain model of them: what is found is what was entered and not let go. */
static void random_use(void **state)
{
    (void)state;
    uint64_t seed = 7;
    struct {
        prefix_link link, parent;
        uint32_t tokens[N_TOKENS];
    } known[N_BLOCKS] = {0};
    for (uint32_t round = 0; round < 20000; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(seed >> 33), tokens[N_TOKENS] = {r % 3, r / 3 % 2};
        prefix_link parent = r / 6 % 3 == 0 ? start : known[r / 18 % N_BLOCKS].link, x;
        bool alive = parent.serial == 0 || table.entry[parent.block].serial == parent.serial;
        bool want = false;
        for (uint32_t i = 0; i < N_BLOCKS; i++) {
            want = want ||
                   (known[i].link.serial != 0 && table.entry[i].serial == known[i].link.serial &&
                    known[i].parent.serial == parent.serial &&
                    memcmp(known[i].tokens, tokens, sizeof tokens) == 0);
        }
        assert_int_equal(prefix_find(&table, parent, tokens, &x), want);
        if (want) continue;
        uint32_t block = kvpool_take(&pool);
        if (block == UINT32_MAX) {
            assert_true(prefix_evict(&table));
            continue;
        }
        assert_int_equal(prefix_enter(&table, block, parent, tokens, &x), alive);
        kvpool_drop(&pool, block);
        if (!alive) continue;
        known[block].link = x;
        known[block].parent = parent;
        memcpy(known[block].tokens, tokens, sizeof tokens);
    }
    assert_int_equal(table.n_entries, pool.n_used);
    while (prefix_evict(&table)) {
    }
    assert_int_equal(pool.n_used, 0);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(found_by_tokens_and_what_comes_before, open_all, close_all),
        cmocka_unit_test_setup_teardown(the_end_of_a_chain_goes_first, open_all, close_all),
        cmocka_unit_test_setup_teardown(what_nobody_holds_is_forgotten, open_all, close_all),
        cmocka_unit_test_setup_teardown(random_use, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
