/* rows.c - a step's rows: every field checked, then what the device needs of them put there. */
#include "stage/stage_impl.h"

#include <stddef.h>
#include <string.h>

_Static_assert(sizeof(rows_came) == PLAN_CAME_BYTES && CAME_ROWS == WIRE_AHEAD_ROWS, "as planned");

static status refuse(const char *field, uint32_t value, uint32_t bound, uint32_t row_i, errmsg *e)
{
    return errmsg_set(e, ST_PROTOCOL, "row %u: %s %u is not below %u", row_i, field, value, bound);
}

static status check_row(stage *s, const wire_row *r, uint32_t row_i, uint32_t n_samplers, errmsg *e)
{
    const uint32_t known = ROW_LIVE | ROW_LOGITS | ROW_SAMPLE;
    const wire_config *c = &s->config;
    if ((r->flags & ~known) != 0) {
        return errmsg_set(e, ST_PROTOCOL, "row %u: flags %#x hold unknown ones", row_i, r->flags);
    }
    if (r->branch >= c->n_branches) return refuse("branch", r->branch, c->n_branches, row_i, e);
    if (r->position >= c->n_ctx) return refuse("position", r->position, c->n_ctx, row_i, e);
    if (r->token >= s->m->n_vocab) return refuse("token", r->token, s->m->n_vocab, row_i, e);
    if ((r->flags & ROW_SAMPLE) != 0 && r->sampler_i >= n_samplers) {
        return refuse("sampler", r->sampler_i, n_samplers, row_i, e);
    }
    bool in_ring = r->readback == WIRE_NONE && (r->flags & ROW_LOGITS) == 0;
    if ((r->flags & (ROW_LOGITS | ROW_SAMPLE)) != 0 && !in_ring) {
        uint32_t *seen = HOST(s, uint32_t, readback_seen);
        if (r->readback >= c->n_readback) {
            return refuse("readback row", r->readback, c->n_readback, row_i, e);
        }
        if (seen[r->readback] == s->kv.step) {
            return errmsg_set(e, ST_PROTOCOL, "row %u: readback row %u twice in one step", row_i,
                              r->readback);
        }
        seen[r->readback] = s->kv.step;
    }
    return (r->flags & ROW_LIVE) != 0 ? kv_row_check(&s->kv, r, row_i, e) : ST_OK;
}

/* Fill the host's pieces; a dead row reads position 0 of block 0, whose results nobody uses.
 * Returns the number of table entries. */
static uint32_t place_rows(stage *s, const wire_row *rows, uint32_t n_rows)
{
    uint32_t *tables = HOST(s, uint32_t, tables), n_used = 0, dead_table = WIRE_NONE;
    for (uint32_t i = 0; i < n_rows; i++) {
        bool live = (rows[i].flags & ROW_LIVE) != 0;
        if (!live && dead_table == WIRE_NONE) {
            dead_table = n_used++;
            tables[dead_table] = 0;
        }
        uint32_t at[KV_POOLS] = {dead_table, dead_table};
        if (live) kv_row_place(&s->kv, &rows[i], tables, &n_used, at);
        for (uint32_t k = 0; k < s->n_kinds; k++)
            HOST(s, uint32_t, table)[k * s->config.rows_max + i] = at[k];
        HOST(s, uint32_t, tokens)[i] = live ? rows[i].token : 0;
        HOST(s, uint32_t, position)[i] = live ? rows[i].position : 0;
        HOST(s, uint8_t, live)[i] = live ? 1 : 0;
    }
    return n_used;
}

/* What of a row the device finds by itself (stage_rows_ahead). */
typedef enum { FROM_HOST, FROM_DEVICE } token_source;

static status upload_rows(stage *s, uint32_t n_rows, uint32_t n_tables, token_source source,
                          errmsg *e)
{
    upload_piece piece[5 + LAYER_KINDS];
    uint32_t n = 0;
#define PIECE(name, bytes)                                                                         \
    piece[n++] = (upload_piece){SCRATCH(s, name), HOST(s, void, name), (bytes)}
    if (source == FROM_HOST) {
        PIECE(tokens, n_rows * sizeof(uint32_t));
        PIECE(live, n_rows);
        uint32_t n_came = n_rows < CAME_ROWS ? n_rows : CAME_ROWS;
        piece[n++] = (upload_piece){SCRATCH(s, came), HOST(s, void, none_came),
                                    offsetof(rows_came, row) + n_came * sizeof(came_row)};
    }
    PIECE(position, n_rows * sizeof(uint32_t));
    PIECE(tables, n_tables * sizeof(uint32_t));
    for (uint32_t k = 0; k < s->n_kinds; k++) {
        uint64_t at = k * s->config.rows_max;
        piece[n++] = (upload_piece){stage_table(s, (layer_kind)k), HOST(s, uint32_t, table) + at,
                                    n_rows * sizeof(uint32_t)};
    }
#undef PIECE
    TRY_OP(upload_all, piece, n);
    TRY_OP(event_record, &s->staged_event);
    s->staged = true;
    return ST_OK;
}

