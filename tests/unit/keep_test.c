/* What a stage sends is kept by block and position, read again as it was, and never believed when it
 * is not whole or not of then. */
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include "stage/keep.h"
#include "tests/support/gguf_build.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_BLOCKS 3u /* of the 16 that the stage has */

static chain c;
static journal j;
static wire_row rows[8];

static int set_up(void **state)
{
    (void)state;
    errmsg e = {0};
    llama_spec spec = llama_spec_default();
    gguf_build *b = gguf_build_llama(&spec);
    chain_spec two = chain_spec_default();
    two.n_cuts = 1;
    two.cut[0] = 1;
    int fd = gguf_build_fd(b);
    gguf *file;
    if (gguf_open_fds(&file, &fd, 1, &e) != ST_OK) return 1;
    gguf_build_free(b);
    chain_open(&c, file, &two);
    if (journal_create(&fd, N_BLOCKS, c.model->n_embd, &e) != ST_OK) return 1;
    if (journal_map(&j, fd, &e) != ST_OK) return 1;
    close(fd);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    journal_unmap(&j);
    chain_close(&c);
    return 0;
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
    kept k = KEPT_NOT;
    const backend *b = backend_cpu();
    backend_event ev;
    backend_queue *q = stage_queue(c.stage[1]);
    float *got = calloc((size_t)n * c.model->n_embd, sizeof *got);
    assert_int_equal(stage_rows(c.stage[1], rows, n, 0, &e), ST_OK);
    assert_int_equal(keep_read(&j, c.stage[1], b, seq, overwritten, rows, n, &k, &e), ST_OK);
    assert_int_equal(b->download(q, got, stage_hidden(c.stage[1]), n * c.model->n_embd * sizeof *got), ST_OK);
    assert_int_equal(b->event_record(q, &ev), ST_OK);
    assert_int_equal(b->event_wait(q, ev), ST_OK);
    bool same = k == (overwritten ? KEPT_OVERWRITTEN : KEPT_ALL) && memcmp(got, want, n * c.model->n_embd * sizeof *got) == 0;
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
    keep_begin(&j, c.stage[0], rows, 6);
    assert_false(reads(6, 9, false, sent));
    assert_int_equal(keep_rows(&j, c.stage[0], backend_cpu(), 9, rows, 6, &e), ST_OK);
    assert_true(reads(6, 9, false, sent));
    assert_memory_equal(journal_row(&j, 2, 61), sent, 64 * sizeof(float));
    assert_memory_equal(journal_row(&j, 0, 2), sent + 5 * 64, 64 * sizeof(float));
    /* Of a step later than asked for: not what stood there then, unless that does not matter. */
    assert_false(reads(6, 8, false, sent));
    assert_true(reads(6, 8, true, sent));
    /* A writer that was killed in the middle. */
    atomic_store(journal_commit(&j, 0, 1), 0);
    assert_false(reads(6, 9, false, sent));
    assert_int_equal(keep_holes(&j, c.stage[0], backend_cpu(), 11, rows, 6, &e), ST_OK);
    assert_true(reads(6, 11, false, sent));
    assert_int_equal(keep_holes(&j, c.stage[0], backend_cpu(), 12, rows, 6, &e), ST_OK);
    assert_true(reads(6, 11, false, sent)); /* nothing was missing: nothing was done */
    /* Block 5 has no room in the journal. */
    first_stage(130, 2, sent);
    assert_int_equal(keep_rows(&j, c.stage[0], backend_cpu(), 10, rows, 2, &e), ST_OK);
    assert_false(reads(2, 10, false, sent));
}

static void copies_are_those_of_then(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        *journal_row(&j, 0, i) = (float)i;
        *journal_row(&j, 1, i) = -1;
        atomic_store(journal_commit(&j, 0, i), 10 + i);
        atomic_store(journal_commit(&j, 1, i), 1);
    }
    const wire_kv_op copy[] = {{.kind = KV_COPY, .kv_class = KV_CLASS_WINDOW, .a = 1, .b = 0, .c = 4},
                               {.kind = KV_COPY, .a = 1, .b = 0, .c = 3}};
    keep_copies(&j, 12, copy, 1); /* another class's block of that number */
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 1);
    keep_copies(&j, 12, copy, 2);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 10);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 1)), 11);
    assert_true(*journal_row(&j, 1, 1) == 1);
    /* Row 2 was written by the step itself, when it was issued before: it is not what was copied. */
    assert_int_equal(atomic_load(journal_commit(&j, 1, 2)), 0);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 3)), 1); /* not copied */
    const wire_kv_op from_outside = {.kind = KV_COPY, .a = 1, .b = N_BLOCKS, .c = 1};
    keep_copies(&j, 20, &from_outside, 1);
    assert_int_equal(atomic_load(journal_commit(&j, 1, 0)), 0);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_read_as_they_were_sent),
        cmocka_unit_test(copies_are_those_of_then),
        cmocka_unit_test(another_layout_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
