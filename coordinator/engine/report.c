#include "coordinator/engine/engine.h"

#include "common/clock.h"
#include "coordinator/text/text_json.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *phase_word(engine_phase phase)
{
    switch (phase) {
    case PHASE_STARTING:
        return "starting";
    case PHASE_PROBING:
        return "probing";
    case PHASE_READY:
        return "ready";
    case PHASE_RECOVERING:
        return "recovering";
    case PHASE_STOPPING:
        return "stopping";
    case PHASE_DEAD:
        return "dead";
    }
    return "unknown";
}

static uint64_t word(const _Atomic uint64_t *w)
{
    return atomic_load_explicit(w, memory_order_relaxed);
}

/* The process that stage s is in. */
static const stage_slot *slot_of(const pipeline *p, uint32_t s)
{
    return &p->stage[p->plan.one_process ? 0 : s];
}

/* Of a process that holds all stages: what it reports is the sum. */
static void share_of(const pipeline *p, uint32_t s, const stage_slot *t, stage_snapshot *out)
{
    const stage_plan *sp = &p->plan.stage[s];
    if (t->loaded) out->weights_bytes = sp->weights_bytes;
    if (t->loaded) out->kv_bytes = sp->kv_bytes;
    if (t->loaded) out->scratch_bytes = sp->scratch_bytes;
    snprintf(out->transport, sizeof out->transport, "%s", s > 0 ? "copy" : "");
    snprintf(out->signal, sizeof out->signal, "%s", s > 0 ? "stream" : "");
}

void report_stage(const pipeline *p, uint32_t stage_i, stage_snapshot *out)
{
    CHECK(stage_i < p->plan.cuts.n_stages);
    const stage_slot *t = slot_of(p, stage_i);
    const stage_words *w = &p->block->stage[stage_i], *process = &p->block->stage[t - p->stage];
    *out = (stage_snapshot){.pid = t->pid,
                            .epoch = t->epoch,
                            .state = atomic_load_explicit(&process->state, memory_order_acquire),
                            .weights_bytes = t->facts.weights_bytes,
                            .kv_bytes = t->facts.kv_bytes,
                            .scratch_bytes = t->facts.scratch_bytes,
                            .n_steps = word(&w->n_steps),
                            .n_rows = word(&w->n_rows),
                            .n_chunks = word(&w->n_chunks),
                            .n_overlaps = word(&w->n_overlaps),
                            .n_probes = word(&w->n_probes),
                            .busy_ns = word(&w->busy_ns),
                            .wait_in_ns = word(&w->wait_in_ns),
                            .wait_out_ns = word(&w->wait_out_ns),
                            .tx_rows = word(&w->tx_rows),
                            .tx_bytes = word(&w->tx_bytes),
                            .rx_rows = word(&w->rx_rows),
                            .rx_bytes = word(&w->rx_bytes),
                            .tx_crossings = {word(&w->tx_crossings[0]), word(&w->tx_crossings[1])},
                            .rx_crossings = {word(&w->rx_crossings[0]), word(&w->rx_crossings[1])},
                            .n_batches = word(&w->n_batches),
                            .n_batches_split = word(&w->n_batches_split),
                            .n_prime_batches = word(&w->n_prime_batches),
                            .n_prime_batches_split = word(&w->n_prime_batches_split),
                            .n_free_rounds = word(&w->n_free_rounds),
                            .n_ahead_rounds = word(&w->n_ahead_rounds),
                            .n_verifies = word(&w->n_verifies),
                            .n_verifies_split = word(&w->n_verifies_split),
                            .n_unsplit = word(&w->n_unsplit),
                            .load_ns = t->loaded_ns > t->start_ns ? t->loaded_ns - t->start_ns : 0};
    memcpy(out->device, t->facts.device_name, sizeof out->device);
    memcpy(out->transport, t->met.transport, sizeof out->transport);
    memcpy(out->signal, t->met.signal, sizeof out->signal);
    if (p->plan.one_process) share_of(p, stage_i, t, out);
    out->n_lost = t->n_lost;
    out->n_bad_messages = t->n_bad_all + word(&w->n_bad_messages);
    out->replacing = t->state != SLOT_RUNNING;
    snprintf(out->last_fault, sizeof out->last_fault, "%s", t->why.text);
}

static const char *stage_word(const pipeline *p, uint32_t s, uint32_t state)
{
    slot_state slot = slot_of(p, s)->state;
    bool gone = p->phase == PHASE_DEAD || slot == SLOT_LOST || slot == SLOT_PAUSED;
    return gone ? "lost" : stage_state_word(state);
}

/* Of the CUDA device that the stage was placed on, which it looked for by this name; NULL:
 * another. */
static const char *uuid_of(const pipeline *p, uint32_t s)
{
    const device_door *d = &p->plan.stage[s].device;
    const gpu *g = d->kind == DEVICE_CUDA ? gpus_get(&p->gpus, d->index) : NULL;
    return g != NULL ? g->uuid : NULL;
}

