/* A lost stage is replaced while the others keep their weights and KV (DESIGN section 8):
 *
 *   lost -> killed and reaped -> (a pause, if it was lost before) -> started -> loaded --+
 *   the others: told to be quiet -> quiet ---------------------------------------------+-> all on a
 *   new epoch of the boundaries, byte probe -> replay -> steps in flight again -> go on
 *
 * Everything is done a turn at a time, so that the engine goes on answering. A stage that is lost
 * meanwhile starts the barrier again: whoever was told anything since it was quiet is told to be
 * quiet again; a replacement that loads goes on loading. */
#include "coordinator/engine/engine.h"

#include "common/amount.h"
#include "common/clock.h"
#include "common/log.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PAUSE_FIRST_MS 25u /* before the second replacement within the window; then twice as long */
#define PAUSE_MAX_MS   3200u
#define WAITED_TOLD_NS NS_PER_MS /* less is no wait to speak of */

/* --- lost ------------------------------------------------------------------------------------- */

/* Losses of stage s within the window, the last included. */
static uint32_t losses(const pipeline *p, const stage_slot *t)
{
    uint64_t now = now_ns(), window_ns = p->o.restart_window_ms * NS_PER_MS;
    uint32_t n = 0;
    for (uint64_t i = t->n_lost; i > 0 && t->n_lost - i < RESTARTS_MAX; i--)
        n += now - t->lost_at_ns[(i - 1) % RESTARTS_MAX] < window_ns;
    return n;
}

static uint64_t note_loss(stage_slot *t)
{
    uint64_t now = now_ns();
    t->lost_at_ns[t->n_lost++ % RESTARTS_MAX] = now;
    return now;
}

/* A replacement would meet the same. */
static bool would_fail_again(status s)
{
    return s == ST_BAD_MODEL || s == ST_BAD_DOOR || s == ST_USAGE || s == ST_NAN;
}

static status give_up(pipeline *p, uint32_t s, const errmsg *why, errmsg *e)
{
    uint32_t n = p->o.restarts;
    if (n == 0 || (p->phase != PHASE_READY && p->phase != PHASE_RECOVERING) ||
        would_fail_again(why->code))
        return errmsg_set(e, why->code, "%s", why->text);
    errmsg changed = {0};
    if (gguf_unchanged(p->file, &changed) != ST_OK) {
        const char *told =
            strstr(why->text, "changed on disk") != NULL ? "" : "; its model file changed on disk";
        return errmsg_set(e, why->code, "%s%s", why->text, told);
    }
    if (losses(p, &p->stage[s]) < n) return ST_OK;
    const char *what = p->stage[s].process.pid != 0 ? "it was replaced" : "that was tried";
    return errmsg_set(e, ST_STAGE_LOST, "%s; %s %u time%s in %g s, as often as --restarts allows",
                      why->text, what, n, plural(n), p->o.restart_window_ms / 1000.0);
}

static status quiesce_others(pipeline *p, errmsg *e)
{
    for (uint32_t s = 0; s < p->n_stages; s++) {
        stage_slot *t = &p->stage[s];
        if (t->state != SLOT_RUNNING && t->state != SLOT_ATTACHED) continue;
        t->state = SLOT_QUIESCING;
        t->still_progress_ns = 0;
        TRY(launch_send(p, s, WIRE_QUIESCE, 0, NULL, 0, e));
    }
    return ST_OK;
}

/* The weights of all were lost with the first stage: the others start again with it. */
static status lose_readers(pipeline *p, const errmsg *why, errmsg *e)
{
    for (uint32_t s = 1; s < p->n_stages; s++) {
        errmsg because = {0};
        char called[STAGE_CALLED_BYTES];
        if (p->stage[s].state == SLOT_PAUSED) continue;
        errmsg_set(&because, ST_STAGE_LOST, "%s ends with its weights: %.400s",
                   stage_called(p, s, called), why->text);
        TRY(recover_lost(p, s, &because, e));
    }
    return ST_OK;
}

/* Begins a line that does not end the run. */
static const char *who_of(const pipeline *p, char out[64])
{
    snprintf(out, 64, "%s%s", p->o.called != NULL ? p->o.called : "",
             p->o.called != NULL ? ", " : "");
    return out;
}

