/* sampler.h - a token drawn from a row's logits.
 *
 * A pure function of logits, history, seed and position.
 *
 * Order: repetition, frequency and presence penalties over the last `penalty_last_n` tokens of the
 * history; temperature 0 (or a top_k of 1) takes the largest (ties: the lowest id); otherwise
 * top-k, top-p, min-p on the softmax of logits / temperature in descending order (ties: lower id
 * first), then one draw with a counter-based random number of (seed, position). No state: the same
 * inputs give the same token on every machine and path.
 *
 * The definition, so that another backend can give the same token:
 * - Penalties, in f32, for each id that stands c > 0 times in the history's last penalty_last_n:
 *   l = l > 0 ? l / repetition : l * repetition;  l = l - (float)c * frequency;  l = l - presence;
 *   after each of the three, a value beyond the finite range becomes the largest finite one.
 * - Candidates stand in order of l, descending, ties by lower id (-0 and 0 are equal).
 * - Weight, in double, m the largest l: x = ((double)l - m) / temperature; w = x < -30 ? 0 :
 *   floor(fm_exp(x) * 2^42), an integer. All sums are sums of these integers: exact, so that their
 *   order does not matter and partial or parallel selection gives the same result.
 * - top-k keeps the first k. top-p keeps the shortest beginning with (double)sum >= top_p *
 *   (double)(sum of what top-k kept). min-p then drops those with (double)w < min_p * (double)w[0].
 * - Draw: h = mix(mix(seed + 0x9E3779B97F4A7C15) ^ (position * 0xD1342543DE82EF95 + 1)), mix being
 *   splitmix64's output function; with S the sum of what is left, the token is the first whose
 *   running sum exceeds floor(h * S / 2^64), that is, u * S with u uniform in [0, 1). */
#ifndef COMMON_SAMPLER_H
#define COMMON_SAMPLER_H

#include "common/status.h"

#include <stdint.h>

#define TOKEN_NONE UINT32_MAX

typedef struct {
    float temperature;                         /* 0: greedy; >= 0, finite */
    float top_p;                               /* (0, 1]; 1: off */
    float min_p;                               /* [0, 1); 0: off */
    float repetition_penalty;                  /* > 0, finite; 1: off */
    float frequency_penalty, presence_penalty; /* finite; 0: off */
    uint32_t top_k;                            /* 0: off */
    uint32_t penalty_last_n; /* tokens of history that count, <= SAMPLER_HISTORY_MAX */
    uint64_t seed;
} sampler_params;
#define SAMPLER_HISTORY_MAX 256u
#define SAMPLER_VOCAB_MAX   ((1u << 22) - 1) /* so that a sum of weights, 2^42 each at most, fits 64 bits */

/* Greedy, nothing else on. */
sampler_params sampler_default(void);

/* ST_USAGE with *e naming the field when a value is out of its range. */
MUST_USE status sampler_valid(const sampler_params *p, errmsg *e);

/* Bytes of scratch that sampler_draw needs for n_vocab. */
uint64_t sampler_scratch_bytes(uint32_t n_vocab);

/* Draw the token that follows position `position` (the position of the row whose logits these are).
 * history: the n_history latest tokens, oldest first, the row's own token last; may be NULL when
 * n_history is 0. scratch: sampler_scratch_bytes, aligned to 8; its content does not matter before
 * and after. n_vocab: 1 .. SAMPLER_VOCAB_MAX. *p must be valid (sampler_valid). Without allocation;
 * O(n_vocab), a full sort only when top_k is 0.
 * ST_NAN when any logit is NaN or infinite, ST_PROTOCOL when one of the history's last
 * penalty_last_n ids is not < n_vocab; *out is TOKEN_NONE then. */
MUST_USE status sampler_draw(uint32_t *out, const float *logits, uint32_t n_vocab,
                             const sampler_params *p, const uint32_t *history, uint32_t n_history,
                             uint64_t position, void *scratch);

#endif
