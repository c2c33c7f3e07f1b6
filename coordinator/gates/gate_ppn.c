/* ppn: one stage = N stages, whatever the cuts; serial = pipelined = flipped between two steps.
 *
 * The work, in rows: a prompt in chunks, greedy decode, sampled decode, then a burst of given
 * tokens as deferred steps, several in flight. Arms over every set of cuts:
 *
 *   serial     overlap off, one step in flight: slot 0 alone, no stage meets another
 *   pipelined  both on: both slots, and stages must meet inside their layers, in prompt and burst
 *   flipped    both doors change between steps, while deferred steps are in flight
 *   rounds     tokens that a session generates by itself, greedy and sampled, where devices tell
 *              each other what a round draws: no host stands between two rounds
 *   one stream all stages in one process, their boundaries copies on its one queue: nobody can meet
 *
 * The reference walks the serial way with the door shut, and once more the pipelined way. */
#include "common/clock.h"
#include "coordinator/gates/gate_count.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/gates/gate_run.h"
#include "coordinator/commands/random_tokens.h"

#include <stdlib.h>

#define IN_FLIGHT_MAX 8u
#define TEMPERATURE   0.9f

typedef struct {
    const char *name;
    bool pipelined, flips, one_stream;
} way;

static const way serial = {.name = "serial"};
static const way pipelined = {.name = "pipelined", .pipelined = true};
static const way flipped = {.name = "flipped", .flips = true};
static const way one_stream = {.name = "one stream", .pipelined = true, .one_stream = true};

/* What one gate holds. */
typedef struct {
    const gate_context *g;
    uint32_t *tokens; /* prompt, then the burst */
    uint32_t n_rows, n_burst, chunk;
    gate_record reference, got;
    uint32_t *drawn_reference, *drawn; /* [2, n_burst]: by generations, greedy and sampled */
} work;

/* What one walk counted, beside the record. */
typedef struct {
    uint64_t chunks, steps;
    uint64_t prompt_overlaps, burst_overlaps;
} walked;

static uint64_t overlaps_now(const pipeline *p)
{
    gate_counts c;
    gate_counts_take(&c, p);
    return gate_counts_overlaps(&c);
}

static status set_doors(pipeline *p, const work *w, bool on, errmsg *e)
{
    step_doors d = gate_doors(w->g, w->chunk, on, on);
    return pipeline_set_step_doors(p, &d, e);
}

static status walk_prompt(work *w, pipeline *p, session *s, const way *how, uint32_t *next,
                          walked *done, errmsg *e)
{
    uint32_t n = w->g->n_prompt;
    uint32_t first = how->flips ? n / 2 : n;
    TRY(set_doors(p, w, how->pipelined || how->flips, e));
    TRY(session_prime(s, w->tokens, first, gate_record_rows(&w->got, 0, first), next, e));
    done->chunks += (first + w->chunk - 1) / w->chunk;
    if (first < n) {
        TRY(set_doors(p, w, false, e));
        TRY(session_prime(s, w->tokens + first, n - first,
                          gate_record_rows(&w->got, first, n - first), next, e));
        done->chunks += (n - first + w->chunk - 1) / w->chunk;
    }
    w->got.tokens[n - 1] = *next;
    done->steps += done->chunks;
    return ST_OK;
}

static status walk_decode(work *w, pipeline *p, session *s, const way *how, uint32_t row,
                          uint32_t *next, walked *done, errmsg *e)
{
    for (uint32_t i = 0; i < w->g->n_decode; i++) {
        if (how->flips) TRY(set_doors(p, w, i % 2 == 0, e));
        TRY(session_step(s, *next, gate_record_rows(&w->got, row + i, 1), next, e));
        w->got.tokens[row + i] = *next;
        done->steps++;
    }
    return ST_OK;
}

