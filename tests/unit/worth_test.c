/* When drafts are verified: runs in virtual time, where a step takes what the test says. */
#include "tests/support/tap.h"

#include "coordinator/engine/worth.h"

#define ROUND_NS 1e6 /* of one row */
#define DEPTH    8u

/* What a step of so many rows takes, in rounds. */
typedef double (*row_cost)(double rows);

static double flat(double rows)
{
    (void)rows;
    return 1;
}

static double linear(double rows)
{
    return rows;
}

static double half(double rows)
{
    return 1 + (rows - 1) / 2;
}

static double tenth(double rows)
{
    return 1 + (rows - 1) / 10;
}

/* The second row is dear, those after it are not. */
static double stairs(double rows)
{
    return rows < 2 ? 1 : 2 + (rows - 2) / 100;
}

/* How a text is: how likely a draft is right, in turns of so many tokens each. */
typedef struct {
    double right, right_then;
    uint32_t turn;
    double none; /* part of the tokens after which there is no draft */
} text;

typedef struct {
    uint64_t state;
} dice;

static double throw(dice *d)
{
    d->state ^= d->state << 13, d->state ^= d->state >> 7, d->state ^= d->state << 17;
    return (double)(d->state >> 11) / 9007199254740992.0;
}

/* One session over a pipe; `noise`: what is measured is wrong by up to this part, either way. */
typedef struct {
    row_cost cost;
    text how;
    double noise;
    worth w;
    dice d;
    double hit, now;
    uint64_t n, n_steps;
} run;

static bool draft_is_right(run *r)
{
    bool then = r->how.turn > 0 && (r->n / r->how.turn) % 2 == 1;
    return throw(&r->d) < (then ? r->how.right_then : r->how.right);
}

static double taken(run *r, double rounds)
{
    return rounds * ROUND_NS * (1 + r->noise * (2 * throw(&r->d) - 1));
}

static void learn(run *r, bool right)
{
    r->hit += ((right ? 1 : 0) - r->hit) / 8;
}

static void verify(run *r, uint32_t depth)
{
    const worth_crowd one = {1, 1};
    double ns = taken(r, r->cost(depth + 1)), begin = r->now;
    uint32_t n = 1;
    bool right = true;
    for (uint32_t k = 0; k < depth && right; k++) {
        right = draft_is_right(r);
        learn(r, right);
        n += right;
    }
    r->now += ns;
    r->n += n;
    r->n_steps++;
    worth_measure_step(&r->w, one, depth + 1, ns);
    worth_book(&r->w, one, depth + 1, n, r->now - begin);
}

static void rounds(run *r, bool has_draft)
{
    const worth_crowd one = {1, 1};
    uint32_t n = r->w.on ? 8 : 32;
    double ns = taken(r, n);
    bool right = has_draft;
    for (uint32_t k = 0; k < DEPTH && right; k++) learn(r, right = draft_is_right(r));
    worth_measure_round(&r->w, one, ns / n);
    r->now += ns;
    r->n += n;
    if (r->w.on)
        worth_book(&r->w, one, n, n, ns);
    else
        worth_book_plain(&r->w, one, ns);
}

static void turn(run *r)
{
    wager of[4];
    uint32_t n_of = 0;
    bool has_draft = throw(&r->d) >= r->how.none;
    for (uint32_t k = DEPTH; has_draft && r->hit >= 0.1 && k > 0; k /= 2) {
        double tokens = 1, all = 1;
        for (uint32_t i = 0; i < k; i++) tokens += all *= r->hit;
        of[n_of++] = (wager){.n_rows = k + 1, .tokens = tokens};
    }
    uint32_t best = worth_choose(&r->w, (worth_crowd){1, 1}, of, n_of);
    if (best == WORTH_NONE)
        rounds(r, has_draft);
    else
        verify(r, of[best].n_rows - 1);
}

/* Time of a plain run over that of this one, over n tokens. */
static double ratio(run *r, uint64_t n)
{
    r->d.state = 88172645463325252u;
    r->hit = 0.3;
    while (r->n < n) turn(r);
    return (double)r->n * ROUND_NS / r->now;
}

static double best_ratio(row_cost cost, double right)
{
    double best = 1;
    for (uint32_t k = 1; k <= DEPTH; k *= 2) {
        double tokens = 1, all = 1;
        for (uint32_t i = 0; i < k; i++) tokens += all *= right;
        if (tokens / cost(k + 1) > best) best = tokens / cost(k + 1);
    }
    return best;
}

/* Whatever rows cost and however right drafts are, no run of any length is slower than it may be:
 * the rate, and one step of DEPTH + 1 rows. */
static void never_slower(void **state)
{
    (void)state;
    const row_cost costs[] = {flat, tenth, half, stairs, linear};
    const text texts[] = {{0, 0, 0, 0},         {1, 1, 0, 0},       {0.5, 0.5, 0, 0},
                          {0.2, 0.2, 0, 0.5},   {1, 0, 16, 0},      {1, 0, 64, 0.1},
                          {0.95, 0.05, 40, 0},  {0.8, 0.3, 500, 0.3}, {0.7, 0.7, 0, 0.9}};
    const uint64_t lengths[] = {100, 1000, 20000};
    for (uint32_t c = 0; c < sizeof costs / sizeof *costs; c++) {
        for (uint32_t t = 0; t < sizeof texts / sizeof *texts; t++) {
            for (uint32_t l = 0; l < 3; l++) {
                run r = {.cost = costs[c], .how = texts[t]};
                double got = ratio(&r, lengths[l]), once = DEPTH * ROUND_NS / r.now;
                if (got < 1 - WORTH_RATE - once)
                    fail_msg("cost %u, text %u, %u tokens: %.4f", c, t, (uint32_t)lengths[l], got);
            }
        }
    }
}