static status turn_rows(stage *s, uint32_t n_rows, errmsg *e)
{
    for (uint32_t k = 0; k < s->n_kinds; k++) {
        rope_waves waves = {SCRATCH(s, frequency[k]), s->rope[k].magnitude, s->rope[k].n_pairs};
        TRY_OP(rope_angles, SCRATCH(s, cos[k]), SCRATCH(s, sin[k]), &waves, SCRATCH(s, position),
               n_rows);
    }
    return ST_OK;
}

static void measure_rows(stage *s)
{
    const wire_row *rows = s->rows;
    s->n_positions = s->n_runs = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        bool goes_on = i > 0 && (rows[i - 1].flags & ROW_LIVE) != 0 &&
                       rows[i - 1].branch == rows[i].branch;
        if (rows[i].position >= s->n_positions) s->n_positions = rows[i].position + 1;
        if ((rows[i].flags & ROW_LIVE) != 0 && !goes_on) s->n_runs++;
    }
}

static status take(stage *s, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers,
                   token_source source, errmsg *e)
{
    s->n_rows = s->n_samplers = 0;
    s->walked_head = s->unchecked = false; /* of the step before */
    if (n_rows > s->config.rows_max) {
        return errmsg_set(e, ST_PROTOCOL, "a step of %u rows: the largest has %u", n_rows,
                          s->config.rows_max);
    }
    if (!s->began) return errmsg_set(e, ST_PROTOCOL, "a step before the stage's weights have come");
    kv_step_begin(&s->kv);
    for (uint32_t i = 0; i < n_rows; i++)
        TRY(check_row(s, &rows[i], i, n_samplers, e));
    if (n_rows == 0) return ST_OK;
    if (s->staged) TRY_OP(event_wait, s->staged_event);
    wire_row *first = HOST(s, wire_row, rows);
    s->rows = s->rows == first ? first + s->config.rows_max : first;
    memcpy(s->rows, rows, n_rows * sizeof *rows);
    TRY(upload_rows(s, n_rows, place_rows(s, rows, n_rows), source, e));
    TRY(turn_rows(s, n_rows, e));
    s->n_rows = n_rows;
    s->n_samplers = n_samplers;
    measure_rows(s);
    return ST_OK;
}

status stage_rows(stage *s, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers, errmsg *e)
{
    return take(s, rows, n_rows, n_samplers, FROM_HOST, e);
}

status stage_rows_ahead(stage *s, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers,
                        errmsg *e)
{
    return take(s, rows, n_rows, n_samplers, FROM_DEVICE, e);
}

void stage_rows_known(stage *s, const wire_row *rows)
{
    for (uint32_t i = 0; i < s->n_rows; i++) {
        s->rows[i].token = rows[i].token;
        if ((rows[i].flags & ROW_LIVE) == 0) s->rows[i].flags &= ~ROW_LIVE;
        if ((s->rows[i].flags & ROW_LIVE) != 0) kv_row_remember(&s->kv, &s->rows[i]);
    }
}

peer_rows stage_row_words(const stage *s)
{
    peer_rows r = {.tokens = SCRATCH(s, tokens),
                   .live = SCRATCH(s, live),
                   .came = SCRATCH(s, came),
                   .n_rows = s->n_rows};
    if (s->last) return r;
    r.finite = SCRATCH(s, finite);
    r.mark = poison_hidden(s->config.stage_i);
    return r;
}

status stage_tell(stage *s, const wire_row *rows, uint32_t n_rows, peer_rows *out, errmsg *e)
{
    CHECK(n_rows <= CAME_ROWS);
    if (s->staged) TRY_OP(event_wait, s->staged_event);
    for (uint32_t i = 0; i < n_rows; i++) {
        HOST(s, uint32_t, tokens)[i] = rows[i].token;
        HOST(s, uint8_t, live)[i] = (rows[i].flags & ROW_LIVE) != 0;
    }
    const upload_piece piece[3] = {
        {SCRATCH(s, tokens), HOST(s, void, tokens), n_rows * sizeof(uint32_t)},
        {SCRATCH(s, live), HOST(s, void, live), n_rows},
        {SCRATCH(s, came), HOST(s, void, none_came),
         offsetof(rows_came, row) + n_rows * sizeof(came_row)}};
    TRY_OP(upload_all, piece, 3);
    TRY_OP(event_record, &s->staged_event);
    s->staged = true;
    *out = stage_row_words(s);
    out->n_rows = n_rows;
    return ST_OK;
}

status stage_bring_came(stage *s, errmsg *e)
{
    uint64_t bytes = offsetof(rows_came, row) + s->n_rows * sizeof(came_row);
    TRY_OP(download, HOST(s, void, came), SCRATCH(s, came), bytes);
    return ST_OK;
}

status stage_leave(stage *s, backend_event *end, errmsg *e)
{
    if (!s->last) TRY_OP(download, HOST(s, void, finite), SCRATCH(s, finite), s->n_rows);
    TRY_OP(event_record, end);
    return ST_OK;
}

const rows_came *stage_came(const stage *s)
{
    return HOST(s, const rows_came, came);
}

void stage_mark(const stage *s, poison_mark *poison)
{
    stage_mark_hidden(s, s->rows, s->n_rows, poison);
}
