/* doors.h - the environment variables of the design's section 4, parsed in one place.
 *
 * A door is unset, empty (the default), or a value that keeps its rule; anything else refuses to
 * start with one line naming variable (or flag, when the value came from there), value and rule.
 * So does a variable that is meant for a door and misspelt: it would silently change nothing.
 * Numbers are decimal digits only (no sign, no space, no prefix; leading zeros are digits). A
 * command-line flag of the same name wins: prefix MEMRA_PP_ or MEMRA_ dropped, lower case, hyphens
 * (--stages, --prime-chunk). What a transport, a signal, an unsplit walk or a placement needs of
 * devices is checked with them (coordinator/machine: boundaries.h, unsplit.h).
 *
 * Doors that speak of each other:
 * - SPLITS=c1,.. needs STAGES=N with N - 1 cuts; the words even and auto are legal with any STAGES.
 * - SPLIT=c needs STAGES=2 and no SPLITS, whatever SPLITS says.
 * - DEVICES has one element per stage (one, when the door STAGES is shut), or is the one word auto.
 *   auto may stand for single stages too. Whether a device exists is the planner's to say.
 * - FAULT may name no stage that STAGES does not have; the line says how many would have it.
 * - STREAMS=0 has neither transport nor signal: TRANSPORT and SIGNAL may force none. */
#ifndef COMMON_DOORS_H
#define COMMON_DOORS_H

#include "common/fault.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define STAGES_MAX 64u

typedef enum { SPLITS_EVEN, SPLITS_AUTO, SPLITS_LIST } splits_kind;
typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CPU_NODE, DEVICE_CUDA } device_kind;
typedef enum {
    TRANSPORT_AUTO,
    TRANSPORT_IPC,
    TRANSPORT_NCCL,
    TRANSPORT_HOST,
    TRANSPORT_SHM
} transport_kind;
typedef enum { SIGNAL_AUTO, SIGNAL_EVENT, SIGNAL_MEMOP, SIGNAL_SPIN } signal_kind;

/* A door's index in doors_table and door_values. */
typedef enum {
    DOOR_STAGES,
    DOOR_SPLITS,
    DOOR_SPLIT,
    DOOR_DEVICES,
    DOOR_SHARD,
    DOOR_STREAMS,
    DOOR_TRANSPORT,
    DOOR_SIGNAL,
    DOOR_FAULT,
    DOOR_OVERLAP,
    DOOR_BATCH_PP,
    DOOR_SPEC_PP,
    DOOR_PRIME_PP,
    DOOR_PRIME_PIPE,
    DOOR_PRIME_CHUNK,
    DOOR_ALLOW_UNSPLIT_BATCH,
    DOOR_COUNT
} door_id;

typedef struct {
    device_kind kind;
    uint32_t index;      /* NUMA node or CUDA ordinal */
} device_door;

/* Carried in each step, so that a gate flips them between two steps of one run. */
typedef struct {
    bool overlap;        /* alternate the two slots per step; default on */
    bool batch_pp, spec_pp, prime_pp; /* false: that path unsplit on the primary; default on */
    bool prime_pipe;     /* false: chunks walk one after the other; default on */
    bool allow_unsplit_batch; /* default off */
    uint32_t prime_chunk; /* rows; 0: planned */
    bool ahead; /* false: what a step's rounds draw goes through the hosts between any two of them;
                   default on. Has no variable: it is for gates */
    uint32_t batch_rows; /* of a group of sessions that decode, at most; 0: as planned. Has no
                            variable: it is for whoever measures what batching gives */
} step_doors;

typedef struct {
    uint32_t n_stages;   /* 1 .. STAGES_MAX; 1: the door is shut */
    bool stages_set;     /* there are >= 2, by MEMRA_PP_STAGES or by default */
    bool stages_default; /* by default: door_values.default_stages */
    splits_kind splits;
    bool split_old;      /* cuts come from MEMRA_PP_SPLIT */
    uint32_t n_cuts;     /* SPLITS_LIST: n_stages - 1; else 0 */
    uint32_t cut[STAGES_MAX]; /* strictly increasing, > 0 */
    uint32_t n_devices;  /* 0: the default placement; otherwise n_stages (or 1 entry: auto) */
    device_door device[STAGES_MAX];
    bool shard; /* false: all weights on the device of stage 0, the others read them there */
    bool streams;        /* false: all stages in one process, on one stream; both: default on */
    transport_kind transport;
    signal_kind signal;
    fault_list faults;
    char fault_text[FAULT_TEXT_BYTES_MAX + 1]; /* as given, handed to the stages */
    step_doors step;
    bool from_flag[DOOR_COUNT]; /* for messages: see doors_name */
} doors;

/* One door: its variable, its flag without dashes, and its rule in words (for --help, refusals). */
typedef struct {
    const char *variable, *flag, *rule;
} door_info;

/* The table, DOOR_COUNT entries, static storage; n may be NULL. */
const door_info *doors_table(uint32_t *n);

/* Values by door_id; NULL or "": unset. Strings are borrowed. */
typedef struct {
    const char *value[DOOR_COUNT];
    bool from_flag[DOOR_COUNT];
    uint32_t default_stages; /* where STAGES is unset; 0: one. Messages do not blame the door */
    bool stages_elsewhere; /* the caller has stage counts of its own: neither the number of devices
                              nor the faults' stages are compared with STAGES; see
                              doors_deal_devices and doors_check_faults */
} door_values;

/* Read the environment into *v (borrowed strings). */
void doors_from_environment(door_values *v);

/* ST_BAD_DOOR: one of the variables ("NAME=value", ended by NULL) looks like a door and is none: it
 * begins as doors do (MEMRA_PP_, MEMRA_BATCH_, MEMRA_SPEC_, MEMRA_PRIME_) or is misspelt by up to
 * DOORS_EDITS_MAX letters; *e names it and the nearest door. Names in other letters
 * (memra_pp_stages) count as if they were capitals, and are no doors. Empty ones are left alone, as
 * empty doors are, and so are all other names. */
#define DOORS_EDITS_MAX 3u
MUST_USE status doors_check_names(const char *const *environment, errmsg *e);

/* If argument is a door's flag without its leading dashes ("stages"), its index; otherwise -1. */
int doors_flag_index(const char *flag);

/* What a person called the door: "MEMRA_PP_STAGES", or "--stages" when the value came from it. */
const char *doors_name(const doors *d, door_id id);

const char *transport_word(transport_kind k); /* "ipc" */
const char *signal_word(signal_kind k);       /* "spin" */

/* All doors unset: one stage. */
doors doors_default(void);

/* Parse and check everything that can be checked without a model. ST_BAD_DOOR with *e; *out is
 * doors_default() then. */
MUST_USE status doors_parse(doors *out, const door_values *v, errmsg *e);

/* Give each of n_stages a device when another number was named: the list, dealt out in turn (none
 * named, or auto alone: stays so). */
void doors_deal_devices(doors *d);

/* For stages_elsewhere. ST_BAD_DOOR: a fault names a stage that there is none of with n_stages,
 * which is the most that the caller's option or variable `said` asks for. */
MUST_USE status doors_check_faults(const doors *d, uint32_t n_stages, const char *said, errmsg *e);

#endif
