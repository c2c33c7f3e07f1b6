/* Steps out, results in. Requests stand in one queue in the order of arrival; a request gives its
 * next chunk when its turn comes and goes to the end of the queue, so that a long prompt does not
 * hold up a neighbour's decode. Rows of one session are issued in the order of their positions. The
 * window bounds the steps in flight: enough that every stage has one in hand and one waiting. */
#include "coordinator/engine/engine.h"
#include "coordinator/engine/kvbooks.h"

#include <stdlib.h>
#include <string.h>

void schedule_add(pipeline *p, request *r)
{
    r->next = NULL;
    if (p->last != NULL)
        p->last->next = r;
    else
        p->first = r;
    p->last = r;
}

static void unlink_request(pipeline *p, request *r)
{
    request *before = NULL;
    for (request *at = p->first; at != r; at = at->next) before = at;
    if (before != NULL)
        before->next = r->next;
    else
        p->first = r->next;
    if (p->last == r) p->last = before;
    r->next = NULL;
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
    p->window = p->n_stages == 1 ? 2 : 2 * p->n_stages;
    p->next_seq = 1;
    p->flights = calloc(p->window, sizeof *p->flights);
    p->free_readback = calloc(n_readback, sizeof *p->free_readback);
    bool ok = p->flights != NULL && p->free_readback != NULL;
    for (uint32_t i = 0; ok && i < p->window; i++) {
        p->flights[i].readback = calloc(n_readback, sizeof *p->flights[i].readback);
        p->flights[i].readback_for = calloc(n_readback, sizeof *p->flights[i].readback_for);
        ok = p->flights[i].readback != NULL && p->flights[i].readback_for != NULL;
    }
    if (!ok) return errmsg_set(e, ST_RESOURCES, "no memory for the schedule");
    for (uint32_t i = n_readback; i-- > 0;) p->free_readback[p->n_free_readback++] = i;
    return ST_OK;
}

/* --- out --------------------------------------------------------------------------------------------- */

static uint32_t chunk_rows(const pipeline *p, const request *r)
{
    uint64_t left = r->n_tokens - r->n_issued;
    uint64_t rows = p->plan.rows_max;
    if (p->step_doors.prime_chunk != 0 && p->step_doors.prime_chunk < rows)
        rows = p->step_doors.prime_chunk;
    if (r->logits != NULL && p->n_free_readback < rows) rows = p->n_free_readback;
    return (uint32_t)(left < rows ? left : rows);
}

/* Rows of one session go in the order of their positions, whatever the queue looks like. */
static bool in_order(const pipeline *p, const request *r)
{
    for (const request *at = p->first; at != NULL; at = at->next) {
        if (at != r && at->session == r->session && at->first_position < r->first_position)
            return false;
    }
    return true;
}

static bool may_issue(const pipeline *p, const request *r)
{
    if (!in_order(p, r)) return false;
    if (r->prime && !p->step_doors.prime_pipe && r->n_steps > 0) return false;
    if (r->deferred) return true; /* has its readback row */
    return p->n_free_readback > 0;
}

static flight *free_flight(pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq == 0) return &p->flights[i];
    return NULL;
}

static wire_row row_of(const request *r, uint64_t i)
{
    session *s = r->session;
    return (wire_row){.session_step = s->steps + i,
                      .session = s->id,
                      .generation = s->generation,
                      .branch = s->branch,
                      .position = (uint32_t)(r->first_position + r->n_issued + i),
                      .token = r->tokens[r->n_issued + i],
                      .flags = ROW_LIVE,
                      .readback = WIRE_NONE,
                      .sampler_i = WIRE_NONE};
}

static void want_results(pipeline *p, const request *r, flight *f, wire_row *row, uint64_t i)
{
    bool last = r->n_issued + i + 1 == r->n_tokens;
    bool sample = last && r->want_sample;
    if (r->logits == NULL && !sample && !r->deferred) return;
    if (r->logits != NULL || r->deferred) row->flags |= ROW_LOGITS;
    if (sample) {
        row->flags |= ROW_SAMPLE;
        row->sampler_i = 0;
    }
    row->readback = r->deferred ? r->readback : p->free_readback[--p->n_free_readback];
    f->readback[f->n_readback] = row->readback;
    f->readback_for[f->n_readback++] = r->n_issued + i;
}

/* Put a step together in p->frame and send it to every stage. r NULL: KV operations alone. */
static status send_step(pipeline *p, request *r, uint32_t n_rows, flight *f, errmsg *e)
{
    uint32_t n_ops = p->n_kv_ops < WIRE_KV_OPS_MAX ? p->n_kv_ops : WIRE_KV_OPS_MAX;
    uint32_t n_samplers = r != NULL && r->want_sample && r->n_issued + n_rows == r->n_tokens;
    uint64_t seq = p->next_seq++;
    wire_step *step = (wire_step *)p->frame;
    *step = (wire_step){.slot = p->step_doors.overlap ? (uint32_t)(seq % 2) : 0,
                        .n_kv_ops = n_ops,
                        .n_rows = n_rows,
                        .n_samplers = n_samplers,
                        .rounds = 1};
    if (r != NULL && r->prime) step->flags |= STEP_PRIME;
    if (p->step_doors.overlap) step->flags |= STEP_OVERLAP;
    if (p->step_doors.prime_pipe) step->flags |= STEP_PRIME_PIPE;
    unsigned char *at = (unsigned char *)(step + 1);
    for (uint32_t i = 0; i < n_rows; i++) {
        wire_row row = row_of(r, i);
        want_results(p, r, f, &row, i);
        memcpy(at, &row, sizeof row);
        at += sizeof row;
    }
    if (n_samplers > 0) {
        memcpy(at, &r->session->sampler, sizeof r->session->sampler);
        at += sizeof r->session->sampler;
    }
    memcpy(at, p->kv_ops, n_ops * sizeof *p->kv_ops);
    at += n_ops * sizeof *p->kv_ops;
    for (uint32_t s = 0; s < p->n_stages; s++)
        TRY(launch_send(p, s, WIRE_STEP, seq, p->frame, (uint64_t)(at - p->frame), e));
    p->n_kv_ops -= n_ops;
    memmove(p->kv_ops, p->kv_ops + n_ops, p->n_kv_ops * sizeof *p->kv_ops);
    f->seq = seq;
    f->owner = r;
    f->n_rows = n_rows;
    p->n_flights++;
    return ST_OK;
}

