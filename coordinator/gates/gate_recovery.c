/* recovery: an undisturbed run = a run whose stages are killed at any moment.
 *
 * The reference walks every stream once through one stage. An arm walks all of them at the same
 * time, again and again, over N stages, while stages are killed, stopped and hung at random moments
 * (gate_kills.h). Every walk is compared with the reference in every bit, so a token that is lost,
 * repeated or changed is red; and what was killed must have been replaced, with rows replayed. What
 * it took is reported as p50 and p99. */
#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/gates/gate_kills.h"

#include <pthread.h>
#include <stdlib.h>

#define STREAMS      6u
#define CANARY_KILLS 12u
#define HANG_MS      1000u /* what is stopped or hung is noticed after it */

typedef struct {
    const gate_context *g;
    pipeline *p;
    gate_record reference[STREAMS];
    /* one arm */
    gate_arm *a;
    pthread_mutex_t lock; /* of *a */
    stream_counts counts;
    _Atomic uint32_t stop, n_walks[STREAMS];
} work;

typedef struct {
    work *w;
    uint32_t i;
    pthread_t thread;
} walker;

/* --- the streams ------------------------------------------------------------------------------ */

static void *walker_main(void *arg)
{
    walker *k = arg;
    work *w = k->w;
    gate_record got = {0};
    errmsg e = {0};
    status s = gate_record_open(&got, stream_rows(w->g), w->g->model.n_vocab, &e);
    while (s == ST_OK && atomic_load(&w->stop) == 0) {
        gate_record_clear(&got);
        s = stream_walk(w->g, w->p, k->i, &w->reference[k->i], &got, &w->counts, &e);
        if (s != ST_OK) break;
        pthread_mutex_lock(&w->lock);
        gate_record_compare(w->a, &w->reference[k->i], &got, 0, stream_rows(w->g));
        bool green = w->a->green;
        pthread_mutex_unlock(&w->lock);
        atomic_fetch_add(&w->n_walks[k->i], 1);
        if (!green) atomic_store(&w->stop, 1);
    }
    if (s != ST_OK) {
        pthread_mutex_lock(&w->lock);
        gate_arm_red(w->a, "stream %u ended: %s", k->i, e.text);
        pthread_mutex_unlock(&w->lock);
        atomic_store(&w->stop, 1);
    }
    gate_record_close(&got);
    return NULL;
}

/* --- an arm ----------------------------------------------------------------------------------- */

static uint64_t losses(const work *w)
{
    uint64_t n = 0;
    stage_snapshot t;
    for (uint32_t s = 0; s < pipeline_plan(w->p)->cuts.n_stages; s++) {
        pipeline_stage(w->p, s, &t);
        n += t.n_lost;
    }
    return n;
}

/* Every stream was walked from its beginning to its end since. */
static bool all_walked(const void *ctx)
{
    const work *w = ctx;
    for (uint32_t i = 0; i < STREAMS; i++)
        if (atomic_load(&w->n_walks[i]) < 2) return false;
    return true;
}

/* The canary's: one stage in the midst of the walks, and time for every stream to show what became
 * of it: the next replay would put it right. */
static bool strike_once(work *w, kills *k)
{
    if (!kills_strike_plainly(k, pipeline_plan(w->p)->cuts.n_stages - 1)) return false;
    for (uint32_t i = 0; i < STREAMS; i++) atomic_store(&w->n_walks[i], 0);
    return kills_wait(k, all_walked, w);
}

static void judge(work *w, uint64_t n_kills)
{
    uint64_t n = pipeline_recoveries(w->p, 0, NULL, 0), rows = 0;
    recovery_record r[RECOVERIES_KEPT];
    uint64_t from = n > RECOVERIES_KEPT ? n - RECOVERIES_KEPT : 0;
    pipeline_recoveries(w->p, from, r, RECOVERIES_KEPT);
    for (uint64_t i = from; i < n; i++) rows += r[i - from].replayed_rows;
    if (losses(w) < n_kills)
        gate_arm_red(w->a, "stages lost: %llu; to be killed: %llu", (unsigned long long)losses(w),
                     (unsigned long long)n_kills);
    if (rows == 0) gate_arm_red(w->a, "no row was replayed");
    for (uint32_t s = 0; s < pipeline_plan(w->p)->cuts.n_stages; s++) {
        stage_snapshot one;
        pipeline_stage(w->p, s, &one);
        w->a->ahead += one.n_ahead_rounds;
    }
    if (w->a->ahead == 0 && pipeline_goes_ahead(w->p))
        gate_arm_red(w->a, "what rounds drew went through the hosts, not from device to device");
    draft_counts drafts;
    pipeline_drafts(w->p, &drafts);
    if (drafts.n_accepted == 0 || drafts.n_accepted == drafts.n_drafted)
        gate_arm_red(w->a, "%llu of %llu drafts were right: not some",
                     (unsigned long long)drafts.n_accepted, (unsigned long long)drafts.n_drafted);
    for (uint32_t i = 0; i < STREAMS; i++)
        if (atomic_load(&w->n_walks[i]) == 0)
            gate_arm_red(w->a, "stream %u was not walked to its end", i);
}

