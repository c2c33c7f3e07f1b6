/* tiles_amx.h - sixteen rows of fixed.h at a time against a panel, in AMX tiles of signed bytes.
 *
 * A group's products with the high and the low bytes of sixteen rows are a tile each, [16 rows, 16
 * outputs] of 32-bit sums. They come back through memory, where the next group's tiles are computed
 * while vectors add up this one's.
 *
 * The configuration is loaded by an instruction of our own: gcc 12 drops the stores into it before
 * _tile_loadconfig. */
#ifndef KERNELS_CPU_TILES_AMX_H
#define KERNELS_CPU_TILES_AMX_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/panel_v16.h"

#define TILES_ROWS_MIN 12u /* below it, sums of single rows are faster */
#define TILES_PANELS 4    /* in L1, beside a block of sixteen rows */

typedef struct {
    int32_t sums[4][16][16]; /* 2 x group's parity + (high, low); row; output */
} tiles_room;

typedef struct {
    uint8_t palette, start_row, none[14];
    uint16_t bytes_per_row[16];
    uint8_t n_rows[16];
} tiles_config;
_Static_assert(sizeof(tiles_config) == 64, "as the processor reads it");

/* Tiles: 0 to 3 sums, 4 and 5 rows' bytes, 6 weights. */
V16 void tiles_begin(dtype type)
{
    const uint32_t group = quant_group(type);
    tiles_config c = {.palette = 1};
    for (uint32_t i = 0; i < 4; i++) c.bytes_per_row[i] = 64, c.n_rows[i] = 16;
    for (uint32_t i = 4; i < 6; i++) c.bytes_per_row[i] = (uint16_t)group, c.n_rows[i] = 16;
    c.bytes_per_row[6] = 64;
    c.n_rows[6] = (uint8_t)(group / 4);
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

V16 void tiles_end(void)
{
    _tile_release();
}

/* A group's sums by tiles `high` and `low`, whose numbers end up in the text of instructions. */
#define TILES_SUM(high, low, q, bytes, unit_bytes, sums)                                           \
    do {                                                                                           \
        _tile_loadd(6, q, 64);                                                                     \
        _tile_loadd(4, bytes, unit_bytes);                                                         \
        _tile_loadd(5, (bytes) + FIXED_BLOCK, unit_bytes);                                         \
        _tile_zero(high);                                                                          \
        _tile_zero(low);                                                                           \
        _tile_dpbssd(high, 4, 6);                                                                  \
        _tile_dpbssd(low, 5, 6);                                                                   \
        _tile_stored(high, (sums)[0], 64);                                                         \
        _tile_stored(low, (sums)[1], 64);                                                          \
    } while (0)

V16 void tiles_issue(const panel *p, tiles_room *room, dtype type, const char *unit, uint32_t g)
{
    const uint32_t group = quant_group(type);
    const uint8_t *q = p->q[g * (group / 4)];
    unit += g * group;
    __asm__ volatile("" : : : "memory"); /* _tile_loadd does not say that it reads memory */
    if (g % 2 == 0)
        TILES_SUM(0, 1, q, unit, fixed_unit_bytes(type), room->sums);
    else
        TILES_SUM(2, 3, q, unit, fixed_unit_bytes(type), room->sums + 2);
}

/* The sixteen rows from r on, as far as they exist, against one panel. */
V16 void tiles_panel(const panel *p, tiles_room *room, float (*y)[TILES_PANELS][16], uint32_t j,
                     const fixed_rows *x, dtype type, uint32_t r, uint32_t i, uint32_t n)
{
    const uint32_t n_groups = n / quant_group(type), unit_bytes = fixed_unit_bytes(type);
    const char *unit = fixed_unit(x, type, r, i), *sum = unit + FIXED_SUMS_AT;
    v16 t[16];
#pragma GCC unroll 16
    for (uint32_t k = 0; k < 16; k++) t[k] = v16_zero();
    tiles_issue(p, room, type, unit, 0);
    for (uint32_t g = 0; g < n_groups; g++, sum += 4) {
        if (g + 1 < n_groups) tiles_issue(p, room, type, unit, g + 1);
        v16 s = v16_load(p->s[g]), m = v16_zero();
        if (quant_has_min(type)) m = v16_load(p->m[g]);
#pragma GCC unroll 16
        for (uint32_t k = 0; k < 16; k++) {
            w16 high = w16_load(room->sums[g % 2 * 2][k]);
            w16 low = w16_load(room->sums[g % 2 * 2 + 1][k]);
            t[k] = v16_fma(s, w16_float(w16_add(low, w16_up(high, 8))), t[k]);
            if (quant_has_min(type))
                t[k] = v16_fma(m, v16_set1(load_f32(sum + k * unit_bytes)), t[k]);
        }
    }
    const uint32_t n_rows = x->n_rows - r < 16 ? x->n_rows - r : 16;
#pragma GCC unroll 16
    for (uint32_t k = 0; k < 16; k++) {
        if (k >= n_rows) continue;
        v16 by = v16_set1(load_f32(unit + k * unit_bytes + fixed_scale_at(type)));
        v16_store(y[r + k][j], v16_fma(by, t[k], v16_load(y[r + k][j])));
    }
}

V16 void tiles_rows(const panel *p, uint32_t n_panels, tiles_room *room,
                    float (*y)[TILES_PANELS][16], const fixed_rows *x, dtype type, uint32_t i,
                    uint32_t n)
{
    for (uint32_t r = 0; r < x->n_rows; r += 16) {
        for (uint32_t j = 0; j < n_panels; j++)
            tiles_panel(&p[j], room, y, j, x, type, r, i, n);
    }
}

#endif
