/* Owns everything a stage computes with: model file, stage object, boundaries, readback. A step:
 * operations on KV, rows in (or embeddings), the layers, rows out (or head and readback). */
#include "stage/worker.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/wire.h"
#include "stage/edges.h"
#include "stage/inject.h"
#include "stage/probe.h"
#include "stage/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build_id.h"

#define IDLE_MS 50

struct worker {
    pthread_t thread;
    uint32_t stage_i, epoch;
    run_block *block;
    stage_words *words;
    mailbox inbox, outbox;
    _Atomic uint32_t stop;
    pthread_mutex_t edges_lock;      /* edges are opened and closed under it: worker_stop wakes them */
    bool edges_open;

    wire_config config;
    bool configured;
    gguf *file;
    model_desc *model;
    stage *body;
    edges edges;
    readback results;
    injector injector;
    bool corrupt_probe;              /* kind=corrupt,at=load */
    bool faulted;
};

static bool is_first(const worker *w)
{
    return w->config.stage_i == 0;
}

static bool is_last(const worker *w)
{
    return w->config.stage_i + 1 == w->config.n_stages;
}

static void set_state(worker *w, stage_state s)
{
    atomic_store_explicit(&w->words->state, s, memory_order_release);
}

static status say(worker *w, wire_kind kind, uint64_t seq, const void *body, uint32_t body_bytes,
                  errmsg *e)
{
    _Alignas(16) unsigned char frame[sizeof(wire_header) + sizeof(wire_fault) + 64];
    CHECK(sizeof(wire_header) + body_bytes <= sizeof frame);
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = (uint16_t)kind,
                     .stage = w->stage_i,
                     .epoch = w->epoch,
                     .body_bytes = body_bytes,
                     .seq = seq};
    memcpy(frame, &h, sizeof h);
    if (body_bytes > 0) memcpy(frame + sizeof h, body, body_bytes);
    return mailbox_push(&w->outbox, frame, sizeof h + body_bytes, e);
}

/* --- load ----------------------------------------------------------------------------------------- */

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    worker *w = ctx;
    if (atomic_load_explicit(&w->words->state, memory_order_relaxed) == STAGE_LOADING) {
        atomic_store_explicit(&w->words->load_total_bytes, total, memory_order_relaxed);
        atomic_store_explicit(&w->words->load_done_bytes, done, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&w->words->progress, 1, memory_order_release);
    return atomic_load_explicit(&w->stop, memory_order_acquire) != 0;
}

