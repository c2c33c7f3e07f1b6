/* The session half of the API: books kept under the pipeline's lock, requests handed to the engine.
 * Its KV is kvbooks.c's. */
#include "common/amount.h"
#include "coordinator/engine/kvbooks.h"

#include <stdlib.h>
#include <string.h>

status session_serves(const pipeline *p, errmsg *e)
{
    if (p->phase == PHASE_READY || p->phase == PHASE_RECOVERING) return ST_OK;
    if (p->failure.code == ST_OK) return errmsg_set(e, ST_CLOSED, "the pipeline is closed");
    return errmsg_set(e, p->failure.code, "%s", p->failure.text);
}

status session_goes_on(const session *s, errmsg *e)
{
    TRY(session_serves(s->p, e));
    return s->ended.code == ST_OK ? ST_OK : errmsg_set(e, s->ended.code, "%s", s->ended.text);
}

status session_check(const session *s, errmsg *e)
{
    pthread_mutex_lock(&s->p->lock);
    status st = session_goes_on(s, e);
    pthread_mutex_unlock(&s->p->lock);
    return st;
}

/* --- open, fork, truncate, drop ---------------------------------------------------------------------- */

/* A caller that waits for a free session; on its stack. */
typedef struct opening {
    struct opening *next;
    int32_t priority;
    uint64_t ticket;
} opening;

static uint32_t free_branch(const pipeline *p)
{
    uint32_t branch = 0;
    while (branch < p->plan.n_sessions && p->branch_used[branch]) branch++;
    return branch;
}

static bool is_next(const pipeline *p, const opening *o)
{
    for (const opening *x = p->openings; x != NULL; x = x->next) {
        if (x->priority > o->priority || (x->priority == o->priority && x->ticket < o->ticket))
            return false;
    }
    return true;
}

/* Until there is a free session and nobody who waits comes before. Lock held. */
static status wait_for_session(pipeline *p, int32_t priority, errmsg *e)
{
    opening o = {.next = p->openings, .priority = priority, .ticket = ++p->n_tickets};
    status s;
    p->openings = &o;
    while ((s = session_serves(p, e)) == ST_OK && (free_branch(p) == p->plan.n_sessions || !is_next(p, &o)))
        pthread_cond_wait(&p->changed, &p->lock);
    opening **at = &p->openings;
    while (*at != &o) at = &(*at)->next;
    *at = o.next;
    pthread_cond_broadcast(&p->changed); /* another may be next now */
    return s;
}

static status make_session(pipeline *p, const session_options *o, session **out, errmsg *e)
{
    uint32_t branch = free_branch(p);
    if (branch == p->plan.n_sessions) {
        return errmsg_set(e, ST_RESOURCES, "%u session%s open, as many as planned (--sessions)",
                          p->plan.n_sessions, p->plan.n_sessions == 1 ? " is" : "s are");
    }
    session *s = calloc(1, sizeof *s);
    if (s != NULL) s->p = p;
    if (s == NULL || !kvbooks_make(s)) {
        if (s != NULL) kvbooks_free(s);
        free(s);
        return errmsg_set(e, ST_RESOURCES, "no memory for a session");
    }
    s->branch = branch;
    s->generation = ++p->branch_generation[branch];
    s->id = ++p->next_session_id;
    s->sampler = o->sampler;
    s->priority = o->priority;
    s->wait = o->wait;
    s->share = o->share;
    p->branch_used[branch] = true;
    p->sessions[branch] = s;
    p->n_sessions++;
    *out = s;
    return ST_OK;
}

static void free_session(session *s, bool branch_free)
{
    s->p->branch_used[s->branch] = !branch_free;
    s->p->sessions[s->branch] = NULL;
    s->p->n_sessions--;
    pthread_cond_broadcast(&s->p->changed); /* somebody may wait for a free one */
    kvbooks_free(s);
    free(s);
}

session_options session_options_default(void)
{
    return (session_options){.sampler = sampler_default()};
}

status session_open_with(pipeline *p, const session_options *o, session **out, errmsg *e)
{
    *out = NULL;
    TRY(sampler_valid(&o->sampler, e));
    pthread_mutex_lock(&p->lock);
    status s = session_serves(p, e);
    if (s == ST_OK && o->wait) s = wait_for_session(p, o->priority, e);
    if (s == ST_OK) s = kvbooks_room(p, 1, e);
    if (s == ST_OK) s = make_session(p, o, out, e);
    if (s == ST_OK) kvbooks_put(*out, KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0);
    pthread_mutex_unlock(&p->lock);
    return s;
}

status session_open(pipeline *p, const sampler_params *sampler, session **out, errmsg *e)
{
    session_options o = session_options_default();
    o.sampler = *sampler;
    return session_open_with(p, &o, out, e);
}

