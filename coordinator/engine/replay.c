/* What lost stages must know again: for every branch of the mirror its tables and rows, in messages
 * that a stage takes like the chunks of a prompt. The blocks are those that the branch has, so that
 * what was shared is shared again.
 *
 * A prefix that an earlier branch has written whole is left out. Not with window layers: their
 * blocks have been let go of behind the window, so the branch walks through a ring of the ones it
 * still has and of free ones, and ends with every block where it was.
 *
 * A message holds rows of as many branches as have room: a chunk of few rows takes a device almost
 * as long as a full one. None has a block that another writes in it, so that nothing is written
 * twice or read as it is written; with window layers there is one branch to a message.
 *
 * A stage that replays alone reads its input from its journal, where rows are those of the last
 * step that wrote them; with a step in flight behind that, they need not be those of the mirror any
 * more. Nothing in flight reads them then (sessions that truncate, fork or end are quiet), but for
 * copies.
 *
 * A few messages are under way at a time: an answer makes room for the next. */
#include "coordinator/engine/engine.h"

#include "common/kvclass.h"

#include <stdlib.h>
#include <string.h>

#define UNDER_WAY 4u
#define OPS_MAX 512u

status replay_prepare(pipeline *p, errmsg *e)
{
    replay *r = &p->replay;
    r->whole = calloc(p->plan.n_blocks[KV_CLASS_GLOBAL], sizeof *r->whole);
    r->ring = calloc(p->window_blocks + 1, sizeof *r->ring);
    r->told = calloc(p->plan.n_blocks[KV_CLASS_GLOBAL], sizeof *r->told);
    r->users = calloc(p->plan.n_blocks[KV_CLASS_WINDOW] + 1, sizeof *r->users);
    if (r->whole == NULL || r->told == NULL || r->ring == NULL || r->users == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for the books of a replay");
    return ST_OK;
}

void replay_release(pipeline *p)
{
    free(p->replay.whole);
    free(p->replay.told);
    free(p->replay.ring);
    free(p->replay.users);
}

/* A step in flight copies a block: what stood there when it was issued, whatever a later step has
 * written there meanwhile. */
static bool copies_in_flight(const pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++) {
        if (p->flights[i].seq == 0) continue;
        step_view v = wire_step_body_view(p->flights[i].body);
        for (uint32_t k = 0; k < v.step->n_kv_ops; k++)
            if (v.kv_ops[k].kind == KV_COPY) return true;
    }
    return false;
}

void replay_begin(pipeline *p, bool through)
{
    replay *r = &p->replay;
    *r = (replay){.begun = true,
                  .through = through,
                  .may_be_overwritten = !copies_in_flight(p),
                  .whole = r->whole,
                  .told = r->told,
                  .ring = r->ring,
                  .users = r->users};
    memset(r->whole, 0, p->plan.n_blocks[KV_CLASS_GLOBAL] * sizeof *r->whole);
    memset(r->told, 0, p->plan.n_blocks[KV_CLASS_GLOBAL] * sizeof *r->told);
    for (uint32_t s = 0; s < p->n_stages; s++) {
        p->stage[s].n_replayed = 0;
        if (through) p->stage[s].empty = true; /* they forget what they have */
    }
}

/* --- a branch --------------------------------------------------------------------------------- */

/* The message being put together. */
typedef struct {
    pipeline *p;
    const mirror_branch *b;
    uint32_t n_ops;
    wire_kv_op op[OPS_MAX];
} draft;

static uint32_t blocks_of(uint32_t n_positions)
{
    return (n_positions + KV_BLOCK - 1) / KV_BLOCK;
}

static bool put(draft *d, kv_op_kind kind, kv_class class, uint32_t a, uint32_t b)
{
    if (d->n_ops == OPS_MAX) return false;
    d->op[d->n_ops++] = (wire_kv_op){.kind = (uint32_t)kind,
                                     .kv_class = (uint32_t)class,
                                     .branch = d->p->replay.branch,
                                     .generation = d->b->generation,
                                     .a = a,
                                     .b = b};
    return true;
}

/* Window block of entry i: ring[i % n_ring]. Its own where it has one, free ones elsewhere: a
 * session may come to hold as many as its ring has (kvbooks.h), so they are there. */
