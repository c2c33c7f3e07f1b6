/* Sessions that go on by themselves. The engine issues their steps (batch.c, schedule.c) and hands
 * over each token as it is committed; callers take them. */
#include "coordinator/engine/kvbooks.h"

#include <stdlib.h>
#include <string.h>

/* --- the engine's half ------------------------------------------------------------------------ */

uint64_t generation_rounds_left(const generation *g)
{
    uint64_t context = g->p->plan.n_ctx - g->r.session->position;
    uint64_t limit = g->limits.n_max - g->n_drawn;
    return context < limit ? context : limit;
}

static bool is_stop(const generation *g, uint32_t token)
{
    for (uint32_t i = 0; i < g->stops.n; i++)
        if (g->stops.id[i] == token) return true;
    return false;
}

bool generation_drew(generation *g, uint64_t position, uint32_t token)
{
    session *s = g->r.session;
    CHECK(g->n_drawn < g->n_room);
    g->tokens[g->n_drawn++] = token;
    g->input = token;
    g->undrafted = false;
    if (position + 1 < g->p->plan.n_ctx) s->tokens[position + 1] = token;
    if (is_stop(g, token))
        g->end = GENERATE_STOPPED;
    else if (g->n_drawn == g->limits.n_max)
        g->end = GENERATE_LIMIT;
    pthread_cond_broadcast(&g->r.done);
    if (g->limits.on_more != NULL) g->limits.on_more(g->limits.ctx);
    return g->end != GENERATE_RUNS;
}

status generation_landed(generation *g, uint64_t position, uint32_t n_rows, bool *ended, errmsg *e)
{
    session *s = g->r.session;
    uint64_t n = position + n_rows;
    if (n < s->position) TRY(kvbooks_truncate(s, n, e));
    s->position = n;
    kvbooks_offer(s, n);
    if (g->end == GENERATE_RUNS && g->cancelled) g->end = GENERATE_CANCELLED;
    if (g->end == GENERATE_RUNS && n == g->p->plan.n_ctx) g->end = GENERATE_CONTEXT;
    *ended = g->end != GENERATE_RUNS;
    return ST_OK;
}

/* --- the caller's half ------------------------------------------------------------------------ */

static status check(const session *s, uint32_t token, const generate_limits *l, errmsg *e)
{
    const pipeline *p = s->p;
    TRY(session_goes_on(s, e));
    if (s->generating) return errmsg_set(e, ST_USAGE, "the session generates: close that first");
    if (token >= p->model->n_vocab) {
        return errmsg_set(e, ST_USAGE, "token %u is not in the vocabulary of %u", token,
                          p->model->n_vocab);
    }
    if (l->n_max == 0)
        return errmsg_set(e, ST_USAGE, "a limit of 0 tokens leaves nothing to generate");
    if (l->n_draft > GENERATE_DRAFT_MAX) {
        return errmsg_set(e, ST_USAGE, "%u drafted tokens: at most %u", l->n_draft,
                          GENERATE_DRAFT_MAX);
    }
    if (l->n_stop > GENERATE_STOPS_MAX) {
        return errmsg_set(e, ST_USAGE, "%u stop ids: at most %u", l->n_stop, GENERATE_STOPS_MAX);
    }
    return ST_OK;
}

static generation *make(session *s, uint32_t token, const generate_limits *l)
{
    _Static_assert(GENERATE_STOPS_MAX == WIRE_STOP_IDS, "they travel in one set");
    generation *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    uint64_t context = s->p->plan.n_ctx - s->position;
    g->n_room = l->n_max < context ? l->n_max : context;
    g->tokens = malloc((g->n_room + 1) * sizeof *g->tokens);
    if (g->tokens == NULL) {
        free(g);
        return NULL;
    }
    g->r = (request){.session = s, .generation = g, .next_token = TOKEN_NONE};
    g->p = s->p;
    g->limits = *l;
    g->limits.stop = NULL;
    g->stops.n = l->n_stop;
    if (l->n_stop > 0) memcpy(g->stops.id, l->stop, l->n_stop * sizeof *l->stop);
    g->input = token;
    pthread_cond_init(&g->r.done, NULL);
    return g;
}

