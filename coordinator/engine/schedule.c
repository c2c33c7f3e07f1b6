/* Steps out: batch.c says which rows go next, here they become a message to every stage; what comes
 * back finds the requests again in results.c. Requests of one session stand in line by position;
 * sessions that have rows to issue stand in one list, in the order of their turns. */
#include "coordinator/engine/engine.h"
#include "coordinator/engine/kvbooks.h"

#include "common/boundary.h"
#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

/* --- the list of sessions --------------------------------------------------------------------- */

void schedule_ready(pipeline *p, session *s)
{
    if (admission_wants(s)) {
        admission_wait(p, s);
        return;
    }
    s->ready_next = NULL;
    if (p->ready_last != NULL)
        p->ready_last->ready_next = s;
    else
        p->ready_first = s;
    p->ready_last = s;
}

void schedule_unready(pipeline *p, session *s)
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
    if (s->first != NULL) {
        s->last->next = r;
        s->last = r;
        return;
    }
    s->first = s->last = r;
    s->generating = r->generation != NULL;
    s->ticket = ++p->n_tickets;
    schedule_ready(p, s);
}

void schedule_push(pipeline *p, request *r)
{
    session *s = r->session;
    CHECK(s->waiting && s->first != NULL);
    p->n_restored_rows += r->n_tokens - r->n_issued;
    r->next = s->first;
    s->first = r;
}

void schedule_remove_first(session *s)
{
    s->first = s->first->next;
    if (s->first == NULL) s->last = NULL;
    s->generating = s->first != NULL && s->first->generation != NULL;
}

void schedule_finish(pipeline *p, request *r)
{
    r->finished = true;
    if (r->restores) return;
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
    const generation *g = r->generation;
    if (g != NULL && g->limits.on_more != NULL) g->limits.on_more(g->limits.ctx);
}

status schedule_prepare(pipeline *p, errmsg *e)
{
    uint32_t n_readback = p->plan.n_readback;
    p->window = batch_window(p);
    p->parts_max = batch_parts_max(p);
    p->chunk_costs = chunk_costs_of(p->model, &p->plan);
    p->results_max = n_readback + p->parts_max;
    p->next_seq = 1;
    p->flights = calloc(p->window, sizeof *p->flights);
    p->free_readback = calloc(n_readback, sizeof *p->free_readback);
    bool ok = p->flights != NULL && p->free_readback != NULL;
    for (uint32_t i = 0; ok && i < p->window; i++) {
        flight *f = &p->flights[i];
        f->part = calloc(p->parts_max, sizeof *f->part);
        f->result = calloc(p->results_max, sizeof *f->result);
        ok = f->part != NULL && f->result != NULL;
    }
    if (!ok) return errmsg_set(e, ST_RESOURCES, "no memory for the schedule");
    for (uint32_t i = n_readback; i-- > 0;) p->free_readback[p->n_free_readback++] = i;
    return ST_OK;
}

/* --- out -------------------------------------------------------------------------------------- */

static flight *free_flight(pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq == 0) return &p->flights[i];
    return NULL;
}

static void clear(flight *f)
{
    f->seq = 0;
    f->prime = f->free_running = f->verify = f->unsplit = false;
    f->short_for_drafts = f->alone = f->goes_on = false;
    f->after = NULL;
    f->crowd = (worth_crowd){0};
    f->held_ns = 0;
    f->n_parts = f->n_rows = f->n_results = f->n_pieces = f->n_taken = 0;
    f->rounds = f->n_groups = 1;
    f->group_end[0] = 0;
    f->body_bytes = 0;
}

static wire_row row_of(const session *s, uint64_t session_step, uint64_t position, uint32_t token)
{
    return (wire_row){.session_step = session_step,
                      .session = s->id,
                      .generation = s->generation,
                      .branch = s->branch,
                      .position = (uint32_t)position,
                      .token = token,
                      .flags = ROW_LIVE,
                      .readback = WIRE_NONE,
                      .sampler_i = WIRE_NONE,
                      .stop_i = WIRE_NONE,
                      .rounds = 1};
}

