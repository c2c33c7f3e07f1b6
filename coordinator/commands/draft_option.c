#include "coordinator/commands/draft_option.h"

#include "common/amount.h"
#include "coordinator/commands/output.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/machine/placement.h"

#include <string.h>

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* One stage where the last of those is; no faults but its own. */
static status doors_beside(doors *out, const doors *main, const char *stage_program, errmsg *e)
{
    doors d = *main;
    gpu_list gpus;
    TRY(placement_resolve(&d, &gpus, stage_program, &interrupted, e));
    *out = doors_default();
    if (d.n_devices == 0) return ST_OK;
    out->n_devices = 1;
    out->device[0] = d.device[d.n_devices < d.n_stages ? 0 : d.n_stages - 1];
    return ST_OK;
}

status draft_option_refuse(const errmsg *why, errmsg *e)
{
    return errmsg_set(e, why->code, "--draft-model: %.490s", why->text);
}

status draft_option_look(draft_option *out, const char *path, const common_options *c,
                         const preview *main, errmsg *e)
{
    *out = (draft_option){.common = *c};
    common_options *own = &out->common;
    own->model = path;
    own->model_fd = 0;
    own->model_is_demo = false;
    TRY(doors_beside(&own->doors, &c->doors, c->stage_program, e));
    own->plan = (plan_request){.n_ctx = main->plan->n_ctx,
                               .n_sessions = main->plan->n_sessions + 1,
                               .kv_type = main->plan->kv_type};
    errmsg why = {0};
    return preview_open(&out->look, own, &why) == ST_OK ? ST_OK : draft_option_refuse(&why, e);
}

static status check_words(const draft_option *o, const char *main_path, const preview *main,
                          errmsg *e)
{
    uint32_t at;
    if (tokenizer_same(o->look.words, main->words, &at)) return ST_OK;
    if (at == UINT32_MAX || at == tokenizer_n(o->look.words) || at == tokenizer_n(main->words)) {
        return errmsg_set(
            e, ST_BAD_MODEL,
            "--draft-model %s has another tokenizer (%u pieces) than %s (%u): it cannot draft "
            "for it",
            name_of(o->common.model), tokenizer_n(o->look.words), name_of(main_path),
            tokenizer_n(main->words));
    }
    return errmsg_set(
        e, ST_BAD_MODEL,
        "--draft-model %s has another vocabulary than %s, from token %u on: it cannot draft for it",
        name_of(o->common.model), name_of(main_path), at);
}

status draft_option_fits(const draft_option *o, const preview *main, errmsg *e)
{
    uint64_t free_bytes = inventory_memory_available(),
             used = plan_needed_bytes(main->plan, main->model);
    if (free_bytes == 0) return ST_OK;
    uint64_t need = plan_needed_bytes(o->look.plan, o->look.model);
    if (used + need <= free_bytes) return ST_OK;
    return errmsg_set(e, ST_RESOURCES,
                      "--draft-model %s needs %s beside the %s of the model, and %s are free: "
                      "a smaller one, or none, would fit, or a lower --ctx or --sessions",
                      name_of(o->common.model), amount_said(need), amount_said(used),
                      amount_said(free_bytes));
}

status draft_option_open(draft_option *out, const char *path, const common_options *c,
                         const preview *main, errmsg *e)
{
    errmsg why = {0};
    status s = draft_option_look(out, path, c, main, e);
    if (s == ST_OK && preview_words(&out->look, &why) != ST_OK) s = draft_option_refuse(&why, e);
    if (s == ST_OK) s = check_words(out, c->model, main, e);
    if (s == ST_OK) s = draft_option_fits(out, main, e);
    if (s != ST_OK) draft_option_close(out);
    return s;
}

void draft_option_close(draft_option *o)
{
    preview_close(&o->look);
}

status draft_option_start(draft_model **out, const draft_option *o, errmsg *e)
{
    const plan *p = o->look.plan;
    pipeline_options how = options_pipeline(&o->common);
    pipeline *own = NULL;
    errmsg why = {0};
    *out = NULL;
    how.called = "draft model";
    how.faults_met = NULL; /* it has none of the doors' */
    status s = pipeline_open(&own, &how, &interrupted, &why);
    if (s == ST_STAGE_LOST) *e = why; /* no fault of the option's */
    if (s != ST_OK) return s == ST_STAGE_LOST ? s : draft_option_refuse(&why, e);
    log_info("draft model: %s, %u layer%s, %u wide; weights %s, kv %s", name_of(o->common.model),
             o->look.model->n_layers, plural(o->look.model->n_layers), o->look.model->n_embd,
             amount_said(p->stage[0].weights_bytes), amount_said(p->stage[0].kv_bytes));
    s = draft_model_open(out, own, e);
    if (s != ST_OK) pipeline_close(own);
    return s;
}
