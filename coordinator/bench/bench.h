/* bench.h - what the benchmark measures, and how it is told.
 *
 * For each number of stages one pipeline is opened, and two tests run on it, each once unmeasured
 * and then n_repeat times in a session of its own with random tokens (seeded):
 *
 *   pp  prompt: n tokens appended to an empty session; until the token after the last is drawn
 *   tg  generation: n tokens one by one, each the one drawn (greedily) before it, after `depth`
 *       unmeasured tokens
 *
 * bytes_per_token (tg only) is what must be read for one token if every weight is read once: the
 * layers, the norm, the head, one row of the embedding, and the K and V of the positions before it,
 * at the mean position of the test. The share is that times tokens/s, of the read bandwidth that
 * was measured in the same run. */
#ifndef COORDINATOR_BENCH_H
#define COORDINATOR_BENCH_H

#include "coordinator/bench/bench_bandwidth.h"
#include "coordinator/bench/bench_stats.h"
#include "coordinator/shape/shape.h"

#define BENCH_REPEAT_MAX 1000u
#define BENCH_LIST_MAX 64u
#define BENCH_NAME_BYTES 128

typedef struct {
    uint32_t n, at[BENCH_LIST_MAX];
} bench_list;

typedef struct {
    const common_options *common;
    const shape_options *random;   /* filled before it is measured; NULL: a file */
    bench_list stages;             /* to measure, in this order */
    bool listed;                   /* by --stages, not by the door */
    uint32_t n_prompt, n_generate; /* 0: leave that test out */
    uint32_t depth, n_repeat;
    uint32_t n_draft;              /* of generate_limits */
    uint64_t seed;
    bench_list sessions, batch;    /* bench_sessions.h; else empty */
    uint32_t n_beside;             /* likewise; 0: no prompt beside the sessions */
} bench_request;

typedef struct {
    bool generation;              /* tg; otherwise pp */
    uint32_t n_tokens, depth;
    plan plan;                    /* as it ran */
    char device[64];              /* of stage 0, as the stage says */
    stats tokens_per_s;
    double bytes_per_token;       /* tg; 0 for pp */
    double busy_share[STAGES_MAX];/* of the measured time, inside the stage's own layers and head */
} bench_test;

typedef struct {
    char model[BENCH_NAME_BYTES];
    uint64_t weights_bytes;       /* of all tensors, once */
    bandwidth bandwidth;
    uint32_t n_tests;
    bench_test *test;             /* [n_tests], owned */
} bench_result;

/* Output as it comes: called with t NULL when the bandwidth is known, then when a test has
 * ended. */
typedef void (*bench_told)(void *ctx, const bench_result *r, const bench_test *t);

/* Measure all. ST_CONTEXT_FULL: -p, -n or --depth beyond the context; otherwise as pipeline_open
 * and session_prime. bench_free in any case. */
MUST_USE status bench_run(bench_result *out, const bench_request *q, bench_told told, void *ctx,
                          errmsg *e);
void bench_free(bench_result *r);

/* --- bench_common.c: what all measurements share ---------------------------------------------- */

/* The person's doors with n_stages: cuts that were named for another number do not apply, devices
 * are dealt out in turn. */
doors bench_doors(const bench_request *q, uint32_t n_stages);

/* What stages have counted once n_rows rows went through each (a stage counts just after it has
 * sent a result), or a second has passed. */
void bench_counted(const pipeline *p, uint64_t n_rows, stage_snapshot out[STAGES_MAX]);

/* Show the request's model to `look`, before anything is started. Errors as options_open_model,
 * model_read and look's. */
typedef status (*bench_look)(void *ctx, const model_desc *m, errmsg *e);
MUST_USE status bench_look_at_model(const bench_request *q, bench_look look, void *ctx, errmsg *e);

/* The file's name without its folders, its end if it is long. */
void bench_model_name(char out[BENCH_NAME_BYTES], const char *path);

/* "1,3" between the layers 0 and n; "-" for one stage. */
#define BENCH_CUTS_BYTES 512u
void bench_cuts_text(char out[BENCH_CUTS_BYTES], const fence *f, char separator);

/* Bytes that one token at `position` must read, see above. */
double bench_token_bytes(const model_desc *m, dtype kv_type, double position);

typedef enum { BENCH_MD, BENCH_CSV, BENCH_JSON } bench_format;

/* Before the tests, after each, after all; to stdout. */
void bench_print_begin(bench_format f, const bench_result *r);
void bench_print_test(bench_format f, const bench_result *r, const bench_test *t);
void bench_print_end(bench_format f, const bench_result *r);

#endif
