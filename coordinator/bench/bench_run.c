#include "coordinator/bench/bench.h"

#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/commands/random_tokens.h"

#include <stdlib.h>
#include <string.h>

static double layer_bytes(const model_desc *m)
{
    double bytes = 0;
    for (uint32_t il = 0; il < m->n_layers; il++) bytes += (double)model_layer_bytes(m, il);
    return bytes;
}

static double tensor_bytes(const tensor_ref *t)
{
    return t->t == NULL ? 0 : (double)t->t->bytes;
}

double bench_token_bytes(const model_desc *m, dtype kv_type, double position)
{
    double kv_row = 2.0 * (double)dtype_bytes(kv_type, (uint64_t)m->n_kv_heads * m->n_head);
    return layer_bytes(m) + tensor_bytes(&m->output_norm) + tensor_bytes(&m->output) +
           tensor_bytes(&m->token_embd) / m->n_vocab + (position + 1) * kv_row * m->n_layers;
}

static uint64_t weights_once(const model_desc *m)
{
    double bytes = layer_bytes(m) + tensor_bytes(&m->output_norm) + tensor_bytes(&m->token_embd);
    return (uint64_t)(m->tied ? bytes : bytes + tensor_bytes(&m->output));
}

/* --- one test --------------------------------------------------------------------------------- */

typedef struct {
    const bench_request *q;
    pipeline *p;
    uint32_t *tokens, n_random; /* the prompt, or what comes before generation */
    double *sample;        /* [n_repeat] */
    uint64_t n_rows;       /* asked of this pipeline so far */
    uint64_t wall_ns;      /* of the measured parts */
    uint64_t busy_ns[STAGES_MAX];
} bench_state;

static void busy_now(const bench_state *b, uint64_t out[STAGES_MAX])
{
    stage_snapshot snap[STAGES_MAX];
    bench_counted(b->p, b->n_rows, snap);
    for (uint32_t s = 0; s < pipeline_plan(b->p)->cuts.n_stages; s++) out[s] = snap[s].busy_ns;
}

static status generate(session *s, const bench_request *q, uint32_t n, uint32_t token, errmsg *e)
{
    generation *g;
    errmsg ignored = {0};
    TRY(session_generate(s, token, &(generate_limits){.n_max = n, .n_draft = q->n_draft}, &g, e));
    status st = ST_OK;
    while (st == ST_OK && token != TOKEN_NONE) st = generation_next(g, &token, e);
    status closed = generation_close(g, st == ST_OK ? e : &ignored);
    return st == ST_OK ? closed : st;
}

/* Once through the test; *ns: its measured part. */
static status once(bench_state *b, const bench_test *t, uint64_t *ns, errmsg *e)
{
    sampler_params greedy = sampler_default();
    session *s = NULL;
    uint32_t next = b->tokens[0];
    uint64_t busy[STAGES_MAX], busy_after[STAGES_MAX];
    status st = ST_OK;
    TRY(session_open(b->p, &greedy, &s, e));
    if (t->depth > 0) TRY_DONE(st, session_prime(s, b->tokens, t->depth, NULL, &next, e));
    b->n_rows += t->depth;
    busy_now(b, busy);
    uint64_t begin = now_ns();
    if (t->generation)
        TRY_DONE(st, generate(s, b->q, t->n_tokens, next, e));
    else
        TRY_DONE(st, session_prime(s, b->tokens, t->n_tokens, NULL, &next, e));
    *ns = now_ns() - begin;
    b->n_rows += t->n_tokens;
    busy_now(b, busy_after);
    b->wall_ns += *ns;
    for (uint32_t i = 0; i < t->plan.cuts.n_stages; i++) b->busy_ns[i] += busy_after[i] - busy[i];
done:
    session_drop(s);
    return st;
}

static status test_run(bench_state *b, bench_test *t, errmsg *e)
{
    stage_snapshot snap;
    uint64_t ns;
    t->plan = *pipeline_plan(b->p);
    pipeline_stage(b->p, 0, &snap);
    memcpy(t->device, snap.device, sizeof t->device);
    TRY(once(b, t, &ns, e));
    b->wall_ns = 0;
    memset(b->busy_ns, 0, sizeof b->busy_ns);
    for (uint32_t i = 0; i < b->q->n_repeat; i++) {
        TRY(once(b, t, &ns, e));
        b->sample[i] = (double)t->n_tokens * (double)NS_PER_S / (double)(ns + 1);
    }
    t->tokens_per_s = stats_of(b->sample, b->q->n_repeat);
    for (uint32_t s = 0; s < t->plan.cuts.n_stages; s++)
        t->busy_share[s] = (double)b->busy_ns[s] / (double)(b->wall_ns + 1);
    if (t->generation) {
        double mean_position = t->depth + (t->n_tokens - 1) / 2.0;
        t->bytes_per_token =
            bench_token_bytes(pipeline_model(b->p), t->plan.kv_type, mean_position);
    }
    return ST_OK;
}

