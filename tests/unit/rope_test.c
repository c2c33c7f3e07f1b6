#include "kernels/backend.h"
#include "stage/rope.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static rope_desc plain(uint32_t n_rot)
{
    return (rope_desc){.n_rot = n_rot,
                       .base = 10000.0f,
                       .factor = 1.0f,
                       .attn_factor = 1.0f,
                       .beta_fast = 32.0f,
                       .beta_slow = 1.0f,
                       .n_ctx_orig = 4096};
}

static rope_table made(const rope_desc *d, const float *factors)
{
    rope_table t;
    errmsg e = {0};
    assert_int_equal(rope_make(&t, d, factors, &e), ST_OK);
    return t;
}

static dev_ptr on_host(const void *p)
{
    return (dev_ptr){(uintptr_t)p};
}

/* What a step does of it, on the cpu with that many threads. */
static void turn(const rope_table *t, float *c, float *s, const uint32_t *position, uint32_t n_rows,
                 uint32_t n_threads)
{
    const backend *b = backend_cpu();
    backend_device *d;
    backend_queue *q;
    errmsg e = {0};
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = n_threads, .isa = "auto"};
    rope_waves w = {on_host(t->frequency), t->magnitude, t->n_pairs};
    assert_int_equal(b->device_open(&d, &spec, &e), ST_OK);
    assert_int_equal(b->queue_open(d, &q, &e), ST_OK);
    assert_int_equal(b->rope_angles(q, on_host(c), on_host(s), &w, on_host(position), n_rows),
                     ST_OK);
    b->queue_close(q);
    b->device_close(d);
}

/* cos and sin of one position against the C library in extended precision. */
static void compare(const rope_table *t, uint32_t position, const long double *frequency,
                    long double magnitude)
{
    float c[ROPE_PAIRS_MAX], s[ROPE_PAIRS_MAX];
    turn(t, c, s, &position, 1, 1);
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        long double angle = position * frequency[i];
        long double slack = 1e-15L * (1 + angle) + 6.0e-8L * fabsl(magnitude);
        assert_true(fabsl(c[i] - magnitude * cosl(angle)) <= slack);
        assert_true(fabsl(s[i] - magnitude * sinl(angle)) <= slack);
    }
}

static void plain_angles_are_right(void **state)
{
    (void)state;
    const uint32_t n_rot[] = {2, 16, 64, 128, 512},
                   position[] = {0, 1, 17, 4095, 131071, (1u << 24) - 1};
    for (uint32_t k = 0; k < 5; k++) {
        rope_desc d = plain(n_rot[k]);
        rope_table t = made(&d, NULL);
        long double f[ROPE_PAIRS_MAX];
        assert_int_equal(t.n_pairs, n_rot[k] / 2);
        for (uint32_t i = 0; i < t.n_pairs; i++)
            f[i] = powl(10000.0L, -2.0L * i / n_rot[k]);
        for (uint32_t i = 0; i < 6; i++)
            compare(&t, position[i], f, 1);
    }
}

static void position_0_is_exact(void **state)
{
    (void)state;
    rope_desc d = plain(64);
    rope_table t = made(&d, NULL);
    float c[32], s[32];
    turn(&t, c, s, &(uint32_t){0}, 1, 1);
    for (uint32_t i = 0; i < 32; i++) {
        assert_true(c[i] == 1.0f && s[i] == 0.0f);
    }
}

static void a_factor_of_1_is_no_scaling(void **state)
{
    (void)state;
    rope_desc d = plain(64);
    float ones[32];
    for (uint32_t i = 0; i < 32; i++)
        ones[i] = 1.0f;
    rope_table none = made(&d, NULL), factors = made(&d, ones);
    d.scaling = ROPE_SCALING_LINEAR;
    rope_table linear = made(&d, NULL);
    d.scaling = ROPE_SCALING_YARN;
    rope_table yarn = made(&d, NULL);
    for (uint32_t i = 0; i < 32; i++) {
        assert_true(none.frequency[i] == factors.frequency[i]);
        assert_true(none.frequency[i] == linear.frequency[i]);
        assert_true(fabs(yarn.frequency[i] / none.frequency[i] - 1) < 1e-15);
    }
}

