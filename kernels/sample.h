/* sample.h - what crosses to a device to draw a token there, and what comes back. Plain types,
 * which CUDA C++ reads too. */
#ifndef KERNELS_SAMPLE_H
#define KERNELS_SAMPLE_H

#include "common/sampler.h"

#define SAMPLE_STOPS 15u

/* What the token after a row is drawn with: the arguments of sampler_draw, and what ends the
 * row. */
typedef struct {
    sampler_params params;   /* valid */
    uint64_t position;
    uint32_t row_i;          /* of the step */
    uint32_t ends;           /* 1: it goes no further, whatever it draws */
    uint32_t n_stops, stop[SAMPLE_STOPS];
    uint32_t n_history;      /* at most SAMPLER_HISTORY_MAX: the latest, oldest first */
    uint32_t reserved;
    uint32_t history[SAMPLER_HISTORY_MAX];
} sample_row;

typedef struct {
    uint32_t token;          /* TOKEN_NONE unless status is ST_OK */
    uint32_t status;         /* of sampler_draw: ST_OK, ST_NAN (non-finite logits), ST_PROTOCOL */
    uint32_t poisoned;       /* the row's flag of sample_args */
    uint32_t reserved;
} sample_result;

#endif
