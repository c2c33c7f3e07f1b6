/* The mirror follows the operations that go with the steps. */
#include "tests/support/tap.h"

#include "coordinator/engine/mirror.h"
#include "kernels/backend.h"

static mirror m;
static uint64_t seq;

static void begin(uint32_t n_pools)
{
    plan p = {.n_sessions = 3, .n_ctx = 4 * KV_BLOCK, .n_blocks = {8, 4}};
    errmsg e = {0};
    assert_int_equal(mirror_open(&m, &p, n_pools, &e), ST_OK);
    seq = 0;
}

static void op(kv_op_kind kind, kv_class class, uint32_t branch, uint32_t a, uint32_t b, uint32_t c)
{
    wire_kv_op o = {.kind = (uint32_t)kind,
                    .kv_class = (uint32_t) class,
                    .branch = branch,
                    .generation = 7,
                    .a = a,
                    .b = b,
                    .c = c};
    mirror_step(&m, ++seq, &o, 1, NULL, 0);
}

static void rows(uint32_t branch, uint32_t from, uint32_t to, uint32_t token)
{
    for (uint32_t i = from; i < to; i++) {
        wire_row r = {.branch = branch, .position = i, .token = token + i, .flags = ROW_LIVE};
        mirror_step(&m, ++seq, NULL, 0, &r, 1);
    }
}

static void rows_and_tables_are_followed(void **state)
{
    (void)state;
    begin(1);
    op(KV_OPEN, KV_CLASS_GLOBAL, 1, 0, 0, 0);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 1, 0, 5, 0);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 1, 1, 2, 0);
    rows(1, 0, 70, 1000);
    assert_true(m.branch[1].open && !m.branch[0].open);
    assert_int_equal(m.branch[1].generation, 7);
    assert_int_equal(m.branch[1].n, 70);
    assert_int_equal(mirror_token(&m, 1, 0), 1000);
    assert_int_equal(mirror_token(&m, 1, 69), 1069);
    assert_int_equal(m.token[2 * KV_BLOCK + 5], 1069);
    assert_int_equal(m.seq, seq);
    wire_row dead = {.branch = 1, .position = 70, .token = 1};
    mirror_step(&m, ++seq, NULL, 0, &dead, 1);
    assert_int_equal(m.branch[1].n, 70);
    op(KV_TRUNCATE, KV_CLASS_GLOBAL, 1, 64, 0, 0);
    assert_int_equal(m.branch[1].n, 64);
    assert_int_equal(m.branch[1].table[0].n, 1);
    op(KV_FREE, KV_CLASS_GLOBAL, 1, 0, 0, 0);
    assert_false(m.branch[1].open);
    assert_int_equal(m.branch[1].n, 0);
    mirror_close(&m);
}

static void a_fork_has_its_parents_tokens_when_the_parent_is_gone(void **state)
{
    (void)state;
    begin(1);
    op(KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 0, 1, 1, 0);
    rows(0, 0, 80, 100);
    op(KV_OPEN, KV_CLASS_GLOBAL, 2, 0, 0, 0);
    op(KV_FORK, KV_CLASS_GLOBAL, 2, 64, 0, 0);
    op(KV_COPY, KV_CLASS_GLOBAL, 2, 4, 1, 16);
    assert_int_equal(m.branch[2].n, 64);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 2, 1, 4, 0);
    assert_int_equal(m.branch[2].n, 80);
    uint32_t users[8];
    mirror_users(&m, KV_CLASS_GLOBAL, users);
    assert_int_equal(users[0], 2);
    assert_int_equal(users[1], 1);
    assert_int_equal(users[4], 1);
    op(KV_FREE, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    rows(2, 80, 81, 500);
    assert_int_equal(mirror_token(&m, 2, 3), 103);
    assert_int_equal(mirror_token(&m, 2, 79), 179);
    assert_int_equal(mirror_token(&m, 2, 80), 580);
    mirror_users(&m, KV_CLASS_GLOBAL, users);
    assert_int_equal(users[0], 1);
    assert_int_equal(users[1], 0);
    mirror_close(&m);
}

/* A shared block that is begun gets a copy before the next row; the copy is as long as the rows. */
static void a_replaced_entry_keeps_the_length(void **state)
{
    (void)state;
    begin(1);
    op(KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    rows(0, 0, 64, 100);
    op(KV_TRUNCATE, KV_CLASS_GLOBAL, 0, 10, 0, 0);
    op(KV_COPY, KV_CLASS_GLOBAL, 0, 3, 0, 10);
    op(KV_ALLOC, KV_CLASS_GLOBAL, 0, 0, 3, 0);
    assert_int_equal(m.branch[0].n, 10);
    assert_int_equal(m.branch[0].table[0].block[0], 3);
    assert_int_equal(mirror_token(&m, 0, 9), 109);
    mirror_close(&m);
}

static void window_entries_are_released(void **state)
{
    (void)state;
    begin(2);
    op(KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        op(KV_ALLOC, KV_CLASS_GLOBAL, 0, i, i, 0);
        op(KV_ALLOC, KV_CLASS_WINDOW, 0, i, i, 0);
    }
    op(KV_RELEASE, KV_CLASS_WINDOW, 0, 2, 0, 0);
    uint32_t users[4];
    mirror_users(&m, KV_CLASS_WINDOW, users);
    assert_int_equal(users[0] + users[1], 0);
    assert_int_equal(users[2], 1);
    op(KV_TRUNCATE, KV_CLASS_WINDOW, 0, 64, 0, 0);
    assert_int_equal(m.branch[0].table[KV_CLASS_WINDOW].n, 1);
    assert_int_equal(m.branch[0].table[KV_CLASS_WINDOW].first, 1);
    assert_int_equal(m.branch[0].table[KV_CLASS_GLOBAL].n, 3);
    mirror_close(&m);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_tables_are_followed),
        cmocka_unit_test(a_fork_has_its_parents_tokens_when_the_parent_is_gone),
        cmocka_unit_test(a_replaced_entry_keeps_the_length),
        cmocka_unit_test(window_entries_are_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
