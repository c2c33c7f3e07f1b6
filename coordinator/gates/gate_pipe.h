/* gate_pipe.h - the pipelines that gates walk: which cuts, and how one is opened. */
#ifndef COORDINATOR_GATE_PIPE_H
#define COORDINATOR_GATE_PIPE_H

#include "coordinator/gates/gate.h"

/* One way to cut the model. */
typedef struct {
    uint32_t n_stages;
    splits_kind splits; /* EVEN, AUTO, or LIST with n_stages - 1 cuts */
    uint32_t cut[STAGES_MAX];
} gate_cuts;

/* How an arm differs from the plain way. All zero: it does not. */
typedef struct {
    const char *fault; /* MEMRA_PP_FAULT; NULL: none */
    const char *called; /* of pipeline_options */
    transport_kind transport;
    signal_kind signal;
    uint32_t n_chunk;    /* rows of the largest step; 0: the gate's prompt */
    uint32_t n_sessions; /* 0: one */
    uint32_t restarts;   /* of a stage; 0: a lost stage is the arm's red */
    bool unsplit;        /* arms may ask for unsplit walks */
    bool one_stream;     /* MEMRA_PP_STREAMS=0 */
    uint32_t hang_ms;    /* at most so long may a stage stand still; 0: as asked */
} gate_setup;

#define GATE_CUTS_ALL_MAX    64u /* --stages N: all cuts of N while there are so few */
#define GATE_LAYERS_SMALL    6u  /* no --stages: every set of cuts up to so many layers */
#define GATE_EVEN_STAGES_MAX 8u  /* otherwise even cuts, and every single cut */

/* What ppn walks: as the doors say when they name cuts; all cuts of N (or, when there are too many,
 * the even, the first and the last ones) when they name only N; otherwise every set of cuts of a
 * small model, or even cuts and every single cut. Forbidden cuts are left out. The caller frees
 * *out. ST_USAGE: the model has no legal cut; ST_RESOURCES. */
MUST_USE status gate_cuts_all(gate_cuts **out, uint32_t *n, const gate_context *g, errmsg *e);

/* A few numbers of stages, evenly cut: what the doors say, or 2, 3 and one per layer (at most
 * GATE_EVEN_STAGES_MAX). out has room for 4. ST_USAGE as above. */
MUST_USE status gate_cuts_few(gate_cuts out[4], uint32_t *n, const gate_context *g, errmsg *e);

static inline gate_cuts gate_cuts_even(uint32_t n_stages)
{
    return (gate_cuts){.n_stages = n_stages, .splits = SPLITS_EVEN};
}

/* Open a pipeline over these cuts. Errors as pipeline_open, and as gate_report_arrived. */
MUST_USE status gate_pipe_open(pipeline **out, const gate_context *g, const gate_cuts *c,
                               const gate_setup *setup, errmsg *e);

/* The chunk length of arms that do not choose one: a sixth of the prompt, or the door's, at most a
 * third of the prompt (with fewer chunks stages need not meet). */
uint32_t gate_chunk(const gate_context *g);

/* Step doors with everything on, nothing unsplit, and this chunk length. */
step_doors gate_doors(const gate_context *g, uint32_t chunk, bool pipe, bool overlap);

/* Whether p, which was opened with `unsplit`, may walk as d says; if not, a remark says why. With
 * one stage there is nothing to ask for: false. */
bool gate_may_unsplit(const gate_context *g, pipeline *p, const step_doors *d);

/* May this arm, begun at begin_ns, be walked (once more)? See gate.h. */
bool gate_may_try(const gate_arm *a, uint64_t begin_ns);

#endif
