/* The coordinator library over real stage processes: sessions, deferred steps, forks, limits, and
 * what a lost stage means. The model is a small random one of our own. */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define N_VOCAB 320u
#define N_CTX 200u
#define N_PROMPT 150u

static char dir[] = "/tmp/memra-t.XXXXXX";
static char model_path[64];
static uint32_t prompt[N_PROMPT];
static volatile int interrupt;

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
    for (uint32_t i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + 11) % N_VOCAB;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

static pipeline_options options(doors *d, uint32_t n_stages)
{
    door_values none = {0};
    errmsg e = {0};
    assert_int_equal(doors_parse(d, &none, &e), ST_OK);
    d->n_stages = n_stages;
    pipeline_options o = small_options(model_path, dir, d);
    o.restarts = 0;
    o.plan.n_sessions = 4;
    return o;
}

static pipeline *open_with(pipeline_options o)
{
    pipeline *p;
    errmsg e = {0};
    interrupt = 0;
    if (pipeline_open(&p, &o, &interrupt, &e) != ST_OK) fail_msg("%s", e.text);
    return p;
}

static pipeline *open_n(uint32_t n_stages)
{
    static doors d;
    return open_with(options(&d, n_stages));
}

#define OK(expr) assert_int_equal(expr, ST_OK)
static float *rows(uint32_t n)
{
    return calloc((size_t)n * N_VOCAB, sizeof(float));
}
static bool same(const float *a, const float *b, uint32_t n)
{
    return memcmp(a, b, (size_t)n * N_VOCAB * sizeof(float)) == 0;
}

/* Logits of the whole prompt and of ten greedy steps, one stage: what everything is compared
 * with. */
static float *truth;
static uint32_t truth_tokens[11];

static void one_stage_is_the_reference(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(1);
    session *s = small_session(p);
    truth = rows(N_PROMPT + 10);
    OK(session_prime(s, prompt, N_PROMPT, truth, &truth_tokens[0], &e));
    for (uint32_t i = 0; i < 10; i++)
        OK(session_step(s, truth_tokens[i], truth + (N_PROMPT + i) * N_VOCAB, &truth_tokens[i + 1],
                        &e));
    assert_int_equal(session_position(s), N_PROMPT + 10);
    session_drop(s);
    pipeline_close(p);
}

static void n_stages_give_the_same_bits(void **state)
{
    (void)state;
    float *got = rows(N_PROMPT + 10);
    for (uint32_t n = 2; n <= 4; n++) {
        errmsg e = {0};
        pipeline *p = open_n(n);
        session *s = small_session(p);
        uint32_t token;
        OK(session_prime(s, prompt, N_PROMPT, got, &token, &e));
        for (uint32_t i = 0; i < 10; i++) {
            assert_int_equal(token, truth_tokens[i]);
            OK(session_step(s, token, got + (N_PROMPT + i) * N_VOCAB, &token, &e));
        }
        assert_true(same(got, truth, N_PROMPT + 10));
        stage_snapshot first, last;
        pipeline_stage(p, 0, &first);
        pipeline_stage(p, n - 1, &last);
        assert_int_equal(first.tx_rows, N_PROMPT + 10);
        assert_int_equal(last.rx_rows, N_PROMPT + 10);
        assert_int_equal(first.n_probes, 8); /* four sizes, two slots */
        session_drop(s);
        pipeline_close(p);
    }
    free(got);
}

