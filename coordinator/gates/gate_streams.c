#include "coordinator/gates/gate_streams.h"

#include "coordinator/commands/random_tokens.h"
#include "coordinator/gates/gate_drafts.h"

#include <stdlib.h>

#define FORK_ROWS     3u
#define DEFERRED_ROWS 3u
#define PIECE_MAX     48u
#define GENERATE_MAX  60u /* tokens, fewer where the context has no room */
#define DRAFT_DEPTH   4u

typedef struct {
    const gate_context *g;
    uint32_t i;
    const gate_record *truth; /* NULL: not known */
    gate_record *out;
    stream_counts *counts;
    uint32_t row; /* the next one of the record */
    uint64_t random;
    uint32_t *tokens; /* [n_prompt] */
} stream;

static uint32_t below(stream *w, uint32_t n)
{
    return (uint32_t)(random_next(&w->random) % n);
}

/* Tokens that a stream generates: what a gate's context leaves. */
static uint32_t generate_rows(const gate_context *g)
{
    uint32_t n = gate_burst(g) - FORK_ROWS - DEFERRED_ROWS - 2;
    return n < GENERATE_MAX ? n : GENERATE_MAX;
}

uint32_t stream_rows(const gate_context *g)
{
    return 2 * (1 + g->n_decode) + 2 * FORK_ROWS + DEFERRED_ROWS + generate_rows(g);
}

/* One step into the next row of the record; *token: the one that goes in, then the one drawn. */
static status step(stream *w, session *s, uint32_t *token, errmsg *e)
{
    TRY(session_step(s, *token, gate_record_rows(w->out, w->row, 1), token, e));
    w->out->tokens[w->row++] = *token;
    atomic_fetch_add(&w->counts->n_tokens, 1);
    return ST_OK;
}

static status prime(stream *w, session *s, const uint32_t *tokens, uint32_t n, float *logits,
                    errmsg *e)
{
    atomic_fetch_add(&w->counts->n_priming, 1);
    status st = session_prime(s, tokens, n, logits, NULL, e);
    atomic_fetch_sub(&w->counts->n_priming, 1);
    return st;
}

/* n tokens of no meaning, the last of which gives a row; *next: the token drawn after it. */
static status prompt(stream *w, session *s, uint32_t n, uint32_t *next, errmsg *e)
{
    random_tokens(w->tokens, n, w->g->model.n_vocab, random_next(&w->random));
    TRY(prime(w, s, w->tokens, n - 1, NULL, e));
    *next = w->tokens[n - 1];
    return step(w, s, next, e);
}

static status decode(stream *w, session *s, uint32_t n, uint32_t *token, errmsg *e)
{
    for (uint32_t i = 0; i < n; i++) TRY(step(w, s, token, e));
    return ST_OK;
}

/* Right at most places once the truth is known, of no meaning before. */
static gate_drafts drafts_of(const stream *w, uint32_t *truth, uint32_t n_begin)
{
    uint32_t n = generate_rows(w->g);
    for (uint32_t k = 0; k <= n; k++)
        truth[k] =
            k > 0 && w->truth != NULL ? w->truth->tokens[w->row + k - 1] : k % w->g->model.n_vocab;
    return gate_drafts_of(truth, n_begin, n, NULL);
}

/* Tokens drawn and applied by themselves, then taken back and read again as a prompt, so that each
 * has a row of the record: the logits after it, and what was drawn there. */
