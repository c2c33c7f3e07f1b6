/* Stages that are killed are replaced and nobody notices: the recovery gate over models of our own,
 * one of them with window layers, and what the library says of losses and their bounds. */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "common/journal.h"
#include "coordinator/gates/gate.h"
#include "tests/support/ok.h"
#include "tests/support/small_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 400u

static char dir[] = "/tmp/memra-r.XXXXXX";
static char llama_path[64], gemma_path[64];

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(llama_path, sizeof llama_path, "%s/l.gguf", dir);
    snprintf(gemma_path, sizeof gemma_path, "%s/g.gguf", dir);
    llama_spec llama = llama_spec_default(), gemma = llama_spec_arch("gemma3");
    llama.n_layers = 4;
    llama.n_vocab = N_VOCAB;
    llama.n_ctx = gemma.n_ctx = N_CTX;
    small_model(llama_path, &llama);
    small_model(gemma_path, &gemma);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(llama_path);
    unlink(gemma_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* --- the gate --------------------------------------------------------------------------------- */

static void gate_is_green(const char *path, uint32_t n_stages, uint32_t kills,
                          uint64_t journal_bytes)
{
    errmsg e = {0};
    common_options c = {.model = path, .doors = doors_default(), .restarts = RESTARTS_DEFAULT};
    char *log = NULL;
    size_t log_bytes = 0;
    c.doors.n_stages = n_stages;
    c.doors.stages_set = true;
    c.stage_program = MEMRA_BINARY_DIR "/bin/memra-stage";
    c.run_dir = dir;
    c.n_threads = 1;
    c.start_timeout_s = 30;
    c.hang_timeout_s = 0.3;
    c.restart_window_s = 1;
    c.plan = (plan_request){.n_ctx = N_CTX, .kv_type = DT_F16, .journal_bytes = journal_bytes};
    gate_report report = {.to = open_memstream(&log, &log_bytes)};
    gate_context g = {.common = &c, .model_path = path, .n_prompt = 300, .n_decode = 6, .seed = 5,
                      .n_kills = kills, .report = &report};
    gguf *file;
    model_desc *m = malloc(sizeof *m);
    OK(gguf_open(&file, path, &e));
    OK(model_read(m, file, &e));
    g.model = (gate_model){.n_layers = m->n_layers, .n_vocab = m->n_vocab, .n_embd = m->n_embd,
                           .n_ctx_train = m->n_ctx_train};
    memcpy(g.model.cut_forbidden, m->cut_forbidden, sizeof g.model.cut_forbidden);
    gguf_close(file);
    free(m);
    OK(gate_recovery(&g, &e));
    fclose(report.to);
    if (report.n_arms == 0 || report.n_red > 0) fail_msg("%s", log);
    free(log);
}

static void sessions_go_on(void **state)
{
    (void)state;
    gate_is_green(llama_path, 2, 10, PLAN_JOURNAL_ALL);
    gate_is_green(llama_path, 3, 10, PLAN_JOURNAL_ALL);
}

static void sessions_with_window_layers_go_on(void **state)
{
    (void)state;
    gate_is_green(gemma_path, 2, 10, PLAN_JOURNAL_ALL);
    gate_is_green(gemma_path, 3, 10, PLAN_JOURNAL_ALL);
}

static void sessions_without_a_journal_go_on(void **state)
{
    (void)state;
    gate_is_green(llama_path, 3, 6, 0);
    gate_is_green(gemma_path, 3, 6, 0);
}

/* Some of the blocks that are used have no rows there: those walk all stages. */
static void sessions_with_half_a_journal_go_on(void **state)
{
    (void)state;
    gate_is_green(llama_path, 3, 6, 2 * journal_bytes(20, 64));
}

/* --- the library ------------------------------------------------------------------------------ */

static pipeline *open_n(uint32_t n_stages, uint32_t restarts, const char *fault_text)
{
    static doors d;
    errmsg e = {0};
    d = doors_default();
    d.n_stages = n_stages;
    if (fault_text != NULL) {
        snprintf(d.fault_text, sizeof d.fault_text, "%s", fault_text);
        OK(fault_parse(&d.faults, fault_text, &e));
    }
    pipeline_options o = small_options(llama_path, dir, &d);
    o.plan = (plan_request){.n_sessions = 2, .kv_type = DT_F16};
    o.restarts = restarts;
    return small_open(&o);
}

/* One stage has no neighbours; what it knew comes from tokens alone. */
static void the_only_stage_is_replaced(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t prompt[100], want[20], got;
    for (uint32_t i = 0; i < 100; i++) prompt[i] = (i * 37 + 11) % N_VOCAB;
    pipeline *p = open_n(1, RESTARTS_DEFAULT, NULL);
    session *s = small_session(p);
    OK(session_prime(s, prompt, 100, NULL, &want[0], &e));
    for (uint32_t i = 1; i < 20; i++) OK(session_step(s, want[i - 1], NULL, &want[i], &e));
    OK(session_truncate(s, 0, &e));
    OK(session_prime(s, prompt, 100, NULL, &got, &e));
    for (uint32_t i = 1; i < 20; i++) {
        stage_snapshot t;
        pipeline_stage(p, 0, &t);
        if (i % 5 == 0) kill(t.pid, SIGKILL);
        OK(session_step(s, got, NULL, &got, &e));
        assert_int_equal(got, want[i]);
    }
    recovery_record r[8];
    assert_int_equal(pipeline_recoveries(p, 0, r, 8), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(r[i].stage, 0);
        assert_int_not_equal(r[i].pid, r[i].lost_pid);
        assert_int_equal(r[i].replayed_rows, 104 + 5 * i);
        assert_true(r[i].noticed_ns <= r[i].reaped_ns && r[i].reaped_ns <= r[i].loaded_ns &&
                    r[i].loaded_ns <= r[i].attached_ns && r[i].attached_ns <= r[i].resumed_ns);
        assert_non_null(strstr(r[i].why.text, "SIGKILL"));
    }
    session_drop(s);
    pipeline_close(p);
}

/* The prompt in a session that shares what others have, and twenty tokens after it. */
static session *shared_run(pipeline *p, uint32_t out[20])
{
    errmsg e = {0};
    uint32_t prompt[200];
    session *s;
    session_options how = session_options_default();
    how.share = true;
    for (uint32_t i = 0; i < 200; i++) prompt[i] = (i * 37 + 11) % N_VOCAB;
    OK(session_open_with(p, &how, &s, &e));
    OK(session_prime(s, prompt, 200, NULL, &out[0], &e));
    for (uint32_t i = 1; i < 20; i++) OK(session_step(s, out[i - 1], NULL, &out[i], &e));
    return s;
}

static uint64_t shared_rows(const pipeline *p)
{
    schedule_snapshot now;
    pipeline_schedule(p, &now);
    return now.n_shared_rows;
}

/* A prefix that no session holds is forgotten with the stage that knew it; one that is held is
 * brought back with its session, and shared again. */
static void prefixes_outlive_a_stage_or_are_forgotten(void **state)
{
    (void)state;
    uint32_t want[20], got[20];
    pipeline *p = open_n(2, RESTARTS_DEFAULT, NULL);
    session_drop(shared_run(p, want));
    for (uint32_t i = 0; i < 4; i++) {
        bool held = i % 2 == 1;
        stage_snapshot t;
        uint64_t before = shared_rows(p);
        session *s = held ? shared_run(p, got) : NULL;
        if (held) assert_true(shared_rows(p) > before);
        pipeline_stage(p, i / 2, &t);
        kill(t.pid, SIGKILL);
        while (pipeline_recoveries(p, 0, NULL, 0) == i) usleep(1000);
        before = shared_rows(p);
        session_drop(shared_run(p, got));
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(shared_rows(p) > before, held);
        session_drop(s);
    }
    pipeline_close(p);
}

#define MANY      7u
#define SHORT     20u
#define LONG      150u
#define CHUNK     64u
#define MANY_MORE 3u

static void go_on(session *s[], uint32_t n, uint32_t *out)
{
    errmsg e = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t begin = session_position(s[i]);
        uint32_t next = (11 + i) % N_VOCAB;
        for (uint32_t k = 0; k < MANY_MORE; k++, out++) {
            OK(session_step(s[i], next, NULL, &next, &e));
            *out = next;
        }
        OK(session_truncate(s[i], begin, &e));
    }
}

