/* chunk.h - how long the chunks of prompts are, where nobody asks for a length.
 *
 * Chunks of equal cost: a row costs its products and, growing with its position, its attention, so
 * that later chunks are shorter. With N stages the last one is through after the cost of all chunks
 * and N - 1 times that of the longest; a chunk costs something beside its rows (its weights are
 * read, its messages sent), as much as `overhead` rows. Of a prompt of n rows the best number of
 * chunks is then sqrt((N - 1) n / overhead), whatever their order: a shorter first or last one
 * gains nothing where equal ones stand between. Costs are in rows at position 0. Pure functions. */
#ifndef COORDINATOR_CHUNK_H
#define COORDINATOR_CHUNK_H

#include "common/plan.h"

typedef struct {
    uint32_t n_stages, rows_max;
    double attention; /* what each position before it adds to a row's cost */
    double overhead;
} chunk_costs;

chunk_costs chunk_costs_of(const model_desc *m, const plan *p);

/* Cost of rows [position, position + n). */
double chunk_cost(const chunk_costs *c, uint64_t position, uint64_t n);

/* Rows from `position` on that cost at most `cost`; one at least, rows_max at most. */
uint32_t chunk_rows(const chunk_costs *c, uint64_t position, double cost);

/* What a chunk should cost while prompts of n_rows rows that cost all_cost in all are to be
 * read. */
double chunk_budget(const chunk_costs *c, uint64_t n_rows, double all_cost);

#endif
