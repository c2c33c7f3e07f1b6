#include "tests/support/kernel_check.h"


#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t seeded_next(seeded *s)
{
    uint64_t z = s->state += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint32_t seeded_below(seeded *s, uint32_t n)
{
    return (uint32_t)((seeded_next(s) >> 32) * n >> 32);
}

float seeded_float(seeded *s, int spread)
{
    uint64_t u = seeded_next(s);
    if (u % 61 == 0) return u & 64 ? 0.0f : -0.0f;
    float m = (float)(int32_t)(u >> 32) * 0x1p-31f;
    return ldexpf(m, (int)seeded_below(s, 2 * (uint32_t)spread + 1) - spread);
}

float *seeded_floats(seeded *s, uint64_t n, int spread)
{
    float *x = aligned_alloc(64, (n * sizeof *x + 64) / 64 * 64);
    CHECK(x != NULL);
    for (uint64_t i = 0; i < n; i++) x[i] = seeded_float(s, spread);
    return x;
}

const uint32_t *quant_scales_at(dtype type)
{
    static const uint32_t at[DT_COUNT][2] = {
        [DT_Q4_1] = {0, 2}, [DT_Q5_1] = {0, 2},      [DT_Q2_K] = {80, 82},   [DT_Q4_K] = {0, 2},
        [DT_Q5_K] = {0, 2}, [DT_Q3_K] = {108, 108}, [DT_Q6_K] = {208, 208},
    };
    return at[type];
}

void *seeded_stored(seeded *s, dtype type, uint64_t n, int spread, void **base)
{
    uint64_t bytes = dtype_bytes(type, n);
    char *p = malloc(bytes + 1);
    CHECK(p != NULL);
    *base = p++;
    if (quant_is(type)) {
        const uint32_t *at = quant_scales_at(type), block = dtype_get(type)->block_bytes;
        for (uint64_t i = 0; i < bytes; i++) p[i] = (char)seeded_next(s);
        for (uint64_t b = 0; b < bytes; b += block) {
            for (uint32_t i = 0; i < 2; i++) {
                float d = seeded_float(s, spread) * 0x1p-7f;
                cpu_isa_ref.from_f32(p + b + at[i], DT_F16, &d, 1);
            }
        }
    } else {
        float *x = seeded_floats(s, n, spread);
        cpu_isa_ref.from_f32(p, type, x, n);
        free(x);
    }
    return p;
}

uint32_t check_isas(const cpu_isa *out[CHECK_ISAS])
{
    static const char *const names[CHECK_ISAS] = {"ref", "avx2", "avx512", "amx"};
    static bool told;
    uint32_t n = 0;
    for (int i = 0; i < CHECK_ISAS; i++) {
        const cpu_isa *isa = cpu_isa_get(names[i]);
        if (isa != NULL)
            out[n++] = isa;
        else if (!told)
            printf("# skipped: this processor does not run %s\n", names[i]);
    }
    told = true;
    return n;
}

void check_matmul(const cpu_isa *isa, float *out, const void *w, dtype type, uint32_t n_in,
                  uint32_t n_out, const float *x, const void *bias, uint32_t n_rows,
                  uint32_t o_begin, uint32_t o_end, float *scratch)
{
    if (!quant_is(type)) {
        isa->matmul(out, w, type, n_in, n_out, x, bias, n_rows, o_begin, o_end, scratch);
        return;
    }
    uint64_t bytes = fixed_bytes(type, n_in, n_rows);
    fixed_rows rows = {aligned_alloc(64, bytes), n_in, n_rows};
    CHECK(rows.units != NULL);
    memset(rows.units, 0xa5, bytes);
    isa->fixed_rows(&rows, x, type, 0, n_rows);
    isa->matmul_fixed(out, w, type, n_out, &rows, bias, o_begin, o_end, scratch);
    free(rows.units);
}

bool same_bits(const char *what, const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) == 0 || (a[i] != a[i] && b[i] != b[i])) continue;
        printf("# %s: value %llu of %llu is %a, should be %a\n", what, (unsigned long long)i,
               (unsigned long long)n, (double)b[i], (double)a[i]);
        return false;
    }
    return true;
}
