/* gate_drafts.h - the drafts that gate spec verifies: right, but at fixed places made wrong, so
 * that some are accepted and some are not.
 *
 * Right ones come from the reference's tokens, or from a draft model. A model that drafts for
 * itself is right by the law wherever nothing was made wrong, however often it was rolled back:
 * n_right is then exactly what must have been accepted. Each is the source of one generation. */
#ifndef COORDINATOR_GATE_DRAFTS_H
#define COORDINATOR_GATE_DRAFTS_H

#include "coordinator/draft.h"

typedef struct {
    draft_source source;
    draft_source *model;   /* NULL: the truth is told */
    const uint32_t *truth; /* [1 + n_drawn]: the tokens after the prompt */
    uint32_t n_prompt, n_drawn;
    bool all_wrong;
    bool keeps_wrong;      /* canary: the model goes on behind its rejected drafts */
    uint64_t n_right;      /* drafts given that no wrong one stands before in their step */
    /* its own */
    void *seat;            /* at the model */
    uint32_t n_vocab;
    uint32_t *told;        /* [n_ctx + GENERATE_DRAFT_MAX]: keeps_wrong: what the model is told */
    uint64_t n_told;
} gate_drafts;

/* model may be NULL. The caller owns all, until the generation is closed. */
gate_drafts gate_drafts_of(const uint32_t *truth, uint32_t n_prompt, uint32_t n_drawn,
                           draft_source *model);

#endif
