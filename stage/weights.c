/* The tensors that a range needs are listed once, through two tables (a layer's and the model's)
 * that say where a description keeps a tensor and where the stage wants it; the list is sorted by
 * place in the files and merged into spans. */
#include "stage/weights_impl.h"

#include "common/amount.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE_BYTES (16ull << 20)

#define LAYER(field, use)                                                                          \
    {                                                                                              \
        offsetof(layer_desc, field), offsetof(layer_weights, field), use, 0, 0                     \
    }
static const weight_part layer_parts[] = {
    LAYER(attn_norm, AS_VECTOR),   LAYER(attn_q, AS_MATRIX),      LAYER(attn_k, AS_MATRIX),
    LAYER(attn_v, AS_MATRIX),      LAYER(attn_q_bias, AS_VECTOR), LAYER(attn_k_bias, AS_VECTOR),
    LAYER(attn_v_bias, AS_VECTOR), LAYER(attn_output, AS_MATRIX), LAYER(ffn_norm, AS_VECTOR),
    LAYER(ffn_gate, AS_MATRIX),    LAYER(ffn_up, AS_MATRIX),      LAYER(ffn_down, AS_MATRIX),
    LAYER(attn_q_norm, AS_VECTOR), LAYER(attn_k_norm, AS_VECTOR), LAYER(attn_post_norm, AS_VECTOR),
    LAYER(ffn_post_norm, AS_VECTOR),
};
#define MODEL(desc, field, use, first, last)                                                       \
    {                                                                                              \
        offsetof(model_desc, desc), offsetof(weights, field), use, first, last                     \
    }
static const weight_part model_parts[] = {
    MODEL(token_embd, token_embd, AS_EMBEDDING, true, false),
    MODEL(output_norm, output_norm, AS_VECTOR, false, true),
    MODEL(output, output, AS_MATRIX, false, true),
    MODEL(rope.freq_factors, freq_factors, AS_HOST, false, false),
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

status weights_visit(const weights_options *o, weights *w, weight_visit f, void *ctx, errmsg *e)
{
    const model_desc *m = o->model;
    for (uint32_t il = o->layer_begin; il < o->layer_end; il++) {
        for (size_t i = 0; i < COUNT(layer_parts); i++) {
            const weight_part *part = &layer_parts[i];
            const tensor_ref *ref = (const void *)((const char *)&m->layer[il] + part->from);
            char *layer = w != NULL ? (char *)&w->layer[il - o->layer_begin] : NULL;
            if (ref->t == NULL) continue;
            TRY(f(ctx, &(weight_item){ref->t, part, w != NULL ? layer + part->to : NULL}, e));
        }
    }
    for (size_t i = 0; !o->layers_only && i < COUNT(model_parts); i++) {
        const weight_part *part = &model_parts[i];
        const tensor_ref *ref = (const void *)((const char *)m + part->from);
        bool all = !part->first && !part->last;
        bool mine = all || (part->first && o->layer_begin == 0) ||
                    (part->last && o->layer_end == m->n_layers);
        if (ref->t == NULL || !mine) continue;
        TRY(f(ctx, &(weight_item){ref->t, part, w != NULL ? (char *)w + part->to : NULL}, e));
    }
    return ST_OK;
}

static status check_item(void *ctx, const weight_item *item, errmsg *e)
{
    const weights_options *o = ctx;
    op_kind op = item->part->use == AS_EMBEDDING ? OP_EMBED : OP_MATMUL;
    bool vector = item->part->use == AS_VECTOR || item->part->use == AS_HOST;
    bool fine =
        vector ? item->t->type == DT_F32 : o->backend->supports(o->device, op, item->t->type);
    if (!fine) {
        return errmsg_set(e, ST_BAD_MODEL, "tensor %s: device %s has no %s of %s", item->t->name,
                          o->backend->device_name(o->device),
                          vector           ? "vectors"
                          : op == OP_EMBED ? "embedding"
                                           : "product",
                          dtype_get(item->t->type)->name);
    }
    CHECK(item->t->offset % sizeof(float) == 0); /* gguf.h: alignments are multiples of 8 */
    return ST_OK;
}

status weights_supported(const weights_options *o, errmsg *e)
{
    return weights_visit(o, NULL, check_item, (void *)o, e);
}

/* --- spans --- */

static status collect(void *ctx, const weight_item *item, errmsg *e)
{
    (void)e;
    weights *w = ctx;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    weight_span *s = &w->spans[w->n_spans++];
    s->file_i = item->t->file_i;
    s->begin = item->t->offset / page * page;
    s->end = item->t->offset + item->t->bytes;
    w->bytes += item->t->bytes;
    return ST_OK;
}

static int by_place(const void *a, const void *b)
{
    const weight_span *x = a, *y = b;
    if (x->file_i != y->file_i) return x->file_i < y->file_i ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Spans that touch or share a page become one. */
static void merge(weights *w)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint32_t n = 0;
    qsort(w->spans, w->n_spans, sizeof *w->spans, by_place);
    for (uint32_t i = 0; i < w->n_spans; i++) {
        weight_span *s = &w->spans[i], *last = n > 0 ? &w->spans[n - 1] : NULL;
        bool together = last != NULL && last->file_i == s->file_i &&
                        s->begin <= (last->end + page - 1) / page * page;
        if (!together) {
            w->spans[n++] = *s;
        } else if (s->end > last->end) {
            last->end = s->end;
        }
    }
    w->n_spans = n;
}

static status map_span(weight_span *s, const weights_options *o, errmsg *e)
{
    void *map = mmap(NULL, s->end - s->begin, PROT_READ, MAP_SHARED, gguf_fd(o->file, s->file_i),
                     (off_t)s->begin);
    if (map == MAP_FAILED) {
        return errmsg_set(e, ST_RESOURCES, "cannot map %s of weights (part %u at %llu): %s",
                          amount_said(s->end - s->begin), s->file_i,
                          (unsigned long long)s->begin, strerror(errno));
    }
    s->map = map;
    return ST_OK;
}

static status map_spans(weights *w, const weights_options *o, errmsg *e)
{
    for (uint32_t i = 0; i < w->n_spans; i++) TRY(map_span(&w->spans[i], o, e));
    return ST_OK;
}

status weights_map_item(weights *w, const weights_options *o, const weight_item *item,
                        const void **host, errmsg *e)
{
    weight_span *s = &w->spans[w->n_spans];
    TRY(collect(w, item, e));
    TRY(map_span(s, o, e));
    *host = (const char *)s->map + (item->t->offset - s->begin);
    return ST_OK;
}

/* Bring one piece into memory. A kernel that cannot populate is told to read ahead, and the pages
 * are touched one by one. */
static status read_ahead(const weight_span *s, uint64_t at, uint64_t bytes, errmsg *e)
{
    char *p = (char *)s->map + at;
    if (madvise(p, bytes, MADV_POPULATE_READ) == 0) return ST_OK;
    if (errno == EFAULT || errno == EIO) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "the model file (part %u) cannot be read at %llu: cut short or damaged",
                          s->file_i, (unsigned long long)(s->begin + at));
    }
    long page = sysconf(_SC_PAGESIZE);
    (void)madvise(p, bytes, MADV_WILLNEED);
    for (uint64_t i = 0; i < bytes; i += (uint64_t)page)
        (void)*(volatile const char *)(p + i);
    return ST_OK;
}

