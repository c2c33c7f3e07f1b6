/* ngram.h - drafts by prompt lookup: what followed the last few tokens when they stood there
 * before.
 *
 * An index of a sequence that only grows: for each n-gram (NGRAM_LENGTHS lengths, the longest
 * first) where it ended last, in tables that remember one of those whose hashes collide. What is
 * found is compared before it is used, and copied token by token, so that a repetition shorter than
 * the draft goes on repeating. A pure function of the tokens. */
#ifndef COORDINATOR_NGRAM_H
#define COORDINATOR_NGRAM_H

#include "coordinator/draft.h"

#define NGRAM_LENGTHS     2u /* lengths: NGRAM_MAX, and one less for each further */
#define NGRAM_MAX  3u

typedef struct ngram_index ngram_index;

/* For a sequence of at most n_max tokens; NULL: no memory. close(NULL) is legal. */
ngram_index *ngram_index_open(uint64_t n_max);
void ngram_index_close(ngram_index *d);

/* Fill out with up to `room` tokens that may follow tokens [n], and say how many: room, or 0 where
 * nothing is found. n <= n_max; the tokens of an earlier call are a beginning of these. */
uint32_t ngram_index_guess(ngram_index *d, const uint32_t *tokens, uint64_t n, uint32_t *out,
                           uint32_t room);

/* The source that looks up each generation's own tokens. */
extern draft_source ngram_source;

#endif