/* Seven short sessions, and a long one with a fork that shares its whole blocks: chunks are full
 * but where the fork has to wait for the blocks that it shares. */
static void many_sessions_come_back_in_few_chunks(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = 2;
    pipeline_options o = small_options(llama_path, dir, &d);
    o.plan = (plan_request){.n_sessions = MANY + 2,
                            .n_chunk = CHUNK,
                            .kv_type = DT_F16,
                            .journal_bytes = PLAN_JOURNAL_ALL};
    o.restarts = RESTARTS_DEFAULT;
    pipeline *p = small_open(&o);
    session *s[MANY + 2];
    uint32_t want[(MANY + 2) * MANY_MORE], got[(MANY + 2) * MANY_MORE], prompt[LONG];
    for (uint32_t i = 0; i <= MANY; i++) {
        for (uint32_t k = 0; k < LONG; k++) prompt[k] = (k * 37 + i * 53 + 1) % N_VOCAB;
        s[i] = small_session(p);
        OK(session_prime(s[i], prompt, i < MANY ? SHORT : LONG, NULL, NULL, &e));
    }
    OK(session_fork(s[MANY], &s[MANY + 1], &e));
    go_on(s, MANY + 2, want);
    for (uint32_t stage = 0; stage < 2; stage++) {
        stage_snapshot t;
        recovery_record r;
        pipeline_stage(p, stage, &t);
        kill(t.pid, SIGKILL);
        go_on(s, MANY + 2, got);
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(pipeline_recoveries(p, stage, &r, 1), stage + 1);
        assert_true(r.replayed_rows >= MANY * SHORT + LONG + LONG % KV_BLOCK);
        assert_false(r.through);
        assert_in_range(r.replayed_chunks, 1, (r.replayed_rows + CHUNK - 1) / CHUNK + 1);
    }
    for (uint32_t i = 0; i < MANY + 2; i++) session_drop(s[i]);
    pipeline_close(p);
}

