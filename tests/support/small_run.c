#include "tests/support/small_run.h"

#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>

void small_model(const char *path, const llama_spec *spec)
{
    gguf_build *b = gguf_build_llama(spec);
    gguf_build_file(b, path);
    gguf_build_free(b);
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
    if (pipeline_open(&p, o, NULL, &e) != ST_OK) fail_msg("%s", e.text);
    return p;
}

session *small_session(pipeline *p)
{
    sampler_params greedy = sampler_default();
    errmsg e = {0};
    session *s;
    if (session_open(p, &greedy, &s, &e) != ST_OK) fail_msg("%s", e.text);
    return s;
}
