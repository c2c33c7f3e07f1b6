/* The plain reference of everything that is not a product of matrices or attention. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/lanes_ref.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/rope_plain.h"

#include "common/fmath.h"

#include <math.h>

void rms_norm_row_ref(float *out, const float *x, const void *w, uint32_t n, float eps)
{
    lanes sum = {{0}};
    for (uint32_t i = 0; i < n; i++) lanes_add_product(&sum, i, x[i], x[i]);
    float s = 1.0f / sqrtf(lanes_tree(&sum) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * s * load_f32((const char *)w + 4u * i);
}

void exp_ref(float *out, const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) out[i] = fm_expf(x[i]);
}

void silu_mul_ref(float *out, const float *gate, const float *up, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) out[i] = gate[i] / (1.0f + fm_expf(-gate[i])) * up[i];
}

void gelu_mul_ref(float *out, const float *gate, const float *up, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = gate[i], a = __builtin_fmaf(x * x, GELU_C3, GELU_C1);
        out[i] = x / (1.0f + fm_expf(x * a)) * up[i];
    }
}

void add_ref(float *x, const float *y, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) x[i] += y[i];
}

void to_f32_ref(float *out, const void *in, dtype type, uint64_t n)
{
    const char *p = in;
    switch (type) {
    case DT_F32:
        if (n > 0) memcpy(out, in, n * sizeof *out);
        break;
    case DT_F16:
        for (uint64_t i = 0; i < n; i++) out[i] = f32_of_f16(load_u16(p + 2 * i));
        break;
    case DT_BF16:
        for (uint64_t i = 0; i < n; i++) out[i] = f32_of_bf16(load_u16(p + 2 * i));
        break;
    default:
        quant_to_f32_ref(out, in, type, n);
    }
}

void from_f32_ref(void *out, dtype type, const float *in, uint64_t n)
{
    char *p = out;
    switch (type) {
    case DT_F32:
        if (n > 0) memcpy(out, in, n * sizeof *in);
        break;
    case DT_F16:
        for (uint64_t i = 0; i < n; i++) memcpy(p + 2 * i, &(uint16_t){f16_of_f32(in[i])}, 2);
        break;
    case DT_BF16:
        for (uint64_t i = 0; i < n; i++) memcpy(p + 2 * i, &(uint16_t){bf16_of_f32(in[i])}, 2);
        break;
    default:
        CHECK(!"a type that supports() refuses");
    }
}

void rope_row_ref(float *x, const float *cos, const float *sin, uint32_t n_rot, bool neox,
                  uint32_t n_heads, uint32_t n_head)
{
    rope_plain(x, cos, sin, n_rot, neox, n_heads, n_head);
}

bool all_finite_ref(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if ((f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u) return false;
    }
    return true;
}