/* Given tokens, several steps in flight (serially: one). */
static status walk_burst(work *w, pipeline *p, session *s, const way *how, uint32_t row,
                         walked *done, errmsg *e)
{
    pending *in_flight[IN_FLIGHT_MAX];
    uint32_t issued = 0, drained = 0, most = how->pipelined || how->flips ? IN_FLIGHT_MAX : 1;
    status st = ST_OK;
    while (drained < w->n_burst) {
        while (issued < w->n_burst && issued - drained < most) {
            if (how->flips) TRY_DONE(st, set_doors(p, w, issued % 3 != 0, e));
            TRY_DONE(st, session_step_deferred(s, w->tokens[w->g->n_prompt + issued],
                                               &in_flight[issued % IN_FLIGHT_MAX], e));
            issued++;
        }
        uint32_t i = drained++;
        TRY_DONE(st, pending_logits_wait(in_flight[i % IN_FLIGHT_MAX],
                                         gate_record_rows(&w->got, row + i, 1),
                                         &w->got.tokens[row + i], e));
        done->steps++;
    }
done:
    while (drained < issued)
        pending_drop(in_flight[drained++ % IN_FLIGHT_MAX]);
    return st;
}

/* The whole work in a session of its own, into w->got. */
static status walk(work *w, pipeline *p, const way *how, walked *done, errmsg *e)
{
    gate_record_clear(&w->got);
    *done = (walked){0};
    uint32_t next, row = w->g->n_prompt;
    sampler_params sampler = sampler_default();
    session *s = NULL;
    status st = ST_OK;
    TRY_DONE(st, session_open(p, &sampler, &s, e));
    uint64_t overlaps = overlaps_now(p);
    TRY_DONE(st, walk_prompt(w, p, s, how, &next, done, e));
    done->prompt_overlaps = overlaps_now(p) - overlaps;
    TRY_DONE(st, walk_decode(w, p, s, how, row, &next, done, e));
    row += w->g->n_decode;
    sampler.temperature = TEMPERATURE;
    sampler.seed = w->g->seed;
    session_set_sampler(s, &sampler);
    TRY_DONE(st, walk_decode(w, p, s, how, row, &next, done, e));
    row += w->g->n_decode;
    overlaps = overlaps_now(p);
    TRY_DONE(st, walk_burst(w, p, s, how, row, done, e));
    done->burst_overlaps = overlaps_now(p) - overlaps;
done:
    if (s != NULL) session_drop(s);
    return st;
}

/* --- tokens by rounds ---------------------------------------------------------------------- */

/* n_burst tokens after the prompt. */
static status generate(work *w, pipeline *p, const sampler_params *sampler, uint32_t *drawn,
                       errmsg *e)
{
    session *s = NULL;
    generation *g;
    errmsg ignored = {0};
    status st = ST_OK;
    TRY(session_open(p, sampler, &s, e));
    TRY_DONE(st, session_prime(s, w->tokens, w->g->n_prompt, NULL, drawn, e));
    TRY_DONE(st, session_generate(s, drawn[0], &(generate_limits){.n_max = w->n_burst - 1}, &g, e));
    for (uint32_t k = 1; k < w->n_burst && st == ST_OK; k++) st = generation_next(g, &drawn[k], e);
    status closed = generation_close(g, st == ST_OK ? e : &ignored);
    if (st == ST_OK) st = closed;
done:
    session_drop(s);
    return st;
}

/* How tokens are generated. All zero: as the arm is meant to. */
typedef struct {
    bool by_hosts;     /* what a round draws goes through the hosts */
    bool another_seed;
} drawing;

static status generate_both(work *w, pipeline *p, const drawing *how, uint32_t *drawn, errmsg *e)
{
    sampler_params sampler = sampler_default();
    step_doors d = gate_doors(w->g, w->chunk, true, true);
    d.ahead = !how->by_hosts;
    TRY(pipeline_set_step_doors(p, &d, e));
    TRY(generate(w, p, &sampler, drawn, e));
    sampler.temperature = TEMPERATURE;
    sampler.seed = w->g->seed + how->another_seed;
    return generate(w, p, &sampler, drawn + w->n_burst, e);
}

static void compare_drawn(gate_arm *a, const work *w)
{
    for (uint32_t i = 0; i < 2 * w->n_burst; i++) {
        a->n_tokens++;
        if (w->drawn[i] == w->drawn_reference[i]) continue;
        gate_arm_red(a, "%s token %u is %u, through one stage it is %u",
                     i < w->n_burst ? "greedy" : "sampled", i % w->n_burst, w->drawn[i],
                     w->drawn_reference[i]);
        return; /* what follows it differs too */
    }
}

