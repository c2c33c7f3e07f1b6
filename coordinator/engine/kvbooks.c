#include "coordinator/engine/kvbooks.h"

#include "common/kvclass.h"

#include <stdlib.h>
#include <string.h>

status kvbooks_open(pipeline *p, errmsg *e)
{
    p->blocks_per_ctx = plan_blocks_per_ctx(p->plan.n_ctx);
    p->window_blocks = plan_window_blocks(p->model, p->plan.n_ctx, p->plan.rows_max);
    p->n_pools = model_n_kinds(p->model);
    for (uint32_t k = 0; k < p->n_pools; k++)
        TRY(kvpool_open(&p->pool[k], p->plan.n_blocks[k], e));
    if (p->n_pools > KV_CLASS_WINDOW) return ST_OK;
    return prefix_open(&p->prefixes, &p->pool[KV_CLASS_GLOBAL], KV_BLOCK, e);
}

void kvbooks_close(pipeline *p)
{
    prefix_close(&p->prefixes);
    for (uint32_t k = 0; k < KV_POOLS; k++)
        kvpool_close(&p->pool[k]);
}

bool kvbooks_make(session *s)
{
    const pipeline *p = s->p;
    bool fine = true;
    for (uint32_t k = 0; k < p->n_pools; k++) {
        s->table[k].block = calloc(p->blocks_per_ctx, sizeof *s->table[k].block);
        fine = fine && s->table[k].block != NULL;
    }
    s->tokens = calloc(p->plan.n_ctx, sizeof *s->tokens);
    s->link = calloc(p->blocks_per_ctx, sizeof *s->link);
    return fine && s->tokens != NULL && s->link != NULL;
}

void kvbooks_free(session *s)
{
    for (uint32_t k = 0; k < KV_POOLS; k++)
        free(s->table[k].block);
    free(s->tokens);
    free(s->link);
}

