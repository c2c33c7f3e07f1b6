/* spec: plain decode = speculative decode, at any depth, greedy and sampled.
 *
 * The work of a session: a prompt, gate_burst tokens that it draws by itself, then n_decode steps
 * whose logits are compared, for they read what is left in the KV cache. The reference steps token
 * by token through one stage. The arms, for every number of stages:
 *
 *   K=1, 2, 4, 8, greedy and sampled   one session; each step verifies up to K drafts
 *   K=4, sampled, unsplit              on the first stage alone (MEMRA_SPEC_PP=0, MEMRA_BATCH_PP=0)
 *   K=4, together                      both, and a plain one, each driven by a thread of its own
 *   K=4, by a model                    greedy and sampled together, drafted by the model that was
 *                                      named, or by this one again, in a pipeline of its own
 *   K=4, by a model that is killed     the same
 *
 * The drafts are the reference's tokens (or a model's), wrong at fixed places, so that some are
 * accepted and some are not, and an arm in which either did not happen is red; a model that drafts
 * for itself must have every other draft accepted. Counters must show that every stage walked the
 * steps that verified, and no rows but the tokens drawn and the drafts that were wrong. */
#include "coordinator/commands/random_tokens.h"
#include "coordinator/draft_model.h"
#include "coordinator/gates/gate_count.h"
#include "coordinator/gates/gate_drafts.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/gates/gate_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define N_SESSIONS     3u /* greedy, sampled, and the plain one of `together` */
#define TEMPERATURE    0.9f
#define TOGETHER_DEPTH 4u
static const uint32_t depths[] = {1, 2, 4, 8};

typedef struct {
    const gate_context *g;
    uint32_t n_drawn;
    uint32_t *prompt;                     /* [n_prompt + N_SESSIONS]: each begins one later */
    uint32_t *truth, *drawn;              /* [N_SESSIONS, 1 + n_drawn]: after the prompt */
    gate_record reference, got;           /* the steps: N_SESSIONS * n_decode rows */
    uint64_t n_right;                     /* of the walk: drafts that must have been right */
} work;

/* How sessions [begin, end) are walked. */
typedef struct {
    uint32_t begin, end, depth;
    bool stepped;      /* token by token: the reference */
    bool unsplit;      /* whatever is not a prompt */
    bool run_split;    /* canaries: judged so, but walked split */
    bool all_wrong;    /* canaries: no draft is right */
    bool no_drafts;    /* none is verified */
    bool keeps_wrong;  /* a wrong draft stays in the session as if it had been drawn */
    bool by_model;     /* drafts are a model's, */
    bool killed;       /* whose process is killed on the way */
    bool model_keeps_wrong; /* canary: rejected drafts stay in its sessions */
} way;

/* One session's thread. */
typedef struct {
    work *w;
    pipeline *p;
    const way *how;
    gate_drafts drafts;
    uint32_t i;
    status result;
    errmsg why;
} walker;

static uint32_t *tokens_of(const work *w, uint32_t *all, uint32_t i)
{
    return all + (uint64_t)i * (1 + w->n_drawn);
}

static sampler_params sampler_of(const work *w, uint32_t i)
{
    sampler_params s = sampler_default();
    if (i > 0) s.temperature = TEMPERATURE;
    s.seed = w->g->seed + i;
    return s;
}

/* --- one session ------------------------------------------------------------------------------ */

static status step_tokens(const work *w, session *s, uint32_t *drawn, errmsg *e)
{
    for (uint32_t k = 0; k < w->n_drawn; k++)
        TRY(session_step(s, drawn[k], NULL, &drawn[k + 1], e));
    return ST_OK;
}

