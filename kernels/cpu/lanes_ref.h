/* lanes_ref.h - the law's sum in plain C: sixteen lanes and the tree (isa.h). */
#ifndef KERNELS_CPU_LANES_REF_H
#define KERNELS_CPU_LANES_REF_H

#include <stdint.h>

typedef struct {
    float v[16];
} lanes;

/* Term i of a sum of products. */
static inline void lanes_add_product(lanes *s, uint32_t i, float a, float b)
{
    s->v[i % 16] = __builtin_fmaf(a, b, s->v[i % 16]);
}

static inline float lanes_tree(const lanes *s)
{
    lanes t = *s;
    for (int half = 8; half >= 1; half /= 2) {
        for (int l = 0; l < half; l++) t.v[l] += t.v[l + half];
    }
    return t.v[0];
}

#endif