status kvbooks_room(pipeline *p, uint64_t n, errmsg *e)
{
    uint64_t need = p->n_kv_ops + n;
    if (need <= p->kv_ops_room) return ST_OK;
    uint64_t room = 2 * need + 64;
    wire_kv_op *grown = room <= UINT32_MAX ? realloc(p->kv_ops, room * sizeof *grown) : NULL;
    if (grown == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for KV operations");
    p->kv_ops = grown;
    p->kv_ops_room = (uint32_t)room;
    return ST_OK;
}

void kvbooks_put(const session *s, kv_op_kind kind, kv_class class, uint32_t a, uint32_t b,
                 uint32_t c)
{
    pipeline *p = s->p;
    CHECK(p->n_kv_ops < p->kv_ops_room);
    p->n_ops_put++;
    p->kv_ops[p->n_kv_ops++] = (wire_kv_op){.kind = (uint32_t)kind,
                                            .kv_class = (uint32_t)class,
                                            .branch = s->branch,
                                            .generation = s->generation,
                                            .a = a,
                                            .b = b,
                                            .c = c};
}

static uint64_t blocks_of(uint64_t n_positions)
{
    return (n_positions + KV_BLOCK - 1) / KV_BLOCK;
}

/* The block that holds the next position was begun and is shared: it gets its own copy. */
static bool must_copy(const session *s, kv_class class, uint64_t position)
{
    const session_table *t = &s->table[class];
    return position % KV_BLOCK != 0 && s->p->pool[class].refs[t->block[t->n - 1]] > 1;
}

/* A free block, which is there; wiped first where it may hold what a poisoned session wrote. Room
 * for that operation too. */
static uint32_t take(const session *s, kv_class class)
{
    kvpool *pool = &s->p->pool[class];
    uint32_t block = kvpool_take(pool);
    CHECK(block != UINT32_MAX);
    if (kvpool_untaint(pool, block)) kvbooks_put(s, KV_WIPE, class, block, 0, 0);
    return block;
}

/* The table covers the positions below `end`, and what the next one lies in is its own. The blocks
 * and the room for their operations are there. */
static void grow(session *s, kv_class class, uint64_t position, uint64_t end)
{
    session_table *t = &s->table[class];
    kvpool *pool = &s->p->pool[class];
    if (end > position && must_copy(s, class, position)) {
        uint32_t old = t->block[t->n - 1], fresh = take(s, class);
        kvbooks_put(s, KV_COPY, class, fresh, old, (uint32_t)(position % KV_BLOCK));
        kvbooks_put(s, KV_ALLOC, class, t->n - 1, fresh, 0);
        kvpool_drop(pool, old);
        t->block[t->n - 1] = fresh;
    }
    for (; t->n < blocks_of(end); t->n++) {
        t->block[t->n] = take(s, class);
        kvbooks_put(s, KV_ALLOC, class, t->n, t->block[t->n], 0);
    }
}

/* --- admission --- */

static status no_blocks(const kvpool *pool, uint64_t n, errmsg *e)
{
    return errmsg_set(e, ST_RESOURCES,
                      "no KV block left: %llu more needed, %u of %u in use; drop a session or "
                      "raise --sessions or --kv-bytes",
                      (unsigned long long)n, pool->n_used, pool->n_blocks);
}

/* Window blocks that a session of n positions may come to hold. */
static uint32_t window_share(const pipeline *p, uint64_t n)
{
    uint64_t blocks = blocks_of(n);
    return blocks < p->window_blocks ? (uint32_t)blocks : p->window_blocks;
}

/* n window blocks beside what all sessions have reserved. */
static status window_left(const pipeline *p, uint32_t n, errmsg *e)
{
    if (n <= p->pool[KV_CLASS_WINDOW].n_blocks - p->n_window_reserved) return ST_OK;
    return errmsg_set(e, ST_RESOURCES,
                      "no window KV block left: %u more needed, %u of %u reserved; drop a session "
                      "or raise --sessions or --kv-bytes",
                      n, p->n_window_reserved, p->pool[KV_CLASS_WINDOW].n_blocks);
}

static void window_set(session *s, uint64_t n_positions)
{
    uint32_t share = window_share(s->p, n_positions);
    s->p->n_window_reserved += share - s->n_window_reserved;
    s->n_window_reserved = share;
}

uint32_t kvbooks_free_blocks(const pipeline *p)
{
    const kvpool *pool = &p->pool[KV_CLASS_GLOBAL];
    return pool->n_blocks - pool->n_used;
}

/* n global blocks are free, if need be after prefixes that nobody holds were let go. */
static bool make_free(pipeline *p, uint64_t n)
{
    while (kvbooks_free_blocks(p) < n)
        if (!prefix_evict(&p->prefixes)) return false;
    return true;
}

status kvbooks_reserve(session *s, uint64_t from, uint64_t end, errmsg *e)
{
    pipeline *p = s->p;
    uint64_t need = blocks_of(end), n_now = s->table[KV_CLASS_GLOBAL].n;
    uint64_t n_new = need > n_now ? need - n_now : 0;
    bool copies = end > from && n_now > 0 && must_copy(s, KV_CLASS_GLOBAL, from);
    if (!make_free(p, n_new + copies))
        return no_blocks(&p->pool[KV_CLASS_GLOBAL], n_new + copies, e);
    uint32_t share = window_share(p, end);
    if (share > s->n_window_reserved) TRY(window_left(p, share - s->n_window_reserved, e));
    TRY(kvbooks_room(p, 2 * n_new + 3, e));
    window_set(s, end);
    grow(s, KV_CLASS_GLOBAL, from, end);
    return ST_OK;
}

/* --- prefixes --- */

status kvbooks_adopt(session *s, const uint32_t *tokens, uint64_t n, errmsg *e)
{
    pipeline *p = s->p;
    session_table *t = &s->table[KV_CLASS_GLOBAL];
    prefix_link before = {0};
    if (p->n_pools > KV_CLASS_WINDOW || !s->share) return ST_OK;
    CHECK(t->n == 0 && s->n_adopted == 0);
    TRY(kvbooks_room(p, n / KV_BLOCK, e));
    while (s->n_adopted + KV_BLOCK <= n &&
           prefix_find(&p->prefixes, before, tokens + s->n_adopted, &before)) {
        kvpool_share(&p->pool[KV_CLASS_GLOBAL], before.block);
        kvbooks_put(s, KV_ALLOC, KV_CLASS_GLOBAL, t->n, before.block, KV_BLOCK);
        s->link[t->n] = before;
        t->block[t->n++] = before.block;
        s->n_adopted += KV_BLOCK;
    }
    s->n_links = t->n;
    s->adopted_at = p->n_ops_put;
    return ST_OK;
}

void kvbooks_offer(session *s, uint64_t n_done)
{
    pipeline *p = s->p;
    if (p->n_pools > KV_CLASS_WINDOW || !s->share) return;
    CHECK(n_done <= (uint64_t)s->table[KV_CLASS_GLOBAL].n * KV_BLOCK);
    for (; (s->n_links + 1ull) * KV_BLOCK <= n_done; s->n_links++) {
        uint32_t i = s->n_links;
        prefix_link before = i > 0 ? s->link[i - 1] : (prefix_link){0};
        const uint32_t *tokens = s->tokens + (uint64_t)i * KV_BLOCK;
        if (prefix_find(&p->prefixes, before, tokens, &s->link[i])) continue;
        if (!prefix_enter(&p->prefixes, s->table[KV_CLASS_GLOBAL].block[i], before, tokens,
                          &s->link[i]))
            return;
    }
}

/* --- windows --- */

static void release(session *s, uint32_t first)
{
    session_table *t = &s->table[KV_CLASS_WINDOW];
    kvbooks_put(s, KV_RELEASE, KV_CLASS_WINDOW, first, 0, 0);
    for (; t->first < first; t->first++)
        kvpool_drop(&s->p->pool[KV_CLASS_WINDOW], t->block[t->first]);
}

status kvbooks_slide(session *s, uint64_t position, uint32_t n_rows, errmsg *e)
{
    pipeline *p = s->p;
    session_table *t = &s->table[KV_CLASS_WINDOW];
    uint64_t end = blocks_of(position + n_rows);
    if (p->n_pools <= KV_CLASS_WINDOW) return ST_OK;
    TRY(kvbooks_room(p, (end > t->n ? 2 * (end - t->n) : 0) + 4, e));
    if (end > (uint64_t)t->first + p->window_blocks) {
        release(s, (uint32_t)(end - p->window_blocks));
        CHECK(!kvbooks_window_gone(s, position));
    }
    grow(s, KV_CLASS_WINDOW, position, position + n_rows);
    return ST_OK;
}

/* --- fork, truncate, drop --- */

status kvbooks_can_fork(const session *s, errmsg *e)
{
    const kvpool *pool = &s->p->pool[KV_CLASS_GLOBAL];
    if (s->position % KV_BLOCK != 0 && !make_free(s->p, 1)) {
        return errmsg_set(e, ST_RESOURCES, "no KV block left for a fork: %u of %u in use",
                          pool->n_used, pool->n_blocks);
    }
    return window_left(s->p, window_share(s->p, s->position), e);
}

static void fork_table(const session *s, session *to, kv_class class)
{
    const session_table *from = &s->table[class];
    session_table *t = &to->table[class];
    kvpool *pool = &s->p->pool[class];
    uint32_t n_whole = (uint32_t)(s->position / KV_BLOCK);
    uint32_t rest = (uint32_t)(s->position % KV_BLOCK);
    kvbooks_put(to, KV_FORK, class, n_whole * KV_BLOCK, s->branch, 0);
    t->first = from->first;
    for (uint32_t i = t->first; i < n_whole; i++) {
        kvpool_share(pool, from->block[i]);
        t->block[i] = from->block[i];
    }
    t->n = n_whole;
    if (rest > 0) {
        uint32_t fresh = take(to, class);
        kvbooks_put(to, KV_COPY, class, fresh, from->block[n_whole], rest);
        kvbooks_put(to, KV_ALLOC, class, n_whole, fresh, 0);
        t->block[t->n++] = fresh;
    }
}

void kvbooks_fork(const session *s, session *to)
{
    const pipeline *p = s->p;
    window_set(to, s->position);
    for (uint32_t k = 0; k < p->n_pools; k++)
        fork_table(s, to, (kv_class)k);
    to->n_links =
        s->n_links < s->position / KV_BLOCK ? s->n_links : (uint32_t)(s->position / KV_BLOCK);
    memcpy(to->link, s->link, to->n_links * sizeof *to->link);
}

/* Keep the first n entries; those that were released are not there to drop. */
static void shorten(session *s, kv_class class, uint64_t n)
{
    session_table *t = &s->table[class];
    for (; t->n > n; t->n--)
        if (t->n > t->first) kvpool_drop(&s->p->pool[class], t->block[t->n - 1]);
    if (t->first > t->n) t->first = t->n;
}

status kvbooks_truncate(session *s, uint64_t n, errmsg *e)
{
    pipeline *p = s->p;
    TRY(kvbooks_room(p, p->n_pools, e));
    for (uint32_t k = 0; k < p->n_pools; k++) {
        kvbooks_put(s, KV_TRUNCATE, (kv_class)k, (uint32_t)n, 0, 0);
        shorten(s, (kv_class)k, blocks_of(n));
    }
    if (s->n_links > n / KV_BLOCK) s->n_links = (uint32_t)(n / KV_BLOCK);
    if (s->n_adopted > n) s->n_adopted = n / KV_BLOCK * KV_BLOCK;
    window_set(s, n);
    return ST_OK;
}

bool kvbooks_window_gone(const session *s, uint64_t n)
{
    uint64_t window = s->p->model->window, begin = n + 1 > window ? n + 1 - window : 0;
    return n > 0 && begin / KV_BLOCK < s->table[KV_CLASS_WINDOW].first;
}

status kvbooks_can_renew(const session *s, uint64_t n, errmsg *e)
{
    const kvpool *pool = &s->p->pool[KV_CLASS_GLOBAL];
    const session_table *t = &s->table[KV_CLASS_GLOBAL];
    uint64_t n_free = pool->n_blocks - pool->n_used;
    for (uint32_t i = 0; i < t->n; i++)
        n_free += pool->refs[t->block[i]] == 1;
    return blocks_of(n) <= n_free ? ST_OK : no_blocks(pool, blocks_of(n) - n_free, e);
}

void kvbooks_taint(session *s, uint64_t position)
{
    pipeline *p = s->p;
    uint32_t from = (uint32_t)(position / KV_BLOCK);
    for (uint32_t k = 0; k < p->n_pools; k++) {
        const session_table *t = &s->table[k];
        for (uint32_t i = from > t->first ? from : t->first; i < t->n; i++) {
            kvpool_taint(&p->pool[k], t->block[i]);
            if (k == KV_CLASS_GLOBAL) prefix_forget(&p->prefixes, t->block[i]);
        }
    }
    if (s->n_links > from) s->n_links = from;
}

void kvbooks_drop(session *s)
{
    for (uint32_t k = 0; k < s->p->n_pools; k++)
        shorten(s, (kv_class)k, 0);
    window_set(s, 0);
}
