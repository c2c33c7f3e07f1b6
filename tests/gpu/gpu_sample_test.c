/* Drawing on the GPU: the token that the host draws from the same logits, for every kind of sampler
 * and size of vocabulary, and what a step's end needs beside it. */
#include "common/clock.h"
#include "tests/support/gpu_check.h"
#include "tests/support/sample_cases.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static side cpu, gpu;

/* Rows of one vocabulary, and where they lie on the device. */
typedef struct {
    uint32_t n_rows, n_vocab;
    float *logits;
    sample_row *rows;   /* pinned: the device reads them there */
    sample_result *out; /* pinned */
    uint8_t *live;
    uint32_t *tokens;
    dev_ptr on_logits, on_flags, on_live, on_tokens;
} batch;

static dev_ptr at(const void *host)
{
    return (dev_ptr){(uintptr_t)host};
}

static void *pinned(uint64_t bytes)
{
    errmsg e = {0};
    void *p;
    if (gpu.b->host_alloc(gpu.d, &p, bytes, &e) != ST_OK) fail_msg("%s", e.text);
    return p;
}

static uint64_t logits_bytes(const batch *b)
{
    return (uint64_t)b->n_rows * b->n_vocab * sizeof(float);
}

static void batch_open(batch *b, uint32_t n_rows, uint32_t n_vocab)
{
    *b = (batch){.n_rows = n_rows, .n_vocab = n_vocab};
    b->logits = malloc(logits_bytes(b));
    b->rows = pinned(n_rows * sizeof *b->rows);
    b->out = pinned(n_rows * sizeof *b->out);
    b->live = calloc(n_rows, 1);
    b->tokens = calloc(n_rows, sizeof *b->tokens);
    b->on_logits = side_put(&gpu, NULL, logits_bytes(b));
    b->on_flags = side_put(&gpu, NULL, n_rows);
    b->on_live = side_put(&gpu, NULL, n_rows);
    b->on_tokens = side_put(&gpu, NULL, n_rows * sizeof *b->tokens);
}

static void batch_close(batch *b)
{
    side_free(&gpu, b->on_logits, logits_bytes(b));
    side_free(&gpu, b->on_flags, b->n_rows);
    side_free(&gpu, b->on_live, b->n_rows);
    side_free(&gpu, b->on_tokens, b->n_rows * sizeof *b->tokens);
    gpu.b->host_free(gpu.d, b->rows);
    gpu.b->host_free(gpu.d, b->out);
    free(b->logits);
    free(b->live);
    free(b->tokens);
}

static void batch_fill(batch *b, seeded *s)
{
    for (uint32_t r = 0; r < b->n_rows; r++) {
        sample_case(s, b->n_vocab, b->logits + (uint64_t)r * b->n_vocab, &b->rows[r]);
        b->rows[r].row_i = b->n_rows - 1 - r;
    }
}

static void batch_put(const batch *b)
{
    assert_int_equal(gpu.b->upload(gpu.q, b->on_logits, b->logits, logits_bytes(b)), ST_OK);
}

/* On the queue. feeds: tokens and live come along. */
static void batch_draw(const batch *b, bool feeds)
{
    sample_args a = {.rows = b->rows, .flags = b->on_flags, .n_vocab = b->n_vocab};
    if (feeds) {
        a.tokens = b->on_tokens;
        a.live = b->on_live;
    }
    assert_int_equal(gpu.b->sample(gpu.q, at(b->out), b->on_logits, &a, b->n_rows), ST_OK);
}

static void wait_all(void)
{
    backend_event ev;
    assert_int_equal(gpu.b->event_record(gpu.q, &ev), ST_OK);
    assert_int_equal(gpu.b->event_wait(gpu.q, ev), ST_OK);
}

static void tell(const batch *b, uint32_t r, const sample_result *want)
{
    const sampler_params *p = &b->rows[r].params;
    fail_msg("vocabulary %u, row %u: token %u (status %u), the host's %u (%u); temperature %a, "
             "top_k %u, "
             "top_p %a, min_p %a, penalties %a %a %a over %u of %u, seed %llu, position %llu",
             b->n_vocab, r, b->out[r].token, b->out[r].status, want->token, want->status,
             (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p,
             (double)p->repetition_penalty, (double)p->frequency_penalty,
             (double)p->presence_penalty, p->penalty_last_n, b->rows[r].n_history,
             (unsigned long long)p->seed, (unsigned long long)b->rows[r].position);
}

static void every_token_is_the_hosts(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_vocab, n_rows, n_times;
    } sizes[] = {{1, 16, 4},      {2, 16, 8},       {7, 64, 16},     {31, 64, 8},
                 {32, 64, 8},     {33, 64, 8},      {255, 64, 16},   {1000, 64, 16},
                 {8192, 32, 8},   {8193, 32, 8},    {32000, 16, 16}, {50257, 16, 6},
                 {128256, 16, 6}, {151936, 16, 4},  {262144, 16, 3}, {SAMPLER_VOCAB_MAX, 3, 1}};
    seeded s = {11};
    uint32_t n_all = 0, n_greedy = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        batch b;
        batch_open(&b, sizes[i].n_rows, sizes[i].n_vocab);
        for (uint32_t t = 0; t < sizes[i].n_times; t++) {
            batch_fill(&b, &s);
            batch_put(&b);
            batch_draw(&b, false);
            wait_all();
            for (uint32_t r = 0; r < b.n_rows; r++) {
                const float *row = b.logits + (uint64_t)r * b.n_vocab;
                sample_result want = sample_wanted(row, b.n_vocab, &b.rows[r]);
                if (b.out[r].token != want.token || b.out[r].status != want.status)
                    tell(&b, r, &want);
                n_greedy += b.rows[r].params.temperature == 0;
                n_all++;
            }
        }
        batch_close(&b);
    }
    printf("# %u tokens, %u of them greedy\n", n_all, n_greedy);
}

