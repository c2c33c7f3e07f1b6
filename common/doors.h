/* doors.h - the environment variables of the design's section 4, parsed in one place.
 *
 * A door is unset, empty (the default), or a value that keeps its rule; anything else refuses to
 * start with one line naming variable, value and rule. Numbers are decimal digits only (no sign, no
 * space, no prefix; leading zeros are digits). A command-line flag of the same name wins: prefix
 * MEMRA_PP_ or MEMRA_ dropped, lower case, hyphens (--stages, --prime-chunk). A door whose mechanism
 * this build lacks accepts only its default. */
#ifndef COMMON_DOORS_H
#define COMMON_DOORS_H

#include "common/fault.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define STAGES_MAX 64u

typedef enum { SPLITS_EVEN, SPLITS_AUTO, SPLITS_LIST } splits_kind;
typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CPU_NODE, DEVICE_CUDA } device_kind;
typedef enum { TRANSPORT_AUTO, TRANSPORT_IPC, TRANSPORT_NCCL, TRANSPORT_HOST, TRANSPORT_SHM } transport_kind;
typedef enum { SIGNAL_AUTO, SIGNAL_EVENT, SIGNAL_MEMOP, SIGNAL_SPIN } signal_kind;

typedef struct {
    device_kind kind;
    uint32_t index;      /* NUMA node or CUDA ordinal */
} device_door;

/* Carried in each step, so that a gate flips them between two steps of one run. */
typedef struct {
    bool overlap;        /* alternate the two slots per step */
    bool batch_pp, spec_pp, prime_pp; /* false: that path unsplit on the primary */
    bool prime_pipe;     /* false: chunks walk one after the other */
    bool allow_unsplit_batch;
    uint32_t prime_chunk; /* rows; 0: planned */
} step_doors;

typedef struct {
    uint32_t n_stages;   /* 1: the door is shut */
    bool stages_set;     /* MEMRA_PP_STAGES names a number >= 2 */
    splits_kind splits;
    bool split_old;      /* cuts come from MEMRA_PP_SPLIT */
    uint32_t n_cuts;
    uint32_t cut[STAGES_MAX];
    uint32_t n_devices;  /* 0: the default placement; otherwise n_stages (or 1 entry: auto) */
    device_door device[STAGES_MAX];
    bool shard, streams;
    transport_kind transport;
    signal_kind signal;
    fault_list faults;
    char fault_text[512]; /* as given, handed to the stages */
    step_doors step;
} doors;

/* One door: its variable, its flag and its rule in words (for --help and for refusals). */
typedef struct {
    const char *variable, *flag, *rule;
} door_info;
const door_info *doors_table(uint32_t *n);

/* Values by door index of doors_table; NULL or "": unset. */
typedef struct {
    const char *value[32];
    bool from_flag[32];
} door_values;

/* Read the environment into *v (borrowed strings). */
void doors_from_environment(door_values *v);

/* If argument is a door's flag without its leading dashes ("stages"), its index; otherwise -1. */
int doors_flag_index(const char *flag);

/* Parse and check everything that can be checked without a model. ST_BAD_DOOR with *e. */
MUST_USE status doors_parse(doors *out, const door_values *v, errmsg *e);

#endif
