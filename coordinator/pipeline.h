/* pipeline.h - the coordinator as a library: open a model over N stage processes, drive sessions.
 *
 * An engine thread of the pipeline owns the sockets, the children and the schedule from open to
 * close; the calls below hand it requests and wait. Calls may come from several threads; one
 * session is used by one thread at a time.
 *
 * When a stage is lost while the pipeline serves, it is replaced: the others keep their weights and
 * KV, requests wait and go on with the same bits, and one line of the log says what happened. When
 * it was replaced restarts times within the window, or is lost before the pipeline serves, every
 * call ends with ST_STAGE_LOST and the line that names stage and cause, now and from then on.
 *
 * A session whose hidden state or logits hold NaN or infinity is ended, alone: what it asked for,
 * and every later call but session_drop, ends with ST_NAN and a line that names session, position,
 * stage and layers. Others, in the same steps too, go on with the same bits; its KV blocks are
 * wiped before they are used again.
 *
 * Nothing is left behind after close: no process, socket or memory. The library installs no signal
 * handlers, writes nothing to stdout. */
#ifndef COORDINATOR_PIPELINE_H
#define COORDINATOR_PIPELINE_H

#include "common/plan.h"
#include "common/runblock.h"
#include "common/sampler.h"
#include "coordinator/draft.h"

typedef struct pipeline pipeline;
typedef struct session session;
typedef struct pending pending;
typedef struct generation generation;
struct trace;

/* Told while opening, from the engine thread: bytes loaded per stage. */
typedef void (*pipeline_progress)(void *ctx, uint32_t stage, uint64_t done_bytes,
                                  uint64_t total_bytes);

typedef struct {
    const char *model_path;
    const char *called; /* NULL, or who its stages are, for lines about them: "draft model" */
    int model_fd;       /* > 0: the model is this file, kept by the caller, and its pages are
                         * memory in use already (a memfd); model_path is then its name */
    const doors *doors;
    plan_request plan;
    uint32_t n_threads;          /* per stage; 0: the machine's cores shared among the stages */
    const char *isa;             /* NULL: auto */
    const char *run_dir;         /* base of the private directory; NULL: $XDG_RUNTIME_DIR or /tmp */
    const char *stage_program;   /* NULL: memra-stage beside this program */
    uint32_t start_timeout_ms;   /* a stage that shows no progress in its start, or does not answer
                                    there, for   so long is given up; 0: 30 s */
    uint32_t hang_timeout_ms;    /* the same of a stage that has started; 0: 5 s */
    uint32_t restarts;           /* of one stage within restart_window_ms, at most RESTARTS_MAX; 0:
                                  * none is replaced */
    uint32_t restart_window_ms;  /* 0: 60 s */
    bool unsplit;                /* step doors that ask for unsplit walks may come later, where the
                                  * devices allow them; with those of `doors` it is so anyway */
    pipeline_progress on_progress; /* may be NULL */
    void *progress_ctx;
    struct trace *trace; /* coordinator/trace/trace.h, open as long as the pipeline; NULL: none */
    uint32_t *faults_met; /* NULL, or where close adds a bit for each entry of the doors' faults
                           * that a stage has carried out; any thread that closes a pipeline */
} pipeline_options;

#define RESTARTS_DEFAULT 10u
#define RESTARTS_MAX     64u

pipeline_options pipeline_options_default(const char *model_path, const doors *d);

/* Plan, start the stages last to first, wait for the load barrier, probe every boundary. *out is
 * NULL on error. ST_BAD_MODEL, ST_BAD_DOOR, ST_USAGE, ST_RESOURCES, ST_STAGE_LOST (a stage that did
 * not start: stage, elapsed, limit, flag), ST_INTERRUPTED. *interrupt (may be NULL) is polled: when
 * it becomes non-zero the pipeline winds down and every call ends with ST_INTERRUPTED. */
MUST_USE status pipeline_open(pipeline **out, const pipeline_options *o,
                              const volatile int *interrupt, errmsg *e);

/* Stop the stages in reverse of their start (first to last), reap them, remove the run
 * directory. */
void pipeline_close(pipeline *p);

/* ST_OK while it serves; otherwise how it failed. Any thread, at once. */
MUST_USE status pipeline_check(const pipeline *p, errmsg *e);

const model_desc *pipeline_model(const pipeline *p);
const gguf *pipeline_file(const pipeline *p);
const plan *pipeline_plan(const pipeline *p);
const char *pipeline_run_dir(const pipeline *p); /* this run's own directory */

