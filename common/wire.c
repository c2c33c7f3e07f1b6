#include "common/wire.h"

#include <string.h>

static const char *kind_name(uint32_t kind)
{
    switch (kind) {
#define X(name, number)                                                                            \
    case number:                                                                                   \
        return &#name[sizeof "WIRE_" - 1];
        WIRE_KIND_LIST(X)
#undef X
    default:
        return NULL;
    }
}

const char *wire_kind_word(uint32_t kind)
{
    const char *name = kind_name(kind);
    return name != NULL ? name : "unknown";
}

static bool terminated(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

/* Stages in one process have no neighbours and lend nothing. */
static bool ranges_valid(const wire_config *c)
{
    uint32_t n = c->n_seam > 1 ? c->n_seam : c->n_stages;
    if (c->n_seam < 1 || c->n_seam > STAGES_MAX ||
        (c->n_seam > 1 && (c->n_stages > 1 || c->loans != 0)))
        return false;
    if (c->n_seam == 1 && c->loans == 0) return true;
    bool fine = c->range[0] == 0 && c->range[n] == c->n_layers;
    for (uint32_t s = 0; s < n; s++) fine = fine && c->range[s] < c->range[s + 1];
    if (c->n_seam > 1) return fine && c->layer_begin == 0 && c->layer_end == c->n_layers;
    return fine && c->range[c->stage_i] == c->layer_begin &&
           c->range[c->stage_i + 1] == c->layer_end;
}

static bool config_valid(const wire_config *c)
{
    bool linked = c->n_stages > 1;
    return c->edge_epoch > 0 && c->n_stages >= 1 && c->n_stages <= STAGES_MAX &&
           c->stage_i < c->n_stages && c->layer_begin < c->layer_end &&
           c->layer_end <= c->n_layers && c->n_ctx >= 1 && c->n_branches >= 1 && c->rows_max >= 1 &&
           c->rows_max <= WIRE_ROWS_MAX && c->n_readback >= 1 &&
           (c->kv_type == DT_F32 || c->kv_type == DT_F16 || c->kv_type == DT_BF16) &&
           (c->device == DEVICE_CPU || c->device == DEVICE_CUDA) &&
           terminated(c->cuda_uuid, sizeof c->cuda_uuid) && c->n_threads >= 1 &&
           c->run_block_fd >= 0 && c->readback_fd >= 0 && c->trace_fd >= 0 &&
           (c->in_fd >= 0) == linked && (c->out_fd >= 0) == linked && c->journal_in_fd >= -1 &&
           c->journal_out_fd >= -1 && c->loan_fd >= -1 && (c->loan_fd >= 0) == (c->loans != 0) &&
           c->loans <= (LOAN_UNSPLIT | LOAN_GATHERED) && ranges_valid(c) && c->n_model_fds >= 1 &&
           c->n_model_fds <= GGUF_FILES_MAX && terminated(c->build, sizeof c->build) &&
           terminated(c->isa, sizeof c->isa) && c->transport <= TRANSPORT_SHM &&
           c->signal <= SIGNAL_SPIN && terminated(c->fault, sizeof c->fault);
}

static bool probed_valid(const wire_probed *p)
{
    return p->ahead <= 1 && terminated(p->transport, sizeof p->transport) &&
           terminated(p->signal, sizeof p->signal);
}

static bool counts_valid(const wire_step *s, uint32_t flags)
{
    const uint32_t kinds = STEP_PRIME | STEP_VERIFY;
    return (s->flags & ~flags) == 0 && (s->flags & kinds) != kinds &&
           ((s->flags & STEP_VERIFY) == 0 || s->rounds == 1) && s->slot < 2 &&
           ((s->flags & (STEP_GOES_ON | STEP_AHEAD)) == 0 || (s->flags & kinds) == 0) &&
           ((s->flags & STEP_AHEAD) == 0 || s->rounds > 1 || (s->flags & STEP_GOES_ON) != 0) &&
           ((s->flags & STEP_UNSPLIT) == 0 || s->n_kv_ops == 0) &&
           s->n_kv_ops <= WIRE_KV_OPS_MAX && s->n_rows <= WIRE_ROWS_MAX &&
           s->n_samplers <= WIRE_SAMPLERS_MAX &&
           s->n_stops <= WIRE_SAMPLERS_MAX && s->rounds >= 1 && s->rounds <= WIRE_ROUNDS_MAX &&
           s->n_groups >= 1 && s->n_groups <= WIRE_GROUPS_MAX;
}

static bool row_valid(const wire_row *r, const wire_step *s)
{
    if (r->stop_i != WIRE_NONE && r->stop_i >= s->n_stops) return false;
    if (s->rounds == 1) return true;
    return r->rounds >= 1 && r->rounds <= s->rounds && (r->flags & ROW_SAMPLE) != 0 &&
           (r->flags & ROW_LOGITS) == 0 && r->readback == WIRE_NONE;
}

/* frame: a whole one, as its header says. */
static bool step_valid(const void *frame, uint64_t bytes, uint32_t flags)
{
    const wire_step *s = wire_body(frame);
    if (!counts_valid(s, flags) || wire_step_bytes(s) != bytes) return false;
    step_view v = wire_step_view(frame);
    uint32_t end = 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (v.group_end[g] < end || v.group_end[g] > s->n_rows) return false;
        if ((s->flags & STEP_AHEAD) != 0 && v.group_end[g] - end > WIRE_AHEAD_ROWS) return false;
        end = v.group_end[g];
    }
    bool fine = end == s->n_rows;
    for (uint32_t i = 0; i < s->n_stops; i++) fine = fine && v.stops[i].n <= WIRE_STOP_IDS;
    for (uint32_t i = 0; fine && i < s->n_rows; i++) fine = row_valid(&v.rows[i], s);
    return fine;
}

