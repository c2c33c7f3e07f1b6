/* draft.h - where drafts come from: tokens that may follow what a session holds.
 *
 * A source serves many generations, each through a seat of its own. It is asked from the engine
 * thread of the pipeline that verifies, so it must not wait, nor call that pipeline. A wrong draft
 * costs time, never a bit; a source that has nothing, or is broken, says 0.
 *
 * Sources: prompt lookup (engine/ngram.h), a second model (draft_model.h). A model's own draft
 * layers are a third: what they drew comes with a step's results, and their seat hands it on. */
#ifndef COORDINATOR_DRAFT_H
#define COORDINATOR_DRAFT_H

#include "common/sampler.h"

#include <stdbool.h>

#define DRAFT_LATER UINT32_MAX

/* The generation that a seat is for. */
typedef struct {
    sampler_params sampler; /* a token's random number is that of its position: who draws with the
                             * same sampler draws the same where the logits are alike */
    uint64_t n_ctx;         /* tokens that it may ever hold */
    uint32_t n_vocab;       /* a token that is none of so many ends a draft */
    void (*wake)(void *ctx); /* any thread: an answer that was to come later is there */
    void *wake_ctx;
} draft_task;

typedef struct draft_source draft_source;
struct draft_source {
    /* Answers take time of their own, and devices' time: they are asked for where they are expected
     * to be worth it, and now and then to see. Otherwise for every token that is drawn. */
    bool costs;

    /* A seat, NULL: no memory, or nothing can come of it. The task's wake may be called until
     * left. */
    void *(*sit)(draft_source *d, const draft_task *t);
    void (*leave)(void *seat);

    /* Fill out with up to `room` tokens that may follow tokens [n], and say how many; DRAFT_LATER:
     * ask again, with the same n and room, once woken. Another n gives the former question up.
     * Tokens of an earlier question are a beginning of these. *spent_ns: time that a source that
     * costs took. */
    uint32_t (*guess)(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns);
};

#endif
