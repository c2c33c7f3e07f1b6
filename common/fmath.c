/* The usual way three times: reduce the argument exactly enough, then a polynomial in Horner form.
 * Series instead of fitted polynomials in double: two more terms, and the coefficients check
 * themselves. */
#include "common/fmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static uint32_t bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t bits_of_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double f64_of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float fm_expf(float x)
{
    if (x != x) return x;
    if (x < FM_EXPF_MIN) return 0.0f;
    if (x > FM_EXPF_MAX) return f32_of_bits(0x7f800000u);
    float t = __builtin_fmaf(x, FM_EXPF_LOG2E, FM_EXPF_MAGIC);
    float n = t - FM_EXPF_MAGIC;
    float r = __builtin_fmaf(-n, FM_EXPF_LN2_HI, x);
    r = __builtin_fmaf(-n, FM_EXPF_LN2_LO, r);
    float p = FM_EXPF_C6;
    p = __builtin_fmaf(p, r, FM_EXPF_C5);
    p = __builtin_fmaf(p, r, FM_EXPF_C4);
    p = __builtin_fmaf(p, r, FM_EXPF_C3);
    p = __builtin_fmaf(p, r, FM_EXPF_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return f32_of_bits(bits_of_f32(p) + (bits_of_f32(t) << 23));
}

#define LN2_HI 0x1.62e42fefap-1 /* 34 bits: n times it is exact for |n| < 2^19 */
#define LN2_LO 0x1.cf79abc9e3b3ap-40

/* 2^n for -1022 <= n <= 1023 */
static double pow2(int64_t n)
{
    return f64_of_bits((uint64_t)(n + 1023) << 52);
}

double fm_exp(double x)
{
    if (x != x) return x;
    if (x > 0x1.62e42fefa39efp+9) return INFINITY;
    if (x < -746.0) return 0.0;
    double n = (x * 0x1.71547652b82fep+0 + FM_ROUND) - FM_ROUND;
    double r = __builtin_fma(-n, LN2_HI, x);
    r = __builtin_fma(-n, LN2_LO, r);
    static const double inv_factorial[] = {
        1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
        1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    };
    double p = inv_factorial[13];
    for (int i = 12; i >= 0; i--) p = __builtin_fma(p, r, inv_factorial[i]);
    /* In two factors: 2^n alone is out of range at both ends. */
    int64_t k = (int64_t)n, half = k / 2;
    return p * pow2(half) * pow2(k - half);
}

double fm_log(double x)
{
    if (x != x || x == INFINITY) return x;
    if (x <= 0.0) return x == 0.0 ? -INFINITY : NAN;
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u = bits_of_f64(x);
    k += (int64_t)(u >> 52) - 1023;
    double m = f64_of_bits((u & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp+0) { /* sqrt 2 */
        m *= 0.5;
        k++;
    }
    /* log m = 2 atanh(s) = 2 s + 2 s^3 (1/3 + s^2/5 + ..), s = f / (2 + f), |s| < 0.172. To keep
     * the last bits, 2 s is written f - s f. */
    double f = m - 1.0, s = f / (2.0 + f), z = s * s, p = 1.0 / 25;
    for (int i = 23; i >= 3; i -= 2) p = __builtin_fma(p, z, 1.0 / i);
    double tail = 2.0 * z * p;
    double kd = (double)k;
    return __builtin_fma(kd, LN2_HI, f - (s * (f - tail) - kd * LN2_LO));
}

double fm_pow(double x, double y)
{
    return fm_exp(y * fm_log(x));
}

void fm_sincos(double x, double *s, double *c)
{
    static const double sin_c[] = FM_SIN_SERIES, cos_c[] = FM_COS_SERIES;
    if (!(x >= -FM_SINCOS_MAX && x <= FM_SINCOS_MAX)) {
        *s = *c = NAN;
        return;
    }
    /* n pi/2 in two parts. The first fma is exact: its result is a multiple of 2^-53 below 1. */
    double n = (x * FM_2_BY_PI + FM_ROUND) - FM_ROUND;
    double r = __builtin_fma(-n, FM_PI_BY_2_HI, x);
    r = __builtin_fma(-n, FM_PI_BY_2_LO, r);
    double z = r * r;
    double ps = sin_c[7], pc = cos_c[7];
    for (int i = 6; i >= 0; i--) {
        ps = __builtin_fma(ps, z, sin_c[i]);
        pc = __builtin_fma(pc, z, cos_c[i]);
    }
    double sr = __builtin_fma(r * z, ps, r), cr = __builtin_fma(z, pc, 1.0);
    switch ((int64_t)n & 3) {
    case 0:
        *s = sr, *c = cr;
        break;
    case 1:
        *s = cr, *c = -sr;
        break;
    case 2:
        *s = -sr, *c = -cr;
        break;
    default:
        *s = -cr, *c = sr;
    }
}