static void make_ring(pipeline *p, const mirror_table *t)
{
    replay *r = &p->replay;
    uint32_t next = 0;
    r->n_ring = t->n < p->window_blocks ? t->n : p->window_blocks;
    CHECK(t->n - t->first <= r->n_ring);
    mirror_users(&p->mirror, KV_CLASS_WINDOW, r->users);
    for (uint32_t i = t->n - r->n_ring; i < t->n; i++) {
        if (i >= t->first) {
            r->ring[i % r->n_ring] = t->block[i];
            continue;
        }
        while (next < p->plan.n_blocks[KV_CLASS_WINDOW] && r->users[next] != 0) next++;
        CHECK(next < p->plan.n_blocks[KV_CLASS_WINDOW]);
        r->ring[i % r->n_ring] = next++;
    }
}

static void begin_branch(pipeline *p, const mirror_branch *b)
{
    replay *r = &p->replay;
    const mirror_table *t = &b->table[KV_CLASS_GLOBAL];
    r->opened = true;
    r->end = b->n;
    r->position = r->first = 0;
    memset(r->n_entries, 0, sizeof r->n_entries);
    if (p->n_pools > KV_CLASS_WINDOW) {
        make_ring(p, &b->table[KV_CLASS_WINDOW]);
        return;
    }
    while (r->position < r->end && r->whole[t->block[r->position / KV_BLOCK]])
        r->position += KV_BLOCK;
    if (r->position > r->end) r->position = r->end;
}

/* Entries below n of the tables; false: the message is full before that. */
static bool extend(draft *d, kv_class class, uint32_t n)
{
    replay *r = &d->p->replay;
    for (uint32_t *i = &r->n_entries[class]; *i < n; ++*i) {
        bool window = class == KV_CLASS_WINDOW;
        if (d->n_ops + 2 > OPS_MAX) return false;
        if (window && *i - r->first == r->n_ring)
            (void)put(d, KV_RELEASE, class, ++r->first, 0);
        (void)put(d, KV_ALLOC, class, *i,
                  window ? r->ring[*i % r->n_ring] : d->b->table[class].block[*i]);
    }
    return true;
}

static bool extend_all(draft *d, uint32_t n_positions)
{
    for (uint32_t k = 0; k < d->p->n_pools; k++)
        if (!extend(d, (kv_class)k, blocks_of(n_positions))) return false;
    return true;
}

/* What the tables have beyond the rows (blocks of a prompt that is still to come), and what they
 * have let go of. */
static bool finish_tables(draft *d)
{
    replay *r = &d->p->replay;
    for (uint32_t k = 0; k < d->p->n_pools; k++)
        if (!extend(d, (kv_class)k, d->b->table[k].n)) return false;
    if (d->p->n_pools <= KV_CLASS_WINDOW) return true;
    uint32_t first = d->b->table[KV_CLASS_WINDOW].first;
    if (r->first < first && !put(d, KV_RELEASE, KV_CLASS_WINDOW, first, 0)) return false;
    return true;
}

static void end_branch(pipeline *p, const mirror_branch *b)
{
    for (uint32_t i = 0; i < b->n / KV_BLOCK; i++)
        p->replay.whole[b->table[KV_CLASS_GLOBAL].block[i]] = true;
    p->replay.branch++;
    p->replay.opened = false;
}

static bool next_branch(pipeline *p)
{
    const mirror *m = &p->mirror;
    uint32_t *b = &p->replay.branch;
    while (*b < m->n_branches && !m->branch[*b].open) ++*b;
    return *b < m->n_branches;
}

static uint32_t put_rows(pipeline *p, wire_row *rows, uint32_t end)
{
    replay *r = &p->replay;
    const mirror_table *t = &p->mirror.branch[r->branch].table[KV_CLASS_GLOBAL];
    uint32_t n = 0;
    for (; r->position < end; r->position++, n++) {
        r->told[t->block[r->position / KV_BLOCK]] = r->n_sent + 1;
        rows[n] = (wire_row){.session_step = r->position,
                             .generation = p->mirror.branch[r->branch].generation,
                             .branch = r->branch,
                             .position = r->position,
                             .token = mirror_token(&p->mirror, r->branch, r->position),
                             .flags = ROW_LIVE,
                             .readback = WIRE_NONE,
                             .sampler_i = WIRE_NONE,
                             .stop_i = WIRE_NONE,
                             .rounds = 1};
    }
    r->n_rows += n;
    return n;
}

