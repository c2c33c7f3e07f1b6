/* What a stage sends is kept by block and position, read again as it was, and never believed when it
 * is not whole or not of then. */
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include "stage/keep.h"
#include "tests/support/fake_peer.h"
#include "tests/support/gguf_build.h"

#include <sched.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_BLOCKS 3u /* of the 16 that the stage has */

static chain c;
static keeper k;
static journal j; /* as the second stage maps it */
static wire_row rows[8];

/* --- a device that works while the host does ---------------------------------------------------------- */

/* The cpu's, whose copies to the host arrive when they are waited for: those of the queue, which hold
 * what was there when they were put on it, with any event behind them; drains with their own, holding
 * what is there by then. */
#define BESIDE (1ull << 63)
typedef struct {
    uint64_t behind; /* the event that tells of it */
    void *host, *copied;
    const void *from;
    uint64_t bytes;
} late_copy;

static backend late;
static late_copy under_way[8];
static uint32_t n_under_way;
static uint64_t n_events;

static late_copy *put_late(void *host, dev_ptr from, uint64_t bytes)
{
    assert_true(n_under_way < 8);
    late_copy *x = &under_way[n_under_way++];
    *x = (late_copy){.behind = n_events + 1, .host = host, .from = (const void *)(uintptr_t)from.addr, .bytes = bytes};
    return x;
}

static status late_download(backend_queue *q, void *host, dev_ptr from, uint64_t bytes)
{
    (void)q;
    late_copy *x = put_late(host, from, bytes);
    x->copied = malloc(bytes);
    memcpy(x->copied, x->from, bytes);
    return ST_OK;
}

static status late_drain(backend_queue *q, void *host, dev_ptr from, uint64_t bytes, backend_event *done)
{
    (void)q;
    put_late(host, from, bytes)->behind = done->value = BESIDE | ++n_events;
    return ST_OK;
}

static status late_record(backend_queue *q, backend_event *out)
{
    (void)q;
    out->value = ++n_events;
    return ST_OK;
}

static status late_wait(backend_queue *q, backend_event ev)
{
    (void)q;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_under_way; i++) {
        late_copy *x = &under_way[i];
        bool beside = (x->behind & BESIDE) != 0;
        if (beside ? (ev.value & BESIDE) == 0 || x->behind > ev.value : x->behind > (ev.value & ~BESIDE)) {
            under_way[n++] = *x;
            continue;
        }
        memcpy(x->host, beside ? x->from : x->copied, x->bytes);
        free(x->copied);
    }
    n_under_way = n;
    return ST_OK;
}

static bool late_done(backend_queue *q, backend_event ev)
{
    (void)q;
    for (uint32_t i = 0; i < n_under_way; i++)
        if (under_way[i].behind == ev.value) return false;
    return true;
}

static int open_on(const backend *device)
{
    errmsg e = {0};
    llama_spec spec = llama_spec_default();
    gguf_build *b = gguf_build_llama(&spec);
    chain_spec two = chain_spec_default();
    two.n_cuts = 1;
    two.cut[0] = 1;
    two.backend = device;
    two.keeps = true;
    int fd = gguf_build_fd(b);
    gguf *file;
    if (gguf_open_fds(&file, &fd, 1, &e) != ST_OK) return 1;
    gguf_build_free(b);
    chain_open(&c, file, &two);
    if (journal_create(&fd, N_BLOCKS, c.model->n_embd, &e) != ST_OK) return 1;
    if (journal_map(&j, fd, &e) != ST_OK) return 1;
    if (keeper_open(&k, fd, c.stage[0], device, c.plan.rows_max, &e) != ST_OK) return 1;
    close(fd);
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    return open_on(backend_cpu());
}

static int set_up_late(void **state)
{
    (void)state;
    late = *fake_peer_backend();
    late.peer = NULL;
    late.in_call = false;
    late.download = late_download;
    late.drain = late_drain;
    late.event_record = late_record;
    late.event_wait = late_wait;
    late.event_done = late_done;
    return open_on(&late);
}

static int tear_down(void **state)
{
    (void)state;
    journal_unmap(&j);
    keeper_close(&k);
    chain_close(&c);
    return 0;
}

static int set_up_pinned(void **state)
{
    set_up_late(state);
    tear_down(state);
    late.peer = fake_peer_backend()->peer;
    if (open_on(&late) != 0) return 1;
    while (pinned_end(k.pinned) < j.bytes) sched_yield();
    return 0;
}

