/* Results in: everything that a stage says of a step is looked at before any of it is taken. What
 * was drawn goes to its request; a step whose rows are all back has landed, and its requests go on
 * or end. */
#include "coordinator/engine/engine.h"

#include "common/clock.h"
#include "coordinator/engine/kvbooks.h"

#include <string.h>

/* Of a result: committed by this step, with a status that there is. */
static status check_result(const flight *f, const session *s, uint64_t position, uint64_t commit,
                           uint32_t row_status, errmsg *e)
{
    if (commit != f->seq) {
        return errmsg_set(
            e, ST_PROTOCOL,
            "step %llu reported done, the result of session %u after position %llu is not its",
            (unsigned long long)f->seq, s->id, (unsigned long long)position);
    }
    if (row_status == ST_OK || (row_status == ST_NAN && poison_covers(s, position))) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "a result of session %u has status %u", s->id, row_status);
}

static status check_token(const pipeline *p, const session *s, uint32_t token, errmsg *e)
{
    if (token < p->results.n_vocab) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL, "token %u of session %u is not in the vocabulary of %u",
                      token, s->id, p->results.n_vocab);
}

/* The token that the branch's ring has for this position; TOKEN_NONE: the row is poisoned. */
static status ring_token(const pipeline *p, const flight *f, const session *s, uint64_t position,
                         uint32_t *token, errmsg *e)
{
    readback_token *t = readback_token_at(&p->results, s->branch, (uint32_t)position);
    uint64_t commit = atomic_load_explicit(&t->commit, memory_order_acquire);
    *token = t->token;
    TRY(check_result(f, s, position, commit, t->status, e));
    if (t->status == ST_NAN) *token = TOKEN_NONE;
    return t->status == ST_NAN ? ST_OK : check_token(p, s, *token, e);
}

/* A result, before anything of its step is taken: nothing is believed unseen. */
static status check_row(const pipeline *p, const flight *f, flight_result *x, errmsg *e)
{
    const request *r = f->part[x->part_i].r;
    const session *s = r->session;
    uint64_t position = r->first_position + x->row;
    if (x->readback == WIRE_NONE) return ring_token(p, f, s, position, &x->token, e);
    readback_row *row = readback_row_at(&p->results, x->readback);
    uint64_t commit = atomic_load_explicit(&row->commit, memory_order_acquire);
    x->token = row->token;
    TRY(check_result(f, s, position, commit, row->status, e));
    bool drawn = r->want_sample && x->row + 1 == r->n_tokens && row->status == ST_OK;
    return drawn ? check_token(p, s, x->token, e) : ST_OK;
}

static void take_row(pipeline *p, const flight *f, const flight_result *x)
{
    request *r = f->part[x->part_i].r;
    size_t n_vocab = p->results.n_vocab;
    if (r->want_sample && x->row + 1 == r->n_tokens) r->next_token = x->token;
    if (x->readback == WIRE_NONE || r->deferred) return; /* logits stay until somebody asks */
    memcpy(r->logits + x->row * n_vocab, readback_row_at(&p->results, x->readback)->logits,
           n_vocab * sizeof(float));
    p->free_readback[p->n_free_readback++] = x->readback;
}

static uint32_t group_begin(const flight *f, uint32_t g)
{
    return g == 0 ? 0 : f->group_end[g - 1];
}

/* The tokens of one group in one round: all are looked at before one is taken. */
static status check_tokens(const pipeline *p, flight *f, uint32_t g, errmsg *e)
{
    for (uint32_t k = group_begin(f, g); k < f->group_end[g]; k++) {
        flight_part *part = &f->part[k];
        if (part->dead) continue;
        TRY(ring_token(p, f, part->r->session, part->first + part->n_drawn, &part->token, e));
        part->poisoned = part->token == TOKEN_NONE;
    }
    return ST_OK;
}

