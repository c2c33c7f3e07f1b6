/* cuda_form.h - how a weight lies on a CUDA device, as far as bytes go: one formula for the plan,
 * which links no CUDA, and for the allocations. Read by C and by CUDA C++. */
#ifndef COMMON_CUDA_FORM_H
#define COMMON_CUDA_FORM_H

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
 * FORM_K8: such a super-block in bytes, for the other types that have it: Q2_K, Q3_K, Q5_K,
 * IQ4_XS. */
typedef enum { FORM_ROWS, FORM_F16, FORM_Q8, FORM_Q8M, FORM_Q4K, FORM_Q6K, FORM_K8 } cuda_form;
#define TILE_OUT  8u   /* outputs in a tile */
#define BLOCK_IN  32u  /* inputs in a block */
#define F16_BLOCK 512u /* bytes */
#define Q8_BLOCK  272u
#define Q8M_BLOCK 288u
#define Q4K_UNIT  1184u
#define Q6K_UNIT  1680u
#define K8_UNIT   2336u

/* Segments of a sum over n_in inputs: 1 up to 8192, then 2, 4, 8 at most. */
static inline BOTH_SIDES uint32_t cuda_segments(uint32_t n_in)
{
    return n_in <= 8192u ? 1u : n_in <= 16384u ? 2u : n_in <= 32768u ? 4u : 8u;
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

/* The form of a matrix with rows of n_in values of a type. Super-blocks: where no segment ends
 * inside one. */
cuda_form cuda_form_of(dtype type, uint32_t n_in);

/* Of n_out rows on the device. */
uint64_t cuda_form_bytes(dtype type, uint32_t n_in, uint32_t n_out);

#ifdef __cplusplus
}
#endif

#endif