static int tear_down_pinned(void **state)
{
    tear_down(state);
    return atomic_load(&fake.n_pins) == 0 ? 0 : 1;
}

/* Rows [position, position + n) of branch 0 through the first stage, its hidden state in out. */
static void first_stage(uint32_t position, uint32_t n, float *out)
{
    errmsg e = {0};
    const backend *b = backend_cpu();
    backend_event ev;
    backend_queue *q = stage_queue(c.stage[0]);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (wire_row){.generation = 1, .position = position + i, .token = 7 + i, .flags = ROW_LIVE,
                             .readback = WIRE_NONE, .sampler_i = WIRE_NONE, .stop_i = WIRE_NONE, .rounds = 1};
    }
    assert_int_equal(stage_rows(c.stage[0], rows, n, 0, &e), ST_OK);
    assert_int_equal(stage_embed(c.stage[0], &e), ST_OK);
    assert_int_equal(stage_walk(c.stage[0], false, c.poison, &e), ST_OK);
    assert_int_equal(b->download(q, out, stage_hidden(c.stage[0]), n * c.model->n_embd * sizeof *out), ST_OK);
    assert_int_equal(b->event_record(q, &ev), ST_OK);
    assert_int_equal(b->event_wait(q, ev), ST_OK);
}

static void ops(const wire_kv_op *list, uint32_t n)
{
    errmsg e = {0};
    for (uint32_t s = 0; s < 2; s++)
        if (stage_kv_ops(c.stage[s], list, n, &e) != ST_OK) fail_msg("%s", e.text);
}

/* What the second stage reads again for the rows; true: it is `want`. */
static bool reads(uint32_t n, uint64_t seq, bool overwritten, const float *want)
{
    errmsg e = {0};
    kept found = KEPT_NOT;
    const backend *b = backend_cpu();
    backend_event ev;
    backend_queue *q = stage_queue(c.stage[1]);
    float *got = calloc((size_t)n * c.model->n_embd, sizeof *got);
    assert_int_equal(stage_rows(c.stage[1], rows, n, 0, &e), ST_OK);
    assert_int_equal(keep_read(&j, c.stage[1], b, seq, overwritten, rows, n, &found, &e), ST_OK);
    assert_int_equal(b->download(q, got, stage_hidden(c.stage[1]), n * c.model->n_embd * sizeof *got), ST_OK);
    assert_int_equal(b->event_record(q, &ev), ST_OK);
    assert_int_equal(b->event_wait(q, ev), ST_OK);
    bool same = found == (overwritten ? KEPT_OVERWRITTEN : KEPT_ALL) && memcmp(got, want, n * c.model->n_embd * sizeof *got) == 0;
    free(got);
    return same;
}

static void rows_are_read_as_they_were_sent(void **state)
{
    (void)state;
    errmsg e = {0};
    float sent[8 * 64];
    const wire_kv_op open[] = {{.kind = KV_OPEN, .generation = 1},
                               {.kind = KV_ALLOC, .generation = 1, .a = 0, .b = 2},
                               {.kind = KV_ALLOC, .generation = 1, .a = 1, .b = 0},
                               {.kind = KV_ALLOC, .generation = 1, .a = 2, .b = 5}};
    assert_int_equal(c.model->n_embd, 64);
    ops(open, 4);
    first_stage(61, 6, sent); /* over the border of a block */
    assert_false(reads(6, 9, false, sent));
    /* What stood there before the rows were sent is not taken for them. */
    for (uint32_t i = 0; i < 3; i++) atomic_store(journal_commit(&j, 2, 61 + i), 8);
    for (uint32_t i = 0; i < 3; i++) atomic_store(journal_commit(&j, 0, i), 8);
    assert_int_equal(keep_begin(&k, rows, 6, &e), ST_OK);
    assert_false(reads(6, 9, false, sent));
    assert_int_equal(keep_rows(&k, 9, rows, 6, &e), ST_OK);
    assert_true(reads(6, 9, false, sent));
    assert_memory_equal(journal_row(&j, 2, 61), sent, 64 * sizeof(float));
    assert_memory_equal(journal_row(&j, 0, 2), sent + 5 * 64, 64 * sizeof(float));
    /* Of a step later than asked for: not what stood there then, unless that does not matter. */
    assert_false(reads(6, 8, false, sent));
    assert_true(reads(6, 8, true, sent));
    /* A writer that was killed in the middle. */
    atomic_store(journal_commit(&j, 0, 1), 0);
    assert_false(reads(6, 9, false, sent));
    assert_int_equal(keep_holes(&k, 11, rows, 6, &e), ST_OK);
    assert_true(reads(6, 11, false, sent));
    assert_int_equal(keep_holes(&k, 12, rows, 6, &e), ST_OK);
    assert_true(reads(6, 11, false, sent)); /* nothing was missing: nothing was done */
    /* Block 5 has no room in the journal. */
    first_stage(130, 2, sent);
    assert_int_equal(keep_rows(&k, 10, rows, 2, &e), ST_OK);
    assert_false(reads(2, 10, false, sent));
}

