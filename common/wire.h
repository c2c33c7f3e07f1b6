/* wire.h - control messages between coordinator and stages, over ZeroMQ.
 *
 * A message is one ZeroMQ frame: wire_header, then the body of its kind, fixed layout, little
 * endian, no pointers. Tensors never travel here. One endpoint and epoch per incarnation of a
 * stage; a message of another epoch is dropped. wire_valid checks a frame whole (magic, version,
 * kind, sizes, counts and every index that has a fixed bound) and is called by both sides before
 * anything is read; bounds that depend on the plan (branch, block, position, token) are checked by
 * the stage against its configuration.
 *
 * When a stage is lost (DESIGN section 8): every survivor is sent QUIESCE. Its waits on boundaries
 * end at once, the step in hand ends where it is, steps behind it are dropped, and it says
 * QUIESCED. With the dead reaped and replaced, all are sent REATTACH, under one new epoch for every
 * boundary, and PROBE. REPLAYs, under the number of the last step that came back, give the
 * replacement what it must know; then the steps in flight are issued again under their own numbers.
 * A stage that had applied a step's KV operations does not apply them twice (it remembers the last
 * such step); it may run the step's rows twice: by the law they write the same K and V at the same
 * positions. A stage with recurrent state could not: it will have to keep the rows that it sent and
 * send those. */
#ifndef COMMON_WIRE_H
#define COMMON_WIRE_H

#include "common/doors.h"
#include "common/gguf.h"
#include "common/kvclass.h"
#include "common/sampler.h"

#define WIRE_MAGIC 0x4d524d57u /* "WMRM" */
#define WIRE_VERSION 7u
#define WIRE_ROWS_MAX 4096u
#define WIRE_KV_OPS_MAX 16384u
#define WIRE_SAMPLERS_MAX 1024u
#define WIRE_ROUNDS_MAX 64u
#define WIRE_GROUPS_MAX 128u
#define WIRE_AHEAD_ROWS 64u
#define WIRE_STOP_IDS 15u
#define WIRE_TEXT_BYTES 512u
#define WIRE_NONE UINT32_MAX

/* kind, direction, body */
#define WIRE_KIND_LIST(X)                                                                          \
    X(WIRE_HELLO, 1)   /* stage: I am here, of this build */                                       \
    X(WIRE_CONFIG, 2)  /* coordinator: what you are */                                             \
    X(WIRE_LOADED, 3)  /* stage: weights in place, memory allocated (the load barrier) */          \
    X(WIRE_PROBE, 4)   /* coordinator: send and check the byte probe on your boundaries */         \
    X(WIRE_PROBED, 5)  /* stage: every byte equal */                                               \
    X(WIRE_STEP, 6)    /* coordinator: do this step */                                             \
    X(WIRE_RESULT, 7)  /* last stage: step done, results committed */                              \
    X(WIRE_FAULT, 8)   /* stage: this failed; I end now */                                         \
    X(WIRE_STOP, 9)    /* coordinator: end */                                                      \
    X(WIRE_BYE, 10)    /* stage: ended cleanly */                                                  \
    X(WIRE_QUIESCE, 11)  /* coordinator: a stage was lost: end your waits, drop what you have */   \
    X(WIRE_QUIESCED, 12) /* stage: quiet; this much was applied */                                 \
    X(WIRE_REATTACH, 13) /* coordinator: your boundaries go on under this epoch */                 \
    X(WIRE_REPLAY, 14)   /* coordinator: rows that a lost stage knew (body of a STEP) */           \
    X(WIRE_REPLAYED, 15) /* stage: they are in place again */                                      \
    X(WIRE_POISONED, 16) /* last stage, before the RESULT: a row of it holds NaN or infinity */
typedef enum {
#define X(name, number) name = number,
    WIRE_KIND_LIST(X)
#undef X
} wire_kind;

typedef struct {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t stage, epoch;
    uint32_t body_bytes, reserved;
    uint64_t seq;
} wire_header;

typedef struct {
    char build[32];      /* terminated */
    uint32_t pid, reserved;
} wire_hello;

/* The first stage may walk all layers: it borrows the others' K, V and weights. */
#define LOAN_UNSPLIT 1u
#define LOAN_GATHERED 2u /* the first stage has all weights: the others borrow theirs */

