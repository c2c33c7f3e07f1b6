/* batch: a session alone = the same session among others that join and leave.
 *
 * The work of each of GATE_SESSIONS sessions: a prompt (of a length of its own), n_decode steps
 * whose logits are compared, then so many tokens that it generates by itself, greedy or sampled.
 * The reference does them one after the other through one stage, every token a step of its own. The
 * arms do them all at once, each session driven by a thread of its own, so that prompts share
 * chunks, rows share steps, and generations share rounds, while others come and go:
 *
 *   together            all doors open
 *   together, one slot  without MEMRA_PP_OVERLAP
 *   together, unsplit   rows that are stepped or generated on the first stage alone
 *                       (MEMRA_BATCH_PP=0), beside prompts that are split
 *   together, by hosts  what a round draws goes from host to host; where devices can tell each
 *                       other, as they must in the other arms that use both slots
 *   sharing prefixes    the KV blocks of what their prompts begin with, which a session before them
 *                       has walked; where that fills a block, and no layer has a window
 *
 * Beside rows and crossings, counters must show steps that carried rows of several sessions, of
 * prompts and of decode, rounds beyond a step's first, and, where blocks are shared, positions that
 * were taken over: so many rows fewer are walked. */
#include "common/clock.h"
#include "common/kvclass.h"
#include "coordinator/commands/random_tokens.h"
#include "coordinator/gates/gate_count.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/gates/gate_run.h"

#include <pthread.h>
#include <stdlib.h>

#define GATE_SESSIONS 7u
#define TEMPERATURE   0.9f
#define CANARY_TRIES  3u /* of an arm that cannot become complete */

typedef struct {
    const gate_context *g;
    uint32_t *tokens;                     /* [GATE_SESSIONS, n_prompt]: the prompts, and on */
    uint32_t n_shared;                    /* of these all prompts begin with the same */
    uint32_t n_prompt[GATE_SESSIONS], n_generate[GATE_SESSIONS];
    uint64_t n_rows, n_prompt_rows;       /* of all sessions */
    gate_record reference, got;           /* the steps: GATE_SESSIONS * n_decode rows */
    uint32_t *tokens_reference, *tokens_got; /* [GATE_SESSIONS, 1 + burst]: drawn elsewhere */
} work;

/* How the sessions are walked. All zero: as the arms are meant to. */
typedef struct {
    bool one_slot;
    bool unsplit;
    bool by_hosts;     /* what rounds draw goes through the hosts */
    bool one_by_one;   /* session after session */
    bool stepped;      /* generations step by step */
    bool swapped;      /* two sessions have each other's prompts */
    bool sharing;      /* prefixes, after a session has walked what they begin with */
    bool closed;       /* that one shares, the others do not */
} way;

/* One session's thread. */
typedef struct {
    work *w;
    pipeline *p;
    const way *how;
    uint32_t i;
    status result;
    errmsg why;
} walker;

static uint32_t row_of(const work *w, uint32_t i)
{
    return i * w->g->n_decode;
}

static uint32_t *drawn_of(const work *w, uint32_t *tokens, uint32_t i)
{
    return tokens + (uint64_t)i * (1 + gate_burst(w->g));
}

static sampler_params sampler_of(const work *w, uint32_t i)
{
    sampler_params s = sampler_default();
    if (i % 2 == 1) s.temperature = TEMPERATURE;
    s.seed = w->g->seed + i;
    return s;
}

/* --- one session ------------------------------------------------------------------------------ */

static status generate_tokens(session *s, uint32_t token, uint32_t n, uint32_t *out, errmsg *e)
{
    generation *g;
    errmsg ignored = {0};
    TRY(session_generate(s, token, &(generate_limits){.n_max = n}, &g, e));
    status st = ST_OK;
    for (uint32_t k = 0; k < n && st == ST_OK; k++) st = generation_next(g, &out[k], e);
    status closed = generation_close(g, st == ST_OK ? e : &ignored);
    return st == ST_OK ? closed : st;
}