static void copies_are_those_of_then(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t i = 0; i < 4; i++) {
        *journal_row(&j, 0, i) = (float)i;
        *journal_row(&j, 1, i) = -1;
        atomic_store(journal_commit(&j, 0, i), 10 + i);
        atomic_store(journal_commit(&j, 1, i), 1);
    }
    const wire_kv_op copy[] = {{.kind = KV_COPY, .kv_class = KV_CLASS_WINDOW, .a = 1, .b = 0, .c = 4},
                               {.kind = KV_COPY, .a = 1, .b = 0, .c = 3}};
    assert_int_equal(keep_copies(&k, 12, copy, 1, &e), ST_OK); /* another class's block of that number */
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 1);
    assert_int_equal(keep_copies(&k, 12, copy, 2, &e), ST_OK);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 10);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 1)), 11);
    assert_true(*journal_row(&j, 1, 1) == 1);
    /* Row 2 was written by the step itself, when it was issued before: it is not what was copied. */
    assert_int_equal(atomic_load(journal_commit(&j, 1, 2)), 0);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 3)), 1); /* not copied */
    const wire_kv_op from_outside = {.kind = KV_COPY, .a = 1, .b = N_BLOCKS, .c = 1};
    assert_int_equal(keep_copies(&k, 20, &from_outside, 1, &e), ST_OK);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 0);
}

/* --- rows on their way ---------------------------------------------------------------------------------- */

static uint64_t commit_of(uint32_t block, uint32_t at)
{
    return atomic_load(journal_commit(&j, block, at));
}

static void sent_rows(uint64_t seq, uint32_t position, uint32_t n, float *sent)
{
    errmsg e = {0};
    first_stage(position, n, sent);
    assert_int_equal(keep_begin(&k, rows, n, &e), ST_OK);
    assert_int_equal(keep_rows(&k, seq, rows, n, &e), ST_OK);
}

static void rows_land_later(uint64_t few_bytes)
{
    errmsg e = {0};
    float sent[6 * 64], other[6 * 64];
    k.few_bytes = few_bytes;
    assert_false(keep_flies(&k) || keep_is_soon(&k));
    sent_rows(9, 61, 6, sent);
    assert_true(keep_flies(&k));
    assert_int_equal(keep_is_soon(&k), few_bytes > 0);
    assert_int_equal(commit_of(2, 61), 0);
    assert_int_equal(commit_of(0, 2), 0);
    /* The next rows are where these were: they are kept as they were sent. */
    first_stage(2, 6, other);
    assert_int_equal(commit_of(2, 61), 0);
    assert_int_equal(keep_land(&k, &e), ST_OK);
    assert_false(keep_flies(&k));
    assert_memory_equal(journal_row(&j, 2, 61), sent, 3 * 64 * sizeof(float));
    assert_memory_equal(journal_row(&j, 0, 0), sent + 3 * 64, 3 * 64 * sizeof(float));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(commit_of(2, 61 + i), 9);
        assert_int_equal(commit_of(0, i), 9);
    }
    /* Overwritten before they have landed: it is the later ones that stand there, and nothing before. */
    sent_rows(10, 61, 6, sent);
    first_stage(61, 5, other);
    assert_int_equal(keep_begin(&k, rows, 5, &e), ST_OK);
    assert_false(keep_flies(&k));
    assert_int_equal(commit_of(2, 61), 0);
    assert_int_equal(commit_of(0, 2), 10);
    assert_int_equal(keep_rows(&k, 11, rows, 5, &e), ST_OK);
    assert_int_equal(commit_of(2, 61), 0);
    assert_int_equal(keep_land(&k, &e), ST_OK);
    assert_int_equal(commit_of(2, 61), 11);
    assert_int_equal(commit_of(0, 1), 11);
    assert_memory_equal(journal_row(&j, 0, 1), other + 4 * 64, 64 * sizeof(float));
    assert_memory_equal(journal_row(&j, 0, 2), sent + 5 * 64, 64 * sizeof(float));
    /* A copy holds what is on its way, and so does who looks for holes. */
    sent_rows(12, 61, 6, sent);
    const wire_kv_op copy = {.kind = KV_COPY, .a = 1, .b = 0, .c = 3};
    assert_int_equal(keep_copies(&k, 13, &copy, 1, &e), ST_OK);
    assert_int_equal(commit_of(1, 2), 12);
    assert_memory_equal(journal_row(&j, 1, 2), sent + 5 * 64, 64 * sizeof(float));
    sent_rows(14, 61, 6, sent);
    assert_int_equal(keep_holes(&k, 15, rows, 6, &e), ST_OK);
    assert_int_equal(commit_of(0, 2), 14);
    assert_false(keep_flies(&k));
    atomic_store(journal_commit(&j, 0, 2), 0);
    assert_int_equal(keep_holes(&k, 16, rows, 6, &e), ST_OK);
    assert_int_equal(keep_land(&k, &e), ST_OK);
    assert_int_equal(commit_of(0, 2), 16);
}

