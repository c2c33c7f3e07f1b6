/* plan: what a run would need, computed by the same code that sizes it, before anything starts. */
#include "common/amount.h"
#include "coordinator/machine/boundaries.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/machine/placement.h"
#include "coordinator/machine/unsplit.h"
#include "coordinator/commands/draft_option.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/preview.h"
#include "coordinator/shape/shape.h"

#include <jansson.h>
#include <stdio.h>

#define USAGE                                                                                      \
    "plan [-m FILE | --shape SHAPE [--type TYPE]] [--stages N] [--splits LIST] [--ctx N]\n"        \
    "       [--json]"
#define ABOUT                                                                                      \
    "Prints where the model would be cut, and per stage its device, layers and bytes\n"            \
    "(weights, KV cache, scratch, the boundary slots it receives through, host memory of\n"        \
    "its own with what any process takes), for each GPU all that its stages take there at\n"       \
    "their peak, what the coordinator needs, and what is free; with --draft-model also what\n"     \
    "that one needs, which the totals then count.\n"                                               \
    "Nothing is started or allocated, also for a model that is only a --shape. Exit code 4: it\n"  \
    "does not fit. Weights are used from the file's mapping; the rest is allocated."

/* "0-2", "4" */
static const char *layers_text(char out[24], const stage_plan *s)
{
    if (s->layer_end - s->layer_begin == 1)
        snprintf(out, 24, "%u", s->layer_begin);
    else
        snprintf(out, 24, "%u-%u", s->layer_begin, s->layer_end - 1);
    return out;
}

static status print_stages(const plan *p, errmsg *e)
{
    TRY(output_line(e, "%-6s %-9s %-8s %11s %11s %11s %11s %11s", "stage", "layers", "device",
                    "weights", "kv", "scratch", "slots", "host"));
    for (uint32_t i = 0; i < p->cuts.n_stages; i++) {
        const stage_plan *s = &p->stage[i];
        char layers[24], device[INVENTORY_DEVICE_TEXT], b[5][AMOUNT_TEXT];
        TRY(output_line(e, "%-6u %-9s %-8s %11s %11s %11s %11s %11s", i, layers_text(layers, s),
                        inventory_device_text(device, s->device),
                        amount_mb(b[0], s->weights_bytes), amount_mb(b[1], s->kv_bytes),
                        amount_mb(b[2], s->scratch_bytes), amount_mb(b[3], s->slots_bytes),
                        amount_mb(b[4], s->host_bytes + s->process_bytes)));
    }
    return ST_OK;
}

static boundary_words expected(const plan *p, const doors *d, const gpu_list *gpus, uint32_t i)
{
    if (p->one_process) return (boundary_words){"copy", "stream"};
    return boundaries_expect(d, gpus, p->stage[i].device, p->stage[i + 1].device);
}

static status print_boundaries(const plan *p, const doors *d, const gpu_list *gpus, errmsg *e)
{
    for (uint32_t i = 0; i + 1 < p->cuts.n_stages; i++) {
        boundary_words w = expected(p, d, gpus, i);
        TRY(output_line(e, "boundary %u -> %u: %s (%s)", i, i + 1, w.transport, w.signal));
    }
    return ST_OK;
}

static uint64_t total_bytes(const plan *p, const plan *beside)
{
    return p->total_bytes + (beside != NULL ? beside->total_bytes : 0);
}

static uint64_t weights_bytes(const plan *p, const plan *beside)
{
    return p->weights_total_bytes + (beside != NULL ? beside->weights_total_bytes : 0);
}

/* Of both models; beside: NULL, or the one that drafts. */
static uint64_t gpu_bytes(const plan *p, const plan *beside, const gpu_list *gpus, uint32_t ordinal)
{
    return placement_gpu_bytes(p, gpus, ordinal) +
           (beside != NULL ? placement_gpu_bytes(beside, gpus, ordinal) : 0);
}

static status print_gpus(const plan *p, const plan *beside, const gpu_list *gpus, errmsg *e)
{
    for (uint32_t i = 0; i < gpus->n; i++) {
        uint64_t need = gpu_bytes(p, beside, gpus, gpus->at[i].ordinal);
        if (need == 0) continue;
        TRY(output_line(e, "cuda:%u: %s, free: %s", gpus->at[i].ordinal,
                        amount_said(need), amount_said(gpus->at[i].memory_free_bytes)));
    }
    return ST_OK;
}

