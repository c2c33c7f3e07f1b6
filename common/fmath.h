/* fmath.h - exp, log, sin and cos of our own: the same bits on every machine and path.
 *
 * Only IEEE operations that round once (+ - * / sqrt and explicit fma), no contraction (compile with
 * -ffp-contract=off), no table from libm. Scalar; vector paths repeat the same operations. */
#ifndef COMMON_FMATH_H
#define COMMON_FMATH_H

/* e^x for f32; 0 below -87.33 or so (no denormals), +inf above 88.72; error <= 2 ulp. NaN stays. */
float fm_expf(float x);

/* Double: error <= 1e-15 relative over the ranges used (frequencies, softmax sums). */
double fm_exp(double x);
double fm_log(double x);

/* sin and cos of x radians, |x| <= 2^40, error <= 1e-15 absolute. */
void fm_sincos(double x, double *s, double *c);

#endif