status recover_lost(pipeline *p, uint32_t s, const errmsg *why, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    if (t->state == SLOT_LOST) return ST_OK;
    TRY(give_up(p, s, why, e));
    uint64_t now = note_loss(t);
    char who[64];
    if (t->lost_pid != 0) log_warn("%s%s; once more", who_of(p, who), why->text);
    if (t->lost_pid == 0) {
        t->lost_pid = t->pid;
        t->lost_ns = now;
        t->reaped_ns = t->waited_ns = 0;
        t->lost_limit_ns = t->broken_limit_ns;
        t->why = *why;
    }
    child_signal(&t->process, SIGKILL); /* what is to be replaced writes nothing more */
    t->state = SLOT_LOST;
    t->empty = true;
    p->replay.begun = false;
    p->phase = PHASE_RECOVERING;
    if (s == 0 && p->plan.gathered) TRY(lose_readers(p, why, e));
    admission_forget(p); /* what is in no open session's table is not replayed */
    return quiesce_others(p, e);
}

/* --- the way back ----------------------------------------------------------------------------- */

static uint64_t pause_ns(const pipeline *p, const stage_slot *t)
{
    uint32_t n = losses(p, t);
    if (n < 2) return 0;
    uint64_t ms = n - 2 < 16 ? (uint64_t)PAUSE_FIRST_MS << (n - 2) : PAUSE_MAX_MS;
    return (ms < PAUSE_MAX_MS ? ms : PAUSE_MAX_MS) * NS_PER_MS;
}

/* Memory of the dead is free when whoever has borrowed of it is quiet. */
static bool loans_are_back(const pipeline *p)
{
    for (uint32_t s = 0; p->loan_fd >= 0 && s < p->n_stages; s++)
        if (p->stage[s].state == SLOT_QUIESCING) return false;
    return true;
}

/* What is left of its last process is removed; the next one may start after a while. */
static void pause_for(pipeline *p, uint32_t s)
{
    stage_slot *t = &p->stage[s];
    launch_reaped(p, s);
    t->gone_ns = now_ns();
    if (t->reaped_ns == 0) t->reaped_ns = t->gone_ns;
    t->start_at_ns = t->gone_ns + pause_ns(p, t);
    t->state = SLOT_PAUSED;
}

/* The system had no descriptor, no process or no memory for it: that may pass, and counts as a
 * loss. A program that may not be run any more stays so. */
static status not_started(pipeline *p, uint32_t s, const errmsg *why, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    errmsg all = {0};
    errmsg_set(&all, why->code, "%s; nothing can take its place: %s", t->why.text, why->text);
    if (t->process.no_program) return errmsg_set(e, all.code, "%s", all.text);
    TRY(give_up(p, s, &all, e));
    note_loss(t);
    char who[64];
    log_warn("%s%s; once more", who_of(p, who), all.text);
    pause_for(p, s);
    return ST_OK;
}

/* A process that has a GPU open has ended only when the driver has buried it: 60 to 115 ms after
 * SIGKILL, however much memory of the GPU it holds and whatever waits there for a signal, its own
 * or another's; 15 ms more for a GB of a file that it has mapped and read, or of host memory that
 * it has pinned. Its descriptors are closed within 0.4 ms, but whoever is started then is ready
 * hardly sooner: the driver makes a new context when it is done with the old one. Measured on an
 * H200, 5 GB held: context and as much memory again 205 and 230 ms after the kill when started at
 * once, 214 and 254 ms when started at the end. */
static status replace(pipeline *p, uint32_t s, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    if (t->state == SLOT_LOST && child_reap(&t->process)) pause_for(p, s);
    if (t->state == SLOT_PAUSED && now_ns() >= t->start_at_ns && loans_are_back(p)) {
        t->waited_ns += now_ns() - t->gone_ns;
        errmsg why = {0};
        status st = launch_one(p, s, &why);
        if (st != ST_OK) return not_started(p, s, &why, e);
        t->state = SLOT_LOADING;
    }
    return ST_OK;
}

static bool all_in(const pipeline *p, slot_state state)
{
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (p->stage[s].state != state) return false;
    return true;
}

/* Nobody uses a boundary: the dead are reaped, the others are quiet. */
static status attach(pipeline *p, errmsg *e)
{
    wire_reattach r = {.edge_epoch = ++p->edge_epoch};
    for (uint32_t s = 0; s < p->n_stages; s++) {
        p->stage[s].state = SLOT_ATTACHED;
        p->stage[s].probed = false;
        p->stage[s].still_progress_ns = 0;
        TRY(launch_send(p, s, WIRE_REATTACH, 0, &r, sizeof r, e));
        TRY(launch_send(p, s, WIRE_PROBE, 0, NULL, 0, e));
    }
    return ST_OK;
}

static bool all_probed(const pipeline *p)
{
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (!p->stage[s].probed) return false;
    return true;
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / NS_PER_S : 0;
}

