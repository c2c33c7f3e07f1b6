/* Who gets KV: sessions share prefixes, wait in order, are let go for others and come back, and say
 * the same as alone. */
#include "tests/support/streams.h"
#include "tests/support/tap.h"

#include "common/clock.h"
#include "coordinator/engine/engine.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_STREAMS 8u
#define OK(expr) assert_int_equal(expr, ST_OK)

static stream truth[N_STREAMS];

static doors stages(uint32_t n)
{
    doors d = doors_default();
    d.n_stages = n;
    return d;
}

static int set_up(void **state)
{
    (void)state;
    streams_open();
    doors d = stages(1);
    pipeline *p = streams_pipeline(&d, 1, 0);
    /* Two families of prompts; 0 and 1 are equal for 150 tokens, 2 leaves them after 70, 3 is
     * short. */
    static const uint32_t shared[N_STREAMS] = {150, 150, 70, 20, 100, 100, 128, 0};
    static const uint32_t n_prompt[N_STREAMS] = {150, 160, 150, 20, 110, 128, 129, 90};
    for (uint32_t i = 0; i < N_STREAMS; i++)
        streams_make(&truth[i], p, i / 4, shared[i], n_prompt[i], 50 + i);
    pipeline_close(p);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    streams_close();
    return 0;
}

static session *open_stream(pipeline *p, uint32_t i, bool share, bool wait, int32_t priority)
{
    session_options o = {
        .sampler = truth[i].sampler, .share = share, .wait = wait, .priority = priority};
    session *s;
    errmsg e = {0};
    if (session_open_with(p, &o, &s, &e) != ST_OK) fail_msg("%s", e.text);
    return s;
}

static void prime(session *s, uint32_t i)
{
    errmsg e = {0};
    uint32_t token;
    if (session_prime(s, truth[i].prompt, truth[i].n_prompt, NULL, &token, &e) != ST_OK)
        fail_msg("%s", e.text);
    assert_int_equal(token, truth[i].truth[0]);
}

/* From the k-th token on, n more. */
static void generate(session *s, uint32_t i, uint32_t k, uint32_t n)
{
    errmsg e = {0};
    generation *g;
    uint32_t token;
    OK(session_generate(s, truth[i].truth[k], &(generate_limits){.n_max = n}, &g, &e));
    for (uint32_t j = 1; j <= n; j++) {
        if (generation_next(g, &token, &e) != ST_OK) fail_msg("%s", e.text);
        assert_int_equal(token, truth[i].truth[k + j]);
    }
    OK(generation_close(g, &e));
}

static uint64_t rows_of(pipeline *p)
{
    stage_snapshot t;
    pipeline_stage(p, pipeline_plan(p)->cuts.n_stages - 1, &t);
    return t.n_rows;
}

static uint64_t shared_rows(pipeline *p)
{
    schedule_snapshot s;
    pipeline_schedule(p, &s);
    return s.n_shared_rows;
}

static void prefixes_are_shared(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        doors d = stages(n);
        pipeline *p = streams_pipeline(&d, 4, 0);
        session *a = open_stream(p, 0, true, false, 0);
        prime(a, 0);
        assert_int_equal(shared_rows(p), 0);
        assert_int_equal(rows_of(p), 150);
        session *b = open_stream(p, 1, true, false, 0), *c = open_stream(p, 2, true, false, 0);
        prime(b, 1); /* two whole blocks of a */
        assert_int_equal(shared_rows(p), 128);
        assert_int_equal(rows_of(p), 150 + 160 - 128);
        prime(c, 2); /* one */
        assert_int_equal(shared_rows(p), 128 + 64);
        session *other = open_stream(p, 1, false, false, 0);
        prime(other, 1); /* did not ask for it */
        assert_int_equal(shared_rows(p), 128 + 64);
        /* Whoever shares goes its own way; what it generates can be shared too. */
        generate(a, 0, 0, 80);
        generate(b, 1, 0, 60);
        generate(c, 2, 0, 60);
        session_drop(a);
        session_drop(b);
        session_drop(other);
        uint64_t before = shared_rows(p);
        uint32_t whole[STREAMS_CTX];
        errmsg e = {0};
        memcpy(whole, truth[0].prompt, 150 * sizeof *whole);
        memcpy(whole + 150, truth[0].truth, 80 * sizeof *whole);
        a = open_stream(p, 0, true, false, 0);
        uint32_t token;
        OK(session_prime(a, whole, 230, NULL, &token, &e));
        assert_int_equal(token, truth[0].truth[80]);
        assert_int_equal(shared_rows(p) - before, 192);
        /* Back into a shared block and on, then the whole prompt again. */
        OK(session_truncate(a, 100, &e));
        OK(session_prime(a, whole + 100, 50, NULL, &token, &e));
        assert_int_equal(token, truth[0].truth[0]);
        generate(a, 0, 0, 30);
        /* Logits of every token are wanted: all rows are walked. */
        before = shared_rows(p);
        float *logits = malloc(150 * STREAMS_VOCAB * sizeof *logits);
        b = open_stream(p, 0, true, false, 0);
        OK(session_prime(b, whole, 150, logits, &token, &e));
        assert_int_equal(token, truth[0].truth[0]);
        assert_int_equal(shared_rows(p), before);
        free(logits);
        session_drop(a);
        session_drop(b);
        session_drop(c);
        schedule_snapshot after;
        pipeline_schedule(p, &after);
        assert_true(after.n_blocks_cached > 0);
        assert_int_equal(after.n_blocks_used, after.n_blocks_cached);
        pipeline_forget_prefixes(p);
        pipeline_schedule(p, &after);
        assert_int_equal(after.n_blocks_used, 0);
        before = shared_rows(p);
        a = open_stream(p, 0, true, false, 0);
        prime(a, 0);
        assert_int_equal(shared_rows(p), before);
        session_drop(a);
        pipeline_close(p);
    }
}

