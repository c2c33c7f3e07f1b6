/* rows_v16.h - body of rows_avx2.c and rows_avx512.c: everything that is not a product of matrices
 * or attention, written in the v16 operations of the header included before this one. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/rope_plain.h"
#include "kernels/cpu/v16_load.h"

#include <math.h>

void ISA_NAME(rms_norm_row, V16_ISA)(float *out, const float *x, const void *w, uint32_t n,
                                     float eps)
{
    const char *w_at = w;
    uint32_t full = n / 16 * 16, rest = n - full;
    v16 sum[16] = {v16_zero()};
    for (uint32_t i = 0; i < full; i += 16) {
        v16 a = v16_load(x + i);
        sum[0] = v16_fma(a, a, sum[0]);
    }
    if (rest > 0) {
        v16 a = v16_load_part(x + full, rest);
        sum[0] = v16_select(v16_mask_range(0, rest), v16_fma(a, a, sum[0]), sum[0]);
    }
    for (int i = 1; i < 16; i++) sum[i] = v16_zero();
    float total[16];
    v16_store(total, v16_reduce16(sum));
    float s1 = 1.0f / sqrtf(total[0] / (float)n + eps);
    v16 s = v16_set1(s1);
    for (uint32_t i = 0; i < full; i += 16)
        v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), s), v16_load(w_at + 4ull * i)));
    for (uint32_t i = full; i < n; i++) out[i] = x[i] * s1 * load_f32(w_at + 4ull * i);
}

void ISA_NAME(exp, V16_ISA)(float *out, const float *x, uint64_t n)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(out + i, v16_exp(v16_load(x + i)));
    uint32_t rest = (uint32_t)(n - i);
    if (rest > 0) v16_store_part(out + i, v16_exp(v16_load_part(x + i, rest)), rest);
}

V16 v16 silu_mul16(v16 gate, v16 up)
{
    /* 0 - x and -x differ in the sign of a zero only, whose exponential is the same 1. */
    v16 e = v16_exp(v16_sub(v16_zero(), gate));
    return v16_mul(v16_div(gate, v16_add(v16_set1(1.0f), e)), up);
}

void ISA_NAME(silu_mul, V16_ISA)(float *out, const float *gate, const float *up, uint64_t n)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(out + i, silu_mul16(v16_load(gate + i), v16_load(up + i)));
    uint32_t rest = (uint32_t)(n - i);
    if (rest > 0)
        v16_store_part(
            out + i, silu_mul16(v16_load_part(gate + i, rest), v16_load_part(up + i, rest)), rest);
}

V16 v16 gelu_mul16(v16 gate, v16 up)
{
    v16 a = v16_fma(v16_mul(gate, gate), v16_set1(GELU_C3), v16_set1(GELU_C1));
    v16 e = v16_exp(v16_mul(gate, a));
    return v16_mul(v16_div(gate, v16_add(v16_set1(1.0f), e)), up);
}

void ISA_NAME(gelu_mul, V16_ISA)(float *out, const float *gate, const float *up, uint64_t n)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(out + i, gelu_mul16(v16_load(gate + i), v16_load(up + i)));
    uint32_t rest = (uint32_t)(n - i);
    if (rest > 0)
        v16_store_part(
            out + i, gelu_mul16(v16_load_part(gate + i, rest), v16_load_part(up + i, rest)), rest);
}

void ISA_NAME(add, V16_ISA)(float *x, const float *y, uint64_t n)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_add(v16_load(x + i), v16_load(y + i)));
    for (; i < n; i++) x[i] += y[i];
}

void ISA_NAME(to_f32, V16_ISA)(float *out, const void *in, dtype type, uint64_t n)
{
    const char *p = in;
    switch (type) {
    case DT_F32:
        if (n > 0) memcpy(out, in, n * sizeof *out);
        return;
    case DT_F16:
        for (; n >= 16; n -= 16, p += 32, out += 16) v16_store(out, v16_load_f16(p));
        for (; n > 0; n--, p += 2) *out++ = f32_of_f16(load_u16(p));
        return;
    case DT_BF16:
        for (; n >= 16; n -= 16, p += 32, out += 16) v16_store(out, v16_load_bf16(p));
        for (; n > 0; n--, p += 2) *out++ = f32_of_bf16(load_u16(p));
        return;
    default: /* an embedding's row, once for each token */
        quant_to_f32_ref(out, in, type, n);
    }
}

void ISA_NAME(from_f32, V16_ISA)(void *out, dtype type, const float *in, uint64_t n)
{
    char *p = out;
    switch (type) {
    case DT_F32:
        if (n > 0) memcpy(out, in, n * sizeof *in);
        return;
    case DT_F16:
        for (; n >= 16; n -= 16, p += 32, in += 16) v16_store_f16(p, v16_load(in));
        for (; n > 0; n--, p += 2) memcpy(p, &(uint16_t){f16_of_f32(*in++)}, 2);
        return;
    case DT_BF16:
        for (; n >= 16; n -= 16, p += 32, in += 16) v16_store_bf16(p, v16_load(in));
        for (; n > 0; n--, p += 2) memcpy(p, &(uint16_t){bf16_of_f32(*in++)}, 2);
        return;
    default:
        CHECK(!"a type that supports() refuses");
    }
}

void ISA_NAME(rope_row, V16_ISA)(float *x, const float *cos, const float *sin, uint32_t n_rot,
                                 bool neox, uint32_t n_heads, uint32_t n_head)
{
    rope_plain(x, cos, sin, n_rot, neox, n_heads, n_head);
}

bool ISA_NAME(all_finite, V16_ISA)(const float *x, uint64_t n)
{
    uint32_t bad = 0; /* no early end: the compiler makes vectors of this */
    for (uint64_t i = 0; i < n; i++) bad |= (f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return bad == 0;
}