/* Whether the branch may follow those that the message holds: it writes none of its blocks. */
static bool joins(const pipeline *p, const mirror_branch *b)
{
    const mirror_table *t = &b->table[KV_CLASS_GLOBAL];
    for (uint32_t i = 0; i < t->n; i++)
        if (p->replay.told[t->block[i]] == p->replay.n_sent + 1) return false;
    return true;
}

/* What there is room for of the branch in hand, behind n_rows rows; *ended: that was its end.
 * Returns the number of rows. */
static uint32_t put_branch(draft *d, wire_row *rows, uint32_t n_rows, bool *ended)
{
    pipeline *p = d->p;
    replay *r = &p->replay;
    uint32_t n = 0;
    *ended = false;
    d->b = &p->mirror.branch[r->branch];
    if (!r->opened) {
        if (!joins(p, d->b) || !put(d, KV_OPEN, KV_CLASS_GLOBAL, 0, 0)) return 0;
        begin_branch(p, d->b);
    }
    uint32_t left = r->end - r->position, room = p->plan.rows_max - n_rows;
    uint32_t end = r->position + (left < room ? left : room);
    if (extend_all(d, end)) n = put_rows(p, rows + n_rows, end);
    /* Operations come before rows: what is let go of at the end, these rows may still see. */
    bool sees = p->n_pools > KV_CLASS_WINDOW && n > 0;
    *ended = r->position == r->end && !sees && finish_tables(d);
    if (*ended) end_branch(p, d->b);
    return n;
}

/* The next message into p->frame: the body of a REPLAY. Returns its bytes. */
static uint64_t make_body(pipeline *p)
{
    replay *r = &p->replay;
    draft d = {.p = p};
    wire_step *step = (wire_step *)p->frame;
    *step = (wire_step){.slot = r->n_sent % 2, .rounds = 1, .n_groups = 1};
    if (r->n_sent == 0) step->flags |= STEP_RESET;
    if (r->through) step->flags |= STEP_THROUGH;
    if (r->may_be_overwritten) step->flags |= STEP_OVERWRITTEN;
    for (bool more = true; more && next_branch(p);) {
        step->n_rows += put_branch(&d, (wire_row *)(step + 1), step->n_rows, &more);
        more = more && p->n_pools <= KV_CLASS_WINDOW && step->n_rows < p->plan.rows_max;
    }
    r->over = !next_branch(p);
    step->n_kv_ops = d.n_ops;
    wire_kv_op *ops = (wire_kv_op *)((wire_row *)(step + 1) + step->n_rows);
    memcpy(ops, d.op, d.n_ops * sizeof *d.op);
    memcpy(ops + d.n_ops, &step->n_rows, sizeof step->n_rows); /* where the only group ends */
    return wire_step_bytes(step) - sizeof(wire_header);
}

/* --- messages and answers --------------------------------------------------------------------- */

static bool is_target(const pipeline *p, uint32_t s)
{
    return p->replay.through || p->stage[s].empty;
}

static uint32_t least_answered(const pipeline *p)
{
    uint32_t least = p->replay.n_sent;
    for (uint32_t s = 0; s < p->n_stages; s++)
        if (is_target(p, s) && p->stage[s].n_replayed < least) least = p->stage[s].n_replayed;
    return least;
}

status replay_turn(pipeline *p, bool *done, errmsg *e)
{
    replay *r = &p->replay;
    if (r->missing) {
        /* Answers to what is under way first: they are counted from the beginning again. */
        if (least_answered(p) == r->n_sent) replay_begin(p, true);
        return ST_OK;
    }
    while (!r->over && r->n_sent - least_answered(p) < UNDER_WAY) {
        uint64_t bytes = make_body(p);
        r->n_sent++;
        for (uint32_t s = 0; s < p->n_stages; s++)
            if (is_target(p, s))
                TRY(launch_send(p, s, WIRE_REPLAY, p->mirror.seq, p->frame, bytes, e));
    }
    *done = r->over && least_answered(p) == r->n_sent;
    return ST_OK;
}

bool replay_answer(pipeline *p, uint32_t s, const wire_replayed *r)
{
    stage_slot *t = &p->stage[s];
    if (!p->replay.begun || !is_target(p, s) || r->n != t->n_replayed + 1 ||
        r->n > p->replay.n_sent)
        return false;
    t->n_replayed++;
    if (r->missing != 0) p->replay.missing = true;
    return true;
}
