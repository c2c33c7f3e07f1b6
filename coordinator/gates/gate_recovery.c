/* recovery: an undisturbed run = a run whose stages are killed at any moment.
 *
 * The reference walks every stream once through one stage. An arm walks all of them at the same time,
 * again and again, over N stages, while stages are killed at random moments: one; two at once; one
 * more while the first is being replaced. Every walk is compared with the reference in every bit, so
 * a token that is lost, repeated or changed is red; and what was killed must have been replaced, with
 * rows replayed. What it took is reported as p50 and p99. */
#include "common/clock.h"
#include "coordinator/commands/random_tokens.h"
#include "coordinator/gates/gate_streams.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define STREAMS       6u
#define PAUSE_MAX_MS  40u    /* between what one kill did and the next */
#define SECOND_MAX_US 25000u /* after the first: while it is being replaced */
#define PATIENCE_NS   (60 * NS_PER_S)
#define CANARY_KILLS  12u
#define POLL_US       200u

typedef struct {
    const gate_context *g;
    pipeline *p;
    gate_record reference[STREAMS];
    /* one arm */
    gate_arm *a;
    pthread_mutex_t lock; /* of *a */
    _Atomic uint64_t n_tokens;
    _Atomic uint32_t stop, n_walks[STREAMS];
} work;

typedef struct {
    work *w;
    uint32_t i;
    pthread_t thread;
} walker;

/* Milliseconds of every kill, sorted when reported. */
typedef struct {
    uint32_t n;
    double *ms;
} series;

enum { NOTICED, REAPED, STARTED, REPLAYED, TOTAL, NEXT_TOKEN, N_SERIES };
static const char *const series_words[N_SERIES] = {"noticed", "reaped", "started", "replayed",
                                                   "kill to resume", "kill to next token"};

typedef struct {
    uint32_t stage;
    int pid;
    uint64_t ns;
} kill_made;

