/* The plan against what the stages then use, with a context that is full: within 5 % for each and
 * for all together. Use is what /proc says: resident pages of the mapped weights, anonymous memory,
 * and the stage's share of code. Real models are looked at when they are in the cache. */
#include "tests/support/tap.h"

#include "common/boundary.h"
#include "coordinator/pipeline.h"
#include "coordinator/shape/shape.h"
#include "tests/support/memory_use.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/memra-m.XXXXXX";

/* Fill the context: every position, in the longest chunks, logits of every row, a token drawn. */
static void fill(pipeline *p)
{
    const plan *planned = pipeline_plan(p);
    const uint32_t n_vocab = pipeline_model(p)->n_vocab;
    sampler_params how = sampler_default();
    how.temperature = 0.8f;
    how.top_k = 40;
    how.top_p = 0.9f;
    how.repetition_penalty = 1.1f;
    how.penalty_last_n = 64;
    errmsg e = {0};
    session *s;
    uint32_t next, n = planned->n_ctx - 17;
    uint32_t *tokens = calloc(n, sizeof *tokens);
    float *logits = calloc((size_t)16 * n_vocab, sizeof *logits);
    assert_true(tokens != NULL && logits != NULL);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i * 37 % n_vocab;
    /* Chunks of the planned length, so that all their memory is used. */
    step_doors whole = doors_default().step;
    whole.prime_chunk = planned->rows_max;
    if (pipeline_set_step_doors(p, &whole, &e) != ST_OK) fail_msg("%s", e.text);
    if (session_open(p, &how, &s, &e) != ST_OK) fail_msg("%s", e.text);
    if (session_prime(s, tokens, n, NULL, &next, &e) != ST_OK) fail_msg("%s", e.text);
    if (session_prime(s, tokens, 16, logits, &next, &e) != ST_OK) fail_msg("%s", e.text);
    if (session_step(s, next, NULL, &next, &e) != ST_OK) fail_msg("%s", e.text);
    session_drop(s);
    free(tokens);
    free(logits);
}

/* How much of shared code counts as a process's own, 1 to 3 MB, depends on who else runs on the
 * machine: of a model of a few megabytes that is more than 5 %. */
#define CODE_BYTES 2500000.0

static void near(const char *what, uint32_t n_processes, uint64_t planned, uint64_t used)
{
    double apart = (double)used - (double)planned, off = 100.0 * apart / (double)planned;
    printf("# %-24s planned %9.2f MB, used %9.2f MB (%+.1f %%)\n", what, (double)planned / 1e6,
           (double)used / 1e6, off);
    if (fabs(off) > 5.0 && fabs(apart) > n_processes * CODE_BYTES)
        fail_msg("%s: %.1f %% off", what, off);
}

/* Weights, KV, scratch, host memory and the process itself per stage. What is shared counts for all
 * together, with our own part of it; of a boundary's banks one waits, untouched, for the next
 * epoch. */
static void look(pipeline *p, const char *model)
{
    const plan *planned = pipeline_plan(p);
    uint64_t all_planned = 0, all_used = 0;
    for (uint32_t s = 0; s < planned->cuts.n_stages; s++) {
        const stage_plan *sp = &planned->stage[s];
        stage_snapshot now;
        memory_use u;
        char what[32];
        pipeline_stage(p, s, &now);
        assert_true(memory_use_read(&u, now.pid, model));
        uint64_t own = sp->kv_bytes + sp->scratch_bytes + sp->host_bytes + sp->process_bytes;
        snprintf(what, sizeof what, "stage %u", s);
        printf("# %s: weights %.2f of %.2f, own %.2f + code %.2f of %.2f, shared %.2f MB\n", what,
               (double)u.weights / 1e6, (double)sp->weights_bytes / 1e6, (double)u.own / 1e6,
               (double)u.code / 1e6, (double)own / 1e6, (double)u.shared / 1e6);
        near(what, 1, sp->weights_bytes + own, u.weights + u.own + u.code);
        all_planned += sp->weights_bytes + own + sp->slots_bytes / BOUNDARY_BANKS;
        all_used += u.weights + u.own + u.code + u.shared;
    }
    memory_use ours;
    assert_true(memory_use_read(&ours, (int)getpid(), model));
    near("all, and what they share", planned->cuts.n_stages,
         all_planned + planned->readback_bytes + planned->run_block_bytes, all_used + ours.shared);
}

