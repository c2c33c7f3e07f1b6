/* kernel_check.h - what the tests of the cpu kernels share: seeded values, the list of instruction
 * sets, comparison of bits. */
#ifndef TESTS_SUPPORT_KERNEL_CHECK_H
#define TESTS_SUPPORT_KERNEL_CHECK_H

#include "kernels/cpu/isa.h"

/* A counter-based generator: the same numbers on every machine. */
typedef struct {
    uint64_t state;
} seeded;

uint64_t seeded_next(seeded *s);
uint32_t seeded_below(seeded *s, uint32_t n); /* 0 .. n - 1; n > 0 */
/* (-1, 1) times 2^e, e uniform in [-spread, spread]; now and then 0 or -0. */
float seeded_float(seeded *s, int spread);

/* n such values, 64-byte aligned; free() them. */
float *seeded_floats(seeded *s, uint64_t n, int spread);

/* n random stored values of a type at an odd address; *base is what to free(). n whole blocks. */
void *seeded_stored(seeded *s, dtype type, uint64_t n, int spread, void **base);

/* Where a block of a quantised type has its f16 scales: two offsets in bytes, equal if there is
 * one. */
const uint32_t *quant_scales_at(dtype type);

/* The instruction sets of this machine, ref first. Those that it lacks are told as TAP comments,
 * once. */
#define CHECK_ISAS 4
uint32_t check_isas(const cpu_isa *out[CHECK_ISAS]);

/* isa->matmul of f32 rows for a type of any kind: quants by way of rows in fixed point. */
void check_matmul(const cpu_isa *isa, float *out, const void *w, dtype type, uint32_t n_in,
                  uint32_t n_out, const float *x, const void *bias, uint32_t n_rows,
                  uint32_t o_begin, uint32_t o_end, float *scratch);

/* n values of two arrays have the same bits; NaN equals NaN. Prints the first that differs. */
bool same_bits(const char *what, const float *a, const float *b, uint64_t n);

#endif