static void take_tokens(flight *f, uint32_t g)
{
    for (uint32_t k = group_begin(f, g); k < f->group_end[g]; k++) {
        flight_part *part = &f->part[k];
        part->dead = part->dead || part->poisoned;
        if (part->dead) continue;
        uint64_t position = part->first + part->n_drawn++;
        part->dead = generation_drew(part->r->generation, position, part->token) ||
                     part->n_drawn == part->rounds;
    }
}

/* Tokens of a step that verified: all up to the first draft that was not drawn, looked at first. */
static status check_drafts(const pipeline *p, const flight *f, errmsg *e)
{
    for (uint32_t k = 0; k < f->n_parts; k++) {
        flight_part *part = &f->part[k];
        const generation *g = part->r->generation;
        bool right = true;
        for (uint32_t i = 0; i < part->n_rows && right; i++) {
            uint32_t *token = &part->drawn[i];
            TRY(ring_token(p, f, part->r->session, part->first + i, token, e));
            part->poisoned = *token == TOKEN_NONE;
            right = i + 1 < part->n_rows && *token == g->guesses.token[i];
        }
    }
    return ST_OK;
}

static void take_drafts(flight *f)
{
    for (uint32_t k = 0; k < f->n_parts; k++) {
        flight_part *part = &f->part[k];
        generation *g = part->r->generation;
        while (!part->dead) {
            part->dead = part->poisoned && part->drawn[part->n_drawn] == TOKEN_NONE;
            if (part->dead) break;
            uint32_t i = part->n_drawn++;
            part->dead = generation_drew(g, part->first + i, part->drawn[i]) ||
                         part->n_drawn == part->n_rows || part->drawn[i] != g->guesses.token[i];
        }
    }
}

static uint32_t n_expected(const flight *f, uint32_t g)
{
    uint32_t n = 0;
    if (f->verify) return f->n_rows;
    if (!f->free_running) return f->n_results;
    for (uint32_t k = group_begin(f, g); k < f->group_end[g]; k++) n += !f->part[k].dead;
    return n;
}

static status land_generation(pipeline *p, flight *f, uint32_t part_i, errmsg *e)
{
    flight_part *part = &f->part[part_i];
    session *s = part->r->session;
    bool ended;
    s->steps += part->n_drawn;
    if (f->after != NULL) {
        if (part->r->generation->end == GENERATE_RUNS) return ST_OK; /* its row has gone on */
        sequel_leave(f->after, part_i);
    }
    TRY(generation_landed(part->r->generation, part->first, part->n_drawn, &ended, e));
    if (!ended) {
        schedule_ready(p, s);
        return ST_OK;
    }
    schedule_remove_first(s);
    schedule_finish(p, part->r);
    return ST_OK;
}

/* All stages have applied it: its operations, its rows, and what generations drew and applied. */
static void mirror_flight(pipeline *p, const flight *f)
{
    step_view v = wire_step_body_view(f->body);
    mirror_step(&p->mirror, f->seq, v.kv_ops, v.step->n_kv_ops, v.rows, v.step->n_rows);
    for (uint32_t k = 0; f->free_running && k < f->n_parts; k++) {
        const flight_part *part = &f->part[k];
        if (part->r == NULL) continue;
        const generation *g = part->r->generation;
        const uint32_t *drawn = g->tokens + (g->n_drawn - part->n_drawn);
        for (uint32_t i = 1; i < part->n_drawn; i++)
            mirror_row(&p->mirror, part->r->session->branch, (uint32_t)part->first + i,
                       drawn[i - 1]);
    }
}

/* The position of the last row of the part that counts. */
static uint64_t last_position(const flight *f, const flight_part *part)
{
    if (!flight_generates(f)) return part->r->first_position + part->first + part->n_rows - 1;
    return part->first + part->n_drawn - !part->poisoned; /* n_drawn 0: only if it is poisoned */
}