typedef struct {
    char build[32];                  /* the coordinator's; a stage refuses another */
    uint32_t stage_i, n_stages, epoch, n_layers; /* epoch: of this incarnation */
    uint32_t edge_epoch;             /* of all boundaries */
    int32_t trace_fd;                /* tracering.h; 0: no trace is written */
    uint32_t layer_begin, layer_end;
    uint32_t n_ctx, n_branches, rows_max, n_readback;
    uint32_t n_blocks[KV_CLASS_COUNT];
    uint32_t kv_type;                /* dtype: F32, F16, BF16 */
    uint32_t n_threads, numa_node;   /* WIRE_NONE: anywhere */
    uint32_t device;                 /* device_kind: DEVICE_CPU or DEVICE_CUDA */
    uint32_t cuda_index;             /* the ordinal, unless cuda_uuid names the device */
    int32_t run_block_fd, readback_fd;
    int32_t in_fd, out_fd; /* boundaries s-1 -> s and s -> s+1 (mod N); -1 with one stage */
    int32_t journal_in_fd, journal_out_fd; /* of those boundaries; -1: none */
    int32_t loan_fd; /* where stages say what they lend (loan.h); -1: nobody borrows */
    uint32_t loans;                  /* LOAN_..: what for; 0 without it */
    uint32_t n_seam;                 /* stages in this one process (seam.h); 1: this one */
    uint32_t range[STAGES_MAX + 1];  /* of all stages, s has the layers [range[s], range[s + 1]);
                                        read with  a loan or several in one process */
    uint32_t n_model_fds;
    int32_t model_fd[GGUF_FILES_MAX];
    uint32_t wait_limit_ms;          /* boundary waits give up after this; longer than the
                                        coordinator's own deadline */
    uint32_t transport, signal;      /* transport_kind, signal_kind: as forced on every boundary */
    char isa[16];
    char cuda_uuid[48];
    char fault[WIRE_TEXT_BYTES];
} wire_config;

typedef struct {
    uint64_t weights_bytes, kv_bytes, scratch_bytes; /* as allocated, to compare with the plan */
    char device_name[64];
} wire_loaded;

typedef struct {
    uint32_t n_probes;
    uint32_t ahead;                  /* 1: both its boundaries carry STEP_AHEAD */
    char transport[16], signal[16];  /* of the boundary into the stage; terminated, "": none */
} wire_probed;

typedef struct {
    uint32_t code, reserved;         /* status */
    uint64_t seq;                    /* step in hand, 0: none */
    char text[WIRE_TEXT_BYTES];      /* terminated; one line */
} wire_fault;

/* On the table of the operation's class; OPEN and FREE, of class global, on the whole branch. */
typedef enum {
    KV_OPEN,     /* branch starts empty, under this generation */
    KV_ALLOC,    /* table[a] = block b; its first c positions hold what the branch's rows would give
                    (a shared prefix; for the record: stages do not read c) */
    KV_FREE,     /* branch ends: its tables are gone */
    KV_TRUNCATE, /* positions >= a are void; table entries past them are dropped */
    KV_RELEASE,  /* entries below a are let go: they have slid out of the window */
    KV_FORK,     /* branch takes the first a / KV_BLOCK table entries of branch b */
    KV_COPY,     /* block a gets the first c positions of block b (copy on write) */
    KV_WIPE,     /* block a is zeroed */
    KV_SNAPSHOT, /* state of branch into a (recurrent classes; refused until one exists) */
    KV_RESTORE,
    KV_OP_COUNT
} kv_op_kind;

typedef struct {
    uint32_t kind, kv_class, branch, generation, a, b, c, reserved;
} wire_kv_op;

#define ROW_LIVE 1u
#define ROW_LOGITS 2u    /* write the logits to readback row `readback` */
/* Draw the next token with sampler `sampler_i`, into readback row `readback` or, where that is
 * WIRE_NONE, into the branch's ring of tokens. */
#define ROW_SAMPLE 4u
/* Of a step of several rounds, what the row is in the first one: in each later one it has the token
 * that it drew, at the next position. It is live in its first `rounds` rounds, unless it draws an
 * id of its stop set before: the live bit is then cleared and travels with the row. */
typedef struct {
    uint64_t session_step;
    uint32_t session, generation, branch, position, token, flags;
    uint32_t readback, sampler_i, stop_i; /* WIRE_NONE: not used */
    uint32_t rounds;                      /* not read in steps of one round */
} wire_row;

typedef struct {
    uint32_t n, id[WIRE_STOP_IDS];
} wire_stops;