/* Until everything the session asked for is done or the pipeline is dead. */
void session_quiet(session *s)
{
    while (s->n_queued > 0) pthread_cond_wait(&s->p->changed, &s->p->lock);
}

static status fork_locked(session *s, session **out, errmsg *e)
{
    pipeline *p = s->p;
    TRY(session_goes_on(s, e));
    const session_options o = {s->sampler, s->priority, s->wait, s->share};
    if (!s->paused) TRY(kvbooks_can_fork(s, e));
    TRY(kvbooks_room(p, 1 + KVBOOKS_FORK_OPS, e));
    TRY(make_session(p, &o, out, e));
    session *f = *out;
    f->position = s->position;
    f->steps = s->steps;
    f->paused = s->paused;
    memcpy(f->tokens, s->tokens, s->position * sizeof *f->tokens);
    kvbooks_put(f, KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0);
    if (!s->paused) kvbooks_fork(s, f);
    return ST_OK;
}

status session_fork(session *s, session **out, errmsg *e)
{
    *out = NULL;
    pthread_mutex_lock(&s->p->lock);
    session_quiet(s);
    status st = fork_locked(s, out, e);
    pthread_mutex_unlock(&s->p->lock);
    return st;
}

void session_drop(session *s)
{
    if (s == NULL) return;
    pipeline *p = s->p;
    errmsg ignored = {0};
    pthread_mutex_lock(&p->lock);
    session_quiet(s);
    kvbooks_drop(s);
    /* Without memory for the operation the branch stays taken: stages still hold it open. */
    bool told = kvbooks_room(p, 1, &ignored) == ST_OK;
    if (told) kvbooks_put(s, KV_FREE, KV_CLASS_GLOBAL, 0, 0, 0);
    free_session(s, told);
    pthread_mutex_unlock(&p->lock);
}

void session_set_sampler(session *s, const sampler_params *sampler)
{
    pthread_mutex_lock(&s->p->lock);
    session_quiet(s);
    s->sampler = *sampler;
    pthread_mutex_unlock(&s->p->lock);
}

uint64_t session_position(const session *s)
{
    pthread_mutex_lock(&s->p->lock);
    uint64_t n = s->position;
    pthread_mutex_unlock(&s->p->lock);
    return n;
}

/* --- rows -------------------------------------------------------------------------------------------- */

static status check_tokens(const pipeline *p, const uint32_t *tokens, uint64_t n, errmsg *e)
{
    for (uint64_t i = 0; i < n; i++) {
        if (tokens[i] >= p->model->n_vocab) {
            return errmsg_set(e, ST_USAGE, "token %u at place %llu is not in the vocabulary of %u",
                              tokens[i], (unsigned long long)i, p->model->n_vocab);
        }
    }
    return ST_OK;
}

/* Check a request, reserve its blocks and hand it to the engine. Lock held. */
static status submit(session *s, request *r, errmsg *e)
{
    pipeline *p = s->p;
    TRY(session_goes_on(s, e));
    if (s->generating) return errmsg_set(e, ST_USAGE, "the session generates: close that first");
    TRY(check_tokens(p, r->tokens, r->n_tokens, e));
    if (r->n_tokens > p->plan.n_ctx - s->position) {
        return errmsg_set(e, ST_CONTEXT_FULL,
                          "no room for %llu token%s: the context holds %u, %llu are used (--ctx)",
                          (unsigned long long)r->n_tokens, plural(r->n_tokens), p->plan.n_ctx,
                          (unsigned long long)s->position);
    }
    memmove(&s->tokens[s->position], r->tokens, r->n_tokens * sizeof *r->tokens);
    r->session = s;
    r->first_position = s->position;
    TRY(admission_reserve(s, r, &r->unreserved, e));
    r->next_token = TOKEN_NONE;
    s->used = ++p->n_uses;
    s->position += r->n_tokens;
    s->n_queued++;
    pthread_cond_init(&r->done, NULL);
    schedule_add(p, r);
    engine_wake(p);
    return ST_OK;
}

/* Wait for it; the pipeline's failure when it did not come to its end. Lock held. */
static status wait_done(pipeline *p, request *r, errmsg *e)
{
    while (!r->finished) pthread_cond_wait(&r->done, &p->lock);
    pthread_cond_destroy(&r->done);
    if (r->n_done == r->n_tokens) return ST_OK;
    if (r->why.code != ST_OK) return errmsg_set(e, r->why.code, "%s", r->why.text);
    return session_serves(p, e) != ST_OK ? p->failure.code : errmsg_set(e, ST_CLOSED, "the request was ended");
}

static status run_request(session *s, request *r, uint32_t *next, errmsg *e)
{
    pipeline *p = s->p;
    if (next != NULL) *next = TOKEN_NONE;
    pthread_mutex_lock(&p->lock);
    status st = submit(s, r, e);
    if (st == ST_OK) st = wait_done(p, r, e);
    pthread_mutex_unlock(&p->lock);
    if (st == ST_OK && next != NULL) *next = r->next_token;
    return st;
}