/* The step's message being put together: its arrays at their largest sizes. */
typedef struct {
    wire_step *step;
    wire_row *rows;
    sampler_params *samplers; /* [n_parts] */
    wire_stops *stops;        /* [n_parts]; moved down behind the operations in the end */
} draft;

static uint32_t put_sampler(draft *d, const session *s)
{
    d->samplers[d->step->n_samplers] = s->sampler;
    return d->step->n_samplers++;
}

/* What row i of the request of part part_i is to give. */
static void want_results(pipeline *p, flight *f, uint32_t part_i, uint64_t i, draft *d,
                         wire_row *row)
{
    const request *r = f->part[part_i].r;
    bool sample = r->want_sample && i + 1 == r->n_tokens;
    bool logits = r->logits != NULL || r->deferred;
    if (!logits && !sample) return;
    if (logits) row->flags |= ROW_LOGITS;
    if (sample) {
        row->flags |= ROW_SAMPLE;
        row->sampler_i = put_sampler(d, r->session);
    }
    if (logits) row->readback = r->deferred ? r->readback : p->free_readback[--p->n_free_readback];
    f->result[f->n_results++] = (flight_result){row->readback, part_i, i, TOKEN_NONE};
}

static void put_generation(const flight_part *part, draft *d, wire_row *row)
{
    const generation *g = part->r->generation;
    const session *s = part->r->session;
    *row = row_of(s, s->steps + part->ahead, part->first, g->input);
    row->flags |= ROW_SAMPLE;
    row->sampler_i = put_sampler(d, s);
    row->rounds = part->rounds;
    if (g->stops.n == 0) return;
    row->stop_i = d->step->n_stops;
    d->stops[d->step->n_stops++] = g->stops;
}

/* The token that was drawn, then the drafts: each draws what comes after it. */
static uint32_t put_drafts(const flight_part *part, draft *d, uint32_t n)
{
    const generation *g = part->r->generation;
    const session *s = part->r->session;
    uint32_t sampler_i = put_sampler(d, s);
    for (uint32_t k = 0; k < part->n_rows; k++, n++) {
        d->rows[n] =
            row_of(s, s->steps + k, part->first + k, k == 0 ? g->input : g->guesses.token[k - 1]);
        d->rows[n].flags |= ROW_SAMPLE;
        d->rows[n].sampler_i = sampler_i;
    }
    return n;
}