static void deferred_steps_overlap_and_drop(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(2);
    session *s = small_session(p);
    pending *w[10];
    float *got = rows(1);
    OK(session_prime(s, prompt, N_PROMPT, NULL, NULL, &e));
    for (uint32_t i = 0; i < 10; i++) OK(session_step_deferred(s, truth_tokens[i], &w[i], &e));
    for (uint32_t i = 10; i-- > 0;) { /* in any order; some never */
        if (i % 3 == 0) {
            pending_drop(w[i]);
            continue;
        }
        uint32_t token;
        OK(pending_logits_wait(w[i], got, &token, &e));
        assert_true(same(got, truth + (N_PROMPT + i) * N_VOCAB, 1));
        assert_int_equal(token, truth_tokens[i + 1]);
    }
    /* As many as there are readback rows, less the one that stays for waiting callers. */
    OK(session_truncate(s, N_PROMPT, &e));
    pending *many[64];
    uint32_t n = 0;
    while (session_step_deferred(s, truth_tokens[0], &many[n], &e) == ST_OK) n++;
    assert_int_equal(e.code, ST_RESOURCES);
    assert_int_equal(n, pipeline_plan(p)->n_readback - 1);
    errmsg_clear(&e);
    OK(session_step(s, truth_tokens[1], got, NULL, &e)); /* still goes */
    pending *late = many[0];
    for (uint32_t i = 1; i < n; i++) pending_drop(many[i]);
    session_drop(s);
    OK(pending_logits_wait(late, got, NULL, &e)); /* outlives its session */
    assert_true(same(got, truth + N_PROMPT * N_VOCAB, 1));
    free(got);
    pipeline_close(p);
}

static void forks_share_and_go_apart(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(3);
    session *a = small_session(p), *b, *c;
    float *got = rows(N_PROMPT);
    uint32_t token;
    OK(session_prime(a, prompt, 100, NULL, NULL, &e));
    OK(session_fork(a, &b, &e));
    OK(session_fork(b, &c, &e));
    /* a goes another way first; b and c must not see it. */
    uint32_t other[50] = {0};
    OK(session_prime(a, other, 50, NULL, NULL, &e));
    OK(session_prime(b, prompt + 100, 50, got, &token, &e));
    assert_true(same(got, truth + 100 * N_VOCAB, 50));
    assert_int_equal(token, truth_tokens[0]);
    session_drop(a);
    session_drop(b);
    OK(session_prime(c, prompt + 100, 50, got, &token, &e));
    assert_true(same(got, truth + 100 * N_VOCAB, 50));
    /* Back to a shared, partly filled block, and on. */
    OK(session_fork(c, &a, &e));
    OK(session_truncate(a, 70, &e));
    OK(session_prime(a, prompt + 70, 80, got, &token, &e));
    assert_true(same(got, truth + 70 * N_VOCAB, 80));
    OK(session_truncate(c, 130, &e));
    OK(session_prime(c, prompt + 130, 20, got, &token, &e));
    assert_true(same(got, truth + 130 * N_VOCAB, 20));
    assert_int_equal(session_truncate(c, 151, &e), ST_USAGE);
    session_drop(a);
    session_drop(c);
    free(got);
    pipeline_close(p);
}

static void doors_change_nothing_but_the_way(void **state)
{
    (void)state;
    float *got = rows(N_PROMPT);
    pipeline *p = open_n(3);
#define SPLIT .batch_pp = true, .spec_pp = true, .prime_pp = true
    static const step_doors arms[] = {
        {SPLIT, .overlap = false, .prime_pipe = false, .prime_chunk = 7},
        {SPLIT, .overlap = true, .prime_pipe = false, .prime_chunk = 1},
        {SPLIT, .overlap = false, .prime_pipe = true, .prime_chunk = 13},
        {SPLIT, .overlap = true, .prime_pipe = true, .prime_chunk = 64},
        {SPLIT, .overlap = true, .prime_pipe = true, .prime_chunk = 0},
    };
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        errmsg e = {0};
        session *s = small_session(p);
        uint32_t token;
        stage_snapshot before, after;
        OK(pipeline_set_step_doors(p, &arms[i], &e));
        pipeline_stage(p, 0, &before);
        OK(session_prime(s, prompt, N_PROMPT, NULL, &token, &e));
        pipeline_stage(p, 0, &after);
        assert_int_equal(token, truth_tokens[0]);
        uint32_t chunk = arms[i].prime_chunk;
        uint32_t n = (N_PROMPT + chunk - 1) / (chunk > 0 ? chunk : 1);
        if (chunk == 0) { /* planned: several, that overlap */
            n = (uint32_t)(after.n_chunks - before.n_chunks);
            assert_in_range(n, 4, 20);
        }
        assert_int_equal(after.n_chunks - before.n_chunks, n);
        if (!arms[i].overlap) assert_int_equal(after.tx_crossings[1], before.tx_crossings[1]);
        if (arms[i].overlap && n > 1) assert_true(after.tx_crossings[1] > before.tx_crossings[1]);
        session_drop(s);
    }
    free(got);
    pipeline_close(p);
}