status session_prime(session *s, const uint32_t *tokens, uint64_t n, float *logits, uint32_t *next,
                     errmsg *e)
{
    if (n == 0) {
        if (next != NULL) return errmsg_set(e, ST_USAGE, "no token follows an empty prompt");
        return ST_OK;
    }
    request r = {.tokens = tokens,
                 .n_tokens = n,
                 .prime = true,
                 .logits = logits,
                 .want_sample = next != NULL};
    return run_request(s, &r, next, e);
}

status session_step(session *s, uint32_t token, float *logits, uint32_t *next, errmsg *e)
{
    request r = {.tokens = &token, .n_tokens = 1, .logits = logits, .want_sample = next != NULL};
    return run_request(s, &r, next, e);
}

/* --- truncate ---------------------------------------------------------------------------------------- */

static status cut(session *s, uint64_t n, errmsg *e)
{
    /* A session that was let go may hold what it took over while it waited. */
    TRY(kvbooks_truncate(s, s->paused ? 0 : n, e));
    s->position = n;
    s->paused = s->paused && n > 0;
    return ST_OK;
}

/* Blocks of the window before position n were released: the session's own tokens, from the first
 * on, give the same bits again. */
static status prime_again(session *s, uint64_t n, errmsg *e)
{
    request r = {.tokens = s->tokens, .n_tokens = n, .prime = true};
    TRY(kvbooks_can_renew(s, n, e));
    TRY(cut(s, 0, e));
    TRY(submit(s, &r, e));
    return wait_done(s->p, &r, e);
}

status session_truncate(session *s, uint64_t n, errmsg *e)
{
    pipeline *p = s->p;
    pthread_mutex_lock(&p->lock);
    session_quiet(s);
    status st = session_goes_on(s, e);
    if (st == ST_OK && n > s->position) {
        st = errmsg_set(e, ST_USAGE, "cannot truncate a session of %llu positions to %llu",
                        (unsigned long long)s->position, (unsigned long long)n);
    }
    bool gone = !s->paused && kvbooks_window_gone(s, n);
    if (st == ST_OK) st = gone ? prime_again(s, n, e) : cut(s, n, e);
    pthread_mutex_unlock(&p->lock);
    return st;
}

/* --- deferred ---------------------------------------------------------------------------------------- */

status session_step_deferred(session *s, uint32_t token, pending **out, errmsg *e)
{
    pipeline *p = s->p;
    *out = NULL;
    pending *w = calloc(1, sizeof *w);
    if (w == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a deferred step");
    w->r = (request){.n_tokens = 1, .want_sample = true, .deferred = true, .own_token = token};
    w->r.tokens = &w->r.own_token;
    w->p = p;
    pthread_mutex_lock(&p->lock);
    status st = ST_OK;
    /* One row stays free for steps that are waited for. */
    if (p->n_deferred + 1 >= p->plan.n_readback || p->n_free_readback <= 1) {
        st = errmsg_set(e, ST_RESOURCES, "%u deferred steps are in flight: wait for one or drop one",
                        p->n_deferred);
    }
    if (st == ST_OK) st = submit(s, &w->r, e);
    if (st == ST_OK) {
        w->r.readback = p->free_readback[--p->n_free_readback];
        p->n_deferred++;
    }
    pthread_mutex_unlock(&p->lock);
    if (st != ST_OK)
        free(w);
    else
        *out = w;
    return st;
}

status pending_logits_wait(pending *w, float *logits, uint32_t *next, errmsg *e)
{
    pipeline *p = w->p;
    pthread_mutex_lock(&p->lock);
    status st = wait_done(p, &w->r, e);
    if (st == ST_OK && logits != NULL) {
        memcpy(logits, readback_row_at(&p->results, w->r.readback)->logits,
               (size_t)p->results.n_vocab * sizeof *logits);
    }
    p->free_readback[p->n_free_readback++] = w->r.readback;
    p->n_deferred--;
    engine_wake(p);
    pthread_mutex_unlock(&p->lock);
    if (next != NULL) *next = st == ST_OK ? w->r.next_token : TOKEN_NONE;
    free(w);
    return st;
}

void pending_drop(pending *w)
{
    if (w == NULL) return;
    pipeline *p = w->p;
    pthread_mutex_lock(&p->lock);
    if (w->r.finished) {
        p->free_readback[p->n_free_readback++] = w->r.readback;
        p->n_deferred--;
        pthread_cond_destroy(&w->r.done);
        free(w);
    } else {
        w->r.dropped = true; /* the engine frees it when its step is done */
    }
    pthread_mutex_unlock(&p->lock);
}
