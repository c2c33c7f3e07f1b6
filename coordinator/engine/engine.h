/* engine.h - inside the coordinator library: the state that the engine thread and the API share.
 *
 * The engine thread owns sockets, children, supervision and the schedule. API calls take `lock`,
 * change the books (sessions, KV, the request queue) and wait on their request's condition; the
 * engine takes the lock for each turn of its loop, never while it waits. Private to
 * coordinator/. */
#ifndef COORDINATOR_ENGINE_H
#define COORDINATOR_ENGINE_H

#include "common/readback.h"
#include "common/wire.h"
#include "coordinator/engine/child.h"
#include "coordinator/engine/chunk.h"
#include "coordinator/engine/guesses.h"
#include "coordinator/engine/mirror.h"
#include "coordinator/engine/prefix.h"
#include "coordinator/machine/gpus.h"
#include "coordinator/pipeline.h"
#include "coordinator/engine/rundir.h"
#include "coordinator/trace/trace.h"
#include "coordinator/engine/worth.h"

#include <pthread.h>
#include <stdio.h>

/* Speculation, over all generations (verify.c). */
typedef struct {
    worth worth;
    uint64_t landed_ns;         /* when the last step of generations came back */
    uint32_t n_dry;             /* steps since there was a draft */
    guess_record record;
    uint64_t held_ns;           /* generations wait for drafts since then; 0: they do not */
    bool allowed;               /* drafts that cost have had their allowance */
    draft_counts counts;
} verify_state;

typedef enum {
    PHASE_STARTING, /* processes spawned, weights loading */
    PHASE_PROBING,  /* the load barrier is passed */
    PHASE_READY,
    PHASE_RECOVERING, /* a stage was lost and is being replaced; requests wait */
    PHASE_STOPPING,
    PHASE_DEAD      /* every child is reaped */
} engine_phase;

/* Where a stage is on the way through a recovery (recover.c). */
typedef enum {
    SLOT_RUNNING,    /* not in one */
    SLOT_LOST,       /* killed, not yet reaped */
    SLOT_PAUSED,     /* reaped; its replacement waits for its turn */
    SLOT_LOADING,    /* the replacement is on its way to its weights */
    SLOT_QUIESCING,  /* a survivor, told to be quiet */
    SLOT_QUIET,
    SLOT_ATTACHED    /* on the new epoch: byte probe, replay */
} slot_state;

/* One incarnation of a stage, and what outlives it. */
typedef struct {
    child process;
    int pid;                    /* of the process, also when it is reaped */
    void *socket;               /* ZMQ_PAIR, bound by us */
    char endpoint[128];
    uint32_t epoch;
    bool hello, loaded, probed;
    wire_loaded facts;
    wire_probed met;            /* of the boundary into it */
    uint64_t start_ns, loaded_ns;
    uint64_t first_start_ns;    /* of the first incarnation: what is counted goes on */
    slot_state state;
    bool empty;                 /* its KV is not what the steps in flight need: replay */
    bool mute;                  /* a message could not be sent to it */
    uint32_t n_bad;             /* messages of this incarnation that failed their check */
    uint64_t n_bad_all;         /* of all incarnations */
    uint32_t n_replayed;        /* answers to the replay in hand */
    uint64_t applied_seq;       /* as it said when it was quiet */
    /* the loss in hand, and the losses so far */
    errmsg why;
    int lost_pid;
    uint64_t lost_ns, reaped_ns; /* the first reaped, if replacements were lost as well */
    uint64_t gone_ns, start_at_ns; /* the last one; when the next may start */
    uint64_t waited_ns;          /* between any that was gone and the next, before its start */
    uint64_t lost_limit_ns;     /* it had stood still for so long; 0: it ended */
    uint64_t lost_at_ns[RESTARTS_MAX]; /* the last ones, by number */
    uint64_t n_lost;
    /* supervision: what was seen last and for how long it has not changed */
    uint64_t seen_progress, seen_heartbeat;
    uint64_t still_progress_ns, still_heartbeat_ns;
    uint64_t broken_limit_ns;   /* the limit that it was found to have passed; 0: none */
} stage_slot;

