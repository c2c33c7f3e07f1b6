/* sampler_test.c - the draw against a brute-force one written from the header's definition (full
 * sort, wide sums), its purity, and its distribution. */
#include "common/sampler.h"
#include "common/clock.h"
#include "common/fmath.h"
#include "tests/support/tap.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng_state = 1;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

static float rng_float(float low, float high)
{
    return low + (high - low) * (float)rng(1u << 24) / (float)(1u << 24);
}

/* ---- the reference ---- */

typedef struct {
    float l;
    uint32_t id;
} candidate;

static int descending(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->l != y->l) return x->l > y->l ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static float reference_penalty(float l, uint32_t count, const sampler_params *p)
{
    float steps[3] = {0};
    steps[0] = l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty;
    steps[0] = fminf(fmaxf(steps[0], -FLT_MAX), FLT_MAX);
    steps[1] = steps[0] - (float)count * p->frequency_penalty;
    steps[1] = fminf(fmaxf(steps[1], -FLT_MAX), FLT_MAX);
    steps[2] = steps[1] - p->presence_penalty;
    return fminf(fmaxf(steps[2], -FLT_MAX), FLT_MAX);
}

static uint64_t reference_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint32_t reference_draw(const float *logits, uint32_t n, const sampler_params *p,
                               const uint32_t *history, uint32_t n_history, uint64_t position)
{
    candidate *c = malloc(n * sizeof *c);
    double *w = malloc(n * sizeof *w);
    for (uint32_t id = 0; id < n; id++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < n_history; i++)
            count += i + p->penalty_last_n >= n_history && history[i] == id;
        c[id] = (candidate){count ? reference_penalty(logits[id], count, p) : logits[id], id};
    }
    qsort(c, n, sizeof *c, descending);
    uint32_t drawn = c[0].id;
    if (p->temperature == 0 || p->top_k == 1) goto done;
    uint32_t kept = p->top_k != 0 && p->top_k < n ? p->top_k : n;
    unsigned __int128 total = 0, sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        double x = ((double)c[i].l - (double)c[0].l) / (double)p->temperature;
        w[i] = x < -30 ? 0 : floor(fm_exp(x) * 0x1p42);
        total += (uint64_t)w[i];
    }
    if (p->top_p < 1) {
        uint32_t i = 0;
        do
            sum += (uint64_t)w[i++];
        while (i < kept && (double)(uint64_t)sum < (double)p->top_p * (double)(uint64_t)total);
        kept = i;
    }
    total = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (w[i] < (double)p->min_p * w[0]) w[i] = 0;
        total += (uint64_t)w[i];
    }
    uint64_t h = reference_mix(reference_mix(p->seed + 0x9e3779b97f4a7c15ull) ^
                               (position * 0xd1342543de82ef95ull + 1));
    uint64_t target = (uint64_t)((h * total) >> 64);
    uint32_t i = 0;
    for (sum = (uint64_t)w[0]; sum <= target; sum += (uint64_t)w[i])
        i++;
    drawn = c[i].id;
done:
    free(c);
    free(w);
    return drawn;
}

/* ---- helpers ---- */

static uint32_t draw(const float *logits, uint32_t n, const sampler_params *p,
                     const uint32_t *history, uint32_t n_history, uint64_t position)
{
    void *scratch = malloc(sampler_scratch_bytes(n));
    memset(scratch, (int)rng(256), sampler_scratch_bytes(n)); /* its content must not matter */
    uint32_t id = 0;
    assert_int_equal(sampler_draw(&id, logits, n, p, history, n_history, position, scratch), ST_OK);
    assert_true(id < n);
    free(scratch);
    return id;
}

static uint32_t draw_plain(const float *logits, uint32_t n, const sampler_params *p)
{
    return draw(logits, n, p, NULL, 0, 0);
}

/* A row of one of several characters: smooth, many ties, few values, huge range, all equal, zeros
 * of both signs. */
