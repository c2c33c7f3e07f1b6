/* The coordinator believes nothing that a stage writes: a stage program that lies, in every message
 * and shared word it has, gets the run ended with one line that names it, and nothing else
 * happens. */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "common/wire.h"
#include "coordinator/engine/child.h"
#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static char dir[] = "/tmp/memra-t.XXXXXX";
static char model_path[64];

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_default();
    small_model(model_path, &spec);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    return rmdir(dir);
}

/* Open with a stage that behaves so, and take steps; the status of the first call that failed.
 * *end: the stage as it was then. */
static status attempt_with(const char *behaviour, uint32_t restarts, uint32_t *next,
                           stage_snapshot *end, errmsg *e)
{
    doors d;
    door_values none = {0};
    assert_int_equal(doors_parse(&d, &none, e), ST_OK);
    pipeline_options o = pipeline_options_default(model_path, &d);
    o.stage_program = MEMRA_BINARY_DIR "/bin/tests/fake-stage";
    o.run_dir = dir;
    o.restarts = restarts;
    o.start_timeout_ms = 500;
    o.hang_timeout_ms = 500;
    setenv("MEMRA_FAKE", behaviour, 1);
    pipeline *p;
    status st = pipeline_open(&p, &o, NULL, e);
    if (st != ST_OK) return st;
    stage_snapshot shown;
    pipeline_stage(p, 0, &shown);
    assert_string_equal(shown.device, "a \"fake\"?? device");
    session *s;
    sampler_params greedy = sampler_default();
    uint32_t token = 1;
    st = session_open(p, &greedy, &s, e);
    if (st == ST_OK) {
        st = session_prime(s, &token, 1, NULL, next, e);
        /* "twice" shows with the step after. */
        for (int i = 0; st == ST_OK && i < 50; i++) {
            st = session_step(s, 1, NULL, next, e);
            if (st == ST_CONTEXT_FULL) break;
        }
        session_drop(s);
    }
    pipeline_stage(p, 0, end);
    pipeline_close(p);
    return st;
}

static status attempt(const char *behaviour, uint32_t *next, errmsg *e)
{
    stage_snapshot end;
    return attempt_with(behaviour, 0, next, &end, e);
}

static void refused(const char *behaviour, status want, const char *words)
{
    errmsg e = {0};
    uint32_t next = 0;
    uint64_t begin = now_ns();
    status st = attempt(behaviour, &next, &e);
    int pid = 0, named = 0;
    sscanf(e.text, "stage 0 (pid %d, layers 0-2)%n", &pid, &named);
    if (st != want || strstr(e.text, words) == NULL || named == 0 || pid <= 1 ||
        strstr(e.text + named, "stage 0") != NULL)
        fail_msg("%s: %s: %s", behaviour, status_word(st), e.text);
    assert_null(strpbrk(e.text, "\n\x1b"));
    assert_true(now_ns() - begin < 5 * NS_PER_S);
}

static void an_honest_fake_is_taken(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t next = 0;
    assert_int_equal(attempt("honest", &next, &e), ST_OK);
    assert_int_equal(next, 1);
}

static void lies_in_results(void **state)
{
    (void)state;
    refused("token-out-of-range", ST_PROTOCOL, "not in the vocabulary");
    refused("row-status", ST_PROTOCOL, "status 12345");
    refused("no-commit", ST_PROTOCOL, "is not its");
    refused("unknown-step", ST_PROTOCOL, "not asked for");
    refused("result-rows", ST_PROTOCOL, "not asked for");
    refused("result-round", ST_PROTOCOL, "not asked for");
    refused("result-group", ST_PROTOCOL, "not asked for");
    refused("twice", ST_PROTOCOL, "not asked for");
}

static void messages_of_no_shape(void **state)
{
    (void)state;
    refused("garbage", ST_PROTOCOL, "message");
    refused("empty", ST_PROTOCOL, "message");
    refused("huge", ST_PROTOCOL, "message");
    refused("short-result", ST_PROTOCOL, "message");
    refused("bad-version", ST_PROTOCOL, "message");
    refused("wrong-stage", ST_PROTOCOL, "message");
}

static void messages_out_of_turn(void **state)
{
    (void)state;
    refused("second-hello", ST_PROTOCOL, "unexpected message HELLO");
    refused("loaded-twice", ST_PROTOCOL, "unexpected message LOADED");
    refused("probed-early", ST_PROTOCOL, "unexpected message PROBED");
    refused("fault-text", ST_PROTOCOL, "two?lines");
}

/* Beside messages that are right: each is counted and dropped, and the run goes on. */
static void broken_messages_are_counted_and_dropped(void **state)
{
    (void)state;
    const struct {
        const char *behaviour;
        uint32_t n;
    } noise[] = {{"honest", 0}, {"noisy-at-first", 1}, {"noisy", 2}};
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
        errmsg e = {0};
        uint32_t next = 0;
        stage_snapshot end;
        status st = attempt_with(noise[i].behaviour, RESTARTS_DEFAULT, &next, &end, &e);
        if (st != ST_OK) fail_msg("%s: %s", noise[i].behaviour, e.text);
        assert_int_equal(next, 1);
        assert_int_equal(end.n_bad_messages, noise[i].n);
        assert_int_equal(end.n_lost, 0);
    }
}

