#include "stage/kv.h"

#include <string.h>

_Static_assert(KV_BLOCK == 64, "common/plan.c repeats it");

static const char *const op_words[KV_OP_COUNT] = {
    [KV_OPEN] = "open",         [KV_ALLOC] = "alloc",       [KV_FREE] = "free",
    [KV_TRUNCATE] = "truncate", [KV_FORK] = "fork",         [KV_COPY] = "copy",
    [KV_WIPE] = "wipe",         [KV_SNAPSHOT] = "snapshot", [KV_RESTORE] = "restore",
};

static const char *const class_words[KV_CLASS_COUNT] = {
    [KV_CLASS_GLOBAL] = "global",
    [KV_CLASS_WINDOW] = "window",
    [KV_CLASS_STATE] = "state",
    [KV_CLASS_DRAFT] = "draft",
};

status kv_open(kv_cache *out, const backend *b, backend_device *device, const model_desc *m,
               uint32_t n_layers, dtype type, const stage_limits *l, char *host,
               const host_layout *at, errmsg *e)
{
    *out = (kv_cache){
        .b = b,
        .device = device,
        .n_ctx = l->n_ctx,
        .n_branches = l->n_branches,
        .n_blocks = l->n_blocks,
        .per_ctx = plan_blocks_per_ctx(l->n_ctx),
        .n_layers = n_layers,
        .type = type,
        .n_kv_heads = m->n_kv_heads,
        .n_head = m->n_head,
        .branches = (kv_branch *)(host + at->branches),
        .tables = (uint32_t *)(host + at->branch_tables),
        .users = (uint32_t *)(host + at->block_users),
        .history = l->last_stage ? (uint32_t *)(host + at->history) : NULL,
    };
    uint64_t bytes = plan_kv_bytes(m, n_layers, l->n_blocks, type);
    TRY(b->alloc(device, &out->pools, bytes, e));
    out->bytes = bytes;
    out->pool_bytes = bytes / (2 * (uint64_t)n_layers);
    return ST_OK;
}

void kv_close(kv_cache *c)
{
    if (c->pools.addr != 0) c->b->free(c->device, c->pools, c->bytes);
    c->pools = (dev_ptr){0};
}

kv_args kv_layer(const kv_cache *c, uint32_t layer_i)
{
    dev_ptr k = dev_offset(c->pools, 2 * (uint64_t)layer_i * c->pool_bytes);
    return (kv_args){k, dev_offset(k, c->pool_bytes), c->type, c->n_kv_heads, c->n_head};
}

static uint32_t *table_of(const kv_cache *c, uint32_t branch)
{
    return &c->tables[(uint64_t)branch * c->per_ctx];
}

static void drop_entries(kv_cache *c, uint32_t branch, uint32_t keep)
{
    kv_branch *b = &c->branches[branch];
    for (; b->n_entries > keep; b->n_entries--)
        c->users[table_of(c, branch)[b->n_entries - 1]]--;
}

/* --- operations --- */

typedef struct {
    kv_cache *c;
    backend_queue *q;
    const wire_kv_op *op;
    uint32_t op_i;
    errmsg *e;
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
    TRY(below(x, field, block, x->c->n_blocks));
    return at_most(x, "number of tables with block a", x->c->users[block], 1);
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
    kv_cache *c = x->c;
    TRY(is_current(x));
    kv_branch *b = &c->branches[x->op->branch];
    TRY(below(x, "entry a", x->op->a, c->per_ctx));
    TRY(at_most(x, "entry a", x->op->a, b->n_entries));
    TRY(below(x, "block b", x->op->b, c->n_blocks));
    uint32_t *entry = &table_of(c, x->op->branch)[x->op->a];
    if (x->op->a < b->n_entries) {
        c->users[*entry]--;
    } else {
        b->n_entries++;
    }
    *entry = x->op->b;
    c->users[*entry]++;
    return ST_OK;
}

static status op_free(const op_context *x)
{
    TRY(is_current(x));
    drop_entries(x->c, x->op->branch, 0);
    x->c->branches[x->op->branch].open = 0;
    return ST_OK;
}

static status op_truncate(const op_context *x)
{
    TRY(is_current(x));
    TRY(at_most(x, "position a", x->op->a, x->c->n_ctx));
    drop_entries(x->c, x->op->branch, plan_blocks_per_ctx(x->op->a));
    return ST_OK;
}

