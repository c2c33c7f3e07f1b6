/* A randomised soak: hundreds of sessions at N = 1..4 that begin, generate, are stopped, forked,
 * cut back and dropped at random, with random priorities, shared prefixes, drafts of any worth, too
 * little KV for all of them, and doors that change meanwhile. Whatever one of them is told is what
 * its solo run was told. Of a model whose layers all see everything, and of one with window layers
 * (which shares no prefixes).
 *
 * Stages are killed meanwhile, and replaced; at an even number of stages from journals.
 *
 * The seed is printed; MEMRA_SOAK_SEED walks another one, MEMRA_SOAK_LIVES makes it longer,
 * MEMRA_SOAK_KILLS kills more often. */
#include "tests/support/own_seat.h"
#include "tests/support/streams.h"
#include "tests/support/tap.h"

#include "common/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_STREAMS 24u
#define N_THREADS 10u
#define N_SESSIONS 8u  /* fewer than threads: some wait to begin */
#define N_BLOCKS 13u   /* of the 40 that their contexts would fill */
#define LIVES 70u      /* at each number of stages, of each model */
#define KILLS 3u       /* of random stages, meanwhile */

static stream truth[N_STREAMS];
static bool windows;
static uint64_t seed = 1;
static uint32_t n_lives = LIVES, n_kills = KILLS;

/* What every session must be told. */
static void walk_alone(void)
{
    doors d = doors_default();
    pipeline *p = streams_pipeline(&d, 1, 0);
    for (uint32_t i = 0; i < N_STREAMS; i++) {
        uint32_t shared = (i * 53) % 200, n = 1 + (i * 67) % 210;
        streams_make(&truth[i], p, i % 3, shared, n, 1000 + i);
    }
    pipeline_close(p);
}

static int set_up(void **state)
{
    (void)state;
    const char *text = getenv("MEMRA_SOAK_SEED"), *lives = getenv("MEMRA_SOAK_LIVES");
    const char *kills = getenv("MEMRA_SOAK_KILLS");
    if (kills != NULL) n_kills = (uint32_t)strtoul(kills, NULL, 10);
    if (text != NULL) seed = strtoull(text, NULL, 10);
    if (lives != NULL) n_lives = (uint32_t)strtoul(lives, NULL, 10);
    printf("# seed %llu, %u lives\n", (unsigned long long)seed, n_lives);
    streams_open();
    walk_alone();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    streams_close();
    return 0;
}

/* --- one life --------------------------------------------------------------------------------- */

typedef struct {
    pipeline *p;
    uint64_t random;
    uint32_t *lives_left; /* of all threads */
    uint32_t n_done, n_tokens, n_cancelled, n_forked, n_cut;
    status result;
    errmsg why;
    char wrong[128];
} walker;

static uint32_t pick(walker *w, uint32_t n) /* below n */
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 33) % n);
}

/* A session that holds its stream's prompt and k drawn tokens; the next to apply is truth[k]. */
typedef struct {
    session *s;
    const stream *t;
    uint32_t k;
} life;

static bool told(walker *w, const life *l, uint32_t k, uint32_t token, const char *by)
{
    w->n_tokens++;
    if (k < l->t->n_truth && token == l->t->truth[k]) return true;
    if (w->wrong[0] == '\0') {
        snprintf(w->wrong, sizeof w->wrong, "stream %u: token %u by %s is %u, alone it is %u",
                 (uint32_t)(l->t - truth), k, by, token, k < l->t->n_truth ? l->t->truth[k] : 0);
    }
    return false;
}

static status prime_in_pieces(walker *w, life *l, uint32_t from)
{
    uint32_t n = l->t->n_prompt, token = TOKEN_NONE;
    for (uint32_t at = from; at < n;) {
        uint32_t piece = pick(w, 3) == 0 ? 1 + pick(w, n - at) : n - at;
        TRY(session_prime(l->s, l->t->prompt + at, piece, NULL, &token, &w->why));
        at += piece;
    }
    l->k = 0;
    return told(w, l, 0, token, "prime") ? ST_OK : ST_PROTOCOL;
}

static status step_some(walker *w, life *l, uint32_t n)
{
    for (uint32_t i = 0; i < n && l->k + 1 < l->t->n_truth; i++) {
        uint32_t token;
        TRY(session_step(l->s, l->t->truth[l->k], NULL, &token, &w->why));
        if (!told(w, l, ++l->k, token, "step")) return ST_PROTOCOL;
    }
    return ST_OK;
}

/* Drafts that are right but for every `wrong`-th token (0: all are), of every length. */
typedef struct {
    draft_source source; /* the seat is the oracle */
    const stream *t;
    uint32_t wrong, n_asked;
} oracle;

