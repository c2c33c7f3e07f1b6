#include "stage/keep.h"

#include <stdlib.h>
#include <string.h>

status keeper_open(keeper *out, int fd, stage *s, const backend *b, uint32_t rows_max, errmsg *e)
{
    *out = (keeper){.s = s, .b = b, .few_bytes = KEEP_FEW_BYTES};
    if (fd < 0) return ST_OK;
    TRY(journal_map(&out->to, fd, e));
    float *host;
    out->run = calloc(rows_max, sizeof *out->run);
    if (out->run == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for what goes to a journal");
    (void)stage_sent(s, &host);
    if (host == NULL) return ST_OK;
    return pinned_open(&out->pinned, b, stage_queue(s), out->to.map, out->to.bytes, e);
}

void keeper_close(keeper *k)
{
    /* A device that has failed writes nothing more. */
    if (k->n_runs > 0 && k->there) (void)k->b->event_wait(stage_queue(k->s), k->left);
    pinned_close(k->pinned);
    journal_unmap(&k->to);
    free(k->run);
    *k = (keeper){0};
}

static bool next_run(const journal *j, const stage *s, const wire_row *rows, uint32_t n_rows, keep_run *r)
{
    for (uint32_t i = r->from + r->n; i < n_rows; i++) {
        if ((rows[i].flags & ROW_LIVE) == 0) continue;
        uint32_t block = stage_block(s, &rows[i]);
        if (block >= j->n_blocks) continue;
        *r = (keep_run){i, 1, block, rows[i].position % KV_BLOCK};
        while (i + r->n < n_rows && r->at + r->n < KV_BLOCK && (rows[i + r->n].flags & ROW_LIVE) != 0 &&
               rows[i + r->n].branch == rows[i].branch &&
               rows[i + r->n].position == rows[i].position + r->n) {
            r->n++;
        }
        return true;
    }
    return false;
}

static void commit(const journal *j, const keep_run *r, uint64_t seq)
{
    for (uint32_t i = 0; i < r->n; i++)
        atomic_store_explicit(journal_commit(j, r->block, r->at + i), seq, memory_order_release);
}

static status finish(const backend *b, backend_queue *q)
{
    backend_event ev;
    TRY(b->event_record(q, &ev));
    return b->event_wait(q, ev);
}

static status device_failed(status s, const char *what, errmsg *e)
{
    return errmsg_set(e, s, "the device failed in %s rows of the journal", what);
}

static uint64_t row_bytes(const keeper *k)
{
    return (uint64_t)k->to.n_embd * sizeof(float);
}

status keep_begin(keeper *k, const wire_row *rows, uint32_t n_rows, errmsg *e)
{
    TRY(keep_land(k, e));
    if (k->to.map == NULL) return ST_OK;
    for (keep_run r = {0}; next_run(&k->to, k->s, rows, n_rows, &r);) commit(&k->to, &r, 0);
    return ST_OK;
}

/* --- out of the device ------------------------------------------------------------------------------ */

static status download_runs(const keeper *k, backend_queue *q, dev_ptr hidden)
{
    for (uint32_t i = 0; i < k->n_runs; i++) {
        const keep_run *r = &k->run[i];
        TRY(k->b->download(q, journal_row(&k->to, r->block, r->at), dev_offset(hidden, r->from * row_bytes(k)),
                           r->n * row_bytes(k)));
    }
    return finish(k->b, q);
}

/* Where in the journal's mapping row `at` of a block begins, and how many rows of run i and those behind
 * it follow each other there as they do in the step. */
static uint64_t place(const keeper *k, uint32_t block, uint32_t at)
{
    return (uint64_t)((char *)journal_row(&k->to, block, at) - (char *)k->to.map);
}

static uint32_t neighbours(const keeper *k, uint32_t i, uint32_t *n_rows)
{
    const keep_run *r = &k->run[i];
    uint32_t n = 1;
    *n_rows = r->n;
    for (; i + n < k->n_runs; n++) {
        const keep_run *last = r + n - 1, *next = r + n;
        bool follows = next->block == last->block + 1 && next->at == 0 && last->at + last->n == KV_BLOCK &&
                       next->from == last->from + last->n;
        if (!follows) break;
        *n_rows += next->n;
    }
    return n;
}

static bool all_pinned(const keeper *k)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < k->n_runs; i++) {
        uint64_t run_end = place(k, k->run[i].block, k->run[i].at) + k->run[i].n * row_bytes(k);
        if (run_end > end) end = run_end;
    }
    pinned_use(k->pinned, end);
    return end <= pinned_end(k->pinned);
}

/* The rows in `room` to their places. */
static status drain_there(keeper *k, backend_queue *q, dev_ptr room)
{
    for (uint32_t i = 0, n_rows; i < k->n_runs;) {
        const keep_run *r = &k->run[i];
        i += neighbours(k, i, &n_rows);
        uint64_t to = place(k, r->block, r->at), end = to + n_rows * row_bytes(k), from = r->from * row_bytes(k);
        while (to < end) {
            uint64_t border = (to / PINNED_PIECE_BYTES + 1) * PINNED_PIECE_BYTES;
            uint64_t bytes = (border < end ? border : end) - to;
            TRY(k->b->drain(q, (char *)k->to.map + to, dev_offset(room, from), bytes, &k->left));
            to += bytes;
            from += bytes;
        }
    }
    return ST_OK;
}

/* Behind what is on the queue, which goes on behind the first copy. */
static status send_off(keeper *k, backend_queue *q, dev_ptr hidden, dev_ptr room, float *host, uint64_t bytes)
{
    k->few = bytes <= k->few_bytes;
    k->there = all_pinned(k) && !k->few;
    if (k->few) {
        TRY(k->b->download(q, host, hidden, bytes));
        return k->b->event_record(q, &k->left);
    }
    TRY(k->b->copy(q, room, hidden, bytes));
    return k->there ? drain_there(k, q, room) : k->b->drain(q, host, room, bytes, &k->left);
}