static status rounds_walk(work *w, pipeline *p, gate_arm *a, const drawing *how, errmsg *e)
{
    gate_counts before;
    gate_arm_again(a);
    gate_counts_take(&before, p);
    TRY(generate_both(w, p, how, w->drawn, e));
    compare_drawn(a, w);
    const gate_expect x = {.n_stages = a->cuts.n_stages,
                           .row_bytes = w->g->model.row_bytes,
                           .rows = 2 * (w->g->n_prompt + w->n_burst - 1),
                           .free_running = true,
                           .slots = SLOTS_BOTH};
    gate_counts_check(a, p, &before, &x);
    if (a->rounds == 0) gate_arm_red(a, "no step ran several rounds");
    if (a->ahead == 0)
        gate_arm_red(a, "what rounds drew went through the hosts, not from device to device");
    return ST_OK;
}

static status rounds_run(work *w, pipeline *p, gate_arm *a, const drawing *how, errmsg *e)
{
    errmsg why = {0};
    gate_arm_begin(a, "ppn", "rounds");
    a->cuts = pipeline_plan(p)->cuts;
    status s = rounds_walk(w, p, a, how, &why);
    return gate_arm_ended(a, s, &why, e);
}

/* --- arms ---------------------------------------------------------------------------------- */

static void check_one_process(gate_arm *a, const pipeline *p)
{
    stage_snapshot first, other;
    pipeline_stage(p, 0, &first);
    for (uint32_t s = 1; s < pipeline_plan(p)->cuts.n_stages; s++) {
        pipeline_stage(p, s, &other);
        if (other.pid != first.pid) gate_arm_red(a, "stage %u is in a process of its own", s);
    }
}

/* Walk `how` on p, which should be of n_stages; `as` is what the arm is judged as. */
static status arm_walk(work *w, pipeline *p, gate_arm *a, uint32_t n_stages, const way *how,
                       const way *as, errmsg *e)
{
    bool must_meet = n_stages > 1 && as->pipelined && !as->one_stream;
    bool may_meet = n_stages > 1 && (as->pipelined || as->flips) && !as->one_stream;
    walked done;
    uint64_t in_prompt = 0, in_burst = 0; /* over all tries */
    uint64_t begin = now_ns();
    while (gate_may_try(a, begin)) {
        gate_counts before;
        gate_arm_again(a);
        gate_counts_take(&before, p);
        TRY(walk(w, p, how, &done, e));
        gate_record_compare(a, &w->reference, &w->got, 0, w->n_rows);
        gate_expect x = {.n_stages = n_stages,
                         .row_bytes = w->g->model.row_bytes,
                         .rows = w->n_rows,
                         .chunks = done.chunks,
                         .steps = done.steps,
                         .slots = may_meet ? SLOTS_BOTH : SLOTS_FIRST_ONLY};
        gate_counts_check(a, p, &before, &x);
        if (as->one_stream) check_one_process(a, p);
        if (!may_meet && a->overlaps > 0)
            gate_arm_red(a, "stages met inside their layers %llu times, and should not",
                         (unsigned long long)a->overlaps);
        in_prompt += done.prompt_overlaps;
        in_burst += done.burst_overlaps;
        if (!must_meet || (in_prompt > 0 && in_burst > 0)) return ST_OK;
    }
    if (a->green)
        gate_arm_red(a, "no two stages were inside their layers at once in the %s, in %u tries",
                     in_prompt == 0 ? "prompt" : "deferred steps", a->tries);
    return ST_OK;
}

/* The same; a fault is the arm's red, unless it ends the gate. */
static status arm_run(work *w, pipeline *p, gate_arm *a, uint32_t n_stages, const way *how,
                      const way *as, errmsg *e)
{
    errmsg why = {0};
    status s = arm_walk(w, p, a, n_stages, how, as, &why);
    return gate_arm_ended(a, s, &why, e);
}

static status arm_report(work *w, pipeline *p, const way *how, errmsg *e)
{
    gate_arm a;
    uint32_t n_stages = pipeline_plan(p)->cuts.n_stages;
    gate_arm_begin(&a, "ppn", "%s", how->name);
    a.cuts = pipeline_plan(p)->cuts;
    TRY(arm_run(w, p, &a, n_stages, how, how, e));
    gate_report_arm(w->g->report, &a);
    return ST_OK;
}

