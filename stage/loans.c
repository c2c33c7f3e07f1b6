/* loans.c - what a stage lends (its pools: kv_lent.c; weights, where they are the device's own) and
 * what it borrows: the first one every other range, one after the other, for a walk of all layers;
 * or, with all weights on the first one, each other its own range's weights. */
#include "stage/stage_impl.h"

#include "common/log.h"
#include "kernels/loan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool for_walks(const stage *s)
{
    return s->loan != NULL && (s->config.loans & LOAN_UNSPLIT) != 0;
}

static bool gathered(const stage *s)
{
    return s->loan != NULL && (s->config.loans & LOAN_GATHERED) != 0;
}

/* Another stage's range: all of it, or its layers alone. */
static weights_options options_of(const stage *s, uint32_t range, bool layers_only)
{
    return (weights_options){.file = s->file,
                             .model = s->m,
                             .layer_begin = s->config.range[range],
                             .layer_end = s->config.range[range + 1],
                             .backend = s->b,
                             .device = s->device,
                             .on_progress = s->on_progress,
                             .progress_ctx = s->progress_ctx,
                             .layers_only = layers_only};
}

/* --- lent --- */

/* Weights of a range, and who else may have them. */
static status load_range(stage *s, weights *w, const weights_options *o, uint32_t range, bool lends,
                         errmsg *e)
{
    const backend_loan *by = s->b->loan;
    dev_ptr base;
    if (!lends || by->lend_weights == NULL) return weights_open(w, o, e);
    by->lend_weights(s->device, true);
    status st = weights_open(w, o, e);
    by->lend_weights(s->device, false);
    TRY(st);
    loan_note *n = &loan_page_of(s->loan, range)->weights;
    TRY(by->lent_weights(s->device, &base, &n->bytes, &n->ticket, e));
    n->n_entries = weights_entries(w, o, base, loan_entries_of(s->loan, range),
                                   s->loan->at.n_entries_max[range]);
    loan_publish(n, s->config.epoch);
    return ST_OK;
}

/* The progress of one range as a part of all. */
typedef struct {
    const stage *s;
    uint64_t before, total;
} gathering;

static int on_gathered(void *ctx, uint64_t done, uint64_t total)
{
    const gathering *g = ctx;
    uint64_t now = g->before + done;
    (void)total;
    return g->s->on_progress(g->s->progress_ctx, now < g->total ? now : g->total, g->total);
}