static void put_rows(pipeline *p, flight *f, draft *d)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < f->n_parts; k++) {
        const flight_part *part = &f->part[k];
        const request *r = part->r;
        if (f->free_running) {
            put_generation(part, d, &d->rows[n++]);
            continue;
        }
        if (f->verify) {
            n = put_drafts(part, d, n);
            continue;
        }
        for (uint64_t i = part->first; i < part->first + part->n_rows; i++, n++) {
            d->rows[n] = row_of(r->session, r->session->steps + (i - r->n_issued),
                                r->first_position + i, r->tokens[i]);
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
    wire_step most = {.n_kv_ops = p->n_kv_ops < WIRE_KV_OPS_MAX ? p->n_kv_ops : WIRE_KV_OPS_MAX,
                      .n_rows = f->n_rows,
                      .n_samplers = f->n_parts,
                      .n_stops = f->n_parts,
                      .rounds = f->rounds,
                      .n_groups = f->n_groups};
    TRY(room_for_body(f, wire_step_bytes(&most) - sizeof(wire_header), e));
    draft d = {.step = (wire_step *)f->body};
    d.rows = (wire_row *)(d.step + 1);
    d.samplers = (sampler_params *)(d.rows + f->n_rows);
    d.stops = (wire_stops *)((wire_kv_op *)(d.samplers + f->n_parts) + most.n_kv_ops);
    *d.step = most;
    d.step->n_samplers = d.step->n_stops = 0;
    if (f->prime) d.step->flags |= STEP_PRIME;
    if (f->verify && f->n_rows > f->n_parts) d.step->flags |= STEP_VERIFY;
    if (f->goes_on) d.step->flags |= STEP_GOES_ON;
    if (f->unsplit) d.step->flags |= STEP_UNSPLIT;
    if (p->step_doors.overlap) d.step->flags |= STEP_OVERLAP;
    if (p->step_doors.prime_pipe) d.step->flags |= STEP_PRIME_PIPE;
    if (p->step_doors.overlap) d.step->slot = p->next_slot;
    put_rows(p, f, &d);
    wire_kv_op *ops = (wire_kv_op *)(d.samplers + d.step->n_samplers);
    memmove(ops + most.n_kv_ops, d.stops, d.step->n_stops * sizeof *d.stops);
    memcpy(ops, p->kv_ops, most.n_kv_ops * sizeof *ops);
    wire_stops *stops = (wire_stops *)(ops + most.n_kv_ops);
    memcpy(stops + d.step->n_stops, f->group_end, f->n_groups * sizeof *f->group_end);
    f->body_bytes = wire_step_bytes(d.step) - sizeof(wire_header);
    p->n_kv_ops -= most.n_kv_ops;
    f->ops_end = p->n_ops_put - p->n_kv_ops;
    memmove(p->kv_ops, p->kv_ops + most.n_kv_ops, p->n_kv_ops * sizeof *p->kv_ops);
    return ST_OK;
}

bool schedule_goes_ahead(const pipeline *p)
{
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const device_door d = p->plan.stage[s].device;
        if (p->stage[s].met.ahead == 0) return false;
        for (uint32_t t = 0; d.kind == DEVICE_CUDA && t < s; t++) {
            const device_door other = p->plan.stage[t].device;
            if (other.kind == DEVICE_CUDA && gpus_same(&p->gpus, d.index, other.index))
                return false;
        }
    }
    return p->n_stages > 1;
}

/* As the boundaries are now: a step that is issued again may find others. */
static void choose_way(const pipeline *p, const flight *f)
{
    wire_step *step = (wire_step *)f->body;
    bool fits = f->free_running && !f->unsplit && (step->rounds > 1 || f->goes_on) &&
                step->n_groups <= wire_ahead_groups(p->n_stages, f->overlap);
    for (uint32_t g = 0, begin = 0; g < step->n_groups; begin = f->group_end[g++])
        fits = fits && f->group_end[g] - begin <= WIRE_AHEAD_ROWS;
    step->flags &= ~STEP_AHEAD;
    if (fits && f->ahead && schedule_goes_ahead(p)) step->flags |= STEP_AHEAD;
}

static status send_step(pipeline *p, flight *f, errmsg *e)
{
    TRY(make_body(p, f, e));
    f->overlap = p->step_doors.overlap;
    f->ahead = p->step_doors.ahead;
    choose_way(p, f);
    f->seq = p->next_seq++;
    f->issued_ns = now_ns();
    p->next_slot = (p->next_slot + f->rounds * f->n_groups) % BOUNDARY_SLOTS;
    p->n_flights++;
    for (uint32_t s = 0; s < p->n_stages; s++)
        TRY(launch_send(p, s, WIRE_STEP, f->seq, f->body, f->body_bytes, e));
    return ST_OK;
}

/* Its rows are on their way: their sessions' turn is over. A generation's next turn comes when they
 * are back. */
static void issued(pipeline *p, const flight *f)
{
    for (uint32_t k = 0; k < f->n_parts; k++) {
        const flight_part *part = &f->part[k];
        request *r = part->r;
        session *s = r->session;
        r->n_steps++;
        s->n_steps++;
        if (!f->goes_on) schedule_unready(p, s);
        if (flight_generates(f)) {
            s->position += f->verify ? part->n_rows : part->rounds;
            continue;
        }
        s->steps += part->n_rows;
        r->n_issued += part->n_rows;
        if (r->n_issued == r->n_tokens) schedule_remove_first(s);
        if (s->first != NULL) schedule_ready(p, s);
    }
}