static status op_fork(const op_context *x)
{
    kv_cache *c = x->c;
    uint32_t n = x->op->a / KV_BLOCK;
    TRY(is_current(x));
    TRY(is_open(x, "parent b", x->op->b));
    kv_branch *b = &c->branches[x->op->branch];
    if (x->op->b == x->op->branch || b->n_entries != 0) {
        return refuse(x, "branch", x->op->branch, "must be empty and not its parent", x->op->b);
    }
    TRY(at_most(x, "number of blocks a / KV_BLOCK", n, c->branches[x->op->b].n_entries));
    memcpy(table_of(c, x->op->branch), table_of(c, x->op->b), n * sizeof(uint32_t));
    b->n_entries = n;
    for (uint32_t i = 0; i < n; i++)
        c->users[table_of(c, x->op->branch)[i]]++;
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
    TRY(below(x, "block b", op->b, c->n_blocks));
    TRY(at_most(x, "number of positions c", op->c, KV_BLOCK));
    if (op->a == op->b) return refuse(x, "block a", op->a, "is block b", op->b);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        kv_args layer = kv_layer(c, i);
        status s = c->b->kv_copy_block(x->q, &layer, op->a, op->b, op->c);
        if (s != ST_OK) return device_failed(x, s, i);
    }
    if (c->history != NULL) {
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
        kv_args layer = kv_layer(c, i);
        status s = c->b->kv_wipe_block(x->q, &layer, x->op->a);
        if (s != ST_OK) return device_failed(x, s, i);
    }
    if (c->history != NULL) {
        memset(&c->history[(uint64_t)x->op->a * KV_BLOCK], 0, KV_BLOCK * sizeof(uint32_t));
    }
    return ST_OK;
}

static status (*const op_table[KV_OP_COUNT])(const op_context *x) = {
    [KV_OPEN] = op_open, [KV_ALLOC] = op_alloc, [KV_FREE] = op_free, [KV_TRUNCATE] = op_truncate,
    [KV_FORK] = op_fork, [KV_COPY] = op_copy,   [KV_WIPE] = op_wipe,
};

static status apply(const op_context *x)
{
    const wire_kv_op *op = x->op;
    if (op->kind >= KV_OP_COUNT) {
        return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u: kind %u is none", x->op_i, op->kind);
    }
    if (op_table[op->kind] == NULL) {
        return errmsg_set(x->e, ST_PROTOCOL,
                          "KV operation %u (%s): this model has no recurrent state to keep",
                          x->op_i, op_words[op->kind]);
    }
    if (op->kv_class != KV_CLASS_GLOBAL) {
        return errmsg_set(x->e, ST_PROTOCOL, "KV operation %u (%s): class %u (%s) has no blocks",
                          x->op_i, op_words[op->kind], op->kv_class,
                          op->kv_class < KV_CLASS_COUNT ? class_words[op->kv_class] : "unknown");
    }
    return op_table[op->kind](x);
}

status kv_ops(kv_cache *c, backend_queue *q, const wire_kv_op *ops, uint32_t n_ops, errmsg *e)
{
    for (uint32_t i = 0; i < n_ops; i++)
        TRY(apply(&(op_context){c, q, &ops[i], i, e}));
    return ST_OK;
}

/* --- the rows of a step --- */

void kv_step_begin(kv_cache *c)
{
    c->step++;
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
    if (r->position / KV_BLOCK >= b->n_entries) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u is not below %u, where branch %u's blocks end",
                          row_i, r->position, b->n_entries * KV_BLOCK, r->branch);
    }
    uint32_t block = table_of(c, r->branch)[r->position / KV_BLOCK];
    if (c->users[block] > 1) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u of branch %u lies in block %u, which is shared",
                          row_i, r->position, r->branch, block);
    }
    if (b->step == c->step && r->position <= b->last_position) {
        return errmsg_set(e, ST_PROTOCOL,
                          "row %u: position %u of branch %u comes after position %u in one step",
                          row_i, r->position, r->branch, b->last_position);
    }
    if (b->step != c->step) b->step_table = WIRE_NONE;
    b->step = c->step;
    b->last_position = r->position;
    return ST_OK;
}

uint32_t kv_row_place(kv_cache *c, const wire_row *r, uint32_t *tables, uint32_t *n_used)
{
    kv_branch *b = &c->branches[r->branch];
    const uint32_t *table = table_of(c, r->branch);
    if (b->step_table == WIRE_NONE) {
        memcpy(&tables[*n_used], table, b->n_entries * sizeof(uint32_t));
        b->step_table = *n_used;
        *n_used += b->n_entries;
    }
    if (c->history != NULL) {
        uint64_t block = table[r->position / KV_BLOCK];
        c->history[block * KV_BLOCK + r->position % KV_BLOCK] = r->token;
    }
    return b->step_table;
}

void kv_history(const kv_cache *c, uint32_t branch, uint32_t position, uint32_t *out, uint32_t n)
{
    CHECK(c->history != NULL && n <= position + 1);
    const uint32_t *table = table_of(c, branch);
    uint32_t from = position + 1 - n;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t block = table[(from + i) / KV_BLOCK];
        out[i] = c->history[block * KV_BLOCK + (from + i) % KV_BLOCK];
    }
}
