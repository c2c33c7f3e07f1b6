/* Pools that another process uses: the owner's side and the borrower's. */
#include "stage/kv_impl.h"

#include "kernels/loan.h"

#include <stdio.h>

static loan_place place_of(const kv_place *p, kv_class class)
{
    return (loan_place){.fd = p->in->fd, .offset = p->in->at.kv[p->range][class]};
}

status kv_lend_pool(kv_cache *c, kv_class class, const kv_place *lent, errmsg *e)
{
    kv_pool *p = &c->pool[class];
    loan_note *n = &loan_page_of(lent->in, lent->range)->kv[class];
    loan_place place = place_of(lent, class);
    CHECK(p->bytes == lent->in->at.kv_bytes[lent->range][class]);
    TRY(c->b->loan->alloc(c->device, &p->pools, p->bytes, &place, &n->ticket, e));
    n->n_entries = 0;
    n->bytes = p->bytes;
    loan_publish(n, lent->epoch);
    return ST_OK;
}

static status borrow_pool(kv_cache *c, kv_class class, const kv_place *from, errmsg *e)
{
    kv_pool *p = &c->pool[class];
    loan_note n;
    loan_place place = place_of(from, class);
    char what[64];
    snprintf(what, sizeof what, "K and V (%s) of stage %u", kv_class_word(class), from->range);
    TRY(loan_read(&n, &loan_page_of(from->in, from->range)->kv[class], from->epoch, 0, what, e));
    if (n.bytes != p->bytes)
        return errmsg_set(e, ST_PROTOCOL, "%s: %llu bytes are lent, they take %llu", what,
                          (unsigned long long)n.bytes, (unsigned long long)p->bytes);
    errmsg why = {0};
    status s = c->b->loan->borrow(c->device, &p->pools, p->bytes, &place, &n.ticket, &why);
    return s == ST_OK ? ST_OK : errmsg_set(e, s, "%s: %.400s", what, why.text);
}

status kv_borrow(kv_cache *out, const kv_cache *like, const model_desc *m, uint32_t layer_begin,
                 uint32_t layer_end, const kv_place *from, errmsg *e)
{
    *out = (kv_cache){.b = like->b,
                      .device = like->device,
                      .n_layers = layer_end - layer_begin,
                      .n_pools = like->n_pools,
                      .type = like->type,
                      .n_kv_heads = like->n_kv_heads,
                      .n_head = like->n_head};
    for (uint32_t k = 0; k < out->n_pools; k++) {
        out->pool[k].n_blocks = like->pool[k].n_blocks;
        out->pool[k].holder = POOLS_BORROWED;
    }
    kv_sort_layers(out, m, layer_begin);
    for (uint32_t k = 0; k < out->n_pools; k++)
        TRY(borrow_pool(out, (kv_class)k, from, e));
    return ST_OK;
}