/* With the door shut there is one way that the reference is not. */
static status arms_run(void *ctx, pipeline *p, errmsg *e)
{
    work *w = ctx;
    if (pipeline_plan(p)->cuts.n_stages == 1) return arm_report(w, p, &pipelined, e);
    TRY(arm_report(w, p, &serial, e));
    TRY(arm_report(w, p, &pipelined, e));
    TRY(arm_report(w, p, &flipped, e));
    if (!pipeline_goes_ahead(p)) return ST_OK;
    gate_arm a;
    TRY(rounds_run(w, p, &a, &(drawing){0}, e));
    gate_report_arm(w->g->report, &a);
    return ST_OK;
}

/* All stages on one stream, where they are on one device. */
static status one_stream_run(void *ctx, const gate_cuts *c, errmsg *e)
{
    work *w = ctx;
    const gate_setup setup = {.n_chunk = w->chunk, .one_stream = true};
    pipeline *p;
    gate_arm a;
    errmsg why = {0};
    status s = gate_pipe_open(&p, w->g, c, &setup, &why);
    if (s == ST_BAD_DOOR) {
        gate_report_note(w->g->report, "left out: %s", why.text);
        return ST_OK;
    }
    gate_arm_begin(&a, "ppn", "%s", one_stream.name);
    if (s != ST_OK) {
        TRY(gate_arm_not_started(&a, c->n_stages, s, &why, e));
    } else {
        a.cuts = pipeline_plan(p)->cuts;
        s = arm_run(w, p, &a, c->n_stages, &one_stream, &one_stream, e);
        pipeline_close(p);
        TRY(s);
    }
    gate_report_arm(w->g->report, &a);
    return ST_OK;
}

/* The reference is an arm too: its counters must be right, and have arrived before the next arm's
 * begin to count. */
static status reference_walk(void *ctx, pipeline *p, gate_arm *a, errmsg *e)
{
    work *w = ctx;
    gate_counts before;
    walked done;
    gate_arm_begin(a, "ppn", "reference");
    gate_arm_again(a);
    a->cuts = pipeline_plan(p)->cuts;
    gate_counts_take(&before, p);
    TRY(walk(w, p, &serial, &done, e));
    gate_record_swap(&w->got, &w->reference);
    gate_expect x = {.n_stages = 1, .rows = w->n_rows, .chunks = done.chunks, .steps = done.steps};
    gate_counts_check(a, p, &before, &x);
    return generate_both(w, p, &(drawing){0}, w->drawn_reference, e);
}

/* --- canaries ------------------------------------------------------------------------------ */

typedef struct {
    const char *broken, *fault;
    bool one_stage; /* runs with the door shut */
    const way *how; /* walks this way where `as` is expected */
    const way *as;
    const char *because; /* what the gate must say */
} canary;

static const canary canaries[] = {
    {.broken = "stage 0 flips one bit of what it sends in a prompt step",
     .fault = "stage=0,at=prime,kind=corrupt",
     .how = &serial,
     .as = &serial,
     .because = "values differ"},
    {.broken = "stage 0 flips one bit of what it sends in a decode step",
     .fault = "stage=0,at=decode,kind=corrupt",
     .how = &serial,
     .as = &serial,
     .because = "values differ"},
    {.broken = "one stage runs where several should",
     .one_stage = true,
     .how = &serial,
     .as = &serial,
     .because = "expected"},
    {.broken = "the pipelined arm is walked serially",
     .how = &serial,
     .as = &pipelined,
     .because = "nothing crossed in slot 1"},
    {.broken = "the serial arm is walked pipelined",
     .how = &pipelined,
     .as = &serial,
     .because = "slot 1"},
    {.broken = "stages have processes of their own where one stream should hold them",
     .how = &pipelined,
     .as = &one_stream,
     .because = "slot 1"},
    {.broken = "the stages' one process flips one bit of a prompt step",
     .fault = "stage=0,at=prime,kind=corrupt",
     .how = &one_stream,
     .as = &one_stream,
     .because = "values differ"},
};