static status step_tokens(session *s, uint32_t token, uint32_t n, uint32_t *out, errmsg *e)
{
    for (uint32_t k = 0; k < n; k++) {
        TRY(session_step(s, token, NULL, &token, e));
        out[k] = token;
    }
    return ST_OK;
}

static status walk_session(walker *x, session *s, errmsg *e)
{
    work *w = x->w;
    uint32_t i = x->i, from = x->how->swapped && i < 2 ? 1 - i : i, next;
    uint32_t *drawn = drawn_of(w, w->tokens_got, i);
    TRY(session_prime(s, w->tokens + (uint64_t)from * w->g->n_prompt, w->n_prompt[i], NULL, &next,
                      e));
    drawn[0] = next;
    for (uint32_t k = 0; k < w->g->n_decode; k++) {
        uint32_t row = row_of(w, i) + k;
        TRY(session_step(s, next, gate_record_rows(&w->got, row, 1), &next, e));
        w->got.tokens[row] = next;
    }
    if (x->how->stepped) return step_tokens(s, next, w->n_generate[i], drawn + 1, e);
    return generate_tokens(s, next, w->n_generate[i], drawn + 1, e);
}

static void *walker_main(void *arg)
{
    walker *x = arg;
    session_options o = session_options_default();
    session *s;
    o.sampler = sampler_of(x->w, x->i);
    o.share = x->how->sharing && !x->how->closed;
    x->result = session_open_with(x->p, &o, &s, &x->why);
    if (x->result == ST_OK) x->result = walk_session(x, s, &x->why);
    if (s != NULL) session_drop(s);
    return NULL;
}

static step_doors doors_of(const work *w, const way *how)
{
    step_doors d = gate_doors(w->g, gate_chunk(w->g), true, !how->one_slot);
    d.batch_pp = !how->unsplit;
    d.ahead = !how->by_hosts;
    return d;
}

/* What all prompts begin with, by a session that is gone when the others come. */
static status walk_prefix(work *w, pipeline *p, errmsg *e)
{
    session_options o = session_options_default();
    session *s;
    o.share = true;
    pipeline_forget_prefixes(p);
    TRY(session_open_with(p, &o, &s, e));
    status st =
        session_prime(s, w->tokens + (uint64_t)(GATE_SESSIONS - 1) * w->g->n_prompt, w->n_shared,
                      NULL, NULL, e); /* the longest prompt begins with all of it */
    session_drop(s);
    return st;
}

/* All sessions into w->got. */
static status walk(work *w, pipeline *p, const way *how, errmsg *e)
{
    walker x[GATE_SESSIONS];
    pthread_t thread[GATE_SESSIONS];
    bool started[GATE_SESSIONS] = {false};
    step_doors d = doors_of(w, how);
    TRY(pipeline_set_step_doors(p, &d, e));
    gate_record_clear(&w->got);
    if (how->sharing) TRY(walk_prefix(w, p, e));
    for (uint32_t i = 0; i < GATE_SESSIONS; i++) {
        x[i] = (walker){.w = w, .p = p, .how = how, .i = i};
        if (!how->one_by_one)
            started[i] = pthread_create(&thread[i], NULL, walker_main, &x[i]) == 0;
        if (!started[i]) walker_main(&x[i]);
    }
    status st = ST_OK;
    for (uint32_t i = 0; i < GATE_SESSIONS; i++) {
        if (started[i]) pthread_join(thread[i], NULL);
        if (st == ST_OK && x[i].result != ST_OK)
            st = errmsg_set(e, x[i].result, "%s", x[i].why.text);
    }
    return st;
}

/* --- comparison ------------------------------------------------------------------------------- */

