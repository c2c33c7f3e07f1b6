/* Sessions that go on by themselves give what their steps give one by one: at any number of stages,
 * whoever generates beside them, wherever they end. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 260u
#define N_SESSIONS 9u
#define N_TOKENS 150u /* drawn alone, step by step */

static char dir[] = "/tmp/memra-t.XXXXXX";
static char model_path[64];
static uint32_t prompt[N_SESSIONS][N_CTX];
static const uint32_t prompt_n[N_SESSIONS] = {1, 3, 64, 65, 17, 100, 30, 2, 110};
static uint32_t truth[N_SESSIONS][N_TOKENS + 1];

#define OK(expr) assert_int_equal(expr, ST_OK)

static void write_model(void)
{
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_default();
    spec.n_layers = 4;
    spec.n_ctx = N_CTX;
    spec.n_vocab = N_VOCAB;
    small_model(model_path, &spec);
}

static pipeline *open_doors(const doors *d)
{
    pipeline_options o = small_options(model_path, dir, d);
    o.plan.n_sessions = N_SESSIONS + 1;
    o.plan.n_ctx = N_CTX;
    return small_open(&o);
}

static pipeline *open_n(uint32_t n_stages, bool overlap)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    d.step.overlap = overlap;
    return open_doors(&d);
}

static session *primed(pipeline *p, uint32_t i)
{
    sampler_params sampler = sampler_default();
    session *s;
    errmsg e = {0};
    uint32_t token;
    sampler.temperature = 0.9f + 0.01f * (float)i; /* a run of greedy tokens soon repeats itself */
    sampler.repetition_penalty = 1.1f;
    sampler.penalty_last_n = 16;
    sampler.seed = 100 + i;
    if (session_open(p, &sampler, &s, &e) != ST_OK) fail_msg("%s", e.text);
    OK(session_prime(s, prompt[i], prompt_n[i], NULL, &token, &e));
    if (truth[i][0] != 0) assert_int_equal(token, truth[i][0]);
    truth[i][0] = token;
    return s;
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    write_model();
    for (uint32_t s = 0; s < N_SESSIONS; s++)
        for (uint32_t i = 0; i < N_CTX; i++) prompt[s][i] = (i * (37 + s) + 11 * s) % N_VOCAB;
    pipeline *p = open_n(1, true);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        session *s = primed(p, i);
        small_steps(s, truth[i], N_TOKENS);
        session_drop(s);
    }
    pipeline_close(p);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* Take n tokens (at most) and compare them; how many came. */
static uint32_t take(generation *g, uint32_t i, uint32_t from, uint32_t n)
{
    errmsg e = {0};
    for (uint32_t k = 0; k < n; k++) {
        uint32_t token;
        if (generation_next(g, &token, &e) != ST_OK) fail_msg("%s", e.text);
        if (token == TOKEN_NONE) return k;
        assert_int_equal(token, truth[i][from + k]);
    }
    return n;
}

/* The session goes on from `n` applied tokens after its prompt as if it had been stepped. */
static void goes_on(session *s, uint32_t i, uint32_t n)
{
    errmsg e = {0};
    assert_int_equal(session_position(s), prompt_n[i] + n);
    for (uint32_t k = n; k < n + 3 && k < N_TOKENS; k++) {
        uint32_t token;
        OK(session_step(s, truth[i][k], NULL, &token, &e));
        assert_int_equal(token, truth[i][k + 1]);
    }
}

static void one_session_equals_its_steps(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n, n != 3);
        stage_snapshot before, first, last;
        session *s = primed(p, 3);
        generation *g;
        pipeline_stage(p, 0, &before);
        OK(session_generate(s, truth[3][0], &(generate_limits){.n_max = 100}, &g, &e));
        assert_int_equal(take(g, 3, 1, 1000), 100);
        assert_int_equal(generation_ended(g), GENERATE_LIMIT);
        OK(generation_close(g, &e));
        pipeline_stage(p, 0, &first);
        pipeline_stage(p, n - 1, &last);
        assert_int_equal(first.n_rows - before.n_rows, 100);
        /* Far fewer messages than tokens; each round after the first crossed from last to first, and of
         * the first ones those of steps that went on where another ended. */
        uint64_t n_steps = first.n_steps - before.n_steps;
        assert_true(n_steps <= 30);
        assert_int_equal(first.n_free_rounds, 100 - n_steps);
        if (n > 1) assert_in_range(first.rx_rows, 100 - n_steps + 1, 99);
        if (n > 1) assert_int_equal(last.tx_rows, first.rx_rows);
        goes_on(s, 3, 100);
        session_drop(s);
        pipeline_close(p);
    }
}

