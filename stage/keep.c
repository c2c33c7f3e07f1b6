#include "stage/keep.h"

#include <string.h>


/* Rows [from, from + n) of a step that stand at neighbouring places of one block. */
typedef struct {
    uint32_t from, n, block, at;
} run;

static bool next_run(const journal *j, const stage *s, const wire_row *rows, uint32_t n_rows, run *r)
{
    for (uint32_t i = r->from + r->n; i < n_rows; i++) {
        if ((rows[i].flags & ROW_LIVE) == 0) continue;
        uint32_t block = stage_block(s, &rows[i]);
        if (block >= j->n_blocks) continue;
        *r = (run){i, 1, block, rows[i].position % KV_BLOCK};
        while (i + r->n < n_rows && r->at + r->n < KV_BLOCK && (rows[i + r->n].flags & ROW_LIVE) != 0 &&
               rows[i + r->n].branch == rows[i].branch &&
               rows[i + r->n].position == rows[i].position + r->n) {
            r->n++;
        }
        return true;
    }
    return false;
}

static void commit(const journal *j, const run *r, uint64_t seq)
{
    for (uint32_t i = 0; i < r->n; i++)
        atomic_store_explicit(journal_commit(j, r->block, r->at + i), seq, memory_order_release);
}

void keep_begin(const journal *j, const stage *s, const wire_row *rows, uint32_t n_rows)
{
    if (j->map == NULL) return;
    for (run r = {0}; next_run(j, s, rows, n_rows, &r);) commit(j, &r, 0);
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

static status download_runs(const journal *j, const stage *s, const backend *b, backend_queue *q,
                            dev_ptr hidden, const wire_row *rows, uint32_t n_rows)
{
    uint64_t row_bytes = (uint64_t)j->n_embd * sizeof(float);
    for (run r = {0}; next_run(j, s, rows, n_rows, &r);) {
        TRY(b->download(q, journal_row(j, r.block, r.at), dev_offset(hidden, r.from * row_bytes),
                        r.n * row_bytes));
    }
    return finish(b, q);
}

status keep_rows(const journal *j, stage *s, const backend *b, uint64_t seq, const wire_row *rows,
                 uint32_t n_rows, errmsg *e)
{
    if (j->map == NULL || n_rows == 0) return ST_OK;
    status st = download_runs(j, s, b, stage_queue(s), stage_hidden(s), rows, n_rows);
    if (st != ST_OK) return device_failed(st, "keeping", e);
    for (run r = {0}; next_run(j, s, rows, n_rows, &r);) commit(j, &r, seq);
    return ST_OK;
}

status keep_holes(const journal *j, stage *s, const backend *b, uint64_t seq, const wire_row *rows,
                  uint32_t n_rows, errmsg *e)
{
    bool any = false;
    if (j->map == NULL) return ST_OK;
    for (run r = {0}; !any && next_run(j, s, rows, n_rows, &r);) {
        for (uint32_t i = 0; i < r.n; i++)
            any = any || atomic_load(journal_commit(j, r.block, r.at + i)) == 0;
    }
    if (!any) return ST_OK;
    keep_begin(j, s, rows, n_rows); /* the others give the same bits again */
    return keep_rows(j, s, b, seq, rows, n_rows, e);
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

void keep_copies(const journal *j, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops)
{
    for (uint32_t i = 0; j->map != NULL && i < n_ops; i++)
        if (ops[i].kind == KV_COPY && ops[i].kv_class == KV_CLASS_GLOBAL)
            copy_rows(j, seq, ops[i].a, ops[i].b, ops[i].c);
}

static kept what_is_there(const journal *j, const run *r, uint64_t seq)
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
    uint64_t row_bytes = (uint64_t)j->n_embd * sizeof(float);
    uint32_t n = 0;
    *out = KEPT_ALL;
    if (n_rows == 0) return ST_OK;
    for (run r = {0}; j->map != NULL && next_run(j, s, rows, n_rows, &r); n += r.n) {
        kept k = what_is_there(j, &r, seq);
        if (k == KEPT_NOT || (k == KEPT_OVERWRITTEN && !overwritten)) break;
        if (k == KEPT_OVERWRITTEN) *out = k;
        status st = b->upload(stage_queue(s), dev_offset(stage_hidden(s), r.from * row_bytes),
                              journal_row(j, r.block, r.at), r.n * row_bytes);
        if (st != ST_OK) return device_failed(st, "reading", e);
    }
    if (n < n_rows) *out = KEPT_NOT;
    status st = finish(b, stage_queue(s));
    return st == ST_OK ? ST_OK : device_failed(st, "reading", e);
}
