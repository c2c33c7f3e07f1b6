/* The processes of a run and the conversation with them: shared memory and sockets made, stages
 * spawned last to first, told what they are, stopped first to last. */
#include "coordinator/engine/engine.h"

#include "common/amount.h"
#include "common/boundary.h"
#include "common/clock.h"
#include "common/journal.h"
#include "common/loan.h"
#include "common/log.h"
#include "common/threads.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/machine/limits.h"
#include "coordinator/machine/unsplit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "build_id.h"

#define STOP_LIMIT_MS 700u
#define DESCRIPTORS 25u /* of a pipeline; 15 without anybody who asks, and with no trace */
#define DESCRIPTORS_OF_STAGE 8u /* 6 while nothing happens */
#define QUIET_LIMIT_MS 300u /* of it, at most, for loans to be given back */
#define QUIET_LOOK_US 500u
/* A stage's own wait on a boundary: the coordinator's supervision is what ends it, this is for a
 * coordinator that lives but has lost sight of the step. */
#define STAGE_WAIT_LIMIT_MS 3600000u

static status make_socket(pipeline *p, int type, const char *endpoint, void **out, errmsg *e)
{
    int linger = 0;
    *out = zmq_socket(p->zmq, type);
    if (*out == NULL || zmq_setsockopt(*out, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(*out, endpoint) != 0) {
        return errmsg_set(e, ST_RESOURCES, "cannot bind %s: %s", endpoint,
                          zmq_strerror(zmq_errno()));
    }
    return ST_OK;
}

/* What stages lend each other, if anything. */
static status make_loan(pipeline *p, errmsg *e)
{
    bool may =
        unsplit_asked(&p->step_doors) || (p->o.unsplit && unsplit_possible(&p->plan, &p->gpus));
    loan_layout at;
    if (p->n_stages == 1) return ST_OK;
    p->loans = (may ? LOAN_UNSPLIT : 0) | (p->plan.gathered ? LOAN_GATHERED : 0);
    if (p->loans == 0) return ST_OK;
    loan_layout_make(&at, p->model, p->n_stages, p->plan.cuts.at, p->plan.n_blocks, p->plan.kv_type,
                     p->plan.stage[0].device.kind != DEVICE_CUDA);
    return loan_create(&p->loan_fd, &at, e);
}

static const char *status_endpoint(char out[128], const pipeline *p)
{
    snprintf(out, 128, "ipc://%s/status", p->dir.path);
    return out;
}

/* Whoever cleans up in /tmp takes the run directory too. What is connected stays so; the next stage
 * and who asks for the status need it. */
static status keep_rundir(pipeline *p, errmsg *e)
{
    char endpoint[128];
    bool anew;
    TRY(rundir_keep(&p->dir, &anew, e));
    if (!anew) return ST_OK;
    log_warn("the run directory %s was removed: made anew", p->dir.path);
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (p->stage[s].process.pid != 0) rundir_note_process(&p->dir, p->stage[s].process.pid);
    zmq_unbind(p->status_socket, status_endpoint(endpoint, p));
    if (zmq_bind(p->status_socket, endpoint) != 0)
        return errmsg_set(e, ST_RESOURCES, "cannot bind %s: %s", endpoint,
                          zmq_strerror(zmq_errno()));
    return ST_OK;
}

/* libzmq aborts where it finds none: what a pipeline and its stages open here, and what answering
 * and replacing take meanwhile. */
static status check_descriptors(const pipeline *p, errmsg *e)
{
    char who[64];
    snprintf(who, sizeof who, "a pipeline of %u stage%s", p->n_stages, plural(p->n_stages));
    return limits_descriptors(DESCRIPTORS + DESCRIPTORS_OF_STAGE * p->n_stages, who, e);
}

/* For replacements too: a file by that name may be another build's by then. */
static status open_program(pipeline *p, errmsg *e)
{
    p->stage_program_fd = open(p->stage_program, O_PATH | O_CLOEXEC);
    if (p->stage_program_fd >= 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "cannot open %s: %s (--stage-program)", p->stage_program,
                      strerror(errno));
}

status launch_prepare(pipeline *p, errmsg *e)
{
    char endpoint[128];
    TRY(check_descriptors(p, e));
    TRY(open_program(p, e));
    TRY(rundir_open(&p->dir, p->o.run_dir, e));
    if (pipe2(p->death_pipe, O_CLOEXEC) != 0)
        return errmsg_set(e, ST_RESOURCES, "pipe: %s", strerror(errno));
    if (p->o.trace != NULL) {
        const char *slash = strrchr(p->model_path, '/');
        TRY(trace_begin(&p->trace, p->o.trace, &p->plan, slash != NULL ? slash + 1 : p->model_path,
                        e));
    }
    TRY(run_block_create(&p->block, &p->run_block_fd, p->plan.cuts.n_stages, e));
    TRY(readback_create(&p->results, &p->readback_fd, p->plan.n_readback, p->model->n_vocab,
                        p->plan.n_sessions, e));
    for (uint32_t s = 0; p->n_stages > 1 && s < p->n_stages; s++) {
        bool back = s + 1 == p->n_stages; /* last to first: sampled tokens, no hidden state */
        TRY(boundary_create(&p->boundary_fd[s], p->plan.rows_max, back ? 0 : p->model->n_embd,
                            p->model->aux_bytes, e));
    }
    for (uint32_t s = 0; p->plan.n_journal_blocks > 0 && s + 1 < p->n_stages; s++)
        TRY(journal_create(&p->journal_fd[s], p->plan.n_journal_blocks, p->model->n_embd, e));
    TRY(make_loan(p, e));
    TRY(threads_can_start(ZEROMQ_THREADS + 1, "a coordinator", e)); /* and the engine's */
    p->zmq = zmq_ctx_new();
    if (p->zmq == NULL) return errmsg_set(e, ST_RESOURCES, "zeromq: %s", zmq_strerror(zmq_errno()));
    return make_socket(p, ZMQ_REP, status_endpoint(endpoint, p), &p->status_socket, e);
}

static uint32_t add_fd(int *fds, uint32_t n, int fd)
{
    if (fd >= 0) fds[n++] = fd;
    return n;
}

static int boundary_in(const pipeline *p, uint32_t s)
{
    return p->n_stages > 1 ? p->boundary_fd[(s + p->n_stages - 1) % p->n_stages] : -1;
}

static int journal_in(const pipeline *p, uint32_t s)
{
    return s > 0 ? p->journal_fd[s - 1] : -1;
}

static int boundary_out(const pipeline *p, uint32_t s)
{
    return p->n_stages > 1 ? p->boundary_fd[s] : -1;
}

status launch_one(pipeline *p, uint32_t s, errmsg *e)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    stage_slot *t = &p->stage[s];
    t->epoch++;
    t->hello = t->loaded = t->probed = t->mute = false;
    t->n_bad = 0;
    t->loaded_ns = 0;
    t->still_progress_ns = t->still_heartbeat_ns = t->broken_limit_ns = 0;
    TRY(keep_rundir(p, e));
    snprintf(t->endpoint, sizeof t->endpoint, "ipc://%s/s%u.%u", p->dir.path, s, t->epoch);
    TRY(make_socket(p, ZMQ_PAIR, t->endpoint, &t->socket, e));
    char stage_text[12], epoch_text[12], death_text[12], block_text[12], log_text[12];
    snprintf(stage_text, sizeof stage_text, "%u", s);
    snprintf(epoch_text, sizeof epoch_text, "%u", t->epoch);
    snprintf(death_text, sizeof death_text, "%d", p->death_pipe[0]);
    snprintf(block_text, sizeof block_text, "%d", p->run_block_fd);
    snprintf(log_text, sizeof log_text, "%d", log_fd_now());
    char *const argv[] = {p->stage_program,     "--endpoint", t->endpoint,
                          "--stage",            stage_text,   "--epoch",
                          epoch_text,           "--death-fd", death_text,
                          "--run-block-fd",     block_text,   "--log-level",
                          (char *)levels[log_level_now()], "--log-fd", log_text, NULL};
    int fds[GGUF_FILES_MAX + 11];
    uint32_t n = 0;
    n = add_fd(fds, n, p->death_pipe[0]);
    n = add_fd(fds, n, p->run_block_fd);
    n = add_fd(fds, n, log_fd_now());
    n = add_fd(fds, n, boundary_in(p, s));
    n = add_fd(fds, n, boundary_out(p, s));
    n = add_fd(fds, n, p->readback_fd);
    if (p->trace != NULL) n = add_fd(fds, n, trace_fd(p->trace));
    n = add_fd(fds, n, journal_in(p, s));
    n = add_fd(fds, n, p->journal_fd[s]);
    n = add_fd(fds, n, p->loan_fd);
    for (uint32_t i = 0; i < gguf_n_files(p->file); i++) n = add_fd(fds, n, gguf_fd(p->file, i));
    t->start_ns = now_ns();
    if (t->epoch == 1) t->first_start_ns = t->start_ns;
    TRY(child_start_open(&t->process, p->stage_program_fd, argv, fds, n, e));
    t->pid = (int)t->process.pid;
    rundir_note_process(&p->dir, t->process.pid);
    return ST_OK;
}