static void linear_and_factors_divide(void **state)
{
    (void)state;
    rope_desc d = plain(32);
    float factors[16];
    for (uint32_t i = 0; i < 16; i++)
        factors[i] = i < 8 ? 1.0f : 8.0f;
    rope_table none = made(&d, NULL), llama3 = made(&d, factors);
    d.scaling = ROPE_SCALING_LINEAR;
    d.factor = 4.0f;
    rope_table linear = made(&d, NULL);
    for (uint32_t i = 0; i < 16; i++) {
        assert_true(linear.frequency[i] == none.frequency[i] / 4);
        assert_true(llama3.frequency[i] == none.frequency[i] / (i < 8 ? 1 : 8));
    }
}

/* By hand for n_rot 128, base 10000, original context 4096, beta 32 and 1: the pair that turns beta
 * times is 128 ln(4096 / (2 pi beta)) / (2 ln 10000): 20.94 and 45.03. Pairs to 20 are kept, pairs
 * from 46 interpolated. */
static void yarn_blends_between_its_borders(void **state)
{
    (void)state;
    rope_desc d = plain(128);
    rope_table none = made(&d, NULL);
    d.scaling = ROPE_SCALING_YARN;
    d.factor = 4.0f;
    d.attn_factor = 1.13862944f; /* 1 + 0.1 ln 4 */
    rope_table yarn = made(&d, NULL);
    long double f[ROPE_PAIRS_MAX];
    for (uint32_t i = 0; i < 64; i++) {
        double mix = i <= 20 ? 1 : i >= 46 ? 0 : 1 - (i - 20.0) / 26.0;
        assert_true(fabs(yarn.frequency[i] / none.frequency[i] - (mix + (1 - mix) / 4)) < 1e-14);
        f[i] = (long double)yarn.frequency[i];
    }
    compare(&yarn, 1000, f, (long double)1.13862944f);
}

static void rows_and_threads_do_not_know_each_other(void **state)
{
    (void)state;
    enum { ROWS = 901, PAIRS = 24 };
    rope_desc d = plain(2 * PAIRS);
    rope_table t = made(&d, NULL);
    uint32_t position[ROWS];
    for (uint32_t r = 0; r < ROWS; r++)
        position[r] = r * 7919 % 100003;
    float *all = malloc(4 * sizeof(float) * ROWS * PAIRS), c1[PAIRS], s1[PAIRS];
    assert_non_null(all);
    float *c = all, *s = c + ROWS * PAIRS, *c3 = s + ROWS * PAIRS, *s3 = c3 + ROWS * PAIRS;
    turn(&t, c, s, position, ROWS, 1);
    turn(&t, c3, s3, position, ROWS, 3);
    assert_memory_equal(c, c3, 2 * sizeof(float) * ROWS * PAIRS);
    for (uint32_t r = 0; r < ROWS; r += 100) {
        turn(&t, c1, s1, &position[r], 1, 2);
        assert_memory_equal(c1, &c[r * PAIRS], sizeof c1);
        assert_memory_equal(s1, &s[r * PAIRS], sizeof s1);
    }
    turn(&t, NULL, NULL, NULL, 0, 2);
    free(all);
}

static void wild_frequencies_are_refused(void **state)
{
    (void)state;
    rope_desc d = plain(4);
    const float wild[][2] = {{1e-9f, 1.0f}, {0.0f, 1.0f}, {1.0f, NAN}, {-1.0f, 1.0f}};
    for (uint32_t i = 0; i < 4; i++) {
        rope_table t;
        errmsg e = {0};
        assert_int_equal(rope_make(&t, &d, wild[i], &e), ST_BAD_MODEL);
        assert_non_null(strstr(e.text, i == 2 ? "pair 1" : "pair 0"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_angles_are_right),
        cmocka_unit_test(position_0_is_exact),
        cmocka_unit_test(a_factor_of_1_is_no_scaling),
        cmocka_unit_test(linear_and_factors_divide),
        cmocka_unit_test(yarn_blends_between_its_borders),
        cmocka_unit_test(rows_and_threads_do_not_know_each_other),
        cmocka_unit_test(wild_frequencies_are_refused),
    };
    tap_begin(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
