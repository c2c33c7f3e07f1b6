/* A trace's rings, and the file that is made of them: whole at any time, crossings only where both
 * of their halves are there, and nothing believed that a stage writes. */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "coordinator/trace/trace.h"

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define OK(expr) assert_int_equal(expr, ST_OK)

static char dir[] = "/tmp/memra-t.XXXXXX";
static char path[64];

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/t.json", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static trace_event event(trace_kind kind, uint64_t begin_us, uint64_t seq)
{
    uint64_t begin_ns = now_ns() + begin_us * 1000;
    return (trace_event){
        .begin_ns = begin_ns, .end_ns = begin_ns + 5000, .seq = seq, .kind = kind, .n_rows = 2};
}

/* --- rings ------------------------------------------------------------------------------------ */

static trace_block *block_of(int *fd, uint32_t n)
{
    trace_block *b;
    errmsg e = {0};
    OK(trace_block_create(&b, fd, n, &e));
    return b;
}

static void a_ring_keeps_order_and_never_waits(void **state)
{
    (void)state;
    int fd;
    errmsg e = {0};
    trace_block *b = block_of(&fd, 3), *stage;
    OK(trace_block_map(&stage, fd, 3, &e));
    trace_event ev = event(TRACE_DECODE, 0, 0), got;
    assert_false(trace_take(&b->ring[1], &got));
    for (uint64_t lap = 0; lap < 3; lap++) {
        for (ev.seq = 0; ev.seq < TRACE_RING_EVENTS + 10; ev.seq++) trace_put(&stage->ring[1], &ev);
        for (uint64_t k = 0; k < TRACE_RING_EVENTS; k++) {
            assert_true(trace_take(&b->ring[1], &got));
            assert_int_equal(got.seq, k);
        }
        assert_false(trace_take(&b->ring[1], &got));
        assert_int_equal(b->ring[1].n_dropped, 10 * (lap + 1));
    }
    assert_int_equal(b->ring[0].head + b->ring[2].head, 0);
    trace_put(NULL, &ev); /* no trace: nothing */
    trace_block_unmap(stage);
    trace_block_unmap(b);
    close(fd);
}

#define N_PUT (8u * TRACE_RING_EVENTS)

/* Every field of an event says which it is, so that one read half written shows. */
static void *put_many(void *ring)
{
    for (uint64_t k = 1; k <= N_PUT; k++) {
        const uint32_t n = (uint32_t)k;
        const trace_event ev = {.begin_ns = k,
                                .end_ns = k,
                                .seq = k,
                                .kind = TRACE_DECODE,
                                .n_rows = n,
                                .round = n,
                                .group = n,
                                .slot = n,
                                .of = n};
        trace_put(ring, &ev);
    }
    return NULL;
}

/* One mapping for both, so that ThreadSanitizer sees the order of what they do. */
static void a_ring_is_read_while_it_is_written(void **state)
{
    (void)state;
    int fd;
    trace_block *b = block_of(&fd, 1);
    trace_ring *r = &b->ring[0];
    pthread_t writer;
    trace_event got;
    uint64_t n_taken = 0, last = 0;
    assert_int_equal(pthread_create(&writer, NULL, put_many, r), 0);
    while (n_taken + atomic_load(&r->n_dropped) < N_PUT) {
        if (!trace_take(r, &got)) continue;
        assert_true(got.seq > last && got.begin_ns == got.seq && got.end_ns == got.seq);
        assert_true(got.n_rows == got.seq && got.round == got.seq && got.group == got.seq);
        assert_true(got.slot == got.seq && got.of == got.seq);
        last = got.seq;
        n_taken++;
    }
    pthread_join(writer, NULL);
    assert_false(trace_take(r, &got));
    assert_int_equal(n_taken + r->n_dropped, N_PUT);
    assert_true(n_taken >= TRACE_RING_EVENTS);
    trace_block_unmap(b);
    close(fd);
}

