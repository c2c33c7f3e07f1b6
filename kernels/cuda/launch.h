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

#ifdef __CUDACC__
#define BOTH_SIDES __host__ __device__
#else
#define BOTH_SIDES
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include "common/dtype.h"
#include "kernels/sample.h"

/* How a weight lies on the device: tiles of 8 outputs, each a row of units (forms.cuh).
 * FORM_ROWS: none of that: as stored, f32 rows.
 * FORM_F16: a unit is a block of 32 inputs: [4][8 outputs][8 x f16], core matrices of the tensor
 *     core. Ends are filled with zeros.
 * FORM_Q8: a unit is such a block in the order of lanes: lane l holds output l / 4 and, with
 *     q = l % 4, inputs 2q, 2q+1, 2q+8, 2q+9 and the same plus 16, what it takes as its operand; as
 *     unsigned bytes (q + 128), then the 8 scales (f16): Q8_0, Q4_0, Q5_0, IQ4_NL.
 * FORM_Q8M: the same with a minimum (f16) behind each scale: Q4_1, Q5_1.
 * FORM_Q4K, FORM_Q6K: a unit is a super-block of 256 inputs in the same order of lanes; n_in and
 *     what a segment takes of it are whole units, else the weight is held as FORM_F16.
 * FORM_K8: such a super-block in bytes, for the other types that have it: Q2_K, Q3_K, Q5_K, IQ4_XS. */
typedef enum { FORM_ROWS, FORM_F16, FORM_Q8, FORM_Q8M, FORM_Q4K, FORM_Q6K, FORM_K8 } cuda_form;
#define TILE_OUT  8u   /* outputs in a tile */
#define BLOCK_IN  32u  /* inputs in a block */
#define F16_BLOCK 512u /* bytes */
#define Q8_BLOCK  272u
#define Q8M_BLOCK 288u
#define Q4K_UNIT  1184u
#define Q6K_UNIT  1680u
#define K8_UNIT   2336u

typedef struct {
    const void *data;
    cuda_form form;
    uint32_t n_in, n_out;
    int32_t exponent; /* values are stored times 2^exponent */
} cuda_matrix;

/* Segments of a sum over n_in inputs: 1 up to 8192, then 2, 4, 8 at most. */
static inline BOTH_SIDES uint32_t cuda_segments(uint32_t n_in)
{
    return n_in <= 8192u ? 1u : n_in <= 16384u ? 2u : n_in <= 32768u ? 4u : 8u;
}

/* The power of two that brings the largest magnitude (its f32 bits) of a row or tensor to
 * [2^14, 2^15); 0 where infinity or NaN is among them, so that they stay. */
static inline BOTH_SIDES int32_t cuda_scale_exponent(uint32_t max_bits)
{
    int32_t e = (int32_t)(max_bits >> 23) - 127;
    if (e == 128 || max_bits == 0) return 0;
    return 14 - e < 126 ? 14 - e : 126;
}

static inline BOTH_SIDES uint32_t cuda_blocks_in(uint32_t n_in)
{
    return (n_in + BLOCK_IN - 1) / BLOCK_IN;
}

static inline BOTH_SIDES uint32_t cuda_unit_blocks(cuda_form form)
{
    return form >= FORM_Q4K ? 8u : 1u;
}

static inline BOTH_SIDES uint32_t cuda_unit_bytes(cuda_form form)
{
    return form == FORM_F16   ? F16_BLOCK
           : form == FORM_Q8  ? Q8_BLOCK
           : form == FORM_Q8M ? Q8M_BLOCK
           : form == FORM_Q4K ? Q4K_UNIT
           : form == FORM_Q6K ? Q6K_UNIT
                              : K8_UNIT;
}

/* Of a tile in any form but FORM_ROWS. */
static inline BOTH_SIDES uint64_t cuda_tile_bytes(cuda_form form, uint32_t n_in)
{
    return (uint64_t)(cuda_blocks_in(n_in) / cuda_unit_blocks(form)) * cuda_unit_bytes(form);
}

/* Once per device, before the kernels: shared memory limits, and what prompts need. */
cudaError_t cuda_matmul_setup(void);
typedef struct {
    void *encode_tiled; /* the driver's */
    uint32_t n_sms;
} cuda_prompt;
cudaError_t cuda_prompt_setup(cuda_prompt *p);

/* --- products; out f32 [n_rows, n_out], bias f32 [n_out] or NULL --- */

/* x f32 [n_rows, n] to f16 in the order of the tensor core's first operand, rows in groups of 16:
 * [n_rows/16][n/16][32 lanes][8 x f16], ends zero; up to 8 rows: one group of [n/16][32 lanes]
 * [4 x f16]. exponents[r]: the row was scaled by 2^that. */
