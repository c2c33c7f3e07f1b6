/* Death is noticed three ways, two of them here: exit (the child is reaped), and no progress (words
 * in the run block that stand still). The third, our own death, the stages notice.
 *
 * A stage that waits on an empty or full boundary is not at fault: it reports `starved`, and its
 * progress is not held against it. A stage that stands outside a wait with work in hand is. How
 * long it may stand grows with the largest piece of work between two signs of progress (one layer
 * of the rows in flight, at one arithmetic operation a nanosecond: slow hardware, not a hung
 * one). */
#include "coordinator/engine/engine.h"

#include "common/amount.h"
#include "common/clock.h"

#include <signal.h>
#include <string.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIGNAL_GRACE_MS 400
#define MUTE_WAIT_MS 200u /* for the end of a stage that takes no messages */

static uint64_t weight_count(const layer_desc *l)
{
    const tensor_ref *all[] = {&l->attn_q,      &l->attn_k,   &l->attn_v,  &l->attn_output,
                               &l->ffn_gate,    &l->ffn_up,   &l->ffn_down};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->t != NULL) n += all[i]->t->dim[0] * all[i]->t->dim[1];
    return n;
}

static uint64_t piece_ns(const pipeline *p)
{
    uint64_t rows = p->phase == PHASE_RECOVERING ? p->plan.rows_max : 1;
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq != 0 && p->flights[i].n_rows > rows) rows = p->flights[i].n_rows;
    const model_desc *m = p->model;
    uint64_t layer = 2 * weight_count(&m->layer[0]) + 4ull * p->plan.n_ctx * m->n_heads * m->n_head;
    uint64_t head = 2ull * m->n_vocab * m->n_embd;
    return rows * (layer > head ? layer : head);
}

static const char *phase_words(const pipeline *p, uint32_t s)
{
    if (p->stage[s].state == SLOT_LOADING) return "while loading, as a replacement";
    if (p->phase == PHASE_RECOVERING) return "while another was replaced";
    if (p->phase == PHASE_STARTING) return p->stage[s].loaded ? "after loading" : "while loading";
    if (p->phase == PHASE_PROBING) return "in the byte probe";
    return p->n_flights > 0 ? "in a step" : "idle";
}

/* How stage s, which is reaped, was lost. */
static status lost(pipeline *p, uint32_t s, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    int w = t->process.wait_status;
    char how[64];
    child_describe(&t->process, how, sizeof how);
    /* A signal to the whole group reaches us too, perhaps a moment later. */
    bool asked = WIFSIGNALED(w) && (WTERMSIG(w) == SIGTERM || WTERMSIG(w) == SIGINT ||
                                    WTERMSIG(w) == SIGHUP || WTERMSIG(w) == SIGQUIT);
    for (int ms = 0; asked && ms < SIGNAL_GRACE_MS; ms += 10) {
        if (interrupt_asked(p)) return ST_INTERRUPTED;
        usleep(10000);
    }
    errmsg changed = {0};
    /* A file cut short under a mapping is a SIGBUS there. */
    const char *hint = "";
    status code = ST_STAGE_LOST;
    if (!t->hello && WIFEXITED(w) && WEXITSTATUS(w) == status_exit_code(ST_RESOURCES)) {
        hint = ", could not have what it needs, as its own line says";
        code = ST_RESOURCES;
    } else if (!t->hello && WIFEXITED(w)) {
        hint = "; it had said nothing: is it a stage program? (--stage-program)";
    }
    if (gguf_unchanged(p->file, &changed) != ST_OK) hint = "; its model file changed on disk";
    char called[STAGE_CALLED_BYTES];
    return errmsg_set(e, code, "%s was lost %s: %s%s", stage_called(p, s, called),
                      phase_words(p, s), how, hint);
}

/* Time that a watched word has stood still, bounded by what we ourselves were awake for. */
static uint64_t stood_still(uint64_t now_value, uint64_t *seen, uint64_t *still_ns,
                            uint64_t elapsed_ns)
{
    if (now_value != *seen)
        *still_ns = 0;
    else
        *still_ns += elapsed_ns;
    *seen = now_value;
    return *still_ns;
}