/* --- before anything is started --------------------------------------------------------------- */

static status check_context(const bench_request *q, uint32_t n_ctx, errmsg *e)
{
    if (q->n_prompt > n_ctx) {
        return errmsg_set(e, ST_CONTEXT_FULL,
                          "-p %u does not fit into a context of %u position%s; lower it or raise "
                          "--ctx",
                          q->n_prompt, n_ctx, plural(n_ctx));
    }
    if (q->n_generate > 0 && (uint64_t)q->depth + q->n_generate > n_ctx) {
        return errmsg_set(
            e, ST_CONTEXT_FULL,
            "-n %u after --depth %u does not fit into a context of %u position%s; lower them or "
            "raise --ctx",
            q->n_generate, q->depth, n_ctx, plural(n_ctx));
    }
    return ST_OK;
}

typedef struct {
    const bench_request *q;
    bench_result *r;
} checking;

/* Every number of stages has a plan, and the tests fit into its context. */
static status check_all(void *checking_, const model_desc *m, errmsg *e)
{
    const checking *c = checking_;
    c->r->weights_bytes = weights_once(m);
    for (uint32_t i = 0; i < c->q->stages.n; i++) {
        doors d = bench_doors(c->q, c->q->stages.at[i]);
        plan p;
        TRY(plan_make(&p, m, &d, &c->q->common->plan, e));
        TRY(check_context(c->q, p.n_ctx, e));
    }
    return ST_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static status config_run(bench_result *r, const bench_request *q, bench_state *b, uint32_t n_stages,
                         bench_told told, void *ctx, errmsg *e)
{
    doors d = bench_doors(q, n_stages);
    pipeline_options o = options_pipeline(q->common);
    o.doors = &d;
    TRY(pipeline_open(&b->p, &o, &interrupted, e));
    status s = ST_OK;
    b->n_rows = 0;
    random_tokens(b->tokens, b->n_random, pipeline_model(b->p)->n_vocab, q->seed);
    bench_test tests[2] = {{.n_tokens = q->n_prompt},
                           {.generation = true, .n_tokens = q->n_generate, .depth = q->depth}};
    for (uint32_t i = 0; i < 2 && s == ST_OK; i++) {
        if (tests[i].n_tokens == 0) continue;
        s = test_run(b, &tests[i], e);
        if (s != ST_OK) break;
        r->test[r->n_tests++] = tests[i];
        told(ctx, r, &tests[i]);
    }
    pipeline_close(b->p);
    return s;
}

status bench_run(bench_result *out, const bench_request *q, bench_told told, void *ctx, errmsg *e)
{
    bench_state b = {.q = q, .n_random = (q->n_prompt > q->depth ? q->n_prompt : q->depth) + 1};
    status s = ST_OK;
    *out = (bench_result){0};
    bench_model_name(out->model, q->common->model);
    out->test = calloc(2 * q->stages.n, sizeof *out->test);
    b.tokens = malloc((size_t)b.n_random * sizeof *b.tokens);
    b.sample = malloc(q->n_repeat * sizeof *b.sample);
    if (out->test == NULL || b.tokens == NULL || b.sample == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", b.n_random);
        goto done;
    }
    TRY_DONE(s, bench_look_at_model(q, check_all, &(checking){q, out}, e));
    TRY_DONE(s, shape_ready(q->random, q->common, e));
    TRY_DONE(s, bandwidth_measure(&out->bandwidth, 0, &interrupted, e));
    told(ctx, out, NULL);
    for (uint32_t i = 0; i < q->stages.n; i++)
        TRY_DONE(s, config_run(out, q, &b, q->stages.at[i], told, ctx, e));
done:
    free(b.tokens);
    free(b.sample);
    return s;
}

void bench_free(bench_result *r)
{
    free(r->test);
    r->test = NULL;
}