typedef struct {
    const char *shape, *type; /* NULL: a file */
    const char *path;
    uint32_t n_stages, n_ctx; /* n_ctx 0: default */
} memory_case;

static void check(const memory_case *c)
{
    errmsg e = {0};
    shape s;
    doors d = doors_default();
    d.n_stages = c->n_stages;
    pipeline_options o = pipeline_options_default(c->path, &d);
    if (c->shape != NULL) {
        if (shape_parse(&s, c->shape, c->type, &e) != ST_OK) fail_msg("%s", e.text);
        if (shape_open(&o.model_fd, &s, &e) != ST_OK) fail_msg("%s", e.text);
        if (shape_fill(o.model_fd, &s, 0, NULL, &e) != ST_OK) fail_msg("%s", e.text);
        o.model_path = s.name;
    }
    o.stage_program = MEMRA_BINARY_DIR "/bin/memra-stage";
    o.run_dir = dir;
    o.plan.kv_type = DT_F16;
    o.plan.n_ctx = c->n_ctx;
    o.hang_timeout_ms = 60000; /* a machine may be busy */
    pipeline *p;
    if (pipeline_open(&p, &o, NULL, &e) != ST_OK) fail_msg("%s", e.text);
    printf("# %s, %u stages, context %u\n", o.model_path, c->n_stages, pipeline_plan(p)->n_ctx);
    fill(p);
    look(p, c->shape != NULL ? "/memfd:memra-pp-shape" : strrchr(c->path, '/'));
    pipeline_close(p);
    if (c->shape != NULL) close(o.model_fd);
}

static void the_demo_model(void **state)
{
    (void)state;
    const char *demo = MEMRA_SOURCE_DIR "/launch/demo/demo.gguf";
    check(&(memory_case){.path = demo, .n_stages = 1});
    check(&(memory_case){.path = demo, .n_stages = 2});
    check(&(memory_case){.path = demo, .n_stages = 4});
}

#define SMALL     "layers=6,embd=512,ff=1536,heads=8,kv-heads=4,vocab=32000"
#define LARGE_VOC "layers=2,embd=256,ff=768,heads=4,vocab=128256,tied=1"

static void shapes(void **state)
{
    (void)state;
    check(&(memory_case){.shape = SMALL, .type = "q8_0", .n_stages = 1, .n_ctx = 512});
    check(&(memory_case){.shape = SMALL, .type = "f32", .n_stages = 3, .n_ctx = 512});
    check(&(memory_case){.shape = LARGE_VOC, .type = "f16", .n_stages = 2, .n_ctx = 1024});
    check(&(memory_case){.shape = "1b,layers=3", .type = "q8_0", .n_stages = 2, .n_ctx = 512});
}

/* Where launch/get-model.sh puts them. */
static void real_models(void **state)
{
    (void)state;
    static const char *const files[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                        "gemma-3-270m-q4_k_m.gguf"};
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        if (cache != NULL && cache[0] != '\0')
            snprintf(path, sizeof path, "%s/memra-pp/%s", cache, files[i]);
        else
            snprintf(path, sizeof path, "%s/.cache/memra-pp/%s", home != NULL ? home : "",
                     files[i]);
        if (access(path, R_OK) != 0) {
            printf("# skipped: %s is not in the cache\n", files[i]);
            continue;
        }
        check(&(memory_case){.path = path, .n_stages = 1, .n_ctx = 640});
        check(&(memory_case){.path = path, .n_stages = 2, .n_ctx = 640});
    }
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("1..0 # SKIP a sanitizer's own memory is not planned\n");
    return 0;
#endif
    tap_begin(300);
    if (mkdtemp(dir) == NULL) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model),
        cmocka_unit_test(shapes),
        cmocka_unit_test(real_models),
    };
    int n = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return n;
}
