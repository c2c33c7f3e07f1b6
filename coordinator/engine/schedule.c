/* Steps out, results in: batch.c says which rows go next, here they become a message to every stage,
 * and what comes back finds the requests again. Requests of one session stand in line by position;
 * sessions that have rows to issue stand in one list, in the order of their turns. */
#include "coordinator/engine/engine.h"
#include "coordinator/engine/kvbooks.h"

#include <stdlib.h>
#include <string.h>

/* --- the list of sessions ---------------------------------------------------------------------------- */

static void append_session(pipeline *p, session *s)
{
    s->ready_next = NULL;
    if (p->ready_last != NULL)
        p->ready_last->ready_next = s;
    else
        p->ready_first = s;
    p->ready_last = s;
}

static void remove_session(pipeline *p, session *s)
{
    session *before = NULL;
    for (session *at = p->ready_first; at != s; at = at->ready_next) before = at;
    if (before != NULL)
        before->ready_next = s->ready_next;
    else
        p->ready_first = s->ready_next;
    if (p->ready_last == s) p->ready_last = before;
    s->ready_next = NULL;
}

void schedule_add(pipeline *p, request *r)
{
    session *s = r->session;
    r->next = NULL;
    if (s->first == NULL) {
        s->first = r;
        append_session(p, s);
    } else {
        s->last->next = r;
    }
    s->last = r;
}

/* Its first request has no rows left to issue. */
static void remove_first(session *s)
{
    s->first = s->first->next;
    if (s->first == NULL) s->last = NULL;
}

static void finish(pipeline *p, request *r)
{
    r->finished = true;
    r->session->n_queued--;
    pthread_cond_broadcast(&p->changed); /* somebody may wait for the session to be quiet */
    if (r->dropped) {
        p->free_readback[p->n_free_readback++] = r->readback;
        p->n_deferred--;
        pthread_cond_destroy(&r->done);
        free(r); /* the first member of its `pending` */
        return;
    }
    pthread_cond_broadcast(&r->done);
}

status schedule_prepare(pipeline *p, errmsg *e)
{
    uint32_t n_readback = p->plan.n_readback;
    p->window = batch_window(p);
    p->parts_max = batch_parts_max(p);
    p->next_seq = 1;
    p->flights = calloc(p->window, sizeof *p->flights);
    p->free_readback = calloc(n_readback, sizeof *p->free_readback);
    bool ok = p->flights != NULL && p->free_readback != NULL;
    for (uint32_t i = 0; ok && i < p->window; i++) {
        flight *f = &p->flights[i];
        f->part = calloc(p->parts_max, sizeof *f->part);
        f->result = calloc(n_readback, sizeof *f->result);
        ok = f->part != NULL && f->result != NULL;
    }
    if (!ok) return errmsg_set(e, ST_RESOURCES, "no memory for the schedule");
    for (uint32_t i = n_readback; i-- > 0;) p->free_readback[p->n_free_readback++] = i;
    return ST_OK;
}

/* --- out --------------------------------------------------------------------------------------------- */

static flight *free_flight(pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq == 0) return &p->flights[i];
    return NULL;
}

static void clear(flight *f)
{
    f->seq = 0;
    f->prime = false;
    f->n_parts = f->n_rows = f->n_results = 0;
    f->body_bytes = 0;
}

static wire_row row_of(const request *r, uint64_t i)
{
    session *s = r->session;
    return (wire_row){.session_step = s->steps + (i - r->n_issued),
                      .session = s->id,
                      .generation = s->generation,
                      .branch = s->branch,
                      .position = (uint32_t)(r->first_position + i),
                      .token = r->tokens[i],
                      .flags = ROW_LIVE,
                      .readback = WIRE_NONE,
                      .sampler_i = WIRE_NONE};
}

/* The step's message being put together. */
typedef struct {
    wire_step *step;
    wire_row *rows;
    sampler_params *samplers; /* behind the rows */
} draft;

/* What row i of the request of part part_i is to give. */
static void want_results(pipeline *p, flight *f, uint32_t part_i, uint64_t i, draft *d, wire_row *row)
{
    const request *r = f->part[part_i].r;
    bool sample = r->want_sample && i + 1 == r->n_tokens;
    if (r->logits == NULL && !sample && !r->deferred) return;
    if (r->logits != NULL || r->deferred) row->flags |= ROW_LOGITS;
    if (sample) {
        row->flags |= ROW_SAMPLE;
        row->sampler_i = d->step->n_samplers;
        d->samplers[d->step->n_samplers++] = r->session->sampler;
    }
    row->readback = r->deferred ? r->readback : p->free_readback[--p->n_free_readback];
    f->result[f->n_results++] = (flight_result){row->readback, part_i, i, TOKEN_NONE};
}