static status load_all(stage *s, const weights_options *own, errmsg *e)
{
    uint32_t n = s->config.n_stages - 1;
    gathering g = {.s = s};
    for (uint32_t range = 0; range <= n; range++) {
        const weights_options o = options_of(s, range, false);
        g.total += weights_file_bytes(&o);
    }
    s->held = calloc(n, sizeof *s->held);
    if (s->held == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for the weights of %u ranges", n);
    for (uint32_t range = 0; range <= n; range++) {
        weights *w = range == 0 ? &s->w : &s->held[range - 1];
        weights_options o = range == 0 ? *own : options_of(s, range, false);
        if (s->on_progress != NULL) o.on_progress = on_gathered;
        o.progress_ctx = &g;
        TRY(weights_supported(&o, e));
        TRY(load_range(s, w, &o, range, range > 0, e));
        g.before += w->loaded;
    }
    return ST_OK;
}

status stage_load(stage *s, const weights_options *own, errmsg *e)
{
    if (!gathered(s))
        return load_range(s, &s->w, own, s->config.stage_i, for_walks(s) && !s->first, e);
    return s->first ? load_all(s, own, e) : ST_OK;
}

uint64_t stage_load_bytes(const stage *s, const weights_options *own)
{
    if (!gathered(s)) return weights_device_bytes(own);
    uint64_t bytes = s->first ? weights_device_bytes(own) : 0;
    for (uint32_t range = 1; s->first && range < s->config.n_stages; range++) {
        const weights_options o = options_of(s, range, false);
        bytes += weights_device_bytes(&o);
    }
    return bytes;
}

void stage_unload(stage *s)
{
    weights_close(&s->w);
    for (uint32_t i = 0; s->held != NULL && i + 1 < s->config.n_stages; i++)
        weights_close(&s->held[i]);
    free(s->held);
}

/* --- borrowed --- */

static status borrow_weights(stage *s, borrowed_weights *x, uint32_t range, bool layers_only,
                             uint32_t epoch, errmsg *e)
{
    weights_options o = options_of(s, range, layers_only);
    if (s->b->loan->lend_weights == NULL)
        return weights_open(&x->w, &o, e); /* the same pages of the file */
    uint32_t n_max = s->loan->at.n_entries_max[range];
    loan_entry *entry = malloc(n_max * sizeof *entry);
    if (entry == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for %u borrowed tensors", n_max);
    loan_note n;
    char what[48];
    snprintf(what, sizeof what, "weights of stage %u", range);
    status st = loan_read(&n, &loan_page_of(s->loan, range)->weights, epoch, n_max, what, e);
    weights_lent from = {.bytes = n.bytes, .entry = entry, .n_entries = n.n_entries};
    if (st == ST_OK) st = s->b->loan->borrow(s->device, &from.base, n.bytes, NULL, &n.ticket, e);
    if (st == ST_OK) {
        memcpy(entry, loan_entries_of(s->loan, range), n.n_entries * sizeof *entry);
        x->lent = from.base;
        x->lent_bytes = n.bytes;
        st = weights_borrow(&x->w, &o, &from, e);
    }
    free(entry);
    return st;
}

/* A range behind the first stage's, for walks of all layers. */
static status borrow_ahead(stage *s, uint32_t range, uint32_t epoch, errmsg *e)
{
    stretch *x = &s->ahead[s->n_ahead++];
    const kv_place from = {s->loan, range, epoch};
    *x = (stretch){.begin = s->config.range[range], .end = s->config.range[range + 1]};
    TRY(kv_borrow(&x->kv, &s->kv, s->m, x->begin, x->end, &from, e));
    if (s->held != NULL) {
        x->w = &s->held[range - 1];
        return ST_OK;
    }
    borrowed_weights *b = &s->borrowed[s->n_borrowed++];
    x->w = &b->w;
    return borrow_weights(s, b, range, true, epoch, e);
}

/* The stage's own weights, which lie on the first one. */
static status borrow_own(stage *s, uint32_t epoch, errmsg *e)
{
    borrowed_weights *b = &s->borrowed[s->n_borrowed++];
    TRY(borrow_weights(s, b, s->config.stage_i, false, epoch, e));
    s->w = b->w;
    return stage_begin(s, e);
}

static status borrow_all(stage *s, const uint32_t *epoch, errmsg *e)
{
    uint32_t from = 0;
    errmsg why = {0};
    status st = ST_OK;
    if (!s->first && gathered(s)) st = borrow_own(s, epoch[0], &why);
    for (uint32_t range = 1; st == ST_OK && s->first && for_walks(s) && range < s->config.n_stages;
         range++)
        st = borrow_ahead(s, from = range, epoch[range], &why);
    if (st == ST_OK) return ST_OK;
    return errmsg_set(e, st, "stage %u: what it borrows of stage %u: %.400s", s->config.stage_i,
                      from, why.text);
}

status stage_borrow(stage *s, const uint32_t *epoch, errmsg *e)
{
    stage_give_back(s);
    if (s->loan == NULL || s->config.n_stages == 1) return ST_OK;
    s->ahead = calloc(s->config.n_stages, sizeof *s->ahead);
    s->borrowed = calloc(s->config.n_stages, sizeof *s->borrowed);
    status st = s->ahead != NULL && s->borrowed != NULL
                    ? borrow_all(s, epoch, e)
                    : errmsg_set(e, ST_RESOURCES, "no memory for loans");
    if (st != ST_OK) stage_give_back(s);
    return st;
}

/* Its own weights are not here any more. */
static void end_own(stage *s)
{
    if (s->walk != NULL) s->b->walk_close(s->walk);
    s->walk = NULL;
    s->w = (weights){0};
    s->began = false;
}

void stage_give_back(stage *s)
{
    errmsg ignored = {0};
    if (s->ahead == NULL && s->borrowed == NULL) return;
    if (stage_settle(s, &ignored) != ST_OK)
        log_debug("%s", ignored.text); /* nothing is on its way then */
    if (s->n_borrowed > 0 && !s->first) end_own(s);
    for (uint32_t i = 0; i < s->n_ahead; i++)
        kv_close(&s->ahead[i].kv);
    for (uint32_t i = 0; i < s->n_borrowed; i++) {
        borrowed_weights *b = &s->borrowed[i];
        weights_close(&b->w);
        if (b->lent.addr != 0) s->b->loan->give_back(s->device, b->lent, b->lent_bytes);
    }
    free(s->ahead);
    free(s->borrowed);
    s->ahead = NULL;
    s->borrowed = NULL;
    s->n_ahead = s->n_borrowed = 0;
}
