/* inject.h - the faults of MEMRA_PP_FAULT, carried out in the stage they name.
 *
 * Owned by the worker thread. Free when no fault is set: one test of a count. What has run is kept
 * in the stage's words, so that a replacement does not run it again. */
#ifndef STAGE_INJECT_H
#define STAGE_INJECT_H

#include "common/fault.h"
#include "common/runblock.h"

typedef struct {
    fault_list faults;
    bool fired[FAULTS_MAX];
    uint32_t stage;
    stage_words *words;              /* faults_fired, faults_met; slow faults show progress here */
    const _Atomic uint32_t *stop;
    uint32_t put_off;                /* entries that are met when a row is replayed, if one is */
} injector;

MUST_USE status inject_open(injector *out, const char *text, uint32_t stage, stage_words *words,
                            const _Atomic uint32_t *stop, errmsg *e);

/* Carry out what fits here and now, or was asked for: kill, stop, exit, hang do not return (hang
 * returns when told to stop); slow takes its time in small pieces, each of which counts as
 * progress. Returns what the caller has to do: a bit (1u << fault_kind) for each of the other kinds
 * that fits. */
uint32_t inject_at(injector *in, fault_at at, uint64_t seq);

/* What inject_at gave the caller to do in recovery, with a row that is replayed, is done: until
 * then it is not met. */
void inject_replayed(injector *in);

#endif
