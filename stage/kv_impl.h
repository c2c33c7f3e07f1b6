/* kv_impl.h - what kv.c (pools, rows) and kv_ops.c (operations) share; nobody else includes it. */
#ifndef STAGE_KV_IMPL_H
#define STAGE_KV_IMPL_H

#include "stage/kv.h"

/* The block table of a branch: [per_ctx]. */
uint32_t *kv_entries(const kv_cache *c, kv_class class, uint32_t branch);

/* The class's name, "unknown" for what is none. */
const char *kv_class_word(uint32_t class);

#endif
