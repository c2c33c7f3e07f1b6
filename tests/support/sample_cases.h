/* sample_cases.h - seeded rows to draw tokens from: logits of many shapes (spread, tied, level,
 * with zeros of both signs), and samplers of all kinds. */
#ifndef TESTS_SUPPORT_SAMPLE_CASES_H
#define TESTS_SUPPORT_SAMPLE_CASES_H

#include "kernels/sample.h"
#include "tests/support/kernel_check.h"

/* Fill logits [n_vocab] (finite) and *row: a valid sampler, a history of tokens below n_vocab, no
 * stops, row_i 0. */
void sample_case(seeded *s, uint32_t n_vocab, float *logits, sample_row *row);

/* What the host draws for it. */
sample_result sample_wanted(const float *logits, uint32_t n_vocab, const sample_row *row);

#endif
