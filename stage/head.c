/* head.c - the end of the last stage: output norm and head over the rows that ask for a result, in
 * tiles of PLAN_LOGITS_ROWS; tokens are drawn on the device, and results are committed when they
 * are here.
 *
 * Rows are in flight together as far as there is room for what comes back of them: for tokens that
 * is more than a tile, since tiles follow each other on the device; logits that the host wants stay
 * on the device, apart from the next step's, until they were read. */
#include "stage/stage_impl.h"

#include <stdatomic.h>
#include <string.h>

_Static_assert(sizeof(sample_row) == PLAN_SAMPLE_BYTES, "as planned");
_Static_assert(sizeof(sample_result) == PLAN_RESULT_BYTES, "as planned");
_Static_assert(SAMPLE_STOPS == WIRE_STOP_IDS, "a row's stops travel whole");

/* Host memory as the device names it (backend.h, host_alloc). */
static dev_ptr on_device(const void *host)
{
    return (dev_ptr){(uintptr_t)host};
}

static bool samples(const wire_row *r)
{
    return (r->flags & ROW_SAMPLE) != 0;
}

static bool wants_logits(const wire_row *r)
{
    return (r->flags & ROW_LOGITS) != 0;
}

/* --- out to the device ---------------------------------------------------------------------- */

static status check_samplers(const stage *s, const sampler_params *samplers, errmsg *e)
{
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const wire_row *r = &s->rows[i];
        errmsg why = {0};
        if (!stage_row_asks(r) || !samples(r)) continue;
        if (sampler_valid(&samplers[r->sampler_i], &why) == ST_OK) continue;
        return errmsg_set(e, ST_PROTOCOL, "row %u: sampler %u: %.400s", i, r->sampler_i, why.text);
    }
    return ST_OK;
}

static status check_out(const stage *s, const readback *out, errmsg *e)
{
    if (out->n_vocab == s->m->n_vocab && out->n_rows >= s->config.n_readback &&
        out->n_branches >= s->config.n_branches)
        return ST_OK;
    return errmsg_set(e, ST_PROTOCOL,
                      "readback of %u rows x %u, %u branches: the run has %u rows x %u, %u",
                      out->n_rows, out->n_vocab, out->n_branches, s->config.n_readback,
                      s->m->n_vocab, s->config.n_branches);
}

static void fill(const stage *s, const stage_head_args *a, uint32_t row_i, sample_row *out)
{
    const wire_row *r = &s->rows[row_i];
    const sampler_params *p = &a->samplers[r->sampler_i];
    uint32_t n = p->penalty_last_n < r->position + 1 ? p->penalty_last_n : r->position + 1;
    out->params = *p;
    out->position = r->position;
    out->row_i = row_i;
    out->ends = a->feeds && a->round + 1 >= r->rounds && r->rounds != a->rounds;
    out->n_stops = 0;
    if (a->feeds && r->stop_i != WIRE_NONE) {
        const wire_stops *stops = &a->stops[r->stop_i];
        out->n_stops = stops->n;
        memcpy(out->stop, stops->id, stops->n * sizeof *stops->id);
    }
    out->n_history = n;
    kv_history(&s->kv, r->branch, r->position, out->history, n);
}

/* Tokens for the rows [at, at + n) of the flight, whose logits are packed; runs of rows that sample
 * in one call. */
static status draw(stage *s, const stage_head_args *a, uint32_t at, uint32_t n, dev_ptr logits,
                   errmsg *e)
{
    const uint32_t *row_i = s->head.row_i;
    sample_row *rows = HOST(s, sample_row, sample_rows);
    sample_result *results = HOST(s, sample_result, sample_results);
    sample_args x = {.flags = SCRATCH(s, finite),
                     .scratch = SCRATCH(s, sampler),
                     .n_vocab = s->m->n_vocab};
    if (a->feeds) {
        x.tokens = SCRATCH(s, tokens);
        x.live = SCRATCH(s, live);
    }
    for (uint32_t i = at, run; i < at + n; i += run) {
        run = 1;
        if (!samples(&s->rows[row_i[i]])) continue;
        fill(s, a, row_i[i], &rows[i]);
        for (; i + run < at + n && samples(&s->rows[row_i[i + run]]); run++)
            fill(s, a, row_i[i + run], &rows[i + run]);
        x.rows = &rows[i];
        TRY_OP(sample, on_device(&results[i]),
               dev_offset(logits, (uint64_t)(i - at) * s->m->n_vocab * sizeof(float)), &x, run);
    }
    return ST_OK;
}