#define STEP_PRIME 1u        /* rows of a prompt; otherwise decode */
#define STEP_OVERLAP 2u      /* doors of the step, for the record and for gates */
#define STEP_PRIME_PIPE 4u
#define STEP_RESET 8u        /* REPLAY: first forget every branch */
/* REPLAY: rows walk all stages, from tokens; otherwise this one alone, the first stage from
 * tokens, any other from its journal. */
#define STEP_THROUGH 16u
#define STEP_OVERWRITTEN 32u /* REPLAY: no step in flight reads a row that a later one has written
                                anew, so that such rows may be as they are now */
#define STEP_VERIFY 64u      /* of one round: rows hold drafts beside the tokens that were drawn */
/* The first stage walks all layers, with what the others lend; they hand the rows on. No KV
 * operations; whatever came before has landed, but for steps of this kind. */
#define STEP_UNSPLIT 128u
/* The step before, seq - 1, had these rows and groups, and several rounds: this one's first
 * round is the next one of those. Rows come with the token and the live bit that they left it
 * with, on the slots that follow, and what the message says of these is not read. */
#define STEP_GOES_ON 256u
#define STEP_AHEAD 512u      /* of several rounds, in at most wire_ahead_groups groups of at most
                                WIRE_AHEAD_ROWS rows: the devices tell each other what is drawn
                                (stage/ring.h). The same for the step that it goes on after */
/* Every stage runs, for each round, its groups one after the other; a group is a crossing of its
 * own on every boundary, which takes the slots in turn, beginning with `slot` (without
 * STEP_OVERLAP: slot 0). With several rounds every row samples, none asks for logits, and the
 * tokens of all rounds but the last go from the last stage back to the first; those of the last one
 * too, once it knows that the next step goes on. */
typedef struct {
    uint32_t flags, slot;
    uint32_t n_kv_ops, n_rows, n_samplers, n_stops;
    uint32_t rounds, n_groups;
    /* then wire_row [n_rows], sampler_params [n_samplers], wire_kv_op [n_kv_ops], wire_stops
     * [n_stops], uint32_t [n_groups]: where each group's rows end */
} wire_step;

/* Groups of a STEP_AHEAD. A slot is handed back when its receiver has walked what was in it, so
 * that a group can be under way to every stage and back only while none waits for a slot that waits
 * for it. */
static inline uint32_t wire_ahead_groups(uint32_t n_stages, bool overlap)
{
    return overlap ? 2 * n_stages - 1 : n_stages - 1;
}

/* One for each round and group, in that order. */
typedef struct {
    uint32_t n_rows, round, group, reserved; /* rows whose result was committed */
} wire_result;

/* The first such row of its session among those of the RESULT, and the stage that found it. */
typedef struct {
    uint32_t session, generation, branch, position;
    uint32_t stage, in_logits; /* in_logits: 1; 0: in the hidden state that the stage computed */
} wire_poisoned;

/* Sequences of steps; 0: none. */
typedef struct {
    uint64_t applied_seq;            /* the last whose KV operations were applied */
    uint64_t done_seq;               /* the last that was done whole */
} wire_quiesced;

typedef struct {
    uint32_t edge_epoch, reserved;
} wire_reattach;

typedef struct {
    uint32_t n;                      /* REPLAYs done since the one with STEP_RESET */
    uint32_t missing;                /* 1: rows of it are not in the journal */
} wire_replayed;

_Static_assert(sizeof(wire_header) == 32, "layout");
_Static_assert(sizeof(wire_kv_op) == 32, "layout");
_Static_assert(sizeof(wire_row) == 48, "layout");
_Static_assert(sizeof(wire_step) == 32, "layout");
_Static_assert(sizeof(sampler_params) == 40, "layout");

/* The frame [data, bytes) is a whole, well-formed message. */
bool wire_valid(const void *data, uint64_t bytes);

/* Parts of a valid frame. */
const wire_header *wire_head(const void *data);
const void *wire_body(const void *data);

/* The arrays of a valid WIRE_STEP or WIRE_REPLAY body. */
typedef struct {
    const wire_step *step;
    const wire_kv_op *kv_ops;
    const wire_row *rows;
    const sampler_params *samplers;
    const wire_stops *stops;
    const uint32_t *group_end;
} step_view;
step_view wire_step_view(const void *data);
step_view wire_step_body_view(const void *body);
uint64_t wire_step_bytes(const wire_step *counts); /* of the whole frame */
uint64_t wire_frame_bytes_max(void); /* of any frame; a multiple of 16 */

const char *wire_kind_word(uint32_t kind);

#endif
