#include "stage/control.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/threads.h"
#include "common/wire.h"
#include "stage/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "build_id.h"

#define BEAT_MS 50
#define STOP_LIMIT_MS 400u      /* a walk ends after its layer; longer than this and we just end */
#define BAD_FRAMES_MAX 3u
#define FAULT_LINGER_NS (2 * NS_PER_S) /* for the coordinator to take the report and say stop */

typedef struct {
    control_options o;
    void *zmq, *socket;
    run_block *block;
    worker *worker;
    unsigned char *frame;       /* [frame_bytes] */
    uint64_t frame_bytes;
    uint64_t fault_ns;          /* when a fault was reported; 0: none */
    uint32_t n_bad;             /* frames that failed their check */
    int exit_code;
    bool ending;
} control;

static status connect_up(control *c, errmsg *e)
{
    int linger = 0;
    TRY(threads_can_start(ZEROMQ_THREADS, "a stage process", e));
    c->zmq = zmq_ctx_new();
    c->socket = c->zmq != NULL ? zmq_socket(c->zmq, ZMQ_PAIR) : NULL;
    if (c->socket == NULL || zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_connect(c->socket, c->o.endpoint) != 0) {
        return errmsg_set(e, ST_RESOURCES, "cannot connect to %s: %s", c->o.endpoint,
                          zmq_strerror(zmq_errno()));
    }
    return ST_OK;
}

static status hello(control *c, errmsg *e)
{
    struct {
        wire_header h;
        wire_hello b;
    } m = {.h = {.magic = WIRE_MAGIC,
                 .version = WIRE_VERSION,
                 .kind = WIRE_HELLO,
                 .stage = c->o.stage_i,
                 .epoch = c->o.epoch,
                 .body_bytes = sizeof m.b},
           .b = {.pid = (uint32_t)getpid()}};
    snprintf(m.b.build, sizeof m.b.build, "%s", MEMRA_BUILD_ID);
    if (zmq_send(c->socket, &m, sizeof m, ZMQ_DONTWAIT) != (int)sizeof m)
        return errmsg_set(e, ST_PROTOCOL, "cannot say hello: %s", zmq_strerror(zmq_errno()));
    return ST_OK;
}

static void end_with(control *c, int exit_code)
{
    if (!c->ending) c->exit_code = exit_code;
    c->ending = true;
}

/* Counted, named and dropped; not for ever, as nobody else may talk here. */
static void bad_frame(control *c, int n)
{
    stage_words *words = &c->block->stage[c->o.stage_i];
    atomic_fetch_add_explicit(&words->n_bad_messages, 1, memory_order_relaxed);
    log_warn("a message of %d bytes failed its check; dropped", n);
    if (++c->n_bad == BAD_FRAMES_MAX) end_with(c, status_exit_code(ST_PROTOCOL));
}

/* Frames from the coordinator. */
static void take_frames(control *c)
{
    errmsg e = {0};
    for (;;) {
        int n = zmq_recv(c->socket, c->frame, c->frame_bytes, ZMQ_DONTWAIT);
        if (n < 0) return;
        if ((uint64_t)n > c->frame_bytes || !wire_valid(c->frame, (uint64_t)n) ||
            wire_head(c->frame)->stage != c->o.stage_i) {
            bad_frame(c, n);
            if (c->ending) return;
            continue;
        }
        if (wire_head(c->frame)->epoch != c->o.epoch) continue; /* meant for another incarnation */
        if (wire_head(c->frame)->kind == WIRE_STOP) {
            end_with(c, c->fault_ns != 0 ? c->exit_code : 0);
            return;
        }
        if (wire_head(c->frame)->kind == WIRE_QUIESCE) worker_interrupt(c->worker);
        if (worker_post(c->worker, c->frame, (uint64_t)n, &e) != ST_OK) {
            log_error("%s", e.text);
            end_with(c, status_exit_code(e.code));
            return;
        }
    }
}

/* Frames of the worker. */
static void give_frames(control *c)
{
    mail *m;
    while ((m = mailbox_pop(worker_outbox(c->worker), 0)) != NULL) {
        if (wire_head(m->frame)->kind == WIRE_FAULT) {
            const wire_fault *f = wire_body(m->frame);
            c->fault_ns = now_ns();
            c->exit_code = status_exit_code((status)f->code);
        }
        if (zmq_send(c->socket, m->frame, m->bytes, ZMQ_DONTWAIT) != (int)m->bytes) {
            log_error("cannot send %s: %s", wire_kind_word(wire_head(m->frame)->kind),
                      zmq_strerror(zmq_errno()));
            end_with(c, status_exit_code(ST_PROTOCOL));
        }
        free(m);
    }
}

static void loop(control *c)
{
    stage_words *words = &c->block->stage[c->o.stage_i];
    zmq_pollitem_t items[] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                              {.fd = worker_outbox(c->worker)->fd, .events = ZMQ_POLLIN},
                              {.fd = c->o.death_fd, .events = ZMQ_POLLIN}};
    while (!c->ending) {
        int n = zmq_poll(items, 3, BEAT_MS);
        if (n < 0 && zmq_errno() != EINTR) end_with(c, status_exit_code(ST_PROTOCOL));
        atomic_fetch_add_explicit(&words->heartbeat, 1, memory_order_relaxed);
        /* Nothing is ever written into that pipe: readable or closed, the coordinator is gone. */
        if (items[2].revents != 0) _exit(status_exit_code(ST_CLOSED));
        give_frames(c);
        take_frames(c);
        if (c->fault_ns != 0 && now_ns() - c->fault_ns > FAULT_LINGER_NS) c->ending = true;
    }
}

static void say_bye(control *c)
{
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = WIRE_BYE,
                     .stage = c->o.stage_i,
                     .epoch = c->o.epoch};
    zmq_send(c->socket, &h, sizeof h, ZMQ_DONTWAIT);
}

int control_run(const control_options *o)
{
    control c = {.o = *o};
    errmsg e = {0};
    status s = ST_OK;
    c.frame_bytes = wire_frame_bytes_max();
    c.frame = aligned_alloc(16, c.frame_bytes);
    if (c.frame == NULL) s = errmsg_set(&e, ST_RESOURCES, "no memory for messages");
    if (s == ST_OK) s = run_block_map(&c.block, o->run_block_fd, &e);
    if (s == ST_OK && o->stage_i >= c.block->n_stages)
        s = errmsg_set(&e, ST_PROTOCOL, "stage %u of %u", o->stage_i, c.block->n_stages);
    if (s == ST_OK) s = worker_open(&c.worker, o->stage_i, o->epoch, c.block, &e);
    if (s == ST_OK) s = connect_up(&c, &e);
    if (s == ST_OK) s = hello(&c, &e);
    if (s != ST_OK) {
        log_error("%s", e.text);
        end_with(&c, status_exit_code(s));
    } else {
        loop(&c);
        say_bye(&c);
    }
    if (c.worker != NULL && !worker_close(c.worker, STOP_LIMIT_MS)) _exit(c.exit_code);
    if (c.socket != NULL) zmq_close(c.socket);
    if (c.zmq != NULL) zmq_ctx_term(c.zmq);
    run_block_unmap(c.block);
    free(c.frame);
    return c.exit_code;
}
