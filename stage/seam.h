/* seam.h - the stage objects of one process: one, or, where MEMRA_PP_STREAMS=0 puts a whole
 * pipeline into one process, all of them, one behind the other on one device and one queue.
 *
 * Between two of them the hidden state is copied on the queue: no slots, no signals, nobody waits.
 * It counts as a crossing of their boundary, in slot 0. Whatever the process is told goes to each
 * of them in turn; rows go in at the first and come out of the last. Each has words of its own in
 * the run block, of which the process's stage shows where it is, and all count. With one object it
 * is that object.
 *
 * Owned by the worker thread. */
#ifndef STAGE_SEAM_H
#define STAGE_SEAM_H

#include "common/runblock.h"
#include "stage/stage.h"

typedef struct {
    uint32_t n;
    stage *body[STAGES_MAX];
    stage_words *words[STAGES_MAX];
    uint64_t walked_ns[STAGES_MAX]; /* in the last seam_walk */
    const backend *backend;
    uint64_t row_bytes; /* of a crossing */
    /* progress of loading, over all objects */
    stage_progress on_progress;
    void *progress_ctx;
    uint64_t loaded_before, load_total;
} seam;

/* Open the objects that o->config asks for; words: the process's stage and those behind it. Errors
 * of stage_open. *out can be closed in every case. */
MUST_USE status seam_open(seam *out, const stage_options *o, stage_words *words, errmsg *e);
void seam_close(seam *x);

static inline stage *seam_first(const seam *x)
{
    return x->body[0];
}

static inline stage *seam_last(const seam *x)
{
    return x->body[x->n - 1];
}

/* Bytes of all objects together. */
stage_facts seam_facts(const seam *x);

/* As the calls of stage.h, of every object. */
MUST_USE status seam_kv_ops(seam *x, const wire_kv_op *ops, uint32_t n_ops, errmsg *e);
MUST_USE status seam_rows(seam *x, const wire_row *rows, uint32_t n_rows, uint32_t n_samplers,
                          errmsg *e);
void seam_reset(seam *x);
void seam_rewrite(seam *x, bool on);

/* The layers of all objects over n_rows rows, which are in the first one's hidden state; the last
 * one's holds the result. */
MUST_USE status seam_walk(seam *x, uint32_t n_rows, bool head_follows, poison_mark *poison,
                          errmsg *e);

#endif