/* The model that drafts, one stage of its own. */
static status print_draft(const draft_option *o, errmsg *e)
{
    const stage_plan *s = &o->look.plan->stage[0];
    const model_desc *m = o->look.model;
    char device[INVENTORY_DEVICE_TEXT];
    return output_line(e,
                       "draft model: %s, %u layer%s, %u wide, on %s: weights %s, kv %s, scratch "
                       "%s, host %s; needs %s",
                       m->arch, m->n_layers, plural(m->n_layers), m->n_embd,
                       inventory_device_text(device, s->device), amount_said(s->weights_bytes),
                       amount_said(s->kv_bytes), amount_said(s->scratch_bytes),
                       amount_said(s->host_bytes + s->process_bytes),
                       amount_said(plan_needed_bytes(o->look.plan, m)));
}

static status print_table(const preview *v, const doors *doors_, const gpu_list *gpus,
                          uint64_t free_bytes, const draft_option *draft, errmsg *e)
{
    const plan *p = v->plan, *beside = draft != NULL ? draft->look.plan : NULL;
    const model_desc *m = v->model;
    TRY(output_line(e, "model: %s, %u layer%s, %u wide, %u tokens", m->arch, m->n_layers,
                    plural(m->n_layers), m->n_embd, m->n_vocab));
    TRY(output_line(e,
                    "context: %u position%s, %u session%s, kv %s, prompt chunks of up to %u row%s",
                    p->n_ctx, plural(p->n_ctx), p->n_sessions, plural(p->n_sessions),
                    preview_kv_word(p), p->rows_max, plural(p->rows_max)));
    if (p->cuts.moved) TRY(output_line(e, "an even cut was moved off a place the model forbids"));
    TRY(print_stages(p, e));
    if (p->gathered)
        TRY(output_line(e, "all weights lie on the device of stage 0, the others read them there"));
    if (p->one_process) TRY(output_line(e, "all stages are in one process, on one stream"));
    TRY(print_boundaries(p, doors_, gpus, e));
    TRY(print_gpus(p, beside, gpus, e));
    TRY(output_line(e, "coordinator: readback %s, run block %s, journal %s, itself %s",
                    amount_said(p->readback_bytes), amount_said(p->run_block_bytes),
                    amount_said(p->journal_bytes), amount_said(p->coordinator_bytes)));
    if (draft != NULL) TRY(print_draft(draft, e));
    return output_line(e, "in all: %s allocated, %s of weights; free: %s",
                       amount_said(total_bytes(p, beside)), amount_said(weights_bytes(p, beside)),
                       free_bytes > 0 ? amount_said(free_bytes) : "unknown");
}

static json_t *stage_json(const stage_plan *s, uint32_t i)
{
    char device[INVENTORY_DEVICE_TEXT];
    return json_pack(
        "{s:i, s:s, s:[ii], s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "stage", (int)i, "device",
        inventory_device_text(device, s->device), "layers", (int)s->layer_begin, (int)s->layer_end,
        "weights_bytes", (json_int_t)s->weights_bytes, "kv_bytes", (json_int_t)s->kv_bytes,
        "scratch_bytes", (json_int_t)s->scratch_bytes, "slots_bytes", (json_int_t)s->slots_bytes,
        "host_bytes", (json_int_t)s->host_bytes, "process_bytes", (json_int_t)s->process_bytes,
        "device_bytes", (json_int_t)s->device_bytes);
}

static json_t *draft_json(const draft_option *o)
{
    if (o == NULL) return json_null();
    return json_pack("{s:s, s:I, s:o, s:I}", "arch", o->look.model->arch, "n_layers",
                     (json_int_t)o->look.model->n_layers, "stage",
                     stage_json(&o->look.plan->stage[0], 0), "needs_bytes",
                     (json_int_t)plan_needed_bytes(o->look.plan, o->look.model));
}

