#include "coordinator/engine/prefix.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

status prefix_open(prefix_table *out, kvpool *pool, uint32_t block_tokens, errmsg *e)
{
    *out = (prefix_table){
        .pool = pool, .n_buckets = 1, .block_tokens = block_tokens, .next_serial = 1};
    while (out->n_buckets < pool->n_blocks && out->n_buckets < 1u << 30) out->n_buckets *= 2;
    out->entry = calloc(pool->n_blocks, sizeof *out->entry);
    out->tokens = calloc((uint64_t)pool->n_blocks * block_tokens, sizeof *out->tokens);
    out->bucket = malloc(out->n_buckets * sizeof *out->bucket);
    if (out->entry == NULL || out->tokens == NULL || out->bucket == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for the table of prefixes");
    memset(out->bucket, 0xff, out->n_buckets * sizeof *out->bucket);
    return ST_OK;
}

void prefix_close(prefix_table *t)
{
    free(t->entry);
    free(t->tokens);
    free(t->bucket);
    *t = (prefix_table){0};
}

static uint32_t *tokens_of(const prefix_table *t, uint32_t block)
{
    return t->tokens + (uint64_t)block * t->block_tokens;
}

static uint32_t bucket_of(const prefix_table *t, uint64_t parent, const uint32_t *tokens)
{
    uint64_t h = parent + 0x9E3779B97F4A7C15u;
    for (uint32_t i = 0; i < t->block_tokens; i++) {
        h = (h ^ tokens[i]) * 0xD1342543DE82EF95u;
        h ^= h >> 29;
    }
    return (uint32_t)(h & (t->n_buckets - 1));
}

static bool is_there(const prefix_table *t, prefix_link l)
{
    return l.serial != 0 && t->entry[l.block].serial == l.serial;
}

bool prefix_find(prefix_table *t, prefix_link parent, const uint32_t *tokens, prefix_link *out)
{
    uint32_t block = t->bucket[bucket_of(t, parent.serial, tokens)];
    for (; block != NONE; block = t->entry[block].next) {
        prefix_entry *x = &t->entry[block];
        if (x->parent.serial != parent.serial ||
            memcmp(tokens_of(t, block), tokens, t->block_tokens * sizeof *tokens) != 0)
            continue;
        x->used = ++t->clock;
        *out = (prefix_link){block, x->serial};
        return true;
    }
    return false;
}

bool prefix_enter(prefix_table *t, uint32_t block, prefix_link parent, const uint32_t *tokens,
                  prefix_link *out)
{
    prefix_entry *x = &t->entry[block];
    if (x->serial != 0 || (parent.serial != 0 && !is_there(t, parent))) return false;
    uint32_t b = bucket_of(t, parent.serial, tokens);
    *x = (prefix_entry){.serial = t->next_serial++,
                        .parent = parent,
                        .used = ++t->clock,
                        .next = t->bucket[b]};
    t->bucket[b] = block;
    memcpy(tokens_of(t, block), tokens, t->block_tokens * sizeof *tokens);
    kvpool_share(t->pool, block);
    t->n_entries++;
    if (parent.serial != 0) t->entry[parent.block].n_children++;
    *out = (prefix_link){block, x->serial};
    return true;
}

static void let_go(prefix_table *t, uint32_t block)
{
    prefix_link parent = t->entry[block].parent;
    uint32_t *at = &t->bucket[bucket_of(t, parent.serial, tokens_of(t, block))];
    while (*at != block) at = &t->entry[*at].next;
    *at = t->entry[block].next;
    t->entry[block] = (prefix_entry){0};
    t->n_entries--;
    if (is_there(t, parent)) t->entry[parent.block].n_children--;
    kvpool_drop(t->pool, block);
}

void prefix_forget(prefix_table *t, uint32_t block)
{
    if (t->n_entries > 0 && t->entry[block].serial != 0) let_go(t, block);
}

void prefix_forget_unheld(prefix_table *t)
{
    for (uint32_t i = 0; t->n_entries > 0 && i < t->pool->n_blocks; i++)
        if (t->entry[i].serial != 0 && t->pool->refs[i] == 1) let_go(t, i);
}

bool prefix_evict(prefix_table *t)
{
    uint32_t oldest = NONE;
    if (t->n_entries == 0) return false;
    for (uint32_t i = 0; i < t->pool->n_blocks; i++) {
        const prefix_entry *x = &t->entry[i];
        if (x->serial == 0 || x->n_children > 0 || t->pool->refs[i] != 1) continue;
        if (oldest == NONE || x->used < t->entry[oldest].used) oldest = i;
    }
    if (oldest == NONE) return false;
    let_go(t, oldest);
    return true;
}
