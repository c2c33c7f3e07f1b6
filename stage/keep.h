/* keep.h - a stage's use of journals: it keeps what it sends, and reads what it was sent before.
 *
 * Owned by the worker thread. Rows are addressed by the KV block (class global) and position that
 * they have in this stage's own tables, so a KV_COPY copies rows of the journal too. A block that the
 * journal has no room for is not kept. Dead rows neither. A journal without a map keeps nothing.
 *
 * Where a device works while the host does, rows that are to be kept leave it beside the work that
 * follows: many are copied on the device and from there into the journal (pinned.h); few, or where the
 * journal is not pinned, into memory that the device writes fast, and from that into the journal when
 * the host has nothing better to do (keep_land), which commits them either way. One step's rows are on
 * their way at a time: every call below that writes, voids or copies rows lets those land first. Rows
 * that had not landed when the process was killed are not in the journal. */
#ifndef STAGE_KEEP_H
#define STAGE_KEEP_H

#include "common/journal.h"
#include "common/wire.h"
#include "stage/pinned.h"
#include "stage/stage.h"

#define KEEP_FEW_BYTES (256u << 10) /* rows of fewer leave the device on the stage's own queue */

/* Rows [from, from + n) of a step that stand at neighbouring places of one block. */
typedef struct {
    uint32_t from, n, block, at;
} keep_run;

typedef struct {
    journal to;             /* its map NULL: nothing is kept */
    stage *s;
    const backend *b;
    pinned *pinned;         /* the journal's memory; NULL: none of it */
    uint64_t few_bytes;     /* KEEP_FEW_BYTES */
    keep_run *run;          /* [rows_max]: of the rows on their way */
    uint32_t n_runs;        /* 0: none are */
    bool few, there;        /* they leave at once; they go straight to their places */
    uint64_t seq;           /* of their step */
    backend_event left;     /* they are in host memory */
} keeper;

/* What stage s, whose steps have rows_max rows at most, sends is kept in the journal that fd holds; fd
 * below 0: in none. s must outlive it. Errors of journal_map, ST_RESOURCES; *out can be closed then. */
MUST_USE status keeper_open(keeper *out, int fd, stage *s, const backend *b, uint32_t rows_max, errmsg *e);
void keeper_close(keeper *k); /* rows on their way are not kept */

/* Before these rows, which were given to stage_rows, are sent: what was kept in their places is void.
 * So a row that crossed is never taken for the one before it, whenever its sender is killed. Errors
 * are the device's. */
MUST_USE status keep_begin(keeper *k, const wire_row *rows, uint32_t n_rows, errmsg *e);

/* The rows of step seq, which the stage has sent: its hidden state [n_rows, n_embd], in their order;
 * what is put on the queue afterwards may overwrite it. They are committed by keep_land, or at once
 * where ops run in their call. Errors are the device's. */
MUST_USE status keep_rows(keeper *k, uint64_t seq, const wire_row *rows, uint32_t n_rows, errmsg *e);

/* Whether rows are on their way; whether such that keep_land is a matter of microseconds; and their
 * arrival: waits for the device to have let them go. Errors are the device's. */
bool keep_flies(const keeper *k);
bool keep_is_soon(const keeper *k);
MUST_USE status keep_land(keeper *k, errmsg *e);

/* The same as keep_rows for rows that a replacement has replayed as they were after step seq, where
 * nothing whole is kept: its predecessor was killed before they landed. */
MUST_USE status keep_holes(keeper *k, uint64_t seq, const wire_row *rows, uint32_t n_rows, errmsg *e);

/* Step seq's KV operations were applied: what a COPY copied. Rows of that step or later ones in its
 * source (this is a step that is issued again) are not what was copied then: they are left out. Errors
 * are the device's. */
MUST_USE status keep_copies(keeper *k, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops, errmsg *e);

/* Fill the stage's hidden state for these rows, which were given to stage_rows, with what was kept of
 * them up to step seq. Errors are the device's. */
typedef enum {
    KEPT_ALL,
    KEPT_OVERWRITTEN, /* with `overwritten` only: some rows are those of later steps */
    KEPT_NOT          /* a row is not there, or, without `overwritten`, of a later step */
} kept;
MUST_USE status keep_read(const journal *j, stage *s, const backend *b, uint64_t seq, bool overwritten,
                          const wire_row *rows, uint32_t n_rows, kept *out, errmsg *e);

#endif
