/* Blocks of quantised types: known vectors as f32, products with the same bits from all instruction
 * sets, and what hostile scales give. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/quant.h"
#include "tests/support/kernel_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>

#define BLOCK_BYTES_MAX 256u

static const cpu_isa *isas[CHECK_ISAS];
static uint32_t n_isas;
static float *scratch;

/* Block bytes from the seed, f16 scales from `scale`. */
static void random_block(uint8_t *p, dtype type, seeded *s, const uint16_t scale[2])
{
    for (uint32_t i = 0; i < quant_block_bytes(type); i++) p[i] = (uint8_t)seeded_next(s);
    for (uint32_t i = 2; i-- > 0;) memcpy(p + quant_scales_at(type)[i], &scale[i], 2);
}

/* The block is random bytes seeded by the type's number, with d = 0.01171875 and the second scale
 * -0.3125. Values and their mix were made by an independent program (the gguf package for Python);
 * such scales make every operation exact. */
static const struct {
    dtype type;
    uint64_t mix;
    struct {
        uint32_t i;
        float value;
    } some[5];
} known[] = {
    {DT_Q4_0, 0xd9513b96b473dff2ull,
     {{0, 0.08203125f}, {1, -0.046875f}, {15, -0.046875f}, {16, -0.0703125f},
      {31, 0.05859375f}}},
    {DT_Q4_1, 0xc1b2e301593b8f30ull,
     {{0, -0.2421875f}, {1, -0.23046875f}, {15, -0.16015625f}, {16, -0.20703125f},
      {31, -0.2890625f}}},
    {DT_Q5_0, 0x9070153beea42976ull,
     {{0, -0.140625f}, {1, 0.0f}, {15, 0.0f}, {16, 0.10546875f},
      {31, -0.1640625f}}},
    {DT_Q5_1, 0x94d71ac5044e4a65ull,
     {{0, -0.30078125f}, {1, -0.01953125f}, {15, -0.13671875f}, {16, -0.2421875f},
      {31, 0.05078125f}}},
    {DT_Q8_0, 0x3ed192ea1dc3365full,
     {{0, 0.01171875f}, {1, -0.890625f}, {15, 0.99609375f}, {16, -0.28125f},
      {31, -0.796875f}}},
    {DT_Q2_K, 0xc8c7f63959c621b9ull,
     {{0, 3.75f}, {17, 1.4609375f}, {47, 0.9375f}, {100, 4.375f}, {130, 0.90625f}}},
    {DT_Q3_K, 0x90d7c594bde2f539ull,
     {{0, -0.2109375f}, {17, -0.046875f}, {47, -1.0546875f}, {100, 0.421875f}, {130, 0.19921875f}}},
    {DT_Q4_K, 0x3853a0a26df8dca2ull,
     {{0, 9.3984375f}, {17, 6.1640625f}, {47, 16.109375f}, {100, 5.9296875f}, {130, 4.41015625f}}},
    {DT_Q5_K, 0xeba44c4b4a6e1f9eull,
     {{0, 6.0546875f}, {17, 4.4140625f}, {47, 16.921875f}, {100, 7.734375f}, {130, 7.421875f}}},
    {DT_Q6_K, 0xbead91efcfc99a9full,
     {{0, -10.6640625f}, {17, -9.140625f}, {47, 5.4140625f}, {100, 0.0f}, {130, 11.578125f}}},
    {DT_IQ4_NL, 0xc2671acf77ff567dull,
     {{0, -0.1171875f}, {1, 0.62109375f}, {15, -0.76171875f}, {16, 1.32421875f},
      {31, 0.01171875f}}},
    {DT_IQ4_XS, 0x1b8e41c956f6061dull,
     {{0, 6.46875f}, {17, -3.28125f}, {47, 14.28515625f}, {100, 20.71875f}, {130, -5.15625f}}},
};

static uint64_t mix_of(const float *x, uint32_t n)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ f32_bits(x[i])) * 0xbf58476d1ce4e5b9ull;
        h ^= h >> 29;
    }
    return h;
}

static void blocks_are_as_known(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < sizeof known / sizeof *known; t++) {
        dtype type = known[t].type;
        const dtype_info *info = dtype_get(type);
        uint8_t block[BLOCK_BYTES_MAX + 1];
        float x[256];
        seeded s = {(uint64_t)type};
        assert_int_equal(info->block_values, quant_block_values(type));
        assert_int_equal(info->block_bytes, quant_block_bytes(type));
        random_block(block + 1, type, &s, (const uint16_t[]){0x2200, 0xb500});
        for (uint32_t i = 0; i < n_isas; i++) {
            isas[i]->to_f32(x, block + 1, type, info->block_values);
            for (uint32_t k = 0; k < 5; k++) {
                if (x[known[t].some[k].i] == known[t].some[k].value) continue;
                fail_msg("%s %s: value %u is %g, should be %g", isas[i]->name, info->name,
                         known[t].some[k].i, (double)x[known[t].some[k].i],
                         (double)known[t].some[k].value);
            }
            if (mix_of(x, info->block_values) != known[t].mix)
                fail_msg("%s %s: other values than known", isas[i]->name, info->name);
        }
    }
}

