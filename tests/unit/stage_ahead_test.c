/* Steps put behind each other: rows that the device feeds itself draw what rows fed by the host
 * draw, and results that are fetched while the next step is walked are their own step's. */
#include "tests/support/gguf_build.h"
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS   3u
#define N_ROUNDS 20u
#define N_PROMPT 9u /* and all rounds: one KV block */

typedef struct {
    chain c;
    chain_session session[2][N_ROWS]; /* fed by the host, by the device */
    sampler_params sampler[N_ROWS];
    uint32_t want[N_ROWS][N_ROUNDS];
} fixture;

static const uint32_t prompt[N_ROWS][N_PROMPT] = {{1, 5, 9, 2, 7, 11, 3, 3, 8},
                                                  {4, 4, 4, 4, 20, 21, 22, 23, 24},
                                                  {30, 2, 31, 2, 32, 2, 33, 2, 34}};

static void must(status s, const errmsg *e)
{
    if (s != ST_OK) fail_msg("%s", e->text);
}

static int open_all(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    llama_spec m = llama_spec_default();
    gguf *g = NULL;
    errmsg e = {0};
    gguf_build *b = gguf_build_llama(&m);
    int fd = gguf_build_fd(b);
    must(gguf_open_fds(&g, &fd, 1, &e), &e);
    gguf_build_free(b);
    chain_spec spec = chain_spec_default();
    spec.n_branches = 2 * N_ROWS;
    spec.n_blocks = 2 * N_ROWS;
    chain_open(&f->c, g, &spec);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        f->sampler[r] = sampler_default();
        f->sampler[r].seed = r;
        f->sampler[r].temperature = r == 0 ? 0 : (float)r;
        f->sampler[r].repetition_penalty = r == 2 ? 1.3f : 1;
        f->sampler[r].penalty_last_n = 12;
        for (uint32_t k = 0; k < 2; k++) {
            session_begin(&f->c, &f->session[k][r], 2 * r + k);
            session_feed(&f->c, &f->session[k][r], prompt[r], N_PROMPT, N_PROMPT, NULL);
        }
        uint32_t token = r;
        for (uint32_t i = 0; i < N_ROUNDS; i++)
            f->want[r][i] = token = session_sample(&f->c, &f->session[0][r], token, &f->sampler[r]);
    }
    *state = f;
    return 0;
}

static int close_all(void **state)
{
    fixture *f = *state;
    chain_close(&f->c);
    free(f);
    return 0;
}

/* The first round's rows, each as long as `rounds` says. */
static void first_rows(fixture *f, wire_row *rows, uint32_t n, const uint32_t *rounds)
{
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (wire_row){.generation = f->session[1][r].generation,
                             .branch = f->session[1][r].branch,
                             .position = N_PROMPT,
                             .token = r,
                             .flags = ROW_LIVE | ROW_SAMPLE,
                             .readback = WIRE_NONE,
                             .sampler_i = r,
                             .stop_i = r,
                             .rounds = rounds[r]};
}

/* What a worker does (stage/worker_ahead.c), with the books of one step in its hands. Returns how
 * many tokens row r drew in n_drawn[r]; all are compared. */
static void run_rounds(fixture *f, uint32_t n, const uint32_t *rounds, const wire_stops *stops,
                       uint32_t *n_drawn)
{
    stage *s = f->c.stage[0];
    wire_row rows[N_ROWS];
    uint32_t drawn[N_ROWS], n_committed, n_live = n;
    errmsg e = {0};
    first_rows(f, rows, n, rounds);
    stage_head_args a = {.samplers = f->sampler,
                         .out = &f->c.results,
                         .drawn = drawn,
                         .feeds = true,
                         .poison = f->c.poison,
                         .stops = stops};
    for (a.round = 0; n_live > 0; a.round++) {
        a.seq = ++f->c.seq;
        if (a.round == 0) must(stage_rows(s, rows, n, N_ROWS, &e), &e);
        must(stage_embed(s, &e), &e);
        must(stage_walk(s, true, a.poison, &e), &e);
        must(stage_head_begin(s, &a, &e), &e);
        wire_row next[N_ROWS];
        memcpy(next, rows, sizeof next);
        for (uint32_t r = 0; r < n; r++) {
            next[r].position++;
            if (a.round + 1 >= next[r].rounds) next[r].flags &= ~ROW_LIVE;
        }
        must(stage_rows_ahead(s, next, n, N_ROWS, &e), &e);
        must(stage_head_end(s, &n_committed, &e), &e);
        assert_int_equal(n_committed, n_live);
        n_live = 0;
        for (uint32_t r = 0; r < n; r++) {
            bool was = (rows[r].flags & ROW_LIVE) != 0;
            const readback_token *t =
                readback_token_at(&f->c.results, rows[r].branch, rows[r].position);
            assert_int_equal(t->commit == f->c.seq, was);
            if (was) {
                assert_int_equal(t->token, f->want[r][n_drawn[r]]);
                assert_int_equal(drawn[r], t->token);
                n_drawn[r]++;
                if (stops[r].n > 0 && t->token == stops[r].id[0]) next[r].flags &= ~ROW_LIVE;
                next[r].token = t->token;
            } else {
                assert_int_equal(drawn[r], TOKEN_NONE);
            }
            n_live += (next[r].flags & ROW_LIVE) != 0;
        }
        memcpy(rows, next, sizeof rows);
        stage_rows_known(s, rows);
    }
}

