/* Drafts by a second model in a pipeline of its own: the text stays, also when its process dies;
 * its KV is rolled back, so that drafts after a wrong one are as good as before. */
#include "tests/support/tap.h"

#include "coordinator/draft_model.h"
#include "tests/support/ok.h"
#include "tests/support/small_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 300u
#define N_SESSIONS 3u
#define N_PROMPT 20u
#define N_TOKENS 200u

static char dir[] = "/tmp/memra-d.XXXXXX", path[64], other_path[64];
static uint32_t truth[N_SESSIONS][N_TOKENS + 1];

static pipeline *open_n(const char *of, uint32_t n_stages, const char *faults)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    snprintf(d.fault_text, sizeof d.fault_text, "%s", faults);
    pipeline_options o = small_options(of, dir, &d);
    o.plan.n_sessions = N_SESSIONS + 1;
    o.plan.n_ctx = N_CTX;
    o.restarts = 3;
    return small_open(&o);
}

static session *primed(pipeline *p, uint32_t i, uint32_t *token)
{
    sampler_params sampler = sampler_default();
    uint32_t prompt[N_PROMPT];
    session *s;
    errmsg e = {0};
    if (i > 0) sampler.temperature = 0.9f; /* the first is greedy */
    sampler.seed = 100 + i;
    for (uint32_t k = 0; k < N_PROMPT; k++) prompt[k] = (k * (37 + i) + 11 * i) % N_VOCAB;
    OK(session_open(p, &sampler, &s, &e));
    OK(session_prime(s, prompt, N_PROMPT, NULL, token, &e));
    return s;
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    snprintf(other_path, sizeof other_path, "%s/o.gguf", dir);
    llama_spec spec = llama_spec_default();
    spec.n_layers = 4;
    spec.n_ctx = N_CTX;
    spec.n_vocab = N_VOCAB;
    small_model(path, &spec);
    spec.n_layers = 2;
    small_model(other_path, &spec);
    pipeline *p = open_n(path, 1, "");
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        session *s = primed(p, i, &truth[i][0]);
        small_steps(s, truth[i], N_TOKENS);
        session_drop(s);
    }
    pipeline_close(p);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    unlink(other_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* A source that passes a model's drafts on, every `wrong`-th token made another. */
typedef struct {
    draft_source source;
    draft_source *under;
    uint32_t wrong;
    uint32_t n_answers;
} spoiler;

typedef struct {
    spoiler *by;
    void *under;
} spoiled_seat;

static void *spoiled_sit(draft_source *d, const draft_task *t)
{
    spoiled_seat *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->by = (spoiler *)d;
    x->under = x->by->under->sit(x->by->under, t);
    assert_non_null(x->under);
    return x;
}

static void spoiled_leave(void *seat)
{
    spoiled_seat *x = seat;
    x->by->under->leave(x->under);
    free(x);
}

static uint32_t spoiled_guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out,
                              uint32_t room, uint64_t *spent_ns)
{
    const spoiled_seat *x = seat;
    uint32_t given = x->by->under->guess(x->under, tokens, n, out, room, spent_ns);
    if (given == DRAFT_LATER) return given;
    x->by->n_answers++;
    for (uint32_t k = 0; k < given && x->by->wrong != 0; k++)
        if ((n + k) % x->by->wrong == 0) out[k] = (out[k] + 1) % N_VOCAB;
    return given;
}

static generate_limits limits_of(spoiler *s, draft_model *d, uint32_t wrong)
{
    *s = (spoiler){
        {true, spoiled_sit, spoiled_leave, spoiled_guess}, draft_model_source(d), wrong, 0};
    return (generate_limits){
        .n_max = N_TOKENS, .n_draft = 5, .draft_always = true, .draft = &s->source};
}

static void take_all(generation *g, uint32_t i)
{
    errmsg e = {0};
    for (uint32_t k = 0; k < N_TOKENS; k++) {
        uint32_t token;
        OK(generation_next(g, &token, &e));
        assert_int_equal(token, truth[i][k + 1]);
    }
    OK(generation_close(g, &e));
}

