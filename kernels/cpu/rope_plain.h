/* rope_plain.h - the rotation in plain C; the vector files compile it with their own flags, for it
 * is a few multiplications per value and not worth shuffles. */
#ifndef KERNELS_CPU_ROPE_PLAIN_H
#define KERNELS_CPU_ROPE_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

static inline void rope_plain(float *x, const float *cos, const float *sin, uint32_t n_rot,
                              bool neox, uint32_t n_heads, uint32_t n_head)
{
    uint32_t n_pairs = n_rot / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += n_head) {
        for (uint32_t i = 0; i < n_pairs; i++) {
            float *a = &x[neox ? i : 2 * i], *b = neox ? a + n_pairs : a + 1;
            float a0 = *a, b0 = *b;
            *a = __builtin_fmaf(a0, cos[i], -(b0 * sin[i]));
            *b = __builtin_fmaf(b0, cos[i], a0 * sin[i]);
        }
    }
}

#endif