static status issue(pipeline *p, request *r, errmsg *e)
{
    flight *f = free_flight(p);
    CHECK(f != NULL);
    *f = (flight){.readback = f->readback, .readback_for = f->readback_for};
    uint32_t n_rows = chunk_rows(p, r);
    TRY(kvbooks_slide(r->session, r->first_position + r->n_issued, n_rows, e));
    if (p->n_kv_ops > WIRE_KV_OPS_MAX) return send_step(p, NULL, 0, f, e);
    TRY(send_step(p, r, n_rows, f, e));
    r->session->steps += n_rows;
    r->n_issued += n_rows;
    r->n_steps++;
    unlink_request(p, r);
    if (r->n_issued < r->n_tokens) schedule_add(p, r);
    return ST_OK;
}

status schedule_issue(pipeline *p, errmsg *e)
{
    while (p->n_flights < p->window) {
        request *r = p->first;
        while (r != NULL && !may_issue(p, r)) r = r->next;
        if (r == NULL) return ST_OK;
        TRY(issue(p, r, e));
    }
    return ST_OK;
}

/* --- in ---------------------------------------------------------------------------------------------- */

static status take_row(pipeline *p, const flight *f, uint32_t i, errmsg *e)
{
    request *r = f->owner;
    readback_row *row = readback_row_at(&p->results, f->readback[i]);
    uint64_t row_i = f->readback_for[i];
    uint64_t position = r->first_position + row_i;
    if (atomic_load_explicit(&row->commit, memory_order_acquire) != f->seq) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: step %llu reported done, result row %u is not its",
                          p->n_stages - 1, (unsigned long long)f->seq, f->readback[i]);
    }
    uint32_t row_status = row->status;
    if (row_status != ST_OK && row_status != ST_NAN) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: result row %u has status %u", p->n_stages - 1,
                          f->readback[i], row_status);
    }
    if (row_status == ST_NAN) {
        return errmsg_set(e, ST_NAN, "stage %u: NaN or infinity in the logits of session %u after "
                          "position %llu",
                          p->n_stages - 1, r->session->id, (unsigned long long)position);
    }
    uint32_t n_vocab = p->results.n_vocab;
    if (r->want_sample && row_i + 1 == r->n_tokens) {
        uint32_t token = row->token;
        if (token >= n_vocab) {
            return errmsg_set(e, ST_PROTOCOL, "stage %u: token %u of session %u is not in the vocabulary "
                              "of %u",
                              p->n_stages - 1, token, r->session->id, n_vocab);
        }
        r->next_token = token;
    }
    if (r->deferred) return ST_OK; /* its logits stay where they are until somebody asks */
    if (r->logits != NULL)
        memcpy(r->logits + row_i * n_vocab, row->logits, (size_t)n_vocab * sizeof(float));
    p->free_readback[p->n_free_readback++] = f->readback[i];
    return ST_OK;
}

status schedule_result(pipeline *p, uint64_t seq, const wire_result *result, errmsg *e)
{
    flight *f = NULL;
    for (uint32_t i = 0; i < p->window && f == NULL; i++)
        if (p->flights[i].seq == seq && seq != 0) f = &p->flights[i];
    if (f == NULL || result->n_rows != f->n_readback) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: result of step %llu with %u rows was not asked for",
                          p->n_stages - 1, (unsigned long long)seq, result->n_rows);
    }
    for (uint32_t i = 0; i < f->n_readback; i++) TRY(take_row(p, f, i, e));
    request *r = f->owner;
    f->seq = 0;
    p->n_flights--;
    if (r == NULL) return ST_OK;
    r->n_done += f->n_rows;
    r->n_steps--;
    if (r->n_done == r->n_tokens) finish(p, r);
    return ST_OK;
}

/* --- the end ----------------------------------------------------------------------------------------- */

void schedule_end_all(pipeline *p)
{
    /* In flight and issued whole: only their flights know them. */
    for (uint32_t i = 0; i < p->window; i++) {
        flight *f = &p->flights[i];
        request *r = f->seq != 0 ? f->owner : NULL;
        f->seq = 0;
        if (r != NULL && --r->n_steps == 0 && r->n_issued == r->n_tokens) finish(p, r);
    }
    while (p->first != NULL) {
        request *r = p->first;
        unlink_request(p, r);
        finish(p, r);
    }
    p->n_flights = 0;
}

void schedule_release(pipeline *p)
{
    for (uint32_t i = 0; p->flights != NULL && i < p->window; i++) {
        free(p->flights[i].readback);
        free(p->flights[i].readback_for);
    }
    free(p->flights);
    free(p->kv_ops);
    free(p->free_readback);
}
