/* sampler.h - a token drawn from a row's logits: a pure function of logits, history, seed, position.
 *
 * Order: repetition, frequency and presence penalties over the last `penalty_last_n` tokens of the
 * history; temperature 0 (or a top_k of 1) takes the largest (ties: the lowest id); otherwise
 * top-k, top-p, min-p on the softmax of logits / temperature in descending order (ties: lower id
 * first), then one draw with a counter-based random number of (seed, position). No state: the same
 * inputs give the same token on every machine and path (own exp, ordered sums in double). */
#ifndef COMMON_SAMPLER_H
#define COMMON_SAMPLER_H

#include "common/status.h"

#include <stdint.h>

#define TOKEN_NONE UINT32_MAX

typedef struct {
    float temperature;        /* 0: greedy; >= 0, finite */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1); 0: off */
    float repetition_penalty; /* > 0; 1: off */
    float frequency_penalty, presence_penalty; /* 0: off */
    uint32_t top_k;           /* 0: off */
    uint32_t penalty_last_n;  /* tokens of history that count, <= SAMPLER_HISTORY_MAX */
    uint64_t seed;
} sampler_params;
#define SAMPLER_HISTORY_MAX 256u

/* Greedy, nothing else on. */
sampler_params sampler_default(void);

/* ST_USAGE with *e naming the field when a value is out of its range. */
MUST_USE status sampler_valid(const sampler_params *p, errmsg *e);

/* Bytes of scratch that sampler_draw needs for n_vocab. */
uint64_t sampler_scratch_bytes(uint32_t n_vocab);

/* Draw the token that follows position `position` (the position of the row whose logits these are).
 * history: the n_history latest tokens, oldest first, the row's own token last. ST_NAN when any
 * logit is NaN or infinite; *out is TOKEN_NONE then. */
MUST_USE status sampler_draw(uint32_t *out, const float *logits, uint32_t n_vocab,
                             const sampler_params *p, const uint32_t *history, uint32_t n_history,
                             uint64_t position, void *scratch);

#endif