status session_generate(session *s, uint32_t token, const generate_limits *l, generation **out,
                        errmsg *e)
{
    pipeline *p = s->p;
    *out = NULL;
    pthread_mutex_lock(&p->lock);
    status st = check(s, token, l, e);
    if (st == ST_OK) session_quiet(s);
    generation *g = st == ST_OK ? make(s, token, l) : NULL;
    if (st == ST_OK && g == NULL) st = errmsg_set(e, ST_RESOURCES, "no memory for a generation");
    if (st == ST_OK && s->position == p->plan.n_ctx) {
        g->end = GENERATE_CONTEXT;
        g->r.finished = true;
    } else if (st == ST_OK) {
        s->tokens[s->position] = token;
        if (l->n_draft > 0) verify_begin(g);
        s->used = ++p->n_uses;
        s->n_queued++;
        schedule_add(p, &g->r);
        engine_wake(p);
    }
    pthread_mutex_unlock(&p->lock);
    *out = g;
    return st;
}

/* Ended without an end of its own: its session was ended, or the pipeline failed. Lock held. */
static status failed(const generation *g, errmsg *e)
{
    if (!g->r.finished || g->end != GENERATE_RUNS) return ST_OK;
    if (g->r.why.code != ST_OK) return errmsg_set(e, g->r.why.code, "%s", g->r.why.text);
    status st = session_serves(g->p, e);
    return st != ST_OK ? st : errmsg_set(e, ST_CLOSED, "the generation was ended");
}

status generation_next(generation *g, uint32_t *token, errmsg *e)
{
    pipeline *p = g->p;
    *token = TOKEN_NONE;
    pthread_mutex_lock(&p->lock);
    while (g->n_taken == g->n_drawn && !g->r.finished) pthread_cond_wait(&g->r.done, &p->lock);
    status st = ST_OK;
    if (g->n_taken < g->n_drawn)
        *token = g->tokens[g->n_taken++];
    else
        st = failed(g, e);
    pthread_mutex_unlock(&p->lock);
    return st;
}

status generation_take(generation *g, uint32_t *tokens, uint32_t room, uint32_t *n,
                       generate_end *end, errmsg *e)
{
    pipeline *p = g->p;
    pthread_mutex_lock(&p->lock);
    uint64_t left = g->n_drawn - g->n_taken;
    *n = left < room ? (uint32_t)left : room;
    memcpy(tokens, g->tokens + g->n_taken, *n * sizeof *tokens);
    g->n_taken += *n;
    *end = g->r.finished && g->n_taken == g->n_drawn ? g->end : GENERATE_RUNS;
    status st = *n == 0 ? failed(g, e) : ST_OK;
    pthread_mutex_unlock(&p->lock);
    return st;
}

generate_end generation_ended(const generation *g)
{
    pthread_mutex_lock(&g->p->lock);
    generate_end end = g->r.finished ? g->end : GENERATE_RUNS;
    pthread_mutex_unlock(&g->p->lock);
    return end;
}

/* Until none of its rows is under way; it stands in no line then. While its session is being
 * restored that comes to its end first. Lock held. */
static void stop(generation *g)
{
    const session *s = g->r.session;
    g->cancelled = true;
    if (!g->r.finished && s->n_steps == 0 && s->first == &g->r) {
        g->end = GENERATE_CANCELLED;
        schedule_withdraw(g->p, g);
    }
    while (!g->r.finished) pthread_cond_wait(&g->r.done, &g->p->lock);
}

status generation_close(generation *g, errmsg *e)
{
    pipeline *p = g->p;
    session *s = g->r.session;
    pthread_mutex_lock(&p->lock);
    stop(g);
    /* The k-th token is applied when the one after it is drawn. */
    uint64_t n_over = g->n_drawn - g->n_taken, keep = s->position - n_over;
    status st = failed(g, e);
    pthread_mutex_unlock(&p->lock);
    if (st == ST_OK && n_over > 0) st = session_truncate(s, keep, e);
    pthread_cond_destroy(&g->r.done);
    guesses_leave(&g->guesses);
    free(g->tokens);
    free(g);
    return st;
}