/* Blocks for two and a half contexts, of which prefixes hold all that is free. */
static void what_is_needed_is_taken_from_prefixes(void **state)
{
    (void)state;
    doors d = stages(2);
    pipeline *p = streams_pipeline(&d, 3, 6);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N_STREAMS; i++) {
            session *s = open_stream(p, i, true, false, 0);
            prime(s, i);
            generate(s, i, 0, truth[i].n_truth - 1);
            session_drop(s);
        }
    }
    schedule_snapshot after;
    pipeline_schedule(p, &after);
    assert_int_equal(after.n_pauses, 0);
    assert_int_equal(after.n_blocks_used, after.n_blocks_cached);
    pipeline_close(p);
}

/* --- pressure --------------------------------------------------------------------------------- */

static void idle_sessions_are_let_go_and_come_back(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n += 2) {
        doors d = stages(n);
        pipeline *p = streams_pipeline(&d, 4, 7);
        errmsg e = {0};
        session *a = open_stream(p, 0, false, false, 0), *b = open_stream(p, 2, false, false, 0),
                *f;
        prime(a, 0);
        prime(b, 2);
        /* One block is left: a session that does not wait is refused, and nobody pays for it. */
        session *c = open_stream(p, 4, false, false, 0), *w = open_stream(p, 4, false, true, 0);
        schedule_snapshot t;
        uint32_t token;
        assert_int_equal(session_prime(c, truth[4].prompt, 110, NULL, &token, &e), ST_RESOURCES);
        errmsg_clear(&e);
        session_drop(c);
        pipeline_schedule(p, &t);
        assert_int_equal(t.n_pauses, 0);
        prime(w, 4); /* one that waits gets it: a was used least recently */
        pipeline_schedule(p, &t);
        assert_int_equal(t.n_pauses, 1);
        assert_int_equal(t.n_restored_rows, 0);
        assert_int_equal(session_position(a), 150);
        OK(session_fork(a, &f, &e)); /* of what it does not hold now */
        OK(session_truncate(f, 149, &e));
        generate(a, 0, 0, 40); /* comes back; somebody else goes */
        OK(session_step(f, truth[0].prompt[149], NULL, &token, &e));
        assert_int_equal(token, truth[0].truth[0]);
        generate(b, 2, 0, 60);
        generate(w, 4, 0, 100);
        generate(a, 0, 40, 30);
        pipeline_schedule(p, &t);
        assert_true(t.n_pauses > 3);
        assert_true(t.n_restored_rows > 300);
        session_drop(a);
        session_drop(b);
        session_drop(w);
        session_drop(f);
        pipeline_close(p);
    }
}

typedef struct {
    pipeline *p;
    uint32_t i, n;     /* stream, tokens */
    bool share;
    int32_t priority;
    uint32_t n_came, n_wrong;
    uint64_t primed_ns;
    status result;
    errmsg why;
} walker;

static void *walk(void *arg)
{
    walker *w = arg;
    const stream *t = &truth[w->i];
    session_options o = {
        .sampler = t->sampler, .share = w->share, .wait = true, .priority = w->priority};
    session *s;
    generation *g;
    uint32_t token;
    w->result = session_open_with(w->p, &o, &s, &w->why);
    if (w->result != ST_OK) return NULL;
    w->result = session_prime(s, t->prompt, t->n_prompt, NULL, &token, &w->why);
    w->primed_ns = now_ns();
    w->n_wrong = w->result != ST_OK || token != t->truth[0];
    if (w->n_wrong == 0 && w->n > 0) {
        w->result = session_generate(s, token, &(generate_limits){.n_max = w->n}, &g, &w->why);
        while (w->result == ST_OK && w->n_came < w->n) {
            w->result = generation_next(g, &token, &w->why);
            if (token == TOKEN_NONE) break;
            w->n_wrong += token != t->truth[++w->n_came];
        }
        if (g != NULL && w->result == ST_OK) w->result = generation_close(g, &w->why);
    }
    session_drop(s);
    return NULL;
}

