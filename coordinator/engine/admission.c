/* Who gets KV. A session whose first request has no blocks yet, or whose own were let go, stands in
 * line; the first of the line is given what it needs or nobody is, so that a large request is not
 * passed over by small ones for ever. Order: priority, then arrival; who has seen PASSED_OVER_MAX
 * others admitted goes before all.
 *
 * Room is made in this order: prefixes that nobody holds (kvbooks.c does that by itself), the KV of
 * idle sessions, least recently used first, the KV of ready generations that come later in the
 * order. What is let go is primed again from the session's tokens, so that nothing but time is
 * lost.
 *
 * Who takes over blocks of others waits until every stage has them in its table: only then are rows
 * issued that rely on them. So a block that is in no open session's table is relied upon by nobody,
 * and can be forgotten at any time. */
#include "coordinator/engine/kvbooks.h"

#include "common/kvclass.h"
#include "common/log.h"

#define PASSED_OVER_MAX 32u

/* --- the line --------------------------------------------------------------------------------- */

void admission_wait(pipeline *p, session *s)
{
    s->waiting = true;
    s->waits_since = p->n_admitted;
    s->waiting_next = p->waiting;
    p->waiting = s;
}

void admission_leave(pipeline *p, session *s)
{
    session **at = &p->waiting;
    while (*at != s) at = &(*at)->waiting_next;
    *at = s->waiting_next;
    s->waiting_next = NULL;
    s->waiting = false;
}

uint32_t admission_n_waiting(const pipeline *p)
{
    uint32_t n = 0;
    for (const session *s = p->waiting; s != NULL; s = s->waiting_next) n++;
    return n;
}

static bool passed_over(const session *s)
{
    return s->waiting && s->p->n_admitted - s->waits_since >= PASSED_OVER_MAX;
}

static bool goes_before(const session *a, const session *b)
{
    if (passed_over(a) != passed_over(b)) return passed_over(a);
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->ticket < b->ticket;
}

static session *first_of_line(const pipeline *p)
{
    session *first = NULL;
    for (session *s = p->waiting; s != NULL; s = s->waiting_next)
        if (first == NULL || goes_before(s, first)) first = s;
    return first;
}

/* --- making room ------------------------------------------------------------------------------ */

/* Let go of its KV. Nothing of it is in flight. */
static bool let_go(pipeline *p, session *s)
{
    errmsg why = {0};
    CHECK(s->n_steps == 0);
    if (kvbooks_truncate(s, 0, &why) != ST_OK) return false;
    s->paused = s->position > 0;
    p->n_pauses++;
    return true;
}

/* Nobody asked it for anything, or what was asked stands in line behind `whom` (NULL: not so). */
static bool may_lose(const session *s, const session *whom)
{
    if (s == NULL || s == whom || s->n_steps > 0 || s->table[KV_CLASS_GLOBAL].n == 0) return false;
    return s->n_queued == 0 || (whom != NULL && s->waiting && goes_before(whom, s));
}

static session *idle_one(const pipeline *p, const session *whom)
{
    session *oldest = NULL;
    for (uint32_t i = 0; i < p->plan.n_sessions; i++) {
        session *s = p->sessions[i];
        if (may_lose(s, whom) && (oldest == NULL || s->used < oldest->used)) oldest = s;
    }
    return oldest;
}

/* The ready generation that comes last in the order; NULL: none. One whose restoring rows are still
 * in flight keeps what it has. */
static session *last_generation(const pipeline *p)
{
    session *last = NULL;
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (s->first->generation == NULL || s->n_steps > 0) continue;
        if (last == NULL || goes_before(last, s)) last = s;
    }
    return last;
}

static bool pause_generation(pipeline *p, session *s)
{
    generation *g = s->first->generation;
    if (!let_go(p, s)) return false;
    if (g->cancelled) { /* it need not come back */
        g->end = GENERATE_CANCELLED;
        schedule_withdraw(p, g);
        return true;
    }
    schedule_unready(p, s);
    schedule_ready(p, s); /* in line, as it has no KV */
    return true;
}

static bool make_room(pipeline *p, const session *whom)
{
    session *s = idle_one(p, whom);
    if (s != NULL) return let_go(p, s);
    s = last_generation(p);
    return s != NULL && goes_before(whom, s) && pause_generation(p, s);
}

/* --- who is given KV -------------------------------------------------------------------------- */

/* Positions that a waiting session must hold before its first request goes. */
static uint64_t held_before(const session *s)
{
    return s->first->generation != NULL ? s->position : s->first->first_position;
}

/* Take over what others hold of the tokens that would be primed; the last token of a request is
 * walked in any case. An earlier try's remain: s->n_adopted. */
