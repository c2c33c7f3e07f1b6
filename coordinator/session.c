/* The session half of the API: books kept under the pipeline's lock, requests handed to the engine.
 *
 * KV: a session's table lists its block ids. Whatever changes a table puts an operation into the
 * pipeline's list, which goes with the next step, in order; stages take steps in order, so a block
 * that was let go may be handed out at once. A block that is shared (fork) is copied before anything
 * is written into it. */
#include "coordinator/engine.h"

#include "kernels/backend.h"

#include <stdlib.h>
#include <string.h>

static status dead(const pipeline *p, errmsg *e)
{
    if (p->phase == PHASE_READY) return ST_OK;
    if (p->failure.code == ST_OK) return errmsg_set(e, ST_CLOSED, "the pipeline is closed");
    return errmsg_set(e, p->failure.code, "%s", p->failure.text);
}

/* --- KV books ---------------------------------------------------------------------------------------- */

static status room_for_ops(pipeline *p, uint64_t n_more, errmsg *e)
{
    uint64_t need = p->n_kv_ops + n_more;
    if (need <= p->kv_ops_room) return ST_OK;
    uint64_t room = 2 * need + 64;
    wire_kv_op *grown = room <= UINT32_MAX ? realloc(p->kv_ops, room * sizeof *grown) : NULL;
    if (grown == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for KV operations");
    p->kv_ops = grown;
    p->kv_ops_room = (uint32_t)room;
    return ST_OK;
}

/* Room was made before: an operation list is whole or not there. */
static void put_op(const session *s, kv_op_kind kind, uint32_t a, uint32_t b, uint32_t c)
{
    pipeline *p = s->p;
    CHECK(p->n_kv_ops < p->kv_ops_room);
    p->kv_ops[p->n_kv_ops++] = (wire_kv_op){.kind = (uint32_t)kind,
                                            .kv_class = KV_CLASS_GLOBAL,
                                            .branch = s->branch,
                                            .generation = s->generation,
                                            .a = a,
                                            .b = b,
                                            .c = c};
}

/* The block that holds the session's next position was begun and is shared: it gets its own copy. */
static bool must_copy(const session *s)
{
    return s->position % KV_BLOCK != 0 && s->p->pool.refs[s->table[s->n_table - 1]] > 1;
}

/* Blocks for n more positions. ST_RESOURCES: not enough; nothing has changed then. */
static status reserve(session *s, uint64_t n, errmsg *e)
{
    pipeline *p = s->p;
    uint64_t need = (s->position + n + KV_BLOCK - 1) / KV_BLOCK;
    bool copy = n > 0 && must_copy(s);
    uint64_t n_new = need - s->n_table + copy;
    if (n_new > p->pool.n_blocks - p->pool.n_used) {
        return errmsg_set(e, ST_RESOURCES,
                          "no KV block left: %llu more needed, %u of %u in use; drop a session or raise "
                          "--sessions or --kv-bytes",
                          (unsigned long long)n_new, p->pool.n_used, p->pool.n_blocks);
    }
    TRY(room_for_ops(p, n_new + 1, e));
    if (copy) {
        uint32_t old = s->table[s->n_table - 1], fresh = kvpool_take(&p->pool);
        put_op(s, KV_COPY, fresh, old, (uint32_t)(s->position % KV_BLOCK));
        put_op(s, KV_ALLOC, s->n_table - 1, fresh, 0);
        kvpool_drop(&p->pool, old);
        s->table[s->n_table - 1] = fresh;
    }
    while (s->n_table < need) {
        s->table[s->n_table] = kvpool_take(&p->pool);
        put_op(s, KV_ALLOC, s->n_table, s->table[s->n_table], 0);
        s->n_table++;
    }
    return ST_OK;
}

/* --- open, fork, truncate, drop ---------------------------------------------------------------------- */

static status make_session(pipeline *p, const sampler_params *sampler, session **out, errmsg *e)
{
    uint32_t branch = 0;
    while (branch < p->plan.n_sessions && p->branch_used[branch]) branch++;
    if (branch == p->plan.n_sessions) {
        return errmsg_set(e, ST_RESOURCES, "%u sessions are open, as many as planned (--sessions)",
                          p->plan.n_sessions);
    }
    session *s = calloc(1, sizeof *s);
    if (s != NULL) s->table = calloc(p->blocks_per_ctx, sizeof *s->table);
    if (s == NULL || s->table == NULL) {
        free(s);
        return errmsg_set(e, ST_RESOURCES, "no memory for a session");
    }
    s->p = p;
    s->branch = branch;
    s->generation = ++p->branch_generation[branch];
    s->id = ++p->next_session_id;
    s->sampler = *sampler;
    p->branch_used[branch] = true;
    p->n_sessions++;
    *out = s;
    return ST_OK;
}

static void free_session(session *s, bool branch_free)
{
    s->p->branch_used[s->branch] = !branch_free;
    s->p->n_sessions--;
    free(s->table);
    free(s);
}

status session_open(pipeline *p, const sampler_params *sampler, session **out, errmsg *e)
{
    *out = NULL;
    TRY(sampler_valid(sampler, e));
    pthread_mutex_lock(&p->lock);
    status s = dead(p, e);
    if (s == ST_OK) s = room_for_ops(p, 1, e);
    if (s == ST_OK) s = make_session(p, sampler, out, e);
    if (s == ST_OK) put_op(*out, KV_OPEN, 0, 0, 0);
    pthread_mutex_unlock(&p->lock);
    return s;
}

/* Until everything the session asked for is done or the pipeline is dead. */
static void wait_quiet(session *s)
{
    while (s->n_queued > 0) pthread_cond_wait(&s->p->changed, &s->p->lock);
}

static status fork_locked(session *s, session **out, errmsg *e)
{
    pipeline *p = s->p;
    uint32_t n_whole = (uint32_t)(s->position / KV_BLOCK), rest = (uint32_t)(s->position % KV_BLOCK);
    TRY(dead(p, e));
    if (rest > 0 && p->pool.n_used == p->pool.n_blocks) {
        return errmsg_set(e, ST_RESOURCES, "no KV block left for a fork: %u of %u in use",
                          p->pool.n_used, p->pool.n_blocks);
    }
    TRY(room_for_ops(p, 4, e));
    TRY(make_session(p, &s->sampler, out, e));
    session *f = *out;
    f->position = s->position;
    f->steps = s->steps;
    put_op(f, KV_OPEN, 0, 0, 0);
    put_op(f, KV_FORK, n_whole * KV_BLOCK, s->branch, 0);
    for (uint32_t i = 0; i < n_whole; i++) {
        kvpool_share(&p->pool, s->table[i]);
        f->table[f->n_table++] = s->table[i];
    }
    if (rest > 0) {
        uint32_t fresh = kvpool_take(&p->pool);
        put_op(f, KV_COPY, fresh, s->table[n_whole], rest);
        put_op(f, KV_ALLOC, n_whole, fresh, 0);
        f->table[f->n_table++] = fresh;
    }
    return ST_OK;
}

status session_fork(session *s, session **out, errmsg *e)
{
    *out = NULL;
    pthread_mutex_lock(&s->p->lock);
    wait_quiet(s);
    status st = fork_locked(s, out, e);
    pthread_mutex_unlock(&s->p->lock);
    return st;
}

status session_truncate(session *s, uint64_t n, errmsg *e)
{
    pipeline *p = s->p;
    pthread_mutex_lock(&p->lock);
    wait_quiet(s);
    status st = dead(p, e);
    if (st == ST_OK && n > s->position) {
        st = errmsg_set(e, ST_USAGE, "cannot truncate a session of %llu positions to %llu",
                        (unsigned long long)s->position, (unsigned long long)n);
    }
    if (st == ST_OK) st = room_for_ops(p, 1, e);
    if (st == ST_OK) {
        put_op(s, KV_TRUNCATE, (uint32_t)n, 0, 0);
        s->position = n;
        while (s->n_table > (n + KV_BLOCK - 1) / KV_BLOCK)
            kvpool_drop(&p->pool, s->table[--s->n_table]);
    }
    pthread_mutex_unlock(&p->lock);
    return st;
}

void session_drop(session *s)
{
    if (s == NULL) return;
    pipeline *p = s->p;
    errmsg ignored = {0};
    pthread_mutex_lock(&p->lock);
    wait_quiet(s);
    while (s->n_table > 0) kvpool_drop(&p->pool, s->table[--s->n_table]);
    /* Without memory for the operation the branch stays taken: stages still hold it open. */
    bool told = room_for_ops(p, 1, &ignored) == ST_OK;
    if (told) put_op(s, KV_FREE, 0, 0, 0);
    free_session(s, told);
    pthread_mutex_unlock(&p->lock);
}

void session_set_sampler(session *s, const sampler_params *sampler)
{
    pthread_mutex_lock(&s->p->lock);
    wait_quiet(s);
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
    TRY(dead(p, e));
    TRY(check_tokens(p, r->tokens, r->n_tokens, e));
    if (r->n_tokens > p->plan.n_ctx - s->position) {
        return errmsg_set(e, ST_CONTEXT_FULL,
                          "%llu tokens do not fit: the context holds %u, %llu are used (--ctx)",
                          (unsigned long long)r->n_tokens, p->plan.n_ctx,
                          (unsigned long long)s->position);
    }
    TRY(reserve(s, r->n_tokens, e));
    r->session = s;
    r->first_position = s->position;
    r->next_token = TOKEN_NONE;
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
    return dead(p, e) != ST_OK ? p->failure.code : errmsg_set(e, ST_CLOSED, "the request was ended");
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
