#include "stage/fits.h"

#include "common/amount.h"

#include <stdio.h>

/* The context that the KV cache could have in what is left, in whole KV blocks; 0: none. */
static uint32_t context_that_fits(const device_need *n, uint64_t free_bytes)
{
    uint64_t rest = n->weights_bytes + n->scratch_bytes + n->slots_bytes + n->load_bytes;
    if (free_bytes <= rest || n->kv_bytes == 0) return 0;
    double share = (double)(free_bytes - rest) / (double)n->kv_bytes;
    return share >= 1 ? n->n_ctx : (uint32_t)(share * n->n_ctx) / KV_BLOCK * KV_BLOCK;
}

status fits_check(const device_need *n, errmsg *e)
{
    uint64_t free_bytes, held;
    uint64_t all =
        n->weights_bytes + n->kv_bytes + n->scratch_bytes + n->slots_bytes + n->load_bytes;
    char fits[80] = "more stages or devices would leave less for each";
    if (n->backend->memory == NULL) return ST_OK;
    TRY(n->backend->memory(n->device, &free_bytes, &held, e));
    if (all <= free_bytes) return ST_OK;
    uint32_t n_ctx = context_that_fits(n, free_bytes);
    if (n_ctx > 0) snprintf(fits, sizeof fits, "--ctx %u would fit", n_ctx);
    return errmsg_set(e, ST_RESOURCES,
                      "stage %u: layers %u-%u need %s on %s and %s are free: weights %s, KV %s, "
                      "scratch %s, slots %s, to load with %s; %s",
                      n->stage_i, n->layer_begin, n->layer_end - 1, amount_said(all),
                      n->backend->device_name(n->device), amount_said(free_bytes),
                      amount_said(n->weights_bytes), amount_said(n->kv_bytes),
                      amount_said(n->scratch_bytes), amount_said(n->slots_bytes),
                      amount_said(n->load_bytes), fits);
}

status fits_begin_load(const device_need *n, uint64_t *held_bytes, errmsg *e)
{
    uint64_t free_bytes;
    *held_bytes = 0;
    return n->backend->memory != NULL ? n->backend->memory(n->device, &free_bytes, held_bytes, e)
                                      : ST_OK;
}

status fits_end_load(const device_need *n, uint64_t held_bytes, errmsg *e)
{
    uint64_t free_bytes, held;
    if (n->backend->memory == NULL) return ST_OK;
    TRY(n->backend->memory(n->device, &free_bytes, &held, e));
    if (held - held_bytes == n->weights_bytes) return ST_OK;
    return errmsg_set(e, ST_PROTOCOL,
                      "stage %u: %s took %llu bytes of weights, %llu were to go there", n->stage_i,
                      n->backend->device_name(n->device), (unsigned long long)(held - held_bytes),
                      (unsigned long long)n->weights_bytes);
}
