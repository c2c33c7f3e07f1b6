/* dtype.h - the stored types of tensors: one table, numbered as GGUF numbers them.
 *
 * A type is known (it has a row here: its name and block are right) and may be supported (products
 * straight from the stored form exist). What is not supported is refused by name, never read as
 * something else. Source of the numbers and block sizes: the GGUF specification. */
#ifndef COMMON_DTYPE_H
#define COMMON_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_Q4_0 = 2,
    DT_Q4_1 = 3,
    DT_Q5_0 = 6,
    DT_Q5_1 = 7,
    DT_Q8_0 = 8,
    DT_Q8_1 = 9,
    DT_Q2_K = 10,
    DT_Q3_K = 11,
    DT_Q4_K = 12,
    DT_Q5_K = 13,
    DT_Q6_K = 14,
    DT_Q8_K = 15,
    DT_IQ2_XXS = 16,
    DT_IQ2_XS = 17,
    DT_IQ3_XXS = 18,
    DT_IQ1_S = 19,
    DT_IQ4_NL = 20,
    DT_IQ3_S = 21,
    DT_IQ2_S = 22,
    DT_IQ4_XS = 23,
    DT_I8 = 24,
    DT_I16 = 25,
    DT_I32 = 26,
    DT_I64 = 27,
    DT_F64 = 28,
    DT_IQ1_M = 29,
    DT_BF16 = 30,
    DT_TQ1_0 = 34,
    DT_TQ2_0 = 35,
    DT_MXFP4 = 39,
    DT_COUNT = 40
} dtype;

typedef struct {
    const char *name;       /* NULL: no such type */
    uint32_t block_values;  /* values in one block */
    uint32_t block_bytes;   /* stored bytes of one block */
    bool supported;         /* weights of this type can be used */
} dtype_info;

/* The row of type number t, NULL when no type has that number. */
const dtype_info *dtype_get(uint32_t t);

/* Stored bytes of n values of type t; n must be a multiple of the block. */
uint64_t dtype_bytes(dtype t, uint64_t n);

#endif
