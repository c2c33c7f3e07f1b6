/* kv_impl.h - what kv.c (pools, rows), kv_ops.c (operations) and kv_lent.c (pools that
 * another process uses) share; nobody else includes it. */
#ifndef STAGE_KV_IMPL_H
#define STAGE_KV_IMPL_H

#include "stage/kv.h"

/* The block table of a branch: [per_ctx]. */
uint32_t *kv_entries(const kv_cache *c, kv_class class, uint32_t branch);

/* The class's name, "unknown" for what is none. */
const char *kv_class_word(uint32_t class);

/* Which pool each layer of the range lives in, and where; the pools' sizes, from their n_blocks. */
void kv_sort_layers(kv_cache *c, const model_desc *m, uint32_t layer_begin);

/* Allocate that pool at its place, and say so there. ST_RESOURCES. */
MUST_USE status kv_lend_pool(kv_cache *c, kv_class class, const kv_place *lent, errmsg *e);

#endif
