#include "common/cuda_form.h"

cuda_form cuda_form_of(dtype type, uint32_t n_in)
{
    uint32_t n_blocks = cuda_blocks_in(n_in), n_segments = cuda_segments(n_in);
    uint32_t segment_blocks = (n_blocks + n_segments - 1) / n_segments;
    bool whole = n_in % 256 == 0 && (n_segments == 1 || segment_blocks % 8 == 0);
    switch (type) {
    case DT_F32:
        return FORM_ROWS;
    case DT_F16:
    case DT_BF16:
        return FORM_F16;
    case DT_Q4_1:
    case DT_Q5_1:
        return FORM_Q8M;
    case DT_Q4_K:
        return whole ? FORM_Q4K : FORM_F16;
    case DT_Q6_K:
        return whole ? FORM_Q6K : FORM_F16;
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q5_K:
    case DT_IQ4_XS:
        return whole ? FORM_K8 : FORM_F16;
    default: /* Q8_0, Q4_0, Q5_0, IQ4_NL */
        return FORM_Q8;
    }
}

uint64_t cuda_form_bytes(dtype type, uint32_t n_in, uint32_t n_out)
{
    uint64_t n_tiles = ((uint64_t)n_out + TILE_OUT - 1) / TILE_OUT;
    cuda_form form = cuda_form_of(type, n_in);
    if (form == FORM_ROWS) return n_tiles * TILE_OUT * dtype_bytes(type, n_in);
    return n_tiles * cuda_tile_bytes(form, n_in);
}