cudaError_t cuda_prepare_rows(cudaStream_t s, void *prepared, int32_t *exponents, const float *x,
                              uint32_t n, uint32_t n_rows);
/* One row, from f32. */
cudaError_t cuda_matmul_one(cudaStream_t s, float *out, const cuda_matrix *w, const float *x,
                            const float *bias, uint32_t n_sms);
/* Rows of cuda_prepare_rows; the weights are read once for each 16. */
cudaError_t cuda_matmul_few(cudaStream_t s, float *out, const cuda_matrix *w, const void *prepared,
                            const int32_t *exponents, const float *bias, uint32_t n_rows,
                            uint32_t n_sms);

/* Many rows: x to f16 as core matrices, [n_rows/8][n/32][4][8 rows][8 x f16]; rows past the last are
 * left as they are. */
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

/* Device bytes that a matrix takes, the driver's rounding left out. */
uint64_t cuda_weight_bytes(dtype type, uint32_t n_in, uint32_t n_out);
/* n_out rows (a multiple of TILE_OUT, or the matrix's last) of `stored`, as the file has them, to
 * tiles at `to`. FORM_F16 of BF16: the bits only; *max_bits grows to the largest magnitude. */
cudaError_t cuda_repack(cudaStream_t s, void *to, cuda_form form, const void *stored, dtype type,
                        uint32_t n_in, uint32_t n_out, uint32_t *max_bits);
/* bf16 bits in place to f16 after a scale by 2^exponent; n values, a multiple of 8. */
cudaError_t cuda_scale_bf16(cudaStream_t s, void *values, uint64_t n, int32_t exponent);

/* --- the other ops, as backend.h says --- */
cudaError_t cuda_launch_embed(cudaStream_t s, float *out, const cuda_matrix *table,
                              const uint32_t *tokens, float scale, uint32_t n_rows);
/* y NULL, or added to x first. cuda_launch_rms_norm_prepare: where cuda_rms_norm_prepares, out also as
 * cuda_prepare_many makes it. */
cudaError_t cuda_launch_rms_norm(cudaStream_t s, float *out, float *x, const float *y,
                                 const float *w, uint32_t n, float eps, uint32_t n_rows);
bool cuda_rms_norm_prepares(const float *out, const float *w, uint32_t n);
cudaError_t cuda_launch_rms_norm_prepare(cudaStream_t s, float *out, float *x, const float *y,
                                         const float *w, uint32_t n, float eps, uint32_t n_rows,
                                         void *prepared, int32_t *exponents);
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
    const sample_row *rows;
    const float *logits;
    const uint8_t *flags;
    uint32_t *tokens;  /* NULL: none */
    uint8_t *live;     /* NULL: none */
    void *scratch;     /* cuda_sample_bytes for each row, on a border of 8 */
    uint32_t n_vocab;
} cuda_sampling;
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

cudaError_t cuda_launch_kv_write(cudaStream_t s, const cuda_kv *kv, const float *k, const float *v,
                                 uint32_t n_rows);

/* Each block walks its rows' cells. */
cudaError_t cuda_launch_attention(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                  uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows);
/* One block per cell, n_cells > 0 at most; results meet in partial (cuda_partial_floats): the same
 * bits. */
cudaError_t cuda_launch_attention_cells(cudaStream_t s, float *out, const float *x,
                                        const cuda_kv *kv, uint32_t n_heads, float scale,
                                        uint32_t window, uint32_t n_rows, float *partial,
                                        uint32_t n_cells);
/* An f16 cache with heads of a multiple of 8 up to 256 (attention_core.cuh): n_cells as above, 0: each
 * block walks its rows' cells. cuda_launch_attention_prompt: many rows, few tables among them, heads
 * of cuda_attention_prompt_takes. The same bits. */
cudaError_t cuda_launch_attention_f16(cudaStream_t s, float *out, const float *x, const cuda_kv *kv,
                                      uint32_t n_heads, float scale, uint32_t window,
                                      uint32_t n_rows, float *partial, uint32_t n_cells);
bool cuda_attention_prompt_takes(uint32_t n_head);
cudaError_t cuda_attention_prompt_setup(void);
cudaError_t cuda_launch_attention_prompt(cudaStream_t s, const cuda_prompt *p, float *out,
                                         const float *x, const cuda_kv *kv, uint32_t n_heads,
                                         float scale, uint32_t window, uint32_t n_rows);
uint64_t cuda_partial_floats(uint32_t n_rows, uint32_t n_heads, uint32_t n_head, uint32_t n_cells);
/* Blocks that an attention without cells would have, for an f16 cache as above or another. */
uint32_t cuda_attention_blocks(uint32_t n_rows, uint32_t n_heads, uint32_t n_kv_heads, bool f16);
#define ATTENTION_HEAD_MAX 1024u

#ifdef __cplusplus
}
#endif

#endif
