/* The coordinator believes nothing that a stage writes: a stage program that lies, in every message
 * and shared word it has, gets the run ended with one line that names it, and nothing else happens. */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Open with a stage that behaves so, and take one step; the status of the first call that failed. */
static status attempt(const char *behaviour, uint32_t *next, errmsg *e)
{
    doors d;
    door_values none = {0};
    assert_int_equal(doors_parse(&d, &none, e), ST_OK);
    pipeline_options o = pipeline_options_default(model_path, &d);
    o.stage_program = MEMRA_BINARY_DIR "/bin/tests/fake-stage";
    o.run_dir = dir;
    o.restarts = 0;
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
    pipeline_close(p);
    return st;
}

static void refused(const char *behaviour, status want, const char *words)
{
    errmsg e = {0};
    uint32_t next = 0;
    uint64_t begin = now_ns();
    status st = attempt(behaviour, &next, &e);
    if (st != want || strstr(e.text, words) == NULL || strstr(e.text, "stage 0") == NULL)
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
        cmocka_unit_test(silence),                 cmocka_unit_test(lies_in_shared_words),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