status launch_stages(pipeline *p, errmsg *e)
{
    for (uint32_t s = p->n_stages; s-- > 0;) {
        errmsg why = {0};
        char called[STAGE_CALLED_BYTES];
        status st = launch_one(p, s, &why);
        if (st != ST_OK)
            return errmsg_set(e, st, "%s: %.430s", stage_called(p, s, called), why.text);
    }
    return ST_OK;
}

status launch_send(pipeline *p, uint32_t s, wire_kind kind, uint64_t seq, const void *body,
                   uint64_t body_bytes, errmsg *e)
{
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = (uint16_t)kind,
                     .stage = s,
                     .epoch = p->stage[s].epoch,
                     .body_bytes = (uint32_t)body_bytes,
                     .seq = seq};
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, sizeof h + body_bytes) != 0)
        return errmsg_set(e, ST_RESOURCES, "no memory for a message");
    memcpy(zmq_msg_data(&m), &h, sizeof h);
    if (body_bytes > 0) memcpy((char *)zmq_msg_data(&m) + sizeof h, body, body_bytes);
    if (zmq_msg_send(&m, p->stage[s].socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&m);
        p->stage[s].mute = true; /* it has no peer any more, most likely */
    }
    return ST_OK;
}

static uint32_t threads_per_stage(const pipeline *p)
{
    if (p->o.n_threads != 0) return p->o.n_threads;
    uint32_t n = inventory_cores() / p->n_stages;
    return n > 0 ? n : 1;
}