static status slide(const flight *f, const flight_part *part, errmsg *e)
{
    uint64_t first = flight_generates(f) ? part->first : part->r->first_position + part->first;
    return kvbooks_slide(part->r->session, first, f->free_running ? part->rounds : part->n_rows, e);
}

/* Issue f, or what has to go before it. *wait: nothing may go now. */
static status issue(pipeline *p, flight *f, bool *wait, errmsg *e)
{
    bool wanted = f->unsplit;
    for (uint32_t k = 0; k < f->n_parts; k++) TRY(slide(f, &f->part[k], e));
    /* Operations go alone; the rows when their turn comes again. */
    bool alone = p->n_kv_ops > WIRE_KV_OPS_MAX || (f->unsplit && p->n_kv_ops > 0);
    bool goes = !alone && f->n_parts > 0, unsplit = goes && f->unsplit;
    *wait = !turn_take(p, unsplit, wanted);
    if (*wait || !goes) sequel_give_up(p, f);
    if (!goes) clear(f);
    if (*wait) return ST_OK;
    TRY(send_step(p, f, e));
    issued(p, f);
    return ST_OK;
}

status schedule_issue(pipeline *p, errmsg *e)
{
    admission_run(p);
    while (p->n_flights < p->window && !turn_waits(p)) {
        flight *f = free_flight(p);
        bool wait = false;
        CHECK(f != NULL);
        clear(f);
        batch_choose(p, f);
        if (f->n_parts > 0 || admission_needs_ops(p))
            TRY(issue(p, f, &wait, e));
        else if (!turn_given_up(p))
            return ST_OK;
        if (wait) return ST_OK;
    }
    return ST_OK;
}

status schedule_reissue(pipeline *p, errmsg *e)
{
    for (uint64_t last = 0;;) {
        flight *next = NULL;
        for (uint32_t i = 0; i < p->window; i++) {
            flight *f = &p->flights[i];
            if (f->seq > last && (next == NULL || f->seq < next->seq)) next = f;
        }
        if (next == NULL) return ST_OK;
        last = next->seq;
        next->n_pieces = 0;
        next->alone = false; /* its time is not its own */
        next->issued_ns = now_ns();
        choose_way(p, next);
        for (uint32_t s = 0; s < p->n_stages; s++)
            TRY(launch_send(p, s, WIRE_STEP, next->seq, next->body, next->body_bytes, e));
    }
}

void schedule_withdraw(pipeline *p, generation *g)
{
    session *s = g->r.session;
    if (s->waiting)
        admission_leave(p, s);
    else
        schedule_unready(p, s);
    schedule_remove_first(s);
    schedule_finish(p, &g->r);
}

/* --- the end ---------------------------------------------------------------------------------- */

void schedule_end_all(pipeline *p)
{
    /* In flight and issued whole: only their flights know them. */
    for (uint32_t i = 0; i < p->window; i++) {
        flight *f = &p->flights[i];
        for (uint32_t k = 0; f->seq != 0 && k < f->n_parts; k++) {
            request *r = f->part[k].r;
            if (r == NULL || --r->n_steps > 0) continue;
            if (r->session->first == r && r->generation != NULL) schedule_remove_first(r->session);
            if (r->generation != NULL || r->why.code != ST_OK || r->n_issued == r->n_tokens)
                schedule_finish(p, r);
        }
        f->seq = 0;
    }
    while (p->ready_first != NULL || p->waiting != NULL) {
        session *s = p->ready_first != NULL ? p->ready_first : p->waiting;
        if (s->waiting)
            admission_leave(p, s);
        else
            schedule_unready(p, s);
        while (s->first != NULL) {
            request *r = s->first;
            schedule_remove_first(s);
            schedule_finish(p, r);
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