static void put_rows(pipeline *p, flight *f, draft *d)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < f->n_parts; k++) {
        const flight_part *part = &f->part[k];
        for (uint64_t i = part->first; i < part->first + part->n_rows; i++, n++) {
            d->rows[n] = row_of(part->r, i);
            want_results(p, f, k, i, d, &d->rows[n]);
        }
    }
}

static status room_for_body(flight *f, uint64_t bytes, errmsg *e)
{
    if (bytes <= f->body_room) return ST_OK;
    free(f->body);
    f->body = malloc(bytes);
    f->body_room = f->body != NULL ? bytes : 0;
    return f->body != NULL ? ST_OK : errmsg_set(e, ST_RESOURCES, "no memory for a step");
}

/* Put the step of f together, in f->body, with the operations on KV that are due. */
static status make_body(pipeline *p, flight *f, errmsg *e)
{
    uint32_t n_ops = p->n_kv_ops < WIRE_KV_OPS_MAX ? p->n_kv_ops : WIRE_KV_OPS_MAX;
    uint64_t seq = p->next_seq;
    TRY(room_for_body(f, wire_step_bytes(n_ops, f->n_rows, f->n_parts) - sizeof(wire_header), e));
    draft d = {.step = (wire_step *)f->body};
    *d.step = (wire_step){.slot = p->step_doors.overlap ? (uint32_t)(seq % 2) : 0,
                          .n_kv_ops = n_ops,
                          .n_rows = f->n_rows,
                          .rounds = 1};
    if (f->prime) d.step->flags |= STEP_PRIME;
    if (p->step_doors.overlap) d.step->flags |= STEP_OVERLAP;
    if (p->step_doors.prime_pipe) d.step->flags |= STEP_PRIME_PIPE;
    d.rows = (wire_row *)(d.step + 1);
    d.samplers = (sampler_params *)(d.rows + f->n_rows);
    put_rows(p, f, &d);
    memcpy(d.samplers + d.step->n_samplers, p->kv_ops, n_ops * sizeof *p->kv_ops);
    f->body_bytes =
        wire_step_bytes(n_ops, f->n_rows, d.step->n_samplers) - sizeof(wire_header);
    p->n_kv_ops -= n_ops;
    memmove(p->kv_ops, p->kv_ops + n_ops, p->n_kv_ops * sizeof *p->kv_ops);
    return ST_OK;
}

static status send_step(pipeline *p, flight *f, errmsg *e)
{
    TRY(make_body(p, f, e));
    f->seq = p->next_seq++;
    p->n_flights++;
    for (uint32_t s = 0; s < p->n_stages; s++)
        TRY(launch_send(p, s, WIRE_STEP, f->seq, f->body, f->body_bytes, e));
    return ST_OK;
}

/* Its rows are on their way: their sessions' turn is over. */
static void issued(pipeline *p, const flight *f)
{
    for (uint32_t k = 0; k < f->n_parts; k++) {
        request *r = f->part[k].r;
        session *s = r->session;
        s->steps += f->part[k].n_rows;
        r->n_issued += f->part[k].n_rows;
        r->n_steps++;
        remove_session(p, s);
        if (r->n_issued == r->n_tokens) remove_first(s);
        if (s->first != NULL) append_session(p, s);
    }
}

static status issue(pipeline *p, flight *f, errmsg *e)
{
    for (uint32_t k = 0; k < f->n_parts; k++) {
        const flight_part *part = &f->part[k];
        TRY(kvbooks_slide(part->r->session, part->r->first_position + part->first, part->n_rows, e));
    }
    if (p->n_kv_ops > WIRE_KV_OPS_MAX) { /* they go alone; the rows when their turn comes again */
        clear(f);
        return send_step(p, f, e);
    }
    TRY(send_step(p, f, e));
    issued(p, f);
    return ST_OK;
}

status schedule_issue(pipeline *p, errmsg *e)
{
    while (p->n_flights < p->window) {
        flight *f = free_flight(p);
        CHECK(f != NULL);
        clear(f);
        if (!batch_choose(p, f)) return ST_OK;
        TRY(issue(p, f, e));
    }
    return ST_OK;
}

status schedule_reissue(pipeline *p, errmsg *e)
{
    for (uint64_t last = 0;;) {
        const flight *next = NULL;
        for (uint32_t i = 0; i < p->window; i++) {
            const flight *f = &p->flights[i];
            if (f->seq > last && (next == NULL || f->seq < next->seq)) next = f;
        }
        if (next == NULL) return ST_OK;
        last = next->seq;
        for (uint32_t s = 0; s < p->n_stages; s++)
            TRY(launch_send(p, s, WIRE_STEP, next->seq, next->body, next->body_bytes, e));
    }
}

