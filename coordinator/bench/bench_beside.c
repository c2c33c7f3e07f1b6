#include "coordinator/bench/bench_sessions_impl.h"

#include "common/clock.h"

#include <string.h>

#define RUNNING_TOKENS 8u /* that each has drawn before the prompt comes */

static status read_prompt(sessions_state *b, uint64_t *ns, errmsg *e)
{
    sampler_params greedy = sampler_default();
    session *s;
    TRY(session_open(b->p, &greedy, &s, e));
    uint64_t begin = now_ns();
    uint32_t next;
    status st = session_prime(s, b->beside, b->q->n_beside, NULL, &next, e);
    *ns = now_ns() - begin;
    session_drop(s);
    b->n_rows += b->q->n_beside;
    return st;
}

/* The prompt with nobody beside it: how long it takes, and a chunk of it. */
static status alone(sessions_state *b, beside_test *out, errmsg *e)
{
    stage_snapshot before[STAGES_MAX], after[STAGES_MAX];
    uint64_t ns;
    bench_counted(b->p, b->n_rows, before);
    TRY(read_prompt(b, &ns, e));
    bench_counted(b->p, b->n_rows, after);
    for (uint32_t s = 0; s < pipeline_plan(b->p)->cuts.n_stages; s++) {
        uint64_t n_chunks = after[s].n_chunks - before[s].n_chunks;
        if (n_chunks == 0) continue;
        out->chunk_ms +=
            (double)(after[s].busy_ns - before[s].busy_ns) / NS_PER_MS / (double)n_chunks;
        out->n_chunks = (uint32_t)n_chunks;
    }
    out->alone_ms += (double)ns / NS_PER_MS;
    return ST_OK;
}

/* Waits that were under way between begin and end. */
static void keep_waits(sessions_state *b, const stream *x, uint64_t begin_ns, uint64_t end_ns)
{
    uint32_t first = 0, end = 0; /* the last told before begin_ns; past the first after end_ns */
    while (end < x->n_told && (end == 0 || x->told_ns[end - 1] <= end_ns)) end++;
    while (first + 1 < end && x->told_ns[first + 1] < begin_ns) first++;
    if (end - first < 2 || b->n_beside_ms + end - first - 1 > b->beside_ms_room) return;
    b->n_beside_ms += waits_of(b->beside_ms + b->n_beside_ms, x->told_ns + first + 1,
                               end - first - 1, x->told_ns[first]);
}

/* Until each has drawn a few tokens; the k-th is there when it can be taken. */
static status run_in(const sessions_state *b, uint32_t n, errmsg *e)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = 0;
        for (uint32_t k = 0; k < RUNNING_TOKENS && token != TOKEN_NONE; k++)
            TRY(generation_next(b->stream[i].g, &token, e));
    }
    return ST_OK;
}

status bench_beside_once(sessions_state *b, uint32_t n, beside_test *out, errmsg *e)
{
    uint32_t n_begun = 0;
    uint64_t ns = 0, begin_ns = 0;
    errmsg ignored = {0};
    status st = alone(b, out, e);
    for (; st == ST_OK && n_begun < n; n_begun += st == ST_OK) {
        stream *x = &b->stream[n_begun];
        const generate_limits limits = {.n_max = b->n_told_max,
                                        .n_draft = b->q->n_draft,
                                        .on_more = bench_stream_more,
                                        .ctx = x};
        x->n_told = 0;
        x->n_max = b->n_told_max;
        st = session_generate(x->s, x->next, &limits, &x->g, e);
    }
    if (st == ST_OK) st = run_in(b, n, e);
    begin_ns = now_ns();
    if (st == ST_OK) st = read_prompt(b, &ns, e);
    for (uint32_t i = 0; i < n_begun; i++) {
        status closed = generation_close(b->stream[i].g, st == ST_OK ? e : &ignored);
        if (st == ST_OK) st = closed;
        if (b->stream[i].n_told < b->stream[i].n_max)
            b->stream[i].n_told--; /* its end was told too */
        b->n_rows += b->stream[i].n_told;
    }
    for (uint32_t i = 0; st == ST_OK && i < n; i++)
        keep_waits(b, &b->stream[i], begin_ns, begin_ns + ns);
    out->prompt_ms += (double)ns / NS_PER_MS;
    return st;
}

void bench_beside_end(sessions_state *b, beside_test *out, uint32_t n_repeat)
{
    out->chunk_ms /= n_repeat;
    out->alone_ms /= n_repeat;
    out->prompt_ms /= n_repeat;
    out->n_waits = b->n_beside_ms;
    if (b->n_beside_ms > 0) out->token_ms = spread_of(b->beside_ms, b->n_beside_ms);
}
