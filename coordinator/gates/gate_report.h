/* gate_report.h - what a gate says: a line per arm, a verdict at the end, for people or as JSON.
 *
 * For people the lines are TAP ("ok 1 - ppn N=3 cuts 2,4 serial: ..", at the end the plan and the
 * verdict as a comment), so that prove can run a gate; canaries print "red" and "GREEN" instead,
 * the latter being what must not happen. As JSON: one object per arm or canary, and a final one
 * with "verdict". Every line is flushed. One thread. */
#ifndef COORDINATOR_GATE_REPORT_H
#define COORDINATOR_GATE_REPORT_H

#include "common/plan.h"

#include <stdbool.h>
#include <stdio.h>

#define GATE_NAME_BYTES 96u
#define GATE_WHY_BYTES  640u

/* One way to do the work, and what came of it. Filled by the gate, read by the report. */
typedef struct {
    const char *gate;           /* "ppn" */
    char name[GATE_NAME_BYTES]; /* "serial", "chunks of 7" */
    fence cuts;                 /* as it ran; n_stages 0: not known (it did not open) */
    bool green;
    char why[GATE_WHY_BYTES]; /* the first thing that was wrong */
    uint32_t n_wrong;         /* things that were wrong */
    uint32_t tries;
    uint64_t n_rows, n_values;         /* compared */
    uint64_t n_tokens;                 /* drawn tokens compared */
    uint64_t crossings, bytes;         /* received over all boundaries */
    uint64_t chunks, overlaps, probes; /* over all stages */
    uint64_t batches, prime_batches;   /* steps with rows of several sessions */
    uint64_t rounds;                   /* groups walked in rounds after a step's first */
    uint64_t ahead;                    /* of rounds, those whose rows the devices told each other */
    uint64_t verifies;                 /* steps that verified drafts, over all stages */
    uint64_t drafted, accepted;        /* tokens */
    uint64_t shared_rows;              /* positions taken over from other sessions, not walked */
    uint64_t unsplit;                  /* steps that the first stage walked for all */
} gate_arm;

typedef struct {
    FILE *to;
    bool json;
    uint32_t n_arms, n_red;
    uint32_t n_canaries, n_unnoticed;
    uint64_t n_rows, n_values, crossings, bytes, chunks, overlaps, probes;
} gate_report;

/* An arm that is green so far. */
void gate_arm_begin(gate_arm *a, const char *gate, const char *format, ...) PRINTF_LIKE(3, 4);

/* It is walked (once more): counts begin again, tries goes up. */
void gate_arm_again(gate_arm *a);

/* Something is wrong with it. The first reason is kept, all are counted. */
void gate_arm_red(gate_arm *a, const char *format, ...) PRINTF_LIKE(2, 3);

/* The arm ended: one line. */
void gate_report_arm(gate_report *r, const gate_arm *a);

/* A canary ended: broken says what was broken. It was noticed when the arm is red and its reason
 * has `because` in it; red for another reason (a stage that died) shows nothing of the gate. */
void gate_report_canary(gate_report *r, const gate_arm *a, const char *broken, const char *because);

/* A remark for people ("# .."); nothing as JSON. */
void gate_report_note(gate_report *r, const char *format, ...) PRINTF_LIKE(2, 3);

/* Whether its lines have arrived so far. Errors as output_flushed (output.h). */
MUST_USE status gate_report_arrived(const gate_report *r, errmsg *e);

/* The closing lines. gates: names, as "ppn" or "ppn, prime, transport". Returns the exit code: 0
 * when every arm was green, 1 otherwise; with canaries 1 when every one was red, 0 when one went
 * unnoticed (no arm and no canary at all: 1 and 0, as nothing was shown). */
int gate_report_verdict(gate_report *r, const char *gates);

#endif
