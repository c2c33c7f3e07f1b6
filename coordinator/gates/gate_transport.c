/* transport: bytes sent = bytes received, every edge, both slots, every transport of this build.
 *
 * Probe arm: opening a pipeline sends a pattern of 1, 8, 16 and the maximum number of rows through
 * both slots of every edge, the one from the last stage to the first too, and compares every byte;
 * each stage must have counted every one of them. Traffic arms: chunks of 1, 8, 16 and the maximum
 * number of rows, overlapped (both slots must be crossed) and serial (slot 0 alone); every boundary
 * must have sent and received the same rows, bytes and crossings, and as many as the work asks for;
 * the logits must be those of one stage. */
#include "coordinator/gates/gate_count.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/gates/gate_run.h"
#include "coordinator/commands/random_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX        64u /* of a step; less when the prompt is shorter */
#define PROBES_PER_EDGE 8u  /* four sizes, two slots */
static const uint32_t piece_sizes[] = {1, 8, 16, ROWS_MAX};

typedef struct {
    const gate_context *g;
    uint32_t *tokens;
    uint32_t n_rows, rows_max;
    gate_record reference, got;
} work;

/* How a canary breaks it. */
typedef struct {
    bool one_stage; /* the door is shut: nothing is probed, nothing crosses */
    bool serial;    /* where both slots should be crossed */
    const char *fault;
} breakage;

/* A way across a boundary, as the doors force it. */
typedef struct {
    transport_kind transport;
    signal_kind signal;
} way;

/* "auto", "ipc by spin" */
static const char *way_name(char out[32], way v)
{
    if (v.signal == SIGNAL_AUTO) return transport_word(v.transport);
    snprintf(out, 32, "%s by %s", transport_word(v.transport), signal_word(v.signal));
    return out;
}

/* Each size four times over, so that either slot sees it. */
static status walk(work *w, pipeline *p, bool pipe, uint64_t *steps, errmsg *e)
{
    gate_record_clear(&w->got);
    sampler_params sampler = sampler_default();
    session *s = NULL;
    status st = ST_OK;
    uint32_t at = 0;
    *steps = 0;
    TRY(session_open(p, &sampler, &s, e));
    for (uint32_t i = 0; at < w->n_rows; i = (i + 1) % (sizeof piece_sizes / sizeof *piece_sizes)) {
        uint32_t chunk = piece_sizes[i] < w->rows_max ? piece_sizes[i] : w->rows_max;
        uint32_t n = 4 * chunk < w->n_rows - at ? 4 * chunk : w->n_rows - at;
        step_doors d = gate_doors(w->g, chunk, pipe, pipe);
        TRY_DONE(st, pipeline_set_step_doors(p, &d, e));
        TRY_DONE(st,
                 session_prime(s, w->tokens + at, n, gate_record_rows(&w->got, at, n), NULL, e));
        at += n;
        *steps += (n + chunk - 1) / chunk;
    }
done:
    session_drop(s);
    return st;
}

static status traffic_run(work *w, pipeline *p, uint32_t n_stages, bool pipe, const breakage *b,
                          gate_arm *a, errmsg *e)
{
    gate_counts before;
    uint64_t steps;
    errmsg why = {0};
    a->cuts = pipeline_plan(p)->cuts;
    gate_arm_again(a);
    gate_counts_take(&before, p);
    status s = walk(w, p, pipe && !b->serial, &steps, &why);
    if (s != ST_OK) return gate_arm_ended(a, s, &why, e);
    gate_record_compare(a, &w->reference, &w->got, 0, w->n_rows);
    gate_expect x = {.n_stages = n_stages,
                     .row_bytes = w->g->model.row_bytes,
                     .rows = w->n_rows,
                     .chunks = steps,
                     .steps = steps,
                     .slots = pipe ? SLOTS_BOTH : SLOTS_FIRST_ONLY};
    gate_counts_check(a, p, &before, &x);
    return ST_OK;
}

