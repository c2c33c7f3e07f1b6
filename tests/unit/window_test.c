/* Window layers over real stage processes: what a session keeps, fork, truncate far back, sessions
 * that share a small pool. The model is a small random gemma3 of our own. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/ok.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 400u
#define N_PROMPT 300u
#define CHUNK 40u /* with a window of 24: two window blocks a session, of seven of a context */

static char dir[] = "/tmp/memra-w.XXXXXX";
static char model_path[64];
static uint32_t prompt[N_PROMPT];
static float *truth; /* [N_PROMPT, N_VOCAB], one stage, one chunk */

static pipeline *open_n(uint32_t n_stages, uint32_t chunk, uint32_t n_sessions, uint64_t kv_bytes)
{
    static doors d;
    door_values none = {0};
    errmsg e = {0};
    OK(doors_parse(&d, &none, &e));
    d.n_stages = n_stages;
    pipeline_options o = small_options(model_path, dir, &d);
    o.plan = (plan_request){.n_ctx = N_CTX,
                            .n_sessions = n_sessions,
                            .kv_bytes = kv_bytes,
                            .kv_type = DT_F16,
                            .n_chunk = chunk};
    return small_open(&o);
}

static int set_up(void **state)
{
    (void)state;
    errmsg e = {0};
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_arch("gemma3");
    spec.n_ctx = N_CTX;
    small_model(model_path, &spec);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (i * 37 + 11) % N_VOCAB;
    truth = calloc((size_t)N_PROMPT * N_VOCAB, sizeof *truth);
    pipeline *p = open_n(1, N_PROMPT, 1, 0);
    session *s = small_session(p);
    OK(session_prime(s, prompt, N_PROMPT, truth, NULL, &e));
    session_drop(s);
    pipeline_close(p);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(truth);
    unlink(model_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* Append the prompt's tokens [from, to) and compare every logit. */
static void feed(session *s, uint32_t from, uint32_t to)
{
    errmsg e = {0};
    float *got = calloc((size_t)(to - from) * N_VOCAB, sizeof *got);
    assert_int_equal(session_position(s), from);
    OK(session_prime(s, prompt + from, to - from, got, NULL, &e));
    assert_memory_equal(got, truth + (size_t)from * N_VOCAB,
                        (size_t)(to - from) * N_VOCAB * sizeof *got);
    free(got);
}

static void cuts_and_chunks_are_equal(void **state)
{
    (void)state;
    static const uint32_t n_stages[] = {1, 2, 4, 7}, chunk[] = {1, CHUNK, 17, 256};
    for (uint32_t i = 0; i < 4; i++) {
        pipeline *p = open_n(n_stages[i], chunk[i], 1, 0);
        const plan *made = pipeline_plan(p);
        uint32_t span = (24 - 1 + chunk[i] + 62) / 64 + 1;
        assert_int_equal(made->n_blocks[KV_CLASS_WINDOW], span < 7 ? span : 7);
        assert_int_equal(made->n_blocks[KV_CLASS_GLOBAL], 7);
        session *s = small_session(p);
        feed(s, 0, 150);
        for (uint32_t at = 150; at < 170; at++) {
            errmsg e = {0};
            float got[N_VOCAB];
            OK(session_step(s, prompt[at], got, NULL, &e));
            assert_memory_equal(got, truth + (size_t)at * N_VOCAB, sizeof got);
        }
        feed(s, 170, N_PROMPT);
        session_drop(s);
        pipeline_close(p);
    }
}

static void truncation_reaches_released_positions(void **state)
{
    (void)state;
    errmsg e = {0};
    static const uint32_t to[] = {299, 290, 256, 255, 130, 64, 63, 1, 0};
    pipeline *p = open_n(3, CHUNK, 1, 0);
    session *s = small_session(p);
    for (uint32_t i = 0; i < sizeof to / sizeof *to; i++) {
        feed(s, (uint32_t)session_position(s), N_PROMPT);
        OK(session_truncate(s, to[i], &e));
        uint32_t end = to[i] + 70 < N_PROMPT ? to[i] + 70 : N_PROMPT;
        feed(s, to[i], end);
    }
    session_drop(s);
    pipeline_close(p);
}

static void forks_share_windows(void **state)
{
    (void)state;
    errmsg e = {0};
    static const uint32_t at[] = {20, 64, 100, 191, 192, 193};
    pipeline *p = open_n(2, CHUNK, 4, 0);
    for (uint32_t i = 0; i < sizeof at / sizeof *at; i++) {
        session *a = small_session(p), *b, *c;
        const uint32_t other[90] = {0};
        feed(a, 0, at[i]);
        OK(session_fork(a, &b, &e));
        OK(session_fork(b, &c, &e));
        OK(session_prime(a, other, 90, NULL, NULL, &e)); /* another way, over the window */
        feed(b, at[i], at[i] + 60);
        session_drop(a);
        /* Into a block that is whole in both, and back to where the window is gone. */
        OK(session_fork(b, &a, &e));
        OK(session_truncate(b, at[i] + 50, &e));
        feed(b, at[i] + 50, at[i] + 60);
        OK(session_truncate(a, 10, &e));
        feed(a, 10, 90);
        feed(c, at[i], at[i] + 100);
        session_drop(c);
        session_drop(b);
        session_drop(a);
    }
    pipeline_close(p);
}

/* Four sessions where the KV pays for little more than one context: short ones fit side by side,
 * and the window pool says when it is full, with nothing applied. */
static void a_small_pool_is_shared_and_said_full(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(1, CHUNK, 1, 0);
    uint64_t one = pipeline_plan(p)->stage[0].kv_bytes;
    pipeline_close(p);
    p = open_n(2, CHUNK, 4, one + one / 2);
    assert_int_equal(pipeline_plan(p)->n_blocks[KV_CLASS_WINDOW], 3);
    session *s[4];
    for (uint32_t i = 0; i < 4; i++)
        s[i] = small_session(p);
    for (uint32_t i = 0; i < 3; i++)
        feed(s[i], 0, 64);
    assert_int_equal(session_prime(s[3], prompt, 64, NULL, NULL, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "no window KV block left"));
    assert_int_equal(session_position(s[3]), 0);
    session_drop(s[0]);
    feed(s[3], 0, 40);
    errmsg_clear(&e);
    session *fork = NULL;
    assert_int_equal(session_fork(s[3], &fork, &e), ST_RESOURCES);
    assert_null(fork);
    session_drop(s[1]);
    feed(s[3], 40, N_PROMPT);
    errmsg_clear(&e);
    OK(session_truncate(s[3], 5, &e));
    feed(s[3], 5, 100);
    session_drop(s[2]);
    session_drop(s[3]);
    pipeline_close(p);
}

/* Two sessions' prompts and steps in turns, deferred, chunks overlapping over the stages. */
static void sessions_interleave(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(3, CHUNK, 2, 0);
    session *a = small_session(p), *b = small_session(p);
    pending *w[20];
    float got[N_VOCAB];
    feed(a, 0, 128);
    feed(b, 0, 61);
    for (uint32_t i = 0; i < 10; i++) {
        OK(session_step_deferred(a, prompt[128 + i], &w[2 * i], &e));
        if (i < 5) OK(session_step_deferred(b, prompt[61 + i], &w[2 * i + 1], &e));
        if (i == 4) feed(b, 66, 250);
    }
    for (uint32_t i = 0; i < 10; i++) {
        OK(pending_logits_wait(w[2 * i], got, NULL, &e));
        assert_memory_equal(got, truth + (size_t)(128 + i) * N_VOCAB, sizeof got);
        if (i >= 5) continue;
        OK(pending_logits_wait(w[2 * i + 1], got, NULL, &e));
        assert_memory_equal(got, truth + (size_t)(61 + i) * N_VOCAB, sizeof got);
    }
    OK(session_truncate(a, 100, &e));
    feed(a, 100, N_PROMPT);
    session_drop(a);
    session_drop(b);
    pipeline_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_and_chunks_are_equal),
        cmocka_unit_test(truncation_reaches_released_positions),
        cmocka_unit_test(forks_share_windows),
        cmocka_unit_test(a_small_pool_is_shared_and_said_full),
        cmocka_unit_test(sessions_interleave),
    };
    tap_begin(180);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
