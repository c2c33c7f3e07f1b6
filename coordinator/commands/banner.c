#include "coordinator/commands/banner.h"
#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/preview.h"
#include "coordinator/commands/progress.h"

#include <stdio.h>
#include <string.h>

#define SETTLE_NS (100 * NS_PER_MS)

static void print_stage(const plan *p, const stage_snapshot *now, uint32_t i)
{
    const stage_plan *s = &p->stage[i];
    char layers[32];
    if (s->layer_end - s->layer_begin == 1)
        snprintf(layers, sizeof layers, "layer %u", s->layer_begin);
    else
        snprintf(layers, sizeof layers, "layers %u-%u", s->layer_begin, s->layer_end - 1);
    log_info("stage %u: %s, %s, weights %s, kv %s", i, layers, now->device,
             amount_said(now->weights_bytes), amount_said(now->kv_bytes));
}

/* "0 -> 1 ipc (spin, memop)" for each boundary that carries rows. */
static void print_boundaries(const pipeline *p, uint32_t n_stages)
{
    char line[1024];
    size_t n = 0;
    for (uint32_t i = 1; i < n_stages && n < sizeof line; i++) {
        stage_snapshot now;
        pipeline_stage(p, i, &now);
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%u -> %u %s (%s)", i > 1 ? ", " : "",
                              i - 1, i, now.transport, now.signal);
    }
    if (n_stages > 1) log_info("boundaries: %s", line);
}

static void print_banner(const pipeline *p, const char *path)
{
    const plan *planned = pipeline_plan(p);
    const model_desc *m = pipeline_model(p);
    const char *name = strrchr(path, '/');
    log_info("%s: %s, %u layer%s, %u wide; context %u, kv %s", name == NULL ? path : name + 1,
             m->arch, m->n_layers, plural(m->n_layers), m->n_embd, planned->n_ctx, preview_kv_word(planned));
    if (planned->cuts.moved) log_info("an even cut was moved off a place that the model forbids");
    if (planned->n_ctx > m->n_ctx_train) {
        log_warn("the context of %u is longer than the %u that the model was trained for",
                 planned->n_ctx, m->n_ctx_train);
    }
    for (uint32_t i = 0; i < planned->cuts.n_stages; i++) {
        stage_snapshot now;
        pipeline_stage(p, i, &now);
        print_stage(planned, &now, i);
    }
    if (planned->gathered) log_info("all weights lie on the device of stage 0, the others read them there");
    print_boundaries(p, planned->cuts.n_stages);
}

status banner_open(pipeline **out, const common_options *c, errmsg *e)
{
    *out = NULL;
    TRY(options_model(c, e));
    pipeline_options o = options_pipeline(c);
    progress bar;
    progress_begin(&bar, c->doors.streams ? c->doors.n_stages : 1, c->log_level >= LOG_INFO && c->log_file == NULL);
    o.on_progress = progress_update;
    o.progress_ctx = &bar;
    status s = pipeline_open(out, &o, &interrupted, e);
    progress_end(&bar);
    if (s == ST_OK) print_banner(*out, c->model);
    return s;
}

void shares_begin(shares *s, const pipeline *p)
{
    *s = (shares){.n_stages = pipeline_plan(p)->cuts.n_stages, .begin_ns = now_ns()};
    for (uint32_t i = 0; i < s->n_stages; i++) {
        stage_snapshot now;
        pipeline_stage(p, i, &now);
        s->busy_ns[i] = now.busy_ns;
        s->n_rows[i] = now.n_rows;
    }
}

/* The stage's counters when they show the rows, or at the deadline. */
static void settled(const pipeline *p, uint32_t i, uint64_t n_rows, uint64_t deadline_ns,
                    stage_snapshot *out)
{
    const struct timespec pause = {.tv_nsec = 200000};
    for (;;) {
        pipeline_stage(p, i, out);
        if (out->n_rows >= n_rows || now_ns() >= deadline_ns) return;
        nanosleep(&pause, NULL);
    }
}

void shares_end(shares *s, const pipeline *p, uint64_t n_rows)
{
    s->end_ns = now_ns();
    for (uint32_t i = 0; i < s->n_stages; i++) {
        stage_snapshot now;
        settled(p, i, s->n_rows[i] + n_rows, s->end_ns + SETTLE_NS, &now);
        /* A stage's counters are its own word: never more than the time that passed. */
        uint64_t busy = now.busy_ns > s->busy_ns[i] ? now.busy_ns - s->busy_ns[i] : 0;
        uint64_t passed = s->end_ns - s->begin_ns;
        s->busy_ns[i] = busy < passed ? busy : passed;
    }
}

double shares_busy(const shares *s, uint32_t stage_i)
{
    uint64_t passed = s->end_ns - s->begin_ns;
    return passed == 0 ? 0 : (double)s->busy_ns[stage_i] / (double)passed;
}