status launch_config(pipeline *p, uint32_t s, errmsg *e)
{
    const stage_plan *sp = &p->plan.stage[s];
    wire_config c = {.stage_i = s,
                     .n_stages = p->n_stages,
                     .epoch = p->stage[s].epoch,
                     .edge_epoch = p->edge_epoch,
                     .n_layers = p->model->n_layers,
                     .layer_begin = sp->layer_begin,
                     .layer_end = last_layer(p, s) + 1,
                     .n_ctx = p->plan.n_ctx,
                     .n_branches = p->plan.n_sessions,
                     .rows_max = p->plan.rows_max,
                     .n_readback = p->plan.n_readback,
                     .n_blocks = {[KV_CLASS_GLOBAL] = p->plan.n_blocks[KV_CLASS_GLOBAL],
                                  [KV_CLASS_WINDOW] = p->plan.n_blocks[KV_CLASS_WINDOW]},
                     .kv_type = p->plan.kv_type,
                     .n_threads = threads_per_stage(p),
                     .numa_node = sp->device.kind == DEVICE_CPU_NODE ? sp->device.index : WIRE_NONE,
                     .device = sp->device.kind == DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU,
                     .cuda_index = sp->device.kind == DEVICE_CUDA ? sp->device.index : 0,
                     .run_block_fd = p->run_block_fd,
                     .trace_fd = trace_fd(p->trace),
                     .readback_fd = p->readback_fd,
                     .in_fd = boundary_in(p, s),
                     .out_fd = boundary_out(p, s),
                     .journal_in_fd = journal_in(p, s),
                     .journal_out_fd = p->journal_fd[s],
                     .loan_fd = p->loan_fd,
                     .loans = p->loans,
                     .n_seam = p->plan.one_process ? p->plan.cuts.n_stages : 1,
                     .n_model_fds = gguf_n_files(p->file),
                     .transport = p->doors.transport,
                     .signal = p->doors.signal,
                     .wait_limit_ms = STAGE_WAIT_LIMIT_MS};
    snprintf(c.build, sizeof c.build, "%s", MEMRA_BUILD_ID);
    memcpy(c.range, p->plan.cuts.at, sizeof c.range);
    for (uint32_t i = 0; i < c.n_model_fds; i++) c.model_fd[i] = gguf_fd(p->file, i);
    snprintf(c.isa, sizeof c.isa, "%s", p->o.isa != NULL ? p->o.isa : "auto");
    snprintf(c.fault, sizeof c.fault, "%s", p->doors.fault_text);
    const gpu *g = sp->device.kind == DEVICE_CUDA ? gpus_get(&p->gpus, sp->device.index) : NULL;
    if (g != NULL) snprintf(c.cuda_uuid, sizeof c.cuda_uuid, "%s", g->uuid);
    return launch_send(p, s, WIRE_CONFIG, 0, &c, sizeof c, e);
}

