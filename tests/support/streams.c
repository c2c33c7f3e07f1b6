#include "tests/support/streams.h"

#include "tests/support/small_run.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 4u
#define BLOCK_BYTES (LAYERS * 2 * 64 * 2 * 16 * 2) /* K and V, 64 positions, 2 heads of 16, f16 */

static char dir[32], model_path[64];

void streams_open(void)
{
    strcpy(dir, "/tmp/memra-t.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    llama_spec spec = llama_spec_default();
    spec.n_layers = LAYERS;
    spec.n_ctx = STREAMS_CTX;
    spec.n_vocab = STREAMS_VOCAB;
    small_model(model_path, &spec);
}

void streams_close(void)
{
    unlink(model_path);
    assert_int_equal(rmdir(dir), 0); /* not empty: a run directory was left behind */
}

pipeline *streams_pipeline(const doors *d, uint32_t n_sessions, uint32_t kv_blocks)
{
    pipeline_options o = small_options(model_path, dir, d);
    o.plan.n_sessions = n_sessions;
    o.plan.n_ctx = STREAMS_CTX;
    o.plan.kv_bytes = (uint64_t)kv_blocks * BLOCK_BYTES;
    o.restarts = RESTARTS_MAX;
    o.restart_window_ms = 1000;
    pipeline *p = small_open(&o);
    if (kv_blocks != 0) assert_int_equal(pipeline_plan(p)->n_blocks[KV_CLASS_GLOBAL], kv_blocks);
    return p;
}

void streams_make(stream *out, pipeline *p, uint32_t family, uint32_t n_shared, uint32_t n_prompt,
                  uint64_t seed)
{
    errmsg e = {0};
    session *s;
    *out = (stream){.sampler = sampler_default(), .n_prompt = n_prompt};
    out->sampler.temperature = 0.9f; /* a run of greedy tokens soon repeats itself */
    out->sampler.repetition_penalty = 1.1f;
    out->sampler.penalty_last_n = 16;
    out->sampler.seed = seed;
    for (uint32_t i = 0; i < n_prompt; i++) {
        uint64_t x = i < n_shared ? family * 1000003u + i : (seed + 77) * 7919u + i * 31;
        out->prompt[i] = (uint32_t)((x * 2654435761u >> 7) % STREAMS_VOCAB);
    }
    assert_int_equal(session_open(p, &out->sampler, &s, &e), ST_OK);
    assert_int_equal(session_prime(s, out->prompt, n_prompt, NULL, &out->truth[0], &e), ST_OK);
    for (out->n_truth = 1; out->n_truth + n_prompt <= STREAMS_CTX; out->n_truth++) {
        uint32_t *next = &out->truth[out->n_truth];
        assert_int_equal(session_step(s, next[-1], NULL, next, &e), ST_OK);
    }
    session_drop(s);
}