/* What a session asks for: tokens to append, results wanted. Owned by the caller that waits for it,
 * or by its `pending`. */
typedef struct request {
    struct request *next;       /* of the same session, while rows are left to issue */
    session *session;
    const uint32_t *tokens;
    uint64_t n_tokens;
    uint64_t first_position;
    bool prime;                 /* a prompt; otherwise decode */
    bool want_sample;           /* draw a token after the last row */
    float *logits;              /* f32 [n_tokens, n_vocab] or NULL */
    bool deferred;              /* its one readback row stays with it until waited for or dropped */
    uint32_t readback;          /* deferred: that row */
    uint32_t own_token;         /* deferred: tokens points here */
    uint64_t n_issued, n_done;  /* rows */
    uint32_t n_steps;           /* in flight */
    uint32_t next_token;
    bool finished, dropped;
    bool unreserved;            /* its KV blocks are still to be taken */
    bool restores;              /* session.restore: nobody waits for it */
    errmsg why;                 /* it was ended with its session */
    generation *generation;     /* tokens are drawn and applied until it ends; the counts above are
                                 * not used then */
    pthread_cond_t done;
} request;

/* A session that goes on by itself. Its request stands first in its session's line until it
 * ends. */
struct generation {
    request r;
    pipeline *p;
    generate_limits limits;     /* stop is not used */
    wire_stops stops;
    uint32_t input;             /* the token that is applied next */
    uint32_t *tokens;           /* [n_room]: drawn */
    uint64_t n_drawn, n_taken, n_room;
    generate_end end;
    bool cancelled;             /* ends when its rows in flight have come back */
    guesses guesses;            /* what may follow input */
    bool undrafted;             /* the next row goes without: among drafts it was poisoned */
};

struct pending {
    request r;
    pipeline *p;                /* outlives the session */
};

/* Rows of one request in a step (NULL: a row of nobody, dead): its rows [first, first + n_rows),
 * neighbours in the step too. Of a generation, from position `first` on: one row, in at most
 * `rounds` rounds, or the next token and its drafts in one; n_drawn tokens have come back. */
typedef struct {
    request *r;
    uint64_t first;
    uint32_t n_rows;
    uint32_t rounds, n_drawn;
    uint32_t ahead;             /* rounds of it that were in flight before this step */
    bool dead;                  /* its live bit was cleared */
    bool poisoned;              /* a generation's: the row after those that drew holds NaN */
    uint32_t token;             /* of the round in hand, as it came back, checked */
    uint32_t drawn[1 + GENERATE_DRAFT_MAX]; /* the same, of a step that verified */
} flight_part;

/* What row `row` of the request of part part_i gives: a readback row, or WIRE_NONE: a token in the
 * branch's ring. */
typedef struct {
    uint32_t readback, part_i;
    uint64_t row;
    uint32_t token;             /* as it came back, checked */
} flight_result;

/* A step in flight: what it carries, and the message itself (the body of WIRE_STEP, without
 * header), so that it can be issued again. Parts stand in the order of their rows; none: KV
 * operations alone.
 *
 * A free-running step has generations for parts, one row each: group g is the parts (and rows)
 * [group_end[g - 1], group_end[g]). Any other is one group in one round. */
