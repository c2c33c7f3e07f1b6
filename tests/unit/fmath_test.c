/* fmath against libm's long double; the instruction sets' exponentials against fm_expf. */
#include "common/fmath.h"
#include "tests/support/kernel_check.h"
#include "tests/support/tap.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double uniform(seeded *s, double low, double high)
{
    return low + (high - low) * (double)(seeded_next(s) >> 11) * 0x1p-53;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Every 2039th float there is, which meets all exponents and both signs. */
static void expf_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (uint64_t u = 0; u <= UINT32_MAX; u += 2039) {
        float x = float_of((uint32_t)u), y = fm_expf(x);
        if (x != x) {
            assert_true(y != y);
        } else if (x < FM_EXPF_MIN) {
            assert_true(y == 0);
        } else if (x > FM_EXPF_MAX) {
            assert_true(y == INFINITY);
        } else {
            long double want = expl((long double)x);
            double ulp = ldexp(1, ilogbl(want) - 23);
            double error = (double)fabsl((long double)y - want) / ulp;
            if (error > worst) worst = error;
            assert_true(y >= FLT_MIN && y <= FLT_MAX);
        }
    }
    printf("# fm_expf: at most %.3f ulp\n", worst);
    assert_true(worst <= 2);
}

static void expf_edges(void **state)
{
    (void)state;
    assert_true(fm_expf(0.0f) == 1.0f && fm_expf(-0.0f) == 1.0f);
    assert_true(fm_expf(INFINITY) == INFINITY && fm_expf(-INFINITY) == 0.0f);
    assert_true(fm_expf(nextafterf(FM_EXPF_MAX, 100)) == INFINITY);
    assert_true(fm_expf(nextafterf(FM_EXPF_MIN, -100)) == 0.0f);
    /* The bounds are the tight ones. */
    assert_true(expl((long double)FM_EXPF_MAX) <= FLT_MAX);
    assert_true(expl((long double)nextafterf(FM_EXPF_MAX, 100)) > FLT_MAX);
    assert_true(expl((long double)FM_EXPF_MIN) >= FLT_MIN);
    assert_true(expl((long double)nextafterf(FM_EXPF_MIN, -100)) < FLT_MIN);
}

static void vector_exp_has_the_same_bits(void **state)
{
    (void)state;
    enum { N = 4096 };
    const cpu_isa *isa[CHECK_ISAS];
    uint32_t n_isas = check_isas(isa);
    float *x = malloc(N * sizeof *x), *want = malloc(N * sizeof *x), *got = malloc(N * sizeof *x);
    assert_true(x && want && got);
    static const float edges[] = {0.0f, -0.0f, FM_EXPF_MIN, FM_EXPF_MAX, INFINITY, -INFINITY,
                                  NAN, -NAN, FLT_MIN, -FLT_MIN, 0x1p-149f, FLT_MAX, -FLT_MAX};
    seeded s = {1};
    for (int round = 0; round < 500; round++) {
        for (int i = 0; i < N; i++) {
            uint64_t u = seeded_next(&s);
            /* Any bit pattern, or one of the range that matters. */
            x[i] = u & 1 ? float_of((uint32_t)(u >> 32)) : (float)uniform(&s, -90, 90);
        }
        for (uint32_t i = 0; i < sizeof edges / sizeof *edges; i++) {
            uint32_t at = seeded_below(&s, N - 2);
            x[at] = edges[i];
            x[at + 1] = nextafterf(edges[i], 1e30f);
            x[at + 2] = nextafterf(edges[i], -1e30f);
        }
        uint32_t n = N - (uint32_t)round % 33;
        for (uint32_t i = 0; i < n; i++) want[i] = fm_expf(x[i]);
        for (uint32_t i = 0; i < n_isas; i++) {
            isa[i]->exp(got, x, n);
            assert_true(same_bits(isa[i]->name, want, got, n));
        }
    }
    free(x);
    free(want);
    free(got);
}

static void exp_log_pow_are_within_1e_15(void **state)
{
    (void)state;
    seeded s = {2};
    double worst_exp = 0, worst_log = 0, worst_pow = 0;
    for (int i = 0; i < 300000; i++) {
        double x = uniform(&s, -708, 709.7);
        if (i % 2) x /= 700;
        long double want = expl((long double)x);
        double error = (double)fabsl(((long double)fm_exp(x) - want) / want);
        if (error > worst_exp) worst_exp = error;

        x = i % 2 ? uniform(&s, 0.5, 2) : exp(uniform(&s, -740, 709));
        want = logl((long double)x);
        if (want != 0) {
            error = (double)fabsl(((long double)fm_log(x) - want) / want);
            if (error > worst_log) worst_log = error;
        }

        double base = uniform(&s, 0.1, 1e6), y = uniform(&s, -4, 4);
        want = powl((long double)base, (long double)y);
        error = (double)(fabsl(((long double)fm_pow(base, y) - want) / want) /
                         (1 + fabsl((long double)y * logl((long double)base))));
        if (error > worst_pow) worst_pow = error;
    }
    printf("# relative errors: exp %.2g, log %.2g, pow %.2g\n", worst_exp, worst_log, worst_pow);
    assert_true(worst_exp <= 1e-15 && worst_log <= 1e-15 && worst_pow <= 1e-15);

    assert_true(fm_exp(0) == 1 && fm_exp(710) == INFINITY && fm_exp(-INFINITY) == 0);
    assert_true(fm_exp(-800) == 0 && fm_exp(NAN) != fm_exp(NAN));
    assert_true(fm_exp(-740) > 0 && fm_exp(-740) < DBL_MIN);
    assert_true(fm_log(1) == 0 && fm_log(0) == -INFINITY && fm_log(INFINITY) == INFINITY);
    assert_true(fm_log(-1) != fm_log(-1) && fm_log(NAN) != fm_log(NAN));
    assert_true(fabs(fm_log(0x1p-1074) / -744.4400719213812 - 1) < 1e-15);
}

static void sincos_is_within_1e_15(void **state)
{
    (void)state;
    seeded s = {3};
    double worst = 0;
    for (int i = 0; i < 300000; i++) {
        double x = ldexp(uniform(&s, -1, 1), (int)seeded_below(&s, 41));
        /* The worst for the reduction: next to a multiple of pi/2. */
        if (i % 4 == 0) x = floor(x) * 1.5707963267948966;
        double sn, cs;
        fm_sincos(x, &sn, &cs);
        double error = (double)fmaxl(fabsl((long double)sn - sinl((long double)x)),
                                     fabsl((long double)cs - cosl((long double)x)));
        if (error > worst) worst = error;
    }
    printf("# sin and cos: at most %.2g\n", worst);
    assert_true(worst <= 1e-15);
    double sn, cs;
    fm_sincos(0, &sn, &cs);
    assert_true(sn == 0 && cs == 1);
    fm_sincos(INFINITY, &sn, &cs);
    assert_true(sn != sn && cs != cs);
    fm_sincos(0x1p41, &sn, &cs);
    assert_true(sn != sn && cs != cs);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expf_is_within_two_ulp),
        cmocka_unit_test(expf_edges),
        cmocka_unit_test(vector_exp_has_the_same_bits),
        cmocka_unit_test(exp_log_pow_are_within_1e_15),
        cmocka_unit_test(sincos_is_within_1e_15),
    };
    return cmocka_run_group_tests_name("fmath", tests, NULL, NULL);
}
