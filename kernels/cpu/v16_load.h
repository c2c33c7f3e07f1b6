/* v16_load.h - stored floats (F32, F16, BF16) as v16. Include one of the v16_<isa>.h before. `type`
 * is a constant wherever these are called, so that the choice costs nothing. */
#ifndef KERNELS_CPU_V16_LOAD_H
#define KERNELS_CPU_V16_LOAD_H

#include "common/dtype.h"

/* Stored bytes of 32 values. */
V16 uint64_t bytes_of_32(dtype type)
{
    return type == DT_F32 ? 128 : 64;
}

/* Vector `half` (0, 1) of the 32 values at p. */
V16 v16 v16_load_half(dtype type, const char *p, uint32_t half)
{
    switch (type) {
    case DT_F32:
        return v16_load(p + 64 * half);
    case DT_F16:
        return v16_load_f16(p + 32 * half);
    default: /* BF16 */
        return v16_load_bf16(p + 32 * half);
    }
}

/* The first n < 16 values at p, the rest 0. */
V16 v16 v16_load_stored_part(dtype type, const char *p, uint32_t n)
{
    switch (type) {
    case DT_F32:
        return v16_load_part(p, n);
    case DT_F16:
        return v16_load_f16_part(p, n);
    default: /* BF16 */
        return v16_load_bf16_part(p, n);
    }
}

#endif