static status generate(stream *w, session *s, uint32_t *token, errmsg *e)
{
    uint32_t drawn[GENERATE_MAX + 1], n = generate_rows(w->g), n_got = 0;
    uint32_t truth[GENERATE_MAX + 1];
    uint64_t begin = session_position(s);
    const bool drafts = w->i % 3 == 1;
    gate_drafts d = drafts_of(w, truth, (uint32_t)begin);
    const generate_limits limits = {.n_max = n,
                                    .n_draft = drafts ? DRAFT_DEPTH : 0,
                                    .draft_always = drafts,
                                    .draft = &d.source};
    generation *g;
    TRY(session_generate(s, *token, &limits, &g, e));
    status st = ST_OK, closed;
    errmsg ignored = {0};
    if (drafts) atomic_fetch_add(&w->counts->n_drafting, 1);
    for (drawn[0] = *token; st == ST_OK && n_got < n; n_got++) {
        st = generation_next(g, &drawn[n_got + 1], e);
        if (st == ST_OK) atomic_fetch_add(&w->counts->n_tokens, 1);
    }
    if (drafts) atomic_fetch_sub(&w->counts->n_drafting, 1);
    closed = generation_close(g, st == ST_OK ? e : &ignored);
    TRY(st != ST_OK ? st : closed);
    TRY(session_truncate(s, begin, e));
    TRY(prime(w, s, drawn, n, gate_record_rows(w->out, w->row, n), e));
    for (uint32_t i = 0; i < n; i++) w->out->tokens[w->row++] = drawn[i + 1];
    *token = drawn[n];
    return ST_OK;
}

/* Steps that are in flight together. */
static status deferred(stream *w, session *s, errmsg *e)
{
    pending *in_flight[DEFERRED_ROWS];
    uint32_t n = 0;
    status st = ST_OK;
    for (; st == ST_OK && n < DEFERRED_ROWS; n++) {
        st = session_step_deferred(s, below(w, w->g->model.n_vocab), &in_flight[n], e);
        if (st != ST_OK) break;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (st != ST_OK) {
            pending_drop(in_flight[i]);
            continue;
        }
        st = pending_logits_wait(in_flight[i], gate_record_rows(w->out, w->row, 1),
                                 &w->out->tokens[w->row], e);
        w->row++;
        atomic_fetch_add(&w->counts->n_tokens, 1);
    }
    return st;
}

/* A fork and its parent, in turns. */
static status fork_rows(stream *w, session *s, uint32_t *token, errmsg *e)
{
    session *f;
    uint32_t other = below(w, w->g->model.n_vocab);
    TRY(session_fork(s, &f, e));
    status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < FORK_ROWS; i++) {
        st = step(w, f, &other, e);
        if (st == ST_OK) st = step(w, s, token, e);
    }
    session_drop(f);
    return st;
}

static status walk(stream *w, session *s, errmsg *e)
{
    uint32_t n = w->g->n_prompt, token;
    TRY(prompt(w, s, n / 2 + below(w, n - n / 2) + 1, &token, e));
    TRY(decode(w, s, w->g->n_decode, &token, e));
    TRY(generate(w, s, &token, e));
    TRY(fork_rows(w, s, &token, e));
    TRY(deferred(w, s, e));
    uint64_t position = session_position(s);
    uint32_t n_cut = 1 + below(w, (uint32_t)position / 3);
    TRY(session_truncate(s, position - n_cut, e));
    TRY(prompt(w, s, 1 + below(w, n_cut < PIECE_MAX ? n_cut : PIECE_MAX), &token, e));
    return decode(w, s, w->g->n_decode, &token, e);
}

status stream_walk(const gate_context *g, pipeline *p, uint32_t i, const gate_record *truth,
                   gate_record *out, stream_counts *counts, errmsg *e)
{
    stream w = {.g = g, .i = i, .truth = truth, .out = out, .counts = counts,
                .random = g->seed + 1000 * i};
    sampler_params sampler = sampler_default();
    session *s = NULL;
    if (i % 2 != 0) {
        sampler.temperature = 0.9f;
        sampler.repetition_penalty = 1.1f;
        sampler.penalty_last_n = 64;
        sampler.seed = g->seed + i;
    }
    w.tokens = malloc((g->n_prompt + 1) * sizeof *w.tokens);
    if (w.tokens == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a prompt");
    status st = session_open(p, &sampler, &s, e);
    if (st == ST_OK) st = walk(&w, s, e);
    if (st == ST_OK) CHECK(w.row == stream_rows(g));
    session_drop(s);
    free(w.tokens);
    return st;
}