static void compare_drawn(gate_arm *a, const work *w)
{
    for (uint32_t i = 0; i < GATE_SESSIONS; i++) {
        const uint32_t *want = drawn_of(w, w->tokens_reference, i);
        const uint32_t *got = drawn_of(w, w->tokens_got, i);
        for (uint32_t k = 0; k <= w->n_generate[i]; k++) {
            a->n_tokens++;
            if (want[k] == got[k]) continue;
            gate_arm_red(a, "session %u, %s token %u is %u, alone it is %u", i,
                         k == 0 ? "prompt's" : "generated", k, got[k], want[k]);
            break; /* what follows it differs too */
        }
    }
}

static bool complete(const gate_arm *a, const way *as)
{
    return (a->shared_rows > 0 || !as->sharing) && a->batches > 0 && a->prime_batches > 0 &&
           a->rounds > 0;
}

/* Counted where rows came from device to device, and nowhere else. */
static void check_ahead(gate_arm *a, const pipeline *p, const way *as)
{
    bool may = pipeline_goes_ahead(p) && !as->by_hosts, must = may && !as->one_slot && !as->unsplit;
    if (a->ahead > 0 && !may) gate_arm_red(a, "rows came from device to device, and should not");
    if (a->ahead == 0 && must && a->rounds > 0)
        gate_arm_red(a, "what rounds drew went through the hosts, not from device to device");
}

static uint64_t shared_rows(const pipeline *p)
{
    schedule_snapshot s;
    pipeline_schedule(p, &s);
    return s.n_shared_rows;
}

static status arm_walk(work *w, pipeline *p, gate_arm *a, uint32_t n_stages, const way *how,
                       const way *as, errmsg *e)
{
    uint64_t begin = now_ns();
    bool hopeless = how->one_by_one || how->stepped || how->closed;
    while (gate_may_try(a, begin) && (!hopeless || a->tries < CANARY_TRIES)) {
        gate_counts before;
        gate_arm_again(a);
        gate_counts_take(&before, p);
        uint64_t n_shared = shared_rows(p);
        TRY(walk(w, p, how, e));
        a->shared_rows = shared_rows(p) - n_shared;
        gate_record_compare(a, &w->reference, &w->got, 0, w->got.n_rows);
        compare_drawn(a, w);
        gate_expect x = {.n_stages = n_stages,
                         .row_bytes = w->g->model.row_bytes,
                         .rows = w->n_rows + (as->sharing ? w->n_shared : 0) - a->shared_rows,
                         .free_running = true,
                         .rows_alone = as->unsplit ? w->n_rows - w->n_prompt_rows : 0,
                         .decode_alone = as->unsplit,
                         .slots = n_stages == 1 || as->one_slot ? SLOTS_FIRST_ONLY : SLOTS_BOTH};
        gate_counts_check(a, p, &before, &x);
        check_ahead(a, p, as);
        if (complete(a, as)) return ST_OK;
    }
    if (a->green) {
        gate_arm_red(a, "%s, in %u tries",
                     as->sharing && a->shared_rows == 0 ? "no session took over another's blocks"
                     : a->rounds == 0                   ? "no step ran several rounds"
                                      : "no step carried rows of several sessions",
                     a->tries);
    }
    return ST_OK;
}

static status arm_run(work *w, pipeline *p, gate_arm *a, uint32_t n_stages, const way *how,
                      const way *as, errmsg *e)
{
    errmsg why = {0};
    status s = arm_walk(w, p, a, n_stages, how, as, &why);
    return gate_arm_ended(a, s, &why, e);
}

/* --- arms ------------------------------------------------------------------------------------- */

static const way together = {0};
static const way one_slot = {.one_slot = true};
static const way unsplit = {.unsplit = true};
static const way by_hosts = {.by_hosts = true};
static const way sharing = {.sharing = true};

static bool can_share(const work *w, const pipeline *p)
{
    return w->n_shared >= KV_BLOCK && pipeline_model(p)->window == 0;
}

