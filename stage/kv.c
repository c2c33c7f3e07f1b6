#include "stage/kv_impl.h"

#include "kernels/loan.h"

#include <string.h>

_Static_assert((int)LAYER_GLOBAL == KV_CLASS_GLOBAL && (int)LAYER_WINDOW == KV_CLASS_WINDOW,
               "a layer's kind is its class");

static const char *const class_words[KV_CLASS_COUNT] = {
    [KV_CLASS_GLOBAL] = "global",
    [KV_CLASS_WINDOW] = "window",
    [KV_CLASS_STATE] = "state",
    [KV_CLASS_DRAFT] = "draft",
};

const char *kv_class_word(uint32_t class)
{
    return class < KV_CLASS_COUNT ? class_words[class] : "unknown";
}

void kv_sort_layers(kv_cache *c, const model_desc *m, uint32_t layer_begin)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layer[i].class = (kv_class)m->layer[layer_begin + i].kind;
        c->layer[i].i = c->pool[c->layer[i].class].n_layers++;
    }
    for (uint32_t k = 0; k < c->n_pools; k++) {
        kv_pool *p = &c->pool[k];
        p->bytes = plan_kv_bytes(m, p->n_layers, p->n_blocks, c->type);
        p->pool_bytes = p->n_layers > 0 ? p->bytes / (2 * (uint64_t)p->n_layers) : 0;
    }
}

status kv_open(kv_cache *out, const backend *b, backend_device *device, const model_desc *m,
               uint32_t layer_begin, uint32_t layer_end, dtype type, const stage_limits *l,
               char *host, const host_layout *at, const kv_place *lent, errmsg *e)
{
    *out = (kv_cache){
        .b = b,
        .device = device,
        .n_ctx = l->n_ctx,
        .n_branches = l->n_branches,
        .per_ctx = plan_blocks_per_ctx(l->n_ctx),
        .n_layers = layer_end - layer_begin,
        .window = m->window,
        .n_pools = model_n_kinds(m),
        .type = type,
        .n_kv_heads = m->n_kv_heads,
        .n_head = m->n_head,
        .branches = (kv_branch *)(host + at->branches),
        .history = l->last_stage ? (uint32_t *)(host + at->history) : NULL,
    };
    for (uint32_t k = 0; k < out->n_pools; k++) {
        out->pool[k].n_blocks = l->n_blocks[k];
        out->pool[k].tables = (uint32_t *)(host + at->branch_tables[k]);
        out->pool[k].users = (uint32_t *)(host + at->block_users[k]);
    }
    kv_sort_layers(out, m, layer_begin);
    for (uint32_t k = 0; k < out->n_pools; k++) {
        kv_pool *p = &out->pool[k];
        p->holder = lent != NULL ? POOLS_LENT : POOLS_OWN;
        TRY(lent != NULL ? kv_lend_pool(out, (kv_class)k, lent, e)
                         : b->alloc(device, &p->pools, p->bytes, e));
    }
    return ST_OK;
}

void kv_close(kv_cache *c)
{
    for (uint32_t k = 0; k < KV_POOLS; k++) {
        kv_pool *p = &c->pool[k];
        if (p->pools.addr == 0) continue;
        switch (p->holder) {
        case POOLS_OWN:
            c->b->free(c->device, p->pools, p->bytes);
            break;
        case POOLS_LENT:
            c->b->loan->free(c->device, p->pools, p->bytes);
            break;
        case POOLS_BORROWED:
            c->b->loan->give_back(c->device, p->pools, p->bytes);
            break;
        }
        p->pools = (dev_ptr){0};
    }
}

uint64_t kv_bytes(const kv_cache *c)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < KV_POOLS; k++)
        bytes += c->pool[k].bytes;
    return bytes;
}

kv_args kv_layer(const kv_cache *c, uint32_t layer_i)
{
    const kv_pool *p = &c->pool[c->layer[layer_i].class];
    dev_ptr k = dev_offset(p->pools, 2 * (uint64_t)c->layer[layer_i].i * p->pool_bytes);
    return (kv_args){k, dev_offset(k, p->pool_bytes), c->type, c->n_kv_heads, c->n_head};
}

uint32_t *kv_entries(const kv_cache *c, kv_class class, uint32_t branch)
{
    return &c->pool[class].tables[(uint64_t)branch * c->per_ctx];
}

