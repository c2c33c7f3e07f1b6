/* rope.h - how fast a model's heads turn, the same bits on every machine.
 *
 * The angle of pair i at position p is p * frequency[i] (backend.h: rope_angles makes cos and sin
 * of it on the device); the frequencies are computed once, in double, by functions of
 * common/fmath.h and operations that round once. Pure but for the table itself. */
#ifndef STAGE_ROPE_H
#define STAGE_ROPE_H

#include "common/model.h"

typedef struct {
    uint32_t n_pairs;
    double frequency[ROPE_PAIRS_MAX]; /* radians per position */
    double magnitude;                 /* 1 but for yarn */
} rope_table;

/* Compute the table. With b_i = base^(-2i / n_rot) / freq_factor[i] (freq_factors: f32 [n_rot / 2],
 * NULL: all 1):
 *   none: b_i; linear: b_i / factor;
 *   yarn: b_i * (mix + (1 - mix) / factor), mix = 1 - clamp((i - low) / max(0.001, high - low), 0,
 * 1), low = max(0, floor(pair(beta_fast))), high = min(n_rot - 1, ceil(pair(beta_slow))),
 *   pair(beta) = n_rot * ln(n_ctx_orig / (2 pi beta)) / (2 ln(base)). Source: the YaRN paper.
 * ST_BAD_MODEL: a frequency is not finite or too high for the longest context. */
MUST_USE status rope_make(rope_table *out, const rope_desc *d, const float *freq_factors,
                          errmsg *e);

#endif
