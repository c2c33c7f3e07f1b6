#include "coordinator/engine/mirror.h"

#include "common/kvclass.h"

#include <stdlib.h>
#include <string.h>

status mirror_open(mirror *out, const plan *p, uint32_t n_pools, errmsg *e)
{
    *out = (mirror){.n_branches = p->n_sessions,
                    .per_ctx = plan_blocks_per_ctx(p->n_ctx),
                    .n_pools = n_pools};
    memcpy(out->n_blocks, p->n_blocks, sizeof out->n_blocks);
    uint64_t per_branch = (uint64_t)n_pools * out->per_ctx;
    uint32_t n_blocks = p->n_blocks[KV_CLASS_GLOBAL];
    out->branch = calloc(out->n_branches, sizeof *out->branch);
    out->entries = calloc(out->n_branches * per_branch, sizeof *out->entries);
    out->token = calloc((size_t)n_blocks * KV_BLOCK, sizeof *out->token);
    out->copied = calloc(n_blocks, sizeof *out->copied);
    if (out->branch == NULL || out->entries == NULL || out->token == NULL || out->copied == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for the mirror of the stages' tables");
    for (uint32_t b = 0; b < out->n_branches; b++) {
        for (uint32_t k = 0; k < n_pools; k++)
            out->branch[b].table[k].block =
                out->entries + b * per_branch + (uint64_t)k * out->per_ctx;
    }
    return ST_OK;
}

void mirror_close(mirror *m)
{
    free(m->branch);
    free(m->entries);
    free(m->token);
    free(m->copied);
    *m = (mirror){0};
}

/* --- operations ------------------------------------------------------------------------------- */

static void shorten(mirror_table *t, uint32_t n)
{
    if (t->n > n) t->n = n;
    if (t->first > t->n) t->first = t->n;
}

static void empty(mirror *m, mirror_branch *b)
{
    b->n = 0;
    for (uint32_t k = 0; k < m->n_pools; k++) b->table[k].first = b->table[k].n = 0;
}

/* held: positions of the block that hold the branch's rows, for it was another's (a shared
 * prefix). */
static void alloc(mirror *m, mirror_branch *b, kv_class class, uint32_t entry, uint32_t block,
                  uint32_t held)
{
    mirror_table *t = &b->table[class];
    CHECK(entry <= t->n && entry >= t->first && block < m->n_blocks[class]);
    t->block[entry] = block;
    if (entry == t->n) t->n++;
    if (class != KV_CLASS_GLOBAL) return;
    uint32_t end = entry * KV_BLOCK + (held > m->copied[block] ? held : m->copied[block]);
    if (b->n >= entry * KV_BLOCK && end > b->n) b->n = end;
    m->copied[block] = 0;
}

static void fork_table(mirror *m, mirror_branch *b, kv_class class, uint32_t parent, uint32_t n)
{
    mirror_table *t = &b->table[class];
    const mirror_table *from = &m->branch[parent].table[class];
    CHECK(t->n == 0 && n <= from->n);
    memcpy(t->block, from->block, n * sizeof *t->block);
    t->n = n;
    t->first = from->first < n ? from->first : n;
    if (class == KV_CLASS_GLOBAL) b->n = n * KV_BLOCK;
}

static void copy(mirror *m, kv_class class, uint32_t to, uint32_t from, uint32_t n)
{
    if (class != KV_CLASS_GLOBAL) return; /* tokens go with the global class */
    CHECK(to < m->n_blocks[class] && from < m->n_blocks[class] && n <= KV_BLOCK);
    memcpy(&m->token[(uint64_t)to * KV_BLOCK], &m->token[(uint64_t)from * KV_BLOCK],
           n * sizeof *m->token);
    m->copied[to] = n;
}

static void apply(mirror *m, const wire_kv_op *op)
{
    CHECK(op->branch < m->n_branches && op->kv_class < m->n_pools);
    mirror_branch *b = &m->branch[op->branch];
    mirror_table *t = &b->table[op->kv_class];
    kv_class class = (kv_class)op->kv_class;
    switch ((kv_op_kind)op->kind) {
    case KV_OPEN:
        b->open = true;
        b->generation = op->generation;
        empty(m, b);
        return;
    case KV_ALLOC:
        alloc(m, b, class, op->a, op->b, op->c);
        return;
    case KV_FREE:
        b->open = false;
        empty(m, b);
        return;
    case KV_TRUNCATE:
        shorten(t, plan_blocks_per_ctx(op->a));
        if (class == KV_CLASS_GLOBAL && b->n > op->a) b->n = op->a;
        return;
    case KV_RELEASE:
        CHECK(op->a <= t->n);
        if (op->a > t->first) t->first = op->a;
        return;
    case KV_FORK:
        fork_table(m, b, class, op->b, op->a / KV_BLOCK);
        return;
    case KV_COPY:
        copy(m, class, op->a, op->b, op->c);
        return;
    case KV_WIPE:
        return; /* bytes of a block that no row stands in */
    case KV_SNAPSHOT:
    case KV_RESTORE:
    case KV_OP_COUNT:
        break;
    }
    CHECK(op->kind < KV_SNAPSHOT);
}

void mirror_row(mirror *m, uint32_t branch, uint32_t position, uint32_t token)
{
    mirror_branch *b = &m->branch[branch];
    const mirror_table *t = &b->table[KV_CLASS_GLOBAL];
    CHECK(b->open && position / KV_BLOCK < t->n);
    uint64_t block = t->block[position / KV_BLOCK];
    m->token[block * KV_BLOCK + position % KV_BLOCK] = token;
    b->n = position + 1;
}

void mirror_step(mirror *m, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops,
                 const wire_row *rows, uint32_t n_rows)
{
    CHECK(seq > m->seq);
    m->seq = seq;
    for (uint32_t i = 0; i < n_ops; i++) apply(m, &ops[i]);
    for (uint32_t i = 0; i < n_rows; i++)
        if ((rows[i].flags & ROW_LIVE) != 0)
            mirror_row(m, rows[i].branch, rows[i].position, rows[i].token);
}

uint32_t mirror_token(const mirror *m, uint32_t branch, uint32_t position)
{
    const mirror_branch *b = &m->branch[branch];
    CHECK(position < b->n);
    uint64_t block = b->table[KV_CLASS_GLOBAL].block[position / KV_BLOCK];
    return m->token[block * KV_BLOCK + position % KV_BLOCK];
}

void mirror_users(const mirror *m, kv_class class, uint32_t *users)
{
    memset(users, 0, m->n_blocks[class] * sizeof *users);
    for (uint32_t i = 0; i < m->n_branches; i++) {
        const mirror_table *t = &m->branch[i].table[class];
        for (uint32_t k = t->first; m->branch[i].open && k < t->n; k++) users[t->block[k]]++;
    }
}