void kv_reset(kv_cache *c)
{
    memset(c->branches, 0, c->n_branches * sizeof *c->branches);
    for (uint32_t k = 0; k < c->n_pools; k++)
        memset(c->pool[k].users, 0, c->pool[k].n_blocks * sizeof *c->pool[k].users);
}

void kv_rewrite(kv_cache *c, bool on)
{
    c->rewriting = on;
}

/* --- the rows of a step --- */

void kv_step_begin(kv_cache *c)
{
    c->step++;
}

/* The position can be written, and the window that ends there read. */
static status check_table(const kv_cache *c, kv_class class, const wire_row *r, uint32_t row_i,
                          errmsg *e)
{
    const kv_table *t = &c->branches[r->branch].table[class];
    if (r->position / KV_BLOCK >= t->n) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u is not below %u, where branch %u's %s blocks end",
                          row_i, r->position, t->n * KV_BLOCK, r->branch, kv_class_word(class));
    }
    uint32_t begin = class == KV_CLASS_WINDOW && r->position >= c->window
                         ? r->position + 1 - c->window
                         : 0;
    if (begin / KV_BLOCK < t->first) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: the window of position %u begins at %u, branch %u's %s blocks "
                          "below %u were released",
                          row_i, r->position, begin, r->branch, kv_class_word(class),
                          t->first * KV_BLOCK);
    }
    uint32_t block = kv_entries(c, class, r->branch)[r->position / KV_BLOCK];
    if (c->pool[class].users[block] > 1 && !c->rewriting) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u of branch %u lies in %s block %u, which is shared",
                          row_i, r->position, r->branch, kv_class_word(class), block);
    }
    return ST_OK;
}

status kv_row_check(kv_cache *c, const wire_row *r, uint32_t row_i, errmsg *e)
{
    kv_branch *b = &c->branches[r->branch];
    if (!b->open) {
        return errmsg_set(e, ST_PROTOCOL, "row %u: branch %u is not open", row_i, r->branch);
    }
    if (r->generation != b->generation) {
        return errmsg_set(e, ST_PROTOCOL, "row %u: generation %u is not branch %u's, which is %u",
                          row_i, r->generation, r->branch, b->generation);
    }
    for (uint32_t k = 0; k < c->n_pools; k++)
        TRY(check_table(c, (kv_class)k, r, row_i, e));
    if (b->step == c->step && r->position <= b->last_position) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u of branch %u comes after position %u in one step",
                          row_i, r->position, r->branch, b->last_position);
    }
    for (uint32_t k = 0; k < c->n_pools && b->step != c->step; k++)
        b->table[k].step_table = WIRE_NONE;
    b->step = c->step;
    b->last_position = r->position;
    return ST_OK;
}

void kv_row_place(kv_cache *c, const wire_row *r, uint32_t *tables, uint32_t *n_used,
                  uint32_t at[KV_POOLS])
{
    for (uint32_t k = 0; k < c->n_pools; k++) {
        kv_table *t = &c->branches[r->branch].table[k];
        if (t->step_table == WIRE_NONE) {
            memcpy(&tables[*n_used], kv_entries(c, (kv_class)k, r->branch), t->n * sizeof *tables);
            t->step_table = *n_used;
            *n_used += t->n;
        }
        at[k] = t->step_table;
    }
    kv_row_remember(c, r);
}

void kv_row_remember(kv_cache *c, const wire_row *r)
{
    if (c->history == NULL) return;
    uint64_t block = kv_entries(c, KV_CLASS_GLOBAL, r->branch)[r->position / KV_BLOCK];
    c->history[block * KV_BLOCK + r->position % KV_BLOCK] = r->token;
}

uint32_t kv_block_of(const kv_cache *c, uint32_t branch, uint32_t position)
{
    return kv_entries(c, KV_CLASS_GLOBAL, branch)[position / KV_BLOCK];
}

void kv_history(const kv_cache *c, uint32_t branch, uint32_t position, uint32_t *out, uint32_t n)
{
    CHECK(c->history != NULL && n <= position + 1);
    const uint32_t *table = kv_entries(c, KV_CLASS_GLOBAL, branch);
    uint32_t from = position + 1 - n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t block = table[(from + i) / KV_BLOCK];
        out[i] = c->history[block * KV_BLOCK + (from + i) % KV_BLOCK];
    }
}