static void all_walk(walker *w, uint32_t n)
{
    pthread_t thread[32];
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, walk, &w[i]), 0);
    for (uint32_t i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (w[i].result != ST_OK) fail_msg("%s", w[i].why.text);
        assert_int_equal(w[i].n_came, w[i].n);
        assert_int_equal(w[i].n_wrong, 0);
    }
}

/* Eight sessions that fill their contexts, with blocks for one and a half. */
static void generations_pause_and_come_back(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        doors d = stages(n);
        pipeline *p = streams_pipeline(&d, N_STREAMS, 8);
        walker w[N_STREAMS];
        for (uint32_t i = 0; i < N_STREAMS; i++)
            w[i] = (walker){.p = p, .i = i, .n = truth[i].n_truth - 1, .share = n % 2 == 0};
        all_walk(w, N_STREAMS);
        schedule_snapshot t;
        pipeline_schedule(p, &t);
        assert_true(t.n_pauses > 0);
        assert_true(t.n_restored_rows + t.n_shared_rows > 0);
        assert_int_equal(t.n_waiting, 0);
        assert_int_equal(t.n_blocks_used, t.n_blocks_cached);
        pipeline_close(p);
    }
}

static void more_sessions_than_planned_wait(void **state)
{
    (void)state;
    doors d = stages(2);
    pipeline *p = streams_pipeline(&d, 2, 0);
    walker w[16];
    for (uint32_t i = 0; i < 16; i++) w[i] = (walker){.p = p, .i = i % N_STREAMS, .n = 20};
    all_walk(w, 16);
    pipeline_close(p);
}

static uint32_t n_waiting(pipeline *p)
{
    schedule_snapshot t;
    pipeline_schedule(p, &t);
    return t.n_waiting;
}

/* What `status` is told. */
static uint32_t queue_told(pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    char *text = report_json(p);
    pthread_mutex_unlock(&p->lock);
    json_t *j = json_loads(text, 0, NULL);
    json_int_t n = json_integer_value(json_object_get(j, "queue"));
    json_decref(j);
    free(text);
    return (uint32_t)n;
}

/* While one of more priority holds so much that none of them fits, four line up; then they come by
 * priority, and by arrival where that is equal. */
static void the_line_goes_by_priority(void **state)
{
    (void)state;
    static const int32_t priority[4] = {0, 2, 1, 2};
    static const uint32_t order[4] = {1, 3, 2, 0};
    doors d = stages(2);
    /* So slow that four can line up meanwhile, and that one is done long before the next. */
    strcpy(d.fault_text,
           "stage=1,at=decode,kind=slow:10,every=1;stage=1,at=prime,kind=slow:30,every=1");
    pipeline *p = streams_pipeline(&d, 8, 5);
    errmsg e = {0};
    generation *g;
    session *holder = open_stream(p, 7, false, true, 10);
    pthread_t thread[4];
    walker w[4];
    prime(holder, 7);
    OK(session_generate(holder, truth[7].truth[0], &(generate_limits){.n_max = 165}, &g, &e));
    uint32_t token;
    for (uint32_t k = 1; k <= 165; k++) {
        OK(generation_next(g, &token, &e));
        assert_int_equal(token, truth[7].truth[k]);
        /* Of five blocks it has three now, and they need three each. */
        for (uint32_t i = 0; k == 50 && i < 4; i++) {
            w[i] = (walker){.p = p, .i = 2, .priority = priority[i]};
            assert_int_equal(pthread_create(&thread[i], NULL, walk, &w[i]), 0);
            uint64_t begin = now_ns();
            while (n_waiting(p) <= i && now_ns() - begin < NS_PER_S)
                nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS}, NULL);
            assert_int_equal(n_waiting(p), i + 1);
            assert_int_equal(queue_told(p), i + 1);
        }
    }
    OK(generation_close(g, &e));
    session_drop(holder);
    for (uint32_t i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(w[i].n_wrong, 0);
    for (uint32_t i = 1; i < 4; i++) assert_true(w[order[i - 1]].primed_ns < w[order[i]].primed_ns);
    assert_int_equal(n_waiting(p), 0);
    pipeline_close(p);
}

int main(void)
{
    tap_begin(180);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_shared),
        cmocka_unit_test(what_is_needed_is_taken_from_prefixes),
        cmocka_unit_test(idle_sessions_are_let_go_and_come_back),
        cmocka_unit_test(generations_pause_and_come_back),
        cmocka_unit_test(more_sessions_than_planned_wait),
        cmocka_unit_test(the_line_goes_by_priority),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
