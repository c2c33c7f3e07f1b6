/* Speculative generations draw what plain steps draw, whatever the drafts say: at any number of
 * stages, alone and among others, with windows, wherever they end. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/ok.h"
#include "tests/support/own_seat.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 260u
#define N_SESSIONS 5u
#define N_TOKENS 140u /* drawn alone, step by step */
#define CHUNK 24u     /* the largest step */

static char dir[] = "/tmp/memra-s.XXXXXX";

typedef struct {
    const char *arch;
    char path[SMALL_PATH_BYTES];
    uint32_t truth[N_SESSIONS][N_TOKENS + 1];
} model;
static model llama = {.arch = "llama"}, gemma = {.arch = "gemma3"}; /* the latter with a window of 24 */
static uint32_t prompt[N_SESSIONS][N_CTX];
static const uint32_t prompt_n[N_SESSIONS] = {1, 63, 17, 100, 30};

static pipeline *open_with(const model *m, uint32_t n_stages, const char *faults)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    snprintf(d.fault_text, sizeof d.fault_text, "%s", faults);
    pipeline_options o = small_options(m->path, dir, &d);
    o.plan.n_sessions = N_SESSIONS;
    o.plan.n_ctx = N_CTX;
    o.plan.n_chunk = CHUNK;
    return small_open(&o);
}

static pipeline *open_n(const model *m, uint32_t n_stages)
{
    return open_with(m, n_stages, "");
}

static session *primed(pipeline *p, uint32_t i, uint32_t *token)
{
    sampler_params sampler = sampler_default();
    session *s;
    errmsg e = {0};
    if (i > 0) { /* the first is greedy */
        sampler.temperature = 0.9f;
        sampler.repetition_penalty = 1.1f; /* the history holds drafts too */
        sampler.penalty_last_n = 16;
        sampler.seed = 100 + i;
    }
    OK(session_open(p, &sampler, &s, &e));
    OK(session_prime(s, prompt[i], prompt_n[i], NULL, token, &e));
    return s;
}

static void make_model(model *m)
{
    small_model_arch(m->path, dir, m->arch, N_CTX, N_VOCAB);
    pipeline *p = open_n(m, 1);
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
    for (uint32_t s = 0; s < N_SESSIONS; s++)
        for (uint32_t i = 0; i < N_CTX; i++) prompt[s][i] = (i * (37 + s) + 11 * s) % N_VOCAB;
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

/* --- drafts -------------------------------------------------------------------------------------------- */

/* What is right, but for every `wrong`-th token; one that there is not in every `none`-th. 0: never. */
typedef struct {
    draft_source source;
    const model *m;
    uint32_t i, wrong, none, room; /* as long as asked for, or `room` */
    uint32_t n_asked;
} oracle;

static uint32_t guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    oracle *o = seat;
    *spent_ns = 0;
    uint32_t at = (uint32_t)n - prompt_n[o->i] - 1; /* of the last token among those drawn */
    o->n_asked++;
    if (at > N_TOKENS || tokens[n - 1] != o->m->truth[o->i][at]) return 0;
    if (o->room != 0 && o->room < room) room = o->room;
    for (uint32_t k = 0; k < room; k++) {
        uint32_t next = at + 1 + k;
        out[k] = next <= N_TOKENS ? o->m->truth[o->i][next] : 0;
        if (o->wrong != 0 && next % o->wrong == 0) out[k] = (out[k] + 1) % N_VOCAB;
        if (o->none != 0 && next % o->none == 0) out[k] = N_VOCAB + next;
    }
    return room;
}