static void trace_step(const pipeline *p, const flight *f)
{
    if (p->trace == NULL) return;
    trace_put(trace_engine(p->trace), &(trace_event){.begin_ns = f->issued_ns,
                                                     .end_ns = now_ns(),
                                                     .seq = f->seq,
                                                     .kind = TRACE_STEP,
                                                     .n_rows = f->n_rows,
                                                     .round = f->rounds,
                                                     .group = f->n_groups,
                                                     .of = f->prime    ? TRACE_PROMPT
                                                           : f->verify ? TRACE_VERIFY
                                                                       : TRACE_DECODE});
}

/* What a round takes while the step runs: what was before it in the pipe, the chunks of a prompt,
 * is not its own. Of one round there is only a bound. */
static void measure_round(pipeline *p, const flight *f)
{
    uint64_t now = now_ns();
    if (f->rounds > 1)
        p->round_ns = (now - f->first_round_ns) / (f->rounds - 1) + 1;
    else if (p->round_ns == 0 || now - f->issued_ns < p->round_ns)
        p->round_ns = now - f->issued_ns;
}

/* Every row of it is back. */
static status land(pipeline *p, flight *f, errmsg *e)
{
    mirror_flight(p, f);
    trace_step(p, f);
    f->seq = 0;
    p->n_flights--;
    p->n_ops_landed = f->ops_end;
    if (f->free_running) measure_round(p, f);
    if (flight_generates(f)) verify_landed(p, f);
    for (uint32_t k = 0; k < f->n_parts; k++) {
        request *r = f->part[k].r;
        if (r == NULL) continue;
        r->session->n_steps--;
        r->n_steps--;
        uint64_t last = last_position(f, &f->part[k]);
        bool nothing = f->verify && poison_void(r->session, &f->part[k]);
        if (f->after != NULL && poison_covers(r->session, last)) sequel_leave(f->after, k);
        if (!nothing && poison_ends(p, r->session, r, last)) continue;
        if (flight_generates(f)) {
            TRY(land_generation(p, f, k, e));
            continue;
        }
        r->n_done += f->part[k].n_rows;
        kvbooks_offer(r->session, r->first_position + r->n_done);
        if (r->n_done == r->n_tokens) schedule_finish(p, r);
    }
    if (f->after != NULL) sequel_begins(f->after);
    f->after = NULL;
    return ST_OK;
}

status schedule_result(pipeline *p, uint64_t seq, const wire_result *result, errmsg *e)
{
    flight *f = NULL;
    for (uint32_t i = 0; i < p->window && f == NULL; i++)
        if (p->flights[i].seq == seq && seq != 0) f = &p->flights[i];
    uint32_t round = f != NULL ? f->n_pieces / f->n_groups : 0;
    uint32_t g = f != NULL ? f->n_pieces % f->n_groups : 0;
    bool again = f != NULL && f->n_pieces < f->n_taken; /* it came before a stage was lost */
    if (f == NULL || result->round != round || result->group != g ||
        (!again && result->n_rows != n_expected(f, g))) {
        return errmsg_set(e, ST_PROTOCOL,
                          "result of step %llu, round %u, group %u, with %u rows was not asked for",
                          (unsigned long long)seq, result->round, result->group, result->n_rows);
    }
    f->n_pieces++;
    if (again) return ST_OK;
    if (f->free_running) TRY(check_tokens(p, f, g, e));
    if (f->verify) TRY(check_drafts(p, f, e));
    for (uint32_t i = 0; i < f->n_results; i++) TRY(check_row(p, f, &f->result[i], e));
    if (f->free_running) take_tokens(f, g);
    if (f->verify) take_drafts(f);
    for (uint32_t i = 0; i < f->n_results; i++) take_row(p, f, &f->result[i]);
    f->n_taken = f->n_pieces;
    if (f->n_taken == f->n_groups) f->first_round_ns = now_ns();
    return f->n_taken == f->rounds * f->n_groups ? land(p, f, e) : ST_OK;
}
