#include "stage/kv.h"

#include <string.h>

_Static_assert(KV_BLOCK == 64, "common/plan.c repeats it");
_Static_assert((int)LAYER_GLOBAL == KV_CLASS_GLOBAL && (int)LAYER_WINDOW == KV_CLASS_WINDOW,
               "a layer's kind is its class");

static const char *const op_words[KV_OP_COUNT] = {
    [KV_OPEN] = "open",         [KV_ALLOC] = "alloc",         [KV_FREE] = "free",
    [KV_TRUNCATE] = "truncate", [KV_RELEASE] = "release",     [KV_FORK] = "fork",
    [KV_COPY] = "copy",         [KV_WIPE] = "wipe",           [KV_SNAPSHOT] = "snapshot",
    [KV_RESTORE] = "restore",
};

static const char *const class_words[KV_CLASS_COUNT] = {
    [KV_CLASS_GLOBAL] = "global",
    [KV_CLASS_WINDOW] = "window",
    [KV_CLASS_STATE] = "state",
    [KV_CLASS_DRAFT] = "draft",
};

/* Which pool each layer of the range lives in, and where. */
static void sort_layers(kv_cache *c, const model_desc *m, uint32_t layer_begin)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layer[i].class = (kv_class)m->layer[layer_begin + i].kind;
        c->layer[i].i = c->pool[c->layer[i].class].n_layers++;
    }
}

static status open_pool(kv_cache *c, const model_desc *m, kv_class class, errmsg *e)
{
    kv_pool *p = &c->pool[class];
    uint64_t bytes = plan_kv_bytes(m, p->n_layers, p->n_blocks, c->type);
    TRY(c->b->alloc(c->device, &p->pools, bytes, e));
    p->bytes = bytes;
    p->pool_bytes = p->n_layers > 0 ? bytes / (2 * (uint64_t)p->n_layers) : 0;
    return ST_OK;
}

status kv_open(kv_cache *out, const backend *b, backend_device *device, const model_desc *m,
               uint32_t layer_begin, uint32_t layer_end, dtype type, const stage_limits *l,
               char *host, const host_layout *at, errmsg *e)
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
    sort_layers(out, m, layer_begin);
    for (uint32_t k = 0; k < out->n_pools; k++) {
        out->pool[k].n_blocks = l->n_blocks[k];
        out->pool[k].tables = (uint32_t *)(host + at->branch_tables[k]);
        out->pool[k].users = (uint32_t *)(host + at->block_users[k]);
        TRY(open_pool(out, m, (kv_class)k, e));
    }
    return ST_OK;
}

void kv_close(kv_cache *c)
{
    for (uint32_t k = 0; k < KV_POOLS; k++) {
        kv_pool *p = &c->pool[k];
        if (p->pools.addr != 0) c->b->free(c->device, p->pools, p->bytes);
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

static uint32_t *table_of(const kv_cache *c, kv_class class, uint32_t branch)
{
    return &c->pool[class].tables[(uint64_t)branch * c->per_ctx];
}

static void drop_entries(kv_cache *c, kv_class class, uint32_t branch, uint32_t keep)
{
    kv_table *t = &c->branches[branch].table[class];
    for (; t->n > keep; t->n--) {
        if (t->n > t->first) c->pool[class].users[table_of(c, class, branch)[t->n - 1]]--;
    }
    if (t->first > t->n) t->first = t->n;
}

/* --- operations --- */

typedef struct {
    kv_cache *c;
    backend_queue *q;
    const wire_kv_op *op;
    uint32_t op_i;
    errmsg *e;
    kv_class class; /* one that the model has */
    kv_pool *pool;  /* its */
} op_context;

static status refuse(const op_context *x, const char *field, uint32_t value, const char *rule,
                     uint32_t bound)
{
    return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u (%s): %s %u %s %u", x->op_i,
                      op_words[x->op->kind], field, value, rule, bound);
}

static status below(const op_context *x, const char *field, uint32_t value, uint32_t bound)
{
    return value < bound ? ST_OK : refuse(x, field, value, "is not below", bound);
}

static status at_most(const op_context *x, const char *field, uint32_t value, uint32_t bound)
{
    return value <= bound ? ST_OK : refuse(x, field, value, "is above", bound);
}

static status is_open(const op_context *x, const char *field, uint32_t branch)
{
    TRY(below(x, field, branch, x->c->n_branches));
    if (x->c->branches[branch].open) return ST_OK;
    return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u (%s): %s %u is not open", x->op_i,
                      op_words[x->op->kind], field, branch);
}

static status is_current(const op_context *x)
{
    TRY(is_open(x, "branch", x->op->branch));
    uint32_t generation = x->c->branches[x->op->branch].generation;
    if (x->op->generation == generation) return ST_OK;
    return refuse(x, "generation", x->op->generation, "is not the branch's", generation);
}