typedef struct flight {
    uint64_t seq;               /* 0: free */
    bool prime, free_running;
    bool goes_on;               /* free-running, after one that is in flight (sequel.c) */
    bool ahead;                 /* as the door said when it was issued */
    bool overlap;               /* step_doors.overlap when it was issued */
    struct flight *after;       /* the one that goes on after it; NULL: none does, yet */
    bool verify;                /* of generations, each with its drafts */
    bool unsplit;               /* its rows walk all layers on the primary */
    uint32_t n_parts, n_rows, n_results;
    uint32_t rounds, n_groups, group_end[WIRE_GROUPS_MAX];
    uint32_t n_pieces;          /* groups of all rounds that have come back, since it was issued */
    uint32_t n_taken; /* those whose results were taken: no fewer when it is issued again */
    uint64_t issued_ns, first_round_ns; /* the latter: when that was back */
    uint64_t held_ns;           /* generations had waited for drafts since then; 0: had not */
    worth_crowd crowd;          /* generations: of so many that it is one share */
    bool short_for_drafts;      /* its rounds are few, so that drafts are looked for soon */
    bool alone;                 /* nothing but steps of generations was in flight with it */
    uint64_t ops_end;           /* operations put that it, or a step before it, carries */
    flight_part *part;          /* [parts_max] */
    flight_result *result;      /* [results_max] */
    unsigned char *body;        /* [body_bytes], room grows */
    uint64_t body_bytes, body_room;
} flight;

/* Its parts are generations. */
static inline bool flight_generates(const flight *f)
{
    return f->free_running || f->verify;
}

/* Entries [first, n) hold blocks; those below first were released (window class). */
typedef struct {
    uint32_t first, n;
    uint32_t *block;            /* [blocks_per_ctx] */
} session_table;

struct session {
    pipeline *p;
    uint32_t id, branch, generation;
    uint64_t position;          /* tokens applied or queued */
    uint64_t steps;             /* session_step of the next row */
    session_table table[KV_POOLS]; /* by class: kvbooks.h */
    uint32_t n_window_reserved; /* window blocks that it may come to hold */
    uint32_t *tokens;           /* [n_ctx]: what it holds, to prime it again, and to find drafts */
    prefix_link *link;          /* [blocks_per_ctx]: its whole blocks in the table of prefixes */
    uint32_t n_links;
    uint64_t n_adopted;         /* positions taken over that no request counts as done yet */
    uint64_t adopted_at;        /* operations put when they were */
    sampler_params sampler;
    int32_t priority;
    bool wait, share;
    uint32_t n_queued;          /* requests not finished */
    uint32_t n_steps;           /* of all of them in flight */
    request *first, *last;      /* those that have rows to issue, in the order of positions */
    bool generating;            /* first is a generation's */
    session *ready_next;        /* in the pipeline's list, while first has a row to issue now */
    bool paused;                /* it holds no KV; its positions are primed again first */
    request restore;            /* does that */
    bool waiting;               /* in the pipeline's list of those that wait for KV */
    session *waiting_next;
    uint64_t ticket, waits_since; /* order of arrival; admissions when it began to wait */
    uint64_t used;              /* when it was last asked for something */
    uint64_t counted;           /* batch.c: the last count, or choice, that has seen it */
    bool poisoned;              /* a row in flight was found to hold NaN or infinity: */
    wire_poisoned poison;       /* the one of the lowest position */
    errmsg ended;               /* why it was ended; ST_OK: it goes on */
};

/* Rows that lost stages must know again, on their way (replay.c). */
typedef struct {
    bool begun, through;        /* through: from tokens through all stages */
    bool missing;               /* a journal has not what it should: once more, through */
    bool may_be_overwritten;    /* STEP_OVERWRITTEN */
    bool over;                  /* all was sent */
    uint32_t branch;            /* in hand */
    bool opened;
    uint32_t position, end;     /* its rows: the next one, and where they end */
    uint32_t n_sent;            /* messages */
    uint64_t n_rows;
    bool *whole;                /* [n_blocks of class global]: written again, every position */
    uint32_t *told;             /* [the same]: the last message with rows of it, from 1 on */
    uint32_t *ring;             /* [window_blocks]: window block of entry i is ring[i % n_ring] */
    uint32_t n_ring, n_entries[KV_POOLS], first;
    uint32_t *users;            /* [n_blocks of class window] */
} replay;

