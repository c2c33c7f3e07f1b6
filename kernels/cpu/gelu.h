/* gelu.h - the constants of gelu_mul, the same in plain C and in vectors.
 *
 * The tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) x (1 + 0.044715 x^2), is x / (1 + e^(-2u))
 * by the definition of tanh, which has no cancellation where x is negative. */
#ifndef KERNELS_CPU_GELU_H
#define KERNELS_CPU_GELU_H

#define GELU_C1 -0x1.988454p+0f /* -2 sqrt(2/pi) */
#define GELU_C3 -0x1.2444f2p-4f /* 0.044715 times that */

#endif
