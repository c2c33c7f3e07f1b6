/* gate.h - a gate: two ways to do the same work must agree in every bit.
 *
 * An arm is one way to do the work: a number of stages, cuts, chunk lengths, step doors. A gate
 * walks a reference (one stage, the door shut) and then its arms. An arm is green when
 *
 * - every f32 bit of its logits and every drawn token equals the reference's, and
 * - the counters of its stages advanced by exactly what the work costs: rows and chunks in every
 *   stage, rows, bytes and crossings on both sides of every boundary, by slot; where the
 *   arm is meant to overlap, some stage entered its layers while another was inside its own.
 *   Equal bits with counters that stand still are red: the mechanism did not run.
 *
 * A canary is an arm with one thing broken on purpose. It is judged by the same checks, and must be
 * red; a green canary means that the gate cannot see that breakage.
 *
 * Whether stages meet inside their layers is up to the machine's scheduler, so an arm that must
 * overlap is walked again before it is called red: for GATE_TRIES_S seconds, or GATE_TRIES_MIN
 * times if that takes longer. Its bits are compared every time. An arm that must not overlap has
 * one try. */
#ifndef COORDINATOR_GATE_H
#define COORDINATOR_GATE_H

#include "coordinator/gates/gate_report.h"
#include "coordinator/commands/options.h"

#define GATE_TRIES_MIN 10u
#define GATE_TRIES_S   10u

/* What a gate needs to know of the model before it opens one. */
typedef struct {
    uint32_t n_layers, n_vocab, n_embd, n_ctx_train;
    uint64_t row_bytes; /* what one row puts on a boundary with a hidden state */
    bool cut_forbidden[LAYERS_MAX];
} gate_model;

typedef struct {
    const common_options *common;
    const char *model_path;
    gate_model model;
    bool canary;
    uint32_t n_prompt, n_decode; /* tokens */
    uint64_t seed;               /* of the prompt's random ids and of sampling */
    uint32_t n_kills;            /* recovery: over all numbers of stages */
    const char *draft_path;      /* spec: the model that drafts; NULL: the model itself */
    gate_report *report;
} gate_context;

#define GATE_BURST     3u  /* deferred tokens per n_decode, */
#define GATE_BURST_MIN 24u /* but so many at least: stages must meet among them */

static inline uint32_t gate_burst(const gate_context *g)
{
    return GATE_BURST * g->n_decode < GATE_BURST_MIN ? GATE_BURST_MIN : GATE_BURST * g->n_decode;
}

/* Positions that a gate's work takes. */
static inline uint64_t gate_positions(const gate_context *g)
{
    return (uint64_t)g->n_prompt + 2ull * g->n_decode + gate_burst(g);
}

/* The gates. Each reports its arms (or canaries) to g->report as they end. An error is returned
 * only when the gate could not be walked to its end: ST_INTERRUPTED, ST_BAD_MODEL, ST_BAD_DOOR,
 * ST_USAGE, ST_RESOURCES, ST_CLOSED (whoever read the report is gone), or any fault of the
 * reference. A fault in an arm is that arm's red. */
MUST_USE status gate_ppn(const gate_context *g, errmsg *e);
MUST_USE status gate_batch(const gate_context *g, errmsg *e);
MUST_USE status gate_spec(const gate_context *g, errmsg *e);
MUST_USE status gate_prime(const gate_context *g, errmsg *e);
MUST_USE status gate_transport(const gate_context *g, errmsg *e);
MUST_USE status gate_recovery(const gate_context *g, errmsg *e);

#endif
