/* Whose prompt is read when: by priority, first come first served among equals, nobody for ever last, and
 * streams keep their pace. Stages take a set time for a chunk, and it is chunks that are counted. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/ok.h"
#include "tests/support/small_run.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_CTX 260u
#define CHUNK 4u /* rows */
#define N_SESSIONS 8u

static char dir[] = "/tmp/memra-o.XXXXXX", path[64];

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_default();
    spec.n_layers = 4;
    spec.n_ctx = N_CTX;
    small_model(path, &spec);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

static pipeline *open_n(uint32_t n_stages)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    d.step.prime_chunk = CHUNK;
    snprintf(d.fault_text, sizeof d.fault_text,
             "stage=all,at=prime,kind=slow:6,every=1;stage=all,at=decode,kind=slow:1,every=1");
    pipeline_options o = small_options(path, dir, &d);
    o.plan.n_sessions = N_SESSIONS;
    o.plan.n_ctx = N_CTX;
    return small_open(&o);
}

static uint32_t n_chunks(const pipeline *p)
{
    stage_snapshot t;
    pipeline_stage(p, 0, &t);
    return (uint32_t)t.n_chunks;
}

static void wait_for_chunks(const pipeline *p, uint32_t n)
{
    const struct timespec pause = {.tv_nsec = 500000};
    while (n_chunks(p) < n) nanosleep(&pause, NULL);
}

/* A prompt of so many chunks, read in a thread of its own; done_at: chunks read in all when it was. */
typedef struct {
    pipeline *p;
    int32_t priority;
    uint32_t n, done_at;
    status result;
    pthread_t thread;
} reader;

static void *reader_main(void *arg)
{
    reader *x = arg;
    session_options o = session_options_default();
    uint32_t prompt[N_CTX];
    session *s;
    errmsg e = {0};
    o.priority = x->priority;
    for (uint32_t i = 0; i < x->n * CHUNK; i++) prompt[i] = (i * 7 + 3) % 200;
    x->result = session_open_with(x->p, &o, &s, &e);
    if (x->result == ST_OK) x->result = session_prime(s, prompt, (uint64_t)x->n * CHUNK, NULL, NULL, &e);
    x->done_at = n_chunks(x->p);
    session_drop(s);
    return NULL;
}

static void begin(reader *x, pipeline *p, int32_t priority, uint32_t n)
{
    *x = (reader){.p = p, .priority = priority, .n = n};
    assert_int_equal(pthread_create(&x->thread, NULL, reader_main, x), 0);
}

static void end(reader *x)
{
    pthread_join(x->thread, NULL);
    assert_int_equal(x->result, ST_OK);
}

/* In flight when a prompt comes, or chosen while its thread wakes. */
static uint32_t slack(uint32_t n_stages)
{
    return 2 * n_stages + 6;
}

static void first_come_first_served(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        reader a, b;
        pipeline *p = open_n(n);
        begin(&a, p, 1, 30);
        wait_for_chunks(p, 2);
        begin(&b, p, 1, 30);
        end(&a);
        end(&b);
        assert_in_range(a.done_at, 30, 30 + slack(n)); /* in turns it would be 58 */
        assert_in_range(b.done_at, 60, 60);
        pipeline_close(p);
    }
}

static void more_priority_overtakes(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        reader low, high;
        pipeline *p = open_n(n);
        begin(&low, p, 0, 60);
        wait_for_chunks(p, 5);
        uint32_t at = n_chunks(p);
        begin(&high, p, 5, 12);
        end(&high);
        assert_in_range(high.done_at, at + 12, at + 12 + 12 / 8 + 1 + slack(n));
        end(&low);
        assert_int_equal(low.done_at, 72);
        pipeline_close(p);
    }
}

/* Others of more priority keep coming: one is the oldest when the one before it is through, and has every
 * ninth chunk from then on. */
static void nobody_is_last_for_ever(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n += 2) {
        reader before, low, later[4];
        pipeline *p = open_n(n);
        begin(&before, p, 3, 20);
        wait_for_chunks(p, 2);
        begin(&low, p, -1, 5);
        wait_for_chunks(p, 8);
        for (uint32_t i = 0; i < 4; i++) begin(&later[i], p, 3, 40);
        end(&before);
        end(&low);
        assert_in_range(low.done_at, 20 + 5 * 8, 20 + 5 * 9 + slack(n));
        for (uint32_t i = 0; i < 4; i++) end(&later[i]);
        assert_int_equal(n_chunks(p), 185);
        pipeline_close(p);
    }
}

/* A stream of no priority beside prompts of much: a token at least for every two chunks. */
static void streams_keep_their_pace(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        errmsg e = {0};
        reader x[2];
        generation *g;
        uint32_t token, came = 0;
        pipeline *p = open_n(n);
        session *s = small_session(p);
        OK(session_prime(s, &(uint32_t){5}, 1, NULL, &token, &e));
        OK(session_generate(s, token, &(generate_limits){.n_max = 250}, &g, &e));
        for (uint32_t i = 0; i < 2; i++) begin(&x[i], p, 7, 30);
        wait_for_chunks(p, 10);
        uint32_t at = n_chunks(p), now = at;
        while (now < 50) {
            OK(generation_next(g, &token, &e));
            assert_int_not_equal(token, TOKEN_NONE);
            came++;
            now = n_chunks(p);
        }
        assert_true(came >= (now - at) / 2);
        for (uint32_t i = 0; i < 2; i++) end(&x[i]);
        OK(generation_close(g, &e));
        session_drop(s);
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_come_first_served),
        cmocka_unit_test(more_priority_overtakes),
        cmocka_unit_test(nobody_is_last_for_ever),
        cmocka_unit_test(streams_keep_their_pace),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
