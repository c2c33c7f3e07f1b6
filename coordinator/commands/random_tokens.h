/* random_tokens.h - prompts of no meaning, for gates and the benchmark: the same ones for the same
 * seed. */
#ifndef COORDINATOR_RANDOM_TOKENS_H
#define COORDINATOR_RANDOM_TOKENS_H

#include <stdint.h>

/* The next number of the stream (splitmix64). */
uint64_t random_next(uint64_t *state);

/* n ids below n_vocab (> 0). A longer list with the same seed begins with the shorter one. */
void random_tokens(uint32_t *out, uint32_t n, uint32_t n_vocab, uint64_t seed);

#endif
