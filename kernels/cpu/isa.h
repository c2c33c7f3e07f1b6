/* isa.h - the arithmetic of the cpu backend as one table per instruction set.
 *
 * ref (plain C), avx2 (AVX2 + FMA + F16C), avx512 (F, BW, VL, DQ, VNNI) and amx (avx512 and AMX
 * tiles of bytes) fill it; all give the same bits for the same inputs, whatever rows stand beside
 * and however a range is cut between threads. Functions work on a range of outputs so that threads
 * can share an op. Only a NaN's sign and payload may differ; that a result is NaN may not.
 *
 * Sums of products: sixteen f32 lanes, zero at first; term i goes to lane i mod 16 by one fused
 * multiply-add, i ascending; a lane without a term at the end is left as it is; then the tree
 * (l, l+8), (l, l+4), (l, l+2), (l, l+1). Stored floats are converted to f32 first, exactly. This
 * is the order of matmul (terms w[o,i] x[r,i]; a bias is added to the tree's result), of rms_norm
 * (x[i] x[i]) and of attention's scores (q[i] k[j,i]). Products of quantised weights are sums of
 * integers: fixed.h.
 *
 * Weights, biases and stored values may lie at any address (a model file maps them so); f32
 * activations are aligned as floats. The rounding mode is to nearest, denormals are not flushed.
 * ISA tables hold no state and are safe from any thread. */
#ifndef KERNELS_CPU_ISA_H
#define KERNELS_CPU_ISA_H

#include "kernels/backend.h"
#include "kernels/cpu/fixed.h"

/* Floats of scratch, 64-byte aligned, that each thread brings along. */
#define CPU_SCRATCH_FLOATS (160u * 1024u)
#define CPU_FIXED_SCRATCH (256u * 1024u) /* bytes of it that matmul_fixed uses */
#define CPU_HEAD_MAX 4096u /* largest n_head that attention's scratch holds */

typedef struct {
    const char *name;

    /* out[r * n_out + o] for o in [o_begin, o_end), all n_rows rows; x is f32 [n_rows, n_in];
     * bias f32 [n_out] or NULL; type F32, F16 or BF16. scratch: CPU_SCRATCH_FLOATS of the calling
     * thread. */
    void (*matmul)(float *out, const void *w, dtype type, uint32_t n_in, uint32_t n_out,
                   const float *x, const void *bias, uint32_t n_rows, uint32_t o_begin,
                   uint32_t o_end, float *scratch);
    /* Rows [r_begin, r_end) of x, f32 [to->n_rows, to->n_in], as this table's matmul_fixed takes
     * them for weights of a quantised type (fixed.h). */
    void (*fixed_rows)(const fixed_rows *to, const float *x, dtype type, uint32_t r_begin,
                       uint32_t r_end);
    /* matmul for quantised types, of at most FIXED_ROWS_MAX rows. */
    void (*matmul_fixed)(float *out, const void *w, dtype type, uint32_t n_out,
                         const fixed_rows *x, const void *bias, uint32_t o_begin, uint32_t o_end,
                         float *scratch);
    /* s = 1 / sqrt(sum / n + eps); out[i] = (x[i] * s) * w[i]; w f32 [n]. */
    void (*rms_norm_row)(float *out, const float *x, const void *w, uint32_t n, float eps);
    /* out[i] = fm_expf(x[i]), the same bits. What attention and silu use inside, seen alone. */
    void (*exp)(float *out, const float *x, uint64_t n);
    /* (gate / (1 + fm_expf(-gate))) * up */
    void (*silu_mul)(float *out, const float *gate, const float *up, uint64_t n);
    /* a = fma(gate * gate, GELU_C3, GELU_C1); (gate / (1 + fm_expf(gate * a))) * up (gelu.h) */
    void (*gelu_mul)(float *out, const float *gate, const float *up, uint64_t n);
    void (*add)(float *x, const float *y, uint64_t n);
    /* n stored values to f32 and back (F32, F16, BF16 both ways, round to nearest even; quantised
     * types only to f32, n a multiple of the block). */
    void (*to_f32)(float *out, const void *in, dtype type, uint64_t n);
    void (*from_f32)(void *out, dtype type, const float *in, uint64_t n);
    /* Pair (a, b) turns to (fma(a, cos, -(b * sin)), fma(b, cos, a * sin)). */
    void (*rope_row)(float *x, const float *cos, const float *sin, uint32_t n_rot, bool neox,
                     uint32_t n_heads, uint32_t n_head);
    /* One query head of one row over positions [first, last]: k and v are the pools offset to the
     * KV head; block b starts at b * block_stride bytes. Keys outside the range are not touched.
     * Per cell: s_j = scale * dot(q, k_j); e_j = fm_expf(s_j - m); l sums e_j in sixteen lanes, e_j
     * to lane j mod 16 by an addition, then the tree; o[i] = fma(e_j, v[j,i], o[i]) from 0, j
     * ascending. Merging: a = fm_expf(m1 - M), b = fm_expf(m2 - M), l = fma(l2, b, l1 * a), o
     * likewise; the first cell is taken as it is. out[i] = o[i] / l.
     * scratch: CPU_SCRATCH_FLOATS of the calling thread. */
    void (*attention_head)(float *out, const float *q, const void *k, const void *v, dtype type,
                           uint64_t block_stride, const uint32_t *table, uint32_t first,
                           uint32_t last, uint32_t n_head, float scale, float *scratch);
    bool (*all_finite)(const float *x, uint64_t n);
} cpu_isa;

extern const cpu_isa cpu_isa_ref, cpu_isa_avx2, cpu_isa_avx512, cpu_isa_amx;

/* The best table that this machine runs ("auto"), or the named one; NULL: not here or no such. */
const cpu_isa *cpu_isa_get(const char *name);

#endif