static void open_branch(void)
{
    const wire_kv_op open[] = {{.kind = KV_OPEN, .generation = 1},
                               {.kind = KV_ALLOC, .generation = 1, .a = 0, .b = 2},
                               {.kind = KV_ALLOC, .generation = 1, .a = 1, .b = 0}};
    ops(open, 3);
}

static void few_rows_land_later(void **state)
{
    (void)state;
    open_branch();
    rows_land_later(KEEP_FEW_BYTES);
}

static void many_rows_land_later(void **state)
{
    (void)state;
    open_branch();
    rows_land_later(0);
}

static void many_rows_go_straight_there(void **state)
{
    (void)state;
    errmsg e = {0};
    float sent[6 * 64], *host;
    open_branch();
    rows_land_later(0);
    (void)stage_sent(c.stage[0], &host);
    memset(host, 0x11, 6 * 64 * sizeof *host);
    sent_rows(20, 61, 6, sent);
    assert_false(keep_is_soon(&k));
    assert_int_equal(late.event_wait(NULL, k.left), ST_OK);
    assert_true(keep_is_soon(&k));
    assert_int_equal(keep_land(&k, &e), ST_OK);
    assert_int_equal(commit_of(0, 2), 20);
    assert_memory_equal(journal_row(&j, 0, 0), sent + 3 * 64, 3 * 64 * sizeof(float));
    assert_int_equal(*(char *)host, 0x11); /* not by way of other memory */
}

static void what_has_not_landed_is_not_kept(void **state)
{
    (void)state;
    errmsg e = {0};
    float sent[6 * 64];
    open_branch();
    sent_rows(9, 61, 6, sent);
    keeper_close(&k);
    assert_false(keep_flies(&k));
    assert_int_equal(keep_land(&k, &e), ST_OK);
    assert_int_equal(commit_of(2, 61), 0);
    assert_false(reads(6, 9, false, sent));
    assert_int_equal(late.event_wait(NULL, (backend_event){~0ull}), ST_OK); /* nothing is left under way */
}

static void another_layout_is_refused(void **state)
{
    (void)state;
    errmsg e = {0};
    int fd = -1;
    journal other;
    assert_int_equal(journal_create(&fd, 2, 8, &e), ST_OK);
    assert_int_equal(journal_map(&other, fd, &e), ST_OK);
    ((journal_header *)other.map)->n_embd = 9;
    journal_unmap(&other);
    assert_int_equal(journal_map(&other, fd, &e), ST_PROTOCOL);
    assert_null(other.map);
    close(fd);
}

int main(void)
{
    tap_begin(30);
#define ON(device, test) cmocka_unit_test_setup_teardown(test, set_up##device, tear_down)
    const struct CMUnitTest tests[] = {
        ON(, rows_are_read_as_they_were_sent),
        ON(, copies_are_those_of_then),
        ON(_late, few_rows_land_later),
        ON(_late, many_rows_land_later),
        cmocka_unit_test_setup_teardown(many_rows_go_straight_there, set_up_pinned, tear_down_pinned),
        ON(_late, what_has_not_landed_is_not_kept),
        ON(, another_layout_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