static void trace_recovery(const pipeline *p, uint32_t s, uint64_t now)
{
    const stage_slot *t = &p->stage[s];
    const uint64_t begin[] = {t->lost_ns, t->reaped_ns + t->waited_ns, p->attached_ns},
                   end[] = {t->reaped_ns, p->attached_ns, now};
    for (uint32_t i = 0; p->trace != NULL && i < 3; i++)
        trace_put(trace_engine(p->trace),
                  &(trace_event){.begin_ns = begin[i],
                                 .end_ns = end[i],
                                 .kind = TRACE_LOST + i,
                                 .n_rows = i == 2 ? (uint32_t)p->replay.n_rows : 0,
                                 .of = s});
}

static void record(pipeline *p, uint32_t s, uint64_t now)
{
    stage_slot *t = &p->stage[s];
    p->record[p->n_records++ % RECOVERIES_KEPT] =
        (recovery_record){.stage = s,
                          .lost_pid = t->lost_pid,
                          .pid = t->pid,
                          .noticed_ns = t->lost_ns,
                          .reaped_ns = t->reaped_ns,
                          .loaded_ns = t->loaded_ns,
                          .attached_ns = p->attached_ns,
                          .resumed_ns = now,
                          .limit_ns = t->lost_limit_ns,
                          .waited_ns = t->waited_ns,
                          .replayed_rows = p->replay.n_rows,
                          .replayed_chunks = p->replay.n_sent,
                          .through = p->replay.through,
                          .why = t->why};
    trace_recovery(p, s, now);
    char waited[48] = "", who[64];
    if (t->waited_ns >= WAITED_TOLD_NS)
        snprintf(waited, sizeof waited, "waited %.3f, ", (double)t->waited_ns / NS_PER_S);
    log_warn("%s%s; pid %d took its place after %.3f s (end %.3f, %sstart %.3f, %llu row%s "
             "again%s %.3f)",
             who_of(p, who), t->why.text, t->pid, seconds(t->lost_ns, now),
             seconds(t->lost_ns, t->reaped_ns), waited,
             seconds(t->reaped_ns + t->waited_ns, p->attached_ns),
             (unsigned long long)p->replay.n_rows, plural(p->replay.n_rows),
             p->replay.through ? " through all stages" : "", seconds(p->attached_ns, now));
}

static status resume(pipeline *p, errmsg *e)
{
    uint64_t now = now_ns();
    for (uint32_t s = 0; s < p->n_stages; s++) {
        stage_slot *t = &p->stage[s];
        t->state = SLOT_RUNNING;
        t->empty = false;
        t->still_progress_ns = 0;
        if (t->lost_pid != 0) record(p, s, now);
        t->lost_pid = 0;
    }
    p->replay.begun = false;
    p->phase = PHASE_READY;
    return schedule_reissue(p, e);
}

/* From tokens through all stages: without journals, unless the first one alone has to know; with
 * window layers also when a survivor is steps ahead: what the steps before those see has been let
 * go of there. */
static bool must_go_through(const pipeline *p)
{
    bool windows = p->n_pools > KV_CLASS_WINDOW;
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const stage_slot *t = &p->stage[s];
        if (t->empty && s > 0 && p->plan.n_journal_blocks == 0) return true;
        if (!t->empty && windows && t->applied_seq > p->mirror.seq + 1) return true;
    }
    return false;
}

status recover_turn(pipeline *p, errmsg *e)
{
    if (p->phase != PHASE_RECOVERING) return ST_OK;
    for (uint32_t s = 0; s < p->n_stages; s++) TRY(replace(p, s, e));
    if (all_in(p, SLOT_QUIET)) TRY(attach(p, e));
    if (!all_in(p, SLOT_ATTACHED) || !all_probed(p)) return ST_OK;
    if (!p->replay.begun) {
        p->attached_ns = now_ns();
        replay_begin(p, must_go_through(p));
    }
    bool done = false;
    TRY(replay_turn(p, &done, e));
    return done ? resume(p, e) : ST_OK;
}

/* --- what stages say -------------------------------------------------------------------------- */

bool recover_message(pipeline *p, uint32_t s, const void *frame)
{
    stage_slot *t = &p->stage[s];
    uint32_t kind = wire_head(frame)->kind;
    switch (t->state) {
    case SLOT_QUIESCING:
        /* What it said before it heard of it is void; results are not: they are taken elsewhere. */
        if (kind == WIRE_QUIESCED) {
            t->applied_seq = ((const wire_quiesced *)wire_body(frame))->applied_seq;
            t->state = SLOT_QUIET;
        }
        return kind == WIRE_QUIESCED || kind == WIRE_PROBED || kind == WIRE_REPLAYED;
    case SLOT_ATTACHED:
        return kind == WIRE_REPLAYED && replay_answer(p, s, wire_body(frame));
    default:
        return false;
    }
}
