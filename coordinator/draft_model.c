#include "coordinator/draft_model.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MAX GENERATE_DRAFT_MAX

struct draft_model {
    draft_source source; /* first: the engine hands it back */
    pipeline *p;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a seat was left, or its thread ended */
    uint32_t n_seats;       /* threads */
    bool broken;            /* the pipeline fails for good: it was said once */
};

/* Shared by the engine thread that asks and the seat's own thread; lock: the model's. */
typedef struct {
    draft_model *d;
    draft_task task;
    pthread_cond_t asked;
    bool left;
    uint32_t *tokens;       /* [n_ctx + ROOM_MAX]: the question's */
    uint64_t n;             /* how many; 0: nothing was asked yet */
    uint32_t room;
    uint64_t answered;      /* n of the answer below */
    uint32_t n_out, out[ROOM_MAX];
    uint64_t spent_ns;
    /* the thread's own */
    session *s;
    uint32_t *held;         /* [n_ctx + ROOM_MAX]: what the session holds */
    uint64_t n_held;
} seat;

/* --- the thread ------------------------------------------------------------------------------- */

/* A question, as it was when it was taken. */
typedef struct {
    uint64_t n;
    uint32_t room;
} question;

static uint64_t common(const uint32_t *a, const uint32_t *b, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* The session comes to hold tokens [n - 1] of the question, which are in `want`. */
static status follow(seat *x, const uint32_t *want, uint64_t n, errmsg *e)
{
    uint64_t n_same = common(x->held, want, x->n_held < n - 1 ? x->n_held : n - 1);
    if (x->s == NULL) {
        const session_options o = {.sampler = x->task.sampler, .wait = true, .share = true};
        TRY(session_open_with(x->d->p, &o, &x->s, e));
    }
    if (n_same < x->n_held) TRY(session_truncate(x->s, n_same, e));
    x->n_held = n_same;
    TRY(session_prime(x->s, want + n_same, n - 1 - n_same, NULL, NULL, e));
    memcpy(x->held + n_same, want + n_same, (n - 1 - n_same) * sizeof *want);
    x->n_held = n - 1;
    return ST_OK;
}

static status draw(seat *x, uint32_t input, uint32_t room, uint32_t *out, uint32_t *n_out,
                   errmsg *e)
{
    const generate_limits l = {.n_max = room};
    generation *g;
    errmsg ignored = {0};
    *n_out = 0;
    TRY(session_generate(x->s, input, &l, &g, e));
    status st = ST_OK;
    while (st == ST_OK && *n_out < room) {
        st = generation_next(g, &out[*n_out], e);
        if (st != ST_OK || out[*n_out] == TOKEN_NONE) break;
        (*n_out)++;
    }
    status closed = generation_close(g, st == ST_OK ? e : &ignored);
    if (st == ST_OK) st = closed;
    if (st != ST_OK) return st;
    x->held[x->n_held++] = input;
    for (uint32_t k = 0; k + 1 < *n_out; k++) x->held[x->n_held++] = out[k];
    return ST_OK;
}

static status answer(seat *x, const uint32_t *want, question q, uint32_t *out, uint32_t *n_out,
                     errmsg *e)
{
    *n_out = 0;
    if (q.n > pipeline_plan(x->d->p)->n_ctx)
        return ST_OK;                  /* its context is the shorter one, and full */
    for (uint64_t i = 0; i < q.n; i++) /* nor is a padded head's token one of its own */
        if (want[i] >= pipeline_model(x->d->p)->n_vocab) return ST_OK;
    TRY(follow(x, want, q.n, e));
    return draw(x, want[q.n - 1], q.room, out, n_out, e);
}

static void fail(draft_model *d, const errmsg *why)
{
    bool asked = why->code == ST_INTERRUPTED || why->code == ST_CLOSED;
    if (!d->broken && !asked)
        log_warn("the draft model is lost, what it drafted for goes on plainly: %s", why->text);
    d->broken = true;
}

static void free_seat(seat *x)
{
    pthread_cond_destroy(&x->asked);
    free(x->tokens);
    free(x->held);
    free(x);
}

/* One question; with the lock held, which is let go meanwhile. */
static void serve(seat *x, uint32_t *want)
{
    draft_model *d = x->d;
    question q = {x->n, x->room};
    uint32_t out[ROOM_MAX], n_out;
    errmsg why = {0};
    memcpy(want, x->tokens, q.n * sizeof *want);
    pthread_mutex_unlock(&d->lock);
    uint64_t begin = now_ns();
    status s = answer(x, want, q, out, &n_out, &why);
    uint64_t spent = now_ns() - begin;
    pthread_mutex_lock(&d->lock);
    if (s != ST_OK) fail(d, &why);
    x->answered = q.n;
    x->n_out = s == ST_OK ? n_out : 0;
    memcpy(x->out, out, x->n_out * sizeof *out);
    x->spent_ns = spent;
    if (!x->left) x->task.wake(x->task.wake_ctx);
}

static void *seat_main(void *seat_)
{
    seat *x = seat_;
    draft_model *d = x->d;
    uint32_t *want = malloc((x->task.n_ctx + ROOM_MAX) * sizeof *want);
    pthread_setname_np(pthread_self(), "drafts");
    pthread_mutex_lock(&d->lock);
    while (!x->left && want != NULL && !d->broken) {
        if (x->n == x->answered)
            pthread_cond_wait(&x->asked, &d->lock);
        else
            serve(x, want);
    }
    while (!x->left) pthread_cond_wait(&x->asked, &d->lock);
    pthread_mutex_unlock(&d->lock);
    session_drop(x->s);
    free(want);
    free_seat(x);
    pthread_mutex_lock(&d->lock);
    d->n_seats--;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* --- the source ------------------------------------------------------------------------------- */

static seat *make_seat(draft_model *d, const draft_task *t)
{
    seat *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->d = d;
    x->task = *t;
    pthread_cond_init(&x->asked, NULL);
    x->tokens = malloc((t->n_ctx + ROOM_MAX) * sizeof *x->tokens);
    x->held = malloc((t->n_ctx + ROOM_MAX) * sizeof *x->held);
    if (x->tokens != NULL && x->held != NULL) return x;
    free_seat(x);
    return NULL;
}

static void *sit(draft_source *source, const draft_task *t)
{
    draft_model *d = (draft_model *)source;
    seat *x = make_seat(d, t);
    pthread_t thread;
    if (x == NULL) return NULL;
    pthread_mutex_lock(&d->lock);
    bool ok = !d->broken && pthread_create(&thread, NULL, seat_main, x) == 0;
    if (ok) pthread_detach(thread);
    d->n_seats += ok;
    pthread_mutex_unlock(&d->lock);
    if (ok) return x;
    free_seat(x);
    return NULL;
}

static void leave(void *seat_)
{
    seat *x = seat_;
    draft_model *d = x->d;
    pthread_mutex_lock(&d->lock);
    x->left = true; /* its thread frees it */
    pthread_cond_signal(&x->asked);
    pthread_mutex_unlock(&d->lock);
}

static uint32_t guess(void *seat_, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    seat *x = seat_;
    draft_model *d = x->d;
    uint32_t n_out = DRAFT_LATER;
    *spent_ns = 0;
    pthread_mutex_lock(&d->lock);
    if (d->broken) {
        n_out = 0;
    } else if (x->n != n) {
        memcpy(x->tokens + x->n, tokens + x->n, (n - x->n) * sizeof *tokens);
        x->n = n;
        x->room = room < ROOM_MAX ? room : ROOM_MAX;
        pthread_cond_signal(&x->asked);
    } else if (x->answered == n) {
        n_out = x->n_out;
        memcpy(out, x->out, n_out * sizeof *out);
        *spent_ns = x->spent_ns;
    }
    pthread_mutex_unlock(&d->lock);
    return n_out;
}

/* --- open, close ------------------------------------------------------------------------------ */

status draft_model_open(draft_model **out, pipeline *p, errmsg *e)
{
    draft_model *d = calloc(1, sizeof *d);
    *out = d;
    if (d == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the draft model's books");
    d->source = (draft_source){.costs = true, .sit = sit, .leave = leave, .guess = guess};
    d->p = p;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    return ST_OK;
}

void draft_model_close(draft_model *d)
{
    if (d == NULL) return;
    pthread_mutex_lock(&d->lock);
    while (d->n_seats > 0) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    pipeline_close(d->p);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

draft_source *draft_model_source(draft_model *d)
{
    return &d->source;
}

pipeline *draft_model_pipeline(draft_model *d)
{
    return d->p;
}