static json_t *stage_json(const pipeline *p, uint32_t s)
{
    stage_snapshot t;
    report_stage(p, s, &t);
    double since_ns = (double)(now_ns() - slot_of(p, s)->first_start_ns);
    double busy = since_ns > 0 ? (double)t.busy_ns / since_ns : 0;
    return json_pack("{s:i, s:i, s:s, s:s?, s:s, s:i, s:[i,i], s:i, s:o, s:I, s:I, s:I, s:f, s:f, "
                     "s:I, s:I, s:I, s:I, s:I}",
                     "stage", (int)s, "pid", t.pid, "device", t.device, "uuid", uuid_of(p, s),
                     "state", stage_word(p, s, t.state), "epoch", (int)t.epoch, "layers",
                     (int)p->plan.stage[s].layer_begin, (int)p->plan.stage[s].layer_end, "restarts",
                     (int)t.epoch - 1, "last_fault",
                     t.last_fault[0] != '\0' ? text_json(t.last_fault) : json_null(),
                     "bad_messages", (json_int_t)t.n_bad_messages, "steps", (json_int_t)t.n_steps,
                     "rows", (json_int_t)t.n_rows, "busy", busy, "idle", 1 - busy, "overlaps",
                     (json_int_t)t.n_overlaps, "unsplit_steps", (json_int_t)t.n_unsplit,
                     "weights_bytes", (json_int_t)t.weights_bytes, "kv_bytes",
                     (json_int_t)t.kv_bytes, "scratch_bytes", (json_int_t)t.scratch_bytes);
}

static json_t *boundary_json(const pipeline *p, uint32_t s)
{
    uint32_t to = (s + 1) % p->plan.cuts.n_stages;
    stage_snapshot tx, rx;
    report_stage(p, s, &tx);
    report_stage(p, to, &rx); /* its receiver's word */
    return json_pack("{s:i, s:i, s:s, s:s, s:I, s:I, s:[I,I]}", "from", (int)s, "to", (int)to,
                     "transport", rx.transport, "signal", rx.signal, "rows", (json_int_t)tx.tx_rows,
                     "bytes", (json_int_t)tx.tx_bytes, "crossings", (json_int_t)tx.tx_crossings[0],
                     (json_int_t)tx.tx_crossings[1]);
}

/* What the journals hold; null: none are kept. */
static json_t *journal_json(const pipeline *p)
{
    const kvpool *pool = &p->pool[KV_CLASS_GLOBAL];
    uint32_t n_used = 0;
    if (p->plan.n_journal_blocks == 0) return json_null();
    for (uint32_t i = 0; i < p->plan.n_journal_blocks; i++) n_used += pool->refs[i] > 0;
    return json_pack("{s:I, s:i, s:i}", "bytes", (json_int_t)p->plan.journal_bytes, "blocks",
                     (int)p->plan.n_journal_blocks, "blocks_used", (int)n_used);
}

/* Where it is, for whoever asks from elsewhere; a model made in memory has only a name. */
static json_t *model_json(const pipeline *p)
{
    const char *path = p->o.model_path;
    char here[PATH_MAX], whole[2 * PATH_MAX];
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    if (path[0] == '/' || p->o.model_fd > 0 || getcwd(here, sizeof here) == NULL)
        return text_json(p->o.model_path);
    snprintf(whole, sizeof whole, "%s/%.*s", strcmp(here, "/") == 0 ? "" : here, PATH_MAX, path);
    return text_json(whole);
}

char *report_json(const pipeline *p)
{
    json_t *stages = json_array(), *boundaries = json_array();
    uint32_t n = p->plan.cuts.n_stages, n_boundaries = n == 1 ? 0 : p->plan.one_process ? n - 1 : n;
    for (uint32_t s = 0; s < n; s++) json_array_append_new(stages, stage_json(p, s));
    for (uint32_t s = 0; s < n_boundaries; s++)
        json_array_append_new(boundaries, boundary_json(p, s));
    json_t *root = json_pack(
        "{s:i, s:o, s:s, s:i, s:i, s:o, s:o, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:i, s:b, "
        "s:b}",
        "pid", (int)getpid(), "model", model_json(p), "state", phase_word(p->phase), "n_stages",
        (int)n, "boundary_epoch", (int)p->edge_epoch, "stages", stages, "boundaries", boundaries,
        "sessions", (int)p->n_sessions, "kv_blocks_used", (int)p->pool[KV_CLASS_GLOBAL].n_used,
        "kv_blocks", (int)p->pool[KV_CLASS_GLOBAL].n_blocks, "kv_blocks_cached",
        (int)p->prefixes.n_entries, "pauses", (json_int_t)p->n_pauses, "shared_rows",
        (json_int_t)p->n_shared_rows, "poisoned", (json_int_t)p->n_poisoned, "journal",
        journal_json(p), "steps_in_flight", (int)p->n_flights, "sharded", (int)!p->plan.gathered,
        "one_process", (int)p->plan.one_process);
    if (root != NULL)
        json_object_set_new(root, "queue", json_integer((json_int_t)admission_n_waiting(p)));
    if (root != NULL && p->o.called != NULL)
        json_object_set_new(root, "called", text_json(p->o.called));
    if (root != NULL && p->failure.code != ST_OK)
        json_object_set_new(root, "failure", text_json(p->failure.text));
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