static void random_row(float *logits, uint32_t n)
{
    uint32_t kind = rng(7);
    for (uint32_t i = 0; i < n; i++) {
        switch (kind) {
        case 0:
            logits[i] = rng_float(-10, 10);
            break;
        case 1:
            logits[i] = (float)rng(8);
            break;
        case 2:
            logits[i] = (float)rng(3) - 1;
            break;
        case 3:
            logits[i] = rng_float(-1, 1) * (rng(2) ? FLT_MAX : 1e-40f);
            break;
        case 4:
            logits[i] = 2.5f;
            break;
        case 5:
            logits[i] = rng(2) ? 0.0f : -0.0f;
            break;
        default:
            logits[i] = rng_float(0, 3) * rng_float(0, 3) * rng_float(-1, 3);
            break;
        }
    }
}

static sampler_params random_params(uint32_t n)
{
    static const float temperatures[] = {0, 1e-30f, 0.1f, 0.8f, 1, 2, 100, FLT_MAX};
    static const float top_ps[] = {1, 1, 1e-20f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999999f};
    static const float min_ps[] = {0, 0, 0.01f, 0.05f, 0.5f, 0.999f};
    static const float repetitions[] = {1, 1, 1.1f, 0.5f, 3, 1e-38f, FLT_MAX};
    static const float others[] = {0, 0, 0.1f, -0.5f, 2, FLT_MAX, -FLT_MAX};
    const uint32_t top_ks[] = {0, 0, 1, 2, 3, 5, 40, n / 2 + 1, n, n + 1, UINT32_MAX};
#define ANY(list) list[rng(sizeof list / sizeof list[0])]
    sampler_params p = {ANY(temperatures), ANY(top_ps), ANY(min_ps),
                        ANY(repetitions),  ANY(others), ANY(others),
                        ANY(top_ks),       rng(20),     (uint64_t)rng(1u << 30) << 34 | rng(9)};
#undef ANY
    assert_int_equal(sampler_valid(&p, NULL), ST_OK);
    return p;
}

/* ---- tests ---- */

static void equals_brute_force(void **state)
{
    (void)state;
    enum { N_MAX = 700 };
    float logits[N_MAX];
    uint32_t history[32];
    for (uint32_t round = 0; round < 30000; round++) {
        uint32_t n = rng(4) ? 1 + rng(60) : 1 + rng(N_MAX);
        random_row(logits, n);
        sampler_params p = random_params(n);
        uint32_t n_history = rng(33);
        for (uint32_t i = 0; i < n_history; i++)
            history[i] = rng(rng(2) ? n : 1 + n / 8);
        uint64_t position = rng(3) ? rng(100) : (uint64_t)rng(1u << 30) << 33;
        uint32_t wanted = reference_draw(logits, n, &p, history, n_history, position);
        uint32_t got = draw(logits, n, &p, history, n_history, position);
        if (got != wanted)
            fail_msg("round %u: n %u, T %g, k %u, p %g, m %g: %u instead of %u", round, n,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, got, wanted);
    }
}

static void large_rows_equal_brute_force(void **state)
{
    (void)state;
    enum { N = 50000 };
    float *logits = malloc(N * sizeof *logits);
    for (uint32_t round = 0; round < 60; round++) {
        random_row(logits, N);
        sampler_params p = random_params(N);
        if (rng(2)) p.top_k = 40;
        assert_int_equal(draw(logits, N, &p, NULL, 0, round),
                         reference_draw(logits, N, &p, NULL, 0, round));
    }
    free(logits);
}