/* The same where nothing is measured exactly, as far as noise allows: it is even, so the sums
 * hold. */
static void nor_where_measures_are_noisy(void **state)
{
    (void)state;
    const row_cost costs[] = {flat, tenth, half, stairs, linear};
    const double right[] = {0, 0.3, 0.6, 0.9};
    for (uint32_t c = 0; c < 5; c++) {
        for (uint32_t t = 0; t < 4; t++) {
            run r = {.cost = costs[c], .how = {right[t], right[t], 0, 0}, .noise = 0.3};
            double got = ratio(&r, 100000);
            if (got < 0.99) fail_msg("cost %u, %.1f right: %.4f", c, right[t], got);
        }
    }
}

/* Half of what there is to gain is gained at least: learning takes its time, and depths are chosen
 * by estimates. */
static void gains_where_there_is_a_gain(void **state)
{
    (void)state;
    const row_cost costs[] = {flat, tenth, half, stairs};
    const double right[] = {0.8, 0.9, 1};
    for (uint32_t c = 0; c < 4; c++) {
        for (uint32_t t = 0; t < 3; t++) {
            run r = {.cost = costs[c], .how = {right[t], right[t], 0, 0}};
            double best = best_ratio(costs[c], right[t]), got = ratio(&r, 3000);
            if (best < 1.25) continue;
            if (got < 1 + 0.5 * (best - 1))
                fail_msg("cost %u, %.1f right: %.2f of %.2f", c, right[t], got, best);
        }
    }
}

/* Speculation that lost is tried again when it no longer does. */
static void tries_again(void **state)
{
    (void)state;
    run r = {.cost = linear, .how = {0.9, 0.9, 0, 0}};
    ratio(&r, 3000);
    assert_in_range(r.n_steps, 1, 150);
    r.cost = flat;
    uint64_t n = r.n;
    double now = r.now;
    while (r.n < n + 4000) turn(&r);
    assert_true((double)(r.n - n) * ROUND_NS / (r.now - now) > 2);
}

/* And what was measured once too dear, by whatever accident. */
static void an_accident_is_forgotten(void **state)
{
    (void)state;
    run r = {.cost = flat, .how = {0.9, 0.9, 0, 0}};
    ratio(&r, 1000);
    for (uint32_t n_rows = 1; n_rows <= DEPTH + 1; n_rows++)
        worth_measure_step(&r.w, (worth_crowd){1, 1}, n_rows, 1000 * ROUND_NS);
    uint64_t n = r.n;
    double now = r.now;
    while (r.n < n + 4000) turn(&r);
    assert_true((double)(r.n - n) * ROUND_NS / (r.now - now) > 2);
}

/* N sessions take turns in a pipe: a step is compared with its share of a round. */
static void shares_of_a_crowd(void **state)
{
    (void)state;
    const worth_crowd eight = {8, 4};
    worth w = {0};
    const wager of[] = {{.n_rows = 6, .tokens = 4}, {.n_rows = 4, .tokens = 3}};
    assert_int_equal(worth_choose(&w, eight, of, 2), WORTH_NONE); /* the round is not known */
    worth_measure_round(&w, eight, 4 * ROUND_NS); /* a step of 2 rows each ROUND_NS */
    assert_int_equal(worth_choose(&w, eight, of, 2),
                     WORTH_NONE); /* 3 * ROUND_NS for 4 tokens: no gain seen */
    worth_measure_step(&w, eight, 4, ROUND_NS);
    assert_int_equal(worth_choose(&w, eight, of, 2), 0); /* 1.5 for 4 is less than 1 for 3 */
    worth_measure_step(&w, eight, 6, 1.4 * ROUND_NS);
    assert_int_equal(worth_choose(&w, eight, of, 2), 1); /* 1.4 for 4 is more than 1 for 3 */
    const wager dear[] = {{.n_rows = 4, .tokens = 3, .draft_ns = 0.6 * ROUND_NS}};
    assert_int_equal(worth_choose(&w, eight, dear, 1), WORTH_NONE); /* 1.6 for 3, as plain rounds */
}

/* After a long time of steps alone a round is measured again. */
static void rounds_are_measured_again(void **state)
{
    (void)state;
    run r = {.cost = flat, .how = {1, 1, 0, 0}};
    ratio(&r, 500);
    assert_true(r.w.on);
    uint64_t n_steps = r.n_steps, n = r.n;
    while (r.n - n < 100000) turn(&r);
    uint64_t plain = r.n - n - (DEPTH + 1) * (r.n_steps - n_steps);
    assert_in_range(plain, 8, 100000 / 500);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_slower),
        cmocka_unit_test(nor_where_measures_are_noisy),
        cmocka_unit_test(gains_where_there_is_a_gain),
        cmocka_unit_test(tries_again),
        cmocka_unit_test(an_accident_is_forgotten),
        cmocka_unit_test(shares_of_a_crowd),
        cmocka_unit_test(rounds_are_measured_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