/* --- in ---------------------------------------------------------------------------------------------- */

/* A result row, before anything of its step is taken: nothing is believed unseen. */
static status check_row(const pipeline *p, const flight *f, flight_result *x, errmsg *e)
{
    const request *r = f->part[x->part_i].r;
    readback_row *row = readback_row_at(&p->results, x->readback);
    uint32_t last = p->n_stages - 1;
    if (atomic_load_explicit(&row->commit, memory_order_acquire) != f->seq) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: step %llu reported done, result row %u is not its",
                          last, (unsigned long long)f->seq, x->readback);
    }
    uint32_t row_status = row->status, token = x->token = row->token;
    if (row_status == ST_NAN) {
        return errmsg_set(e, ST_NAN, "stage %u: NaN or infinity in the logits of session %u after "
                          "position %llu",
                          last, r->session->id, (unsigned long long)(r->first_position + x->row));
    }
    if (row_status != ST_OK) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: result row %u has status %u", last, x->readback,
                          row_status);
    }
    if (r->want_sample && x->row + 1 == r->n_tokens && token >= p->results.n_vocab) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: token %u of session %u is not in the vocabulary of "
                          "%u",
                          last, token, r->session->id, p->results.n_vocab);
    }
    return ST_OK;
}

static void take_row(pipeline *p, const flight *f, const flight_result *x)
{
    request *r = f->part[x->part_i].r;
    readback_row *row = readback_row_at(&p->results, x->readback);
    size_t n_vocab = p->results.n_vocab;
    if (r->want_sample && x->row + 1 == r->n_tokens) r->next_token = x->token;
    if (r->deferred) return; /* its logits stay where they are until somebody asks */
    if (r->logits != NULL)
        memcpy(r->logits + x->row * n_vocab, row->logits, n_vocab * sizeof(float));
    p->free_readback[p->n_free_readback++] = x->readback;
}

/* All stages have applied it. */
static void mirror_flight(pipeline *p, const flight *f)
{
    step_view v = wire_step_body_view(f->body);
    mirror_step(&p->mirror, f->seq, v.kv_ops, v.step->n_kv_ops, v.rows, v.step->n_rows);
}

status schedule_result(pipeline *p, uint64_t seq, const wire_result *result, errmsg *e)
{
    flight *f = NULL;
    for (uint32_t i = 0; i < p->window && f == NULL; i++)
        if (p->flights[i].seq == seq && seq != 0) f = &p->flights[i];
    if (f == NULL || result->n_rows != f->n_results) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: result of step %llu with %u rows was not asked for",
                          p->n_stages - 1, (unsigned long long)seq, result->n_rows);
    }
    for (uint32_t i = 0; i < f->n_results; i++) TRY(check_row(p, f, &f->result[i], e));
    for (uint32_t i = 0; i < f->n_results; i++) take_row(p, f, &f->result[i]);
    mirror_flight(p, f);
    f->seq = 0;
    p->n_flights--;
    for (uint32_t k = 0; k < f->n_parts; k++) {
        request *r = f->part[k].r;
        r->n_done += f->part[k].n_rows;
        r->n_steps--;
        if (r->n_done == r->n_tokens) finish(p, r);
    }
    return ST_OK;
}

/* --- the end ----------------------------------------------------------------------------------------- */

void schedule_end_all(pipeline *p)
{
    /* In flight and issued whole: only their flights know them. */
    for (uint32_t i = 0; i < p->window; i++) {
        flight *f = &p->flights[i];
        for (uint32_t k = 0; f->seq != 0 && k < f->n_parts; k++) {
            request *r = f->part[k].r;
            if (--r->n_steps == 0 && r->n_issued == r->n_tokens) finish(p, r);
        }
        f->seq = 0;
    }
    while (p->ready_first != NULL) {
        session *s = p->ready_first;
        remove_session(p, s);
        while (s->first != NULL) {
            request *r = s->first;
            remove_first(s);
            finish(p, r);
        }
    }
    p->n_flights = 0;
}

void schedule_release(pipeline *p)
{
    for (uint32_t i = 0; p->flights != NULL && i < p->window; i++) {
        free(p->flights[i].part);
        free(p->flights[i].result);
        free(p->flights[i].body);
    }
    free(p->flights);
    free(p->kv_ops);
    free(p->free_readback);
}