static status print_json(const preview *v, const doors *d, const gpu_list *gpus,
                         uint64_t free_bytes, const draft_option *draft, bool fits, errmsg *e)
{
    const plan *p = v->plan, *beside = draft != NULL ? draft->look.plan : NULL;
    json_t *cuts = json_array(), *stages = json_array(), *boundaries = json_array();
    for (uint32_t i = 0; i + 1 < p->cuts.n_stages; i++) {
        boundary_words w = expected(p, d, gpus, i);
        json_array_append_new(boundaries,
                              json_pack("{s:i, s:i, s:s, s:s}", "from", (int)i, "to", (int)i + 1,
                                        "transport", w.transport, "signal", w.signal));
    }
    for (uint32_t i = 0; i <= p->cuts.n_stages; i++) {
        json_array_append_new(cuts, json_integer(p->cuts.at[i]));
    }
    for (uint32_t i = 0; i < p->cuts.n_stages; i++) {
        json_array_append_new(stages, stage_json(&p->stage[i], i));
    }
    json_t *host =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "run_block_bytes", (json_int_t)p->run_block_bytes,
                  "readback_bytes", (json_int_t)p->readback_bytes, "slots_bytes",
                  (json_int_t)p->slots_total_bytes, "journal_bytes", (json_int_t)p->journal_bytes,
                  "coordinator_bytes", (json_int_t)p->coordinator_bytes);
    json_t *all = json_pack("{s:s, s:I, s:I, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:s}", "arch",
                            v->model->arch, "n_layers", (json_int_t)v->model->n_layers, "n_stages",
                            (json_int_t)p->cuts.n_stages, "fence", cuts, "moved",
                            (int)p->cuts.moved, "n_ctx", (json_int_t)p->n_ctx, "n_sessions",
                            (json_int_t)p->n_sessions, "n_chunk", (json_int_t)p->rows_max,
                            "n_blocks", (json_int_t)p->n_blocks[KV_CLASS_GLOBAL], "n_window_blocks",
                            (json_int_t)p->n_blocks[KV_CLASS_WINDOW], "kv_type",
                            preview_kv_word(p));
    json_t *rest = json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:o, s:I, s:b, s:b}", "stages", stages, "boundaries", boundaries,
        "host", host, "total_bytes", (json_int_t)total_bytes(p, beside), "weights_total_bytes",
        (json_int_t)weights_bytes(p, beside), "draft", draft_json(draft), "memory_available_bytes",
        (json_int_t)free_bytes, "sharded", (int)!p->gathered, "fits", (int)fits);
    if (all == NULL || rest == NULL || json_object_update(all, rest) != 0) {
        json_decref(all);
        all = NULL;
    }
    json_decref(rest);
    return output_json(all, e);
}

/* Where both models are on one GPU. */
static status gpus_hold(const plan *p, const plan *beside, const gpu_list *gpus, errmsg *e)
{
    for (uint32_t i = 0; i < gpus->n; i++) {
        const gpu *g = &gpus->at[i];
        uint64_t need = gpu_bytes(p, beside, gpus, g->ordinal);
        if (need > g->memory_free_bytes)
            return errmsg_set(e, ST_RESOURCES,
                              "cuda:%u has %s free, and the model and --draft-model need %s there: "
                              "another placement (--devices), a smaller model, or a lower --ctx "
                              "would fit",
                              g->ordinal, amount_said(g->memory_free_bytes), amount_said(need));
    }
    return ST_OK;
}

static status make_plan(common_options *c, const char *draft_path, errmsg *e)
{
    status s;
    preview v = {0};
    draft_option draft = {0};
    const draft_option *beside = draft_path != NULL ? &draft : NULL;
    errmsg fit = {0};
    gpu_list gpus;
    TRY_DONE(s, placement_resolve(&c->doors, &gpus, c->stage_program, &interrupted, e));
    TRY_DONE(s, preview_open(&v, c, e));
    TRY_DONE(s, unsplit_check(v.plan, &gpus, &c->doors, &c->doors.step, e));
    TRY_DONE(s, unsplit_check_shard(v.plan, &gpus, &c->doors, e));
    TRY_DONE(s, unsplit_check_streams(v.plan, &gpus, &c->doors, e));
    if (beside != NULL) TRY_DONE(s, draft_option_look(&draft, draft_path, c, &v, e));
    uint64_t free_bytes = inventory_memory_available();
    status fits = placement_fits(v.plan, &gpus, &fit);
    if (fits == ST_OK) fits = plan_fits(v.plan, v.model, free_bytes, &fit);
    if (fits == ST_OK && beside != NULL) fits = draft_option_fits(&draft, &v, &fit);
    if (fits == ST_OK && beside != NULL) fits = gpus_hold(v.plan, draft.look.plan, &gpus, &fit);
    TRY_DONE(s, c->json ? print_json(&v, &c->doors, &gpus, free_bytes, beside, fits == ST_OK, e)
                        : print_table(&v, &c->doors, &gpus, free_bytes, beside, e));
    if (fits != ST_OK) s = errmsg_set(e, fits, "%s", fit.text);
done:
    draft_option_close(&draft);
    preview_close(&v);
    return s;
}

int cmd_plan(int argc, char **argv)
{
    shape_options random = {0};
    const char *draft_path = NULL;
    const option own[] = {DRAFT_MODEL_OPTION(draft_path), SHAPE_OPTIONS(random)};
    const uint32_t n_own = sizeof own / sizeof *own;
    common_options c;
    errmsg e = {0};
    const command_form form = {USAGE, ABOUT, own, n_own, NULL, 0, NULL, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    status s = shape_take(&random, &c, &e);
    if (s == ST_OK) s = make_plan(&c, draft_path, &e);
    return s == ST_OK ? 0 : command_failed(&e);
}