static status generate_tokens(walker *x, session *s, uint32_t *drawn, errmsg *e)
{
    uint32_t n = x->w->n_drawn;
    generate_limits l = {.n_max = n,
                         .n_draft = x->i == 2 || x->how->no_drafts ? 0 : x->how->depth,
                         .draft_always = true,
                         .draft = &x->drafts.source};
    generation *g;
    errmsg ignored = {0};
    TRY(session_generate(s, drawn[0], &l, &g, e));
    status st = ST_OK;
    for (uint32_t k = 0; k < n && st == ST_OK; k++) st = generation_next(g, &drawn[1 + k], e);
    status closed = generation_close(g, st == ST_OK ? e : &ignored);
    return st == ST_OK ? closed : st;
}

/* What a lost rollback would leave behind: the last applied token is another. */
static status keep_wrong(const work *w, session *s, uint32_t token, errmsg *e)
{
    TRY(session_truncate(s, session_position(s) - 1, e));
    return session_step(s, (token + 1) % w->g->model.n_vocab, NULL, NULL, e);
}

static status walk_session(walker *x, session *s, errmsg *e)
{
    work *w = x->w;
    uint32_t *drawn = tokens_of(w, w->drawn, x->i), n_decode = w->g->n_decode;
    TRY(session_prime(s, w->prompt + x->i, w->g->n_prompt, NULL, &drawn[0], e));
    if (x->how->stepped)
        TRY(step_tokens(w, s, drawn, e));
    else
        TRY(generate_tokens(x, s, drawn, e));
    if (x->how->keeps_wrong) TRY(keep_wrong(w, s, drawn[w->n_drawn - 1], e));
    uint32_t next = drawn[w->n_drawn];
    for (uint32_t row = x->i * n_decode; row < (x->i + 1) * n_decode; row++) {
        TRY(session_step(s, next, gate_record_rows(&w->got, row, 1), &next, e));
        w->got.tokens[row] = next;
    }
    return ST_OK;
}

static void *walker_main(void *arg)
{
    walker *x = arg;
    sampler_params sampler = sampler_of(x->w, x->i);
    session *s;
    x->result = session_open(x->p, &sampler, &s, &x->why);
    if (x->result == ST_OK) x->result = walk_session(x, s, &x->why);
    if (s != NULL) session_drop(s);
    return NULL;
}

static step_doors doors_of(const work *w, bool unsplit)
{
    step_doors d = gate_doors(w->g, gate_chunk(w->g), true, true);
    d.spec_pp = d.batch_pp = !unsplit;
    return d;
}

static gate_drafts drafts_of(work *w, const way *how, uint32_t i, draft_model *by)
{
    gate_drafts d = gate_drafts_of(tokens_of(w, w->truth, i), w->g->n_prompt, w->n_drawn,
                                   by != NULL ? draft_model_source(by) : NULL);
    d.all_wrong = how->all_wrong;
    d.keeps_wrong = how->model_keeps_wrong;
    return d;
}

static status walk(work *w, pipeline *p, const way *how, draft_model *by, errmsg *e)
{
    walker x[N_SESSIONS];
    pthread_t thread[N_SESSIONS];
    bool started[N_SESSIONS] = {false};
    step_doors d = doors_of(w, how->unsplit && !how->run_split);
    TRY(pipeline_set_step_doors(p, &d, e));
    gate_record_clear(&w->got);
    for (uint32_t i = how->begin; i < how->end; i++) {
        x[i] = (walker){.w = w, .p = p, .how = how, .drafts = drafts_of(w, how, i, by), .i = i};
        if (!how->stepped) started[i] = pthread_create(&thread[i], NULL, walker_main, &x[i]) == 0;
        if (!started[i]) walker_main(&x[i]);
    }
    status st = ST_OK;
    w->n_right = 0;
    for (uint32_t i = how->begin; i < how->end; i++) {
        if (started[i]) pthread_join(thread[i], NULL);
        w->n_right += x[i].drafts.n_right;
        if (st == ST_OK && x[i].result != ST_OK)
            st = errmsg_set(e, x[i].result, "%s", x[i].why.text);
    }
    return st;
}

/* --- an arm ----------------------------------------------------------------------------------- */

