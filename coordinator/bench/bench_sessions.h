/* bench_sessions.h - many sessions at once: what they get together, and what each of them waits.
 *
 * One pipeline per number of stages serves every test. In a test S sessions, each with a prompt of
 * random tokens of its own (nothing is shared), do two things, all at the same time:
 *
 *   prompt       all prompts are asked for at once. A session's wait is until its first token is
 *                drawn
 *   generation   when the last prompt is through, all go on by themselves for n tokens. A session's
 *                waits are those before each of its tokens, as the coordinator commits them
 *
 *   beside       where asked for: they go on, and another session reads a prompt of n_beside tokens
 *                meanwhile. Their waits are those that were under way then; a chunk's time is that
 *                of its walk through all stages, from their counters, of the same prompt with
 *                nobody beside it
 *
 * once unmeasured (at most WARM_TOKENS tokens), then n_repeat times; waits are those of all
 * repetitions together. Shares are of the wall time of a phase, from the counters of the stages:
 * inside their own layers and head; waiting for rows (starved) or for room behind them (blocked).
 * */
#ifndef COORDINATOR_BENCH_SESSIONS_H
#define COORDINATOR_BENCH_SESSIONS_H

#include "coordinator/bench/bench.h"

typedef struct {
    double busy[STAGES_MAX], starved[STAGES_MAX], blocked[STAGES_MAX];
} stage_shares;

typedef struct {
    double alone_ms, prompt_ms; /* the prompt without them, beside them: means of the repetitions */
    double chunk_ms;
    uint32_t n_chunks;
    uint64_t n_waits;
    spread token_ms;             /* of the sessions meanwhile; 0: they had no wait */
} beside_test;

typedef struct {
    uint32_t n_sessions;
    uint32_t batch_rows;         /* of a walk, at most; 0: all sessions over the stages */
    plan plan;                   /* as it ran */
    char device[64];             /* of stage 0, as the stage says */
    stats tokens_per_s;          /* of the generation, all sessions together */
    stats prompt_tokens_per_s;   /* until the last first token */
    spread first_ms, token_ms;   /* waits for the first token, for later ones (bench_stats.h) */
    stage_shares prompt, generation;
    beside_test beside;
    double coordinator_cores; /* processor time of this process by wall time, of the generation */
} sessions_test;

typedef struct {
    char model[BENCH_NAME_BYTES];
    uint32_t n_prompt, n_generate, n_repeat, n_beside;
    uint32_t n_tests;
    sessions_test *test;         /* [n_tests], owned */
} sessions_result;

/* Output as it comes: called with t NULL before the first test, then when a test has ended. */
typedef void (*sessions_told)(void *ctx, const sessions_result *r, const sessions_test *t);

/* Measure q: for each of its stages, batch and sessions, in that order. ST_CONTEXT_FULL: a context
 * that does not hold prompt and generation; ST_RESOURCES: the sessions' KV does not fit, saying how
 * many would; otherwise as pipeline_open and session_prime. bench_sessions_free in any case. */
MUST_USE status bench_sessions_run(sessions_result *out, const bench_request *q, sessions_told told,
                                   void *ctx, errmsg *e);
void bench_sessions_free(sessions_result *r);

/* Before the tests, after each, after all; to stdout. */
void bench_sessions_print_begin(bench_format f, const sessions_result *r);
void bench_sessions_print_test(bench_format f, const sessions_result *r, const sessions_test *t);
void bench_sessions_print_end(bench_format f, const sessions_result *r);

#endif
