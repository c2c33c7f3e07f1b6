/* Rows of several sessions in one step: whoever walks beside a session, its bits stay its own. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 200u
#define N_SESSIONS 7u
#define N_STEPS 24u
#define N_THREADS 6u
#define N_PROMPTS 12u /* of each thread */

static char dir[] = "/tmp/memra-t.XXXXXX";
static char model_path[64];
static uint32_t prompt[N_SESSIONS][N_CTX];
static uint32_t prompt_n[N_SESSIONS] = {1, 3, 64, 65, 17, 100, 30};
static float *truth[N_SESSIONS];                 /* [N_STEPS, N_VOCAB], alone and with one stage */
static uint32_t truth_token[N_SESSIONS][N_STEPS + 1];

#define OK(expr) assert_int_equal(expr, ST_OK)

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_default();
    spec.n_layers = 4;
    spec.n_ctx = N_CTX;
    spec.n_vocab = N_VOCAB;
    small_model(model_path, &spec);
    for (uint32_t s = 0; s < N_SESSIONS; s++)
        for (uint32_t i = 0; i < N_CTX; i++) prompt[s][i] = (i * (37 + s) + 11 * s) % N_VOCAB;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < N_SESSIONS; s++) free(truth[s]);
    unlink(model_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

static pipeline *open_n(uint32_t n_stages)
{
    static doors d;
    door_values none = {0};
    errmsg e = {0};
    OK(doors_parse(&d, &none, &e));
    d.n_stages = n_stages;
    pipeline_options o = small_options(model_path, dir, &d);
    o.plan.n_sessions = N_SESSIONS;
    return small_open(&o);
}

/* Greedy ones and sampled ones: a step carries different samplers. */
static sampler_params sampler_of(uint32_t s)
{
    sampler_params p = sampler_default();
    if (s % 2 == 0) return p;
    p.temperature = 0.9f;
    p.repetition_penalty = 1.1f;
    p.penalty_last_n = 16;
    p.seed = 100 + s;
    return p;
}

static session *new_session(pipeline *p, uint32_t s)
{
    sampler_params sampler = sampler_of(s);
    session *out;
    errmsg e = {0};
    if (session_open(p, &sampler, &out, &e) != ST_OK) fail_msg("%s", e.text);
    return out;
}

static void alone(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(1);
    for (uint32_t s = 0; s < N_SESSIONS; s++) {
        session *one = new_session(p, s);
        uint32_t *token = truth_token[s];
        truth[s] = calloc((size_t)N_STEPS * N_VOCAB, sizeof(float));
        OK(session_prime(one, prompt[s], prompt_n[s], NULL, &token[0], &e));
        for (uint32_t i = 0; i < N_STEPS; i++)
            OK(session_step(one, token[i], truth[s] + i * N_VOCAB, &token[i + 1], &e));
        session_drop(one);
    }
    stage_snapshot t;
    pipeline_stage(p, 0, &t);
    assert_int_equal(t.n_batches, 0);
    assert_int_equal(t.n_prime_batches, 0);
    pipeline_close(p);
}

/* --- together --------------------------------------------------------------------------------- */

typedef struct {
    session *s;
    uint32_t n_done;
    pending *step;
} walker;

/* In round r session i is there from r = i to its end: they join and leave one after the other. */
static void round_of_steps(pipeline *p, walker *w, uint32_t r)
{
    errmsg e = {0};
    float *got = calloc(N_VOCAB, sizeof *got);
    for (uint32_t i = 0; i < N_SESSIONS && i <= r; i++) {
        uint32_t token;
        if (w[i].n_done == N_STEPS) continue;
        if (w[i].s == NULL) {
            w[i].s = new_session(p, i);
            OK(session_prime(w[i].s, prompt[i], prompt_n[i], NULL, &token, &e));
            assert_int_equal(token, truth_token[i][0]);
        }
        OK(session_step_deferred(w[i].s, truth_token[i][w[i].n_done], &w[i].step, &e));
    }
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        uint32_t token;
        if (w[i].step == NULL) continue;
        OK(pending_logits_wait(w[i].step, got, &token, &e));
        w[i].step = NULL;
        assert_memory_equal(got, truth[i] + w[i].n_done * N_VOCAB, N_VOCAB * sizeof *got);
        assert_int_equal(token, truth_token[i][w[i].n_done + 1]);
        if (++w[i].n_done == N_STEPS) {
            session_drop(w[i].s);
            w[i].s = NULL;
        }
    }
    free(got);
}

static void joining_and_leaving_changes_no_bit(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        pipeline *p = open_n(n);
        walker w[N_SESSIONS] = {{0}};
        uint64_t n_rows = 0;
        for (uint32_t r = 0; r < N_STEPS + N_SESSIONS; r++) round_of_steps(p, w, r);
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            assert_int_equal(w[i].n_done, N_STEPS);
            n_rows += prompt_n[i] + N_STEPS;
        }
        for (uint32_t s = 0; s < n; s++) {
            stage_snapshot t;
            pipeline_stage(p, s, &t);
            assert_int_equal(t.n_rows, n_rows);
            assert_true(t.n_batches > 0);
            assert_int_equal(t.n_batches_split, n > 1 ? t.n_batches : 0);
            if (n > 1 && s > 0) assert_true(t.rx_crossings[0] > 0 && t.rx_crossings[1] > 0);
        }
        pipeline_close(p);
    }
}

/* --- prompts of several sessions in one chunk ------------------------------------------------- */

typedef struct {
    pipeline *p;
    uint32_t first, n_wrong;
} primer;

static void *prime_many(void *arg)
{
    primer *w = arg;
    for (uint32_t k = 0; k < N_PROMPTS; k++) {
        uint32_t i = (w->first + k) % N_SESSIONS, token = TOKEN_NONE;
        sampler_params sampler = sampler_of(i);
        session *s;
        errmsg e = {0};
        bool right = session_open(w->p, &sampler, &s, &e) == ST_OK &&
                     session_prime(s, prompt[i], prompt_n[i], NULL, &token, &e) == ST_OK &&
                     token == truth_token[i][0] &&
                     session_step(s, token, NULL, &token, &e) == ST_OK &&
                     token == truth_token[i][1];
        w->n_wrong += !right;
        if (s != NULL) session_drop(s);
    }
    return NULL;
}

static void prompts_share_a_chunk(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        pipeline *p = open_n(n);
        pthread_t thread[N_THREADS];
        primer w[N_THREADS];
        for (uint32_t i = 0; i < N_THREADS; i++) {
            w[i] = (primer){.p = p, .first = i};
            assert_int_equal(pthread_create(&thread[i], NULL, prime_many, &w[i]), 0);
        }
        for (uint32_t i = 0; i < N_THREADS; i++) {
            pthread_join(thread[i], NULL);
            assert_int_equal(w[i].n_wrong, 0);
        }
        for (uint32_t s = 0; s < n; s++) {
            stage_snapshot t;
            pipeline_stage(p, s, &t);
            assert_true(t.n_prime_batches > 0);
            assert_int_equal(t.n_prime_batches_split, n > 1 ? t.n_prime_batches : 0);
        }
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(joining_and_leaving_changes_no_bit),
        cmocka_unit_test(prompts_share_a_chunk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
