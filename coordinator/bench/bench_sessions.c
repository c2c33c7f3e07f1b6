#include "coordinator/bench/bench_sessions_impl.h"

#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/commands/random_tokens.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/machine/placement.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define WARM_TOKENS 32u
#define BESIDE_TOKENS 256u /* a stream beside a prompt may draw so many at least */
#define NS_OF_US 1000u

static uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * NS_OF_US;
}

static uint32_t largest(const bench_list *l)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i] > most) most = l->at[i];
    return most;
}

/* --- one session ------------------------------------------------------------------------------ */

static void *prime(void *stream_)
{
    stream *x = stream_;
    x->result = session_prime(x->s, x->tokens, x->n_tokens, NULL, &x->next, &x->why);
    x->first_ns = now_ns();
    return NULL;
}

/* From the engine thread, for each token; once more when it ends. */
void bench_stream_more(void *stream_)
{
    stream *x = stream_;
    if (x->n_told < x->n_max) x->told_ns[x->n_told++] = now_ns();
}

/* --- one phase -------------------------------------------------------------------------------- */

typedef struct {
    uint64_t wall_ns, cpu_ns;
    uint64_t busy_ns[STAGES_MAX], starved_ns[STAGES_MAX], blocked_ns[STAGES_MAX];
} phase;

static void phase_begin(sessions_state *b)
{
    bench_counted(b->p, b->n_rows, b->before);
    b->begin_cpu_ns = cpu_ns();
    b->begin_ns = now_ns();
}

/* n_rows more rows were walked; adds to *out. */
static void phase_end(sessions_state *b, uint64_t n_rows, phase *out)
{
    stage_snapshot after[STAGES_MAX];
    out->wall_ns += now_ns() - b->begin_ns;
    out->cpu_ns += cpu_ns() - b->begin_cpu_ns;
    b->n_rows += n_rows;
    bench_counted(b->p, b->n_rows, after);
    for (uint32_t s = 0; s < pipeline_plan(b->p)->cuts.n_stages; s++) {
        out->busy_ns[s] += after[s].busy_ns - b->before[s].busy_ns;
        out->starved_ns[s] += after[s].wait_in_ns - b->before[s].wait_in_ns;
        out->blocked_ns[s] += after[s].wait_out_ns - b->before[s].wait_out_ns;
    }
}

static void shares_of(stage_shares *out, const phase *x, uint32_t n_stages)
{
    double wall = (double)(x->wall_ns + 1);
    for (uint32_t s = 0; s < n_stages; s++) {
        out->busy[s] = (double)x->busy_ns[s] / wall;
        out->starved[s] = (double)x->starved_ns[s] / wall;
        out->blocked[s] = (double)x->blocked_ns[s] / wall;
    }
}

static status prime_all(sessions_state *b, uint32_t n, phase *out, errmsg *e)
{
    status st = ST_OK;
    uint32_t n_started = 0;
    phase_begin(b);
    for (; n_started < n; n_started++) {
        stream *x = &b->stream[n_started];
        if (pthread_create(&x->thread, NULL, prime, x) == 0) continue;
        st = errmsg_set(e, ST_RESOURCES, "cannot start a thread for each of %u session%s", n,
                        plural(n));
        break;
    }
    for (uint32_t i = 0; i < n_started; i++) {
        stream *x = &b->stream[i];
        pthread_join(x->thread, NULL);
        if (st == ST_OK && x->result != ST_OK) st = errmsg_set(e, x->result, "%s", x->why.text);
    }
    phase_end(b, (uint64_t)n * b->q->n_prompt, out);
    return st;
}

static status generate_all(sessions_state *b, uint32_t n, uint32_t n_tokens, phase *out, errmsg *e)
{
    status st = ST_OK;
    uint32_t n_begun = 0;
    errmsg ignored = {0};
    phase_begin(b);
    for (; st == ST_OK && n_begun < n; n_begun += st == ST_OK) {
        stream *x = &b->stream[n_begun];
        const generate_limits limits = {
            .n_max = n_tokens, .n_draft = b->q->n_draft, .on_more = bench_stream_more, .ctx = x};
        x->n_told = 0;
        x->n_max = n_tokens;
        st = session_generate(x->s, x->next, &limits, &x->g, e);
    }
    for (uint32_t i = 0; i < n_begun; i++) {
        uint32_t token = 0;
        while (st == ST_OK && token != TOKEN_NONE) st = generation_next(b->stream[i].g, &token, e);
    }
    phase_end(b, (uint64_t)n * n_tokens, out);
    for (uint32_t i = 0; i < n_begun; i++) {
        status closed = generation_close(b->stream[i].g, st == ST_OK ? e : &ignored);
        if (st == ST_OK) st = closed;
    }
    return st;
}

