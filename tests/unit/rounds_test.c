/* The rows of a step, and of one that goes on after it: slots, live bits, what must be the same. */
#include "stage/rounds.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

#define N_ROWS 4u

static wire_config config = {.rows_max = 16, .n_branches = 4, .n_ctx = 100};
static const sampler_params sampler;
static wire_stops stops = {.n = 1, .id = {77}};

/* Rows of two groups; the frame's arrays are the caller's. */
typedef struct {
    wire_step step;
    wire_row row[N_ROWS];
    uint32_t group_end[2];
} made;

static step_view make(made *m, uint32_t n_rounds, uint32_t flags, uint32_t slot)
{
    *m = (made){.step = {.flags = flags,
                         .slot = slot,
                         .n_rows = N_ROWS,
                         .n_stops = 1,
                         .n_samplers = 1,
                         .rounds = n_rounds,
                         .n_groups = 2},
                .group_end = {1, N_ROWS}};
    for (uint32_t i = 0; i < N_ROWS; i++)
        m->row[i] = (wire_row){.branch = i,
                               .position = 10 + i,
                               .token = 5,
                               .flags = ROW_LIVE | ROW_SAMPLE,
                               .stop_i = 0,
                               .rounds = n_rounds};
    return (step_view){.step = &m->step, .rows = m->row, .samplers = &sampler, .stops = &stops,
                       .group_end = m->group_end};
}

/* All rounds of it; row i draws 10 * (i + 1), row 2 its stop id in the round `stopped`. */
static void walk(rounds *x, const made *m, uint32_t stopped)
{
    for (uint32_t r = 0; r < m->step.rounds; r++) {
        for (uint32_t g = 0; g < 2; g++) {
            uint32_t n, *drawn = rounds_drawn(x, g), first = g == 0 ? 0 : 1;
            (void)rounds_group(x, g, &n);
            for (uint32_t i = 0; i < n; i++)
                drawn[i] = first + i == 2 && r == stopped ? 77 : 10 * (first + i + 1);
            rounds_settle(x, r, g);
            rounds_advance(x, g);
        }
    }
}

static void rows_are_left_as_the_next_round_needs_them(void **state)
{
    (void)state;
    rounds x;
    made m;
    errmsg e = {0};
    uint32_t n;
    assert_int_equal(rounds_open(&x, &config, &e), ST_OK);
    step_view v = make(&m, 3, 0, 0);
    m.row[3].rounds = 2; /* its limit */
    assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    walk(&x, &m, 1);
    memset(&m, 0xff, sizeof m); /* the frame is gone */
    const wire_row *row = rounds_group(&x, 0, &n);
    assert_int_equal(n, 1);
    assert_true((row[0].flags & ROW_LIVE) != 0 && row[0].token == 10 && row[0].position == 13);
    row = rounds_group(&x, 1, &n);
    assert_int_equal(n, 3);
    assert_true((row[0].flags & ROW_LIVE) != 0 && row[0].token == 20 && row[0].position == 14);
    assert_true((row[1].flags & ROW_LIVE) == 0); /* it stopped */
    assert_true((row[2].flags & ROW_LIVE) == 0); /* it had its rounds */
    rounds_close(&x);
}

/* Where the last stage draws, and another does not know yet what. */
static void rows_go_on_before_all_is_known(void **state)
{
    (void)state;
    rounds x;
    made m;
    errmsg e = {0};
    uint32_t n;
    wire_row next[N_ROWS];
    assert_int_equal(rounds_open(&x, &config, &e), ST_OK);
    step_view v = make(&m, 2, 0, 0);
    m.row[3].rounds = 1; /* its limit */
    assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    for (uint32_t r = 0; r < 2; r++) {
        rounds_next(&x, 1, next);
        const wire_row *row = rounds_group(&x, 1, &n);
        assert_int_equal(row[0].position, 11 + r);
        rounds_expire(&x, r, 1);
        rounds_advance(&x, 1);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(next[i].position, row[i].position);
            assert_int_equal(next[i].session_step, row[i].session_step);
            assert_int_equal((row[i].flags & ROW_LIVE) != 0, i != 2); /* the others may go on */
        }
    }
    wire_row *row = rounds_group(&x, 1, &n);
    row[0].token = 33;
    row[1].flags &= ~ROW_LIVE;
    v = make(&m, 2, STEP_GOES_ON, 0);
    assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    row = rounds_group(&x, 1, &n);
    assert_true(row[0].token == 33 && (row[0].flags & ROW_LIVE) != 0);
    assert_true((row[1].flags & ROW_LIVE) == 0 && (row[2].flags & ROW_LIVE) == 0);
    rounds_close(&x);
}

static void a_step_goes_on_with_the_same_rows_alone(void **state)
{
    (void)state;
    rounds x;
    made m;
    errmsg e = {0};
    assert_int_equal(rounds_open(&x, &config, &e), ST_OK);
    step_view v = make(&m, 2, 0, 0);
    assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    v = make(&m, 4, STEP_GOES_ON, 0);
    assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    for (uint32_t k = 0; k < 3; k++) {
        v = make(&m, 4, STEP_GOES_ON, 0);
        if (k == 0) m.step.n_rows = 3;
        if (k == 1) m.step.n_groups = 1;
        if (k == 2) m.group_end[0] = 2;
        errmsg_clear(&e);
        assert_int_equal(rounds_begin(&x, &v, &e), ST_PROTOCOL);
        assert_non_null(strstr(e.text, "goes on after one of 4 in 2"));
        m.step.flags = 0;
        assert_int_equal(rounds_begin(&x, &v, &e), ST_OK); /* by itself it may */
        v = make(&m, 2, 0, 0);
        assert_int_equal(rounds_begin(&x, &v, &e), ST_OK);
    }
    rounds_close(&x);
}

/* The slot in which the last round of a step ends is that which the next one finds it in. */
static void slots_follow(void **state)
{
    (void)state;
    for (uint32_t overlap = 0; overlap <= STEP_OVERLAP; overlap += STEP_OVERLAP) {
        for (uint32_t n_rounds = 1; n_rounds <= 5; n_rounds++) {
            for (uint32_t n_groups = 1; n_groups <= 4; n_groups++) {
                const wire_step a = {.flags = overlap,
                                     .slot = overlap != 0,
                                     .rounds = n_rounds,
                                     .n_groups = n_groups};
                wire_step b = a;
                if (overlap != 0) b.slot = (a.slot + n_rounds * n_groups) % 2;
                for (uint32_t g = 0; g < n_groups; g++)
                    assert_int_equal(rounds_slot(&b, ROUND_BEFORE, g),
                                     rounds_slot(&a, n_rounds - 1, g));
            }
        }
    }
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_left_as_the_next_round_needs_them),
        cmocka_unit_test(rows_go_on_before_all_is_known),
        cmocka_unit_test(a_step_goes_on_with_the_same_rows_alone),
        cmocka_unit_test(slots_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