static void compare(gate_arm *a, work *w, const way *how)
{
    uint32_t n_decode = w->g->n_decode;
    for (uint32_t i = how->begin; i < how->end; i++) {
        const uint32_t *want = tokens_of(w, w->truth, i), *got = tokens_of(w, w->drawn, i);
        for (uint32_t k = 0; k <= w->n_drawn; k++) {
            a->n_tokens++;
            if (want[k] == got[k]) continue;
            gate_arm_red(a, "session %u, token %u is %u, drawn plainly it is %u; they differ", i, k,
                         got[k], want[k]);
            break; /* what follows it differs too */
        }
    }
    gate_record_compare(a, &w->reference, &w->got, how->begin * n_decode, how->end * n_decode);
}

static void check_counts(gate_arm *a, work *w, pipeline *p, const gate_counts *before,
                         const draft_counts *c0, uint32_t n_stages, const way *how)
{
    draft_counts c;
    pipeline_drafts(p, &c);
    c.n_verifies -= c0->n_verifies;
    c.n_drafted -= c0->n_drafted;
    c.n_accepted -= c0->n_accepted;
    uint64_t rows = (uint64_t)w->g->n_prompt + w->n_drawn + w->g->n_decode;
    gate_expect x = {.n_stages = n_stages,
                     .row_bytes = w->g->model.row_bytes,
                     .rows = rows * (how->end - how->begin) + c.n_drafted - c.n_accepted,
                     .free_running = true,
                     .verifies = true,
                     .n_verifies = c.n_verifies,
                     .decode_alone = how->unsplit,
                     .drafts_alone = how->unsplit,
                     .slots = n_stages == 1 ? SLOTS_FIRST_ONLY : SLOTS_BOTH};
    if (how->unsplit) x.rows_alone = x.rows - (uint64_t)w->g->n_prompt * (how->end - how->begin);
    gate_counts_check(a, p, before, &x);
    a->drafted = c.n_drafted;
    a->accepted = c.n_accepted;
    if (how->stepped) return;
    if (c.n_verifies == 0)
        gate_arm_red(a, "no step verified drafts");
    else if (c.n_accepted == 0)
        gate_arm_red(a, "no draft was accepted, of %llu", (unsigned long long)c.n_drafted);
    else if (c.n_accepted == c.n_drafted)
        gate_arm_red(a, "no draft was rejected, of %llu", (unsigned long long)c.n_drafted);
    else if (how->by_model && w->g->draft_path == NULL && c.n_accepted != w->n_right)
        gate_arm_red(
            a, "the model drafted for itself, and %llu drafts were accepted of %llu that are right",
            (unsigned long long)c.n_accepted, (unsigned long long)w->n_right);
}

/* The model that drafts, in one stage. */
static status open_drafts(draft_model **out, const work *w, const way *how, errmsg *e)
{
    const gate_cuts one = gate_cuts_even(1);
    const gate_setup setup = {.fault = how->killed ? "stage=0,at=decode,kind=kill" : NULL,
                              .called = "draft model",
                              .n_sessions = N_SESSIONS + 1,
                              .restarts = how->killed ? 1 : 0};
    gate_context g = *w->g;
    common_options other = *g.common;
    pipeline *p;
    *out = NULL;
    if (!how->by_model) return ST_OK;
    if (g.draft_path != NULL) {
        other.model = g.model_path = g.draft_path;
        other.model_fd = 0;
        g.common = &other;
    }
    TRY(gate_pipe_open(&p, &g, &one, &setup, e));
    status s = draft_model_open(out, p, e);
    if (s == ST_OK && pipeline_model(p)->n_vocab != g.model.n_vocab)
        s = errmsg_set(e, ST_BAD_MODEL, "--draft-model %s changed while it was opened",
                       g.draft_path);
    if (*out == NULL) pipeline_close(p);
    return s;
}