static status arms_run(void *ctx, pipeline *p, errmsg *e)
{
    work *w = ctx;
    uint32_t n_stages = pipeline_plan(p)->cuts.n_stages;
    step_doors d = doors_of(w, &unsplit);
    const struct {
        const char *name;
        const way *how;
        bool runs;
    } arms[] = {{"together", &together, true},
                {"together, one slot", &one_slot, n_stages > 1},
                {"together, unsplit", &unsplit, gate_may_unsplit(w->g, p, &d)},
                {"together, by hosts", &by_hosts, pipeline_goes_ahead(p)},
                {"sharing prefixes", &sharing, can_share(w, p)}};
    for (uint32_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        gate_arm a;
        if (!arms[i].runs) continue;
        gate_arm_begin(&a, "batch", "%s", arms[i].name);
        a.cuts = pipeline_plan(p)->cuts;
        TRY(arm_run(w, p, &a, n_stages, arms[i].how, arms[i].how, e));
        gate_report_arm(w->g->report, &a);
    }
    return ST_OK;
}

/* What was walked becomes the reference; it is an arm too, and its counters must be right. */
static status reference_walk(void *ctx, pipeline *p, gate_arm *a, errmsg *e)
{
    work *w = ctx;
    const way alone = {.one_by_one = true, .stepped = true};
    gate_counts before;
    gate_arm_begin(a, "batch", "reference, one after the other");
    gate_arm_again(a);
    a->cuts = pipeline_plan(p)->cuts;
    gate_counts_take(&before, p);
    TRY(walk(w, p, &alone, e));
    uint32_t *tokens = w->tokens_got;
    gate_record_swap(&w->got, &w->reference);
    w->tokens_got = w->tokens_reference;
    w->tokens_reference = tokens;
    gate_expect x = {.n_stages = 1, .rows = w->n_rows, .free_running = true};
    gate_counts_check(a, p, &before, &x);
    if (a->batches + a->prime_batches + a->rounds > 0)
        gate_arm_red(a, "sessions one after the other shared steps");
    return ST_OK;
}

/* --- canaries --------------------------------------------------------------------------------- */

typedef struct {
    const char *broken, *fault;
    bool one_stage;
    way how;
    bool unsplit;      /* it is judged as an unsplit arm */
    bool by_hosts;     /* as one by the hosts; left out where there is no other way */
    const char *because;
} canary;

static const canary canaries[] = {
    {.broken = "stage 0 flips one bit of what it sends in a chunk",
     .fault = "stage=0,at=prime,kind=corrupt",
     .because = "differ"},
    {.broken = "stage 0 flips one bit of what it sends in a decode step",
     .fault = "stage=0,at=decode,kind=corrupt",
     .because = "differ"},
    {.broken = "two sessions have each other's prompts", .how.swapped = true, .because = "differ"},
    {.broken = "the sessions are walked one after the other where they should be together",
     .how.one_by_one = true,
     .because = "no step carried rows of several sessions"},
    {.broken = "tokens are stepped one by one where sessions should generate",
     .how.stepped = true,
     .because = "no step ran several rounds"},
    {.broken = "what rounds draw goes through the hosts where devices should tell each other",
     .how.by_hosts = true,
     .because = "through the hosts"},
    {.broken = "devices tell each other where it should go through the hosts",
     .by_hosts = true,
     .because = "from device to device"},
    {.broken = "stage 0 flips one bit of what it sends of the prefix that all share",
     .fault = "stage=0,at=prime,kind=corrupt",
     .how.sharing = true,
     .because = "differ"},
    {.broken = "no session takes over what another has walked",
     .how = {.sharing = true, .closed = true},
     .because = "no session took over another's blocks"},
    {.broken = "one stage runs where several should", .one_stage = true, .because = "expected"},
    {.broken = "the last stage flips one bit of an unsplit step that it was handed",
     .fault = "stage=1,at=decode,kind=corrupt",
     .how.unsplit = true,
     .unsplit = true,
     .because = "differ"},
    {.broken = "decode walks split where it should walk unsplit",
     .unsplit = true,
     .because = "expected"},
};