static void greedy(void **state)
{
    (void)state;
    sampler_params p = sampler_default();
    assert_int_equal(draw_plain((float[]){1, 3, 2, 3}, 4, &p), 1);
    assert_int_equal(draw_plain((float[]){-0.0f, 0.0f, -1}, 3, &p), 0);
    assert_int_equal(draw_plain((float[]){-1, -0.0f, 0.0f}, 3, &p), 1);
    assert_int_equal(draw_plain((float[]){7, 7, 7, 7}, 4, &p), 0);
    assert_int_equal(draw_plain((float[]){-FLT_MAX, -FLT_MAX}, 2, &p), 0);
    assert_int_equal(draw_plain((float[]){-5}, 1, &p), 0);
    p.temperature = 5;
    p.top_k = 1; /* the same as temperature 0 */
    for (uint32_t seed = 0; seed < 50; seed++) {
        p.seed = seed;
        assert_int_equal(draw_plain((float[]){3, 3.0000002f, 3}, 3, &p), 1);
    }
}

/* Ties at the border of top-k: lower ids are in. */
static void ties_at_the_cut(void **state)
{
    (void)state;
    sampler_params p = sampler_default();
    p.temperature = 1;
    p.top_k = 3;
    bool seen[6] = {false};
    for (uint64_t seed = 0; seed < 400; seed++) {
        p.seed = seed;
        seen[draw_plain((float[]){0, 1, 0.0f, -0.0f, 0, -9}, 6, &p)] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    assert_false(seen[3] || seen[4] || seen[5]);
}

static void penalties(void **state)
{
    (void)state;
    sampler_params p = sampler_default();
    p.penalty_last_n = 3;
    const float logits[4] = {4, 3, -1, -1.5f};
    const uint32_t history[5] = {1, 0, 0, 2, 0};
    p.repetition_penalty = 2; /* 0: 4 / 2 */
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 1);
    p.penalty_last_n = 5; /* now 1 too: 2, 1.5 */
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 0);
    p = sampler_default();
    p.penalty_last_n = 5;
    p.frequency_penalty = 0.4f; /* 0 stands three times: 2.8, 1 once: 2.6 */
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 0);
    p.frequency_penalty = 0.6f; /* 2.2, 2.4 */
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 1);
    p.frequency_penalty = 0;
    p.presence_penalty = 10; /* 0, 1 and 2 stand there, 3 does not */
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 3);
    p.penalty_last_n = 0;
    assert_int_equal(draw(logits, 4, &p, history, 5, 0), 0);
    p.penalty_last_n = SAMPLER_HISTORY_MAX;
    assert_int_equal(draw(logits, 4, &p, NULL, 0, 0), 0);
}

/* A negative logit is multiplied, a positive one divided, by the same f32 operations. */
static void repetition_pushes_both_signs_down(void **state)
{
    (void)state;
    sampler_params p = sampler_default();
    p.penalty_last_n = 8;
    p.repetition_penalty = 1.5f;
    assert_int_equal(draw((float[]){-1, -1.4f, -1.6f}, 3, &p, (uint32_t[]){0}, 1, 0), 1);
    assert_int_equal(draw((float[]){1, 0.6f}, 2, &p, (uint32_t[]){0}, 1, 0), 0);
    assert_int_equal(draw((float[]){1, 0.7f}, 2, &p, (uint32_t[]){0}, 1, 0), 1);
}

static void refuses_what_is_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    uint64_t scratch[64];
    for (uint32_t b = 0; b < 4; b++) {
        for (uint32_t at = 0; at < 5; at++) {
            float logits[5] = {0, 1, 2, 3, 4};
            logits[at] = bad[b];
            sampler_params p = sampler_default();
            uint32_t id = 0;
            assert_int_equal(sampler_draw(&id, logits, 5, &p, NULL, 0, 0, scratch), ST_NAN);
            assert_int_equal(id, TOKEN_NONE);
            p.temperature = 1;
            p.top_k = 2;
            assert_int_equal(sampler_draw(&id, logits, 5, &p, NULL, 0, 0, scratch), ST_NAN);
            assert_int_equal(id, TOKEN_NONE);
        }
    }
}

