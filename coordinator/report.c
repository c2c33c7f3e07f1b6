#include "coordinator/engine.h"

#include "common/clock.h"

#include <jansson.h>
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
    case PHASE_STOPPING:
        return "stopping";
    case PHASE_DEAD:
        return "dead";
    }
    return "unknown";
}

static json_t *stage_json(const pipeline *p, uint32_t s)
{
    stage_snapshot t;
    pipeline_stage(p, s, &t);
    double since_ns = (double)(now_ns() - p->stage[s].start_ns);
    double busy = since_ns > 0 ? (double)t.busy_ns / since_ns : 0;
    return json_pack("{s:i, s:i, s:s, s:s, s:i, s:[i,i], s:i, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I}",
                     "stage", (int)s, "pid", t.pid, "device", t.device, "state",
                     p->phase == PHASE_DEAD ? "lost" : stage_state_word(t.state), "epoch", (int)t.epoch,
                     "layers", (int)p->plan.stage[s].layer_begin, (int)p->plan.stage[s].layer_end,
                     "restarts", (int)t.epoch - 1, "steps", (json_int_t)t.n_steps, "rows",
                     (json_int_t)t.n_rows, "busy", busy, "idle", 1 - busy, "overlaps",
                     (json_int_t)t.n_overlaps, "weights_bytes", (json_int_t)t.weights_bytes, "kv_bytes",
                     (json_int_t)t.kv_bytes, "scratch_bytes", (json_int_t)t.scratch_bytes);
}

static json_t *boundary_json(const pipeline *p, uint32_t s)
{
    stage_snapshot tx;
    pipeline_stage(p, s, &tx);
    return json_pack("{s:i, s:i, s:s, s:s, s:I, s:I, s:[I,I]}", "from", (int)s, "to",
                     (int)((s + 1) % p->n_stages), "transport", "shm", "signal", "futex", "rows",
                     (json_int_t)tx.tx_rows, "bytes", (json_int_t)tx.tx_bytes, "crossings",
                     (json_int_t)tx.tx_crossings[0], (json_int_t)tx.tx_crossings[1]);
}

char *report_json(const pipeline *p)
{
    json_t *stages = json_array(), *boundaries = json_array();
    for (uint32_t s = 0; s < p->n_stages; s++) {
        json_array_append_new(stages, stage_json(p, s));
        if (p->n_stages > 1) json_array_append_new(boundaries, boundary_json(p, s));
    }
    json_t *root = json_pack(
        "{s:i, s:s, s:s, s:i, s:o, s:o, s:i, s:i, s:i, s:i}", "pid", (int)getpid(), "model",
        p->o.model_path, "state", phase_word(p->phase), "n_stages", (int)p->n_stages, "stages", stages,
        "boundaries", boundaries, "sessions", (int)p->n_sessions, "kv_blocks_used",
        (int)p->pool.n_used, "kv_blocks", (int)p->pool.n_blocks, "steps_in_flight", (int)p->n_flights);
    if (root != NULL && p->failure.code != ST_OK)
        json_object_set_new(root, "failure", json_string_nocheck(p->failure.text));
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