/* The same logits in the same step alone and among others. */
static void neighbours_change_nothing(void **state)
{
    (void)state;
    seeded s = {12};
    batch b;
    sample_result together[16];
    batch_open(&b, 16, 4096);
    batch_fill(&b, &s);
    batch_put(&b);
    batch_draw(&b, false);
    wait_all();
    memcpy(together, b.out, sizeof together);
    for (uint32_t r = 0; r < 16; r++) {
        sample_args a = {.rows = &b.rows[r], .flags = b.on_flags, .n_vocab = b.n_vocab};
        dev_ptr logits = dev_offset(b.on_logits, (uint64_t)r * b.n_vocab * sizeof(float));
        assert_int_equal(gpu.b->sample(gpu.q, at(b.out), logits, &a, 1), ST_OK);
        wait_all();
        assert_int_equal(b.out[0].token, together[r].token);
    }
    batch_close(&b);
}

static void what_is_not_finite_and_what_stops(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    seeded s = {13};
    batch b;
    batch_open(&b, 8, 32000);
    for (uint32_t i = 0; i < 3; i++) {
        batch_fill(&b, &s);
        memset(b.live, 1, b.n_rows);
        uint8_t flags[8] = {0};
        flags[b.rows[5].row_i] = 1;
        b.logits[(uint64_t)i * b.n_vocab + (i == 0 ? 0 : i == 1 ? b.n_vocab - 1 : 17777)] = bad[i];
        b.rows[3].ends = 1;
        b.rows[4].params.penalty_last_n = 5;
        b.rows[4].n_history = 2;
        b.rows[4].history[0] = b.n_vocab;
        sample_result stopped = sample_wanted(b.logits + 6ull * b.n_vocab, b.n_vocab, &b.rows[6]);
        b.rows[6].n_stops = 2 + i;
        b.rows[6].stop[1 + i] = stopped.token;
        b.rows[7].n_stops = 1;
        b.rows[7].stop[0] = TOKEN_NONE;
        batch_put(&b);
        assert_int_equal(gpu.b->upload(gpu.q, b.on_flags, flags, 8), ST_OK);
        assert_int_equal(gpu.b->upload(gpu.q, b.on_live, b.live, b.n_rows), ST_OK);
        batch_draw(&b, true);
        side_get(&gpu, b.live, b.on_live, b.n_rows);
        side_get(&gpu, b.tokens, b.on_tokens, b.n_rows * sizeof *b.tokens);
        for (uint32_t r = 0; r < b.n_rows; r++) {
            uint32_t row_i = b.rows[r].row_i;
            status want = r == i ? ST_NAN : r == 4 ? ST_PROTOCOL : ST_OK;
            assert_int_equal(b.out[r].status, want);
            assert_int_equal(b.out[r].poisoned, r == 5);
            if (want != ST_OK) assert_int_equal(b.out[r].token, TOKEN_NONE);
            assert_int_equal(b.tokens[row_i], want == ST_OK ? b.out[r].token : 0);
            assert_int_equal(b.live[row_i], want == ST_OK && r != 3 && r != 6);
        }
    }
    batch_close(&b);
}