static void close_drafts(gate_arm *a, const way *how, draft_model *by)
{
    stage_snapshot t;
    if (by == NULL) return;
    pipeline_stage(draft_model_pipeline(by), 0, &t);
    if (how->killed && t.n_lost == 0)
        gate_arm_red(a, "the process of the draft model was not killed");
    draft_model_close(by);
}

static status arm_run(work *w, pipeline *p, gate_arm *a, uint32_t n_stages, const way *how,
                      errmsg *e)
{
    gate_counts before;
    draft_counts c0;
    draft_model *by;
    errmsg why = {0};
    gate_arm_again(a);
    a->cuts = pipeline_plan(p)->cuts;
    gate_counts_take(&before, p);
    pipeline_drafts(p, &c0);
    status s = open_drafts(&by, w, how, &why);
    if (s == ST_OK) s = walk(w, p, how, by, &why);
    if (s == ST_OK) {
        compare(a, w, how);
        check_counts(a, w, p, &before, &c0, n_stages, how);
    }
    close_drafts(a, how, by);
    return gate_arm_ended(a, s, &why, e);
}

static status arm_report(work *w, pipeline *p, const way *how, const char *who, errmsg *e)
{
    gate_arm a;
    gate_arm_begin(&a, "spec", "K=%u, %s", how->depth, who);
    TRY(arm_run(w, p, &a, pipeline_plan(p)->cuts.n_stages, how, e));
    gate_report_arm(w->g->report, &a);
    return ST_OK;
}

static status arms_run(void *ctx, pipeline *p, errmsg *e)
{
    work *w = ctx;
    for (uint32_t k = 0; k < sizeof depths / sizeof *depths; k++) {
        TRY(arm_report(w, p, &(way){.begin = 0, .end = 1, .depth = depths[k]}, "greedy", e));
        TRY(arm_report(w, p, &(way){.begin = 1, .end = 2, .depth = depths[k]}, "sampled", e));
    }
    step_doors d = doors_of(w, true);
    if (gate_may_unsplit(w->g, p, &d)) {
        const way alone = {.begin = 1, .end = 2, .depth = TOGETHER_DEPTH, .unsplit = true};
        TRY(arm_report(w, p, &alone, "sampled, unsplit", e));
    }
    TRY(arm_report(w, p, &(way){.end = N_SESSIONS, .depth = TOGETHER_DEPTH}, "together", e));
    way by_model = {.end = 2, .depth = TOGETHER_DEPTH, .by_model = true};
    TRY(arm_report(w, p, &by_model, "by a model", e));
    by_model.killed = true;
    return arm_report(w, p, &by_model, "by a model that is killed", e);
}

/* --- pipelines -------------------------------------------------------------------------------- */

/* What was walked becomes the reference; it is an arm too, and its counters must be right. */
static status reference_walk(void *ctx, pipeline *p, gate_arm *a, errmsg *e)
{
    work *w = ctx;
    const way plain = {.end = N_SESSIONS, .stepped = true};
    gate_counts before;
    draft_counts c0;
    gate_arm_begin(a, "spec", "reference, token by token");
    gate_arm_again(a);
    a->cuts = pipeline_plan(p)->cuts;
    gate_counts_take(&before, p);
    pipeline_drafts(p, &c0);
    TRY(walk(w, p, &plain, NULL, e));
    gate_record_swap(&w->got, &w->reference);
    memcpy(w->truth, w->drawn, (uint64_t)N_SESSIONS * (1 + w->n_drawn) * sizeof *w->truth);
    check_counts(a, w, p, &before, &c0, 1, &plain);
    if (a->drafted > 0) gate_arm_red(a, "steps verified drafts where none should be");
    return ST_OK;
}

/* --- canaries --------------------------------------------------------------------------------- */

typedef struct {
    const char *broken, *fault;
    bool one_stage;
    way how;
    const char *because;
} canary;