/* What a step door decides about (turn.c). */
typedef enum { PATH_DECODE, PATH_DRAFTS, PATH_PROMPTS } walk_path;

/* Whose turn it is. */
typedef struct {
    bool unsplit;               /* the steps in flight, if there are any */
    bool held;                  /* a step of the kind `wanted` waits until they have landed */
    bool wanted;
} walk_turn;

struct pipeline {
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* phase */
    pthread_t thread;
    int wake_fd;                /* eventfd: something for the engine to do */
    const volatile int *interrupt;

    pipeline_options o;
    char *model_path;           /* o.model_path, our own copy */
    doors doors;
    gguf *file;
    model_desc *model;
    plan plan;
    rundir dir;
    gpu_list gpus;              /* read when a stage may be on one */
    char stage_program[4096];
    int stage_program_fd;       /* as it was when the run began: replacements are of that build */
    void *zmq, *status_socket;
    uint32_t n_answers;         /* to who asks for the status, until the next look */
    int death_pipe[2];
    int run_block_fd, readback_fd, boundary_fd[STAGES_MAX];
    int journal_fd[STAGES_MAX]; /* of the boundary behind stage s; -1: none */
    int loan_fd;                /* what stages lend each other; -1: nothing */
    uint32_t loans;             /* LOAN_..: what for */
    run_block *block;
    trace_run *trace;           /* NULL: none is written */
    readback results;
    unsigned char *frame;       /* for messages in and out */
    uint64_t frame_bytes;

    engine_phase phase;
    bool closing;
    errmsg failure;             /* why it is dead, once it is */
    uint32_t n_stages;          /* processes: the plan's stages, or one that holds them all */
    stage_slot stage[STAGES_MAX];

    /* recovery */
    uint32_t edge_epoch;        /* of all boundaries */
    mirror mirror;
    replay replay;
    uint64_t attached_ns;
    recovery_record record[RECOVERIES_KEPT]; /* the last ones, by number */
    uint64_t n_records;

    /* schedule */
    step_doors step_doors;
    walk_turn turn;
    session *ready_first, *ready_last; /* that have rows to issue, whose turn comes first */
    uint64_t next_seq, n_counts;
    uint32_t n_overtaken;       /* chunks in a row that passed the oldest prompt by (batch.c) */
    flight *flights;            /* [window] */
    uint32_t n_flights, window, parts_max, results_max;
    uint32_t next_slot;         /* of the next crossing */
    uint64_t round_ns;          /* what a round took last; 0: not known */
    verify_state verify;
    chunk_costs chunk_costs;
    wire_kv_op *kv_ops;         /* to go with the next steps, in order; grows */
    uint32_t n_kv_ops, kv_ops_room;
    uint64_t n_ops_put, n_ops_landed; /* of all time; the latter by steps that came back */

    /* books */
    kvpool pool[KV_POOLS];      /* by class */
    uint32_t n_pools;           /* classes that the model has */
    uint32_t blocks_per_ctx;
    uint32_t window_blocks;     /* a session holds at most so many of the window class */
    uint32_t n_window_reserved; /* by all sessions */
    prefix_table prefixes;      /* of the global class; models without windows */
    session **sessions;         /* [n_sessions] by branch; NULL: none, but see branch_used */
    session *waiting;           /* those that wait for KV */
    struct opening *openings;   /* callers that wait for a free session */
    uint64_t n_tickets, n_admitted, n_uses;
    uint64_t n_shared_rows, n_pauses, n_restored_rows, n_poisoned;
    bool *branch_used;          /* [n_sessions] */
    uint32_t *branch_generation;
    uint32_t next_session_id, n_sessions;
    uint32_t *free_readback;    /* stack of free rows */
    uint32_t n_free_readback, n_deferred;
};

/* The last layer of process s. */
static inline uint32_t last_layer(const pipeline *p, uint32_t s)
{
    return p->plan.stage[p->plan.one_process ? p->plan.cuts.n_stages - 1 : s].layer_end - 1;
}

