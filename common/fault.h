/* fault.h - MEMRA_PP_FAULT: faults injected on purpose, for tests and for people who want to see.
 *
 * "stage=1,at=decode,step=17,kind=kill;stage=all,kind=slow:20,every=1": entries joined by ';', each
 * of key=value pairs joined by ',', every key at most once, nothing empty, no spaces. Keys: stage
 * (a number or all; required), kind (required), at (load, prime, decode, idle, recovery: while a
 * lost stage is replaced, in the replacement and in the others; asked: when the coordinator asks
 * this very process, as gates do; left out: any but asked), step (the
 * coordinator's sequence; left out: the first that fits; not with load, idle, recovery or asked,
 * where no step is in hand), every (1: again and again; 0 or left out: once per run and stage).
 * Kinds:
 *
 *   kill, stop  the stage process sends itself SIGKILL, SIGSTOP
 *   exit        it ends with exit code 70
 *   hang        its worker stands still
 *   slow:MS     it takes so much longer, with signs of progress
 *   cuda        it reports that its device failed and ends, as after any CUDA error (exit code 6)
 *   oom         an allocation is refused; at load and recovery, where memory is allocated
 *   nan         a NaN in the first row's hidden state; at prime, decode and recovery (in the next
 *               row that is replayed), where rows are walked
 *   corrupt     one bit of a row that it sends or replays is another, at load of the byte probe;
 *               not at idle, where it sends none
 *   badmsg      it sends the coordinator a message that fails every check */
#ifndef COMMON_FAULT_H
#define COMMON_FAULT_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define FAULTS_MAX 16u
#define FAULT_TEXT_BYTES_MAX 511u
#define FAULT_STAGE_ALL UINT32_MAX
#define FAULT_STEP_ANY UINT64_MAX
#define FAULT_SLOW_MS_MAX 3600000u

typedef enum {
    FAULT_KILL,
    FAULT_STOP,
    FAULT_HANG,
    FAULT_EXIT,
    FAULT_SLOW,
    FAULT_CORRUPT,
    FAULT_CUDA,
    FAULT_OOM,
    FAULT_NAN,
    FAULT_BADMSG
} fault_kind;
typedef enum {
    FAULT_AT_ANY,
    FAULT_AT_LOAD,
    FAULT_AT_PRIME,
    FAULT_AT_DECODE,
    FAULT_AT_IDLE,
    FAULT_AT_RECOVERY,
    FAULT_AT_ASKED
} fault_at;

typedef struct {
    uint32_t stage;    /* or FAULT_STAGE_ALL */
    fault_at at;
    uint64_t step;     /* or FAULT_STEP_ANY */
    fault_kind kind;
    uint32_t slow_ms;  /* kind slow: how much longer a step takes, 1..FAULT_SLOW_MS_MAX; else 0 */
    bool every;
} fault;

typedef struct {
    uint32_t n;
    fault list[FAULTS_MAX];
} fault_list;

/* Parse text (NULL or empty: no faults). ST_BAD_DOOR: *e names MEMRA_PP_FAULT, the value and the
 * rule, and *out is empty. A stage number is checked against the number of stages by the caller
 * that knows it (doors_parse does). */
MUST_USE status fault_parse(fault_list *out, const char *text, errmsg *e);

/* The same, with the name that the message gives to the text ("--fault"). */
MUST_USE status fault_parse_as(fault_list *out, const char *name, const char *text, errmsg *e);

/* The first fault of the list that fits, NULL for none. `fired` (FAULTS_MAX flags of the caller,
 * zeroed at its start) remembers which once-only faults have run; one that is returned is marked
 * there. at: where the stage is now; seq: the step in hand, FAULT_STEP_ANY outside a step (a fault
 * that names a step does not fit there). A kind fits only where it can be carried out. */
const fault *fault_match(const fault_list *l, bool fired[FAULTS_MAX], uint32_t stage, fault_at at,
                         uint64_t seq);

#endif