static void rows_feed_themselves(void **state)
{
    fixture *f = *state;
    const wire_stops none[N_ROWS] = {{0}};
    const uint32_t rounds[N_ROWS] = {N_ROUNDS, 3, N_ROUNDS - 1};
    uint32_t n_drawn[N_ROWS] = {0};
    run_rounds(f, N_ROWS, rounds, none, n_drawn);
    for (uint32_t r = 0; r < N_ROWS; r++)
        assert_int_equal(n_drawn[r], rounds[r]);
}

static void one_row_feeds_itself(void **state)
{
    fixture *f = *state;
    const wire_stops none[N_ROWS] = {{0}};
    const uint32_t rounds[N_ROWS] = {N_ROUNDS};
    uint32_t n_drawn[N_ROWS] = {0};
    run_rounds(f, 1, rounds, none, n_drawn);
    assert_int_equal(n_drawn[0], N_ROUNDS);
}

static void a_stop_ends_a_row_among_others(void **state)
{
    fixture *f = *state;
    const uint32_t rounds[N_ROWS] = {N_ROUNDS, N_ROUNDS, N_ROUNDS};
    wire_stops stops[N_ROWS] = {{0}};
    uint32_t n_drawn[N_ROWS] = {0}, until = 0;
    stops[2] = (wire_stops){.n = 1, .id = {f->want[2][6]}};
    while (f->want[2][until] != stops[2].id[0]) until++;
    run_rounds(f, N_ROWS, rounds, stops, n_drawn);
    assert_int_equal(n_drawn[0], N_ROUNDS);
    assert_int_equal(n_drawn[1], N_ROUNDS);
    assert_int_equal(n_drawn[2], until + 1);
    /* The session goes on from there as if nothing had run over. */
    f->session[1][2].n = N_PROMPT + until + 1;
    uint32_t next = session_sample(&f->c, &f->session[1][2], f->want[2][until], &f->sampler[2]);
    assert_int_equal(next, f->want[2][until + 1]);
}

/* Logits of a step whose end comes after the walk of the next one. */
static void logits_wait_while_the_next_step_walks(void **state)
{
    fixture *f = *state;
    stage *s = f->c.stage[0];
    uint32_t n_vocab = f->c.model->n_vocab, n_committed, one = 1, two = 2;
    float *want = malloc(2 * n_vocab * sizeof *want);
    errmsg e = {0};
    wire_row row;
    chain_session *plain = &f->session[0][0];
    session_cut(&f->c, plain, N_PROMPT);
    session_feed(&f->c, plain, &one, 1, 1, want);
    session_feed(&f->c, plain, &two, 1, 1, want + n_vocab);
    first_rows(f, &row, 1, &one);
    row.flags = ROW_LIVE | ROW_LOGITS;
    stage_head_args a = {.out = &f->c.results, .seq = ++f->c.seq, .poison = f->c.poison};
    for (uint32_t i = 0; i < 2; i++) {
        row.token = i + 1;
        row.position = N_PROMPT + i;
        row.readback = i;
        must(stage_rows(s, &row, 1, 0, &e), &e);
        must(stage_embed(s, &e), &e);
        must(stage_walk(s, true, a.poison, &e), &e);
        if (i == 1) must(stage_head_end(s, &n_committed, &e), &e);
        if (i == 1)
            assert_int_equal(atomic_load(&readback_row_at(&f->c.results, 0)->commit), a.seq++);
        must(stage_head_begin(s, &a, &e), &e);
    }
    assert_int_not_equal(atomic_load(&readback_row_at(&f->c.results, 1)->commit), a.seq);
    must(stage_head_end(s, &n_committed, &e), &e);
    assert_int_equal(n_committed, 1);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(readback_row_at(&f->c.results, i)->logits, want + i * n_vocab,
                            n_vocab * sizeof *want);
    free(want);
}