/* "stage 1 (pid 123, layers 2-4)", as every line about it begins; without a pid before it had one.
 * Returns out. */
#define STAGE_CALLED_BYTES 72
static inline const char *stage_called(const pipeline *p, uint32_t s, char out[STAGE_CALLED_BYTES])
{
    char pid[24] = "";
    if (p->stage[s].pid != 0) snprintf(pid, sizeof pid, "pid %d, ", p->stage[s].pid);
    snprintf(out, STAGE_CALLED_BYTES, "stage %u (%slayers %u-%u)", s, pid,
             p->plan.stage[s].layer_begin, last_layer(p, s));
    return out;
}

/* The person asked to stop: *interrupt, which a signal handler sets. */
static inline bool interrupt_asked(const pipeline *p)
{
    return p->interrupt != NULL && __atomic_load_n(p->interrupt, __ATOMIC_RELAXED) != 0;
}

/* --- engine.c: the thread --------------------------------------------------------------------- */
void *engine_main(void *pipeline_);
void engine_wake(pipeline *p);
/* First failure wins: remember it, kill and reap the children, end every request. Lock held. */
void engine_fail(pipeline *p, const errmsg *e);

/* --- launch.c: processes and their conversation ----------------------------------------------- */
MUST_USE status launch_prepare(pipeline *p, errmsg *e); /* shared memory, run dir, sockets */
MUST_USE status launch_stages(pipeline *p, errmsg *e);          /* spawn, last to first */
MUST_USE status launch_one(pipeline *p, uint32_t s, errmsg *e); /* a new incarnation of stage s */
/* A message that stage s does not take is no error here: the stage is `mute` then, and the next
 * look finds out why. ST_RESOURCES: no memory. */
MUST_USE status launch_send(pipeline *p, uint32_t s, wire_kind kind, uint64_t seq, const void *body,
                            uint64_t body_bytes, errmsg *e);
MUST_USE status launch_config(pipeline *p, uint32_t s, errmsg *e);
void launch_stop(pipeline *p);               /* first to last, bounded, then kill */
void launch_reaped(pipeline *p, uint32_t s); /* what an incarnation leaves behind */
void launch_release(pipeline *p);                               /* everything launch_prepare made */

/* --- supervise.c: is everyone alive and moving ------------------------------------------------ */
/* One look at stage s, elapsed_ns after the last one (a bound part of it when we ourselves stood
 * still). ST_STAGE_LOST: it ended, stands still or takes no messages; ST_INTERRUPTED: it was ended
 * by a signal that reached us as well. */
MUST_USE status supervise(pipeline *p, uint32_t s, uint64_t elapsed_ns, errmsg *e);

/* --- recover.c: a lost stage is replaced ------------------------------------------------------ */
/* Stage s is lost, `why`. Either its replacement begins (ST_OK), or the run ends with *e: before it
 * was ready, when it was replaced too often, when a replacement would fail the same way. */
MUST_USE status recover_lost(pipeline *p, uint32_t s, const errmsg *why, errmsg *e);
/* Stage s answers to a recovery. False: this message does not belong to one, or not now. */
bool recover_message(pipeline *p, uint32_t s, const void *frame);
/* The next steps of a recovery that is under way; afterwards the phase may be PHASE_READY again. */
MUST_USE status recover_turn(pipeline *p, errmsg *e);

/* --- replay.c: what lost stages must know, from the mirror ------------------------------------ */
MUST_USE status replay_prepare(pipeline *p, errmsg *e);
void replay_release(pipeline *p);
/* Bring the stages that are `empty` to the mirror's state: with `through` from tokens through all
 * stages, all of which forget their tables; otherwise each by itself, the first from tokens, any
 * other from its journal, and through all after all where a journal has not what is needed. */
void replay_begin(pipeline *p, bool through);
/* Send what may be sent now; *done: everybody has everything. */
MUST_USE status replay_turn(pipeline *p, bool *done, errmsg *e);
/* Stage s answered. False: no such answer is due. */
bool replay_answer(pipeline *p, uint32_t s, const wire_replayed *r);

