/* sampler.c - owns the choice of a token. Refuses logits that are not finite.
 *
 * A candidate is one 64-bit word, the logit's place in descending order above, the id below, so
 * that sorting words sorts by logit and then by id. Candidates of weight 0 are left out at once;
 * with top_k, a histogram of the words' first bits finds how far down the k-th can stand, and only
 * what is above is sorted (radix, so that equal logits cost nothing extra). */
#include "common/sampler.h"

#include "common/fmath.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define WEIGHT_ONE 4398046511104.0 /* 2^42 */
#define WEIGHT_CUT (-30.0)         /* e^-30 < 2^-42: weight 0 */
#define BIN_BITS   12
#define N_BINS     (1u << BIN_BITS)

typedef struct {
    uint64_t *word, *other; /* [n_vocab] each: candidates, and where the sort moves them */
    float *logit;           /* [n_vocab] after penalties */
} rows;

static rows scratch_rows(void *scratch, uint32_t n_vocab)
{
    uint64_t *words = scratch;
    return (rows){words, words + n_vocab, (float *)(words + 2ull * n_vocab)};
}

uint64_t sampler_scratch_bytes(uint32_t n_vocab)
{
    uint64_t bytes = (2 * sizeof(uint64_t) + sizeof(float)) * (uint64_t)n_vocab;
    return (bytes + 7) & ~7ull;
}

sampler_params sampler_default(void)
{
    return (sampler_params){.top_p = 1, .repetition_penalty = 1};
}

status sampler_valid(const sampler_params *p, errmsg *e)
{
    if (!(p->temperature >= 0 && p->temperature <= FLT_MAX))
        return errmsg_set(e, ST_USAGE, "temperature is %g, must be 0 or more",
                          (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return errmsg_set(e, ST_USAGE, "top_p is %g, must be over 0 and at most 1",
                          (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p < 1))
        return errmsg_set(e, ST_USAGE, "min_p is %g, must be at least 0 and under 1",
                          (double)p->min_p);
    if (!(p->repetition_penalty > 0 && p->repetition_penalty <= FLT_MAX))
        return errmsg_set(e, ST_USAGE, "repetition_penalty is %g, must be over 0",
                          (double)p->repetition_penalty);
    if (!isfinite(p->frequency_penalty))
        return errmsg_set(e, ST_USAGE, "frequency_penalty is %g, must be finite",
                          (double)p->frequency_penalty);
    if (!isfinite(p->presence_penalty))
        return errmsg_set(e, ST_USAGE, "presence_penalty is %g, must be finite",
                          (double)p->presence_penalty);
    if (p->penalty_last_n > SAMPLER_HISTORY_MAX)
        return errmsg_set(e, ST_USAGE, "penalty_last_n is %u, must be at most %u",
                          p->penalty_last_n, SAMPLER_HISTORY_MAX);
    return ST_OK;
}

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t n_bad = 0;
    for (uint32_t i = 0; i < n; i++)
        n_bad += !(fabsf(x[i]) <= FLT_MAX);
    return n_bad == 0;
}

static float clamp(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static float penalised(float l, uint32_t count, const sampler_params *p)
{
    l = clamp(l > 0 ? l / p->repetition_penalty : l * p->repetition_penalty);
    float frequency = (float)count * p->frequency_penalty;
    l = clamp(l - frequency);
    return clamp(l - p->presence_penalty);
}

/* window: the n ids of the history that count, at most SAMPLER_HISTORY_MAX. */
static status penalise(float *logit, uint32_t n_vocab, const sampler_params *p,
                       const uint32_t *window, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (window[i] >= n_vocab) return ST_PROTOCOL;
    bool off = p->repetition_penalty == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0;
    if (off) return ST_OK;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = 1, j = 0;
        while (j < i && window[j] != window[i])
            j++;
        if (j < i) continue; /* done with its first occurrence */
        for (j = i + 1; j < n; j++)
            count += window[j] == window[i];
        logit[window[i]] = penalised(logit[window[i]], count, p);
    }
    return ST_OK;
}

static uint32_t largest(const float *logit, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logit[i] > logit[best]) best = i;
    return best;
}

