/* matmul_v16.h - body of matmul_avx2.c and matmul_avx512.c, written in the v16 operations of the
 * header included before this one.
 *
 * Two ways through one law (isa.h: every output has sixteen lanes of its own, so how outputs are
 * tiled cannot be seen in the bits):
 *
 * Few rows (decode): matmul_decode_v16.h.
 *
 * Many rows (prompt): blocks in three levels. DEPTH values of TILE_OUTS weight rows are converted
 * into a panel that stays in L1 and meets BLOCK_ROWS rows of x in tiles of TILE_OUTS x TILE_ROWS
 * accumulators. Between two depths the lanes are parked in scratch, which changes no bit.
 * GROUP_OUTS outputs share one pass over the rows' DEPTH values, so that x comes from L2. Bound by
 * the fused multiply-add units. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/matmul_decode_v16.h"
#include "kernels/cpu/v16_load.h"

#define DECODE_ROWS_MAX 16u /* above it, converting once for all rows pays */
#define BLOCK_ROWS 96u
#define GROUP_OUTS 48u
#define DEPTH 512u
#define PANEL_FLOATS (TILE_OUTS * DEPTH)
_Static_assert(GROUP_OUTS % 16 == 0 && GROUP_OUTS % TILE_OUTS == 0, "whole tiles and vectors");
_Static_assert(PANEL_FLOATS + BLOCK_ROWS * GROUP_OUTS * 16 <= CPU_SCRATCH_FLOATS, "scratch");

V16 void store_outputs(const product *p, uint32_t r, uint32_t o, v16 y, uint32_t n)
{
    float *out = p->out + (uint64_t)r * p->n_out + o;
    const char *bias = p->bias + 4ull * o;
    if (n == 16) {
        v16_store(out, p->bias == NULL ? y : v16_add(y, v16_load(bias)));
    } else {
        v16_store_part(out, p->bias == NULL ? y : v16_add(y, v16_load_part(bias, n)), n);
    }
}

/* Convert n values, from value i on, of the weight rows [o, o + n_outs) into panel [n / 16 rounded
 * up, TILE_OUTS, 16]; what there is no weight for is 0. */
V16 void fill_panel(const product *p, dtype type, float *panel, uint32_t o, uint32_t n_outs,
                    uint32_t i, uint32_t n)
{
    uint32_t n_vectors = (n + 15) / 16;
    for (uint32_t j = 0; j < TILE_OUTS; j++) {
        float *to = panel + 16 * j;
        if (j >= n_outs) {
            for (uint32_t c = 0; c < n_vectors; c++) v16_store(to + 16 * TILE_OUTS * c, v16_zero());
            continue;
        }
        const char *w = p->w + (o + j) * p->row_bytes;
        uint32_t c = 0;
        w += i / 32 * bytes_of_32(type);
        for (; 16 * c + 32 <= n; c += 2, w += bytes_of_32(type)) {
            v16_store(to + 16 * TILE_OUTS * c, v16_load_half(type, w, 0));
            v16_store(to + 16 * TILE_OUTS * (c + 1), v16_load_half(type, w, 1));
        }
        for (; c < n_vectors; c++, w += bytes_of_32(type) / 2) {
            uint32_t rest = n - 16 * c;
            v16_store(to + 16 * TILE_OUTS * c, rest >= 16 ? v16_load_half(type, w, 0)
                                                          : v16_load_stored_part(type, w, rest));
        }
    }
}

/* The tile's lanes go on over n values: panel against n_rows rows of x. lanes: row k, output j at
 * lanes[(k * GROUP_OUTS + j) * 16]. */