static status load(worker *w, const wire_config *c, errmsg *e)
{
    w->config = *c;
    w->configured = true;
    if (strcmp(c->build, MEMRA_BUILD_ID) != 0) {
        return errmsg_set(e, ST_RESOURCES, "memra-pp is of build %s, memra-stage of build %s: install both "
                          "from one build", c->build, MEMRA_BUILD_ID);
    }
    set_state(w, STAGE_LOADING);
    TRY(inject_open(&w->injector, c->fault, c->stage_i, w->words, &w->stop, e));
    w->corrupt_probe = inject_at(&w->injector, FAULT_AT_LOAD, FAULT_STEP_ANY);
    int fds[GGUF_FILES_MAX];
    for (uint32_t i = 0; i < c->n_model_fds; i++) fds[i] = c->model_fd[i];
    TRY(gguf_open_fds(&w->file, fds, c->n_model_fds, e));
    w->model = malloc(sizeof *w->model);
    if (w->model == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the model description");
    TRY(model_read(w->model, w->file, e));
    const backend *b = backend_get((device_kind)c->device);
    if (b == NULL)
        return errmsg_set(e, ST_RESOURCES, "this build has no CUDA backend");
    stage_options o = {.backend = b,
                       .config = &w->config,
                       .file = w->file,
                       .model = w->model,
                       .on_progress = on_progress,
                       .progress_ctx = w};
    TRY(stage_open(&w->body, &o, e));
    if (is_last(w)) {
        TRY(readback_map(&w->results, c->readback_fd, e));
        if (w->results.n_rows != c->n_readback || w->results.n_vocab != w->model->n_vocab)
            return errmsg_set(e, ST_PROTOCOL, "the readback rows are not this model's");
    }
    pthread_mutex_lock(&w->edges_lock);
    status s = edges_open(&w->edges, &w->config, o.backend, stage_queue(w->body), w->words, &w->stop, e);
    w->edges_open = s == ST_OK;
    pthread_mutex_unlock(&w->edges_lock);
    TRY(s);
    stage_facts f = stage_facts_get(w->body);
    wire_loaded loaded = {.weights_bytes = f.weights_bytes,
                          .kv_bytes = f.kv_bytes,
                          .scratch_bytes = f.scratch_bytes};
    snprintf(loaded.device_name, sizeof loaded.device_name, "%s", f.device_name);
    set_state(w, STAGE_LOADED);
    return say(w, WIRE_LOADED, 0, &loaded, sizeof loaded, e);
}

static status probe(worker *w, errmsg *e)
{
    set_state(w, STAGE_PROBING);
    TRY(probe_edges(&w->edges, stage_hidden(w->body), w->corrupt_probe, e));
    set_state(w, STAGE_READY);
    wire_probed p = {.n_probes = (uint32_t)atomic_load(&w->words->n_probes)};
    return say(w, WIRE_PROBED, 0, &p, sizeof p, e);
}

/* --- steps ---------------------------------------------------------------------------------------- */

/* Count an overlap when another stage is inside its own layers as we enter ours: what is active at
 * the same time, not the order of enqueueing. */
static void enter_layers(worker *w)
{
    atomic_store_explicit(&w->words->inside, 1, memory_order_seq_cst);
    for (uint32_t i = 0; i < w->config.n_stages; i++) {
        if (i != w->stage_i &&
            atomic_load_explicit(&w->block->stage[i].inside, memory_order_seq_cst) != 0) {
            atomic_fetch_add_explicit(&w->words->n_overlaps, 1, memory_order_relaxed);
            break;
        }
    }
}

static void leave_layers(worker *w)
{
    atomic_store_explicit(&w->words->inside, 0, memory_order_release);
}

/* kind=corrupt: the top mantissa bit of the first value, on the device. */
static status flip_bit(worker *w)
{
    const backend *b = backend_get((device_kind)w->config.device);
    backend_queue *q = stage_queue(w->body);
    backend_event ev;
    uint32_t bits;
    TRY(b->download(q, &bits, stage_hidden(w->body), sizeof bits));
    TRY(b->event_record(q, &ev));
    TRY(b->event_wait(q, ev));
    bits ^= 1u << 22;
    TRY(b->upload(q, stage_hidden(w->body), &bits, sizeof bits));
    TRY(b->event_record(q, &ev));
    return b->event_wait(q, ev);
}

static void add(_Atomic uint64_t *word, uint64_t n)
{
    atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

static status walk(worker *w, const step_view *v, bool corrupt, errmsg *e)
{
    enter_layers(w);
    status s = ST_OK;
    if (is_first(w)) s = stage_embed(w->body, e);
    if (s == ST_OK) s = stage_walk(w->body, !corrupt, e);
    if (s == ST_OK && corrupt && v->step->n_rows > 0) s = flip_bit(w);
    leave_layers(w);
    return s;
}

static status step(worker *w, const void *frame, errmsg *e)
{
    step_view v = wire_step_view(frame);
    uint64_t seq = wire_head(frame)->seq;
    bool prime = (v.step->flags & STEP_PRIME) != 0;
    if (v.step->n_rows > w->config.rows_max)
        return errmsg_set(e, ST_PROTOCOL, "step %llu has %u rows, at most %u", (unsigned long long)seq,
                          v.step->n_rows, w->config.rows_max);
    atomic_store_explicit(&w->words->step_entered, seq, memory_order_release);
    bool corrupt = inject_at(&w->injector, prime ? FAULT_AT_PRIME : FAULT_AT_DECODE, seq);
    uint64_t begin = now_ns();
    TRY(stage_kv_ops(w->body, v.kv_ops, v.step->n_kv_ops, e));
    TRY(stage_rows(w->body, v.rows, v.step->n_rows, v.step->n_samplers, e));
    uint64_t busy = now_ns() - begin;
    if (!is_first(w)) {
        TRY(edges_receive(&w->edges, v.step->slot, seq, v.rows, v.step->n_rows,
                          stage_hidden(w->body), e));
    }
    begin = now_ns();
    TRY(walk(w, &v, corrupt, e));
    wire_result r = {0};
    if (is_last(w)) TRY(stage_head(w->body, v.samplers, &w->results, seq, &r.n_rows, e));
    busy += now_ns() - begin;
    /* Counted before it is handed on: who sees the step's result sees it counted, by every stage. */
    add(&w->words->busy_ns, busy);
    add(&w->words->n_steps, 1);
    add(&w->words->n_rows, v.step->n_rows);
    if (prime) add(&w->words->n_chunks, 1);
    if (is_last(w))
        TRY(say(w, WIRE_RESULT, seq, &r, sizeof r, e));
    else
        TRY(edges_send(&w->edges, v.step->slot, seq, v.rows, v.step->n_rows, stage_hidden(w->body), e));
    atomic_store_explicit(&w->words->step_done, seq, memory_order_release);
    atomic_fetch_add_explicit(&w->words->progress, 1, memory_order_release);
    return ST_OK;
}

/* --- the thread ----------------------------------------------------------------------------------- */

static status handle(worker *w, const mail *m, errmsg *e)
{
    const wire_header *h = wire_head(m->frame);
    switch (h->kind) {
    case WIRE_CONFIG:
        if (w->configured) break;
        return load(w, wire_body(m->frame), e);
    case WIRE_PROBE:
        if (w->body == NULL) break;
        return probe(w, e);
    case WIRE_STEP:
        if (w->body == NULL) break;
        return step(w, m->frame, e);
    default:
        break;
    }
    return errmsg_set(e, ST_PROTOCOL, "unexpected message %s", wire_kind_word(h->kind));
}

static void report(worker *w, const errmsg *e)
{
    errmsg ignored = {0};
    wire_fault f = {.code = e->code, .seq = atomic_load(&w->words->step_entered)};
    snprintf(f.text, sizeof f.text, "%s", e->text);
    set_state(w, STAGE_FAILED);
    w->faulted = true;
    if (say(w, WIRE_FAULT, 0, &f, sizeof f, &ignored) != ST_OK) log_error("%s", e->text);
}

static void release(worker *w)
{
    pthread_mutex_lock(&w->edges_lock);
    w->edges_open = false;
    edges_close(&w->edges);
    pthread_mutex_unlock(&w->edges_lock);
    if (w->results.map != NULL) readback_unmap(&w->results);
    if (w->body != NULL) stage_close(w->body);
    free(w->model);
    if (w->file != NULL) gguf_close(w->file);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    pthread_setname_np(pthread_self(), "worker");
    while (atomic_load_explicit(&w->stop, memory_order_acquire) == 0) {
        mail *m = mailbox_pop(&w->inbox, IDLE_MS);
        if (m == NULL) {
            if (!w->faulted && atomic_load(&w->words->state) == STAGE_READY)
                inject_at(&w->injector, FAULT_AT_IDLE, FAULT_STEP_ANY);
            continue;
        }
        errmsg e = {0};
        status s = w->faulted ? ST_OK : handle(w, m, &e);
        free(m);
        if (s != ST_OK && s != ST_CLOSED) {
            errmsg_set(&e, s, "stage %u: %s", w->stage_i, status_word(s));
            report(w, &e);
        }
    }
    if (!w->faulted) set_state(w, STAGE_STOPPING);
    release(w);
    return NULL;
}

status worker_open(worker **out, uint32_t stage_i, uint32_t epoch, run_block *block, errmsg *e)
{
    *out = NULL;
    worker *w = calloc(1, sizeof *w);
    if (w == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the worker");
    w->stage_i = stage_i;
    w->epoch = epoch;
    w->block = block;
    w->words = &block->stage[stage_i];
    w->inbox.fd = w->outbox.fd = -1;
    pthread_mutex_init(&w->edges_lock, NULL);
    status s = ST_OK;
    TRY_DONE(s, mailbox_open(&w->inbox, e));
    TRY_DONE(s, mailbox_open(&w->outbox, e));
    atomic_store(&w->words->epoch, epoch);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc != 0) s = errmsg_set(e, ST_RESOURCES, "cannot start the worker thread: %s", strerror(rc));
done:
    if (s != ST_OK) {
        mailbox_close(&w->inbox);
        mailbox_close(&w->outbox);
        free(w);
        return s;
    }
    *out = w;
    return ST_OK;
}

status worker_post(worker *w, const void *frame, uint64_t bytes, errmsg *e)
{
    return mailbox_push(&w->inbox, frame, bytes, e);
}

mailbox *worker_outbox(worker *w)
{
    return &w->outbox;
}

void worker_stop(worker *w)
{
    atomic_store_explicit(&w->stop, 1, memory_order_release);
    pthread_mutex_lock(&w->edges_lock);
    if (w->edges_open) edges_wake(&w->edges);
    pthread_mutex_unlock(&w->edges_lock);
}

bool worker_close(worker *w, uint32_t limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += (long)(limit_ms % 1000) * (long)NS_PER_MS;
    if (until.tv_nsec >= (long)NS_PER_S) {
        until.tv_nsec -= (long)NS_PER_S;
        until.tv_sec++;
    }
    worker_stop(w);
    if (pthread_timedjoin_np(w->thread, NULL, &until) != 0) return false;
    mailbox_close(&w->inbox);
    mailbox_close(&w->outbox);
    pthread_mutex_destroy(&w->edges_lock);
    free(w);
    return true;
}