/* The streams, while stages are killed; then as they end. */
static status arm_walk(work *w, uint32_t n_kills, kills *k, errmsg *e)
{
    walker walkers[STREAMS];
    uint32_t n = 0;
    status s = ST_OK;
    for (; n < STREAMS; n++) {
        walkers[n] = (walker){.w = w, .i = n};
        if (pthread_create(&walkers[n].thread, NULL, walker_main, &walkers[n]) != 0) {
            s = errmsg_set(e, ST_RESOURCES, "cannot start a thread per stream");
            break;
        }
    }
    while (s == ST_OK && losses(w) < n_kills && atomic_load(&w->stop) == 0) {
        bool well = w->g->canary ? strike_once(w, k) : kills_strike(k);
        if (well || atomic_load(&w->stop) != 0) continue;
        pthread_mutex_lock(&w->lock);
        gate_arm_red(w->a, "a stage that was killed was not replaced within %.0f s",
                     (double)KILLS_PATIENCE_NS / NS_PER_S);
        pthread_mutex_unlock(&w->lock);
        break;
    }
    atomic_store(&w->stop, 1);
    for (uint32_t i = 0; i < n; i++) pthread_join(walkers[i].thread, NULL);
    return interrupt_signal() != 0 ? ST_INTERRUPTED : s;
}

static status arm_open(work *w, const gate_cuts *cuts, const char *fault_text, errmsg *e)
{
    gate_setup setup = {.fault = fault_text,
                        .n_chunk = gate_chunk(w->g),
                        .n_sessions = STREAMS * STREAM_SESSIONS,
                        .restarts = RESTARTS_MAX,
                        .hang_ms = HANG_MS};
    return gate_pipe_open(&w->p, w->g, cuts, &setup, e);
}

static status arm_run(work *w, gate_arm *a, const gate_cuts *cuts, uint32_t n_kills,
                      const char *fault_text, errmsg *e)
{
    kills k = {0};
    status s = ST_OK;
    w->a = a;
    atomic_store(&w->stop, 0);
    for (uint32_t i = 0; i < STREAMS; i++) atomic_store(&w->n_walks[i], 0);
    gate_arm_begin(a, "recovery", "%u kill%s", n_kills, plural(n_kills));
    TRY_DONE(s, arm_open(w, cuts, fault_text, e));
    a->cuts = pipeline_plan(w->p)->cuts;
    s = kills_open(&k, w->p, &w->counts, &w->stop, n_kills, w->g->seed + cuts->n_stages, e);
    if (s == ST_OK) s = arm_walk(w, n_kills, &k, e);
    if (s == ST_OK && !w->g->canary) judge(w, n_kills);
    if (s == ST_OK) kills_report(&k, w->g->report);
    pipeline_close(w->p);
done:
    kills_close(&k);
    return s;
}

/* --- the gate --------------------------------------------------------------------------------- */

static status reference_run(work *w, errmsg *e)
{
    gate_cuts one = gate_cuts_even(1);
    TRY(arm_open(w, &one, NULL, e));
    status s = ST_OK;
    for (uint32_t i = 0; s == ST_OK && i < STREAMS; i++)
        s = stream_walk(w->g, w->p, i, NULL, &w->reference[i], &w->counts, e);
    pipeline_close(w->p);
    return s;
}

static status canary_run(work *w, const gate_cuts *cuts, errmsg *e)
{
    gate_arm a;
    TRY(arm_run(w, &a, cuts, CANARY_KILLS, "stage=all,at=recovery,kind=corrupt,every=1", e));
    gate_report_canary(w->g->report, &a, "one bit of the first row that is replayed is another",
                       "values differ");
    return ST_OK;
}

status gate_recovery(const gate_context *g, errmsg *e)
{
    work w = {.g = g};
    gate_cuts cuts[4];
    uint32_t n_cuts, share;
    status s = ST_OK;
    pthread_mutex_init(&w.lock, NULL);
    for (uint32_t i = 0; i < STREAMS; i++)
        TRY_DONE(s, gate_record_open(&w.reference[i], stream_rows(g), g->model.n_vocab, e));
    TRY_DONE(s, gate_cuts_few(cuts, &n_cuts, g, e));
    TRY_DONE(s, reference_run(&w, e));
    if (g->canary) {
        s = canary_run(&w, &cuts[0], e);
        goto done;
    }
    for (uint32_t i = 0; i < n_cuts; i++) {
        gate_arm a;
        share = g->n_kills / n_cuts + (i < g->n_kills % n_cuts);
        TRY_DONE(s, arm_run(&w, &a, &cuts[i], share, KILLS_FAULT, e));
        gate_report_arm(g->report, &a);
    }
done:
    for (uint32_t i = 0; i < STREAMS; i++) gate_record_close(&w.reference[i]);
    pthread_mutex_destroy(&w.lock);
    return s;
}