/* What opening p has shown: every edge of n_stages is probed by its receiver. */
static void probes_check(gate_arm *a, const pipeline *p, uint32_t n_stages)
{
    gate_counts c;
    gate_counts_take(&c, p);
    a->cuts = pipeline_plan(p)->cuts;
    for (uint32_t s = 0; s < n_stages; s++) {
        uint64_t n = s < c.n_stages ? c.stage[s].n_probes : 0;
        a->probes += n;
        if (n == PROBES_PER_EDGE) continue;
        gate_arm_red(a, "boundary %u -> %u passed %llu byte probes, %u expected",
                     (s + n_stages - 1) % n_stages, s, (unsigned long long)n, PROBES_PER_EDGE);
    }
}

static status pipe_open(pipeline **p, const work *w, const gate_cuts *c, way v,
                        const breakage *b, errmsg *e)
{
    gate_setup setup = {.fault = b->fault,
                        .transport = v.transport,
                        .signal = v.signal,
                        .n_chunk = w->rows_max};
    gate_cuts one = gate_cuts_even(1);
    return gate_pipe_open(p, w->g, b->one_stage ? &one : c, &setup, e);
}

/* *devices: whether all stages are on CUDA devices. */
static status cuts_run(work *w, const gate_cuts *c, way v, bool *devices, errmsg *e)
{
    char name[32];
    const breakage none = {0};
    pipeline *p;
    gate_arm a;
    errmsg why = {0};
    gate_arm_begin(&a, "transport", "%s probe", way_name(name, v));
    *devices = false;
    status s = pipe_open(&p, w, c, v, &none, &why);
    if (s != ST_OK) {
        TRY(gate_arm_not_started(&a, c->n_stages, s, &why, e));
        gate_report_arm(w->g->report, &a);
        return ST_OK;
    }
    probes_check(&a, p, c->n_stages);
    gate_report_arm(w->g->report, &a);
    *devices = true;
    for (uint32_t i = 0; i < c->n_stages; i++)
        *devices = *devices && pipeline_plan(p)->stage[i].device.kind == DEVICE_CUDA;
    for (uint32_t pipe = 0; pipe <= 1; pipe++) {
        gate_arm_begin(&a, "transport", "%s traffic, %s", way_name(name, v),
                       pipe != 0 ? "both slots" : "one slot");
        TRY_DONE(s, traffic_run(w, p, c->n_stages, pipe != 0, &none, &a, e));
        gate_report_arm(w->g->report, &a);
    }
done:
    pipeline_close(p);
    return s;
}

static status reference_run(work *w, errmsg *e)
{
    gate_cuts one = gate_cuts_even(1);
    pipeline *p;
    uint64_t steps;
    TRY(pipe_open(&p, w, &one, (way){0}, &(breakage){0}, e));
    status s = walk(w, p, false, &steps, e); /* closed right after: no counts to wait for */
    gate_record_swap(&w->got, &w->reference);
    pipeline_close(p);
    return s;
}

/* --- canaries ------------------------------------------------------------------------------ */

/* The stage before an edge alters a byte of its probe: the pipeline must refuse to open, and say
 * which edge it was. */
static status canary_probe(work *w, const gate_cuts *c, uint32_t edge, errmsg *e)
{
    char text[64], broken[96], because[64];
    uint32_t to = (edge + 1) % c->n_stages;
    snprintf(text, sizeof text, "stage=%u,at=load,kind=corrupt", edge);
    snprintf(broken, sizeof broken, "one byte of the probe of boundary %u -> %u is altered", edge,
             to);
    snprintf(because, sizeof because, "%u -> %u", edge, to);
    pipeline *p;
    gate_arm a;
    errmsg why = {0};
    gate_arm_begin(&a, "transport", "probe");
    status s = pipe_open(&p, w, c, (way){0}, &(breakage){.fault = text}, &why);
    if (s == ST_INTERRUPTED) return errmsg_set(e, s, "%s", why.text);
    if (s == ST_OK)
        pipeline_close(p);
    else
        gate_arm_red(&a, "%s", why.text);
    gate_report_canary(w->g->report, &a, broken, because);
    return ST_OK;
}

