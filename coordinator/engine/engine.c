/* The engine thread: one loop over sockets, pidfds and the wake descriptor. A turn takes what came,
 * looks whether everyone is alive, and issues what may be issued. The first failure is kept; after
 * it every child is killed and reaped and every call ends with it. */
#include "coordinator/engine/engine.h"

#include "common/clock.h"
#include "common/log.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "build_id.h"

#define LOOK_NS (20 * NS_PER_MS)  /* between two looks at everyone */
#define BAD_MESSAGES_MAX 3u
#define ANSWERS_PER_LOOK 8u /* to questions about the status */
/* As much as one look may count: we may have stood still too. */
#define LOOK_MAX_NS (100 * NS_PER_MS)

void engine_wake(pipeline *p)
{
    uint64_t one = 1;
    ssize_t n = write(p->wake_fd, &one, sizeof one);
    (void)n; /* full: it is awake */
}

static void set_phase(pipeline *p, engine_phase phase)
{
    p->phase = phase;
    pthread_cond_broadcast(&p->changed);
}

void engine_fail(pipeline *p, const errmsg *e)
{
    if (p->phase == PHASE_DEAD) return;
    p->failure = *e;
    for (uint32_t s = 0; s < p->n_stages; s++) child_signal(&p->stage[s].process, SIGKILL);
    for (uint32_t s = 0; s < p->n_stages; s++) child_destroy(&p->stage[s].process);
    schedule_end_all(p);
    set_phase(p, PHASE_DEAD);
}

/* The person or the program asked us to stop: stages end by themselves where they can. */
static void stop_cleanly(pipeline *p, status why)
{
    if (p->phase == PHASE_DEAD) return;
    set_phase(p, PHASE_STOPPING);
    launch_stop(p);
    errmsg_set(&p->failure, why, why == ST_INTERRUPTED ? "interrupted" : "the pipeline is closed");
    schedule_end_all(p);
    set_phase(p, PHASE_DEAD);
}

/* --- what stages say -------------------------------------------------------------------------- */

static bool all_of(const pipeline *p, size_t flag_offset)
{
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (!*(const bool *)((const char *)&p->stage[s] + flag_offset)) return false;
    return true;
}

static status on_hello(pipeline *p, uint32_t s, const wire_hello *h, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    if (strcmp(h->build, MEMRA_BUILD_ID) != 0) {
        return errmsg_set(e, ST_RESOURCES,
                          "%s is of build %.31s, this program of build %s: use both from one build "
                          "(--stage-program)",
                          p->stage_program, h->build, MEMRA_BUILD_ID);
    }
    if (t->hello) return errmsg_set(e, ST_PROTOCOL, "it said hello twice");
    t->hello = true;
    return launch_config(p, s, e);
}

static void printable(char *text)
{
    for (char *c = text; *c != '\0'; c++)
        if (*c < 0x20 || *c > 0x7e) *c = '?'; /* it goes to terminals and into JSON */
}

static status on_loaded(pipeline *p, uint32_t s, const wire_loaded *l, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    t->facts = *l;
    printable(t->facts.device_name);
    t->loaded = true;
    t->loaded_ns = now_ns();
    if (t->state == SLOT_LOADING) t->state = SLOT_QUIET;
    if (p->phase == PHASE_RECOVERING || !all_of(p, offsetof(stage_slot, loaded))) return ST_OK;
    /* The load barrier: everyone has its weights, nobody has had a step. */
    set_phase(p, PHASE_PROBING);
    for (uint32_t i = 0; i < p->n_stages; i++) TRY(launch_send(p, i, WIRE_PROBE, 0, NULL, 0, e));
    return ST_OK;
}

static void on_probed(pipeline *p, uint32_t s, const wire_probed *m)
{
    stage_slot *t = &p->stage[s];
    t->met = *m;
    printable(t->met.transport);
    printable(t->met.signal);
    t->probed = true;
    if (p->phase == PHASE_PROBING && all_of(p, offsetof(stage_slot, probed)))
        set_phase(p, PHASE_READY);
}

static status unexpected(const void *frame, errmsg *why)
{
    return errmsg_set(why, ST_PROTOCOL, "unexpected message %s",
                      wire_kind_word(wire_head(frame)->kind));
}

/* A message that is what it should be now. *why: what is wrong with it, or that the stage
 * failed; it does not name the stage. */