/* The model drafts for itself: by the law every draft is right but those that were spoiled, also
 * behind them, which only a session rolled back to what was drawn can give. */
static void its_own_drafts_are_right(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t n = 1; n <= 3; n++) {
        for (uint32_t wrong = 0; wrong <= 7; wrong += 7) {
            draft_model *d;
            spoiler x;
            draft_counts c;
            generation *g[N_SESSIONS];
            session *s[N_SESSIONS];
            pipeline *p = open_n(path, n, "");
            OK(draft_model_open(&d, open_n(path, 1, ""), &e));
            const generate_limits l = limits_of(&x, d, wrong);
            for (uint32_t i = 0; i < N_SESSIONS; i++) {
                uint32_t token;
                s[i] = primed(p, i, &token);
                assert_int_equal(token, truth[i][0]);
                OK(session_generate(s[i], token, &l, &g[i], &e));
            }
            for (uint32_t i = 0; i < N_SESSIONS; i++) take_all(g[i], i);
            for (uint32_t i = 0; i < N_SESSIONS; i++) session_drop(s[i]);
            pipeline_drafts(p, &c);
            assert_true(c.n_drafted > 300);
            if (wrong == 0) assert_int_equal(c.n_accepted, c.n_drafted);
            /* Of seven positions one is spoiled, and what was drafted behind it in the same step is
             * lost. */
            if (wrong != 0) assert_true(c.n_accepted < c.n_drafted);
            assert_true(c.n_accepted >= N_SESSIONS * N_TOKENS * (wrong == 0 ? 80 : 60) / 100);
            draft_model_close(d);
            pipeline_close(p);
        }
    }
}

/* Another model's drafts are mostly wrong, and the text is the same. */
static void wrong_drafts_change_nothing(void **state)
{
    (void)state;
    errmsg e = {0};
    draft_model *d;
    spoiler x;
    draft_counts c;
    pipeline *p = open_n(path, 2, "");
    OK(draft_model_open(&d, open_n(other_path, 1, ""), &e));
    const generate_limits l = limits_of(&x, d, 0);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        uint32_t token;
        generation *g;
        session *s = primed(p, i, &token);
        OK(session_generate(s, token, &l, &g, &e));
        take_all(g, i);
        session_drop(s);
    }
    pipeline_drafts(p, &c);
    assert_true(c.n_drafted > 500 && c.n_accepted < c.n_drafted / 2);
    draft_model_close(d);
    pipeline_close(p);
}

/* Its process is killed again and again: it is replaced, and nobody sees more than time. */
static void its_death_costs_time(void **state)
{
    (void)state;
    errmsg e = {0};
    draft_model *d;
    spoiler x;
    draft_counts c;
    uint32_t token;
    generation *g;
    pipeline *p = open_n(path, 2, ""), *q = open_n(path, 1, "");
    OK(draft_model_open(&d, q, &e));
    const generate_limits l = limits_of(&x, d, 0);
    session *s = primed(p, 1, &token);
    OK(session_generate(s, token, &l, &g, &e));
    for (uint32_t k = 0; k < N_TOKENS; k++) {
        stage_snapshot t;
        OK(generation_next(g, &token, &e));
        assert_int_equal(token, truth[1][k + 1]);
        if (k % 60 != 30) continue;
        pipeline_stage(q, 0, &t);
        kill(t.pid, SIGKILL);
    }
    OK(generation_close(g, &e));
    pipeline_drafts(p, &c);
    assert_true(c.n_accepted > N_TOKENS / 2);
    assert_int_equal(c.n_accepted, c.n_drafted);
    session_drop(s);
    draft_model_close(d);
    pipeline_close(p);
}