/* --- one test --------------------------------------------------------------------------------- */

/* The waits of n sessions; phases begun at these times. */
static void keep_waits(sessions_state *b, uint32_t n, uint64_t prime_ns, uint64_t generate_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        const stream *x = &b->stream[i];
        b->first_ms[b->n_first++] = (double)(x->first_ns - prime_ns) / NS_PER_MS;
        b->n_token += waits_of(b->token_ms + b->n_token, x->told_ns, x->n_told, generate_ns);
    }
}

/* What repetitions of a test add up to. */
typedef struct {
    phase prompt, generation;
    beside_test beside;
} sums;

/* Once through the test. */
static status once(sessions_state *b, uint32_t n, uint32_t n_tokens, sums *to, errmsg *e)
{
    const bench_request *q = b->q;
    sampler_params greedy = sampler_default();
    uint32_t n_open = 0;
    status st = ST_OK;
    for (; n_open < n; n_open++) {
        stream *x = &b->stream[n_open];
        TRY_DONE(st, session_open(b->p, &greedy, &x->s, e));
        x->tokens = b->tokens + (size_t)n_open * q->n_prompt;
        x->n_tokens = q->n_prompt;
    }
    TRY_DONE(st, prime_all(b, n, &to->prompt, e));
    uint64_t prime_ns = b->begin_ns;
    TRY_DONE(st, generate_all(b, n, n_tokens, &to->generation, e));
    keep_waits(b, n, prime_ns, b->begin_ns);
    if (q->n_beside > 0) TRY_DONE(st, bench_beside_once(b, n, &to->beside, e));
done:
    for (uint32_t i = 0; i < n_open; i++) session_drop(b->stream[i].s);
    return st;
}

static status test_run(sessions_state *b, sessions_test *t, errmsg *e)
{
    const bench_request *q = b->q;
    const uint32_t n = t->n_sessions, n_stages = pipeline_plan(b->p)->cuts.n_stages;
    step_doors with = q->common->doors.step;
    sums warm = {0}, all = {0};
    stage_snapshot first;
    t->plan = *pipeline_plan(b->p);
    pipeline_stage(b->p, 0, &first);
    memcpy(t->device, first.device, sizeof t->device);
    with.batch_rows = t->batch_rows;
    TRY(pipeline_set_step_doors(b->p, &with, e));
    b->n_first = b->n_token = b->n_beside_ms = 0;
    TRY(once(b, n, q->n_generate < WARM_TOKENS ? q->n_generate : WARM_TOKENS, &warm, e));
    b->n_first = b->n_token = b->n_beside_ms = 0;
    for (uint32_t i = 0; i < q->n_repeat; i++) {
        uint64_t prompt_ns = all.prompt.wall_ns, generation_ns = all.generation.wall_ns;
        TRY(once(b, n, q->n_generate, &all, e));
        prompt_ns = all.prompt.wall_ns - prompt_ns + 1;
        generation_ns = all.generation.wall_ns - generation_ns + 1;
        b->prompt_per_s[i] = (double)n * q->n_prompt * NS_PER_S / (double)prompt_ns;
        b->tokens_per_s[i] = (double)n * q->n_generate * NS_PER_S / (double)generation_ns;
    }
    t->tokens_per_s = stats_of(b->tokens_per_s, q->n_repeat);
    t->prompt_tokens_per_s = stats_of(b->prompt_per_s, q->n_repeat);
    t->first_ms = spread_of(b->first_ms, b->n_first);
    t->token_ms = spread_of(b->token_ms, b->n_token);
    shares_of(&t->prompt, &all.prompt, n_stages);
    shares_of(&t->generation, &all.generation, n_stages);
    t->coordinator_cores = (double)all.generation.cpu_ns / (double)(all.generation.wall_ns + 1);
    t->beside = all.beside;
    if (q->n_beside > 0) bench_beside_end(b, &t->beside, q->n_repeat);
    return ST_OK;
}