static status canary_run(work *w, const gate_cuts *c, const canary *k, errmsg *e)
{
    gate_setup setup = {.fault = k->fault, .n_chunk = w->chunk, .one_stream = k->how->one_stream};
    gate_cuts one = gate_cuts_even(1);
    pipeline *p;
    gate_arm a;
    errmsg why = {0};
    status opened = gate_pipe_open(&p, w->g, k->one_stage ? &one : c, &setup, &why);
    if (opened == ST_BAD_DOOR && k->how->one_stream) {
        gate_report_note(w->g->report, "left out: %s", why.text);
        return ST_OK;
    }
    if (opened != ST_OK) return errmsg_set(e, opened, "%s", why.text);
    gate_arm_begin(&a, "ppn", "%s", k->as->name);
    a.cuts = pipeline_plan(p)->cuts;
    status s = arm_run(w, p, &a, c->n_stages, k->how, k->as, e);
    pipeline_close(p);
    if (s == ST_OK) gate_report_canary(w->g->report, &a, k->broken, k->because);
    return s;
}

/* Where devices tell each other what is drawn. */
static status rounds_canary(work *w, const gate_cuts *c, const drawing *how, const char *broken,
                            const char *because, errmsg *e)
{
    const gate_setup setup = {.n_chunk = w->chunk};
    pipeline *p;
    gate_arm a;
    TRY(gate_pipe_open(&p, w->g, c, &setup, e));
    bool runs = pipeline_goes_ahead(p);
    status s = runs ? rounds_run(w, p, &a, how, e) : ST_OK;
    pipeline_close(p);
    if (s == ST_OK && runs) gate_report_canary(w->g->report, &a, broken, because);
    return s;
}

static status canaries_run(void *ctx, const gate_cuts *c, errmsg *e)
{
    for (uint32_t i = 0; i < sizeof canaries / sizeof *canaries; i++)
        TRY(canary_run(ctx, c, &canaries[i], e));
    TRY(rounds_canary(
        ctx, c, &(drawing){.by_hosts = true},
        "what rounds draw goes through the hosts where devices should tell each other",
        "through the hosts", e));
    return rounds_canary(ctx, c, &(drawing){.another_seed = true}, "rounds draw by another seed",
                         "through one stage it is", e);
}

/* --- the gate ------------------------------------------------------------------------------ */

static status work_open(work *w, const gate_context *g, errmsg *e)
{
    *w = (work){.g = g, .n_burst = gate_burst(g), .chunk = gate_chunk(g)};
    w->n_rows = g->n_prompt + 2 * g->n_decode + w->n_burst;
    uint32_t n_tokens = g->n_prompt + w->n_burst;
    w->tokens = malloc(n_tokens * sizeof *w->tokens);
    if (w->tokens == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", n_tokens);
    random_tokens(w->tokens, n_tokens, g->model.n_vocab, g->seed);
    w->drawn_reference = calloc(2 * (size_t)w->n_burst, sizeof *w->drawn_reference);
    w->drawn = calloc(2 * (size_t)w->n_burst, sizeof *w->drawn);
    if (w->drawn_reference == NULL || w->drawn == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", 2 * w->n_burst);
    TRY(gate_record_open(&w->reference, w->n_rows, g->model.n_vocab, e));
    return gate_record_open(&w->got, w->n_rows, g->model.n_vocab, e);
}

static void work_close(work *w)
{
    free(w->tokens);
    free(w->drawn_reference);
    free(w->drawn);
    gate_record_close(&w->reference);
    gate_record_close(&w->got);
}

status gate_ppn(const gate_context *g, errmsg *e)
{
    work w;
    gate_cuts *cuts = NULL;
    uint32_t n_cuts;
    status s = work_open(&w, g, e);
    if (s != ST_OK) goto done;
    TRY_DONE(s, gate_cuts_all(&cuts, &n_cuts, g, e));
    const gate_run run = {.g = g,
                          .gate = "ppn",
                          .setup = {.n_chunk = w.chunk},
                          .ctx = &w,
                          .reference = reference_walk,
                          .arms = arms_run,
                          .after = one_stream_run,
                          .after_only = !g->common->doors.streams,
                          .canaries = canaries_run};
    s = gate_run_all(&run, cuts, n_cuts, e);
done:
    free(cuts);
    work_close(&w);
    return s;
}