/* Lost for good in the midst of a generation: that goes on, and so do those that come after. */
static void it_can_be_lost(void **state)
{
    (void)state;
    errmsg e = {0};
    draft_model *d;
    spoiler x;
    generation *g;
    uint32_t token;
    pipeline *p = open_n(path, 2, ""), *q = open_n(path, 1, "stage=0,at=decode,kind=kill,every=1");
    OK(draft_model_open(&d, q, &e));
    const generate_limits l = limits_of(&x, d, 0);
    session *s = primed(p, 2, &token);
    OK(session_generate(s, token, &l, &g, &e));
    take_all(g, 2);
    session_drop(s);
    assert_int_not_equal(pipeline_check(q, &e), ST_OK);
    const generate_limits plain = {.n_max = N_TOKENS, .n_draft = 5, .draft = draft_model_source(d)};
    s = primed(p, 0, &token);
    OK(session_generate(s, token, &plain, &g, &e));
    take_all(g, 0);
    session_drop(s);
    draft_model_close(d);
    pipeline_close(p);
}

static draft_counts left_to_itself(const char *of_large, const char *of_small)
{
    errmsg e = {0};
    draft_model *d;
    draft_counts c;
    generation *g;
    uint32_t token;
    pipeline *p = open_n(path, 2, of_large);
    OK(draft_model_open(&d, open_n(path, 1, of_small), &e));
    const generate_limits l = {.n_max = N_TOKENS, .n_draft = 5, .draft = draft_model_source(d)};
    session *s = primed(p, 1, &token);
    OK(session_generate(s, token, &l, &g, &e));
    take_all(g, 1);
    session_drop(s);
    pipeline_drafts(p, &c);
    draft_model_close(d);
    pipeline_close(p);
    return c;
}

/* Where a step of the small model takes a small part of a large one's, and it is right, it is used;
 * where it takes longer, it is not. Others may hold the small one up: one of a few tries is
 * enough. */
static void used_where_it_is_faster(void **state)
{
    (void)state;
    const char *of_large = "stage=all,at=decode,kind=slow:6,every=1";
    uint64_t n = 0;
    for (uint32_t tries = 0; tries < 4 && n <= N_TOKENS / 3; tries++)
        n = left_to_itself(of_large, "").n_accepted;
    assert_true(n > N_TOKENS / 3);
    draft_counts c = left_to_itself(of_large, "stage=all,at=decode,kind=slow:18,every=1");
    assert_in_range(c.n_verifies, 0, 4);
}

/* The first answer takes long, as where it has a long prompt to read, or its process is stopped and
 * replaced: what comes after it does not, and is used. */
static void a_first_answer_that_is_held_up_is_forgiven(void **state)
{
    (void)state;
    uint64_t n = 0;
    for (uint32_t tries = 0; tries < 4 && n <= N_TOKENS / 4; tries++)
        n = left_to_itself("stage=all,at=decode,kind=slow:6,every=1",
                           "stage=0,at=prime,kind=slow:500")
                .n_accepted;
    assert_true(n > N_TOKENS / 4);
}

/* A seat left while its answer is on its way. */
static void left_early(void **state)
{
    (void)state;
    errmsg e = {0};
    draft_model *d;
    spoiler x;
    pipeline *p = open_n(path, 2, "");
    OK(draft_model_open(&d, open_n(path, 1, "stage=all,at=decode,kind=slow:5,every=1"), &e));
    const generate_limits l = limits_of(&x, d, 3);
    for (uint32_t k = 0; k < 12; k++) {
        generation *g;
        uint32_t token;
        session *s = primed(p, k % N_SESSIONS, &token);
        OK(session_generate(s, token, &l, &g, &e));
        for (uint32_t i = 0; i < k % 4; i++) OK(generation_next(g, &token, &e));
        OK(generation_close(g, &e));
        session_drop(s);
    }
    draft_model_close(d);
    pipeline_close(p);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_drafts_are_right),
        cmocka_unit_test(wrong_drafts_change_nothing),
        cmocka_unit_test(its_death_costs_time),
        cmocka_unit_test(it_can_be_lost),
        cmocka_unit_test(used_where_it_is_faster),
        cmocka_unit_test(a_first_answer_that_is_held_up_is_forgiven),
        cmocka_unit_test(left_early),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
