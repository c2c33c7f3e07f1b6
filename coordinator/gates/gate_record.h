/* gate_record.h - what a walk gave: logits and tokens by row, and their comparison bit by bit.
 *
 * A row is one token of the gate's work, in the order of its position; every arm fills the same
 * rows, whatever way it took. The reference owns one record, an arm another of the same size. */
#ifndef COORDINATOR_GATE_RECORD_H
#define COORDINATOR_GATE_RECORD_H

#include "common/sampler.h"
#include "coordinator/gates/gate_report.h"

typedef struct {
    uint32_t n_rows, n_vocab;
    float *logits;    /* [n_rows, n_vocab] */
    uint32_t *tokens; /* [n_rows]: drawn after the row; TOKEN_NONE: none was */
    bool *filled;     /* [n_rows] */
} gate_record;

/* An empty record. ST_RESOURCES with *e; gate_record_close on an all-zero record is legal. */
MUST_USE status gate_record_open(gate_record *out, uint32_t n_rows, uint32_t n_vocab, errmsg *e);
void gate_record_close(gate_record *r);

/* Nothing is filled any more (the arm is walked again). */
void gate_record_clear(gate_record *r);

/* Where the n logits rows from row `row` go; they count as filled. */
float *gate_record_rows(gate_record *r, uint32_t row, uint32_t n);

/* The two change places: what was walked becomes the reference. */
void gate_record_swap(gate_record *a, gate_record *b);

/* Compare what `got` filled of the rows [begin, end) with the reference; every row must be filled
 * in both. Adds to the arm's counts; the first value that differs makes it red by row, column, both
 * values and their bits. */
void gate_record_compare(gate_arm *a, const gate_record *reference, const gate_record *got,
                         uint32_t begin, uint32_t end);

#endif
