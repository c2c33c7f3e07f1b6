/* Operations of a step: each is checked whole, then applied. */
#include "stage/kv_impl.h"

#include <string.h>

static const char *const op_words[KV_OP_COUNT] = {
    [KV_OPEN] = "open",         [KV_ALLOC] = "alloc",         [KV_FREE] = "free",
    [KV_TRUNCATE] = "truncate", [KV_RELEASE] = "release",     [KV_FORK] = "fork",
    [KV_COPY] = "copy",         [KV_WIPE] = "wipe",           [KV_SNAPSHOT] = "snapshot",
    [KV_RESTORE] = "restore",
};

static void drop_entries(kv_cache *c, kv_class class, uint32_t branch, uint32_t keep)
{
    kv_table *t = &c->branches[branch].table[class];
    for (; t->n > keep; t->n--) {
        if (t->n > t->first) c->pool[class].users[kv_entries(c, class, branch)[t->n - 1]]--;
    }
    if (t->first > t->n) t->first = t->n;
}

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
    uint32_t *entry = &kv_entries(x->c, x->class, x->op->branch)[x->op->a];
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
    uint32_t *table = kv_entries(x->c, x->class, x->op->branch);
    if (x->class != KV_CLASS_WINDOW) {
        return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u (release): class %s keeps all",
                          x->op_i, kv_class_word(x->class));
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
    uint32_t *table = kv_entries(c, x->class, x->op->branch);
    memcpy(table, kv_entries(c, x->class, x->op->b), n * sizeof *table);
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
                          kv_class_word(op->kv_class));
    }
    if ((op->kind == KV_OPEN || op->kind == KV_FREE) && op->kv_class != KV_CLASS_GLOBAL) {
        return errmsg_set(x.e, ST_PROTOCOL,
                          "KV operation %u (%s): class %u (%s), but it is the whole branch's",
                          x.op_i, op_words[op->kind], op->kv_class, kv_class_word(op->kv_class));
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