/* Pieces that travel with a launch, and more than fit into one. */
static void pieces_arrive(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {
        {1, 4, 0, 256}, {3840, 0, 0, 0}, {3000, 840, 1, 0}, {3, 70000, 9, 4}};
    char *from = pinned(80000), *got = pinned(80000);
    seeded s = {14};
    for (int i = 0; i < 80000; i++)
        from[i] = (char)seeded_next(&s);
    for (int i = 0; i < 4; i++) {
        dev_ptr to = side_put(&gpu, NULL, 80000);
        upload_piece piece[16];
        uint64_t bytes = 0;
        for (int k = 0; k < 4; k++, bytes += sizes[i][k - 1])
            piece[k] = (upload_piece){dev_offset(to, bytes), from + bytes, sizes[i][k]};
        assert_int_equal(gpu.b->upload_all(gpu.q, piece, 4), ST_OK);
        side_get(&gpu, got, to, 80000);
        assert_memory_equal(got, from, bytes);
        for (uint64_t k = bytes; k < 80000; k++)
            assert_int_equal(got[k], 0);
        side_free(&gpu, to, 80000);
    }
    dev_ptr to = side_put(&gpu, NULL, 64); /* more pieces than a launch takes */
    upload_piece many[16];
    for (int k = 0; k < 16; k++)
        many[k] = (upload_piece){dev_offset(to, 4 * k), from + 4 * k, 4};
    assert_int_equal(gpu.b->upload_all(gpu.q, many, 16), ST_OK);
    side_get(&gpu, got, to, 64);
    assert_memory_equal(got, from, 64);
    side_free(&gpu, to, 64);
    gpu.b->host_free(gpu.d, from);
    gpu.b->host_free(gpu.d, got);
}

/* What is drained is what stood there then, whatever the queue does to other memory meanwhile. */
static void drains_are_beside_the_queue(void **state)
{
    (void)state;
    const uint64_t n = 1u << 20, bytes = n * sizeof(float);
    seeded s = {15};
    float *x = seeded_floats(&s, n, 2), *got = pinned(bytes);
    dev_ptr a = side_put(&gpu, x, bytes), b = side_put(&gpu, x, bytes);
    dev_ptr c = side_put(&gpu, x, bytes);
    backend_event done;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gpu.b->add(gpu.q, a, b, n), ST_OK);
        for (uint64_t k = 0; k < n; k++)
            x[k] = i == 0 ? 2 * x[k] : x[k] / (float)(i + 1) * (float)(i + 2);
        assert_int_equal(gpu.b->drain(gpu.q, got, a, bytes, &done), ST_OK);
        for (int k = 0; k < 20; k++)
            assert_int_equal(gpu.b->silu_mul(gpu.q, c, c, c, n), ST_OK);
        assert_int_equal(gpu.b->event_wait(gpu.q, done), ST_OK);
        assert_true(gpu.b->event_done(gpu.q, done));
        for (uint64_t k = 0; k < n; k += 4099)
            assert_true(fabsf(got[k] - x[k]) <= 1e-5f * fabsf(x[k]));
    }
    side_free(&gpu, a, bytes);
    side_free(&gpu, b, bytes);
    side_free(&gpu, c, bytes);
    gpu.b->host_free(gpu.d, got);
    free(x);
}

static double us_each(const batch *b, int n)
{
    batch_draw(b, false);
    wait_all();
    uint64_t begin = now_ns();
    for (int i = 0; i < n; i++)
        batch_draw(b, false);
    wait_all();
    return (double)(now_ns() - begin) / 1e3 / n;
}

/* No limit: what it costs is told. */
static void cost_is_told(void **state)
{
    (void)state;
    static const sampler_params kinds[] = {
        {.top_p = 1, .repetition_penalty = 1},
        {.top_p = 1, .repetition_penalty = 1, .temperature = 0.8f},
        {.top_p = 0.95f, .min_p = 0.05f, .repetition_penalty = 1, .temperature = 0.8f, .top_k = 40},
        {.top_p = 0.95f, .repetition_penalty = 1.1f, .temperature = 0.8f, .penalty_last_n = 64}};
    static const char *const names[] = {"greedy", "temperature", "top-k, top-p, min-p",
                                        "top-p, penalties"};
    for (uint32_t n_rows = 1; n_rows <= 16; n_rows *= 16) {
        batch b;
        seeded s = {16};
        batch_open(&b, n_rows, 128256);
        for (uint64_t i = 0; i < (uint64_t)n_rows * b.n_vocab; i++)
            b.logits[i] = (float)(seeded_below(&s, 1000) + seeded_below(&s, 1000)) / 200.0f;
        batch_put(&b);
        for (int k = 0; k < 4; k++) {
            for (uint32_t r = 0; r < n_rows; r++) {
                b.rows[r] = (sample_row){.params = kinds[k], .position = r, .n_history = 64};
                for (uint32_t i = 0; i < 64; i++)
                    b.rows[r].history[i] = i * 7;
            }
            printf("# %u rows of 128256, %s: %.1f us\n", n_rows, names[k], us_each(&b, 100));
        }
        batch_close(&b);
    }
}

int main(void)
{
    if (!gpu_begin(&cpu, &gpu, 180)) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_the_hosts),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(what_is_not_finite_and_what_stops),
        cmocka_unit_test(pieces_arrive),
        cmocka_unit_test(drains_are_beside_the_queue),
        cmocka_unit_test(cost_is_told),
    };
    int code = cmocka_run_group_tests_name("gpu_sample", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return code;
}
