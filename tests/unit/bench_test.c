/* The benchmark's arithmetic on numbers whose answer is known, and that the read bandwidth is
 * measured at all: how high it is, is the machine's affair. */
#include "tests/support/tap.h"
#include "coordinator/bench/bench.h"

#include <math.h>
#include <stdlib.h>

static void near(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-12 * (1 + fabs(want)));
}

static void spread_of_a_few(void **state)
{
    (void)state;
    double x[] = {4, 1, 2, 5};
    stats s = stats_of(x, 4);
    assert_int_equal(s.n, 4);
    near(s.mean, 3);
    near(s.sd, sqrt(10.0 / 3));
    near(s.median, 3);
    near(s.min, 1);
    near(s.max, 5);
    double y[] = {7, 3, 5};
    near(stats_of(y, 3).median, 5);
}

static void spread_of_one(void **state)
{
    (void)state;
    double x[] = {42};
    stats s = stats_of(x, 1);
    near(s.mean, 42);
    near(s.sd, 0);
    near(s.median, 42);
}

static void spread_of_waits(void **state)
{
    (void)state;
    double x[200];
    for (uint32_t i = 0; i < 200; i++) x[i] = 200 - i; /* 1 .. 200 */
    spread s = spread_of(x, 200);
    near(s.p50, 100);
    near(s.p99, 198);
    near(s.max, 200);
    double y[] = {3}, z[] = {9, 2};
    near(spread_of(y, 1).p50, 3);
    near(spread_of(y, 1).p99, 3);
    s = spread_of(z, 2);
    near(s.p50, 2);
    near(s.p99, 9);
}

/* Of three that come together two had no wait of their own: the median is that of a real one. */
static void waits_are_stretches_of_silence(void **state)
{
    (void)state;
    const uint64_t ms = 1000000;
    const uint64_t told[] = {10 * ms,     10 * ms + 100, 10 * ms + 19900, 14 * ms,
                             14 * ms + 1, 14 * ms + 2,   15 * ms};
    double x[7];
    assert_int_equal(waits_of(x, told, 7, 8 * ms), 3);
    near(x[0], 2);
    near(x[1], 4 - 0.0199);
    near(x[2], 1 - 0.000002);
    near(spread_of(x, 3).p50, 2);
    assert_int_equal(waits_of(x, told, 1, 8 * ms), 1);
    near(x[0], 2);
    const uint64_t fast[] = {ms + 10000, ms + 12000, ms + 30000};
    assert_int_equal(waits_of(x, fast, 3, ms), 1); /* nothing but at once: the mean */
    near(x[0], 0.01);
    assert_int_equal(waits_of(x, fast, 0, ms), 0);
}

static void bytes_of_a_token(void **state)
{
    (void)state;
    gguf_tensor layer = {.bytes = 1000}, norm = {.bytes = 40}, embd = {.bytes = 5000},
                head = {.bytes = 6000};
    model_desc *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->arch = "llama";
    m->n_layers = 3;
    m->n_vocab = 50;
    m->n_kv_heads = 2;
    m->n_head = 8;
    m->output_norm.t = &norm;
    m->token_embd.t = &embd;
    m->output.t = &head;
    for (uint32_t il = 0; il < 3; il++)
        m->layer[il].attn_q.t = &layer;
    /* layers, norm, head, one row of the embedding; K and V of two heads of 8 f16 in three layers
     * at 11 positions */
    near(bench_token_bytes(m, DT_F16, 10), 3000 + 40 + 6000 + 100 + 11 * 2 * 32 * 3);
    near(bench_token_bytes(m, DT_F32, 0), 3000 + 40 + 6000 + 100 + 2 * 64 * 3);
    m->tied = true;
    m->output.t = &embd;
    near(bench_token_bytes(m, DT_F16, 0), 3000 + 40 + 5000 + 100 + 2 * 32 * 3);
    free(m);
}

static void bandwidth_is_measured(void **state)
{
    (void)state;
    volatile int interrupt = 0;
    bandwidth b;
    errmsg e = {0};
    assert_int_equal(bandwidth_measure(&b, 2, &interrupt, &e), ST_OK);
    assert_int_equal(b.n_threads, 2);
    assert_true(b.bytes_per_s > 1e7 && b.bytes_per_s < 1e14);
    assert_true(b.buffer_bytes > 0);
    assert_non_null(b.loop);
}

static void an_interrupt_ends_the_measurement(void **state)
{
    (void)state;
    volatile int interrupt = 2;
    bandwidth b;
    errmsg e = {0};
    assert_int_equal(bandwidth_measure(&b, 0, &interrupt, &e), ST_INTERRUPTED);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_of_a_few),
        cmocka_unit_test(spread_of_one),
        cmocka_unit_test(spread_of_waits),
        cmocka_unit_test(waits_are_stretches_of_silence),
        cmocka_unit_test(bytes_of_a_token),
        cmocka_unit_test(bandwidth_is_measured),
        cmocka_unit_test(an_interrupt_ends_the_measurement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
