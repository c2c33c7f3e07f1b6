#include "tests/support/small_run.h"

#include "tests/support/ok.h"

#include <stdio.h>
#include <stdlib.h>

void small_model(const char *path, const llama_spec *spec)
{
    gguf_build *b = gguf_build_llama(spec);
    gguf_build_file(b, path);
    gguf_build_free(b);
}

void small_model_arch(char path[SMALL_PATH_BYTES], const char *dir, const char *arch, uint32_t n_ctx,
                      uint32_t n_vocab)
{
    llama_spec spec = llama_spec_arch(arch);
    snprintf(path, SMALL_PATH_BYTES, "%s/%s.gguf", dir, arch);
    if (spec.n_layers < 4) spec.n_layers = 4;
    spec.n_ctx = n_ctx;
    spec.n_vocab = n_vocab;
    small_model(path, &spec);
}

const char *small_stage_program(void)
{
    static char path[4096];
    const char *build = getenv("MEMRA_BUILD");
    snprintf(path, sizeof path, "%s/bin/memra-stage", build != NULL ? build : MEMRA_BINARY_DIR);
    return path;
}

pipeline_options small_options(const char *path, const char *run_dir, const doors *d)
{
    pipeline_options o = pipeline_options_default(path, d);
    o.stage_program = small_stage_program();
    o.run_dir = run_dir;
    o.plan.kv_type = DT_F16;
    o.n_threads = 1;
    return o;
}

pipeline *small_open(const pipeline_options *o)
{
    errmsg e = {0};
    pipeline *p;
    OK(pipeline_open(&p, o, NULL, &e));
    return p;
}

session *small_session(pipeline *p)
{
    sampler_params greedy = sampler_default();
    errmsg e = {0};
    session *s;
    OK(session_open(p, &greedy, &s, &e));
    return s;
}

void small_steps(session *s, uint32_t *drawn, uint32_t n)
{
    errmsg e = {0};
    for (uint32_t k = 0; k < n; k++) OK(session_step(s, drawn[k], NULL, &drawn[k + 1], &e));
}
