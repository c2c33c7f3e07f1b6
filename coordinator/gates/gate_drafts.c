#include "coordinator/gates/gate_drafts.h"

#include "coordinator/pipeline.h"

#include <stdlib.h>
#include <string.h>

static void *sit(draft_source *source, const draft_task *t)
{
    gate_drafts *d = (gate_drafts *)source;
    d->n_vocab = t->n_vocab;
    if (d->model == NULL) return d;
    d->told = malloc((t->n_ctx + GENERATE_DRAFT_MAX) * sizeof *d->told);
    d->seat = d->told != NULL ? d->model->sit(d->model, t) : NULL;
    if (d->seat != NULL) return d;
    free(d->told);
    return NULL;
}

static void leave(void *seat)
{
    gate_drafts *d = seat;
    if (d->model == NULL) return;
    d->model->leave(d->seat);
    free(d->told);
}

/* Right for up to seven tokens on end, wrong with one right token between, in turn. */
static bool is_wrong(const gate_drafts *d, uint32_t at)
{
    return d->all_wrong || at % 11 == 3 || at % 11 == 5;
}

/* What the model is told: the tokens, but for drafts that were not drawn and are kept. */
static const uint32_t *told(gate_drafts *d, const uint32_t *tokens, uint64_t n)
{
    if (!d->keeps_wrong) return tokens;
    if (n > d->n_told) {
        memcpy(d->told + d->n_told, tokens + d->n_told, (n - d->n_told) * sizeof *tokens);
        d->n_told = n;
    }
    return d->told;
}

static void keep(gate_drafts *d, uint64_t n, const uint32_t *out, uint32_t n_out)
{
    if (!d->keeps_wrong) return;
    memcpy(d->told + n, out, n_out * sizeof *out);
    d->n_told = n + n_out;
}

static uint32_t right_ones(gate_drafts *d, const uint32_t *tokens, uint64_t n, uint32_t *out,
                           uint32_t room, uint64_t *spent_ns)
{
    uint32_t at = (uint32_t)(n - 1) - d->n_prompt; /* of the last token in truth */
    *spent_ns = 0;
    if (d->model != NULL)
        return d->model->guess(d->seat, told(d, tokens, n), n, out, room, spent_ns);
    for (uint32_t k = 0; k < room; k++)
        out[k] = at + 1 + k <= d->n_drawn ? d->truth[at + 1 + k] : 0;
    return room;
}

static uint32_t guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    gate_drafts *d = seat;
    uint32_t at = (uint32_t)(n - 1) - d->n_prompt, n_right = 0;
    uint32_t n_out = right_ones(d, tokens, n, out, room, spent_ns);
    if (n_out == DRAFT_LATER) return n_out;
    for (uint32_t k = 0; k < n_out; k++) {
        bool wrong = is_wrong(d, at + 1 + k);
        if (wrong) out[k] = (out[k] + 1) % d->n_vocab;
        n_right += !wrong && n_right == k;
    }
    d->n_right += n_right;
    keep(d, n, out, n_out);
    return n_out;
}

gate_drafts gate_drafts_of(const uint32_t *truth, uint32_t n_prompt, uint32_t n_drawn,
                           draft_source *model)
{
    return (gate_drafts){
        .source = {.costs = model != NULL, .sit = sit, .leave = leave, .guess = guess},
        .model = model,
        .truth = truth,
        .n_prompt = n_prompt,
        .n_drawn = n_drawn};
}