static void refuses_history_beyond_the_vocabulary(void **state)
{
    (void)state;
    uint64_t scratch[64];
    const float logits[4] = {0, 1, 2, 3};
    const uint32_t bad[] = {4, 0x7FFFFFFF, TOKEN_NONE};
    for (uint32_t b = 0; b < 3; b++) {
        sampler_params p = sampler_default();
        p.penalty_last_n = 2;
        uint32_t id = 0;
        uint32_t history[3] = {bad[b], 1, 2};
        assert_int_equal(sampler_draw(&id, logits, 4, &p, history, 3, 0, scratch), ST_OK);
        assert_int_equal(id, 3); /* it stands before those that count */
        history[1] = bad[b];
        assert_int_equal(sampler_draw(&id, logits, 4, &p, history, 3, 0, scratch), ST_PROTOCOL);
        assert_int_equal(id, TOKEN_NONE);
    }
}

static void validity(void **state)
{
    (void)state;
    sampler_params good = sampler_default();
    assert_int_equal(sampler_valid(&good, NULL), ST_OK);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        sampler_params p = good;                                                                   \
        p.field = value;                                                                           \
        errmsg e;                                                                                  \
        errmsg_clear(&e);                                                                          \
        assert_int_equal(sampler_valid(&p, &e), ST_USAGE);                                         \
        assert_int_equal(e.code, ST_USAGE);                                                        \
        assert_non_null(strstr(e.text, #field));                                                   \
    } while (0)
    REFUSED(temperature, -0.1f);
    REFUSED(temperature, NAN);
    REFUSED(temperature, INFINITY);
    REFUSED(top_p, 0);
    REFUSED(top_p, 1.01f);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -0.1f);
    REFUSED(min_p, 1);
    REFUSED(min_p, NAN);
    REFUSED(repetition_penalty, 0);
    REFUSED(repetition_penalty, -1);
    REFUSED(repetition_penalty, INFINITY);
    REFUSED(frequency_penalty, NAN);
    REFUSED(presence_penalty, -INFINITY);
    REFUSED(penalty_last_n, SAMPLER_HISTORY_MAX + 1);
#undef REFUSED
}

/* The same inputs give the same token whatever was drawn before and whatever the scratch held;
 * logits and history are not written. */
static void purity(void **state)
{
    (void)state;
    enum { N = 300 };
    float logits[N], copy[N];
    random_row(logits, N);
    for (uint32_t i = 0; i < N; i++)
        logits[i] = rng_float(-2, 2);
    memcpy(copy, logits, sizeof copy);
    sampler_params p = sampler_default();
    p.temperature = 1;
    p.repetition_penalty = 1.2f;
    p.penalty_last_n = 4;
    const uint32_t history[4] = {1, 2, 3, 4};
    uint32_t first[64];
    for (uint64_t position = 0; position < 64; position++)
        first[position] = draw(logits, N, &p, history, 4, position);
    for (uint32_t i = 64; i-- > 0;)
        assert_int_equal(draw(logits, N, &p, history, 4, i), first[i]);
    assert_memory_equal(logits, copy, sizeof copy);
}

/* The draw of a known row pins the generator: another definition of it would change every text. */
static void generator_is_pinned(void **state)
{
    (void)state;
    enum { N = 1000 };
    float logits[N] = {0};
    sampler_params p = sampler_default();
    p.temperature = 1;
    static const struct {
        uint64_t seed, position;
        uint32_t id;
    } known[] = {
        {0ull, 0ull, 617},
        {0ull, 1ull, 90},
        {1ull, 0ull, 360},
        {1ull, 1ull, 860},
        {42ull, 1000ull, 932},
        {18446744073709551615ull, 18446744073709551615ull, 271},
        {18446744073709551615ull, 0ull, 98},
        {12345678901234567890ull, 1099511627776ull, 905},
    };
    for (uint32_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        p.seed = known[i].seed;
        assert_int_equal(draw(logits, N, &p, NULL, 0, known[i].position), known[i].id);
    }
}