/* --- before anything is started --------------------------------------------------------------- */

/* Positions that a test takes of a session's context. */
static uint64_t positions(const bench_request *q)
{
    uint64_t n = (uint64_t)q->n_prompt + q->n_generate;
    if (q->n_beside > 0) n += BESIDE_TOKENS;
    return n > q->n_beside ? n : q->n_beside;
}

static plan_request plan_of(const bench_request *q, uint32_t n_sessions)
{
    plan_request r = q->common->plan;
    r.n_sessions = n_sessions + (q->n_beside > 0);
    if (r.n_ctx == 0) r.n_ctx = (uint32_t)positions(q);
    return r;
}

typedef struct {
    const bench_request *q;
    const model_desc *m;
    doors doors;                 /* resolved */
    gpu_list gpus;
} site;

/* n_sessions have a plan that fits here, with KV for all of them at once. */
static status fits(const site *x, uint32_t n_sessions, errmsg *e)
{
    const model_desc *m = x->m;
    plan_request r = plan_of(x->q, n_sessions);
    plan p;
    TRY(placement_plan(&p, m, &x->doors, &r, e));
    uint64_t n_blocks = (uint64_t)r.n_sessions * plan_blocks_per_ctx(p.n_ctx);
    if (p.n_blocks[KV_CLASS_GLOBAL] < n_blocks &&
        model_n_layers_of(m, LAYER_GLOBAL, 0, m->n_layers) > 0) {
        return errmsg_set(e, ST_RESOURCES, "--kv-bytes %llu makes %u KV block%s and they need %llu",
                          (unsigned long long)r.kv_bytes, p.n_blocks[KV_CLASS_GLOBAL],
                          plural(p.n_blocks[KV_CLASS_GLOBAL]),
                          (unsigned long long)n_blocks);
    }
    TRY(placement_fits(&p, &x->gpus, e));
    return plan_fits(&p, m, inventory_memory_available(), e);
}

/* So many sessions fit, fewer than too_many; 0: not even one. */
static uint32_t most_that_fit(const site *x, uint32_t too_many)
{
    uint32_t most = 0;
    while (too_many - most > 1) {
        uint32_t middle = most + (too_many - most) / 2;
        errmsg ignored = {0};
        if (fits(x, middle, &ignored) == ST_OK)
            most = middle;
        else
            too_many = middle;
    }
    return most;
}

static status check_all(void *request, const model_desc *m, errmsg *e)
{
    const bench_request *q = request;
    const uint32_t asked = largest(&q->sessions);
    if (q->common->plan.n_ctx > 0 && positions(q) > q->common->plan.n_ctx) {
        return errmsg_set(
            e, ST_CONTEXT_FULL,
            "-p %u and -n %u%s take %llu positions, which do not fit into a context of %u; lower "
            "them or raise --ctx",
            q->n_prompt, q->n_generate, q->n_beside > 0 ? ", --beside," : "",
            (unsigned long long)positions(q), q->common->plan.n_ctx);
    }
    for (uint32_t i = 0; i < q->stages.n; i++) {
        site x = {.q = q, .m = m, .doors = bench_doors(q, q->stages.at[i])};
        errmsg why = {0};
        TRY(placement_resolve(&x.doors, &x.gpus, q->common->stage_program, &interrupted, e));
        status s = fits(&x, asked, &why);
        if (s == ST_OK) continue;
        uint32_t most = s == ST_RESOURCES ? most_that_fit(&x, asked) : 0;
        if (most == 0) return errmsg_set(e, s, "%s", why.text);
        return errmsg_set(e, s,
                          "--sessions %u: not with %u positions each, at most %u would fit: %s",
                          asked, plan_of(q, asked).n_ctx, most, why.text);
    }
    return ST_OK;
}

/* --- all
 * -----------------------------------------------------------------------------------------------
 */

