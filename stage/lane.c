#include "stage/lane.h"

typedef _Atomic uint64_t line_words[2];

_Static_assert(BOUNDARY_LANE_ROWS == CAME_ROWS, "a line for each row");

peer_lane lane_of(const boundary_end *b, uint32_t slot, const slot_view *v)
{
    boundary_lanes *l = boundary_lanes_of(b);
    return (peer_lane){.line = l->slot[slot].line,
                       .slot = v->hidden,
                       .poison = &l->poison,
                       .value = (uint64_t)b->epoch << 32 | (b->count[slot] + 1)};
}

static void *here(dev_ptr p)
{
    return (void *)(uintptr_t)p.addr;
}

void lane_put_here(const peer_lane *l, const peer_rows *x)
{
    line_words *line = l->line;
    const uint32_t flag = (uint32_t)l->value, *token = here(x->tokens);
    const uint8_t *live = here(x->live), *finite = here(x->finite);
    const rows_came *came = here(x->came);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        uint32_t bad = finite != NULL ? finite[i] : 0;
        came_row r = came_leaves(came->row[i], token[i], live[i], bad, x->mark);
        atomic_store_explicit(&line[i][0], came_word(flag, r.token), memory_order_release);
        atomic_store_explicit(&line[i][1], came_word(flag, came_state(r)), memory_order_release);
    }
}

status lane_take_here(const peer_lane *l, const peer_rows *x)
{
    line_words *line = l->line;
    const uint32_t flag = (uint32_t)l->value;
    rows_came *came = here(x->came);
    uint32_t *token = here(x->tokens);
    uint8_t *live = here(x->live);
    for (uint32_t i = 0; i < x->n_rows; i++)
        for (uint32_t half = 0; half < 2; half++)
            if (atomic_load_explicit(&line[i][half], memory_order_acquire) >> 32 != flag)
                return ST_TIMEOUT;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        uint32_t state = (uint32_t)atomic_load_explicit(&line[i][1], memory_order_relaxed);
        came->row[i] =
            came_row_of((uint32_t)atomic_load_explicit(&line[i][0], memory_order_relaxed), state);
        token[i] = came->row[i].token;
        live[i] = (uint8_t)came->row[i].live;
    }
    came->gone = 0;
    return ST_OK;
}

void lane_poison(const boundary_end *b)
{
    atomic_store_explicit(&boundary_lanes_of(b)->poison, b->epoch, memory_order_release);
}