/* What a stage is and did, a snapshot. */
typedef struct {
    int pid;
    uint32_t epoch, state;       /* stage_state */
    char device[64];
    char transport[16], signal[16]; /* of the boundary into it; "": none yet */
    uint64_t weights_bytes, kv_bytes, scratch_bytes; /* as the stage reports them */
    uint64_t n_steps, n_rows, n_chunks, n_overlaps, n_probes;
    uint64_t busy_ns, wait_in_ns, wait_out_ns;
    uint64_t tx_rows, tx_bytes, rx_rows, rx_bytes;
    uint64_t tx_crossings[2], rx_crossings[2];
    uint64_t n_batches, n_batches_split; /* decode steps with rows of several sessions; cut */
    uint64_t n_prime_batches, n_prime_batches_split; /* the same of prompt chunks */
    uint64_t n_free_rounds;      /* groups walked in rounds after a step's first one */
    uint64_t n_ahead_rounds;     /* those whose rows came from device to device, no host knowing */
    uint64_t n_verifies, n_verifies_split; /* steps that verified drafts; cut */
    uint64_t n_unsplit;          /* steps whose layers it walked all, the others' too */
    uint64_t load_ns;            /* from start to loaded */
    uint64_t n_lost;             /* so many of its processes were lost */
    uint64_t n_bad_messages; /* between it and us, either way, that failed their check: dropped */
    bool replacing;              /* it, or another stage, is being replaced, and it takes part */
    char last_fault[sizeof((errmsg *)0)->text]; /* how the last was lost; empty: none was */
} stage_snapshot;
void pipeline_stage(const pipeline *p, uint32_t stage_i, stage_snapshot *out);

/* Speculation so far, over all generations: steps that verified drafts; drafted tokens in them, and
 * those that were what was drawn. */
typedef struct {
    uint64_t n_verifies, n_drafted, n_accepted;
} draft_counts;
void pipeline_drafts(const pipeline *p, draft_counts *out);

/* One stage that was replaced. Times of CLOCK_MONOTONIC. */
#define RECOVERIES_KEPT 256u
typedef struct {
    uint32_t stage;
    int lost_pid, pid;
    uint64_t noticed_ns, reaped_ns, loaded_ns, attached_ns, resumed_ns;
    uint64_t waited_ns;          /* of reaped to attached, before a start: as a pause after repeated
                                    losses, or for what others had borrowed of the dead */
    uint64_t limit_ns;           /* it had stood still for so long, as is allowed; 0: it ended */
    uint64_t replayed_rows;
    uint32_t replayed_chunks;    /* messages that they came in */
    bool through;                /* they walked all stages; otherwise what was lost alone */
    errmsg why;
} recovery_record;

/* Copies records number `from` (0: the first) to at most from + max - 1 (out may be NULL when max
 * is 0), as far as they are among the last RECOVERIES_KEPT, and returns how many there are in
 * all. */
uint64_t pipeline_recoveries(const pipeline *p, uint64_t from, recovery_record *out, uint32_t max);

/* Have the process that stage_i is now carry out its faults of at=asked (common/fault.h). */
void pipeline_ask_faults(pipeline *p, uint32_t stage_i);

/* Doors carried in the steps that are issued from now on. Nothing has changed after ST_BAD_DOOR: an
 * unsplit walk is refused with these devices (machine/unsplit.h); ST_USAGE: the pipeline was opened
 * for none. */
MUST_USE status pipeline_set_step_doors(pipeline *p, const step_doors *d, errmsg *e);

/* What the schedule did so far. */
typedef struct {
    uint64_t n_shared_rows; /* positions that sessions took over from others' blocks, not walked */
    uint64_t n_pauses;           /* sessions whose KV was let go for others */
    uint64_t n_restored_rows;    /* positions that were primed again for that */
    uint32_t n_waiting;          /* sessions that wait for KV now */
    uint32_t n_sessions;         /* open */
    uint32_t n_blocks_used;      /* of the global class */
    uint32_t n_blocks_cached;    /* of those: held for their prefixes, alone or too */
} schedule_snapshot;
void pipeline_schedule(const pipeline *p, schedule_snapshot *out);

/* Whether its devices tell each other what the rounds of a step draw, as its boundaries are now. */
bool pipeline_goes_ahead(const pipeline *p);

/* Let go of the KV that is kept for its prefix alone. */
void pipeline_forget_prefixes(pipeline *p);

/* --- sessions ------------------------------------------------------------------------------------
 *
 * KV blocks are taken when rows are asked for. When there are none, a session that was opened to
 * wait stands in line instead of being refused: by priority, then first come first served, and
 * whoever has been passed over often goes first. Room is made by letting go of the KV of prefixes
 * that nobody holds, then of idle sessions, then of generations that came later or have less
 * priority; these are primed again from their tokens when it is their turn, which gives the same
 * bits. A generation never ends for want of blocks: it pauses. */

typedef struct {
    sampler_params sampler;
    int32_t priority; /* of those that wait for KV, or for their prompt to be read; higher goes
                       * first, then who came first; who was passed by often goes before
                       * all. Streams are never held up by it. Default: 0 */
    bool wait;                   /* for a free session and for KV; default: ST_RESOURCES instead */
    bool share; /* take over the blocks of others that began with the same tokens, and
                 * let others have one's own: rows are not walked then. Default: no */
} session_options;
session_options session_options_default(void);