/* The candidate's word: ascending words are descending logits, then ascending ids. */
static uint64_t word_of(float l, uint32_t id)
{
    float positive_zero = l == 0 ? 0.0f : l;
    uint32_t bits;
    memcpy(&bits, &positive_zero, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | id;
}

static uint64_t weight(double l, double max, double temperature)
{
    double x = (l - max) / temperature;
    return x < WEIGHT_CUT ? 0 : (uint64_t)(fm_exp(x) * WEIGHT_ONE);
}

/* The candidates that can have a weight, in ascending order of ids; returns how many (>= 1). A few
 * of weight 0 among them do no harm, so that the border needs no division. */
static uint32_t gather(uint64_t *word, const float *logit, uint32_t n, double max,
                       double temperature)
{
    double border = max + (WEIGHT_CUT - 1) * temperature;
    uint32_t n_kept = 0;
    for (uint32_t id = 0; id < n; id++) {
        word[n_kept] = word_of(logit[id], id);
        n_kept += (double)logit[id] >= border;
    }
    return n_kept;
}

/* Leave out what surely stands behind the k-th word; the order is kept. Returns how many stay. */
static uint32_t select_first(uint64_t *word, uint32_t n, uint32_t k)
{
    uint32_t count[N_BINS] = {0};
    for (uint32_t i = 0; i < n; i++)
        count[word[i] >> (64 - BIN_BITS)]++;
    uint32_t last_bin = 0;
    for (uint32_t sum = count[0]; sum < k; sum += count[last_bin])
        last_bin++;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t w = word[i];
        word[n_kept] = w;
        n_kept += w >> (64 - BIN_BITS) <= last_bin;
    }
    return n_kept;
}

/* Sort by the upper halves, stably: the ids below ascend already. Returns where it lies. */
static uint64_t *sort_words(uint64_t *word, uint64_t *other, uint32_t n)
{
    for (uint32_t shift = 32; shift < 64; shift += 8) {
        uint32_t at[256] = {0}, sum = 0;
        for (uint32_t i = 0; i < n; i++)
            at[word[i] >> shift & 255]++;
        if (at[word[0] >> shift & 255] == n) continue;
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t bin = at[b];
            at[b] = sum;
            sum += bin;
        }
        for (uint32_t i = 0; i < n; i++)
            other[at[word[i] >> shift & 255]++] = word[i];
        uint64_t *swap = word;
        word = other;
        other = swap;
    }
    return word;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static uint64_t random_bits(uint64_t seed, uint64_t position)
{
    return mix(mix(seed + 0x9E3779B97F4A7C15ull) ^ (position * 0xD1342543DE82EF95ull + 1));
}

/* How many of the n candidates top-p keeps; *sum is their weight. */
static uint32_t cut_top_p(const uint64_t *w, uint32_t n, float top_p, uint64_t *sum)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += w[i];
    *sum = total;
    if (top_p == 1) return n;
    double wanted = (double)top_p * (double)total;
    uint32_t kept = 0;
    *sum = 0;
    while (kept < n && (kept == 0 || (double)*sum < wanted))
        *sum += w[kept++];
    return kept;
}

/* Draw among sorted candidates; w: room for n weights. */
static uint32_t draw_sorted(const uint64_t *word, uint64_t *w, uint32_t n, const float *logit,
                            const sampler_params *p, uint64_t random)
{
    double max = (double)logit[(uint32_t)word[0]];
    for (uint32_t i = 0; i < n; i++)
        w[i] = weight((double)logit[(uint32_t)word[i]], max, (double)p->temperature);
    uint64_t sum;
    n = cut_top_p(w, n, p->top_p, &sum);
    double least = (double)p->min_p * (double)w[0];
    for (uint32_t i = 0; i < n; i++) {
        if ((double)w[i] >= least) continue;
        sum -= w[i];
        w[i] = 0;
    }
    uint64_t target = (uint64_t)(((unsigned __int128)random * sum) >> 64);
    uint64_t running = 0;
    for (uint32_t i = 0; i < n; i++) {
        running += w[i];
        if (running > target) return (uint32_t)word[i];
    }
    return TOKEN_NONE;
}

status sampler_draw(uint32_t *out, const float *logits, uint32_t n_vocab, const sampler_params *p,
                    const uint32_t *history, uint32_t n_history, uint64_t position, void *scratch)
{
    CHECK(n_vocab > 0 && n_vocab <= SAMPLER_VOCAB_MAX);
    CHECK(sampler_valid(p, NULL) == ST_OK);
    CHECK((uintptr_t)scratch % sizeof(uint64_t) == 0);
    *out = TOKEN_NONE;
    if (!all_finite(logits, n_vocab)) return ST_NAN;
    rows r = scratch_rows(scratch, n_vocab);
    uint32_t n_window = n_history < p->penalty_last_n ? n_history : p->penalty_last_n;
    memcpy(r.logit, logits, n_vocab * sizeof *logits);
    if (n_window > 0)
        TRY(penalise(r.logit, n_vocab, p, history + (n_history - n_window), n_window));
    uint32_t best = largest(r.logit, n_vocab);
    if (p->temperature == 0 || p->top_k == 1) {
        *out = best;
        return ST_OK;
    }
    uint32_t n = gather(r.word, r.logit, n_vocab, (double)r.logit[best], (double)p->temperature);
    if (p->top_k > 0 && p->top_k < n) n = select_first(r.word, n, p->top_k);
    uint64_t *sorted = sort_words(r.word, r.other, n);
    uint64_t *weights = sorted == r.word ? r.other : r.word;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    *out = draw_sorted(sorted, weights, n, r.logit, p, random_bits(p->seed, position));
    CHECK(*out < n_vocab);
    return ST_OK;
}
