/* fmath.h - exp, log, sin and cos of our own: the same bits on every machine and path.
 *
 * Only IEEE operations that round once (+ - * / sqrt and explicit fma), no contraction (compile
 * with -ffp-contract=off), no table from libm. Scalar; vector paths repeat the same operations.
 * Any thread; no state; the rounding mode must be to nearest and denormals must not be flushed. */
#ifndef COMMON_FMATH_H
#define COMMON_FMATH_H

/* e^x for f32; 0 below FM_EXPF_MIN (no denormals), +inf above FM_EXPF_MAX; error <= 2 ulp.
 * NaN stays NaN; e^0 is exactly 1.
 *
 * The operations, for those who repeat them in vectors:
 *     t = fma(x, FM_EXPF_LOG2E, FM_EXPF_MAGIC);  n = t - FM_EXPF_MAGIC
 *     r = fma(-n, FM_EXPF_LN2_HI, x);  r = fma(-n, FM_EXPF_LN2_LO, r)
 *     p = C6;  p = fma(p, r, C5) .. fma(p, r, C2), fma(p, r, 1), fma(p, r, 1)
 *     bits of the result = bits(p) + (bits(t) << 23), as u32; then the three cases above. */
float fm_expf(float x);

#define FM_EXPF_MIN (-0x1.5d589ep+6f)     /* the lowest x whose e^x is a normal number */
#define FM_EXPF_MAX 0x1.62e42ep+6f        /* the highest x whose e^x is finite */
#define FM_EXPF_LOG2E 0x1.715476p+0f
#define FM_EXPF_MAGIC 0x1.8p+23f          /* adding it rounds to an integer, kept in the low bits */
#define FM_EXPF_LN2_HI 0x1.62e4p-1f       /* 15 bits: n times it is exact */
#define FM_EXPF_LN2_LO 0x1.7f7d1cp-20f
#define FM_EXPF_C2 0x1.0p-1f              /* interpolates (e^r - 1 - r) / r^2 at the 5 Chebyshev */
#define FM_EXPF_C3 0x1.5554dcp-3f         /* nodes of |r| <= ln 2 / 2; relative error of the */
#define FM_EXPF_C4 0x1.55551ap-5f         /* whole 1.1e-8 */
#define FM_EXPF_C5 0x1.120ba2p-7f
#define FM_EXPF_C6 0x1.6d113cp-10f

/* Double: relative error <= 1e-15 (fm_exp where the result is normal; below it goes to 0 through
 * the denormals, above 709.78 it is +inf). fm_log: -inf at 0, NaN below 0. */
double fm_exp(double x);
double fm_log(double x);

/* x^y for x > 0, relative error <= 1e-15 * (1 + |y log x|). */
double fm_pow(double x, double y);

/* sin and cos of x radians, |x| <= 2^40, error <= 1e-15 absolute. NaN for what lies outside.
 *
 * The operations, for those who repeat them on a device (double, each rounded once):
 *     n = (x * FM_2_BY_PI + FM_ROUND) - FM_ROUND
 *     r = fma(-n, FM_PI_BY_2_HI, x);  r = fma(-n, FM_PI_BY_2_LO, r);  z = r * r
 *     p = C[7];  p = fma(p, z, C[6]) .. fma(p, z, C[0]), for FM_SIN_SERIES and FM_COS_SERIES
 *     sin r = fma(r * z, p_sin, r);  cos r = fma(z, p_cos, 1)
 *     n mod 4: 0 (s, c), 1 (c, -s), 2 (-s, -c), 3 (-c, s) are sin x and cos x */
void fm_sincos(double x, double *s, double *c);

#define FM_SINCOS_MAX 0x1p40
#define FM_ROUND 0x1.8p+52 /* adding and subtracting it rounds |x| < 2^51 to an integer */
#define FM_2_BY_PI 0x1.45f306dc9c883p-1
#define FM_PI_BY_2_HI 0x1.921fb54442d18p+0
#define FM_PI_BY_2_LO 0x1.1a62633145c07p-54
#define FM_SIN_SERIES /* 3! to 17! */                                                              \
    {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,            \
     -1.0 / 1307674368000, 1.0 / 355687428096000}
#define FM_COS_SERIES /* 2! to 16! */                                                              \
    {-1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600,                 \
     -1.0 / 87178291200, 1.0 / 20922789888000}

#endif