static status books_open(sessions_state *b, const bench_request *q)
{
    const uint64_t most = largest(&q->sessions), waits = most * q->n_repeat;
    const plan_request r = plan_of(q, 1);
    b->n_told_max = q->n_beside > 0 ? r.n_ctx - q->n_prompt - q->n_generate : q->n_generate;
    if (b->n_told_max < q->n_generate) b->n_told_max = q->n_generate;
    b->beside_ms_room = q->n_beside > 0 ? (waits + most) * b->n_told_max : 1;
    b->beside = malloc((q->n_beside + 1u) * sizeof *b->beside);
    b->beside_ms = malloc(b->beside_ms_room * sizeof *b->beside_ms);
    b->stream = calloc(most, sizeof *b->stream);
    b->tokens = malloc(most * q->n_prompt * sizeof *b->tokens);
    b->first_ms = malloc((waits + most) * sizeof *b->first_ms);
    b->token_ms = malloc((waits + most) * q->n_generate * sizeof *b->token_ms);
    b->tokens_per_s = malloc(q->n_repeat * sizeof *b->tokens_per_s);
    b->prompt_per_s = malloc(q->n_repeat * sizeof *b->prompt_per_s);
    bool ok = b->stream != NULL && b->tokens != NULL && b->first_ms != NULL &&
              b->token_ms != NULL && b->tokens_per_s != NULL && b->prompt_per_s != NULL &&
              b->beside != NULL && b->beside_ms != NULL;
    for (uint64_t i = 0; ok && i < most; i++) {
        b->stream[i].told_ns = malloc(b->n_told_max * sizeof *b->stream[i].told_ns);
        ok = b->stream[i].told_ns != NULL;
    }
    return ok ? ST_OK : ST_RESOURCES;
}

static void books_close(sessions_state *b)
{
    for (uint32_t i = 0; b->stream != NULL && i < largest(&b->q->sessions); i++)
        free(b->stream[i].told_ns);
    free(b->stream);
    free(b->tokens);
    free(b->first_ms);
    free(b->token_ms);
    free(b->beside);
    free(b->beside_ms);
    free(b->tokens_per_s);
    free(b->prompt_per_s);
}

static status config_run(sessions_result *r, sessions_state *b, uint32_t n_stages,
                         sessions_told told, void *ctx, errmsg *e)
{
    const bench_request *q = b->q;
    const uint32_t most = largest(&q->sessions);
    doors d = bench_doors(q, n_stages);
    pipeline_options o = options_pipeline(q->common);
    o.doors = &d;
    o.plan = plan_of(q, most);
    TRY(pipeline_open(&b->p, &o, &interrupted, e));
    status s = ST_OK;
    b->n_rows = 0;
    for (uint32_t i = 0; i < most; i++)
        random_tokens(b->tokens + (size_t)i * q->n_prompt, q->n_prompt,
                      pipeline_model(b->p)->n_vocab, q->seed + i);
    random_tokens(b->beside, q->n_beside, pipeline_model(b->p)->n_vocab, q->seed + most);
    for (uint32_t i = 0; i < q->batch.n * q->sessions.n; i++) {
        sessions_test *t = &r->test[r->n_tests];
        *t = (sessions_test){.n_sessions = q->sessions.at[i % q->sessions.n],
                             .batch_rows = q->batch.at[i / q->sessions.n]};
        TRY_DONE(s, test_run(b, t, e));
        r->n_tests++;
        told(ctx, r, t);
    }
done:
    pipeline_close(b->p);
    return s;
}

status bench_sessions_run(sessions_result *out, const bench_request *q, sessions_told told,
                          void *ctx, errmsg *e)
{
    sessions_state b = {.q = q};
    status s = ST_OK;
    *out = (sessions_result){.n_prompt = q->n_prompt,
                             .n_generate = q->n_generate,
                             .n_repeat = q->n_repeat,
                             .n_beside = q->n_beside};
    bench_model_name(out->model, q->common->model);
    TRY_DONE(s, bench_look_at_model(q, check_all, (void *)q, e));
    out->test = calloc((size_t)q->stages.n * q->batch.n * q->sessions.n, sizeof *out->test);
    if (out->test == NULL || books_open(&b, q) != ST_OK) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the waits of %u session%s",
                       largest(&q->sessions), plural(largest(&q->sessions)));
        goto done;
    }
    TRY_DONE(s, shape_ready(q->random, q->common, e));
    told(ctx, out, NULL);
    for (uint32_t i = 0; i < q->stages.n; i++)
        TRY_DONE(s, config_run(out, &b, q->stages.at[i], told, ctx, e));
done:
    books_close(&b);
    return s;
}

void bench_sessions_free(sessions_result *r)
{
    free(r->test);
    r->test = NULL;
}