static void seed_and_position_change_the_draw(void **state)
{
    (void)state;
    enum { N = 1000 };
    float logits[N] = {0};
    sampler_params p = sampler_default();
    p.temperature = 1;
    uint32_t same_position = 0, same_seed = 0;
    for (uint64_t i = 0; i < 500; i++) {
        p.seed = i;
        uint32_t here = draw(logits, N, &p, NULL, 0, 77);
        same_seed += here == draw(logits, N, &p, NULL, 0, 78);
        p.seed = i + 1;
        same_position += here == draw(logits, N, &p, NULL, 0, 77);
    }
    assert_true(same_seed < 5 && same_position < 5); /* 0.5 expected of each */
}

static double chi_square(const uint32_t *seen, const double *share, uint32_t n, uint32_t n_draws)
{
    double chi = 0;
    for (uint32_t i = 0; i < n; i++) {
        double expected = share[i] * n_draws;
        if (expected > 0) chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return chi;
}

/* 8 tokens, 7 degrees of freedom: chi-square is above 24.3 once in 1000. Over positions of one
 * seed, and over seeds at one position. */
static void distribution(void **state)
{
    (void)state;
    enum { N = 8, DRAWS = 40000 };
    const float logits[N] = {0, 1, 2, 0.5f, -1, 1.5f, 2, -3};
    sampler_params p = sampler_default();
    p.temperature = 0.7f;
    double share[N], total = 0;
    for (uint32_t i = 0; i < N; i++)
        total += share[i] = exp((double)logits[i] / (double)p.temperature);
    for (uint32_t i = 0; i < N; i++)
        share[i] /= total;
    for (uint32_t way = 0; way < 6; way++) {
        uint32_t seen[N] = {0};
        for (uint64_t i = 0; i < DRAWS; i++) {
            p.seed = way % 2 ? i : way;
            seen[draw(logits, N, &p, NULL, 0, way % 2 ? way : i)]++;
        }
        assert_true(chi_square(seen, share, N, DRAWS) < 24.3);
    }
}

/* top-p 0.6 keeps 2 and 6 and 5 (0.29, 0.29, 0.15 of T 1); min-p works on what is left. */
static void cuts_keep_the_right_tokens(void **state)
{
    (void)state;
    const float logits[8] = {0, 1, 2, 0.5f, -1, 1.5f, 2, -3};
    sampler_params p = sampler_default();
    p.temperature = 1;
    const struct {
        float top_p, min_p;
        uint32_t top_k, mask;
    } cases[] = {{0.6f, 0, 0, 0x64},    {0.5f, 0, 0, 0x44}, {0.2f, 0, 0, 0x04},
                 {1, 0.9f, 0, 0x44},    {1, 0.6f, 0, 0x64}, {1, 0, 4, 0x66},
                 {0.6f, 0.9f, 0, 0x44}, {0.6f, 0, 2, 0x44}, {0.4f, 0, 2, 0x04}};
    for (uint32_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        p.top_p = cases[c].top_p, p.min_p = cases[c].min_p, p.top_k = cases[c].top_k;
        uint32_t mask = 0;
        for (uint64_t i = 0; i < 2000; i++)
            mask |= 1u << draw(logits, 8, &p, NULL, 0, i);
        assert_int_equal(mask, cases[c].mask);
    }
}

/* Speculation: drafting and verifying in any grouping gives the tokens of the plain walk, because a
 * draw knows only its row, history, seed and position. */
static void speculation_gives_the_plain_text(void **state)
{
    (void)state;
    enum { N = 50, LENGTH = 200 };
    float row[N];
    sampler_params p = sampler_default();
    p.temperature = 1.2f;
    p.top_p = 0.9f;
    p.repetition_penalty = 1.1f;
    p.penalty_last_n = 16;
    uint32_t plain[LENGTH + 1] = {0}, spec[LENGTH + 1] = {0};
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint32_t *text = pass == 0 ? plain : spec;
        for (uint32_t at = 0; at < LENGTH;) {
            uint32_t group = pass == 0 ? 1 : 1 + rng(5);
            for (uint32_t g = 0; g < group && at < LENGTH; g++, at++) {
                uint64_t saved = rng_state;
                rng_state =
                    text[at] * 1000003ull + at; /* a "model": the row of (token, position) */
                for (uint32_t i = 0; i < N; i++)
                    row[i] = rng_float(-2, 2);
                rng_state = saved;
                if (pass == 1) (void)draw(row, N, &p, text, at + 1, at + 7); /* a rejected draft */
                text[at + 1] = draw(row, N, &p, text, at + 1, at);
            }
        }
    }
    assert_memory_equal(plain, spec, sizeof plain);
}