static status load_spans(weights *w, const weights_options *o, errmsg *e)
{
    uint64_t done = 0, total = w->loaded;
    for (uint32_t i = 0; i < w->n_spans; i++) {
        weight_span *s = &w->spans[i];
        uint64_t bytes = s->end - s->begin;
        for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
            uint64_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
            TRY(read_ahead(s, at, n, e));
            done += n;
            if (o->on_progress != NULL && o->on_progress(o->progress_ctx, done, total) != 0) {
                return errmsg_set(e, ST_CLOSED, "told to stop while loading");
            }
        }
    }
    return ST_OK;
}

/* --- handing over --- */

static const weight_span *span_of(const weights *w, const gguf_tensor *t)
{
    uint32_t low = 0, high = w->n_spans; /* the last span that begins at or before the tensor */
    weight_span key = {.file_i = t->file_i, .begin = t->offset};
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (by_place(&w->spans[mid], &key) <= 0) {
            low = mid;
        } else {
            high = mid;
        }
    }
    const weight_span *s = &w->spans[low];
    CHECK(s->file_i == t->file_i && s->begin <= t->offset && t->offset + t->bytes <= s->end);
    return s;
}

typedef struct {
    weights *w;
    const weights_options *o;
    uint64_t done; /* of the bytes that are loaded as they are handed over */
} fill_context;

/* Tell how far loading is: where weights are used in place, all was read before. */
static status filled(fill_context *c, uint64_t bytes, errmsg *e)
{
    const weights_options *o = c->o;
    uint64_t total = c->w->loaded;
    c->done = o->backend->weight_bytes == NULL ? total : c->done + bytes;
    if (c->done > total) c->done = total; /* a tied head is listed twice */
    if (o->on_progress == NULL || o->on_progress(o->progress_ctx, c->done, total) == 0)
        return ST_OK;
    return errmsg_set(e, ST_CLOSED, "told to stop while loading");
}

static status fill(void *ctx, const weight_item *item, errmsg *e)
{
    fill_context *c = ctx;
    const weights_options *o = c->o;
    const gguf_tensor *t = item->t;
    uint32_t n_in = (uint32_t)t->dim[0], n_out = (uint32_t)t->dim[1];
    const weight_span *s = span_of(c->w, t);
    const char *host = (const char *)s->map + (t->offset - s->begin);
    switch (item->part->use) {
    case AS_VECTOR:
        TRY(o->backend->weights_from_host(o->device, item->to, host, t->bytes, e));
        break;
    case AS_HOST:
        *(const float **)item->to = (const float *)host;
        break;
    case AS_MATRIX:
        TRY(o->backend->weight_open(o->device, item->to, host, t->type, n_in, n_out, e));
        break;
    case AS_EMBEDDING:
        TRY(o->backend->table_open(o->device, item->to, host, t->type, n_in, n_out, e));
        break;
    }
    return filled(c, t->bytes, e);
}