static void a_ring_believes_nothing(void **state)
{
    (void)state;
    int fd;
    trace_block *b = block_of(&fd, 1);
    trace_ring *r = &b->ring[0];
    trace_event ev = event(TRACE_DECODE, 0, 1), got;
    ev.kind = TRACE_KIND_COUNT;
    trace_put(r, &ev);
    ev.kind = TRACE_PROMPT;
    ev.end_ns = ev.begin_ns - 1;
    trace_put(r, &ev);
    ev = event(TRACE_PROMPT, 0, 7);
    trace_put(r, &ev);
    assert_true(trace_take(r, &got)); /* the third */
    assert_int_equal(got.seq, 7);
    r->head += 3 * TRACE_RING_EVENTS; /* a writer that lies */
    assert_false(trace_take(r, &got));
    r->head -= 1;
    assert_false(trace_take(r, &got));
    trace_put(r, &ev);
    trace_put(r, &ev);
    assert_int_equal(r->tail <= r->head, true);
    trace_block_unmap(b);
    errmsg e = {0};
    assert_int_equal(trace_block_map(&b, fd, 2, &e), ST_PROTOCOL); /* of another number of rings */
    assert_null(b);
    close(fd);
}

/* --- the file --------------------------------------------------------------------------------- */

static plan plan_of(uint32_t n_stages)
{
    plan p = {.cuts = {.n_stages = n_stages}};
    for (uint32_t s = 0; s < n_stages; s++)
        p.stage[s] =
            (stage_plan){.layer_begin = s, .layer_end = s + 1, .device = {.kind = DEVICE_CPU}};
    return p;
}

/* The events of the file, which is whole, but for what is written while it is read. */
static json_t *events(json_t **file)
{
    json_error_t why;
    uint64_t begin = now_ns();
    do {
        *file = json_load_file(path, 0, &why);
    } while (*file == NULL && now_ns() - begin < 10 * NS_PER_S);
    if (*file == NULL) fail_msg("%s, line %d", why.text, why.line);
    json_t *list = json_object_get(*file, "traceEvents");
    assert_true(json_is_array(list));
    return list;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *t = json_string_value(json_object_get(o, key));
    return t != NULL ? t : "";
}

static uint32_t count(const char *ph, const char *name)
{
    json_t *file, *list = events(&file), *o;
    size_t i;
    uint32_t n = 0;
    json_array_foreach(list, i, o)
        n += strcmp(text_of(o, "ph"), ph) == 0 && strcmp(text_of(o, "name"), name) == 0;
    json_decref(file);
    return n;
}

/* A stage's half of a crossing. */
static void put_half(trace_ring *r, trace_kind kind, uint64_t seq, uint32_t epoch)
{
    trace_event ev = event(kind, 0, seq);
    ev.of = epoch;
    trace_put(r, &ev);
}

static void both_halves_make_a_crossing(void **state)
{
    (void)state;
    trace *t;
    trace_run *run;
    trace_block *b;
    errmsg e = {0};
    plan p = plan_of(2);
    OK(trace_open(&t, path, &e));
    OK(trace_begin(&run, t, &p, "a \"model\"\x80", &e));
    OK(trace_block_map(&b, trace_fd(run), 3, &e));
    for (uint64_t seq = 1; seq <= 40; seq++) {
        bool early = seq % 3 == 0; /* the receiver's ring is read first, now and then */
        if (early) put_half(&b->ring[1], TRACE_STARVED, seq, 1);
        if (seq % 5 == 0) usleep(12000);
        if (seq != 17) put_half(&b->ring[0], TRACE_BLOCKED, seq, 1); /* dropped */
        if (!early && seq != 20)
            put_half(&b->ring[1], TRACE_STARVED, seq, 1); /* lost with its stage */
    }
    put_half(&b->ring[0], TRACE_BLOCKED, 20, 2); /* once more, under the next epoch */
    put_half(&b->ring[1], TRACE_STARVED, 20, 2);
    trace_event step = event(TRACE_STEP, 0, 9), lost = event(TRACE_LOST, 0, 0);
    step.of = TRACE_PROMPT;
    lost.of = 1;
    trace_put(trace_engine(run), &step);
    trace_put(trace_engine(run), &lost);
    lost.of = 2; /* no such stage */
    trace_put(trace_engine(run), &lost);
    trace_block_unmap(b);
    trace_end(run);
    assert_true(trace_close(t));
    assert_int_equal(count("X", "blocked"), 40);
    assert_int_equal(count("X", "starved"), 40);
    assert_int_equal(count("b", "0 -> 1"), 39);
    assert_int_equal(count("e", "0 -> 1"), 39);
    assert_int_equal(count("b", "1 -> 0"), 0);
    assert_int_equal(count("b", "prompt steps"), 1);
    assert_int_equal(count("X", "lost"), 1);
    assert_int_equal(count("M", "thread_name"), 2);
    assert_int_equal(count("i", "events dropped"), 0);
}