static void large_vocabulary_is_fast(void **state)
{
    (void)state;
    enum { N = 262144, ROUNDS = 5 };
    float *logits = malloc(N * sizeof *logits);
    void *scratch = malloc(sampler_scratch_bytes(N));
    for (uint32_t i = 0; i < N; i++)
        logits[i] = rng_float(-4, 4) + rng_float(-4, 4) + rng_float(-4, 4);
    for (uint32_t way = 0; way < 3; way++) {
        sampler_params p = sampler_default();
        p.temperature = 1;
        p.top_k = way == 0 ? 40 : way == 1 ? N / 2 : 0;
        uint64_t from = now_ns();
        for (uint64_t i = 0; i < ROUNDS; i++) {
            uint32_t id;
            assert_int_equal(sampler_draw(&id, logits, N, &p, NULL, 0, i, scratch), ST_OK);
        }
        uint64_t ns = (now_ns() - from) / ROUNDS;
        print_message("# top_k %u of %d: %.2f ms\n", p.top_k, N, (double)ns / NS_PER_MS);
        assert_true(ns < NS_PER_S);
    }
    free(logits);
    free(scratch);
}

/* The largest vocabulary, all tokens alike: the sum of weights is the largest there can be. */
static void the_largest_sum_fits(void **state)
{
    (void)state;
    const uint32_t n = SAMPLER_VOCAB_MAX;
    float *logits = calloc(n, sizeof *logits);
    void *scratch = malloc(sampler_scratch_bytes(n));
    sampler_params p = sampler_default();
    uint32_t token;
    p.temperature = 1;
    assert_non_null(logits);
    assert_non_null(scratch);
    for (uint64_t position = 0; position < 4; position++) {
        uint64_t h = reference_mix(reference_mix(p.seed + 0x9E3779B97F4A7C15ull) ^
                                   (position * 0xD1342543DE82EF95ull + 1));
        p.top_p = position % 2 == 0 ? 1 : 0.5f; /* half of the tokens */
        uint64_t kept = position % 2 == 0 ? n : (n + 1u) / 2;
        assert_int_equal(sampler_draw(&token, logits, n, &p, NULL, 0, position, scratch), ST_OK);
        assert_int_equal(token, (uint32_t)(((unsigned __int128)h * kept) >> 64));
    }
    free(logits);
    free(scratch);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force),
        cmocka_unit_test(large_rows_equal_brute_force),
        cmocka_unit_test(greedy),
        cmocka_unit_test(ties_at_the_cut),
        cmocka_unit_test(penalties),
        cmocka_unit_test(repetition_pushes_both_signs_down),
        cmocka_unit_test(refuses_what_is_not_finite),
        cmocka_unit_test(refuses_history_beyond_the_vocabulary),
        cmocka_unit_test(validity),
        cmocka_unit_test(purity),
        cmocka_unit_test(generator_is_pinned),
        cmocka_unit_test(seed_and_position_change_the_draw),
        cmocka_unit_test(distribution),
        cmocka_unit_test(cuts_keep_the_right_tokens),
        cmocka_unit_test(speculation_gives_the_plain_text),
        cmocka_unit_test(the_largest_sum_fits),
        cmocka_unit_test(large_vocabulary_is_fast),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
