/* What a worker does before its first step: model file, stage object, boundaries, results, journals
 * and trace opened as the configuration says, and the byte probe. */
#include "stage/worker_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build_id.h"

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    worker *w = ctx;
    if (atomic_load_explicit(&w->words->state, memory_order_relaxed) == STAGE_LOADING) {
        atomic_store_explicit(&w->words->load_total_bytes, total, memory_order_relaxed);
        atomic_store_explicit(&w->words->load_done_bytes, done, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&w->words->progress, 1, memory_order_release);
    return worker_interrupted(w);
}

/* While the device walks. */
static status meanwhile(void *ctx, errmsg *e)
{
    return worker_keep(ctx, e);
}

static status open_edges(worker *w, errmsg *e)
{
    pthread_mutex_lock(&w->edges_lock);
    status s = edges_open(&w->edges, &w->config, backend_get((device_kind)w->config.device),
                          stage_queue(w->body), w->words, &w->interrupts, e);
    w->edges_open = s == ST_OK;
    pthread_mutex_unlock(&w->edges_lock);
    return s;
}

static status open_trace(worker *w, errmsg *e)
{
    if (w->config.trace_fd == 0) return ST_OK;
    const wire_config *c = &w->config; /* several stages in this process: their time is the first's */
    uint32_t n = c->n_seam > 1 ? c->n_seam : c->n_stages;
    TRY(trace_block_map(&w->traces, c->trace_fd, n + 1, e));
    w->trace = &w->traces->ring[w->stage_i];
    return ST_OK;
}

static status map_loan(worker *w, errmsg *e)
{
    const wire_config *c = &w->config;
    loan_layout at;
    loan_layout_make(&at, w->model, c->n_stages, c->range, c->n_blocks, (dtype)c->kv_type,
                     c->device == DEVICE_CPU);
    return loan_map(&w->loan, c->loan_fd, &at, e);
}

static status load_all(worker *w, const wire_config *c, errmsg *e)
{
    w->config = *c;
    w->configured = true;
    TRY(open_trace(w, e));
    if (strcmp(c->build, MEMRA_BUILD_ID) != 0) {
        return errmsg_set(e, ST_RESOURCES, "memra-pp is of build %s, memra-stage of build %s: install both "
                          "from one build", c->build, MEMRA_BUILD_ID);
    }
    set_state(w, STAGE_LOADING);
    TRY(inject_open(&w->injector, c->fault, c->stage_i, w->words, &w->stop, e));
    uint32_t left;
    TRY(worker_inject(w, FAULT_AT_LOAD, FAULT_STEP_ANY, &left, e));
    w->corrupt_probe = has_fault(left, FAULT_CORRUPT);
    if (w->epoch > 1) TRY(worker_inject_recovery(w, e));
    int fds[GGUF_FILES_MAX];
    for (uint32_t i = 0; i < c->n_model_fds; i++) fds[i] = c->model_fd[i];
    TRY(gguf_open_fds(&w->file, fds, c->n_model_fds, e));
    w->model = malloc(sizeof *w->model);
    if (w->model == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the model description");
    TRY(model_read(w->model, w->file, e));
    const backend *b = backend_get((device_kind)c->device);
    if (b == NULL)
        return errmsg_set(e, ST_RESOURCES, "this build has no CUDA backend");
    if (c->loan_fd >= 0) TRY(map_loan(w, e));
    stage_options o = {.backend = b,
                       .config = &w->config,
                       .file = w->file,
                       .model = w->model,
                       .on_progress = on_progress,
                       .progress_ctx = w,
                       .meanwhile = meanwhile,
                       .meanwhile_ctx = w,
                       .loan = w->loan.map != NULL ? &w->loan : NULL};
    TRY(seam_open(&w->seam, &o, w->words, e));
    w->body = seam_first(&w->seam);
    if (is_last(w)) {
        TRY(readback_map(&w->results, c->readback_fd, e));
        if (w->results.n_rows != c->n_readback || w->results.n_vocab != w->model->n_vocab ||
            w->results.n_branches != c->n_branches)
            return errmsg_set(e, ST_PROTOCOL, "the readback rows are not this model's");
    }
    TRY(keeper_open(&w->sent, c->journal_out_fd, w->body, b, c->rows_max, e));
    if (c->journal_in_fd >= 0) TRY(journal_map(&w->received, c->journal_in_fd, e));
    TRY(rounds_open(&w->rounds, c, e));
    TRY(open_edges(w, e));
    stage_facts f = seam_facts(&w->seam);
    wire_loaded loaded = {.weights_bytes = f.weights_bytes,
                          .kv_bytes = f.kv_bytes,
                          .scratch_bytes = f.scratch_bytes};
    snprintf(loaded.device_name, sizeof loaded.device_name, "%s", f.device_name);
    set_state(w, STAGE_LOADED);
    return worker_say(w, WIRE_LOADED, 0, &loaded, sizeof loaded, e);
}

/* Everyone has loaded: what the others lend is theirs as they are now. */
static status borrow(worker *w, errmsg *e)
{
    uint32_t epoch[STAGES_MAX];
    for (uint32_t s = 0; s < w->config.n_stages; s++)
        epoch[s] = atomic_load_explicit(&w->block->stage[s].epoch, memory_order_acquire);
    return stage_borrow(w->body, epoch, e);
}

status worker_load(worker *w, const wire_config *c, errmsg *e)
{
    span loading = span_begin(TRACE_LOAD);
    status s = load_all(w, c, e);
    span_end(s == ST_OK ? w->trace : NULL, &loading, (trace_event){0});
    return s;
}

status worker_probe(worker *w, errmsg *e)
{
    set_state(w, STAGE_PROBING);
    TRY(borrow(w, e));
    span probing = span_begin(TRACE_PROBE);
    status s = edges_connect(&w->edges, stage_hidden(w->body), w->corrupt_probe, e);
    span_end(s == ST_OK ? w->trace : NULL, &probing, (trace_event){0});
    TRY(s);
    set_state(w, STAGE_READY);
    wire_probed p = {.n_probes = (uint32_t)atomic_load(&w->words->n_probes)};
    const edge *in = &w->edges.in;
    if (in->way != NULL) {
        snprintf(p.transport, sizeof p.transport, "%s", in->kind->name);
        snprintf(p.signal, sizeof p.signal, "%s", in->kind->signal(in->way));
    }
    return worker_say(w, WIRE_PROBED, 0, &p, sizeof p, e);
}