static uint32_t guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    oracle *o = seat;
    uint32_t next = (uint32_t)n - o->t->n_prompt, n_out = 0;
    (void)tokens;
    *spent_ns = 0;
    if (o->n_asked++ % 7 == 6) return 0; /* nothing comes to mind */
    for (; n_out < room && next < o->t->n_truth && n_out <= o->n_asked % 9; n_out++, next++)
        out[n_out] = (o->t->truth[next] + (o->wrong != 0 && next % o->wrong == 0)) % STREAMS_VOCAB;
    return n_out;
}

/* Up to n tokens; stopped after `take` of them. */
static status generate_some(walker *w, life *l, uint32_t n, uint32_t take)
{
    generation *g;
    uint32_t token, stop = l->t->truth[l->k + pick(w, l->t->n_truth - l->k)];
    oracle o = {.source = own_seat(guess), .t = l->t, .wrong = pick(w, 5)};
    generate_limits limits = {.n_max = n, .stop = &stop, .n_stop = pick(w, 4) == 0};
    if (pick(w, 3) != 0) limits.n_draft = 1 + pick(w, GENERATE_DRAFT_MAX);
    limits.draft_always = pick(w, 2) == 0;
    if (pick(w, 4) != 0)
        limits.draft = &o.source; /* otherwise what the session's own tokens suggest */
    TRY(session_generate(l->s, l->t->truth[l->k], &limits, &g, &w->why));
    status s = ST_OK;
    for (uint32_t i = 0; i < take; i++) {
        s = generation_next(g, &token, &w->why);
        if (s != ST_OK || token == TOKEN_NONE) break;
        if (!told(w, l, ++l->k, token, "generation")) s = ST_PROTOCOL;
        if (s != ST_OK) break;
    }
    w->n_cancelled += generation_ended(g) == GENERATE_RUNS;
    status closed = generation_close(g, &w->why);
    return s == ST_OK ? closed : s;
}

static status cut_back(walker *w, life *l)
{
    uint32_t held = l->t->n_prompt + l->k, to = pick(w, held + 1);
    w->n_cut++;
    TRY(session_truncate(l->s, to, &w->why));
    if (to < l->t->n_prompt) return prime_in_pieces(w, l, to);
    l->k = to - l->t->n_prompt;
    return ST_OK;
}

static status act(walker *w, life *l)
{
    uint32_t left = l->t->n_truth - 1 - l->k;
    switch (pick(w, 8)) {
    case 0:
        return cut_back(w, l);
    case 1:
        nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS * 3},
                  NULL); /* idle: it may be let go */
        return ST_OK;
    case 2:
    case 3:
        return step_some(w, l, 1 + pick(w, 12));
    default:
        if (left == 0) return ST_OK;
        return generate_some(w, l, 1 + pick(w, 2 * left),
                             pick(w, 3) == 0 ? pick(w, 20) : UINT32_MAX);
    }
}

static status live(walker *w, life *l)
{
    TRY(prime_in_pieces(w, l, 0));
    for (uint32_t n = 1 + pick(w, 6); n > 0; n--) TRY(act(w, l));
    if (pick(w, 3) != 0) return ST_OK;
    life child = {.t = l->t, .k = l->k};
    status s = session_fork(l->s, &child.s, &w->why);
    if (s == ST_RESOURCES) { /* no session or block is free for it */
        errmsg_clear(&w->why);
        return ST_OK;
    }
    TRY(s);
    w->n_forked++;
    s = act(w, &child);
    if (s == ST_OK) s = act(w, l);
    session_drop(child.s);
    return s;
}

static void *walk(void *arg)
{
    walker *w = arg;
    while (w->result == ST_OK &&
           (int32_t)__atomic_fetch_sub(w->lives_left, 1, __ATOMIC_RELAXED) > 0) {
        life l = {.t = &truth[pick(w, N_STREAMS)]};
        session_options o = {.sampler = l.t->sampler,
                             .priority = (int32_t)pick(w, 3),
                             .wait = true,
                             .share = pick(w, 3) != 0};
        w->result = session_open_with(w->p, &o, &l.s, &w->why);
        if (w->result == ST_OK) w->result = live(w, &l);
        session_drop(l.s);
        w->n_done++;
    }
    if (w->result != ST_OK) __atomic_store_n(w->lives_left, 0, __ATOMIC_RELAXED); /* enough */
    return NULL;
}

/* --- all of them ------------------------------------------------------------------------------ */