static void stops_limits_and_the_context(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n, true);
        generation *g;
        /* The first place of a token that is not seen before it. */
        uint32_t at = 0, stop[GENERATE_STOPS_MAX + 1] = {0};
        for (uint32_t k = 20; at == 0; k++) {
            bool seen = false;
            for (uint32_t j = 1; j < k; j++) seen = seen || truth[4][j] == truth[4][k];
            if (!seen) at = k;
        }
        session *s = primed(p, 4);
        stop[2] = truth[4][at];
        for (uint32_t k = 0; k < GENERATE_STOPS_MAX; k++)
            if (k != 2) stop[k] = N_VOCAB + k; /* never drawn */
        OK(session_generate(s, truth[4][0], &(generate_limits){.n_max = 1000, .stop = stop, .n_stop = 4}, &g, &e));
        assert_int_equal(take(g, 4, 1, 1000), at);
        assert_int_equal(generation_ended(g), GENERATE_STOPPED);
        OK(generation_close(g, &e));
        goes_on(s, 4, at);
        session_drop(s);
        s = primed(p, 8);
        OK(session_generate(s, truth[8][0], &(generate_limits){.n_max = UINT64_MAX}, &g, &e));
        assert_int_equal(take(g, 8, 1, 1000), N_CTX - prompt_n[8]);
        assert_int_equal(generation_ended(g), GENERATE_CONTEXT);
        OK(generation_close(g, &e));
        assert_int_equal(session_position(s), N_CTX);
        OK(session_generate(s, 1, &(generate_limits){.n_max = 1}, &g, &e)); /* full: ends at once */
        assert_int_equal(generation_ended(g), GENERATE_CONTEXT);
        assert_int_equal(take(g, 8, 1, 1), 0);
        OK(generation_close(g, &e));
        assert_int_equal(session_generate(s, N_VOCAB, &(generate_limits){.n_max = 1}, &g, &e), ST_USAGE);
        errmsg_clear(&e);
        assert_int_equal(session_generate(s, 1, &(generate_limits){.n_max = 0}, &g, &e), ST_USAGE);
        errmsg_clear(&e);
        const generate_limits many = {.n_max = 1, .stop = stop, .n_stop = GENERATE_STOPS_MAX + 1};
        assert_int_equal(session_generate(s, 1, &many, &g, &e), ST_USAGE);
        assert_null(g);
        session_drop(s);
        pipeline_close(p);
    }
}

static void what_ran_over_is_forgotten(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n, n != 4);
        for (uint32_t k = 0; k <= 40; k += 1 + k / 3) {
            session *s = primed(p, 2), *child;
            generation *g;
            OK(session_generate(s, truth[2][0], &(generate_limits){.n_max = 120}, &g, &e));
            assert_int_equal(take(g, 2, 1, k), k);
            OK(generation_close(g, &e));
            OK(session_fork(s, &child, &e));
            goes_on(s, 2, k);
            session_drop(s);
            OK(session_generate(child, truth[2][k], &(generate_limits){.n_max = 20}, &g, &e));
            assert_int_equal(take(g, 2, k + 1, 1000), 20);
            OK(generation_close(g, &e));
            goes_on(child, 2, k + 20);
            session_drop(child);
        }
        pipeline_close(p);
    }
}

/* --- many at once -------------------------------------------------------------------------------------- */

