#include "stage/seam.h"

#include "common/boundary.h"
#include "common/clock.h"
#include "common/fence.h"

#include <stdatomic.h>
#include <string.h>

static int on_load(void *ctx, uint64_t done, uint64_t total)
{
    seam *x = ctx;
    if (x->n == 1 || x->load_total == 0) return x->on_progress(x->progress_ctx, done, total);
    uint64_t now = x->loaded_before + done;
    return x->on_progress(x->progress_ctx, now < x->load_total ? now : x->load_total,
                          x->load_total);
}

/* What object i of several is: a stage of its own, without a process's neighbours. */
static wire_config config_of(const wire_config *c, uint32_t i)
{
    wire_config own = *c;
    own.stage_i = i;
    own.n_stages = c->n_seam;
    own.layer_begin = c->range[i];
    own.layer_end = c->range[i + 1];
    own.in_fd = own.out_fd = -1;
    return own;
}

static uint64_t load_total(const stage_options *o)
{
    const wire_config *c = o->config;
    fence f = {.n_stages = c->n_seam};
    uint64_t bytes = 0;
    memcpy(f.at, c->range, sizeof f.at);
    for (uint32_t i = 0; i < f.n_stages; i++)
        bytes += fence_stage_bytes(&f, o->model, i);
    return bytes;
}

status seam_open(seam *out, const stage_options *o, stage_words *words, errmsg *e)
{
    const wire_config *c = o->config;
    *out = (seam){.backend = o->backend,
                  .row_bytes = boundary_row_bytes(o->model->n_embd, o->model->aux_bytes),
                  .on_progress = o->on_progress,
                  .progress_ctx = o->progress_ctx};
    if (c->n_seam > 1) out->load_total = load_total(o);
    for (uint32_t i = 0; i < c->n_seam; i++) {
        stage_options own = *o;
        out->words[i] = &words[i];
        const wire_config alone = config_of(c, i);
        if (c->n_seam > 1) own.config = &alone;
        own.beside = i > 0 ? out->body[0] : NULL;
        if (c->n_seam > 1 && o->on_progress != NULL) own.on_progress = on_load;
        if (c->n_seam > 1) own.progress_ctx = out;
        TRY(stage_open(&out->body[i], &own, e));
        out->n = i + 1;
        out->loaded_before += stage_facts_get(out->body[i]).weights_bytes;
    }
    return ST_OK;
}

void seam_close(seam *x)
{
    while (x->n > 0)
        stage_close(x->body[--x->n]);
}

stage_facts seam_facts(const seam *x)
{
    stage_facts all = stage_facts_get(x->body[0]);
    for (uint32_t i = 1; i < x->n; i++) {
        stage_facts f = stage_facts_get(x->body[i]);
        all.weights_bytes += f.weights_bytes;
        all.kv_bytes += f.kv_bytes;
        all.scratch_bytes += f.scratch_bytes;
        all.host_bytes += f.host_bytes;
    }
    return all;
}

status seam_kv_ops(seam *x, const wire_kv_op *ops, uint32_t n_ops, errmsg *e)
{
    for (uint32_t i = 0; i < x->n; i++)
        TRY(stage_kv_ops(x->body[i], ops, n_ops, e));
    return ST_OK;
}

status seam_rows(seam *x, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers, errmsg *e)
{
    memset(x->walked_ns, 0, sizeof x->walked_ns);
    for (uint32_t i = 0; i < x->n; i++)
        TRY(stage_rows(x->body[i], rows, n_rows, n_samplers, e));
    return ST_OK;
}

void seam_reset(seam *x)
{
    for (uint32_t i = 0; i < x->n; i++)
        stage_reset(x->body[i]);
}

void seam_rewrite(seam *x, bool on)
{
    for (uint32_t i = 0; i < x->n; i++)
        stage_rewrite(x->body[i], on);
}

static void add(_Atomic uint64_t *word, uint64_t n)
{
    atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

/* The boundary from object i to the next one. */
static status cross(seam *x, uint32_t i, uint32_t n_rows, errmsg *e)
{
    stage *to = x->body[i + 1];
    uint64_t bytes = n_rows * x->row_bytes;
    status s = x->backend->copy(stage_queue(to), stage_hidden(to), stage_hidden(x->body[i]), bytes);
    if (s != ST_OK)
        return errmsg_set(e, s, "the device failed at boundary %u -> %u (copy)", i, i + 1);
    add(&x->words[i]->tx_rows, n_rows);
    add(&x->words[i]->tx_bytes, bytes);
    add(&x->words[i]->tx_crossings[0], 1);
    add(&x->words[i + 1]->rx_rows, n_rows);
    add(&x->words[i + 1]->rx_bytes, bytes);
    add(&x->words[i + 1]->rx_crossings[0], 1);
    return ST_OK;
}

status seam_walk(seam *x, uint32_t n_rows, bool head_follows, poison_mark *poison, errmsg *e)
{
    for (uint32_t i = 0; i < x->n; i++) {
        uint64_t begin = now_ns();
        if (i > 0) TRY(cross(x, i - 1, n_rows, e));
        TRY(stage_walk(x->body[i], head_follows && i + 1 == x->n, poison, e));
        x->walked_ns[i] = now_ns() - begin;
    }
    return ST_OK;
}