/* A row whose hidden state is spoiled draws nothing, has its mark and has ended on the device, with
 * its next round put behind it already; its neighbours go on. */
static void a_spoiled_row_ends_behind_its_next_round(void **state)
{
    fixture *f = *state;
    stage *s = f->c.stage[0];
    const backend *b = backend_cpu();
    const uint32_t rounds[N_ROWS] = {3, 3, 3}, spoiled = 1, nan = 0x7fc00000;
    const uint64_t row_bytes = f->c.model->n_embd * sizeof(float);
    uint32_t drawn[N_ROWS], n_committed;
    poison_mark poison[N_ROWS] = {0};
    wire_stops none[N_ROWS] = {{0}};
    wire_row rows[N_ROWS];
    errmsg e = {0};
    first_rows(f, rows, N_ROWS, rounds);
    stage_head_args a = {.samplers = f->sampler,
                         .out = &f->c.results,
                         .drawn = drawn,
                         .feeds = true,
                         .poison = poison,
                         .stops = none};
    for (a.round = 0; a.round < 2; a.round++) {
        a.seq = ++f->c.seq;
        if (a.round == 0) must(stage_rows(s, rows, N_ROWS, N_ROWS, &e), &e);
        must(stage_embed(s, &e), &e);
        if (a.round == 0)
            must(b->upload(stage_queue(s), dev_offset(stage_hidden(s), spoiled * row_bytes), &nan,
                           sizeof nan),
                 &e);
        must(stage_walk(s, true, poison, &e), &e);
        must(stage_head_begin(s, &a, &e), &e);
        for (uint32_t r = 0; r < N_ROWS; r++) rows[r].position++;
        must(stage_rows_ahead(s, rows, N_ROWS, N_ROWS, &e), &e);
        must(stage_head_end(s, &n_committed, &e), &e);
        assert_int_equal(n_committed, a.round == 0 ? N_ROWS : N_ROWS - 1);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            assert_int_equal(drawn[r], r == spoiled ? TOKEN_NONE : f->want[r][a.round]);
            assert_int_equal(poison[r], r == spoiled ? poison_hidden(0) : 0);
            rows[r].token = r == spoiled ? 0 : drawn[r];
        }
        rows[spoiled].flags &= ~ROW_LIVE;
        stage_rows_known(s, rows);
    }
}

/* One that nobody waits for is forgotten: the next is whole. */
static void a_head_may_be_dropped(void **state)
{
    fixture *f = *state;
    stage *s = f->c.stage[0];
    const uint32_t rounds = 1;
    uint32_t drawn = 0, n_committed;
    errmsg e = {0};
    wire_row row;
    first_rows(f, &row, 1, &rounds);
    for (uint32_t i = 0; i < 2; i++) {
        stage_head_args a = {.samplers = f->sampler, .out = &f->c.results, .seq = ++f->c.seq,
                             .drawn = &drawn, .poison = f->c.poison};
        must(stage_rows(s, &row, 1, N_ROWS, &e), &e);
        must(stage_embed(s, &e), &e);
        must(stage_walk(s, true, a.poison, &e), &e);
        must(stage_head_begin(s, &a, &e), &e);
    }
    must(stage_head_end(s, &n_committed, &e), &e);
    assert_int_equal(n_committed, 1);
    assert_int_equal(drawn, f->want[0][0]);
    readback_token *t = readback_token_at(&f->c.results, row.branch, row.position);
    assert_int_equal(t->commit, f->c.seq);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_feed_themselves, open_all, close_all),
        cmocka_unit_test_setup_teardown(one_row_feeds_itself, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_stop_ends_a_row_among_others, open_all, close_all),
        cmocka_unit_test_setup_teardown(logits_wait_while_the_next_step_walks, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_spoiled_row_ends_behind_its_next_round, open_all,
                                        close_all),
        cmocka_unit_test_setup_teardown(a_head_may_be_dropped, open_all, close_all),
    };
    return cmocka_run_group_tests_name("stage_ahead", tests, NULL, NULL);
}