/* A session at position 0. ST_RESOURCES: n_sessions are open; ST_USAGE: sampler out of range. */
MUST_USE status session_open_with(pipeline *p, const session_options *o, session **out, errmsg *e);
/* The same with only the sampler chosen. */
MUST_USE status session_open(pipeline *p, const sampler_params *s, session **out, errmsg *e);

/* ST_OK while it goes on; otherwise how it, or the pipeline, ended. */
MUST_USE status session_check(const session *s, errmsg *e);

/* Append n tokens (n >= 0) in chunks. logits: NULL, or f32 [n, n_vocab] for the logits after each;
 * next: NULL, or the token drawn after the last one (n >= 1). ST_CONTEXT_FULL: n does not fit into
 * the context; ST_RESOURCES: no KV block left; ST_USAGE: a token >= n_vocab. Nothing is applied
 * then. ST_NAN: the session has ended. */
MUST_USE status session_prime(session *s, const uint32_t *tokens, uint64_t n, float *logits,
                              uint32_t *next, errmsg *e);

/* Append one token and decode: logits f32 [n_vocab] or NULL, next or NULL. Errors as above. */
MUST_USE status session_step(session *s, uint32_t token, float *logits, uint32_t *next, errmsg *e);

/* The same without waiting. The step is in flight until pending_logits_wait or pending_drop, and
 * the session may go on meanwhile. ST_RESOURCES also when n_readback deferred steps are in
 * flight. */
MUST_USE status session_step_deferred(session *s, uint32_t token, pending **out, errmsg *e);

/* Wait for a deferred step, hand out its results and free it (also on error). */
MUST_USE status pending_logits_wait(pending *w, float *logits, uint32_t *next, errmsg *e);
/* Drop it unwaited. */
void pending_drop(pending *w);

/* --- a session that goes on by itself -----------------------------------------------------------
 *
 * Each token that is drawn is applied by the pipeline itself, without a call in between: steps run
 * several rounds, and tokens are here as soon as they are committed. */

#define GENERATE_STOPS_MAX 15u
#define GENERATE_DRAFT_MAX 16u

typedef struct {
    uint64_t n_max;              /* draw at most so many tokens, >= 1 */
    const uint32_t *stop;        /* drawing one of these ends it; [n_stop], copied */
    uint32_t n_stop;             /* <= GENERATE_STOPS_MAX */
    uint32_t n_draft; /* <= GENERATE_DRAFT_MAX: verify up to so many drafted tokens in one
                       * step, where that measures faster; 0: never */
    bool draft_always;           /* wherever there is a draft, faster or not */
    draft_source *draft; /* outlives the generation; NULL: what followed the last tokens when
                          * they last stood in the session (prompt lookup) */
    void (*on_more)(void *ctx);  /* NULL, or told from the engine thread that tokens came or that it
                                  * ended: it may only signal, and call nothing of this library */
    void *ctx;
} generate_limits;

typedef enum {
    GENERATE_RUNS,
    GENERATE_LIMIT,              /* n_max tokens were drawn */
    GENERATE_STOPPED,            /* the last token drawn is one of stop */
    GENERATE_CONTEXT,            /* the context is full */
    GENERATE_CANCELLED           /* generation_close came first */
} generate_end;

/* Apply `token`, draw the next, apply that, and so on. Until generation_close the session takes no
 * other call. ST_USAGE: a token >= n_vocab, n_max 0, too many stop ids or drafts, or it generates
 * already. */
MUST_USE status session_generate(session *s, uint32_t token, const generate_limits *l,
                                 generation **out, errmsg *e);

/* The next token that was drawn, the one that ended it included; waits for it. TOKEN_NONE: it has
 * ended and all were handed out. Errors of a step: the pipeline's,
 * or why the session was ended. */
MUST_USE status generation_next(generation *g, uint32_t *token, errmsg *e);

/* The same without waiting: up to `room` tokens; *n 0 and *end GENERATE_RUNS: none yet. */
MUST_USE status generation_take(generation *g, uint32_t *tokens, uint32_t room, uint32_t *n,
                                generate_end *end, errmsg *e);

/* How it ended, or GENERATE_RUNS. */
generate_end generation_ended(const generation *g);

/* End it, wherever it is, and free it. The session is then as if the tokens had been handed to
 * session_step one by one, so far as they were taken: it holds all of them but the last. What ran
 * over is forgotten. Errors as session_truncate; it is freed then too. */
MUST_USE status generation_close(generation *g, errmsg *e);

/* A new session with the same tokens, sharing whole KV blocks; the last, partly filled one is
 * copied. s must have no deferred step in flight. */
MUST_USE status session_fork(session *s, session **out, errmsg *e);

/* Forget positions >= n (n <= position). Where window layers have let go of what the next row would
 * see, the session is primed again with its own first n tokens, which gives the same bits: the call
 * takes as long as that prompt, and ST_RESOURCES says that a fork holds too many of its blocks
 * (nothing has changed then). */
MUST_USE status session_truncate(session *s, uint64_t n, errmsg *e);

void session_set_sampler(session *s, const sampler_params *p);
uint64_t session_position(const session *s); /* tokens applied or in flight */
void session_drop(session *s);

#endif
