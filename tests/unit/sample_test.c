/* The table's sample on the cpu: the host's draw for every row, what the next walk begins with, and
 * rows that give no token. And the two ways of moving bytes that the end of a step asks for. */
#include "kernels/backend.h"
#include "tests/support/sample_cases.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS  5u
#define N_VOCAB 777u

typedef struct {
    backend_device *d;
    backend_queue *q;
    float logits[N_ROWS * N_VOCAB];
    sample_row rows[N_ROWS];
    sample_result out[N_ROWS];
    uint8_t flags[N_ROWS], live[N_ROWS];
    uint32_t tokens[N_ROWS];
    void *scratch;
} fixture;

static dev_ptr at(const void *p)
{
    return (dev_ptr){(uintptr_t)p};
}

static int open_all(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = 1, .isa = "auto"};
    errmsg e = {0};
    *state = f;
    f->scratch = malloc(sampler_scratch_bytes(N_VOCAB));
    if (backend_cpu()->device_open(&f->d, &spec, &e) != ST_OK) return -1;
    return backend_cpu()->queue_open(f->d, &f->q, &e) == ST_OK ? 0 : -1;
}

static int close_all(void **state)
{
    fixture *f = *state;
    backend_cpu()->queue_close(f->q);
    backend_cpu()->device_close(f->d);
    free(f->scratch);
    free(f);
    return 0;
}

/* Rows stand in the step in another order than here. */
static void new_rows(fixture *f, seeded *s)
{
    for (uint32_t r = 0; r < N_ROWS; r++) {
        sample_case(s, N_VOCAB, f->logits + r * N_VOCAB, &f->rows[r]);
        f->rows[r].row_i = N_ROWS - 1 - r;
        f->flags[r] = (uint8_t)(r == 1);
        f->live[r] = 1;
        f->tokens[r] = 9999;
    }
}

static void run(fixture *f, bool feeds)
{
    sample_args a = {.rows = f->rows, .flags = at(f->flags), .scratch = at(f->scratch),
                     .n_vocab = N_VOCAB};
    if (feeds) {
        a.tokens = at(f->tokens);
        a.live = at(f->live);
    }
    memset(f->out, 0xee, sizeof f->out);
    assert_int_equal(backend_cpu()->sample(f->q, at(f->out), at(f->logits), &a, N_ROWS), ST_OK);
}

static void every_row_is_the_hosts(void **state)
{
    fixture *f = *state;
    seeded s = {3};
    for (int i = 0; i < 300; i++) {
        new_rows(f, &s);
        run(f, false);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            sample_result want = sample_wanted(f->logits + r * N_VOCAB, N_VOCAB, &f->rows[r]);
            assert_int_equal(f->out[r].token, want.token);
            assert_int_equal(f->out[r].status, ST_OK);
            assert_int_equal(f->out[r].poisoned, f->rows[r].row_i == 1);
            assert_int_equal(f->live[r], 1);
            assert_int_equal(f->tokens[r], 9999);
        }
    }
}

static void what_the_next_walk_begins_with(void **state)
{
    fixture *f = *state;
    seeded s = {4};
    new_rows(f, &s);
    run(f, true);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        assert_int_equal(f->tokens[f->rows[r].row_i], f->out[r].token);
        assert_int_equal(f->live[r], 1);
    }
    f->rows[0].ends = 1;
    f->rows[1].n_stops = SAMPLE_STOPS;
    f->rows[1].stop[SAMPLE_STOPS - 1] = f->out[1].token;
    f->rows[2].n_stops = 1;
    f->rows[2].stop[0] = f->out[2].token + 1;
    run(f, true);
    for (uint32_t r = 0; r < N_ROWS; r++)
        assert_int_equal(f->live[f->rows[r].row_i], r >= 2);
    run(f, true); /* what has ended stays so */
    assert_int_equal(f->live[f->rows[0].row_i], 0);
}

static void no_token_from_what_is_not_finite(void **state)
{
    fixture *f = *state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    seeded s = {5};
    for (uint32_t i = 0; i < 3; i++) {
        new_rows(f, &s);
        f->logits[2 * N_VOCAB + (i == 1 ? 0 : N_VOCAB - 1)] = bad[i];
        run(f, true);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            uint32_t row_i = f->rows[r].row_i;
            assert_int_equal(f->out[r].status, r == 2 ? ST_NAN : ST_OK);
            assert_int_equal(f->live[row_i], r != 2);
            if (r == 2) assert_int_equal(f->out[r].token, TOKEN_NONE);
            if (r == 2) assert_int_equal(f->tokens[row_i], 0);
        }
    }
    new_rows(f, &s);
    f->rows[4].params.penalty_last_n = 8;
    f->rows[4].n_history = 3;
    f->rows[4].history[1] = N_VOCAB;
    run(f, true);
    assert_int_equal(f->out[4].status, ST_PROTOCOL);
    assert_int_equal(f->out[4].token, TOKEN_NONE);
    assert_int_equal(f->live[f->rows[4].row_i], 0);
}

static void pieces_and_drains_arrive(void **state)
{
    fixture *f = *state;
    const backend *b = backend_cpu();
    char to[16] = "................", back[16];
    upload_piece piece[] = {{at(to + 1), "abc", 3}, {at(to + 9), "", 0}, {at(to + 12), "de", 2}};
    backend_event done;
    assert_int_equal(b->upload_all(f->q, piece, 3), ST_OK);
    assert_memory_equal(to, ".abc........de..", 16);
    assert_int_equal(b->upload_all(f->q, piece, 0), ST_OK);
    assert_int_equal(b->drain(f->q, back, at(to), 16, &done), ST_OK);
    assert_int_equal(b->event_wait(f->q, done), ST_OK);
    assert_memory_equal(to, back, 16);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_row_is_the_hosts, open_all, close_all),
        cmocka_unit_test_setup_teardown(what_the_next_walk_begins_with, open_all, close_all),
        cmocka_unit_test_setup_teardown(no_token_from_what_is_not_finite, open_all, close_all),
        cmocka_unit_test_setup_teardown(pieces_and_drains_arrive, open_all, close_all),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
