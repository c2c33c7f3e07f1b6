#include "tests/support/sample_cases.h"

#include <math.h>
#include <stdlib.h>

#define PICK(s, list) (list)[seeded_below((s), sizeof(list) / sizeof *(list))]

/* About normal, as a model's are. */
static float bell(seeded *s)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)seeded_below(s, 1u << 16) / 32768.0f - 1.0f;
    return sum;
}

static void fill_logits(seeded *s, float *logits, uint32_t n)
{
    static const float scales[] = {0.01f, 1, 3, 20, 1e30f};
    uint32_t shape = seeded_below(s, 6);
    float scale = PICK(s, scales), level = bell(s);
    for (uint32_t i = 0; i < n; i++) {
        switch (shape) {
        case 0: /* a few values, many ties */
            logits[i] = (float)seeded_below(s, 5) - 2.0f;
            break;
        case 1: /* all the same */
            logits[i] = level;
            break;
        case 2: /* any magnitude, both zeros */
            logits[i] = seeded_float(s, 100);
            break;
        case 3: /* zeros of both signs, and little beside them */
            logits[i] = seeded_below(s, 50) == 0 ? bell(s) : seeded_below(s, 2) == 0 ? -0.0f : 0.0f;
            break;
        default:
            logits[i] = bell(s) * scale;
        }
    }
    if (shape == 5) logits[seeded_below(s, n)] = 30.0f * scale; /* one stands out */
}

static sampler_params params_of(seeded *s, uint32_t n_vocab)
{
    static const float temperature[] = {0, 1e-30f, 0.05f, 0.7f, 1, 1.5f, 100, 1e6f};
    static const float top_p[] = {1, 1, 0.9999f, 0.95f, 0.5f, 1e-6f};
    static const float min_p[] = {0, 0, 0.05f, 0.5f, 0.999f};
    static const float repetition[] = {1, 1.1f, 0.5f, 1e30f};
    static const float other[] = {0, 0.5f, -0.75f, 1e38f};
    const uint32_t top_k[] = {0, 0, 1, 2, 40, 1000, n_vocab - 1, n_vocab, n_vocab + 5};
    sampler_params p = {.temperature = PICK(s, temperature),
                        .top_p = PICK(s, top_p),
                        .min_p = PICK(s, min_p),
                        .repetition_penalty = 1,
                        .top_k = PICK(s, top_k),
                        .seed = seeded_next(s)};
    if (seeded_below(s, 2) == 0) return p;
    p.repetition_penalty = PICK(s, repetition);
    p.frequency_penalty = PICK(s, other);
    p.presence_penalty = PICK(s, other);
    p.penalty_last_n = seeded_below(s, SAMPLER_HISTORY_MAX + 1);
    return p;
}

void sample_case(seeded *s, uint32_t n_vocab, float *logits, sample_row *row)
{
    fill_logits(s, logits, n_vocab);
    *row = (sample_row){.params = params_of(s, n_vocab), .position = seeded_below(s, 1u << 24)};
    row->n_history = seeded_below(s, SAMPLER_HISTORY_MAX + 1);
    uint32_t few = 1 + seeded_below(s, n_vocab < 40 ? n_vocab : 40);
    for (uint32_t i = 0; i < row->n_history; i++) /* half of them often */
        row->history[i] = seeded_below(s, seeded_below(s, 2) == 0 ? few : n_vocab);
}

sample_result sample_wanted(const float *logits, uint32_t n_vocab, const sample_row *row)
{
    sample_result r = {0};
    void *scratch = malloc(sampler_scratch_bytes(n_vocab));
    r.status = (uint32_t)sampler_draw(&r.token, logits, n_vocab, &row->params, row->history,
                                      row->n_history, row->position, scratch);
    free(scratch);
    return r;
}
