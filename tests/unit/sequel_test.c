/* Steps that go on where others end: the pipe does not run empty between them, whoever ends, leaves or
 * joins, and whoever is killed, every session draws what it draws alone. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/ok.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 260u
#define N_SESSIONS 9u
#define N_PROMPT 12u
#define N_TOKENS 200u /* drawn alone, step by step */

static char dir[] = "/tmp/memra-q.XXXXXX";

typedef struct {
    const char *arch;
    char path[SMALL_PATH_BYTES];
    uint32_t truth[N_SESSIONS][N_TOKENS + 1];
} model;
static model llama = {.arch = "llama"}, gemma = {.arch = "gemma3"}; /* the latter with a window of 24 */

static pipeline *open_with(const model *m, uint32_t n_stages, const char *faults)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    snprintf(d.fault_text, sizeof d.fault_text, "%s", faults);
    pipeline_options o = small_options(m->path, dir, &d);
    o.plan.n_sessions = N_SESSIONS;
    o.plan.n_ctx = N_CTX;
    o.plan.n_chunk = 24;
    o.restarts = RESTARTS_MAX;
    return small_open(&o);
}

static session *primed(pipeline *p, uint32_t i, uint32_t *token)
{
    sampler_params sampler = sampler_default();
    uint32_t prompt[N_PROMPT];
    session *s;
    errmsg e = {0};
    sampler.temperature = 0.9f;
    sampler.repetition_penalty = 1.1f;
    sampler.penalty_last_n = 16;
    sampler.seed = 200 + i;
    for (uint32_t k = 0; k < N_PROMPT; k++) prompt[k] = (k * (37 + i) + 11 * i) % N_VOCAB;
    OK(session_open(p, &sampler, &s, &e));
    OK(session_prime(s, prompt, N_PROMPT, NULL, token, &e));
    return s;
}

static void make_model(model *m)
{
    small_model_arch(m->path, dir, m->arch, N_CTX, N_VOCAB);
    pipeline *p = open_with(m, 1, "");
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        session *s = primed(p, i, &m->truth[i][0]);
        small_steps(s, m->truth[i], N_TOKENS);
        session_drop(s);
    }
    pipeline_close(p);
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    make_model(&llama);
    make_model(&gemma);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(llama.path);
    unlink(gemma.path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* Take n tokens (at most) and compare them; how many came. */
static uint32_t take(const model *m, generation *g, uint32_t i, uint32_t from, uint32_t n)
{
    errmsg e = {0};
    for (uint32_t k = 0; k < n; k++) {
        uint32_t token;
        OK(generation_next(g, &token, &e));
        if (token == TOKEN_NONE) return k;
        assert_int_equal(token, m->truth[i][from + k]);
    }
    return n;
}

static void goes_on(const model *m, session *s, uint32_t i, uint32_t n)
{
    errmsg e = {0};
    assert_int_equal(session_position(s), N_PROMPT + n);
    for (uint32_t k = n; k < n + 3 && k < N_TOKENS; k++) {
        uint32_t token;
        OK(session_step(s, m->truth[i][k], NULL, &token, &e));
        assert_int_equal(token, m->truth[i][k + 1]);
    }
}

/* Rows that the first stage was told by messages, as they did not come from the last one: what a pipe
 * that ran empty begins with. Below 0: it has received rows that it has not walked yet. */
static int64_t told(const stage_snapshot *before, const stage_snapshot *after)
{
    return (int64_t)(after->n_rows - before->n_rows) - (int64_t)(after->rx_rows - before->rx_rows);
}

/* While nobody comes or goes, for 100 tokens of steps of at most 32 rounds, every row of every round but
 * the first came from the last stage. Once the engine may be late by a whole step, an eighth of a second. */
static void the_pipe_stays_full(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        errmsg e = {0};
        stage_snapshot before, after;
        session *s[N_SESSIONS];
        generation *g[N_SESSIONS];
        uint32_t n_sessions = 2 * n + 1; /* no multiple of the stages */
        pipeline *p = open_with(&llama, n, "stage=all,at=decode,kind=slow:3,every=1");
        for (uint32_t i = 0; i < n_sessions; i++) {
            uint32_t token;
            s[i] = primed(p, i, &token);
        }
        for (uint32_t i = 0; i < n_sessions; i++)
            OK(session_generate(s[i], llama.truth[i][0], &(generate_limits){.n_max = 180}, &g[i], &e));
        for (uint32_t i = 0; i < n_sessions; i++) assert_int_equal(take(&llama, g[i], i, 1, 70), 70);
        pipeline_stage(p, 0, &before);
        for (uint32_t i = 0; i < n_sessions; i++) assert_int_equal(take(&llama, g[i], i, 71, 200), 110);
        pipeline_stage(p, 0, &after);
        assert_true(after.n_rows - before.n_rows >= 80 * n_sessions);
        assert_true(told(&before, &after) <= (int64_t)n_sessions);
        for (uint32_t i = 0; i < n_sessions; i++) {
            OK(generation_close(g[i], &e));
            goes_on(&llama, s[i], i, 180);
            session_drop(s[i]);
        }
        pipeline_close(p);
    }
}