/* One row of weights: all instruction sets give the reference's products, of one row of activations
 * and of many. */
static void assert_agree(dtype type, const uint8_t *p, uint32_t n_blocks, seeded *s)
{
    enum { ROWS = 17 };
    uint32_t n = n_blocks * quant_block_values(type);
    float want[ROWS], got[ROWS], *x = seeded_floats(s, (uint64_t)ROWS * n, 3);
    check_matmul(isas[0], want, p, type, n, 1, x, NULL, ROWS, 0, 1, scratch);
    for (uint32_t i = 1; i < n_isas; i++) {
        check_matmul(isas[i], got, p, type, n, 1, x, NULL, ROWS, 0, 1, scratch);
        assert_true(same_bits(dtype_get(type)->name, want, got, ROWS));
        check_matmul(isas[i], got, p, type, n, 1, x, NULL, 1, 0, 1, scratch);
        assert_true(same_bits(dtype_get(type)->name, want, got, 1));
    }
    free(x);
}

static void instruction_sets_agree(void **state)
{
    (void)state;
    seeded s = {91};
    for (uint32_t t = 0; t < sizeof known / sizeof *known; t++) {
        for (uint32_t round = 0; round < 8; round++) {
            void *base;
            const uint8_t *p = seeded_stored(&s, known[t].type, 256 * 9, 12, &base);
            assert_agree(known[t].type, p, 256 * 9 / quant_block_values(known[t].type), &s);
            free(base);
        }
    }
}

/* Zeros of both signs, the smallest and largest, infinities and NaN as scales, on random quants and
 * on bytes all 0 and all ones. */
static void extreme_scales_agree(void **state)
{
    (void)state;
    static const uint16_t scale[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff,
                                     0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfd01, 0x3c00};
    const uint32_t n = sizeof scale / sizeof *scale;
    seeded s = {92};
    for (uint32_t t = 0; t < sizeof known / sizeof *known; t++) {
        for (uint32_t i = 0; i < n * n * 3; i++) {
            uint8_t block[BLOCK_BYTES_MAX];
            const uint16_t two[2] = {scale[i % n], scale[i / n % n]};
            random_block(block, known[t].type, &s, two);
            if (i / n / n > 0) {
                memset(block, i / n / n == 1 ? 0 : 0xff, sizeof block);
                for (uint32_t k = 2; k-- > 0;)
                    memcpy(block + quant_scales_at(known[t].type)[k], &two[k], 2);
            }
            assert_agree(known[t].type, block, 1, &s);
        }
    }
}

/* What the reference says of them: NaN stays NaN everywhere; infinity times 0 is NaN, too. */
static void extreme_scales_are_defined(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < sizeof known / sizeof *known; t++) {
        dtype type = known[t].type;
        uint32_t n = quant_block_values(type);
        static const uint16_t nan2[2] = {0x7e00, 0x7e00}, zero2[2] = {0, 0}, inf2[2] = {0x7c00, 0};
        uint8_t block[BLOCK_BYTES_MAX];
        float x[256];
        seeded s = {93};
        random_block(block, type, &s, nan2);
        cpu_isa_ref.to_f32(x, block, type, n);
        for (uint32_t i = 0; i < n; i++) assert_true(x[i] != x[i]);
        random_block(block, type, &s, zero2);
        cpu_isa_ref.to_f32(x, block, type, n);
        for (uint32_t i = 0; i < n; i++) assert_true(x[i] == 0);
        random_block(block, type, &s, inf2);
        cpu_isa_ref.to_f32(x, block, type, n);
        for (uint32_t i = 0; i < n; i++) assert_true(!isfinite(x[i]));
    }
}

int main(void)
{
    tap_begin(120);
    n_isas = check_isas(isas);
    scratch = aligned_alloc(64, CPU_SCRATCH_FLOATS * sizeof *scratch);
    CHECK(scratch != NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_as_known),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(extreme_scales_agree),
        cmocka_unit_test(extreme_scales_are_defined),
    };
    int failed = cmocka_run_group_tests_name("quant", tests, NULL, NULL);
    free(scratch);
    return failed;
}