static generate_limits limits_of(oracle *o, uint64_t n_max, uint32_t n_draft)
{
    o->source = own_seat(guess);
    return (generate_limits){
        .n_max = n_max, .n_draft = n_draft, .draft_always = true, .draft = &o->source};
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

/* The session goes on from `n` applied tokens after its prompt as if it had been stepped. */
static void goes_on(const model *m, session *s, uint32_t i, uint32_t n)
{
    errmsg e = {0};
    assert_int_equal(session_position(s), prompt_n[i] + n);
    for (uint32_t k = n; k < n + 4 && k < N_TOKENS; k++) {
        uint32_t token;
        OK(session_step(s, m->truth[i][k], NULL, &token, &e));
        assert_int_equal(token, m->truth[i][k + 1]);
    }
}

/* --- one session --------------------------------------------------------------------------------------- */

#define N_DRAWN 120u

static void run_one(const model *m, pipeline *p, uint32_t i, uint32_t n_draft, uint32_t wrong)
{
    errmsg e = {0};
    oracle o = {.m = m, .i = i, .wrong = wrong};
    generate_limits l = limits_of(&o, N_DRAWN, n_draft);
    stage_snapshot before, after;
    draft_counts c0, c1;
    generation *g;
    uint32_t token, n = pipeline_plan(p)->cuts.n_stages;
    session *s = primed(p, i, &token);
    assert_int_equal(token, m->truth[i][0]);
    pipeline_stage(p, n - 1, &before);
    pipeline_drafts(p, &c0);
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(m, g, i, 1, 1000), N_DRAWN);
    assert_int_equal(generation_ended(g), GENERATE_LIMIT);
    OK(generation_close(g, &e));
    pipeline_stage(p, n - 1, &after);
    pipeline_drafts(p, &c1);
    uint64_t n_steps = c1.n_verifies - c0.n_verifies, n_drafted = c1.n_drafted - c0.n_drafted;
    uint64_t n_right = c1.n_accepted - c0.n_accepted;
    assert_int_equal(after.n_verifies - before.n_verifies, n_steps);
    assert_int_equal(after.n_verifies_split - before.n_verifies_split, n > 1 ? n_steps : 0);
    /* Every row was a token that was drawn or a draft that was not. */
    assert_int_equal(after.n_rows - before.n_rows, N_DRAWN + n_drafted - n_right);
    if (wrong == 0) assert_int_equal(n_right, n_drafted);
    if (wrong == 0) assert_int_equal(n_steps, N_DRAWN / (n_draft + 1));
    if (wrong == 1) assert_int_equal(n_right, 0);
    if (wrong > 1) assert_true(n_right > 0 && (n_right < n_drafted || n_draft < wrong));
    goes_on(m, s, i, N_DRAWN);
    session_drop(s);
}

static void drafts_of_any_worth(void **state)
{
    (void)state;
    static const uint32_t wrong[] = {0, 1, 2, 3, 7};
    for (uint32_t n = 1; n <= 4; n++) {
        pipeline *p = open_n(&llama, n);
        for (uint32_t k = 0; k < 5; k++) {
            run_one(&llama, p, 0, 1, wrong[k]);
            run_one(&llama, p, 1, 2, wrong[k]);
            run_one(&llama, p, 2, 4, wrong[k]);
            run_one(&llama, p, 3, 9, wrong[k]);
            run_one(&llama, p, 4, 14, wrong[k]);
        }
        pipeline_close(p);
    }
}

static void windows_keep_what_a_rejection_needs(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        pipeline *p = open_n(&gemma, n);
        for (uint32_t i = 0; i < N_SESSIONS; i++) run_one(&gemma, p, i, 3 * i + 2, 1 + i);
        pipeline_close(p);
    }
}

static void drafts_that_cannot_be(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(&llama, 2);
    uint32_t token;
    session *s = primed(p, 2, &token);
    generation *g;
    /* Ids out of range end a draft; a depth beyond the largest step is cut. */
    oracle o = {.m = &llama, .i = 2, .none = 3};
    generate_limits l = limits_of(&o, 60, GENERATE_DRAFT_MAX);
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(&llama, g, 2, 1, 1000), 60);
    OK(generation_close(g, &e));
    assert_true(o.n_asked > 10);
    goes_on(&llama, s, 2, 60);
    l.n_draft = GENERATE_DRAFT_MAX + 1;
    assert_int_equal(session_generate(s, 1, &l, &g, &e), ST_USAGE);
    assert_non_null(strstr(e.text, "17 drafted tokens: at most 16"));
    session_drop(s);
    pipeline_close(p);
}