static status is_unshared(const op_context *x, const char *field, uint32_t block)
{
    TRY(below(x, field, block, x->pool->n_blocks));
    return at_most(x, "number of tables with block a", x->pool->users[block], 1);
}

static status op_open(const op_context *x)
{
    TRY(below(x, "branch", x->op->branch, x->c->n_branches));
    kv_branch *b = &x->c->branches[x->op->branch];
    if (b->open) {
        return refuse(x, "branch", x->op->branch, "is open already, of generation", b->generation);
    }
    *b = (kv_branch){.open = 1, .generation = x->op->generation};
    return ST_OK;
}

static status op_alloc(const op_context *x)
{
    TRY(is_current(x));
    kv_table *t = &x->c->branches[x->op->branch].table[x->class];
    TRY(below(x, "entry a", x->op->a, x->c->per_ctx));
    TRY(at_most(x, "entry a", x->op->a, t->n));
    TRY(below(x, "block b", x->op->b, x->pool->n_blocks));
    if (x->op->a < t->first) {
        return refuse(x, "entry a", x->op->a, "was released, as all below", t->first);
    }
    uint32_t *entry = &table_of(x->c, x->class, x->op->branch)[x->op->a];
    if (x->op->a < t->n) {
        x->pool->users[*entry]--;
    } else {
        t->n++;
    }
    *entry = x->op->b;
    x->pool->users[*entry]++;
    return ST_OK;
}

static status op_free(const op_context *x)
{
    TRY(is_current(x));
    for (uint32_t k = 0; k < x->c->n_pools; k++)
        drop_entries(x->c, (kv_class)k, x->op->branch, 0);
    x->c->branches[x->op->branch].open = 0;
    return ST_OK;
}

static status op_truncate(const op_context *x)
{
    TRY(is_current(x));
    TRY(at_most(x, "position a", x->op->a, x->c->n_ctx));
    drop_entries(x->c, x->class, x->op->branch, plan_blocks_per_ctx(x->op->a));
    return ST_OK;
}

static status op_release(const op_context *x)
{
    TRY(is_current(x));
    kv_table *t = &x->c->branches[x->op->branch].table[x->class];
    uint32_t *table = table_of(x->c, x->class, x->op->branch);
    if (x->class != KV_CLASS_WINDOW) {
        return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u (release): class %s keeps all",
                          x->op_i, class_words[x->class]);
    }
    TRY(at_most(x, "entry a", x->op->a, t->n));
    for (; t->first < x->op->a; t->first++) {
        x->pool->users[table[t->first]]--;
        table[t->first] = WIRE_NONE;
    }
    return ST_OK;
}

static status op_fork(const op_context *x)
{
    kv_cache *c = x->c;
    uint32_t n = x->op->a / KV_BLOCK;
    TRY(is_current(x));
    TRY(is_open(x, "parent b", x->op->b));
    kv_table *t = &c->branches[x->op->branch].table[x->class];
    const kv_table *parent = &c->branches[x->op->b].table[x->class];
    if (x->op->b == x->op->branch || t->n != 0) {
        return refuse(x, "branch", x->op->branch, "must be empty and not its parent", x->op->b);
    }
    TRY(at_most(x, "number of blocks a / KV_BLOCK", n, parent->n));
    uint32_t *table = table_of(c, x->class, x->op->branch);
    memcpy(table, table_of(c, x->class, x->op->b), n * sizeof *table);
    t->n = n;
    t->first = parent->first < n ? parent->first : n;
    for (uint32_t i = t->first; i < n; i++)
        x->pool->users[table[i]]++;
    return ST_OK;
}

static status device_failed(const op_context *x, status s, uint32_t layer_i)
{
    return errmsg_set(x->e, s, "KV operation %u (%s): the device failed in the stage's layer %u",
                      x->op_i, op_words[x->op->kind], layer_i);
}

static status op_copy(const op_context *x)
{
    kv_cache *c = x->c;
    const wire_kv_op *op = x->op;
    TRY(is_unshared(x, "block a", op->a));
    TRY(below(x, "block b", op->b, x->pool->n_blocks));
    TRY(at_most(x, "number of positions c", op->c, KV_BLOCK));
    if (op->a == op->b) return refuse(x, "block a", op->a, "is block b", op->b);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->layer[i].class != x->class) continue;
        kv_args layer = kv_layer(c, i);
        status s = c->b->kv_copy_block(x->q, &layer, op->a, op->b, op->c);
        if (s != ST_OK) return device_failed(x, s, i);
    }
    if (c->history != NULL && x->class == KV_CLASS_GLOBAL) {
        memcpy(&c->history[(uint64_t)op->a * KV_BLOCK], &c->history[(uint64_t)op->b * KV_BLOCK],
               op->c * sizeof(uint32_t));
    }
    return ST_OK;
}

