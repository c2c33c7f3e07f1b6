/* head.c - the end of the last stage: output norm and head over the rows that ask for a result, in
 * tiles of PLAN_LOGITS_ROWS; tokens are drawn from a host copy of the logits and committed. */
#include "stage/stage_impl.h"

#include <stdatomic.h>
#include <string.h>

typedef struct {
    stage *s;
    const sampler_params *samplers;
    readback *out;
    uint64_t seq;
    uint32_t n_committed;
    uint32_t *drawn; /* by row; may be NULL */
    poison_mark *poison; /* by row */
} head_run;

static status check_samplers(const stage *s, const sampler_params *samplers, errmsg *e)
{
    const wire_row *rows = HOST(s, wire_row, rows);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (!stage_row_asks(&rows[i]) || (rows[i].flags & ROW_SAMPLE) == 0) continue;
        errmsg why = {0};
        if (sampler_valid(&samplers[rows[i].sampler_i], &why) != ST_OK) {
            return errmsg_set(e, ST_PROTOCOL, "row %u: sampler %u: %.400s", i, rows[i].sampler_i,
                              why.text);
        }
    }
    return ST_OK;
}

/* Token and row status for one row of finite logits. */
static status draw(const head_run *h, const wire_row *r, const float *logits, uint32_t *token)
{
    stage *s = h->s;
    const sampler_params *p = &h->samplers[r->sampler_i];
    uint32_t history[SAMPLER_HISTORY_MAX];
    uint32_t n = p->penalty_last_n < SAMPLER_HISTORY_MAX ? p->penalty_last_n : SAMPLER_HISTORY_MAX;
    if (n > r->position + 1) n = r->position + 1;
    kv_history(&s->kv, r->branch, r->position, history, n);
    return sampler_draw(token, logits, s->m->n_vocab, p, history, n, r->position,
                        HOST(s, void, sampler));
}

/* The result's words, then the commit: who sees seq sees the rest. */
static void commit_row(const head_run *h, const wire_row *r, const float *logits, uint32_t token,
                       status code)
{
    readback_row *out = readback_row_at(h->out, r->readback);
    if ((r->flags & ROW_LOGITS) != 0) {
        memcpy(out->logits, logits, h->s->m->n_vocab * sizeof(float));
    }
    out->token = token;
    out->status = (uint32_t)code;
    atomic_store_explicit(&out->commit, h->seq, memory_order_release);
}

static void commit_token(const head_run *h, const wire_row *r, uint32_t token, status code)
{
    readback_token *out = readback_token_at(h->out, r->branch, r->position);
    out->token = token;
    out->status = (uint32_t)code;
    atomic_store_explicit(&out->commit, h->seq, memory_order_release);
}

static void commit(head_run *h, uint32_t row_i, const float *logits, bool finite)
{
    const wire_row *r = &HOST(h->s, wire_row, rows)[row_i];
    uint32_t token = TOKEN_NONE;
    if (!finite && h->poison[row_i] == 0)
        h->poison[row_i] = poison_logits(h->s->config.stage_i);
    status code = h->poison[row_i] == 0 ? ST_OK : ST_NAN;
    if (code == ST_OK && (r->flags & ROW_SAMPLE) != 0) code = draw(h, r, logits, &token);
    if (code != ST_OK) token = TOKEN_NONE;
    if (r->readback != WIRE_NONE)
        commit_row(h, r, logits, token, code);
    else
        commit_token(h, r, token, code);
    if (h->drawn != NULL) h->drawn[row_i] = token;
    h->n_committed++;
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

/* Logits and flags of n rows to the host; finite_at: where the first row's flag is. */
static status fetch(stage *s, dev_ptr finite_at, uint32_t n_flags, uint32_t n, errmsg *e)
{
    backend_event ev;
    TRY_OP(download, HOST(s, void, logits), SCRATCH(s, logits),
           (uint64_t)n * s->m->n_vocab * sizeof(float));
    TRY_OP(download, HOST(s, void, finite), finite_at, n_flags);
    TRY_OP(event_record, &ev);
    TRY_OP(event_wait, ev);
    return ST_OK;
}

static status commit_rows(head_run *h, const uint32_t *row_i, uint32_t n, const uint8_t *finite,
                          errmsg *e)
{
    stage *s = h->s;
    const float *logits = HOST(s, float, logits);
    for (uint32_t i = 0; i < n; i++) {
        commit(h, row_i[i], &logits[(uint64_t)i * s->m->n_vocab], finite[i] == 0);
    }
    return stage_walked(s, s->n_layers, e);
}

static status run_tile(head_run *h, const uint32_t *row_i, uint32_t n, errmsg *e)
{
    stage *s = h->s;
    TRY(norm_rows(s, row_i, n, e));
    TRY_OP(matmul, SCRATCH(s, logits), &s->w.output, SCRATCH(s, normed), (dev_ptr){0}, n);
    TRY_OP(check_finite, SCRATCH(s, finite), SCRATCH(s, logits), s->m->n_vocab, n);
    TRY(fetch(s, SCRATCH(s, finite), n, n, e));
    return commit_rows(h, row_i, n, HOST(s, uint8_t, finite), e);
}

/* The walk of the step's one row has made its logits. */
static status end_walk(head_run *h, errmsg *e)
{
    const uint32_t row_i = 0;
    TRY(fetch(h->s, SCRATCH(h->s, finite), 2, 1, e));
    stage_mark_hidden(h->s, h->poison);
    return commit_rows(h, &row_i, 1, HOST(h->s, uint8_t, finite) + 1, e);
}

status stage_head(stage *s, const sampler_params *samplers, readback *out, uint64_t seq,
                  uint32_t *n_committed, uint32_t *drawn, poison_mark *poison, errmsg *e)
{
    CHECK(s->last);
    *n_committed = 0;
    if (out->n_vocab != s->m->n_vocab || out->n_rows < s->config.n_readback ||
        out->n_branches < s->config.n_branches) {
        return errmsg_set(e, ST_PROTOCOL,
                          "readback of %u rows x %u, %u branches: the run has %u rows x %u, %u",
                          out->n_rows, out->n_vocab, out->n_branches, s->config.n_readback,
                          s->m->n_vocab, s->config.n_branches);
    }
    TRY(check_samplers(s, samplers, e));
    head_run h = {s, samplers, out, seq, 0, drawn, poison};
    for (uint32_t i = 0; drawn != NULL && i < s->n_rows; i++)
        drawn[i] = TOKEN_NONE;
    if (s->walked_head) {
        TRY(end_walk(&h, e));
        *n_committed = h.n_committed;
        return ST_OK;
    }
    uint32_t row_i[PLAN_LOGITS_ROWS], n = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (stage_row_asks(&HOST(s, wire_row, rows)[i])) row_i[n++] = i;
        if (n == PLAN_LOGITS_ROWS || (n > 0 && i + 1 == s->n_rows)) {
            TRY(run_tile(&h, row_i, n, e));
            *n_committed = h.n_committed;
            n = 0;
        }
    }
    return ST_OK;
}