bool wire_valid(const void *data, uint64_t bytes)
{
    const wire_header *h = data;
    if (bytes < sizeof *h || h->magic != WIRE_MAGIC || h->version != WIRE_VERSION ||
        kind_name(h->kind) == NULL || h->stage >= STAGES_MAX ||
        h->body_bytes != bytes - sizeof *h) {
        return false;
    }
    const void *body = wire_body(data);
    switch ((wire_kind)h->kind) {
    case WIRE_HELLO:
        return h->body_bytes == sizeof(wire_hello) &&
               terminated(((const wire_hello *)body)->build, sizeof((wire_hello *)0)->build);
    case WIRE_CONFIG:
        return h->body_bytes == sizeof(wire_config) && config_valid(body);
    case WIRE_LOADED:
        return h->body_bytes == sizeof(wire_loaded) &&
               terminated(((const wire_loaded *)body)->device_name,
                          sizeof((wire_loaded *)0)->device_name);
    case WIRE_PROBED:
        return h->body_bytes == sizeof(wire_probed) && probed_valid(body);
    case WIRE_STEP:
        return h->body_bytes >= sizeof(wire_step) &&
               step_valid(data, bytes,
                          STEP_PRIME | STEP_OVERLAP | STEP_PRIME_PIPE | STEP_VERIFY | STEP_UNSPLIT |
                              STEP_GOES_ON | STEP_AHEAD);
    case WIRE_REPLAY:
        return h->body_bytes >= sizeof(wire_step) &&
               step_valid(data, bytes, STEP_RESET | STEP_THROUGH | STEP_OVERWRITTEN) &&
               ((const wire_step *)body)->rounds == 1 && ((const wire_step *)body)->n_groups == 1;
    case WIRE_QUIESCED:
        return h->body_bytes == sizeof(wire_quiesced);
    case WIRE_REATTACH:
        return h->body_bytes == sizeof(wire_reattach) &&
               ((const wire_reattach *)body)->edge_epoch > 0;
    case WIRE_REPLAYED:
        return h->body_bytes == sizeof(wire_replayed);
    case WIRE_POISONED:
        return h->body_bytes == sizeof(wire_poisoned);
    case WIRE_RESULT:
        return h->body_bytes == sizeof(wire_result);
    case WIRE_FAULT:
        return h->body_bytes == sizeof(wire_fault) &&
               terminated(((const wire_fault *)body)->text, WIRE_TEXT_BYTES) &&
               ((const wire_fault *)body)->code < STATUS_COUNT;
    case WIRE_PROBE:
    case WIRE_QUIESCE:
    case WIRE_STOP:
    case WIRE_BYE:
        return h->body_bytes == 0;
    }
    return false;
}

const wire_header *wire_head(const void *data)
{
    return data;
}

const void *wire_body(const void *data)
{
    return (const char *)data + sizeof(wire_header);
}

step_view wire_step_view(const void *data)
{
    return wire_step_body_view(wire_body(data));
}

step_view wire_step_body_view(const void *body)
{
    step_view v;
    v.step = body;
    v.rows = (const wire_row *)(v.step + 1); /* rows and samplers hold 64-bit fields: they come */
    v.samplers = (const sampler_params *)(v.rows + v.step->n_rows); /* first, on their alignment */
    v.kv_ops = (const wire_kv_op *)(v.samplers + v.step->n_samplers);
    v.stops = (const wire_stops *)(v.kv_ops + v.step->n_kv_ops);
    v.group_end = (const uint32_t *)(v.stops + v.step->n_stops);
    return v;
}

uint64_t wire_frame_bytes_max(void)
{
    const wire_step most = {.n_kv_ops = WIRE_KV_OPS_MAX,
                            .n_rows = WIRE_ROWS_MAX,
                            .n_samplers = WIRE_SAMPLERS_MAX,
                            .n_stops = WIRE_SAMPLERS_MAX,
                            .n_groups = WIRE_GROUPS_MAX};
    return (wire_step_bytes(&most) + 15) / 16 * 16;
}

uint64_t wire_step_bytes(const wire_step *s)
{
    return sizeof(wire_header) + sizeof(wire_step) + (uint64_t)s->n_kv_ops * sizeof(wire_kv_op) +
           (uint64_t)s->n_rows * sizeof(wire_row) +
           (uint64_t)s->n_samplers * sizeof(sampler_params) +
           (uint64_t)s->n_stops * sizeof(wire_stops) + (uint64_t)s->n_groups * sizeof(uint32_t);
}