/* --- where it ends ------------------------------------------------------------------------------------- */

static void a_stop_inside_an_accepted_draft(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        errmsg e = {0};
        pipeline *p = open_n(&llama, n);
        for (uint32_t at = 20; at < 30; at++) {
            const uint32_t *t = llama.truth[3];
            bool seen = false;
            for (uint32_t j = 1; j < at; j++) seen = seen || t[j] == t[at];
            if (seen) continue;
            uint32_t token;
            session *s = primed(p, 3, &token);
            generation *g;
            oracle o = {.m = &llama, .i = 3};
            generate_limits l = limits_of(&o, 1000, 6);
            l.stop = &t[at];
            l.n_stop = 1;
            OK(session_generate(s, token, &l, &g, &e));
            assert_int_equal(take(&llama, g, 3, 1, 1000), at);
            assert_int_equal(generation_ended(g), GENERATE_STOPPED);
            OK(generation_close(g, &e));
            goes_on(&llama, s, 3, at);
            session_drop(s);
        }
        pipeline_close(p);
    }
}

static void what_was_not_taken_is_forgotten(void **state)
{
    (void)state;
    errmsg e = {0};
    const model *models[] = {&llama, &gemma};
    for (uint32_t k = 0; k < 2; k++) {
        pipeline *p = open_n(models[k], 3);
        for (uint32_t n = 0; n < 24; n += 5) {
            uint32_t token;
            session *s = primed(p, 1, &token);
            generation *g;
            oracle o = {.m = models[k], .i = 1, .wrong = 5};
            generate_limits l = limits_of(&o, 100, 6);
            OK(session_generate(s, token, &l, &g, &e));
            assert_int_equal(take(models[k], g, 1, 1, n), n);
            OK(generation_close(g, &e));
            goes_on(models[k], s, 1, n);
            session_drop(s);
        }
        pipeline_close(p);
    }
}

static void the_context_ends_it(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(&llama, 2);
    uint32_t token;
    session *s = primed(p, 3, &token); /* 100 tokens */
    generation *g;
    oracle o = {.m = &llama, .i = 3};
    generate_limits l = limits_of(&o, UINT64_MAX, 7);
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(&llama, g, 3, 1, N_TOKENS), N_TOKENS);
    uint32_t n = N_TOKENS;
    for (; token != TOKEN_NONE; n++) OK(generation_next(g, &token, &e));
    assert_int_equal(n - 1, N_CTX - prompt_n[3]);
    assert_int_equal(generation_ended(g), GENERATE_CONTEXT);
    OK(generation_close(g, &e));
    assert_int_equal(session_position(s), N_CTX);
    session_drop(s);
    pipeline_close(p);
}

/* --- several ------------------------------------------------------------------------------------------- */

static void many_beside_each_other(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(&llama, n);
        session *s[N_SESSIONS];
        generation *g[N_SESSIONS];
        oracle o[N_SESSIONS];
        draft_counts c;
        stage_snapshot t;
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            uint32_t token;
            o[i] = (oracle){.m = &llama, .i = i, .wrong = 2 + 3 * i, .room = 1 + i};
            s[i] = primed(p, i, &token);
            generate_limits l = limits_of(&o[i], 60 + 13 * i, 8);
            if (i == 2) l.n_draft = 0; /* a plain one among them */
            OK(session_generate(s[i], token, &l, &g[i], &e));
        }
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            assert_int_equal(take(&llama, g[i], i, 1, 1000), 60 + 13 * i);
            OK(generation_close(g[i], &e));
            goes_on(&llama, s[i], i, 60 + 13 * i);
            session_drop(s[i]);
        }
        pipeline_drafts(p, &c);
        assert_true(c.n_verifies > 20 && c.n_accepted > 40 && c.n_accepted < c.n_drafted);
        for (uint32_t k = 0; k < n; k++) {
            pipeline_stage(p, k, &t);
            assert_int_equal(t.n_verifies, c.n_verifies);
            assert_true(t.n_batches > 0);
        }
        pipeline_close(p);
    }
}

/* --- faster or not ------------------------------------------------------------------------------------- */