static void sleep_us(uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

/* --- the streams ------------------------------------------------------------------------------------- */

static void *walker_main(void *arg)
{
    walker *k = arg;
    work *w = k->w;
    gate_record got = {0};
    errmsg e = {0};
    status s = gate_record_open(&got, stream_rows(w->g), w->g->model.n_vocab, &e);
    while (s == ST_OK && atomic_load(&w->stop) == 0) {
        gate_record_clear(&got);
        s = stream_walk(w->g, w->p, k->i, &got, &w->n_tokens, &e);
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

/* --- the kills --------------------------------------------------------------------------------------- */

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

static kill_made kill_stage(const work *w, uint32_t stage)
{
    stage_snapshot t;
    pipeline_stage(w->p, stage, &t);
    kill_made k = {.stage = stage, .pid = t.pid, .ns = now_ns()};
    kill(t.pid, SIGKILL);
    return k;
}

static bool replaced(const work *w, const kill_made *k, uint32_t n)
{
    stage_snapshot t;
    for (uint32_t i = 0; i < n; i++) {
        pipeline_stage(w->p, k[i].stage, &t);
        if (t.pid == k[i].pid) return false;
    }
    for (uint32_t s = 0; s < pipeline_plan(w->p)->cuts.n_stages; s++) {
        pipeline_stage(w->p, s, &t);
        if (t.replacing) return false;
    }
    return true;
}

static bool wait_until(const work *w, bool (*is)(const work *w, const kill_made *k, uint32_t n),
                       const kill_made *k, uint32_t n)
{
    for (uint64_t begin = now_ns(); now_ns() - begin < PATIENCE_NS && interrupt_signal() == 0;
         sleep_us(POLL_US)) {
        if (is(w, k, n)) return true;
        if (atomic_load(&w->stop) != 0) return false;
    }
    return false;
}

/* n: the count of tokens to be passed. */
static bool a_token_came(const work *w, const kill_made *k, uint32_t n)
{
    (void)k;
    return (uint32_t)atomic_load(&w->n_tokens) != n;
}

static void take_times(const work *w, uint64_t from, const kill_made *k, uint32_t n, uint64_t token_ns,
                       series *out)
{
    recovery_record r[STAGES_MAX];
    uint64_t n_records = pipeline_recoveries(w->p, from, r, STAGES_MAX);
    for (uint64_t i = from; i < n_records && i - from < STAGES_MAX; i++) {
        const recovery_record *x = &r[i - from];
        for (uint32_t j = 0; j < n; j++) {
            if (x->lost_pid != k[j].pid || x->stage != k[j].stage) continue;
            const uint64_t ns[N_SERIES] = {x->noticed_ns - k[j].ns,       x->reaped_ns - x->noticed_ns,
                                           x->attached_ns - x->reaped_ns, x->resumed_ns - x->attached_ns,
                                           x->resumed_ns - k[j].ns,       token_ns - k[j].ns};
            for (uint32_t m = 0; m < N_SERIES; m++) out[m].ms[out[m].n++] = (double)ns[m] / 1e6;
        }
    }
}

/* Kill at a random moment, in one of the ways; wait until all is well again. */
static bool strike(work *w, uint64_t *random, series *out)
{
    uint32_t n_stages = pipeline_plan(w->p)->cuts.n_stages, n = 0;
    uint32_t first = (uint32_t)(random_next(random) % n_stages), way = random_next(random) % 6;
    kill_made k[2];
    sleep_us(random_next(random) % (PAUSE_MAX_MS * 1000));
    uint64_t from = pipeline_recoveries(w->p, 0, NULL, 0);
    k[n++] = kill_stage(w, first);
    if (way == 0 && n_stages > 1) k[n++] = kill_stage(w, (first + 1) % n_stages);
    if (way == 1) {
        sleep_us(random_next(random) % SECOND_MAX_US);
        k[n++] = kill_stage(w, (uint32_t)(random_next(random) % n_stages));
    }
    if (!wait_until(w, replaced, k, n)) return false;
    if (!wait_until(w, a_token_came, k, (uint32_t)atomic_load(&w->n_tokens))) return false;
    take_times(w, from, k, n, now_ns(), out);
    return true;
}

/* Every stream was walked from its beginning to its end since. */
static bool all_walked(const work *w, const kill_made *k, uint32_t n)
{
    (void)k, (void)n;
    for (uint32_t i = 0; i < STREAMS; i++)
        if (atomic_load(&w->n_walks[i]) < 2) return false;
    return true;
}

/* The canary's: one stage in the midst of the walks, and time for every stream to show what became of
 * it: the next replay would put it right. */
static bool strike_once(work *w, uint64_t *random)
{
    sleep_us(random_next(random) % (PAUSE_MAX_MS * 1000));
    kill_made k = kill_stage(w, pipeline_plan(w->p)->cuts.n_stages - 1);
    if (!wait_until(w, replaced, &k, 1)) return false;
    for (uint32_t i = 0; i < STREAMS; i++) atomic_store(&w->n_walks[i], 0);
    return wait_until(w, all_walked, NULL, 0);
}

/* --- an arm ------------------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report_times(const work *w, series *s)
{
    for (uint32_t m = 0; m < N_SERIES; m++) {
        uint32_t n = s[m].n;
        if (n == 0) continue;
        qsort(s[m].ms, n, sizeof *s[m].ms, by_size);
        gate_report_note(w->g->report, "N=%u %s: p50 %.1f ms, p99 %.1f ms of %u",
                         pipeline_plan(w->p)->cuts.n_stages, series_words[m], s[m].ms[n / 2],
                         s[m].ms[(uint64_t)n * 99 / 100], n);
    }
}

static void judge(work *w, uint64_t kills)
{
    uint64_t n = pipeline_recoveries(w->p, 0, NULL, 0), rows = 0;
    recovery_record r[RECOVERIES_KEPT];
    uint64_t from = n > RECOVERIES_KEPT ? n - RECOVERIES_KEPT : 0;
    pipeline_recoveries(w->p, from, r, RECOVERIES_KEPT);
    for (uint64_t i = from; i < n; i++) rows += r[i - from].replayed_rows;
    if (losses(w) < kills)
        gate_arm_red(w->a, "%llu stages were lost, %llu were to be killed", (unsigned long long)losses(w),
                     (unsigned long long)kills);
    if (rows == 0) gate_arm_red(w->a, "no row was replayed");
    for (uint32_t i = 0; i < STREAMS; i++)
        if (atomic_load(&w->n_walks[i]) == 0) gate_arm_red(w->a, "stream %u was not walked to its end", i);
}

/* The streams, while stages are killed; then as they end. */
static status arm_walk(work *w, uint32_t kills, uint64_t seed, series *times, errmsg *e)
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
    while (s == ST_OK && losses(w) < kills && atomic_load(&w->stop) == 0) {
        bool well = w->g->canary ? strike_once(w, &seed) : strike(w, &seed, times);
        if (well || atomic_load(&w->stop) != 0) continue;
        pthread_mutex_lock(&w->lock);
        gate_arm_red(w->a, "a stage that was killed was not replaced within %.0f s",
                     (double)PATIENCE_NS / NS_PER_S);
        pthread_mutex_unlock(&w->lock);
        break;
    }
    atomic_store(&w->stop, 1);
    for (uint32_t i = 0; i < n; i++) pthread_join(walkers[i].thread, NULL);
    return interrupt_signal() != 0 ? ST_INTERRUPTED : s;
}

static status arm_open(work *w, uint32_t n_stages, const char *fault_text, errmsg *e)
{
    gate_cuts cuts = gate_cuts_even(n_stages);
    gate_setup setup = {.fault = fault_text,
                        .n_chunk = gate_chunk(w->g),
                        .n_sessions = STREAMS * STREAM_SESSIONS,
                        .restarts = RESTARTS_MAX};
    return gate_pipe_open(&w->p, w->g, &cuts, &setup, e);
}

static status arm_run(work *w, gate_arm *a, uint32_t n_stages, uint32_t kills, const char *fault_text,
                      errmsg *e)
{
    series times[N_SERIES] = {0};
    status s = ST_OK;
    w->a = a;
    atomic_store(&w->stop, 0);
    for (uint32_t i = 0; i < STREAMS; i++) atomic_store(&w->n_walks[i], 0);
    for (uint32_t m = 0; m < N_SERIES; m++) {
        times[m].ms = calloc(kills + 2, sizeof *times[m].ms);
        if (times[m].ms == NULL) s = errmsg_set(e, ST_RESOURCES, "no memory for times");
    }
    gate_arm_begin(a, "recovery", "%u kills", kills);
    TRY_DONE(s, s);
    TRY_DONE(s, arm_open(w, n_stages, fault_text, e));
    a->cuts = pipeline_plan(w->p)->cuts;
    s = arm_walk(w, kills, w->g->seed + n_stages, times, e);
    if (s == ST_OK && fault_text == NULL) judge(w, kills);
    if (s == ST_OK) report_times(w, times);
    pipeline_close(w->p);
done:
    for (uint32_t m = 0; m < N_SERIES; m++) free(times[m].ms);
    return s;
}

/* --- the gate ---------------------------------------------------------------------------------------- */

static status reference_run(work *w, errmsg *e)
{
    TRY(arm_open(w, 1, NULL, e));
    status s = ST_OK;
    for (uint32_t i = 0; s == ST_OK && i < STREAMS; i++)
        s = stream_walk(w->g, w->p, i, &w->reference[i], &w->n_tokens, e);
    pipeline_close(w->p);
    return s;
}

static status canary_run(work *w, uint32_t n_stages, errmsg *e)
{
    gate_arm a;
    TRY(arm_run(w, &a, n_stages, CANARY_KILLS, "stage=all,at=recovery,kind=corrupt,every=1", e));
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
        s = canary_run(&w, cuts[0].n_stages, e);
        goto done;
    }
    for (uint32_t i = 0; i < n_cuts; i++) {
        gate_arm a;
        share = g->n_kills / n_cuts + (i < g->n_kills % n_cuts);
        TRY_DONE(s, arm_run(&w, &a, cuts[i].n_stages, share, NULL, e));
        gate_report_arm(g->report, &a);
    }
done:
    for (uint32_t i = 0; i < STREAMS; i++) gate_record_close(&w.reference[i]);
    pthread_mutex_destroy(&w.lock);
    return s;
}
