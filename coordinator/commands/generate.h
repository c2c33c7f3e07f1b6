/* generate.h - one prompt continued to its end, the text told as it comes.
 *
 * Text: the prompt, then what is generated, whole characters only; a character that stays
 * unfinished at the end is U+FFFD; a newline ends the text if it has none. JSON: one object per
 * generated token, nothing of the prompt. The token that ends a text (EOS) is neither shown nor
 * counted. */
#ifndef COORDINATOR_GENERATE_H
#define COORDINATOR_GENERATE_H

#include "coordinator/commands/banner.h"
#include "coordinator/commands/preview.h"

typedef enum {
    STOP_LIMIT,      /* as many tokens as asked for */
    STOP_EOS,        /* the model ended its text */
    STOP_LENGTH,     /* the context is full */
    STOP_INTERRUPTED, /* a signal asked to stop */
    STOP_ERROR       /* generate returned one */
} stop_reason;

typedef struct {
    const prompt *text;
    const uint32_t *tokens; /* of the prompt, at least one */
    uint64_t n_tokens;
    uint64_t n_max; /* tokens to generate; UINT64_MAX: until EOS or the context is full */
    sampler_params sampler;
    uint32_t n_draft; /* of generate_limits */
    draft_source *draft; /* likewise */
    bool json;
} generate_request;

typedef struct {
    stop_reason stop;
    uint64_t n_generated, n_steps;
    uint64_t prompt_ns, steps_ns;
    shares stages;
    draft_counts drafts;
    char rest[4]; /* JSON: U+FFFD when a character stayed unfinished, else empty */
} generate_result;

/* Run it on a session of its own. Errors as session_open, session_prime, session_step (an interrupt
 * is no error: it is a reason to stop) and output_write; the text so far is whole then. */
MUST_USE status generate(generate_result *out, pipeline *p, const tokenizer *words,
                         const generate_request *r, errmsg *e);

const char *stop_reason_word(stop_reason s);

/* Ids that end a text, as many as a generation looks for itself; the rest is the caller's to
 * see. */
uint32_t generate_stop_ids(const tokenizer *words, uint32_t out[GENERATE_STOPS_MAX]);

/* Tokens per second; 0 when none. */
double generate_prompt_rate(const generate_request *q, const generate_result *r);
double generate_step_rate(const generate_result *r);

#endif