static status op_wipe(const op_context *x)
{
    kv_cache *c = x->c;
    TRY(is_unshared(x, "block a", x->op->a));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->layer[i].class != x->class) continue;
        kv_args layer = kv_layer(c, i);
        status s = c->b->kv_wipe_block(x->q, &layer, x->op->a);
        if (s != ST_OK) return device_failed(x, s, i);
    }
    if (c->history != NULL && x->class == KV_CLASS_GLOBAL) {
        memset(&c->history[(uint64_t)x->op->a * KV_BLOCK], 0, KV_BLOCK * sizeof(uint32_t));
    }
    return ST_OK;
}

static status (*const op_table[KV_OP_COUNT])(const op_context *x) = {
    [KV_OPEN] = op_open,         [KV_ALLOC] = op_alloc,     [KV_FREE] = op_free,
    [KV_TRUNCATE] = op_truncate, [KV_RELEASE] = op_release, [KV_FORK] = op_fork,
    [KV_COPY] = op_copy,         [KV_WIPE] = op_wipe,
};

static status apply(op_context x)
{
    const wire_kv_op *op = x.op;
    if (op->kind >= KV_OP_COUNT) {
        return errmsg_set(x.e, ST_PROTOCOL, "KV operation %u: kind %u is none", x.op_i, op->kind);
    }
    if (op_table[op->kind] == NULL) {
        return errmsg_set(x.e, ST_PROTOCOL,
                          "KV operation %u (%s): this model has no recurrent state to keep", x.op_i,
                          op_words[op->kind]);
    }
    if (op->kv_class >= x.c->n_pools) {
        return errmsg_set(x.e, ST_PROTOCOL, "KV operation %u (%s): class %u (%s) has no blocks",
                          x.op_i, op_words[op->kind], op->kv_class,
                          op->kv_class < KV_CLASS_COUNT ? class_words[op->kv_class] : "unknown");
    }
    if ((op->kind == KV_OPEN || op->kind == KV_FREE) && op->kv_class != KV_CLASS_GLOBAL) {
        return errmsg_set(x.e, ST_PROTOCOL,
                          "KV operation %u (%s): class %u (%s), but it is the whole branch's",
                          x.op_i, op_words[op->kind], op->kv_class, class_words[op->kv_class]);
    }
    x.class = (kv_class)op->kv_class;
    x.pool = &x.c->pool[x.class];
    return op_table[op->kind](&x);
}

status kv_ops(kv_cache *c, backend_queue *q, const wire_kv_op *ops, uint32_t n_ops, errmsg *e)
{
    for (uint32_t i = 0; i < n_ops; i++)
        TRY(apply((op_context){.c = c, .q = q, .op = &ops[i], .op_i = i, .e = e}));
    return ST_OK;
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
                          row_i, r->position, t->n * KV_BLOCK, r->branch, class_words[class]);
    }
    uint32_t begin = class == KV_CLASS_WINDOW && r->position >= c->window
                         ? r->position + 1 - c->window
                         : 0;
    if (begin / KV_BLOCK < t->first) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: the window of position %u begins at %u, branch %u's %s blocks "
                          "below %u were released",
                          row_i, r->position, begin, r->branch, class_words[class],
                          t->first * KV_BLOCK);
    }
    uint32_t block = table_of(c, class, r->branch)[r->position / KV_BLOCK];
    if (c->pool[class].users[block] > 1) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u of branch %u lies in %s block %u, which is shared",
                          row_i, r->position, r->branch, class_words[class], block);
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
            memcpy(&tables[*n_used], table_of(c, (kv_class)k, r->branch), t->n * sizeof *tables);
            t->step_table = *n_used;
            *n_used += t->n;
        }
        at[k] = t->step_table;
    }
    if (c->history != NULL) {
        uint64_t block = table_of(c, KV_CLASS_GLOBAL, r->branch)[r->position / KV_BLOCK];
        c->history[block * KV_BLOCK + r->position % KV_BLOCK] = r->token;
    }
}

void kv_history(const kv_cache *c, uint32_t branch, uint32_t position, uint32_t *out, uint32_t n)
{
    CHECK(c->history != NULL && n <= position + 1);
    const uint32_t *table = table_of(c, KV_CLASS_GLOBAL, branch);
    uint32_t from = position + 1 - n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t block = table[(from + i) / KV_BLOCK];
        out[i] = c->history[block * KV_BLOCK + (from + i) % KV_BLOCK];
    }
}
