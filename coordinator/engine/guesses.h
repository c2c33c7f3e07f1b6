/* guesses.h - the drafts of one generation: asked for, waited for, compared with what was drawn.
 *
 * One question is open at a time: what follows the tokens so far. Its answer is compared with the
 * tokens that were drawn from there on, whether a step verified it or not: that is how often drafts
 * are right is known before a step is spent on them. Owned by the engine thread, the pipeline's
 * lock held. */
#ifndef COORDINATOR_GUESSES_H
#define COORDINATOR_GUESSES_H

#include "coordinator/draft.h"

#define GUESSES_MAX 16u

/* Over all generations of a pipeline. */
typedef struct {
    double hit, n_hits;   /* share of right drafts; drafts that it is taken over, up to a bound */
    double token_ns;      /* what a token of a source that costs took; 0: not known */
    double first_ns;      /* the least of the first few answers, which may have been held up: by a
                           * prompt that the source had to read, by a process that was stopped */
    uint32_t n_answers;
} guess_record;

typedef struct {
    draft_source *source; /* NULL: none */
    void *seat;
    guess_record *record;
    uint32_t n_vocab;
    uint32_t token[GUESSES_MAX], n;
    uint64_t at;          /* tokens drawn when it was asked; UINT64_MAX: never */
    uint64_t n_tokens;    /* that the session had then */
    uint32_t room;
    bool pending, learned;
    bool late;            /* it was waited for in vain: not before it has answered again */
    uint64_t wait_until_ns;
    double hit;           /* share of right drafts, of late */
} guesses;

/* Take a seat; false: the source has none, and there will be no drafts. leave is legal then too. */
bool guesses_sit(guesses *g, draft_source *d, const draft_task *t, guess_record *r);
void guesses_leave(guesses *g);

/* Ask for `room` tokens after tokens [n], n_drawn of which the generation drew. The same question
 * again looks whether the answer has come. */
void guesses_ask(guesses *g, const uint32_t *tokens, uint64_t n, uint64_t n_drawn, uint32_t room);
/* Look for the answer to the question that is open, if one is. */
void guesses_look(guesses *g, const uint32_t *tokens);

/* The answer for what is drawn next is here. */
static inline bool guesses_here(const guesses *g, uint64_t n_drawn)
{
    return g->at == n_drawn && !g->pending;
}
/* It is to come, and worth waiting for. */
bool guesses_soon(const guesses *g, uint64_t n_drawn, uint64_t now);

/* Compare with drawn [n_drawn], once per answer: how many of the tokens from the question on were
 * right until the first that was not. */
uint32_t guesses_learn(guesses *g, const uint32_t *drawn, uint64_t n_drawn);

/* What room tokens take; 0: nothing, or nobody knows. */
double guesses_cost_ns(const guesses *g, uint32_t room);

#endif