static void it_is_whole_while_it_is_written(void **state)
{
    (void)state;
    trace *t;
    trace_run *run, *second;
    trace_block *b;
    errmsg e = {0};
    plan p = plan_of(1);
    OK(trace_open(&t, path, &e));
    assert_int_equal(count("M", "process_name"), 0); /* and that is a file already */
    OK(trace_begin(&run, t, &p, "m", &e));
    OK(trace_begin(&second, t, &p, "m", &e)); /* two pipelines at once */
    OK(trace_block_map(&b, trace_fd(run), 2, &e));
    for (uint32_t n = 1; n <= 5; n++) {
        trace_event ev = event(TRACE_DECODE, 0, n);
        trace_put(&b->ring[0], &ev);
        for (uint64_t begin = now_ns(); count("X", "decode") < n;)
            assert_true(now_ns() - begin < 10 * NS_PER_S);
        assert_int_equal(count("X", "decode"), n);
    }
    /* More than a ring holds, at once: what is missing is told. */
    trace_event ev = event(TRACE_HEAD, 0, 0);
    uint32_t n = 8 * TRACE_RING_EVENTS;
    for (uint32_t i = 0; i < n; i++) trace_put(&b->ring[0], &ev);
    uint64_t n_dropped = b->ring[0].n_dropped;
    trace_end(run);
    trace_end(second);
    assert_true(trace_close(t));
    assert_int_equal(count("X", "head"), n - n_dropped);
    assert_true(n_dropped > 0);
    assert_true(count("i", "events dropped") > 0);
    assert_int_equal(count("M", "process_name"), 2);
    trace_block_unmap(b);
}

/* As on a full disk: a part of what is written has room. What was whole before stays. */
static void it_is_whole_where_it_has_no_room(void **state)
{
    (void)state;
    trace *t;
    trace_run *run;
    trace_block *b;
    errmsg e = {0};
    struct rlimit had, less;
    plan p = plan_of(1);
    OK(trace_open(&t, path, &e));
    OK(trace_begin(&run, t, &p, "m", &e));
    OK(trace_block_map(&b, trace_fd(run), 2, &e));
    trace_event ev = event(TRACE_DECODE, 0, 1);
    trace_put(&b->ring[0], &ev);
    for (uint64_t begin = now_ns(); count("X", "decode") < 1;)
        assert_true(now_ns() - begin < 10 * NS_PER_S);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &had), 0);
    less = had;
    less.rlim_cur = 8192;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    for (uint32_t i = 0; i < TRACE_RING_EVENTS; i++) trace_put(&b->ring[0], &ev);
    trace_end(run);
    assert_false(trace_close(t));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &had), 0);
    assert_true(count("X", "decode") >= 1);
    trace_block_unmap(b);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    trace *t;
    errmsg e = {0};
    assert_int_equal(trace_open(&t, "/dev/null", &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "no regular file"));
    assert_null(t);
    errmsg_clear(&e);
    assert_int_equal(trace_open(&t, dir, &e), ST_RESOURCES);
    errmsg_clear(&e);
    assert_int_equal(trace_open(&t, "/nowhere/t.json", &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "/nowhere/t.json"));
    assert_true(trace_close(NULL));
    trace_end(NULL);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_keeps_order_and_never_waits),
        cmocka_unit_test(a_ring_is_read_while_it_is_written),
        cmocka_unit_test(a_ring_believes_nothing),
        cmocka_unit_test(both_halves_make_a_crossing),
        cmocka_unit_test(it_is_whole_while_it_is_written),
        cmocka_unit_test(it_is_whole_where_it_has_no_room),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