/* --- batch.c: which rows form the next step --------------------------------------------------- */
/* Steps that may be in flight at once, and parts of one step, for a plan. */
uint32_t batch_window(const pipeline *p);
uint32_t batch_parts_max(const pipeline *p);
/* Choose parts for f, an empty flight; none: nothing may be issued now. */
void batch_choose(pipeline *p, flight *f);

/* Free-running and verifying steps: KV for as many of n positions more as there is room for; 0:
 * none. */
uint32_t batch_reserve(session *s, uint32_t n);

/* --- turn.c: split and unsplit steps are never in flight together ----------------------------- */
/* Steps of that path walk unsplit now. */
bool turn_asks_unsplit(const pipeline *p, walk_path path);
/* Such a step may be chosen: no other kind's turn comes first. */
bool turn_allows(const pipeline *p, walk_path path);
/* Nothing is issued before all that is in flight has landed. */
bool turn_waits(const pipeline *p);
/* Nothing was found of the kind whose turn it was; false: it was nobody's. */
bool turn_given_up(pipeline *p);
/* A step may go now, unsplit or not. False: the turn of steps that are `wanted` comes next. */
bool turn_take(pipeline *p, bool unsplit, bool wanted);

/* --- verify.c: drafts, and when they are worth a step ----------------------------------------- */
/* A generation with drafts begins. */
void verify_begin(generation *g);
typedef enum {
    VERIFY_STEP,    /* f is a step that verifies */
    VERIFY_ROUNDS,  /* the ready generations are faster without */
    VERIFY_SOON     /* drafts are on their way: nothing now */
} verify_choice;
/* Choose parts for f, an empty flight, beside n_flying that verify. */
verify_choice verify_choose(pipeline *p, flight *f, uint32_t n_flying);
/* Every row of f, a step of generations, is back. */
void verify_landed(pipeline *p, const flight *f);

/* The generations of f, which is in flight, would verify rather than go on with plain rounds.
 * Drafts that cost nothing are asked for what has been drawn so far. */
bool verify_wants(pipeline *p, const flight *f);

/* --- sequel.c: steps that go on where others end ---------------------------------------------- */
/* f, an empty flight, becomes the sequel of the free-running step that was issued last, for at most
 * so many rounds. False: none can be, or should. */
bool sequel_choose(pipeline *p, flight *f, uint32_t rounds);
/* f is not issued after all. */
void sequel_give_up(pipeline *p, const flight *f);
/* The generation of part part_i has ended in the step before f. */
void sequel_leave(flight *f, uint32_t part_i);
/* The step before f is back: it stands by itself. */
void sequel_begins(flight *f);

/* --- admission.c: who gets KV ----------------------------------------------------------------- */
/* Its first request cannot go before it has KV. */
static inline bool admission_wants(const session *s)
{
    return s->paused || (s->first != NULL && s->first->unreserved);
}
void admission_wait(pipeline *p, session *s); /* in line */
uint32_t admission_n_waiting(const pipeline *p);
void admission_leave(pipeline *p, session *s);
void admission_run(pipeline *p);              /* whoever can be given KV becomes ready */
/* Somebody waits for the operations that are due to have been applied. */
bool admission_needs_ops(const pipeline *p);
/* What is held for its prefix alone is let go of, and what was taken over of it and is not yet
 * relied upon: afterwards every block that anybody has, or will have, is in the table of an open
 * session. */
void admission_forget(pipeline *p);
/* Ready generations have KV for one round at least, or wait; one whose restoring rows are in flight
 * may lack it. No generation is in flight. */
void admission_press(pipeline *p);
/* Take blocks for r, a request of s that is about to be submitted; true: it must wait for them. */
MUST_USE status admission_reserve(session *s, request *r, bool *waits, errmsg *e);

