/* Weights that lie in one allocation: what an entry says of each, and the same tensors in another
 * process. Both sides visit a range's tensors in one order, the layers' first. */
#include "stage/weights_impl.h"

#include "kernels/loan.h"

static uint64_t bytes_on(const backend *b, const weight_item *item)
{
    const gguf_tensor *t = item->t;
    if (item->part->use == AS_VECTOR) return t->bytes;
    return item->part->use == AS_MATRIX
               ? b->weight_bytes(t->type, (uint32_t)t->dim[0], (uint32_t)t->dim[1])
               : 0;
}

typedef struct {
    dev_ptr base;
    loan_entry *out;
    uint32_t n, n_max;
} listing;

static status list_item(void *ctx, const weight_item *item, errmsg *e)
{
    (void)e;
    listing *x = ctx;
    loan_entry entry = {0};
    if (item->part->use == AS_MATRIX) {
        const dev_weight *w = item->to;
        entry = (loan_entry){w->data.addr - x->base.addr, w->exponent, 0};
    } else if (item->part->use == AS_VECTOR) {
        entry.offset = ((const dev_ptr *)item->to)->addr - x->base.addr;
    }
    CHECK(x->n < x->n_max);
    x->out[x->n++] = entry;
    return ST_OK;
}

uint32_t weights_entries(const weights *w, const weights_options *o, dev_ptr base, loan_entry *out,
                         uint32_t n_max)
{
    listing x = {base, out, 0, n_max};
    errmsg never = {0};
    status s = weights_visit(o, (weights *)w, list_item, &x, &never); /* which only reads it */
    CHECK(s == ST_OK);
    return x.n;
}

typedef struct {
    weights *w;
    const weights_options *o;
    const weights_lent *from;
    uint32_t n;
} borrowing;

static status borrow_item(void *ctx, const weight_item *item, errmsg *e)
{
    borrowing *x = ctx;
    const gguf_tensor *t = item->t;
    uint64_t bytes = bytes_on(x->o->backend, item);
    if (x->n >= x->from->n_entries)
        return errmsg_set(e, ST_PROTOCOL, "weights are lent without tensor %s", t->name);
    const loan_entry *entry = &x->from->entry[x->n++];
    CHECK(item->part->use != AS_EMBEDDING); /* the first stage's, which has it */
    if (item->part->use == AS_HOST) {
        const void *host;
        TRY(weights_map_item(x->w, x->o, item, &host, e));
        *(const float **)item->to = host;
        return ST_OK;
    }
    if (entry->offset % LOAN_ALIGN != 0 || bytes > x->from->bytes ||
        entry->offset > x->from->bytes - bytes)
        return errmsg_set(e, ST_PROTOCOL, "tensor %s is lent at %llu of %llu bytes", t->name,
                          (unsigned long long)entry->offset, (unsigned long long)x->from->bytes);
    dev_ptr at = dev_offset(x->from->base, entry->offset);
    if (item->part->use == AS_MATRIX)
        *(dev_weight *)item->to =
            (dev_weight){at, t->type, (uint32_t)t->dim[0], (uint32_t)t->dim[1], entry->exponent};
    else
        *(dev_ptr *)item->to = at;
    return ST_OK;
}

status weights_borrow(weights *out, const weights_options *o, const weights_lent *from, errmsg *e)
{
    TRY(weights_make(out, o, e));
    TRY(gguf_unchanged(o->file, e));
    borrowing x = {out, o, from, 0};
    return weights_visit(o, out, borrow_item, &x, e);
}
