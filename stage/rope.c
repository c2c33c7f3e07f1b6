#include "stage/rope.h"

#include "common/fmath.h"

#include <math.h>

#define TWO_PI        0x1.921fb54442d18p+2
#define FREQUENCY_MAX 65536.0 /* times PLAN_CTX_MAX stays where fm_sincos is exact: 2^40 */

/* The pair (not whole) whose wave goes beta times into the original context. */
static double yarn_pair(const rope_desc *d, double beta)
{
    return (double)d->n_rot * fm_log((double)d->n_ctx_orig / (beta * TWO_PI)) /
           (2.0 * fm_log((double)d->base));
}

static double clamp01(double x)
{
    return x < 0.0 ? 0.0 : x > 1.0 ? 1.0 : x;
}

static double yarn_blend(const rope_desc *d, uint32_t pair_i)
{
    double low = floor(yarn_pair(d, (double)d->beta_fast));
    double high = ceil(yarn_pair(d, (double)d->beta_slow));
    if (!(low > 0.0)) low = 0.0;
    if (!(high < (double)d->n_rot - 1.0)) high = (double)d->n_rot - 1.0;
    double width = high - low > 0.001 ? high - low : 0.001;
    double mix = 1.0 - clamp01(((double)pair_i - low) / width);
    return mix + (1.0 - mix) / (double)d->factor;
}

static double scaled(const rope_desc *d, double frequency, uint32_t pair_i)
{
    switch (d->scaling) {
    case ROPE_SCALING_NONE:
        return frequency;
    case ROPE_SCALING_LINEAR:
        return frequency / (double)d->factor;
    case ROPE_SCALING_YARN:
        return frequency * yarn_blend(d, pair_i);
    }
    CHECK(!"rope scaling");
    return 0.0;
}

status rope_make(rope_table *out, const rope_desc *d, const float *freq_factors, errmsg *e)
{
    out->n_pairs = d->n_rot / 2;
    out->magnitude = (double)d->attn_factor;
    CHECK(out->n_pairs <= ROPE_PAIRS_MAX);
    for (uint32_t i = 0; i < out->n_pairs; i++) {
        double frequency = fm_pow((double)d->base, -2.0 * (double)i / (double)d->n_rot);
        if (freq_factors != NULL) frequency /= (double)freq_factors[i];
        frequency = scaled(d, frequency, i);
        if (!(frequency >= 0.0 && frequency <= FREQUENCY_MAX)) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "rope: pair %u would turn by %g radians per position", i, frequency);
        }
        out->frequency[i] = frequency;
    }
    return ST_OK;
}
