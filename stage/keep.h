/* keep.h - a stage's use of journals: it keeps what it sends, and reads what it was sent before.
 *
 * Owned by the worker thread. Rows are addressed by the KV block (class global) and position that
 * they have in this stage's own tables, so a KV_COPY copies rows of the journal too. A block that the
 * journal has no room for is not kept. Dead rows neither. A journal without a map keeps nothing. */
#ifndef STAGE_KEEP_H
#define STAGE_KEEP_H

#include "common/journal.h"
#include "common/wire.h"
#include "stage/stage.h"

/* Before these rows, which were given to stage_rows, are sent: what was kept in their places is void.
 * So a row that crossed is never taken for the one before it, whenever its sender is killed. */
void keep_begin(const journal *j, const stage *s, const wire_row *rows, uint32_t n_rows);

/* The rows of step seq, which the stage has sent: its hidden state [n_rows, n_embd], in their order.
 * Waits for the copy. Errors are the device's. */
MUST_USE status keep_rows(const journal *j, stage *s, const backend *b, uint64_t seq,
                          const wire_row *rows, uint32_t n_rows, errmsg *e);

/* The same for rows that a replacement has replayed as they were after step seq, where nothing whole is
 * kept: its predecessor was killed between send and keep. */
MUST_USE status keep_holes(const journal *j, stage *s, const backend *b, uint64_t seq,
                           const wire_row *rows, uint32_t n_rows, errmsg *e);

/* Step seq's KV operations were applied: what a COPY copied. Rows of that step or later ones in its
 * source (this is a step that is issued again) are not what was copied then: they are left out. */
void keep_copies(const journal *j, uint64_t seq, const wire_kv_op *ops, uint32_t n_ops);

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