static status canary_run(work *w, const gate_cuts *c, const canary *k, errmsg *e)
{
    gate_cuts one = gate_cuts_even(1);
    pipeline *p;
    gate_arm a;
    const way *as = k->unsplit       ? &unsplit
                    : k->by_hosts    ? &by_hosts
                    : k->how.sharing ? &sharing
                                     : &together;
    gate_arm_begin(&a, "batch",
                   k->unsplit       ? "together, unsplit"
                   : k->how.sharing ? "sharing prefixes"
                                    : "together");
    gate_setup setup = {.fault = k->fault, .n_sessions = GATE_SESSIONS, .unsplit = true};
    TRY(gate_pipe_open(&p, w->g, k->one_stage ? &one : c, &setup, e));
    a.cuts = pipeline_plan(p)->cuts;
    bool runs = !k->how.sharing || can_share(w, p);
    if (k->by_hosts || k->how.by_hosts) runs = pipeline_goes_ahead(p);
    step_doors d = doors_of(w, &unsplit);
    if (k->unsplit || k->how.unsplit) runs = gate_may_unsplit(w->g, p, &d);
    status s = ST_OK;
    if (runs) s = arm_run(w, p, &a, c->n_stages, &k->how, as, e);
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
    uint32_t n_tokens = GATE_SESSIONS * g->n_prompt, burst = gate_burst(g);
    *w = (work){.g = g, .n_shared = g->n_prompt * 3 / 4};
    for (uint32_t i = 0; i < GATE_SESSIONS; i++) {
        w->n_prompt[i] = 1 + (g->n_prompt - 1) * (i + 1) / GATE_SESSIONS;
        w->n_generate[i] = burst - burst * i / (2 * GATE_SESSIONS);
        w->n_prompt_rows += w->n_prompt[i];
        w->n_rows += w->n_prompt[i] + g->n_decode + w->n_generate[i];
    }
    w->tokens = malloc(n_tokens * sizeof *w->tokens);
    w->tokens_reference = calloc((uint64_t)GATE_SESSIONS * (1 + burst), sizeof *w->tokens);
    w->tokens_got = calloc((uint64_t)GATE_SESSIONS * (1 + burst), sizeof *w->tokens);
    if (w->tokens == NULL || w->tokens_reference == NULL || w->tokens_got == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", n_tokens);
    for (uint32_t i = 0; i < GATE_SESSIONS; i++) {
        uint32_t *prompt = w->tokens + (uint64_t)i * g->n_prompt;
        uint32_t n_same = w->n_prompt[i] - 1 < w->n_shared ? w->n_prompt[i] - 1 : w->n_shared;
        random_tokens(prompt, g->n_prompt, g->model.n_vocab,
                      g->seed + 1 + i); /* the last is its own */
        random_tokens(prompt, n_same, g->model.n_vocab, g->seed);
    }
    uint32_t n_rows = GATE_SESSIONS * g->n_decode;
    TRY(gate_record_open(&w->reference, n_rows, g->model.n_vocab, e));
    return gate_record_open(&w->got, n_rows, g->model.n_vocab, e);
}

static void work_close(work *w)
{
    free(w->tokens);
    free(w->tokens_reference);
    free(w->tokens_got);
    gate_record_close(&w->reference);
    gate_record_close(&w->got);
}

status gate_batch(const gate_context *g, errmsg *e)
{
    work w;
    const gate_run run = {.g = g,
                          .gate = "batch",
                          .setup = {.n_sessions = GATE_SESSIONS, .unsplit = true},
                          .ctx = &w,
                          .reference = reference_walk,
                          .arms = arms_run,
                          .canaries = canaries_run};
    status s = work_open(&w, g, e);
    if (s == ST_OK) s = gate_run_few(&run, e);
    work_close(&w);
    return s;
}