static void limits_are_said_and_nothing_is_applied(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(2);
    session *s = small_session(p), *more[8];
    uint32_t token, bad = N_VOCAB, long_prompt[N_CTX + 1] = {0};
    assert_int_equal(session_prime(s, &bad, 1, NULL, NULL, &e), ST_USAGE);
    errmsg_clear(&e);
    assert_int_equal(session_step(s, UINT32_MAX, NULL, NULL, &e), ST_USAGE);
    errmsg_clear(&e);
    assert_int_equal(session_prime(s, long_prompt, N_CTX + 1, NULL, NULL, &e), ST_CONTEXT_FULL);
    assert_non_null(strstr(e.text, "--ctx"));
    errmsg_clear(&e);
    OK(session_prime(s, NULL, 0, NULL, NULL, &e));
    assert_int_equal(session_prime(s, NULL, 0, NULL, &token, &e), ST_USAGE);
    errmsg_clear(&e);
    assert_int_equal(session_position(s), 0);
    OK(session_prime(s, long_prompt, N_CTX - 1, NULL, NULL, &e));
    OK(session_step(s, 0, NULL, NULL, &e));
    assert_int_equal(session_step(s, 0, NULL, NULL, &e), ST_CONTEXT_FULL);
    errmsg_clear(&e);
    OK(session_truncate(s, 0, &e));
    float *got = rows(1);
    OK(session_prime(s, prompt, 1, got, NULL, &e));
    assert_true(same(got, truth, 1));
    uint32_t n = 0;
    sampler_params greedy = sampler_default();
    while (session_open(p, &greedy, &more[n], &e) == ST_OK) n++;
    assert_int_equal(n, 3);
    assert_int_equal(e.code, ST_RESOURCES);
    while (n > 0) session_drop(more[--n]);
    session_drop(s);
    free(got);
    pipeline_close(p);
}


static void killed_stage_ends_every_call(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 3; which++) {
        errmsg e = {0};
        pipeline *p = open_n(3);
        session *s = small_session(p);
        stage_snapshot t;
        OK(session_prime(s, prompt, N_PROMPT, NULL, NULL, &e));
        pipeline_stage(p, which, &t);
        uint64_t begin = now_ns();
        kill(t.pid, SIGKILL);
        status st = ST_OK;
        for (uint32_t i = 0; st == ST_OK && now_ns() - begin < 5 * NS_PER_S; i++) {
            st = session_step(s, 1, NULL, NULL, &e);
            if (st == ST_OK) OK(session_truncate(s, N_PROMPT, &e));
        }
        assert_int_equal(st, ST_STAGE_LOST);
        assert_true(now_ns() - begin < NS_PER_S);
        char want[32];
        snprintf(want, sizeof want, "stage %u (pid %d", which, t.pid);
        assert_non_null(strstr(e.text, want));
        assert_non_null(strstr(e.text, "SIGKILL"));
        errmsg again = {0};
        assert_int_equal(session_step(s, 1, NULL, NULL, &again), ST_STAGE_LOST);
        session_drop(s);
        pipeline_close(p);
    }
}