static void many_beside_each_other(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n, true);
        session *s[N_SESSIONS];
        generation *g[N_SESSIONS];
        uint32_t came[N_SESSIONS] = {0};
        /* They begin while the others run; two are stopped in the middle, the rest have limits. */
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            s[i] = primed(p, i);
            OK(session_generate(s[i], truth[i][0], &(generate_limits){.n_max = 60 + 7 * i}, &g[i], &e));
        }
        for (uint32_t round = 0; round < 100; round++) {
            for (uint32_t i = 0; i < N_SESSIONS; i++) {
                bool stopped = (i == 1 && came[1] == 14) || (i == 6 && came[6] == 40);
                if (!stopped) came[i] += take(g[i], i, 1 + came[i], 1 + i % 3);
            }
        }
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            OK(generation_close(g[i], &e));
            assert_int_equal(came[i], i == 1 ? 14 : i == 6 ? 40 : 60 + 7 * i);
            goes_on(s[i], i, came[i]);
            session_drop(s[i]);
        }
        for (uint32_t k = 0; k < n; k++) {
            stage_snapshot t;
            pipeline_stage(p, k, &t);
            assert_true(t.n_batches > 0);
            assert_true(t.n_free_rounds > 50);
            assert_int_equal(t.n_batches_split, n > 1 ? t.n_batches : 0);
            if (n > 1) assert_true(t.tx_crossings[0] > 20 && t.tx_crossings[1] > 20);
        }
        pipeline_close(p);
    }
}

/* Six sessions at a time in walks of at most `rows` rows: groups walked in rounds after a step's first,
 * by rounds after the first. */
static double groups_per_round(pipeline *p, uint32_t rows)
{
    errmsg e = {0};
    session *s[6];
    generation *g[6];
    stage_snapshot before, after;
    step_doors d = doors_default().step;
    d.batch_rows = rows;
    OK(pipeline_set_step_doors(p, &d, &e));
    for (uint32_t i = 0; i < 6; i++) s[i] = primed(p, i);
    pipeline_stage(p, 0, &before);
    for (uint32_t i = 0; i < 6; i++)
        OK(session_generate(s[i], truth[i][0], &(generate_limits){.n_max = 120}, &g[i], &e));
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(take(g[i], i, 1, 120), 120);
        OK(generation_close(g[i], &e));
        session_drop(s[i]);
    }
    pipeline_stage(p, 0, &after);
    double n_rows = (double)(after.n_rows - before.n_rows), n_steps = (double)(after.n_steps - before.n_steps);
    return (double)(after.n_free_rounds - before.n_free_rounds) / (n_rows / 6 - n_steps);
}

/* batch_rows: what a walk takes at most; the tokens are the same. */
static void walks_are_bounded_where_asked(void **state)
{
    (void)state;
    pipeline *p = open_n(1, true);
    /* Nearly all steps have all six; those in which some have begun, or are left, have fewer rows. */
    double all = groups_per_round(p, 0), one = groups_per_round(p, 1), three = groups_per_round(p, 3);
    assert_true(all > 0.7 && all < 1.5);
    assert_true(three > 1.5 && three < 2.7);
    assert_true(one > 4.5);
    pipeline_close(p);
}

/* Prompts are read while others generate. */
static void prompts_beside_generations(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n, true);
        session *s = primed(p, 0);
        generation *g;
        OK(session_generate(s, truth[0][0], &(generate_limits){.n_max = 150}, &g, &e));
        for (uint32_t k = 0; k < 12; k++) {
            session *other = primed(p, 1 + k % 8);
            goes_on(other, 1 + k % 8, 0);
            session_drop(other);
        }
        assert_int_equal(take(g, 0, 1, 1000), 150);
        OK(generation_close(g, &e));
        session_drop(s);
        pipeline_close(p);
    }
}

/* --- the pace of a stream beside a long prompt ----------------------------------------------------------- */

#define SLOW_MS 30u   /* each stage takes so long for a chunk of a prompt */
#define CHUNK_ROWS 16u
#define PROMPT_CHUNKS 15u

typedef struct {
    pipeline *p;
    uint32_t n_wrong;
    _Atomic bool done;
} primer;

/* Two prompts, one after the other. */
static void *prime_long(void *arg)
{
    primer *w = arg;
    errmsg e = {0};
    sampler_params greedy = sampler_default();
    for (uint32_t i = 0; i < 2; i++) {
        session *s;
        w->n_wrong += session_open(w->p, &greedy, &s, &e) != ST_OK;
        if (s != NULL)
            w->n_wrong += session_prime(s, prompt[i], PROMPT_CHUNKS * CHUNK_ROWS, NULL, NULL, &e) != ST_OK;
        session_drop(s);
    }
    w->done = true;
    return NULL;
}

/* Tokens that a stream was told of, by the engine's thread; chunks that the first stage walked since the
 * last of them, as far as somebody looked. */
typedef struct {
    _Atomic uint32_t n;
    uint32_t n_seen, n_while;
    uint64_t chunks_at, gap;
} pace;

