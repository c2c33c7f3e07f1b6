/* gate_count.h - did the mechanism run: what the stages' counters must have gained during a walk.
 *
 * A stage counts a crossing just after it happened, so that the coordinator may hold a result
 * before the count is seen: the check waits (bounded) until the counters have arrived, then judges.
 */
#ifndef COORDINATOR_GATE_COUNT_H
#define COORDINATOR_GATE_COUNT_H

#include "coordinator/gates/gate_report.h"
#include "coordinator/pipeline.h"

typedef struct {
    uint32_t n_stages;
    stage_snapshot stage[STAGES_MAX];
} gate_counts;

void gate_counts_take(gate_counts *out, const pipeline *p);

/* Sum over the stages. */
uint64_t gate_counts_overlaps(const gate_counts *c);

typedef enum { SLOTS_ANY, SLOTS_FIRST_ONLY, SLOTS_BOTH } gate_slots;

typedef struct {
    uint32_t n_stages; /* that should have run */
    uint64_t row_bytes;
    uint64_t rows, chunks; /* in every stage */
    uint64_t steps;        /* with rows: each crosses every boundary once */
    uint64_t rows_alone, chunks_alone; /* of them, those that the first stage walks for all: the
                                        * others count none of these, and hand the rows on */
    bool decode_alone, prompts_alone, drafts_alone; /* all steps of that path are such */
    bool free_running;     /* how many steps, chunks and crossings is up to the schedule: the two
                            * ends of a boundary agree, and dead rows may cross it too */
    bool verifies;         /* so many steps verified drafts, in every stage */
    uint64_t n_verifies;
    gate_slots slots;
} gate_expect;

/* Compare what the counters gained since `before` with x; what differs makes the arm red, naming
 * stage or boundary, both numbers and what they count. Fills the arm's counts. */
void gate_counts_check(gate_arm *a, const pipeline *p, const gate_counts *before,
                       const gate_expect *x);

#endif
