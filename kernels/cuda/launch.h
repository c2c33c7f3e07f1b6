/* launch.h - the kernels' faces: C on the outside, each puts its work on a stream and returns the
 * launch's error. Read by C and by CUDA C++; only plain types cross.
 *
 * The law of products on this backend. A weight is dequantised and rounded once to f16 (BF16: after
 * a power-of-two scale of its tensor), an activation is rounded to f16 after a power-of-two scale
 * of its row; an output is one chain of k16 tensor-core steps, k ascending, from zero. A long K is
 * cut into segments (cuda_segments), each a chain, added in ascending order; then the scales are
 * undone and the bias is added. F32 weights: one chain of fused multiply-adds, k ascending. All
 * paths (one row, few rows, prompts) give these bits, and a row's bits do not depend on the rows
 * beside it. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/cuda_form.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/sample.h"

typedef struct {
    const void *data;
    cuda_form form;
    uint32_t n_in, n_out;
    int32_t exponent; /* values are stored times 2^exponent */
} cuda_matrix;

/* The power of two that brings the largest magnitude (its f32 bits) of a row or tensor to
 * [2^14, 2^15); 0 where infinity or NaN is among them, so that they stay. */
static inline BOTH_SIDES int32_t cuda_scale_exponent(uint32_t max_bits)
{
    int32_t e = (int32_t)(max_bits >> 23) - 127;
    if (e == 128 || max_bits == 0) return 0;
    return 14 - e < 126 ? 14 - e : 126;
}

/* Once per device, before the kernels: shared memory limits, and what prompts need. */
cudaError_t cuda_matmul_setup(void);
cudaError_t cuda_matmul_rows_setup(void);
typedef struct {
    void *encode_tiled; /* the driver's */
    uint32_t n_sms;
} cuda_prompt;
cudaError_t cuda_prompt_setup(cuda_prompt *p);

/* --- products; out f32 [n_rows, n_out], bias f32 [n_out] or NULL --- */

/* One row, from f32. */
cudaError_t cuda_matmul_one(cudaStream_t s, float *out, const cuda_matrix *w, const float *x,
                            const float *bias, uint32_t n_sms);
/* Several products of the same 2 to 64 rows of cuda_prepare_many, the weights of one form and n_in,
 * which are read once. */
typedef struct {
    float *out;
    const cuda_matrix *w;
    const float *bias;
} cuda_product;
#define CUDA_ROWS_MAX   64u
#define CUDA_ROWS_PARTS 3u
cudaError_t cuda_matmul_rows(cudaStream_t s, const cuda_product *p, uint32_t n, const void *prepared,
                             const int32_t *exponents, uint32_t n_rows, uint32_t n_sms);

/* Two rows or more: x to f16, [n_rows][n/32 blocks][32], ends zero. */
cudaError_t cuda_prepare_many(cudaStream_t s, void *prepared, int32_t *exponents, const float *x,
                              uint32_t n, uint32_t n_rows);
/* The same of silu (gelu: gelu) of gate times up, both f32 [n_rows, n]. */
cudaError_t cuda_prepare_glu(cudaStream_t s, void *prepared, int32_t *exponents, const float *gate,
                             const float *up, bool gelu, uint32_t n, uint32_t n_rows);
/* Rows of cuda_prepare_many with a weight of FORM_F16; a row of out begins out_stride floats after
 * the one before it. */
cudaError_t cuda_matmul_many(cudaStream_t s, const cuda_prompt *p, float *out, uint32_t out_stride,
                             const cuda_matrix *w, const void *prepared, const int32_t *exponents,
                             const float *bias, uint32_t n_rows);
/* n_tiles tiles of a packed weight, the first of them `tile`, as FORM_F16. */
cudaError_t cuda_expand(cudaStream_t s, void *to, const cuda_matrix *w, uint32_t tile,
                        uint32_t n_tiles);
cudaError_t cuda_matmul_f32(cudaStream_t s, float *out, const cuda_matrix *w, const float *x,
                            const float *bias, uint32_t n_rows);

/* --- weights --- */

/* n_out rows (a multiple of TILE_OUT, or the matrix's last) of `stored`, as the file has them, to
 * tiles at `to`. FORM_F16 of BF16: the bits only; *max_bits grows to the largest magnitude. */
cudaError_t cuda_repack(cudaStream_t s, void *to, cuda_form form, const void *stored, dtype type,
                        uint32_t n_in, uint32_t n_out, uint32_t *max_bits);
/* bf16 bits in place to f16 after a scale by 2^exponent; n values, a multiple of 8. */
cudaError_t cuda_scale_bf16(cudaStream_t s, void *values, uint64_t n, int32_t exponent);

/* --- the other ops, as backend.h says --- */
cudaError_t cuda_launch_embed(cudaStream_t s, float *out, const void *table, dtype type, uint32_t n_in,
                              const uint32_t *tokens, float scale, uint32_t n_rows);
/* y NULL, or added to x first. cuda_launch_rms_norm_prepare: where cuda_rms_norm_prepares, out also as
 * cuda_prepare_many makes it. */
cudaError_t cuda_launch_rms_norm(cudaStream_t s, float *out, float *x, const float *y,
                                 const float *w, uint32_t n, float eps, uint32_t n_rows);
bool cuda_rms_norm_prepares(const float *out, const float *x, const float *y, const float *w,
                            uint32_t n);