static void change_doors(pipeline *p, uint64_t *random)
{
    step_doors d = doors_default().step;
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    d.overlap = (*random >> 40) % 3 != 0;
    d.prime_pipe = (*random >> 44) % 4 != 0;
    d.prime_chunk = (*random >> 48) % 2 == 0 ? 0 : 1 + (uint32_t)((*random >> 50) % 90);
    d.batch_pp = (*random >> 57) % 4 != 0; /* walked on the first stage alone, for a while */
    d.spec_pp = (*random >> 59) % 4 != 0;
    d.prime_pp = (*random >> 61) % 4 != 0;
    errmsg e = {0};
    assert_int_equal(pipeline_set_step_doors(p, &d, &e), ST_OK);
}

static void soak(uint32_t n_stages)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    pipeline *p = n_stages % 2 == 0 ? streams_pipeline_journals(&d, N_SESSIONS, N_BLOCKS)
                                    : streams_pipeline(&d, N_SESSIONS, N_BLOCKS);
    pthread_t thread[N_THREADS];
    walker w[N_THREADS], sum = {0};
    uint32_t lives_left = n_lives, n_kills_left = n_kills;
    uint64_t random = seed + n_stages;
    for (uint32_t i = 0; i < N_THREADS; i++) {
        w[i] =
            (walker){.p = p, .random = seed * 1000 + n_stages * 100 + i, .lives_left = &lives_left};
        assert_int_equal(pthread_create(&thread[i], NULL, walk, &w[i]), 0);
    }
    while ((int32_t)__atomic_load_n(&lives_left, __ATOMIC_RELAXED) > 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS * 20}, NULL);
        change_doors(p, &random);
        if (random >> 60 == 0) pipeline_forget_prefixes(p);
        if (n_kills_left > 0 && (random >> 56) % 5 == 0) {
            stage_snapshot victim;
            pipeline_stage(p, (uint32_t)(random >> 40) % n_stages, &victim);
            if (victim.pid > 0) kill(victim.pid, SIGKILL);
            n_kills_left--;
        }
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        pthread_join(thread[i], NULL);
        if (w[i].result != ST_OK) fail_msg("%s %s", w[i].wrong, w[i].why.text);
        sum.n_done += w[i].n_done;
        sum.n_tokens += w[i].n_tokens;
        sum.n_cancelled += w[i].n_cancelled;
        sum.n_forked += w[i].n_forked;
        sum.n_cut += w[i].n_cut;
    }
    schedule_snapshot t;
    stage_snapshot first, last;
    draft_counts drafts;
    pipeline_schedule(p, &t);
    pipeline_stage(p, 0, &first);
    pipeline_stage(p, n_stages - 1, &last);
    pipeline_drafts(p, &drafts);
    printf("# N=%u: %u lives, %u tokens, %u stopped, %u forked, %u cut; %llu pauses, %llu rows "
           "restored, "
           "%llu shared; %llu batches, %llu of prompts, %llu rounds; %llu of %llu drafts accepted; "
           "%llu "
           "steps unsplit\n",
           n_stages, sum.n_done, sum.n_tokens, sum.n_cancelled, sum.n_forked, sum.n_cut,
           (unsigned long long)t.n_pauses, (unsigned long long)t.n_restored_rows,
           (unsigned long long)t.n_shared_rows, (unsigned long long)last.n_batches,
           (unsigned long long)last.n_prime_batches, (unsigned long long)last.n_free_rounds,
           (unsigned long long)drafts.n_accepted, (unsigned long long)drafts.n_drafted,
           (unsigned long long)first.n_unsplit);
    /* Everything that it is about did happen. */
    assert_int_equal(sum.n_done, n_lives);
    assert_true(sum.n_cancelled > 0 && sum.n_cut > 0);
    assert_true(t.n_pauses > 0 && t.n_restored_rows > 0);
    assert_true(windows ? t.n_shared_rows == 0 : t.n_shared_rows > 0);
    assert_true(drafts.n_accepted > 0 && drafts.n_accepted < drafts.n_drafted);
    assert_true(last.n_batches > 0 && last.n_prime_batches > 0 && last.n_free_rounds > 0);
    assert_int_equal(first.n_unsplit > 0, n_stages > 1);
    assert_int_equal(t.n_sessions, 0);
    assert_int_equal(t.n_waiting, 0);
    assert_int_equal(t.n_blocks_used, t.n_blocks_cached);
    pipeline_close(p);
}

static void all_layers_see_everything(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) soak(n);
}

static void some_layers_see_a_window(void **state)
{
    (void)state;
    streams_close();
    streams_open_arch("gemma3");
    windows = true;
    walk_alone();
    for (uint32_t n = 1; n <= 4; n++) soak(n);
}

int main(void)
{
    tap_begin(600); /* under ThreadSanitizer on two busy cores */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_layers_see_everything),
        cmocka_unit_test(some_layers_see_a_window),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
