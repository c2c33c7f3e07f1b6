#include "tests/support/streams.h"

#include "tests/support/small_run.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 4u
#define WINDOW_CHUNK 40u

static char dir[32], model_path[64];
static bool windows;

static void open_spec(llama_spec spec)
{
    strcpy(dir, "/tmp/memra-t.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    spec.n_ctx = STREAMS_CTX;
    spec.n_vocab = STREAMS_VOCAB;
    windows = spec.window > 0;
    small_model(model_path, &spec);
}

void streams_open(void)
{
    llama_spec spec = llama_spec_default();
    spec.n_layers = LAYERS;
    open_spec(spec);
}

void streams_open_arch(const char *arch)
{
    open_spec(llama_spec_arch(arch));
}

void streams_close(void)
{
    unlink(model_path);
    assert_int_equal(rmdir(dir), 0); /* not empty: a run directory was left behind */
}

/* kv_blocks of all that the sessions would fill, in bytes. */
static uint64_t bytes_of(const pipeline_options *o, uint32_t kv_blocks)
{
    errmsg e = {0};
    gguf *file;
    plan p;
    uint64_t bytes = 0;
    model_desc *m = malloc(sizeof *m);
    assert_non_null(m);
    assert_int_equal(gguf_open(&file, o->model_path, &e), ST_OK);
    assert_int_equal(model_read(m, file, &e), ST_OK);
    assert_int_equal(plan_make(&p, m, o->doors, &o->plan, &e), ST_OK);
    for (uint32_t s = 0; s < p.cuts.n_stages; s++) bytes += p.stage[s].kv_bytes;
    gguf_close(file);
    free(m);
    return bytes * kv_blocks / p.n_blocks[KV_CLASS_GLOBAL];
}

static pipeline *open_pipeline(const doors *d, uint32_t n_sessions, uint32_t kv_blocks,
                               uint64_t journal_bytes)
{
    pipeline_options o = small_options(model_path, dir, d);
    o.unsplit = true;
    o.plan.n_sessions = n_sessions;
    o.plan.n_ctx = STREAMS_CTX;
    o.plan.journal_bytes = journal_bytes;
    if (windows) o.plan.n_chunk = WINDOW_CHUNK;
    if (kv_blocks != 0) o.plan.kv_bytes = bytes_of(&o, kv_blocks);
    o.restarts = RESTARTS_MAX;
    o.restart_window_ms = 1000;
    pipeline *p = small_open(&o);
    if (kv_blocks != 0)
        assert_in_range(pipeline_plan(p)->n_blocks[KV_CLASS_GLOBAL], kv_blocks - 1, kv_blocks);
    return p;
}

pipeline *streams_pipeline(const doors *d, uint32_t n_sessions, uint32_t kv_blocks)
{
    return open_pipeline(d, n_sessions, kv_blocks, 0);
}

pipeline *streams_pipeline_journals(const doors *d, uint32_t n_sessions, uint32_t kv_blocks)
{
    return open_pipeline(d, n_sessions, kv_blocks, PLAN_JOURNAL_ALL);
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
