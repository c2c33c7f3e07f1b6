/* tiles_none.h - for instruction sets without tiles: no number of rows is enough for them. */
#ifndef KERNELS_CPU_TILES_NONE_H
#define KERNELS_CPU_TILES_NONE_H

#include "kernels/cpu/panel_v16.h"

#define TILES_ROWS_MIN UINT32_MAX
#define TILES_PANELS 2

typedef struct {
    char none;
} tiles_room;

V16 void tiles_begin(dtype type)
{
    (void)type;
}

V16 void tiles_rows(const panel *p, uint32_t n_panels, tiles_room *room,
                    float (*y)[TILES_PANELS][16], const fixed_rows *x, dtype type, uint32_t i,
                    uint32_t n)
{
    (void)p, (void)n_panels, (void)room, (void)y, (void)x, (void)type, (void)i, (void)n;
}

V16 void tiles_end(void)
{
}

#endif
