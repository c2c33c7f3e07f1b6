#include "stage/rounds.h"

#include <stdlib.h>
#include <string.h>

uint32_t rounds_room(uint32_t rows_max, uint32_t n_branches)
{
    return rows_max > n_branches ? rows_max : n_branches;
}

status rounds_open(rounds *out, const wire_config *c, errmsg *e)
{
    *out = (rounds){.room = rounds_room(c->rows_max, c->n_branches), .n_ctx = c->n_ctx};
    out->row = calloc(out->room, sizeof *out->row);
    out->drawn = calloc(out->room, sizeof *out->drawn);
    out->poison = calloc(out->room, sizeof *out->poison);
    if (out->row != NULL && out->drawn != NULL && out->poison != NULL) return ST_OK;
    rounds_close(out);
    return errmsg_set(e, ST_RESOURCES, "no memory for a step's rows");
}

void rounds_close(rounds *x)
{
    free(x->row);
    free(x->drawn);
    free(x->poison);
    *x = (rounds){0};
}

/* A row of a step that goes on, as far as this stage knows what the step before left it with. */
static wire_row left_as(const wire_row *row, const wire_row *before)
{
    wire_row r = *row;
    r.token = before->token;
    if ((before->flags & ROW_LIVE) == 0) r.flags &= ~ROW_LIVE;
    return r;
}

status rounds_begin(rounds *x, const step_view *v, errmsg *e)
{
    if (v->step->n_rows > x->room) {
        return errmsg_set(e, ST_PROTOCOL, "a step of %u rows: the largest has %u", v->step->n_rows,
                          x->room);
    }
    bool goes_on = (v->step->flags & STEP_GOES_ON) != 0;
    bool same = v->step->n_rows == x->n_rows && v->step->n_groups == x->n_groups &&
                memcmp(v->group_end, x->group_end, x->n_groups * sizeof *x->group_end) == 0;
    if (goes_on && !same) {
        return errmsg_set(e, ST_PROTOCOL,
                          "a step of %u rows in %u groups goes on after one of %u in %u",
                          v->step->n_rows, v->step->n_groups, x->n_rows, x->n_groups);
    }
    x->v = *v;
    x->n_rows = v->step->n_rows;
    x->n_groups = v->step->n_groups;
    memcpy(x->group_end, v->group_end, x->n_groups * sizeof *x->group_end);
    for (uint32_t i = 0; i < x->n_rows; i++)
        x->row[i] = goes_on ? left_as(&v->rows[i], &x->row[i]) : v->rows[i];
    memset(x->poison, 0, v->step->n_rows * sizeof *x->poison);
    return ST_OK;
}

static uint32_t group_begin(const rounds *x, uint32_t g)
{
    return g == 0 ? 0 : x->group_end[g - 1];
}

wire_row *rounds_group(const rounds *x, uint32_t g, uint32_t *n_rows)
{
    *n_rows = x->group_end[g] - group_begin(x, g);
    return x->row + group_begin(x, g);
}

uint32_t *rounds_drawn(const rounds *x, uint32_t g)
{
    return x->drawn + group_begin(x, g);
}

poison_mark *rounds_poison(const rounds *x, uint32_t g)
{
    return x->poison + group_begin(x, g);
}

uint32_t rounds_live(const rounds *x, uint32_t g)
{
    uint32_t n, n_live = 0;
    const wire_row *row = rounds_group(x, g, &n);
    for (uint32_t i = 0; i < n; i++) n_live += (row[i].flags & ROW_LIVE) != 0;
    return n_live;
}

uint32_t rounds_slot(const wire_step *s, uint32_t round, uint32_t g)
{
    if ((s->flags & STEP_OVERLAP) == 0) return s->slot;
    return (s->slot + round * s->n_groups + g) % 2; /* modulo 2^32 before: as good */
}

void rounds_expire(rounds *x, uint32_t round, uint32_t g)
{
    uint32_t n;
    wire_row *row = rounds_group(x, g, &n);
    for (uint32_t i = 0; i < n; i++)
        if (round + 1 >= row[i].rounds && row[i].rounds != x->v.step->rounds)
            row[i].flags &= ~ROW_LIVE;
}

static void advance(wire_row *row, uint32_t n, uint32_t n_ctx)
{
    for (uint32_t i = 0; i < n; i++) {
        row[i].session_step++;
        /* A row that fills the context is dead in the next round: it stays inside. */
        if (row[i].position + 1 < n_ctx) row[i].position++;
    }
}

void rounds_advance(rounds *x, uint32_t g)
{
    uint32_t n;
    wire_row *row = rounds_group(x, g, &n);
    advance(row, n, x->n_ctx);
}

void rounds_next(const rounds *x, uint32_t g, wire_row *out)
{
    uint32_t n;
    const wire_row *row = rounds_group(x, g, &n);
    memcpy(out, row, n * sizeof *row);
    advance(out, n, x->n_ctx);
}

static bool stops(const rounds *x, const wire_row *r, uint32_t token)
{
    if (r->stop_i == WIRE_NONE) return false;
    const wire_stops *s = &x->v.stops[r->stop_i];
    for (uint32_t i = 0; i < s->n; i++)
        if (s->id[i] == token) return true;
    return false;
}

void rounds_settle(rounds *x, uint32_t round, uint32_t g)
{
    uint32_t n;
    wire_row *row = rounds_group(x, g, &n);
    const uint32_t *drawn = rounds_drawn(x, g);
    for (uint32_t i = 0; i < n; i++) {
        if ((row[i].flags & ROW_LIVE) == 0) continue;
        bool has_more = round + 1 < row[i].rounds || row[i].rounds == x->v.step->rounds;
        bool lives = drawn[i] != TOKEN_NONE && !stops(x, &row[i], drawn[i]) && has_more;
        if (drawn[i] != TOKEN_NONE) row[i].token = drawn[i];
        if (!lives) row[i].flags &= ~ROW_LIVE;
    }
}