static void a_stage_that_does_not_stop_is_replaced_and_given_up(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t next = 0;
    stage_snapshot end;
    assert_int_equal(attempt_with("very-noisy", 2, &next, &end, &e), ST_STAGE_LOST);
    assert_non_null(strstr(e.text, "layers 0-2): a message of 40 bytes is not one of build"));
    assert_non_null(strstr(e.text, "it was replaced 2 times"));
    assert_int_equal(end.n_lost, 2);
    assert_int_equal(end.n_bad_messages, 9);
}

/* --- the other way ---------------------------------------------------------------------------- */

typedef struct {
    void *zmq, *socket;
    run_block *block;
    int block_fd, death[2];
    child process;
} real_stage;

static void real_stage_open(real_stage *r)
{
    errmsg e = {0};
    char endpoint[64], death[12], block[12];
    snprintf(endpoint, sizeof endpoint, "ipc://@%s-socket", dir + 5); /* no file */
    r->zmq = zmq_ctx_new();
    r->socket = zmq_socket(r->zmq, ZMQ_PAIR);
    assert_int_equal(zmq_bind(r->socket, endpoint), 0);
    assert_int_equal(run_block_create(&r->block, &r->block_fd, 1, &e), ST_OK);
    assert_int_equal(pipe(r->death), 0);
    snprintf(death, sizeof death, "%d", r->death[0]);
    snprintf(block, sizeof block, "%d", r->block_fd);
    char *const argv[] = {MEMRA_BINARY_DIR "/bin/memra-stage",
                          "--endpoint",
                          endpoint,
                          "--stage",
                          "0",
                          "--epoch",
                          "1",
                          "--death-fd",
                          death,
                          "--run-block-fd",
                          block,
                          "--log-level",
                          "error",
                          NULL};
    const int fds[] = {r->death[0], r->block_fd};
    assert_int_equal(child_start(&r->process, argv, fds, 2, &e), ST_OK);
}

static void real_stage_close(real_stage *r)
{
    child_destroy(&r->process);
    zmq_close(r->socket);
    zmq_ctx_term(r->zmq);
    run_block_unmap(r->block);
    close(r->block_fd);
    close(r->death[0]);
    close(r->death[1]);
}

static void say(const real_stage *r, uint32_t epoch, wire_kind kind, uint16_t version)
{
    wire_header h = {
        .magic = WIRE_MAGIC, .version = version, .kind = (uint16_t)kind, .epoch = epoch};
    assert_int_equal(zmq_send(r->socket, &h, sizeof h, 0), sizeof h);
}

/* What it counted, once it is n or the stage has ended. */
static uint64_t counted(real_stage *r, uint64_t n)
{
    for (uint32_t ms = 0; ms < 5000 && !child_reap(&r->process); ms++) {
        if (atomic_load(&r->block->stage[0].n_bad_messages) >= n) break;
        usleep(1000);
    }
    return atomic_load(&r->block->stage[0].n_bad_messages);
}

static void a_stage_drops_what_is_no_message(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        real_stage r = {0};
        real_stage_open(&r);
        say(&r, 7, WIRE_QUIESCE, WIRE_VERSION); /* of another epoch: not for it */
        for (uint32_t i = 0; i < n; i++)
            say(&r, 1, WIRE_QUIESCE, i % 2 == 0 ? 0 : WIRE_VERSION + 1);
        assert_int_equal(counted(&r, n), n);
        if (n < 3) say(&r, 1, WIRE_STOP, WIRE_VERSION); /* it listens still */
        assert_true(child_wait(&r.process, 5000));
        assert_true(WIFEXITED(r.process.wait_status));
        assert_int_equal(WEXITSTATUS(r.process.wait_status),
                         n < 3 ? 0 : status_exit_code(ST_PROTOCOL));
        real_stage_close(&r);
    }
}

static void silence(void **state)
{
    (void)state;
    refused("silent", ST_STAGE_LOST, "--start-timeout");
    refused("no-heartbeat", ST_STAGE_LOST, "--hang-timeout");
    refused("old-epoch", ST_STAGE_LOST, "--start-timeout"); /* dropped, so it never loaded */
}

/* Whatever stands in the shared words, the coordinator lives; what it shows may be nonsense. */
static void lies_in_shared_words(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t next = 0;
    status st = attempt("words", &next, &e);
    assert_true(st == ST_OK || st == ST_STAGE_LOST);
    errmsg_clear(&e);
    assert_int_equal(attempt("readback-header", &next, &e), ST_OK);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_fake_is_taken), cmocka_unit_test(lies_in_results),
        cmocka_unit_test(messages_of_no_shape),    cmocka_unit_test(messages_out_of_turn),
        cmocka_unit_test(broken_messages_are_counted_and_dropped),
        cmocka_unit_test(a_stage_that_does_not_stop_is_replaced_and_given_up),
        cmocka_unit_test(a_stage_drops_what_is_no_message),
        cmocka_unit_test(silence),                 cmocka_unit_test(lies_in_shared_words),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