static void stopped_stage_is_noticed(void **state)
{
    (void)state;
    errmsg e = {0};
    static doors d;
    pipeline_options o = options(&d, 2);
    o.hang_timeout_ms = 300;
    pipeline *p = open_with(o);
    session *s = small_session(p);
    stage_snapshot t;
    OK(session_prime(s, prompt, 10, NULL, NULL, &e));
    pipeline_stage(p, 0, &t);
    uint64_t begin = now_ns();
    kill(t.pid, SIGSTOP);
    assert_int_equal(session_step(s, 1, NULL, NULL, &e), ST_STAGE_LOST);
    assert_true(now_ns() - begin < 2 * NS_PER_S);
    assert_non_null(strstr(e.text, "stage 0"));
    assert_non_null(strstr(e.text, "--hang-timeout"));
    session_drop(s);
    pipeline_close(p);
}

static void interrupt_ends_a_call_within_a_second(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(2);
    session *s = small_session(p);
    pending *w;
    OK(session_prime(s, prompt, 10, NULL, NULL, &e));
    OK(session_step_deferred(s, 1, &w, &e));
    interrupt = SIGINT;
    uint64_t begin = now_ns();
    status st = ST_OK;
    while (st == ST_OK && now_ns() - begin < 5 * NS_PER_S)
        st = session_prime(s, prompt, 1, NULL, NULL, &e);
    assert_true(st == ST_INTERRUPTED || st == ST_CONTEXT_FULL);
    assert_true(now_ns() - begin < NS_PER_S);
    pending_drop(w);
    session_drop(s);
    pipeline_close(p);
}

/* Asked again and again for its status, at once, by somebody who does not wait for answers. */
static void questions_without_end_hold_up_no_step(void **state)
{
    (void)state;
    enum { N_QUESTIONS = 20000 };
    errmsg e = {0};
    pipeline *p = open_n(2);
    session *s = small_session(p);
    char endpoint[200], answer[65536];
    uint32_t next, n_answers = 0;
    int none = 0;
    OK(session_prime(s, prompt, N_PROMPT, NULL, &next, &e));
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/status", pipeline_run_dir(p));
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    for (int i = 0; i < N_QUESTIONS; i++) {
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
        zmq_send(socket, "status", 6, 0);
    }
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, 10000), 1); /* it has begun to answer */
    for (int i = 0; i < 10; i++) OK(session_step(s, next, NULL, &next, &e));
    while (zmq_recv(socket, answer, sizeof answer, ZMQ_DONTWAIT) >= 0) n_answers++;
    assert_true(n_answers >= 2); /* two frames each */
    assert_true(n_answers < N_QUESTIONS);
    zmq_close(socket);
    zmq_ctx_term(zmq);
    session_drop(s);
    pipeline_close(p);
}

static void an_alien_program_is_refused(void **state)
{
    (void)state;
    static doors d;
    pipeline_options o = options(&d, 2);
    pipeline *p;
    errmsg e = {0};
    interrupt = 0;
    o.stage_program = "/bin/true";
    assert_int_equal(pipeline_open(&p, &o, &interrupt, &e), ST_STAGE_LOST);
    assert_null(p);
    errmsg_clear(&e);
    o.stage_program = "/nonexistent/memra-stage";
    assert_int_equal(pipeline_open(&p, &o, &interrupt, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "--stage-program"));
    errmsg_clear(&e);
    o = options(&d, 2);
    o.stage_program = MEMRA_BINARY_DIR "/bin/tests/memra-stage-alien";
    assert_int_equal(pipeline_open(&p, &o, &interrupt, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "alien"));
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_is_the_reference),
        cmocka_unit_test(n_stages_give_the_same_bits),
        cmocka_unit_test(deferred_steps_overlap_and_drop),
        cmocka_unit_test(forks_share_and_go_apart),
        cmocka_unit_test(doors_change_nothing_but_the_way),
        cmocka_unit_test(limits_are_said_and_nothing_is_applied),
        cmocka_unit_test(killed_stage_ends_every_call),
        cmocka_unit_test(stopped_stage_is_noticed),
        cmocka_unit_test(interrupt_ends_a_call_within_a_second),
        cmocka_unit_test(questions_without_end_hold_up_no_step),
        cmocka_unit_test(an_alien_program_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    free(truth);
    return failed;
}
