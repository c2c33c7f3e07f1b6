/* The plain reference of fixed.h. v lies in order. */
#include "kernels/cpu/fixed.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa_ops.h"

#include <math.h>

/* v and scale of one block. */
static float open_block(int16_t *v, const float *x, uint32_t n)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7fffffffu;
        if (a > largest) largest = a;
    }
    if (largest >= 0x7f800000u) {
        memset(v, 0, n * sizeof *v);
        return NAN;
    }
    uint32_t e = (largest + FIXED_ROUND_UP) >> 23;
    if (e < FIXED_EXPONENT_MIN) e = FIXED_EXPONENT_MIN;
    for (uint32_t i = 0; i < n; i++) v[i] = (int16_t)rintf(x[i] * f32_from_bits((268 - e) << 23));
    return f32_from_bits((e - 14) << 23);
}

void fixed_rows_ref(const fixed_rows *to, const float *x, dtype type, uint32_t r_begin,
                    uint32_t r_end)
{
    for (uint32_t r = r_begin; r < r_end; r++) {
        for (uint32_t i = 0; i < to->n_in; i += FIXED_BLOCK) {
            uint32_t n = to->n_in - i < FIXED_BLOCK ? to->n_in - i : FIXED_BLOCK;
            char *unit = fixed_unit(to, type, r, i);
            float s = open_block((int16_t *)unit, x + (uint64_t)r * to->n_in + i, n);
            memcpy(unit + fixed_scale_at(type), &s, sizeof s);
        }
    }
}

/* The group's terms, on top of t. */
static float add_group(float t, const quant_plain *b, uint32_t i, const int16_t *v, dtype type)
{
    int32_t d = 0, sum = 0;
    for (uint32_t k = 0; k < quant_group(type); k++) {
        d += b->q[i + k] * v[k];
        sum += v[k];
    }
    t = __builtin_fmaf(b->s[i / 16], (float)d, t);
    return quant_has_min(type) ? __builtin_fmaf(b->m[i / 16], (float)sum, t) : t;
}

void matmul_fixed_ref(float *out, const void *w, dtype type, uint32_t n_out, const fixed_rows *x,
                      const void *bias, uint32_t o_begin, uint32_t o_end, float *scratch)
{
    (void)scratch;
    const uint32_t values = quant_block_values(type), group = quant_group(type), n_in = x->n_in;
    uint64_t w_bytes = dtype_bytes(type, n_in);
    for (uint32_t o = o_begin; o < o_end; o++) {
        for (uint32_t r = 0; r < x->n_rows; r++) {
            const char *p = (const char *)w + o * w_bytes;
            float y = 0, t = 0;
            quant_plain b;
            for (uint32_t i = 0; i < n_in; i += group) {
                const char *unit = fixed_unit(x, type, r, i);
                if (i % values == 0) quant_open_ref(&b, p + dtype_bytes(type, i), type);
                t = add_group(t, &b, i % values, (const int16_t *)unit + i % FIXED_BLOCK, type);
                uint32_t next = i + group;
                if (next % FIXED_BLOCK != 0 && next != n_in) continue;
                y = __builtin_fmaf(load_f32(unit + fixed_scale_at(type)), t, y);
                t = 0;
            }
            if (bias != NULL) y += load_f32((const char *)bias + 4ull * o);
            out[(uint64_t)r * n_out + o] = y;
        }
    }
}