/* --- bytes on a device --- */

typedef struct {
    const weights_options *o;
    uint64_t bytes;
    uint32_t n; /* weights and vectors that have them */
} count_context;

static status count_item(void *ctx, const weight_item *item, errmsg *e)
{
    (void)e;
    count_context *c = ctx;
    const gguf_tensor *t = item->t;
    if (item->part->use != AS_VECTOR && item->part->use != AS_MATRIX) return ST_OK;
    c->n++;
    c->bytes +=
        item->part->use == AS_VECTOR
            ? t->bytes
            : c->o->backend->weight_bytes(t->type, (uint32_t)t->dim[0], (uint32_t)t->dim[1]);
    return ST_OK;
}

static count_context count(const weights_options *o)
{
    count_context c = {.o = o};
    errmsg never = {0};
    if (o->backend->weight_bytes == NULL) return c;
    status s = weights_visit(o, NULL, count_item, &c, &never);
    CHECK(s == ST_OK);
    return c;
}

uint64_t weights_device_bytes(const weights_options *o)
{
    return count(o).bytes;
}

static status add_file_bytes(void *ctx, const weight_item *item, errmsg *e)
{
    (void)e;
    *(uint64_t *)ctx += item->t->bytes;
    return ST_OK;
}

uint64_t weights_file_bytes(const weights_options *o)
{
    uint64_t bytes = 0;
    errmsg never = {0};
    status s = weights_visit(o, NULL, add_file_bytes, &bytes, &never);
    CHECK(s == ST_OK);
    return bytes;
}

/* --- all of it --- */

status weights_make(weights *out, const weights_options *o, errmsg *e)
{
    size_t n_layers = o->layer_end - o->layer_begin;
    *out = (weights){0};
    out->layer = calloc(n_layers, sizeof *out->layer);
    out->spans = calloc(n_layers * COUNT(layer_parts) + COUNT(model_parts), sizeof *out->spans);
    if (out->layer != NULL && out->spans != NULL) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "no memory for the tables of %zu layers", n_layers);
}

static file_part *parts_of(const weights *w, const weights_options *o)
{
    file_part *parts = calloc(w->n_spans, sizeof *parts);
    for (uint32_t i = 0; parts != NULL && i < w->n_spans; i++) {
        const weight_span *s = &w->spans[i];
        parts[i] = (file_part){s->map, s->end - s->begin, gguf_fd(o->file, s->file_i), s->begin};
    }
    return parts;
}

static status fill_as_one(fill_context *c, const file_part *parts, errmsg *e)
{
    const weights_options *o = c->o;
    count_context n = count(o);
    TRY(o->backend->weights_begin(o->device, n.bytes, n.n, parts, c->w->n_spans, e));
    errmsg why = {0}; /* a weight that could not be read is told at the end: it is the cause */
    status s = weights_visit(o, c->w, fill, c, &why), ended = o->backend->weights_end(o->device, e);
    if (ended != ST_OK) return ended;
    return s == ST_OK ? ST_OK : errmsg_set(e, s, "%s", why.text);
}

status weights_open(weights *out, const weights_options *o, errmsg *e)
{
    TRY(weights_make(out, o, e));
    TRY(gguf_unchanged(o->file, e));
    TRY(weights_visit(o, NULL, collect, out, e));
    bool whole = o->layer_begin == 0 && o->layer_end == o->model->n_layers;
    if (whole && o->model->tied) out->bytes -= o->model->output.t->bytes; /* listed twice */
    merge(out);
    TRY(map_spans(out, o, e));
    for (uint32_t i = 0; i < out->n_spans; i++)
        out->loaded += out->spans[i].end - out->spans[i].begin;
    /* A device with memory of its own reads the files once, with several threads. */
    if (o->backend->weight_bytes == NULL) TRY(load_spans(out, o, e));
    TRY(gguf_unchanged(o->file, e));
    fill_context c = {out, o, 0};
    if (o->backend->weights_begin == NULL) return weights_visit(o, out, fill, &c, e);
    file_part *parts = parts_of(out, o);
    if (parts == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the places of weights");
    status s = fill_as_one(&c, parts, e);
    free(parts);
    return s;
}

void weights_close(weights *w)
{
    for (uint32_t i = 0; i < w->n_spans; i++) {
        weight_span *s = &w->spans[i];
        if (s->map != NULL) munmap(s->map, s->end - s->begin);
    }
    free(w->spans);
    free(w->layer);
    *w = (weights){0};
}