/* The last stage has a step in hand until its result is here. */
static bool in_a_step(const pipeline *p, uint32_t s, const stage_words *w)
{
    if (s + 1 == p->n_stages) return p->n_flights > 0;
    uint64_t done = atomic_load_explicit(&w->step_done, memory_order_acquire);
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq > done) return true;
    return false;
}

static bool has_work(const pipeline *p, uint32_t s, const stage_words *w)
{
    const stage_slot *t = &p->stage[s];
    switch (t->state) {
    case SLOT_LOST:
    case SLOT_PAUSED:
    case SLOT_QUIET:
        return false;
    case SLOT_LOADING:
        return !t->loaded;
    case SLOT_QUIESCING:
        return true;
    case SLOT_ATTACHED:
        return !t->probed || (p->replay.begun && (p->replay.through || t->empty) &&
                             t->n_replayed < p->replay.n_sent);
    case SLOT_RUNNING:
        break;
    }
    if (p->phase == PHASE_STARTING) return !t->loaded;
    if (p->phase == PHASE_PROBING) return !t->probed;
    return in_a_step(p, s, w);
}

/* One line about stage s that stands still. */
static status standing(pipeline *p, uint32_t s, const char *what, uint64_t still_ns,
                       uint64_t limit_ns, const char *flag, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    t->broken_limit_ns = limit_ns;
    int stop = child_stopped_by(&t->process);
    char stopped[48] = "";
    if (stop != 0)
        snprintf(stopped, sizeof stopped, "; it is stopped by SIG%s", sigabbrev_np(stop));
    char called[STAGE_CALLED_BYTES];
    return errmsg_set(e, ST_STAGE_LOST, "%s %s for %s %s, %s after its start (limit %s, %s)%s",
                      stage_called(p, s, called), what, amount_lasted(still_ns), phase_words(p, s),
                      amount_lasted(now_ns() - t->start_ns), amount_lasted(limit_ns), flag,
                      stopped);
}

static status moving(pipeline *p, uint32_t s, uint64_t elapsed_ns, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    const stage_words *w = &p->block->stage[s];
    bool starting = p->phase == PHASE_STARTING || t->state == SLOT_LOADING;
    uint64_t hang_ns = p->o.hang_timeout_ms * NS_PER_MS;
    uint64_t limit_ns = starting ? p->o.start_timeout_ms * NS_PER_MS : hang_ns + piece_ns(p);

    uint64_t beat_still = stood_still(atomic_load_explicit(&w->heartbeat, memory_order_relaxed),
                                      &t->seen_heartbeat, &t->still_heartbeat_ns, elapsed_ns);
    uint64_t still = stood_still(atomic_load_explicit(&w->progress, memory_order_acquire),
                                 &t->seen_progress, &t->still_progress_ns, elapsed_ns);
    bool starved = atomic_load_explicit(&w->starved, memory_order_relaxed) != STARVED_NO;
    if (!has_work(p, s, w) || (starved && !starting)) t->still_progress_ns = still = 0;

    /* What starts may stand still for as long as a start may: also its control thread. */
    if (t->hello && beat_still > (starting ? limit_ns : hang_ns))
        return standing(p, s, "has not answered", beat_still, starting ? limit_ns : hang_ns,
                        starting ? "--start-timeout" : "--hang-timeout", e);
    if (still > limit_ns && starting)
        return standing(p, s, "did not start: no progress", still, limit_ns, "--start-timeout", e);
    if (still > limit_ns)
        return standing(p, s, "has made no progress", still, limit_ns, "--hang-timeout", e);
    return ST_OK;
}

status supervise(pipeline *p, uint32_t s, uint64_t elapsed_ns, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    if (t->process.pid == 0 || t->state == SLOT_LOST) return ST_OK;
    if (child_reap(&t->process) || (t->mute && child_wait(&t->process, MUTE_WAIT_MS)))
        return lost(p, s, e);
    if (t->mute) {
        char called[STAGE_CALLED_BYTES];
        return errmsg_set(e, ST_STAGE_LOST, "%s takes no messages", stage_called(p, s, called));
    }
    return elapsed_ns > 0 ? moving(p, s, elapsed_ns, e) : ST_OK;
}