/* Output norm of the rows row_i[0..n), packed; runs of neighbours in one call. */
static status norm_rows(stage *s, const uint32_t *row_i, uint32_t n, errmsg *e)
{
    uint64_t row_bytes = (uint64_t)s->m->n_embd * sizeof(float);
    for (uint32_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && row_i[i + run] == row_i[i] + run; run++) {
        }
        TRY_OP(rms_norm, dev_offset(SCRATCH(s, normed), i * row_bytes),
               dev_offset(SCRATCH(s, hidden), row_i[i] * row_bytes), s->w.output_norm, s->m->n_embd,
               s->m->rms_eps, run);
    }
    return ST_OK;
}

/* Flags of logits stand behind those of hidden states. */
static dev_ptr logits_flags(const stage *s)
{
    return dev_offset(SCRATCH(s, finite), s->config.rows_max);
}

static status run_tile(stage *s, const stage_head_args *a, uint32_t at, uint32_t n, errmsg *e)
{
    const head_flight *h = &s->head;
    const dev_ptr logits = h->keeps ? SCRATCH(s, kept_logits) : SCRATCH(s, logits);
    if (!s->walked_head) {
        TRY(norm_rows(s, h->row_i + at, n, e));
        TRY_OP(matmul, logits, &s->w.output, SCRATCH(s, normed), (dev_ptr){0}, n);
    } else if (h->keeps) {
        TRY_OP(copy, logits, SCRATCH(s, logits), (uint64_t)s->m->n_vocab * sizeof(float));
    }
    if (h->keeps) TRY_OP(check_finite, logits_flags(s), logits, s->m->n_vocab, n);
    return draw(s, a, at, n, logits, e);
}

/* The rows of the flight on their way: every wait is left to `land`. */
static status fly(stage *s, const stage_head_args *a, errmsg *e)
{
    head_flight *h = &s->head;
    uint32_t n_drawn = 0;
    for (uint32_t at = 0; at < h->n; at += PLAN_LOGITS_ROWS) {
        uint32_t n = h->n - at < PLAN_LOGITS_ROWS ? h->n - at : PLAN_LOGITS_ROWS;
        TRY(run_tile(s, a, at, n, e));
    }
    for (uint32_t i = 0; i < h->n; i++)
        n_drawn += samples(&h->rows[h->row_i[i]]);
    h->flags = h->unchecked && n_drawn < h->n_rows;
    if (h->flags) TRY_OP(download, HOST(s, void, finite), SCRATCH(s, finite), h->n_rows);
    if (h->keeps) {
        TRY_OP(download, HOST(s, uint8_t, finite) + s->config.rows_max, logits_flags(s), h->n);
        TRY_OP(drain, HOST(s, void, logits), SCRATCH(s, kept_logits),
               (uint64_t)h->n * s->m->n_vocab * sizeof(float), &h->drained);
    }
    TRY_OP(event_record, &h->done);
    h->flying = true;
    return ST_OK;
}

/* --- and back ------------------------------------------------------------------------------- */

/* The result's words, then the commit: who sees seq sees the rest. */
static void commit_row(const stage *s, const wire_row *r, const float *logits, uint32_t token,
                       status code)
{
    readback_row *out = readback_row_at(s->head.out, r->readback);
    if (wants_logits(r)) memcpy(out->logits, logits, s->m->n_vocab * sizeof(float));
    out->token = token;
    out->status = (uint32_t)code;
    atomic_store_explicit(&out->commit, s->head.seq, memory_order_release);
}

static void commit_token(const stage *s, const wire_row *r, uint32_t token, status code)
{
    readback_token *out = readback_token_at(s->head.out, r->branch, r->position);
    out->token = token;
    out->status = (uint32_t)code;
    atomic_store_explicit(&out->commit, s->head.seq, memory_order_release);
}