static status adopt(session *s, const request *r, errmsg *e)
{
    if (s->table[KV_CLASS_GLOBAL].n > 0) return ST_OK;
    if (s->paused) return kvbooks_adopt(s, s->tokens, held_before(s), e);
    if (!r->prime || r->logits != NULL || r->first_position > 0) return ST_OK;
    return kvbooks_adopt(s, r->tokens, r->n_tokens - 1, e);
}

/* What its session took over is done of r, its first request. */
static void adopted(pipeline *p, request *r)
{
    session *s = r->session;
    if (s->n_adopted == 0) return;
    r->n_issued = r->n_done = s->n_adopted;
    p->n_shared_rows += s->n_adopted;
    s->n_adopted = 0;
}

/* A session that was let go begins again only while those that generate have a block left each:
 * they would take it back at once. */
static bool may_begin(const pipeline *p, const session *s, uint64_t end)
{
    uint32_t n_running = 0;
    if (!s->paused) return true;
    for (uint32_t i = 0; i < p->plan.n_sessions; i++) {
        const session *x = p->sessions[i];
        n_running += x != NULL && x->generating && !x->waiting;
    }
    uint64_t need = end / KV_BLOCK + 1 - s->table[KV_CLASS_GLOBAL].n;
    uint64_t free_blocks = kvbooks_free_blocks(p) + (uint64_t)p->prefixes.n_entries;
    return n_running == 0 || need + n_running <= free_blocks;
}

static void restore(pipeline *p, session *s, uint64_t n)
{
    s->paused = false;
    s->restore = (request){.session = s,
                           .tokens = s->tokens,
                           .n_tokens = n,
                           .prime = true,
                           .restores = true};
    adopted(p, &s->restore);
    if (s->restore.n_issued < n) schedule_push(p, &s->restore);
}

static bool admit(pipeline *p, session *s)
{
    uint64_t held = held_before(s), end = s->position + (s->first->generation != NULL);
    errmsg why = {0};
    if (adopt(s, s->first, &why) != ST_OK || !may_begin(p, s, end)) return false;
    while (kvbooks_reserve(s, s->paused ? s->n_adopted : held, end, &why) != ST_OK)
        if (!make_room(p, s)) return false;
    if (s->n_adopted > 0 && p->n_ops_landed < s->adopted_at) return false; /* very soon */
    for (request *r = s->first; r != NULL; r = r->next) r->unreserved = false;
    if (s->paused)
        restore(p, s, held);
    else
        adopted(p, s->first);
    admission_leave(p, s);
    p->n_admitted++;
    schedule_ready(p, s);
    return true;
}

void admission_run(pipeline *p)
{
    session *s;
    while ((s = first_of_line(p)) != NULL && admit(p, s)) {
    }
}

bool admission_needs_ops(const pipeline *p)
{
    if (p->n_kv_ops == 0) return false;
    for (const session *s = p->waiting; s != NULL; s = s->waiting_next)
        if (s->n_adopted > 0) return true;
    return false;
}

void admission_forget(pipeline *p)
{
    errmsg why = {0};
    if (p->n_pools > KV_CLASS_WINDOW) return;
    for (uint32_t i = 0; i < p->plan.n_sessions; i++) {
        session *s = p->sessions[i];
        if (s == NULL || s->n_adopted == 0) continue;
        if (kvbooks_truncate(s, 0, &why) != ST_OK) log_warn("%s", why.text);
    }
    prefix_forget_unheld(&p->prefixes);
}

static session *short_of_a_round(const pipeline *p)
{
    errmsg why = {0};
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (s->first->generation == NULL) continue;
        if (kvbooks_reserve(s, s->position, s->position + 1, &why) != ST_OK) return s;
    }
    return NULL;
}

void admission_press(pipeline *p)
{
    while (short_of_a_round(p) != NULL) {
        session *idle = idle_one(p, NULL), *last = last_generation(p);
        if (idle == NULL && last == NULL) return;
        if (!(idle != NULL ? let_go(p, idle) : pause_generation(p, last))) return;
    }
}

status admission_reserve(session *s, request *r, bool *waits, errmsg *e)
{
    pipeline *p = s->p;
    uint64_t end = s->position + r->n_tokens;
    *waits = true;
    if (s->paused || s->waiting || (s->wait && p->waiting != NULL)) return ST_OK;
    TRY(adopt(s, r, e));
    status st = kvbooks_reserve(s, s->position, end, e);
    if (st == ST_OK) {
        *waits = s->n_adopted > 0;
        return ST_OK;
    }
    errmsg why = {0};
    if (s->wait) errmsg_clear(e);
    else if (s->n_adopted > 0) TRY(kvbooks_truncate(s, 0, &why));
    return s->wait ? ST_OK : st;
}