cudaError_t cuda_launch_rms_norm_prepare(cudaStream_t s, float *out, float *x, const float *y,
                                         const float *w, uint32_t n, float eps, uint32_t n_rows,
                                         void *prepared, int32_t *exponents);
cudaError_t cuda_launch_rope_angles(cudaStream_t s, float *cos, float *sin,
                                    const double *frequency, double magnitude, uint32_t n_pairs,
                                    const uint32_t *position, uint32_t n_rows);
cudaError_t cuda_launch_rope(cudaStream_t s, float *x, const float *cos, const float *sin,
                             uint32_t n_rot, bool neox, uint32_t n_heads, uint32_t n_head,
                             uint32_t n_rows);
cudaError_t cuda_launch_silu_mul(cudaStream_t s, float *out, const float *gate, const float *up,
                                 uint64_t n);
cudaError_t cuda_launch_gelu_mul(cudaStream_t s, float *out, const float *gate, const float *up,
                                 uint64_t n);
cudaError_t cuda_launch_add(cudaStream_t s, float *x, const float *y, uint64_t n);
cudaError_t cuda_launch_check_finite(cudaStream_t s, uint8_t *flags, const float *x, uint32_t n,
                                     uint32_t n_rows);

/* backend.h's sample, rows of it at once; n_vocab <= SAMPLER_VOCAB_MAX. */
typedef struct {
    sample_result *out;
    const sample_row *rows; /* the host's, which the device can read: a single one is read now */
    const float *logits;
    const uint8_t *flags;
    uint32_t *tokens;  /* NULL: none */
    uint8_t *live;     /* NULL: none */
    void *scratch;     /* cuda_sample_bytes for each row, on a border of 8 */
    uint32_t n_vocab;
} cuda_sampling;
cudaError_t cuda_sample_setup(void); /* once per device */
uint64_t cuda_sample_bytes(uint32_t n_vocab);
cudaError_t cuda_launch_sample(cudaStream_t s, const cuda_sampling *a, uint32_t n_rows);

/* Host bytes that travel with the launch itself: up to PARCEL_BYTES in PARCELS_MAX pieces. */
#define PARCELS_MAX  12u
#define PARCEL_BYTES 3840u
typedef struct {
    struct {
        void *to;
        uint32_t at, bytes; /* in data */
    } piece[PARCELS_MAX];
    uint32_t n;
    uint8_t data[PARCEL_BYTES];
} cuda_parcels;
cudaError_t cuda_launch_put(cudaStream_t s, const cuda_parcels *p);

typedef struct {
    void *k, *v;
    dtype type;
    uint32_t n_kv_heads, n_head;
    const uint32_t *position, *table, *tables;
    const uint8_t *live;
} cuda_kv;

/* A rotation of heads on the way (backend.h's rope_args). cos NULL: none. */
typedef struct {
    const float *cos, *sin;
    uint32_t n_rot;
    bool neox;
} cuda_turn;

/* k turned first. cuda_turns: whether these kernels can (cuda_launch_attention_prompt and _rows: x). */
bool cuda_turns(const cuda_turn *turn, const cuda_kv *kv, const float *x, const float *k,
                const float *v);
cudaError_t cuda_launch_kv_write(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                                 const cuda_turn *turn, uint32_t n_rows);

/* n_cells 0: each block walks its rows' cells. Otherwise one block per cell, n_cells at most; results
 * meet in partial (cuda_partial_floats): the same bits. */
cudaError_t cuda_launch_attention(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                  uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows,
                                  float *partial, uint32_t n_cells);
/* An f16 cache with heads of a multiple of 8 up to 256 (attention_core.cuh): n_cells as above, 0: each
 * block walks its rows' cells. cuda_launch_attention_prompt: many rows, few tables among them, heads
 * of cuda_attention_prompt_takes. The same bits. */
cudaError_t cuda_launch_attention_f16(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                      uint32_t n_heads, float scale, uint32_t window,
                                      uint32_t n_rows, float *partial, uint32_t n_cells);
bool cuda_attention_prompt_takes(uint32_t n_head);
cudaError_t cuda_attention_prompt_setup(void);
cudaError_t cuda_launch_attention_prompt(cudaStream_t s, const cuda_prompt *p, float *out,
                                         const float *x, const cuda_kv *kv, const cuda_turn *turn,
                                         uint32_t n_heads, float scale, uint32_t window,
                                         uint32_t n_rows);
/* Few rows, each by itself, n_cells >= 1: heads of cuda_attention_rows_takes. The same bits. */
bool cuda_attention_rows_takes(uint32_t n_head);
cudaError_t cuda_launch_attention_rows(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                       const cuda_turn *turn, uint32_t n_heads, float scale,
                                       uint32_t window, uint32_t n_rows, float *partial,
                                       uint32_t n_cells);
uint64_t cuda_partial_floats(uint32_t n_rows, uint32_t n_heads, uint32_t n_head, uint32_t n_cells);
/* Blocks that an attention without cells would have, for an f16 cache as above or another. */
uint32_t cuda_attention_blocks(uint32_t n_rows, uint32_t n_heads, uint32_t n_kv_heads, bool f16);
#define ATTENTION_HEAD_MAX 1024u

#ifdef __cplusplus
}
#endif

#endif