static void commit(stage *s, uint32_t i)
{
    head_flight *h = &s->head;
    const wire_row *r = &h->rows[h->row_i[i]];
    const float *logits = HOST(s, float, logits) + (uint64_t)i * s->m->n_vocab;
    const uint8_t *bad = HOST(s, uint8_t, finite) + s->config.rows_max;
    poison_mark *mark = &h->poison[h->row_i[i]];
    uint32_t token = TOKEN_NONE;
    status code = wants_logits(r) && bad[i] != 0 ? ST_NAN : ST_OK;
    if (samples(r)) {
        const sample_result *x = &HOST(s, sample_result, sample_results)[i];
        token = x->token;
        code = (status)x->status;
    }
    if (code == ST_NAN && *mark == 0) *mark = poison_logits(s->config.stage_i);
    if (*mark != 0) {
        code = ST_NAN;
        token = TOKEN_NONE;
    }
    if (r->readback != WIRE_NONE)
        commit_row(s, r, logits, token, code);
    else
        commit_token(s, r, token, code);
    if (h->drawn != NULL) h->drawn[h->row_i[i]] = token;
    h->n_committed++;
}

static void mark_hidden(const stage *s)
{
    const head_flight *h = &s->head;
    const sample_result *results = HOST(s, sample_result, sample_results);
    if (h->unchecked && h->flags) stage_mark_hidden(s, h->rows, h->n_rows, h->poison);
    for (uint32_t i = 0; h->unchecked && !h->flags && i < h->n; i++) {
        poison_mark *mark = &h->poison[h->row_i[i]];
        if (results[i].poisoned != 0 && *mark == 0) *mark = poison_hidden(s->config.stage_i);
    }
}

/* Nothing on the device reads or writes the flight's memory any more. */
static status arrive(stage *s, errmsg *e)
{
    head_flight *h = &s->head;
    if (!h->flying) return ST_OK;
    TRY_OP(event_wait, h->done);
    if (h->keeps) TRY_OP(event_wait, h->drained);
    h->flying = false;
    return ST_OK;
}

static status land(stage *s, errmsg *e)
{
    head_flight *h = &s->head;
    TRY(arrive(s, e));
    mark_hidden(s);
    for (uint32_t i = 0; i < h->n; i++)
        commit(s, i);
    h->n = 0;
    return stage_walked(s, s->n_layers, e);
}

status stage_head_begin(stage *s, const stage_head_args *a, errmsg *e)
{
    head_flight *h = &s->head;
    CHECK(s->last);
    TRY(check_out(s, a->out, e));
    TRY(check_samplers(s, a->samplers, e));
    TRY(arrive(s, e));
    *h = (head_flight){.out = a->out,
                       .seq = a->seq,
                       .drawn = a->drawn,
                       .poison = a->poison,
                       .rows = s->rows,
                       .n_rows = s->n_rows,
                       .unchecked = s->unchecked};
    for (uint32_t i = 0; i < s->n_rows; i++) {
        h->keeps = h->keeps || (stage_row_asks(&s->rows[i]) && wants_logits(&s->rows[i]));
        if (a->drawn != NULL) a->drawn[i] = TOKEN_NONE;
    }
    uint32_t room = h->keeps ? PLAN_LOGITS_ROWS : PLAN_HEAD_ROWS;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (!stage_row_asks(&s->rows[i])) continue;
        if (h->n == room) {
            TRY(fly(s, a, e));
            TRY(land(s, e));
        }
        h->row_i[h->n++] = i;
    }
    return fly(s, a, e);
}

status stage_head_end(stage *s, uint32_t *n_committed, errmsg *e)
{
    status st = land(s, e);
    *n_committed = s->head.n_committed;
    return st;
}

status stage_head(stage *s, const sampler_params *samplers, readback *out, uint64_t seq,
                  uint32_t *n_committed, uint32_t *drawn, poison_mark *poison, errmsg *e)
{
    const stage_head_args a = {
        .samplers = samplers, .out = out, .seq = seq, .drawn = drawn, .poison = poison};
    *n_committed = 0;
    TRY(stage_head_begin(s, &a, e));
    return stage_head_end(s, n_committed, e);
}