static status on_message(pipeline *p, uint32_t s, const void *frame, bool *failed, errmsg *why)
{
    const wire_header *h = wire_head(frame);
    const void *body = wire_body(frame);
    stage_slot *t = &p->stage[s];
    bool starting = p->phase == PHASE_STARTING || t->state == SLOT_LOADING;
    bool stepping = t->state == SLOT_RUNNING ? p->phase == PHASE_READY : t->state == SLOT_QUIESCING;
    switch (h->kind) {
    case WIRE_HELLO:
        *failed = true;
        return starting ? on_hello(p, s, body, why) : unexpected(frame, why);
    case WIRE_LOADED:
        return starting && t->hello && !t->loaded ? on_loaded(p, s, body, why)
                                                  : unexpected(frame, why);
    case WIRE_RESULT:
        *failed = true; /* without it the step would never end */
        if (!stepping || s + 1 != p->n_stages) return unexpected(frame, why);
        return schedule_result(p, h->seq, body, why);
    case WIRE_POISONED:
        *failed = true; /* without it the result that follows would not be believed */
        if (!stepping || s + 1 != p->n_stages) return unexpected(frame, why);
        return poison_found(p, body, why);
    case WIRE_FAULT: {
        const wire_fault *f = body;
        status code = f->code == ST_OK ? ST_PROTOCOL : (status)f->code;
        if (code == ST_DEVICE) code = ST_STAGE_LOST; /* ours goes on; the stage's process has 6 */
        *failed = true;
        return errmsg_set(why, code, "%s", f->text);
    }
    case WIRE_BYE:
        return ST_OK; /* its exit is what counts */
    default:
        break;
    }
    if (h->kind == WIRE_PROBED && !t->probed &&
        (p->phase == PHASE_PROBING || t->state == SLOT_ATTACHED)) {
        on_probed(p, s, body);
        return ST_OK;
    }
    return recover_message(p, s, frame) ? ST_OK : unexpected(frame, why);
}

/* One message of stage s is not as it should be: counted, named and dropped, but not for ever.
 * Before its HELLO it is another build, which will not get better. */
static status bad_message(pipeline *p, uint32_t s, const errmsg *why, errmsg *e)
{
    stage_slot *t = &p->stage[s];
    t->n_bad_all++;
    if (p->o.restarts == 0 || !t->hello || ++t->n_bad == BAD_MESSAGES_MAX)
        return recover_lost(p, s, why, e);
    log_warn("%s; dropped, number %u of this process (%u: it is replaced)", why->text, t->n_bad,
             BAD_MESSAGES_MAX);
    return ST_OK;
}

/* what, with the stage that it is about before it, once: a stage's own texts name it too. */
static void name_stage(const pipeline *p, uint32_t s, const errmsg *what, errmsg *out)
{
    char own[24], called[STAGE_CALLED_BYTES];
    size_t n = (size_t)snprintf(own, sizeof own, "stage %u: ", s);
    bool named = strncmp(what->text, own, n) == 0;
    errmsg_set(out, what->code, "%s: %.430s", stage_called(p, s, called),
               what->text + (named ? n : 0));
}

static status take_messages(pipeline *p, uint32_t s, errmsg *e)
{
    char called[STAGE_CALLED_BYTES];
    while (p->stage[s].socket != NULL && p->stage[s].state != SLOT_LOST) {
        int n = zmq_recv(p->stage[s].socket, p->frame, p->frame_bytes, ZMQ_DONTWAIT);
        if (n < 0) return ST_OK;
        errmsg what = {0}, why = {0};
        bool failed = false;
        status st;
        if ((uint64_t)n > p->frame_bytes || !wire_valid(p->frame, (uint64_t)n) ||
            wire_head(p->frame)->stage != s) {
            st = errmsg_set(&what, ST_PROTOCOL,
                            "a message of %d bytes is not one of build %s (--stage-program)", n,
                            MEMRA_BUILD_ID);
        } else if (wire_head(p->frame)->epoch != p->stage[s].epoch) {
            log_warn("%s: dropped a message of epoch %u", stage_called(p, s, called),
                     wire_head(p->frame)->epoch);
            continue;
        } else {
            st = on_message(p, s, p->frame, &failed, &what);
        }
        if (st == ST_OK) continue;
        name_stage(p, s, &what, &why);
        if (failed)
            TRY(recover_lost(p, s, &why, e));
        else
            TRY(bad_message(p, s, &why, e));
    }
    return ST_OK;
}