static void a_loss_too_many_ends_the_run(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_n(2, 2, "stage=1,at=decode,kind=exit,every=1");
    session *s = small_session(p);
    uint32_t token = 3;
    stage_snapshot t;
    OK(session_prime(s, &token, 1, NULL, NULL, &e));
    assert_int_equal(session_step(s, 1, NULL, NULL, &e), ST_STAGE_LOST);
    assert_non_null(strstr(e.text, "stage 1 (pid "));
    assert_non_null(strstr(e.text, "exit code 70; it was replaced 2 times in 60 s"));
    pipeline_stage(p, 1, &t);
    assert_int_equal(t.n_lost, 2);
    assert_int_equal(t.epoch, 3);
    assert_int_equal(session_step(s, 1, NULL, NULL, &e), ST_STAGE_LOST);
    assert_int_equal(pipeline_check(p, &e), ST_STAGE_LOST);
    session_drop(s);
    pipeline_close(p);
}

/* Calls that need no stage go on while one is replaced, and are as they were. */
static void books_change_while_a_stage_is_replaced(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t prompt[150], want, got;
    for (uint32_t i = 0; i < 150; i++) prompt[i] = (i * 31 + 7) % N_VOCAB;
    pipeline *p = open_n(3, RESTARTS_DEFAULT, NULL);
    session *s = small_session(p), *f;
    OK(session_prime(s, prompt, 150, NULL, &want, &e));
    OK(session_truncate(s, 100, &e));
    for (uint32_t stage = 0; stage < 3; stage++) {
        stage_snapshot t;
        pipeline_stage(p, stage, &t);
        kill(t.pid, SIGKILL);
        OK(session_fork(s, &f, &e)); /* a copy of a block that lost stages have yet to learn */
        session_drop(s);
        s = f;
        OK(session_prime(s, prompt + 100, 50, NULL, &got, &e));
        assert_int_equal(got, want);
        OK(session_truncate(s, 100, &e));
    }
    assert_int_equal(pipeline_recoveries(p, 0, NULL, 0), 3);
    session_drop(s);
    pipeline_close(p);
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_only_stage_is_replaced),
        cmocka_unit_test(books_change_while_a_stage_is_replaced),
        cmocka_unit_test(prefixes_outlive_a_stage_or_are_forgotten),
        cmocka_unit_test(many_sessions_come_back_in_few_chunks),
        cmocka_unit_test(a_loss_too_many_ends_the_run),
        cmocka_unit_test(sessions_go_on),
        cmocka_unit_test(sessions_with_window_layers_go_on),
        cmocka_unit_test(sessions_without_a_journal_go_on),
        cmocka_unit_test(sessions_with_half_a_journal_go_on),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
