/* weights_impl.h - what weights.c (from the file) and weights_lent.c (from another process) share;
 * nobody else includes it. */
#ifndef STAGE_WEIGHTS_IMPL_H
#define STAGE_WEIGHTS_IMPL_H

#include "stage/weights.h"

#include <stddef.h>

typedef enum { AS_VECTOR, AS_MATRIX, AS_EMBEDDING, AS_HOST } weight_use;

typedef struct {
    size_t from; /* of the tensor_ref, in layer_desc or model_desc */
    size_t to;   /* in layer_weights or weights */
    weight_use use;
    bool first, last; /* of the model's: for the first stage, for the last; neither: all */
} weight_part;

/* One tensor of the range and what is to be filled with it. */
typedef struct {
    const gguf_tensor *t;
    const weight_part *part;
    void *to;
} weight_item;

typedef status (*weight_visit)(void *ctx, const weight_item *item, errmsg *e);

/* Visit every tensor of the range, the layers' first. w may be NULL: nothing is to be filled. */
MUST_USE status weights_visit(const weights_options *o, weights *w, weight_visit f, void *ctx,
                              errmsg *e);

/* *out with its tables, empty. ST_RESOURCES; it can be closed then too. */
MUST_USE status weights_make(weights *out, const weights_options *o, errmsg *e);

/* Map what lies in the file at item, as a span of its own: *host. ST_RESOURCES. */
MUST_USE status weights_map_item(weights *w, const weights_options *o, const weight_item *item,
                                 const void **host, errmsg *e);

#endif
