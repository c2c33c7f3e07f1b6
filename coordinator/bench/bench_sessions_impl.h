/* bench_sessions_impl.h - what the files of the sessions' benchmark share: bench_sessions.c plans
 * and runs tests, bench_beside.c is their last part. */
#ifndef COORDINATOR_BENCH_SESSIONS_IMPL_H
#define COORDINATOR_BENCH_SESSIONS_IMPL_H

#include "coordinator/bench/bench_sessions.h"

#include <pthread.h>

/* A session of a test, and when it was told what. */
typedef struct {
    session *s;
    generation *g;
    pthread_t thread;            /* primes it */
    const uint32_t *tokens;
    uint32_t n_tokens, next, n_told, n_max;
    uint64_t first_ns;
    uint64_t *told_ns;           /* [n_told_max of the state] */
    status result;
    errmsg why;
} stream;

typedef struct {
    const bench_request *q;
    pipeline *p;
    uint32_t *tokens;            /* [most sessions, n_prompt] */
    uint32_t *beside;            /* [n_beside] */
    stream *stream;              /* [most sessions] */
    uint32_t n_told_max;
    uint64_t n_rows;             /* asked of this pipeline so far */
    stage_snapshot before[STAGES_MAX];
    uint64_t begin_ns, begin_cpu_ns;
    double *first_ms, *token_ms, *beside_ms; /* of the repetitions of a test */
    uint64_t n_first, n_token, n_beside_ms, beside_ms_room;
    double *tokens_per_s, *prompt_per_s; /* [n_repeat] */
} sessions_state;

/* The generate_limits.on_more of a stream. */
void bench_stream_more(void *stream_);

/* The sessions of the test, n of them, are open and hold their prompts; x->next is next. They
 * generate for as long as a prompt is read beside them; adds to *out and to the waits. */
MUST_USE status bench_beside_once(sessions_state *b, uint32_t n, beside_test *out, errmsg *e);
/* What the repetitions gave; they have waits. */
void bench_beside_end(sessions_state *b, beside_test *out, uint32_t n_repeat);

#endif