/* Left to itself, with drafts that are never right: it notices that without spending steps on it. */
static void worthless_drafts_are_left_alone(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(&llama, 2);
    draft_counts c;
    uint32_t token;
    session *s = primed(p, 4, &token);
    generation *g;
    oracle o = {.m = &llama, .i = 4, .wrong = 1};
    generate_limits l = limits_of(&o, N_TOKENS, 8);
    l.draft_always = false;
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(&llama, g, 4, 1, 1000), N_TOKENS);
    OK(generation_close(g, &e));
    pipeline_drafts(p, &c);
    assert_true(o.n_asked >= 4);
    assert_int_equal(c.n_accepted, 0);
    assert_in_range(c.n_verifies, 0, 12); /* until the share that was right has fallen */
    session_drop(s);
    pipeline_close(p);
}

/* Where a step's time hardly depends on its rows, right drafts are used. */
static void right_drafts_are_used_where_rows_cost_nothing(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_with(&llama, 2, "stage=all,at=decode,kind=slow:3,every=1");
    draft_counts c;
    uint32_t token;
    session *s = primed(p, 4, &token);
    generation *g;
    oracle x = {.m = &llama, .i = 4};
    generate_limits l = limits_of(&x, N_TOKENS, 8);
    l.draft_always = false;
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(&llama, g, 4, 1, 1000), N_TOKENS);
    OK(generation_close(g, &e));
    pipeline_drafts(p, &c);
    assert_true(c.n_accepted >= N_TOKENS / 2);
    session_drop(s);
    pipeline_close(p);
}

/* A stage that dies in a step that verifies, or between a rejection and the step that forgets it. */
static void a_stage_that_dies_changes_nothing(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t k = 0; k < 12; k++) {
        char fault_text[64];
        stage_snapshot t;
        snprintf(fault_text, sizeof fault_text, "stage=%u,at=decode,step=%u,kind=kill", k % 3, 8 + k);
        pipeline *p = open_with(k % 2 == 0 ? &llama : &gemma, 3, fault_text);
        const model *m = k % 2 == 0 ? &llama : &gemma;
        uint32_t token;
        session *s = primed(p, 1, &token);
        generation *g;
        oracle o = {.m = m, .i = 1, .wrong = 3};
        generate_limits l = limits_of(&o, N_DRAWN, 5);
        OK(session_generate(s, token, &l, &g, &e));
        assert_int_equal(take(m, g, 1, 1, 1000), N_DRAWN);
        OK(generation_close(g, &e));
        goes_on(m, s, 1, N_DRAWN);
        pipeline_stage(p, k % 3, &t);
        assert_int_equal(t.n_lost, 1);
        session_drop(s);
        pipeline_close(p);
    }
}

/* Prompt lookup finds the repetition of a greedy session by itself. */
static void prompt_lookup(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(&llama, 3);
    draft_counts c;
    uint32_t token;
    session *s = primed(p, 0, &token);
    generation *g;
    const generate_limits l = {.n_max = N_TOKENS, .n_draft = 4, .draft_always = true};
    OK(session_generate(s, token, &l, &g, &e));
    assert_int_equal(take(&llama, g, 0, 1, 1000), N_TOKENS);
    OK(generation_close(g, &e));
    pipeline_drafts(p, &c);
    assert_true(c.n_accepted >= 10);
    session_drop(s);
    pipeline_close(p);
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_any_worth),
        cmocka_unit_test(windows_keep_what_a_rejection_needs),
        cmocka_unit_test(drafts_that_cannot_be),
        cmocka_unit_test(a_stop_inside_an_accepted_draft),
        cmocka_unit_test(what_was_not_taken_is_forgotten),
        cmocka_unit_test(the_context_ends_it),
        cmocka_unit_test(many_beside_each_other),
        cmocka_unit_test(worthless_drafts_are_left_alone),
        cmocka_unit_test(right_drafts_are_used_where_rows_cost_nothing),
        cmocka_unit_test(a_stage_that_dies_changes_nothing),
        cmocka_unit_test(prompt_lookup),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
