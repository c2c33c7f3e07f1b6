/* loans.c - what a stage lends (its pools: kv_lent.c; its weights, where they are the device's own) and
 * what the first stage borrows for a walk of all layers: every other range, one after the other. */
#include "stage/stage_impl.h"

#include "common/log.h"
#include "kernels/loan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- lent --- */

static bool lends_weights(const stage *s)
{
    return s->loan != NULL && !s->first && s->b->loan->reserve != NULL;
}

status stage_lend_begin(stage *s, const weights_options *load, errmsg *e)
{
    if (!lends_weights(s)) return ST_OK;
    return s->b->loan->reserve(s->device, weights_together_bytes(load), e);
}

status stage_lend(stage *s, const weights_options *load, errmsg *e)
{
    uint32_t range = s->config.stage_i;
    dev_ptr base;
    if (!lends_weights(s)) return ST_OK;
    loan_note *n = &loan_page_of(s->loan, range)->weights;
    TRY(s->b->loan->lend(s->device, &base, &n->bytes, &n->ticket, e));
    n->n_entries = weights_entries(&s->w, load, base, loan_entries_of(s->loan, range),
                                   s->loan->at.n_entries_max[range]);
    loan_publish(n, s->config.epoch);
    return ST_OK;
}

/* --- borrowed --- */

static weights_options options_of(const stage *s, const stretch *x)
{
    return (weights_options){.file = s->file,
                             .model = s->m,
                             .layer_begin = x->begin,
                             .layer_end = x->end,
                             .backend = s->b,
                             .device = s->device,
                             .on_progress = s->on_progress,
                             .progress_ctx = s->progress_ctx,
                             .layers_only = true};
}

static status borrow_weights(stage *s, stretch *x, uint32_t range, uint32_t epoch, errmsg *e)
{
    weights_options o = options_of(s, x);
    if (s->b->loan->reserve == NULL) return weights_open(&x->w, &o, e); /* the same pages of the file */
    uint32_t n_max = s->loan->at.n_entries_max[range];
    loan_entry *entry = malloc(n_max * sizeof *entry);
    if (entry == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for %u borrowed tensors", n_max);
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

static status borrow_range(stage *s, stretch *x, uint32_t range, uint32_t epoch, errmsg *e)
{
    const kv_place from = {s->loan, range, epoch};
    x->begin = s->config.range[range];
    x->end = s->config.range[range + 1];
    TRY(kv_borrow(&x->kv, &s->kv, s->m, x->begin, x->end, &from, e));
    return borrow_weights(s, x, range, epoch, e);
}

status stage_borrow(stage *s, const uint32_t *epoch, errmsg *e)
{
    stage_give_back(s);
    if (s->loan == NULL || !s->first || s->config.n_stages == 1) return ST_OK;
    s->borrowed = calloc(s->config.n_stages - 1, sizeof *s->borrowed);
    if (s->borrowed == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for borrowed ranges");
    for (uint32_t range = 1; range < s->config.n_stages; range++) {
        errmsg why = {0};
        status st = borrow_range(s, &s->borrowed[s->n_borrowed++], range, epoch[range], &why);
        if (st == ST_OK) continue;
        stage_give_back(s);
        return errmsg_set(e, st, "stage %u borrows of stage %u: %.400s", s->config.stage_i, range, why.text);
    }
    return ST_OK;
}

void stage_give_back(stage *s)
{
    errmsg ignored = {0};
    if (s->borrowed == NULL) return;
    if (stage_settle(s, &ignored) != ST_OK) log_debug("%s", ignored.text); /* nothing is on its way then */
    for (uint32_t i = 0; i < s->n_borrowed; i++) {
        stretch *x = &s->borrowed[i];
        kv_close(&x->kv);
        weights_close(&x->w);
        if (x->lent.addr != 0) s->b->loan->give_back(s->device, x->lent, x->lent_bytes);
    }
    free(s->borrowed);
    s->borrowed = NULL;
    s->n_borrowed = 0;
}