static status canary_open(work *w, const gate_cuts *c, const breakage *b, const char *broken,
                          const char *because, errmsg *e)
{
    pipeline *p;
    gate_arm a;
    gate_arm_begin(&a, "transport", "traffic");
    TRY(pipe_open(&p, w, c, (way){0}, b, e));
    status s = ST_OK;
    if (b->one_stage)
        probes_check(&a, p, c->n_stages);
    else
        s = traffic_run(w, p, c->n_stages, true, b, &a, e);
    pipeline_close(p);
    if (s == ST_OK) gate_report_canary(w->g->report, &a, broken, because);
    return s;
}

static status canaries_run(work *w, const gate_cuts *c, errmsg *e)
{
    for (uint32_t edge = 0; edge < c->n_stages; edge++)
        TRY(canary_probe(w, c, edge, e));
    TRY(canary_open(w, c, &(breakage){.one_stage = true}, "one stage runs where several should",
                    "passed 0 byte probes", e));
    TRY(canary_open(w, c, &(breakage){.serial = true}, "one slot is used where both should be",
                    "nothing crossed in slot 1", e));
    return canary_open(w, c, &(breakage){.fault = "stage=0,at=prime,kind=corrupt"},
                       "stage 0 flips one bit of what it sends in a step", "values differ", e);
}

/* --- the gate ------------------------------------------------------------------------------ */

/* The way that the doors say, and, where they leave it open, each that the devices have: shm, and
 * between CUDA devices ipc by each signal, and pinned host memory. (NCCL, which may be absent, is
 * walked when it is forced.) */
static status ways_run(work *w, const gate_cuts *c, errmsg *e)
{
    static const way others[] = {{TRANSPORT_SHM, SIGNAL_AUTO},  {TRANSPORT_IPC, SIGNAL_SPIN},
                                 {TRANSPORT_IPC, SIGNAL_MEMOP}, {TRANSPORT_IPC, SIGNAL_EVENT},
                                 {TRANSPORT_HOST, SIGNAL_AUTO}};
    way given = {w->g->common->doors.transport, w->g->common->doors.signal};
    bool devices, ignored;
    TRY(cuts_run(w, c, given, &devices, e));
    if (given.transport != TRANSPORT_AUTO || given.signal != SIGNAL_AUTO) return ST_OK;
    for (size_t i = 0; i < (devices ? sizeof others / sizeof *others : 1); i++)
        TRY(cuts_run(w, c, others[i], &ignored, e));
    return ST_OK;
}

static status transports_run(work *w, const gate_cuts *cuts, uint32_t n_cuts, errmsg *e)
{
    for (uint32_t i = 0; i < n_cuts; i++)
        TRY(ways_run(w, &cuts[i], e));
    return ST_OK;
}

status gate_transport(const gate_context *g, errmsg *e)
{
    work w = {.g = g, .n_rows = g->n_prompt};
    w.rows_max = w.n_rows < ROWS_MAX ? w.n_rows : ROWS_MAX;
    gate_cuts cuts[4];
    uint32_t n_cuts;
    status s = ST_OK;
    w.tokens = malloc(w.n_rows * sizeof *w.tokens);
    if (w.tokens == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", w.n_rows);
        goto done;
    }
    random_tokens(w.tokens, w.n_rows, g->model.n_vocab, g->seed);
    TRY_DONE(s, gate_record_open(&w.reference, w.n_rows, g->model.n_vocab, e));
    TRY_DONE(s, gate_record_open(&w.got, w.n_rows, g->model.n_vocab, e));
    TRY_DONE(s, gate_cuts_few(cuts, &n_cuts, g, e));
    TRY_DONE(s, reference_run(&w, e));
    s = g->canary ? canaries_run(&w, &cuts[n_cuts > 1 ? 1 : 0], e)
                  : transports_run(&w, cuts, n_cuts, e);
done:
    free(w.tokens);
    gate_record_close(&w.reference);
    gate_record_close(&w.got);
    return s;
}