/* --- schedule.c: steps out -------------------------------------------------------------------- */
MUST_USE status schedule_prepare(pipeline *p, errmsg *e); /* the books, sized by the plan */
void schedule_add(pipeline *p, request *r);               /* behind what its session asked before */
void schedule_push(pipeline *p, request *r);              /* in front of it; the session waits */
void schedule_ready(pipeline *p, session *s); /* rows to issue: its turn comes, or it waits */
void schedule_unready(pipeline *p, session *s);
MUST_USE status schedule_issue(pipeline *p, errmsg *e);
/* Several stages, each with a device of its own or none, all of which said that their boundaries
 * carry STEP_AHEAD. */
bool schedule_goes_ahead(const pipeline *p);
/* The steps in flight once more, in their order, to every stage. */
MUST_USE status schedule_reissue(pipeline *p, errmsg *e);
/* Its first request has no rows left to issue, or is taken out of the line. */
void schedule_remove_first(session *s);
/* r has come to its end: whoever waits for it is told. */
void schedule_finish(pipeline *p, request *r);
/* Take a generation out of its session's line; it is not in flight. */
void schedule_withdraw(pipeline *p, generation *g);
void schedule_end_all(pipeline *p); /* every request is finished, with p->failure */
void schedule_release(pipeline *p);

/* --- poison.c: sessions that hold NaN or infinity end ----------------------------------------- */
/* The last stage says that a row holds it. ST_PROTOCOL: no session that there is has such a row;
 * whoever passes it on names the stage. */
MUST_USE status poison_found(pipeline *p, const wire_poisoned *found, errmsg *e);
/* Whether s has such a row at or below this position. */
static inline bool poison_covers(const session *s, uint64_t position)
{
    return s->poisoned && s->poison.position <= position;
}
/* A step that verified drafts has landed, n_drawn tokens of the part count: whether the NaN that
 * was found in s's rows, if any, does not. A row before it may have it from a draft (a backend may
 * multiply by 0 what a row does not see): it is walked again without drafts. */
MUST_USE bool poison_void(session *s, const flight_part *part);
/* A step with rows of r, a request of s, has landed; its rows up to position `last` count. Whether
 * s has ended, by one of them or before: r is then finished, if nothing more of it is in flight,
 * and is not to be touched. */
MUST_USE bool poison_ends(pipeline *p, session *s, request *r, uint64_t last);

/* --- results.c: results in -------------------------------------------------------------------- */
/* What the last stage says of step seq. ST_PROTOCOL: it is not what was asked for, and nothing of
 * it is taken; whoever passes it on names the stage. */
MUST_USE status schedule_result(pipeline *p, uint64_t seq, const wire_result *r, errmsg *e);

/* --- session.c: what the files of the API share; lock held ------------------------------------ */
/* The pipeline's failure, if it has one; that, or why the session was ended. */
MUST_USE status session_serves(const pipeline *p, errmsg *e);
MUST_USE status session_goes_on(const session *s, errmsg *e);
void session_quiet(session *s); /* wait until everything it asked for is done */

/* --- generation.c: sessions that go on by themselves ------------------------------------------ */
/* Rounds that the next step may run for it: what its limits and the context leave. */
uint64_t generation_rounds_left(const generation *g);
/* The row at position `position` drew this token. True: the row lives no longer. */
bool generation_drew(generation *g, uint64_t position, uint32_t token);
/* Its rows of a step have all come back: n_rows were applied from `position` on. True: it ended. */
MUST_USE status generation_landed(generation *g, uint64_t position, uint32_t n_rows, bool *ended,
                                  errmsg *e);

/* --- report.c: what `memra-pp status` shows --------------------------------------------------- */
/* pipeline_stage with the lock held. */
void report_stage(const pipeline *p, uint32_t stage_i, stage_snapshot *out);
/* The run as JSON text, which the caller frees; NULL: no memory. Lock held. */
char *report_json(const pipeline *p);

#endif