/* They end at ids of their own, at limits, by being left, while the others' steps have sequels. */
static void whoever_ends(void **state)
{
    (void)state;
    const model *models[] = {&llama, &gemma};
    for (uint32_t k = 0; k < 6; k++) {
        const model *m = models[k % 2];
        errmsg e = {0};
        session *s[N_SESSIONS];
        generation *g[N_SESSIONS];
        uint32_t n[N_SESSIONS];
        pipeline *p = open_with(m, 2 + k / 2, "");
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            uint32_t token, at = 20 + 13 * i + 7 * k, seen = 0;
            s[i] = primed(p, i, &token);
            generate_limits l = {.n_max = i % 3 == 0 ? at : 190};
            for (; i % 3 == 1 && seen < at && m->truth[i][seen + 1] != m->truth[i][at]; seen++) {
            }
            n[i] = i % 3 == 1 ? seen + 1 : at; /* the first place of the id */
            if (i % 3 == 1) l.stop = &m->truth[i][at], l.n_stop = 1;
            OK(session_generate(s[i], token, &l, &g[i], &e));
        }
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            assert_int_equal(take(m, g[i], i, 1, i % 3 == 2 ? n[i] : 1000), n[i]);
            OK(generation_close(g[i], &e));
            goes_on(m, s[i], i, n[i]);
            session_drop(s[i]);
        }
        pipeline_close(p);
    }
}

/* A stage dies in a step, or in its sequel, or while the one ends and the other begins. */
static void whoever_is_killed(void **state)
{
    (void)state;
    uint64_t n_lost = 0;
    for (uint32_t k = 0; k < 16; k++) {
        const model *m = k % 2 == 0 ? &llama : &gemma;
        errmsg e = {0};
        char fault_text[96];
        session *s[4];
        generation *g[4];
        stage_snapshot t;
        uint32_t n = 2 + k % 3;
        snprintf(fault_text, sizeof fault_text, "stage=%u,at=decode,step=%u,kind=kill", (k / 3) % n, 13 + k / 3);
        pipeline *p = open_with(m, n, fault_text);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t token;
            s[i] = primed(p, i, &token);
        }
        for (uint32_t i = 0; i < 4; i++)
            OK(session_generate(s[i], m->truth[i][0], &(generate_limits){.n_max = 150 + 10 * i}, &g[i], &e));
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(take(m, g[i], i, 1, 1000), 150 + 10 * i);
            OK(generation_close(g[i], &e));
            goes_on(m, s[i], i, 150 + 10 * i);
            session_drop(s[i]);
        }
        pipeline_stage(p, (k / 3) % n, &t);
        n_lost += t.n_lost;
        pipeline_close(p);
    }
    assert_in_range(n_lost, 12, 16); /* that step may be one of a prompt */
}

/* A row of one of them holds NaN, in a step or in its sequel: its session ends with what was drawn before,
 * the others do not notice, and who comes after it on the same branch and blocks neither. */
static void whoever_is_poisoned(void **state)
{
    (void)state;
    uint32_t n_ended = 0;
    for (uint32_t k = 0; k < 16; k++) {
        const model *m = k % 2 == 0 ? &llama : &gemma;
        errmsg e = {0};
        char fault_text[96];
        session *s[5];
        generation *g[5];
        schedule_snapshot was;
        uint32_t n = 2 + k % 3, n_bad = 0;
        snprintf(fault_text, sizeof fault_text, "stage=%u,at=decode,step=%u,kind=nan", (k / 3) % n, 15 + k / 4);
        pipeline *p = open_with(m, n, fault_text);
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t token;
            s[i] = primed(p, i, &token);
        }
        for (uint32_t i = 0; i < 5; i++)
            OK(session_generate(s[i], m->truth[i][0], &(generate_limits){.n_max = 150 + 10 * i}, &g[i], &e));
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t token = 0, came = 0;
            status st;
            errmsg_clear(&e);
            while ((st = generation_next(g[i], &token, &e)) == ST_OK && token != TOKEN_NONE)
                assert_int_equal(token, m->truth[i][++came]);
            if (st == ST_OK) assert_int_equal(came, 150 + 10 * i);
            if (st != ST_OK) {
                assert_int_equal(st, ST_NAN);
                assert_int_equal(generation_close(g[i], &e), ST_NAN);
                n_bad++;
            } else {
                OK(generation_close(g[i], &e));
            }
            session_drop(s[i]);
        }
        assert_in_range(n_bad, 0, 1);
        n_ended += n_bad;
        for (uint32_t i = 0; i < 5 && n_bad > 0; i++) {
            uint32_t token;
            generation *again;
            session *other = primed(p, i, &token);
            assert_int_equal(token, m->truth[i][0]);
            OK(session_generate(other, token, &(generate_limits){.n_max = 60}, &again, &e));
            assert_int_equal(take(m, again, i, 1, 1000), 60);
            OK(generation_close(again, &e));
            session_drop(other);
        }
        pipeline_schedule(p, &was);
        assert_int_equal(was.n_sessions, 0);
        pipeline_close(p);
    }
    assert_in_range(n_ended, 8, 16); /* that step may be one of a prompt */
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pipe_stays_full),
        cmocka_unit_test(whoever_ends),
        cmocka_unit_test(whoever_is_killed),
        cmocka_unit_test(whoever_is_poisoned),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
