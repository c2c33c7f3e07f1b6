/* tokens.h - what tests of tokenizers ask: a text's ids, and that they are these. */
#ifndef TESTS_SUPPORT_TOKENS_H
#define TESTS_SUPPORT_TOKENS_H

#include "coordinator/text/tokenizer.h"

/* The ids of a text, owned by the caller; fails the test on an error or an id that is no token. */
uint32_t *tokens_encode(const tokenizer *tok, const char *text, uint64_t bytes, tokenize_options o,
                        uint64_t *n);

/* Fails the test, printing what came instead, unless the ids are `wanted`, which ends with
 * `end`. */
void tokens_expect(const tokenizer *tok, const char *text, uint64_t bytes, tokenize_options o,
                   const uint32_t *wanted, uint32_t end);

#endif