status keep_rows(keeper *k, uint64_t seq, const wire_row *rows, uint32_t n_rows, errmsg *e)
{
    float *host;
    TRY(keep_land(k, e));
    if (k->to.map == NULL) return ST_OK;
    for (keep_run r = {0}; next_run(&k->to, k->s, rows, n_rows, &r);) k->run[k->n_runs++] = r;
    if (k->n_runs == 0) return ST_OK;
    backend_queue *q = stage_queue(k->s);
    const dev_ptr hidden = stage_hidden(k->s), room = stage_sent(k->s, &host);
    k->seq = seq;
    status st = host == NULL ? download_runs(k, q, hidden)
                             : send_off(k, q, hidden, room, host, n_rows * row_bytes(k));
    for (uint32_t i = 0; st == ST_OK && host == NULL && i < k->n_runs; i++) commit(&k->to, &k->run[i], seq);
    if (st != ST_OK || host == NULL) k->n_runs = 0;
    return st == ST_OK ? ST_OK : device_failed(st, "keeping", e);
}

bool keep_flies(const keeper *k)
{
    return k->n_runs > 0;
}

bool keep_is_soon(const keeper *k)
{
    return keep_flies(k) && (k->few || (k->there && k->b->event_done(stage_queue(k->s), k->left)));
}

status keep_land(keeper *k, errmsg *e)
{
    float *host;
    if (!keep_flies(k)) return ST_OK;
    status st = k->b->event_wait(stage_queue(k->s), k->left);
    if (st != ST_OK) return device_failed(st, "keeping", e);
    (void)stage_sent(k->s, &host);
    for (uint32_t i = 0; i < k->n_runs; i++) {
        const keep_run *r = &k->run[i];
        if (!k->there)
            memcpy(journal_row(&k->to, r->block, r->at), host + (uint64_t)r->from * k->to.n_embd,
                   r->n * row_bytes(k));
        commit(&k->to, r, k->seq);
    }
    k->n_runs = 0;
    return ST_OK;
}

status keep_holes(keeper *k, uint64_t seq, const wire_row *rows, uint32_t n_rows, errmsg *e)
{
    bool any = false;
    TRY(keep_land(k, e));
    if (k->to.map == NULL) return ST_OK;
    for (keep_run r = {0}; !any && next_run(&k->to, k->s, rows, n_rows, &r);) {
        for (uint32_t i = 0; i < r.n; i++)
            any = any || atomic_load(journal_commit(&k->to, r.block, r.at + i)) == 0;
    }
    if (!any) return ST_OK;
    TRY(keep_begin(k, rows, n_rows, e)); /* the others give the same bits again */
    return keep_rows(k, seq, rows, n_rows, e);
}

static void copy_rows(const journal *j, uint64_t seq, uint32_t to, uint32_t from, uint32_t n)
{
    for (uint32_t i = 0; to < j->n_blocks && i < n; i++) {
        uint64_t by = from < j->n_blocks
                          ? atomic_load_explicit(journal_commit(j, from, i), memory_order_acquire)
                          : 0;
        atomic_store_explicit(journal_commit(j, to, i), 0, memory_order_release);
        if (by == 0 || by >= seq) continue;
        memcpy(journal_row(j, to, i), journal_row(j, from, i), j->n_embd * sizeof(float));
        atomic_store_explicit(journal_commit(j, to, i), by, memory_order_release);
    }
}

status keep_copies(keeper *k, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops, errmsg *e)
{
    for (uint32_t i = 0; k->to.map != NULL && i < n_ops; i++) {
        if (ops[i].kind != KV_COPY || ops[i].kv_class != KV_CLASS_GLOBAL) continue;
        TRY(keep_land(k, e));
        copy_rows(&k->to, seq, ops[i].a, ops[i].b, ops[i].c);
    }
    return ST_OK;
}

/* --- and in again ------------------------------------------------------------------------------------ */

static kept what_is_there(const journal *j, const keep_run *r, uint64_t seq)
{
    kept k = KEPT_ALL;
    for (uint32_t i = 0; i < r->n; i++) {
        uint64_t by = atomic_load_explicit(journal_commit(j, r->block, r->at + i), memory_order_acquire);
        if (by == 0) return KEPT_NOT;
        if (by > seq) k = KEPT_OVERWRITTEN;
    }
    return k;
}

status keep_read(const journal *j, stage *s, const backend *b, uint64_t seq, bool overwritten,
                 const wire_row *rows, uint32_t n_rows, kept *out, errmsg *e)
{
    uint64_t bytes = (uint64_t)j->n_embd * sizeof(float); /* of a row */
    uint32_t n = 0;
    *out = KEPT_ALL;
    if (n_rows == 0) return ST_OK;
    for (keep_run r = {0}; j->map != NULL && next_run(j, s, rows, n_rows, &r); n += r.n) {
        kept k = what_is_there(j, &r, seq);
        if (k == KEPT_NOT || (k == KEPT_OVERWRITTEN && !overwritten)) break;
        if (k == KEPT_OVERWRITTEN) *out = k;
        status st = b->upload(stage_queue(s), dev_offset(stage_hidden(s), r.from * bytes),
                              journal_row(j, r.block, r.at), r.n * bytes);
        if (st != ST_OK) return device_failed(st, "reading", e);
    }
    if (n < n_rows) *out = KEPT_NOT;
    status st = finish(b, stage_queue(s));
    return st == ST_OK ? ST_OK : device_failed(st, "reading", e);
}
