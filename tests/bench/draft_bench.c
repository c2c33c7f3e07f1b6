/* Speculation beside plain decode: the same tokens, in turn over one pipeline, with and without
 * drafts.
 *
 *     draft_bench MODEL STAGES SESSIONS TOKENS PAIRS [FAULT]
 *
 * Twice: a text that repeats itself (drawn greedily after a repetition) and one that hardly does
 * (drawn at temperature 1). All sessions are primed once; a pair generates TOKENS in each from
 * there, plainly and with drafts by prompt lookup, who is first changing with every pair. A line
 * each, for RESULTS.md: stages, sessions, text, plain and drafted tokens/s together, the ratio of
 * all time, the median of the pairs' ratios and their quartiles, drafts accepted of drafted. */
#include "common/clock.h"
#include "coordinator/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT 48u
#define N_SESSIONS_MAX 64u
#define N_DRAFT 8u
#define PAIRS_MAX 4096u

static void must(status s, const errmsg *e)
{
    if (s == ST_OK) return;
    fprintf(stderr, "draft_bench: %s\n", e->text);
    exit(1);
}

typedef struct {
    pipeline *p;
    uint32_t n, token[N_SESSIONS_MAX];
    uint64_t n_tokens;
    session *s[N_SESSIONS_MAX];
} crowd;

static void prime(crowd *c, bool repeats)
{
    errmsg e = {0};
    uint32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i < c->n; i++) {
        sampler_params sampler = sampler_default();
        if (!repeats) sampler.temperature = 1;
        sampler.seed = 1 + i;
        for (uint32_t k = 0; k < N_PROMPT; k++)
            prompt[k] = (300 + i * 31 + (repeats ? k % 12 : k) * 7) % pipeline_model(c->p)->n_vocab;
        must(session_open(c->p, &sampler, &c->s[i], &e), &e);
        must(session_prime(c->s[i], prompt, N_PROMPT, NULL, &c->token[i], &e), &e);
    }
}

/* Nanoseconds; every session is afterwards what it was before. */
static double generate(crowd *c, uint32_t n_draft)
{
    errmsg e = {0};
    generation *g[N_SESSIONS_MAX];
    uint32_t token;
    uint64_t begin = now_ns();
    const generate_limits l = {.n_max = c->n_tokens, .n_draft = n_draft};
    for (uint32_t i = 0; i < c->n; i++)
        must(session_generate(c->s[i], c->token[i], &l, &g[i], &e), &e);
    for (uint32_t i = 0; i < c->n; i++)
        for (uint64_t k = 0; k < c->n_tokens; k++) must(generation_next(g[i], &token, &e), &e);
    double ns = (double)(now_ns() - begin);
    for (uint32_t i = 0; i < c->n; i++) {
        must(generation_close(g[i], &e), &e);
        must(session_truncate(c->s[i], N_PROMPT, &e), &e);
    }
    return ns;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(crowd *c, uint32_t n_stages, uint32_t n_pairs, bool repeats)
{
    static double ratio[PAIRS_MAX];
    double plain = 0, drafted = 0, tokens = (double)c->n * (double)c->n_tokens * n_pairs;
    draft_counts before, after;
    prime(c, repeats);
    generate(c, 0);
    generate(c, N_DRAFT);
    pipeline_drafts(c->p, &before);
    for (uint32_t k = 0; k < n_pairs; k++) {
        double one = generate(c, k % 2 == 0 ? 0 : N_DRAFT),
               two = generate(c, k % 2 == 0 ? N_DRAFT : 0);
        ratio[k] = k % 2 == 0 ? one / two : two / one;
        plain += k % 2 == 0 ? one : two;
        drafted += k % 2 == 0 ? two : one;
    }
    pipeline_drafts(c->p, &after);
    qsort(ratio, n_pairs, sizeof *ratio, by_size);
    printf("| %u | %u | %s | %.0f | %.0f | %.3f | %.3f (%.3f .. %.3f) | %llu / %llu |\n", n_stages,
           c->n, repeats ? "repeats itself" : "does not", tokens * 1e9 / plain,
           tokens * 1e9 / drafted, plain / drafted, ratio[n_pairs / 2], ratio[n_pairs / 4],
           ratio[n_pairs * 3 / 4], (unsigned long long)(after.n_accepted - before.n_accepted),
           (unsigned long long)(after.n_drafted - before.n_drafted));
    fflush(stdout);
    for (uint32_t i = 0; i < c->n; i++) session_drop(c->s[i]);
}

int main(int argc, char **argv)
{
    if (argc < 6) return 2;
    uint32_t n_stages = (uint32_t)atoi(argv[2]), n_pairs = (uint32_t)atoi(argv[5]);
    crowd c = {.n = (uint32_t)atoi(argv[3]), .n_tokens = strtoull(argv[4], NULL, 10)};
    if (c.n == 0 || c.n > N_SESSIONS_MAX || n_stages == 0 || c.n_tokens == 0) return 2;
    if (n_pairs == 0 || n_pairs > PAIRS_MAX) return 2;
    doors d = doors_default();
    errmsg e = {0};
    d.n_stages = n_stages;
    if (argc > 6) snprintf(d.fault_text, sizeof d.fault_text, "%s", argv[6]);
    pipeline_options o = pipeline_options_default(argv[1], &d);
    o.stage_program = MEMRA_STAGE_PROGRAM;
    o.n_threads = 1;
    o.plan.n_sessions = c.n;
    o.plan.n_ctx = (uint32_t)(N_PROMPT + c.n_tokens + 1);
    o.plan.kv_type = DT_F16;
    must(pipeline_open(&c.p, &o, NULL, &e), &e);
    compare(&c, n_stages, n_pairs, true);
    compare(&c, n_stages, n_pairs, false);
    pipeline_close(c.p);
    return 0;
}