static void told(void *pace_)
{
    ((pace *)pace_)->n++;
}

/* Chunks count towards a gap only between two looks with no token in between, so that whoever is late (we,
 * the engine, a stage on a busy machine) makes a gap look shorter, never longer. */
static void look(const pipeline *p, pace *x, uint32_t n_streams)
{
    uint32_t before[N_SESSIONS];
    stage_snapshot now;
    for (uint32_t i = 0; i < n_streams; i++) before[i] = x[i].n;
    pipeline_stage(p, 0, &now);
    for (uint32_t i = 0; i < n_streams; i++) {
        uint32_t n = x[i].n;
        if (before[i] != n || x[i].n_seen != n) x[i].chunks_at = UINT64_MAX;
        bool between = before[i] == n && n > 0 && n < N_TOKENS;
        if (between && x[i].chunks_at == UINT64_MAX) x[i].chunks_at = now.n_chunks;
        if (x[i].chunks_at != UINT64_MAX && now.n_chunks - x[i].chunks_at > x[i].gap)
            x[i].gap = now.n_chunks - x[i].chunks_at;
        x[i].n_seen = n;
    }
}

/* The most chunks between two tokens of one of n_streams that begin while a prompt is read, and go on
 * while another one comes. */
static uint64_t worst_gap(pipeline *p, uint32_t n_streams)
{
    errmsg e = {0};
    session *s[N_SESSIONS];
    generation *g[N_SESSIONS];
    static pace x[N_SESSIONS];
    pthread_t thread;
    primer others = {.p = p};
    stage_snapshot before, now;
    uint64_t worst = 0;
    for (uint32_t i = 0; i < n_streams; i++) s[i] = primed(p, i);
    pipeline_stage(p, 0, &before);
    assert_int_equal(pthread_create(&thread, NULL, prime_long, &others), 0);
    do {
        pipeline_stage(p, 0, &now);
    } while (now.n_chunks == before.n_chunks);
    for (uint32_t i = 0; i < n_streams; i++) {
        x[i] = (pace){.chunks_at = UINT64_MAX};
        const generate_limits l = {.n_max = N_TOKENS, .on_more = told, .ctx = &x[i]};
        OK(session_generate(s[i], truth[i][0], &l, &g[i], &e));
        assert_int_equal(session_step(s[i], 1, NULL, NULL, &e), ST_USAGE); /* it generates */
        errmsg_clear(&e);
    }
    while (!others.done) {
        look(p, x, n_streams);
        for (uint32_t i = 0; i < n_streams; i++) x[i].n_while = x[i].n;
        usleep(500);
    }
    pthread_join(thread, NULL);
    assert_int_equal(others.n_wrong, 0);
    for (uint32_t i = 0; i < n_streams; i++) {
        assert_int_equal(take(g[i], i, 1, N_TOKENS), N_TOKENS);
        assert_true(x[i].n >= N_TOKENS); /* its end is told too */
        OK(generation_close(g[i], &e));
        session_drop(s[i]);
        assert_true(x[i].n_while >= 25);
        if (x[i].gap > worst) worst = x[i].gap;
    }
    return worst;
}

/* A stream waits for the walks of two chunks through all stages, which are up to two of each stage. */
static void a_streams_worst_gap_is_two_chunks(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        doors d = doors_default();
        d.n_stages = n;
        d.step.prime_chunk = CHUNK_ROWS;
        /* A millisecond for a round: the stream lasts longer than the prompt takes to begin. */
        snprintf(d.fault_text, sizeof d.fault_text,
                 "stage=all,at=prime,kind=slow:%u,every=1;stage=all,at=decode,kind=slow:1,every=1", SLOW_MS);
        pipeline *p = open_doors(&d);
        for (uint32_t n_streams = 1; n_streams <= 5; n_streams += 4) {
            assert_in_range(worst_gap(p, n_streams), 0, 2 * n);
        }
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_session_equals_its_steps),
        cmocka_unit_test(stops_limits_and_the_context),
        cmocka_unit_test(what_ran_over_is_forgotten),
        cmocka_unit_test(many_beside_each_other),
        cmocka_unit_test(walks_are_bounded_where_asked),
        cmocka_unit_test(prompts_beside_generations),
        cmocka_unit_test(a_streams_worst_gap_is_two_chunks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