V16 void tile(float *lanes, const float *panel, const float *x, uint32_t n_in, uint32_t n,
              const uint32_t n_rows, bool first)
{
    v16 acc[TILE_ROWS][TILE_OUTS];
#pragma GCC unroll 8
    for (uint32_t k = 0; k < n_rows; k++) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < TILE_OUTS; j++)
            acc[k][j] = first ? v16_zero() : v16_load(lanes + (k * GROUP_OUTS + j) * 16);
    }
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16, panel += 16 * TILE_OUTS) {
        v16 xv[TILE_ROWS];
#pragma GCC unroll 8
        for (uint32_t k = 0; k < n_rows; k++) {
            xv[k] = v16_load(x + (uint64_t)k * n_in + i);
            /* The next tile's rows lie pages away, where no prefetcher looks. */
            _mm_prefetch((const char *)(x + (uint64_t)(k + n_rows) * n_in + i), _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (uint32_t j = 0; j < TILE_OUTS; j++) {
            v16 wv = v16_hold(v16_load(panel + 16 * j));
#pragma GCC unroll 8
            for (uint32_t k = 0; k < n_rows; k++) acc[k][j] = v16_fma(wv, xv[k], acc[k][j]);
        }
    }
    if (i < n) {
        v16_mask m = v16_mask_range(0, n - i);
#pragma GCC unroll 8
        for (uint32_t k = 0; k < n_rows; k++) {
            v16 xv = v16_load_part(x + (uint64_t)k * n_in + i, n - i);
#pragma GCC unroll 8
            for (uint32_t j = 0; j < TILE_OUTS; j++)
                acc[k][j] = v16_select(m, v16_fma(v16_load(panel + 16 * j), xv, acc[k][j]),
                                       acc[k][j]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t k = 0; k < n_rows; k++) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < TILE_OUTS; j++)
            v16_store(lanes + (k * GROUP_OUTS + j) * 16, acc[k][j]);
    }
}

static void tiles(float *lanes, const float *panel, const float *x, uint32_t n_in, uint32_t n,
                  uint32_t n_rows, bool first)
{
    uint32_t k = 0;
    for (; k + TILE_ROWS <= n_rows; k += TILE_ROWS)
        tile(lanes + k * GROUP_OUTS * 16, panel, x + (uint64_t)k * n_in, n_in, n, TILE_ROWS, first);
    for (; k < n_rows; k++)
        tile(lanes + k * GROUP_OUTS * 16, panel, x + (uint64_t)k * n_in, n_in, n, 1, first);
}

/* Outputs [o, o + n_outs) of rows [r, r + n_rows), at most a group and a block of them. */
V16 void block(const product *p, dtype type, uint32_t r, uint32_t n_rows, uint32_t o,
               uint32_t n_outs, float *scratch)
{
    float *panel = scratch, *lanes = scratch + PANEL_FLOATS;
    for (uint32_t i = 0; i < p->n_in; i += DEPTH) {
        uint32_t n = p->n_in - i < DEPTH ? p->n_in - i : DEPTH;
        for (uint32_t j = 0; j < n_outs; j += TILE_OUTS) {
            uint32_t n_tile = n_outs - j < TILE_OUTS ? n_outs - j : TILE_OUTS;
            fill_panel(p, type, panel, o + j, n_tile, i, n);
            tiles(lanes + j * 16, panel, p->x + (uint64_t)r * p->n_in + i, p->n_in, n, n_rows,
                  i == 0);
        }
    }
    for (uint32_t k = 0; k < n_rows; k++) {
        for (uint32_t j = 0; j < n_outs; j += 16) {
            uint32_t n = n_outs - j < 16 ? n_outs - j : 16;
            v16 acc[16];
            for (uint32_t l = 0; l < 16; l++)
                acc[l] = l < n ? v16_load(lanes + (k * GROUP_OUTS + j + l) * 16) : v16_zero();
            store_outputs(p, r + k, o + j, v16_reduce16(acc), n);
        }
    }
}

V16 void matmul_blocks(const product *p, dtype type, uint32_t o_begin, uint32_t o_end,
                       float *scratch)
{
    for (uint32_t r = 0; r < p->n_rows; r += BLOCK_ROWS) {
        uint32_t n_rows = p->n_rows - r < BLOCK_ROWS ? p->n_rows - r : BLOCK_ROWS;
        for (uint32_t o = o_begin; o < o_end; o += GROUP_OUTS)
            block(p, type, r, n_rows, o, o_end - o < GROUP_OUTS ? o_end - o : GROUP_OUTS, scratch);
    }
}

V16 void matmul_floats(const product *p, dtype type, uint32_t o_begin, uint32_t o_end,
                       float *scratch)
{
    switch (p->n_rows) {
    case 1:
        decode(p, type, 1, DECODE_OUTS_1, o_begin, o_end);
        return;
    case 2:
        decode(p, type, 2, DECODE_OUTS_2, o_begin, o_end);
        return;
    case 3:
        decode(p, type, 3, DECODE_OUTS_3, o_begin, o_end);
        return;
    case 4:
        decode(p, type, 4, DECODE_OUTS_4, o_begin, o_end);
        return;
    }
    if (p->n_rows <= DECODE_ROWS_MAX) {
        uint32_t whole = o_end - (o_end - o_begin) % DECODE_OUTS_4;
        decode_many(p, type, DECODE_OUTS_4, o_begin, whole);
        decode_many(p, type, 1, whole, o_end);
        return;
    }
    matmul_blocks(p, type, o_begin, o_end, scratch);
}

/* One function per type, so that each is optimised with its type as a constant. */
#define MATMUL_OF_TYPE(type)                                                                       \
    static void matmul_##type(const product *p, uint32_t o_begin, uint32_t o_end, float *scratch)  \
    {                                                                                              \
        matmul_floats(p, type, o_begin, o_end, scratch);                                           \
    }
#define MATMUL_TYPES(X) X(DT_F32) X(DT_F16) X(DT_BF16)
MATMUL_TYPES(MATMUL_OF_TYPE)

void ISA_NAME(matmul, V16_ISA)(float *out, const void *w, dtype type, uint32_t n_in, uint32_t n_out,
                               const float *x, const void *bias, uint32_t n_rows, uint32_t o_begin,
                               uint32_t o_end, float *scratch)
{
    product p = {.out = out, .w = w, .x = x, .bias = bias, .row_bytes = dtype_bytes(type, n_in),
                 .n_in = n_in, .n_out = n_out, .n_rows = n_rows};
    if (n_rows == 0) return;
    switch (type) {
#define MATMUL_CASE(type)                                                                          \
    case type:                                                                                     \
        matmul_##type(&p, o_begin, o_end, scratch);                                                \
        return;
        MATMUL_TYPES(MATMUL_CASE)
    default:
        CHECK(!"a type that is no float");
    }
}
