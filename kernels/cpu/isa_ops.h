/* isa_ops.h - the functions behind the three tables, by name: x_ref, x_avx2, x_avx512 (and
 * x_amx, the products only). Only the
 * files of kernels/cpu include it; contracts are in isa.h. */
#ifndef KERNELS_CPU_ISA_OPS_H
#define KERNELS_CPU_ISA_OPS_H

#include "kernels/cpu/isa.h"

#define ISA_NAME_(op, isa) op##_##isa
#define ISA_NAME(op, isa) ISA_NAME_(op, isa)

#define ISA_FIXED_DECLARE(isa)                                                                     \
    void ISA_NAME(fixed_rows, isa)(const fixed_rows *to, const float *x, dtype type,               \
                                   uint32_t r_begin, uint32_t r_end);                              \
    void ISA_NAME(matmul_fixed, isa)(float *out, const void *w, dtype type, uint32_t n_out,        \
                                     const fixed_rows *x, const void *bias, uint32_t o_begin,      \
                                     uint32_t o_end, float *scratch);

#define ISA_OPS_DECLARE(isa)                                                                       \
    ISA_FIXED_DECLARE(isa)                                                                         \
    void ISA_NAME(matmul, isa)(float *out, const void *w, dtype type, uint32_t n_in,               \
                               uint32_t n_out, const float *x, const void *bias, uint32_t n_rows,  \
                               uint32_t o_begin, uint32_t o_end, float *scratch);                  \
    void ISA_NAME(rms_norm_row, isa)(float *out, const float *x, const void *w, uint32_t n,        \
                                     float eps);                                                   \
    void ISA_NAME(exp, isa)(float *out, const float *x, uint64_t n);                               \
    void ISA_NAME(silu_mul, isa)(float *out, const float *gate, const float *up, uint64_t n);      \
    void ISA_NAME(gelu_mul, isa)(float *out, const float *gate, const float *up, uint64_t n);      \
    void ISA_NAME(add, isa)(float *x, const float *y, uint64_t n);                                 \
    void ISA_NAME(to_f32, isa)(float *out, const void *in, dtype type, uint64_t n);                \
    void ISA_NAME(from_f32, isa)(void *out, dtype type, const float *in, uint64_t n);              \
    void ISA_NAME(rope_row, isa)(float *x, const float *cos, const float *sin, uint32_t n_rot,     \
                                 bool neox, uint32_t n_heads, uint32_t n_head);                    \
    void ISA_NAME(attention_head, isa)(                                                            \
        float *out, const float *q, const void *k, const void *v, dtype type,                      \
        uint64_t block_stride, const uint32_t *table, uint32_t first, uint32_t last,               \
        uint32_t n_head, float scale, float *scratch);                                             \
    bool ISA_NAME(all_finite, isa)(const float *x, uint64_t n);

ISA_OPS_DECLARE(ref)
ISA_OPS_DECLARE(avx2)
ISA_OPS_DECLARE(avx512)
ISA_FIXED_DECLARE(amx)

/* The table `table`: products of quants of its own, everything else from `isa`. */
#define ISA_TABLE(table, isa)                                                                      \
    const cpu_isa ISA_NAME(cpu_isa, table) = {                                                     \
        .name = #table,                                                                            \
        .matmul = ISA_NAME(matmul, isa),                                                           \
        .fixed_rows = ISA_NAME(fixed_rows, table),                                                 \
        .matmul_fixed = ISA_NAME(matmul_fixed, table),                                             \
        .rms_norm_row = ISA_NAME(rms_norm_row, isa),                                               \
        .exp = ISA_NAME(exp, isa),                                                                 \
        .silu_mul = ISA_NAME(silu_mul, isa),                                                       \
        .gelu_mul = ISA_NAME(gelu_mul, isa),                                                       \
        .add = ISA_NAME(add, isa),                                                                 \
        .to_f32 = ISA_NAME(to_f32, isa),                                                           \
        .from_f32 = ISA_NAME(from_f32, isa),                                                       \
        .rope_row = ISA_NAME(rope_row, isa),                                                       \
        .attention_head = ISA_NAME(attention_head, isa),                                           \
        .all_finite = ISA_NAME(all_finite, isa),                                                   \
    }

#endif