#define SAMPLED .how.begin = 1, .how.end = 2, .how.depth = TOGETHER_DEPTH
static const canary canaries[] = {
    {.broken = "stage 0 flips one bit of what it sends in a step that verifies",
     .fault = "stage=0,at=decode,kind=corrupt", SAMPLED,
     .because = "differ"},
    {.broken = "a wrong draft stays in the session", SAMPLED, .how.keeps_wrong = true,
     .because = "differ"},
    {.broken = "no draft is right", SAMPLED, .how.all_wrong = true,
     .because = "no draft was accepted"},
    {.broken = "rejected drafts stay in the draft model's sessions", SAMPLED, .how.by_model = true,
     .how.model_keeps_wrong = true,
     .because = "drafted for itself"},
    {.broken = "tokens are drawn one by one where drafts should be verified", SAMPLED,
     .how.no_drafts = true,
     .because = "no step verified drafts"},
    {.broken = "one stage runs where several should", .one_stage = true, SAMPLED,
     .because = "expected"},
    {.broken = "the last stage flips one bit of every unsplit step that it was handed",
     .fault = "stage=1,at=decode,kind=corrupt,every=1", SAMPLED, .how.unsplit = true,
     .because = "differ"},
    {.broken = "drafts walk split where they should walk unsplit", SAMPLED, .how.unsplit = true,
     .how.run_split = true,
     .because = "walked no step unsplit"},
};

static status canary_run(work *w, const gate_cuts *c, const canary *k, errmsg *e)
{
    gate_cuts one = gate_cuts_even(1);
    pipeline *p;
    gate_arm a;
    gate_arm_begin(&a, "spec", "K=%u, sampled", k->how.depth);
    gate_setup setup = {.fault = k->fault, .n_sessions = N_SESSIONS, .unsplit = true};
    TRY(gate_pipe_open(&p, w->g, k->one_stage ? &one : c, &setup, e));
    step_doors d = doors_of(w, true);
    bool runs = !k->how.unsplit || gate_may_unsplit(w->g, p, &d);
    status s = runs ? arm_run(w, p, &a, c->n_stages, &k->how, e) : ST_OK;
    pipeline_close(p);
    if (s == ST_OK && runs) gate_report_canary(w->g->report, &a, k->broken, k->because);
    return s;
}

static status canaries_run(void *ctx, const gate_cuts *c, errmsg *e)
{
    for (uint32_t i = 0; i < sizeof canaries / sizeof *canaries; i++)
        TRY(canary_run(ctx, c, &canaries[i], e));
    return ST_OK;
}

/* --- the gate --------------------------------------------------------------------------------- */

static status work_open(work *w, const gate_context *g, errmsg *e)
{
    uint32_t n_tokens = g->n_prompt + N_SESSIONS, n_rows = N_SESSIONS * g->n_decode;
    *w = (work){.g = g, .n_drawn = gate_burst(g)};
    w->prompt = malloc(n_tokens * sizeof *w->prompt);
    w->truth = calloc((uint64_t)N_SESSIONS * (1 + w->n_drawn), sizeof *w->truth);
    w->drawn = calloc((uint64_t)N_SESSIONS * (1 + w->n_drawn), sizeof *w->drawn);
    if (w->prompt == NULL || w->truth == NULL || w->drawn == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", n_tokens);
    random_tokens(w->prompt, n_tokens, g->model.n_vocab, g->seed);
    TRY(gate_record_open(&w->reference, n_rows, g->model.n_vocab, e));
    return gate_record_open(&w->got, n_rows, g->model.n_vocab, e);
}

status gate_spec(const gate_context *g, errmsg *e)
{
    work w;
    const gate_run run = {.g = g,
                          .gate = "spec",
                          .setup = {.n_sessions = N_SESSIONS, .unsplit = true},
                          .ctx = &w,
                          .reference = reference_walk,
                          .arms = arms_run,
                          .canaries = canaries_run};
    status s = work_open(&w, g, e);
    if (s == ST_OK) s = gate_run_few(&run, e);
    free(w.prompt);
    free(w.truth);
    free(w.drawn);
    gate_record_close(&w.reference);
    gate_record_close(&w.got);
    return s;
}