/* Whoever asks without end has to wait, not the run. */
static void answer_status(pipeline *p)
{
    char question[16]; /* whatever is asked, there is one answer */
    for (; p->n_answers > 0; p->n_answers--) {
        if (zmq_recv(p->status_socket, question, sizeof question, ZMQ_DONTWAIT) < 0) return;
        char *json = report_json(p);
        const char *text = json != NULL ? json : "{}";
        zmq_send(p->status_socket, text, strlen(text), ZMQ_DONTWAIT);
        free(json);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

static void show_progress(pipeline *p)
{
    if (p->o.on_progress == NULL || p->phase != PHASE_STARTING) return;
    for (uint32_t s = 0; s < p->n_stages; s++) {
        const stage_words *w = &p->block->stage[s];
        p->o.on_progress(p->o.progress_ctx, s, atomic_load(&w->load_done_bytes),
                         atomic_load(&w->load_total_bytes));
    }
}

static void wait_for_something(pipeline *p)
{
    zmq_pollitem_t items[2 * STAGES_MAX + 2];
    int n = 0;
    items[n++] = (zmq_pollitem_t){.fd = p->wake_fd, .events = ZMQ_POLLIN};
    if (p->n_answers > 0)
        items[n++] = (zmq_pollitem_t){.socket = p->status_socket, .events = ZMQ_POLLIN};
    for (uint32_t s = 0; s < p->n_stages; s++) {
        if (p->stage[s].process.pid == 0) continue;
        items[n++] = (zmq_pollitem_t){.socket = p->stage[s].socket, .events = ZMQ_POLLIN};
        items[n++] = (zmq_pollitem_t){.fd = p->stage[s].process.pidfd, .events = ZMQ_POLLIN};
    }
    if (zmq_poll(items, n, LOOK_NS / NS_PER_MS) > 0 && items[0].revents != 0) {
        uint64_t count;
        ssize_t got = read(p->wake_fd, &count, sizeof count);
        (void)got;
    }
}

static status look(pipeline *p, uint64_t elapsed_ns, errmsg *e)
{
    for (uint32_t s = 0; s < p->n_stages; s++) {
        errmsg why = {0};
        status st = supervise(p, s, elapsed_ns, &why);
        if (st == ST_INTERRUPTED) return st;
        if (st != ST_OK) TRY(recover_lost(p, s, &why, e));
    }
    return ST_OK;
}

static status turn(pipeline *p, uint64_t *looked_ns, errmsg *e)
{
    for (uint32_t s = 0; s < p->n_stages; s++) TRY(take_messages(p, s, e));
    uint64_t now = now_ns(), elapsed = now - *looked_ns;
    if (elapsed < LOOK_NS) {
        TRY(look(p, 0, e)); /* for those that ended alone */
    } else {
        *looked_ns = now;
        p->n_answers = ANSWERS_PER_LOOK;
        TRY(look(p, elapsed < LOOK_MAX_NS ? elapsed : LOOK_MAX_NS, e));
        show_progress(p);
    }
    TRY(recover_turn(p, e));
    if (p->phase == PHASE_READY) TRY(schedule_issue(p, e));
    answer_status(p);
    return ST_OK;
}

void *engine_main(void *pipeline_)
{
    pipeline *p = pipeline_;
    pthread_setname_np(pthread_self(), "engine");
    uint64_t looked_ns = now_ns();
    errmsg e = {0};
    pthread_mutex_lock(&p->lock);
    status s =
        launch_stages(p, &e); /* by this thread: children die with the thread that made them */
    while (s == ST_OK && p->phase != PHASE_DEAD) {
        pthread_mutex_unlock(&p->lock);
        wait_for_something(p);
        pthread_mutex_lock(&p->lock);
        bool asked = interrupt_asked(p);
        if (asked || p->closing)
            stop_cleanly(p, asked ? ST_INTERRUPTED : ST_CLOSED);
        else
            s = turn(p, &looked_ns, &e);
        if (s == ST_INTERRUPTED) {
            s = ST_OK;
            stop_cleanly(p, ST_INTERRUPTED);
        }
    }
    if (s != ST_OK) {
        errmsg_set(&e, s, "the pipeline failed: %s", status_word(s));
        engine_fail(p, &e);
    }
    /* Stay for `status` and for close, with no children left. */
    while (!p->closing) {
        pthread_mutex_unlock(&p->lock);
        zmq_pollitem_t items[] = {{.fd = p->wake_fd, .events = ZMQ_POLLIN},
                                  {.socket = p->status_socket, .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, 100);
        pthread_mutex_lock(&p->lock);
        p->n_answers = ANSWERS_PER_LOOK;
        answer_status(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