/* Stage s says that it is quiet, or nothing of use any more. */
static bool hear_quiet(pipeline *p, uint32_t s)
{
    for (;;) {
        int n = zmq_recv(p->stage[s].socket, p->frame, p->frame_bytes, ZMQ_DONTWAIT);
        if (n < 0) return child_reap(&p->stage[s].process);
        if ((uint64_t)n > p->frame_bytes || !wire_valid(p->frame, (uint64_t)n)) continue;
        if (wire_head(p->frame)->kind == WIRE_QUIESCED || wire_head(p->frame)->kind == WIRE_FAULT)
            return true;
    }
}

/* What one has borrowed it gives back before another frees it. */
static void give_back_loans(pipeline *p)
{
    bool waits[STAGES_MAX] = {false};
    uint32_t n = 0;
    uint64_t deadline = now_ns() + QUIET_LIMIT_MS * NS_PER_MS;
    for (uint32_t s = 0; p->loan_fd >= 0 && s < p->n_stages; s++) {
        stage_slot *t = &p->stage[s];
        errmsg ignored = {0};
        if (t->process.pid == 0 || !t->loaded || t->state != SLOT_RUNNING) continue;
        if (launch_send(p, s, WIRE_QUIESCE, 0, NULL, 0, &ignored) != ST_OK || t->mute) continue;
        waits[s] = true;
        n++;
    }
    while (n > 0 && now_ns() < deadline) {
        for (uint32_t s = 0; s < p->n_stages; s++) {
            if (!waits[s] || !hear_quiet(p, s)) continue;
            waits[s] = false;
            n--;
        }
        if (n > 0) usleep(QUIET_LOOK_US);
    }
}

void launch_stop(pipeline *p)
{
    uint64_t deadline = now_ns() + STOP_LIMIT_MS * NS_PER_MS;
    for (uint32_t s = 0; s < p->n_stages; s++)
        atomic_store(&p->block->stage[s].ending, 1);
    give_back_loans(p);
    for (uint32_t s = 0; s < p->n_stages; s++) {
        stage_slot *t = &p->stage[s];
        if (t->process.pid == 0) continue;
        errmsg ignored = {0};
        if (launch_send(p, s, WIRE_STOP, 0, NULL, 0, &ignored) != ST_OK || t->mute) continue;
        uint64_t now = now_ns();
        uint64_t left_ms = now < deadline ? (deadline - now) / NS_PER_MS : 0;
        child_wait(&t->process, (uint32_t)(left_ms / (p->n_stages - s)));
    }
    for (uint32_t s = 0; s < p->n_stages; s++) child_destroy(&p->stage[s].process);
}

void launch_reaped(pipeline *p, uint32_t s)
{
    stage_slot *t = &p->stage[s];
    child_destroy(&t->process);
    rundir_forget_process(&p->dir, t->pid);
    if (t->socket != NULL) zmq_close(t->socket);
    t->socket = NULL;
    unlink(t->endpoint + strlen("ipc://")); /* which zeromq would only leave to the run's end */
    run_block_forget(p->block, s);
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static uint32_t faults_met(const pipeline *p)
{
    uint32_t met = 0;
    for (uint32_t s = 0; s < p->n_stages; s++)
        met |= atomic_load_explicit(&p->block->stage[s].faults_met, memory_order_relaxed);
    return met;
}

void launch_release(pipeline *p)
{
    for (uint32_t s = 0; s < p->n_stages; s++) {
        child_destroy(&p->stage[s].process);
        if (p->stage[s].socket != NULL) zmq_close(p->stage[s].socket);
        p->stage[s].socket = NULL;
        close_fd(&p->boundary_fd[s]);
        close_fd(&p->journal_fd[s]);
    }
    if (p->status_socket != NULL) zmq_close(p->status_socket);
    if (p->zmq != NULL) zmq_ctx_term(p->zmq);
    p->status_socket = p->zmq = NULL;
    close_fd(&p->death_pipe[0]);
    close_fd(&p->death_pipe[1]);
    close_fd(&p->run_block_fd);
    close_fd(&p->readback_fd);
    close_fd(&p->loan_fd);
    close_fd(&p->stage_program_fd);
    if (p->block != NULL && p->o.faults_met != NULL)
        __atomic_fetch_or(p->o.faults_met, faults_met(p), __ATOMIC_RELAXED);
    run_block_unmap(p->block);
    trace_end(p->trace);
    p->trace = NULL;
    if (p->results.map != NULL) readback_unmap(&p->results);
    p->block = NULL;
    rundir_close(&p->dir);
}
