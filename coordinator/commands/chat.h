/* chat.h - a session over turns: a line from the person, the model's continuation, and again.
 *
 * Plain text: a line is appended to the session as it is, on a line of its own, and what the model
 * says next is written to standard output until it ends its text, N tokens are reached, the context
 * is full, or Ctrl-C. Nothing is forgotten between turns, the token that ended an answer included.
 * Lines that are not text: an empty one goes on with the answer; one that ends in a backslash
 * continues on the next; /clear forgets everything. What happens is said on standard error.
 *
 * Ctrl-C during an answer stops the answer; at the prompt it ends the program, as do the end of
 * input and a second Ctrl-C before the first one was seen to. A pipeline that fails is noticed
 * while waiting for a line too. */
#ifndef COORDINATOR_CHAT_H
#define COORDINATOR_CHAT_H

#include "coordinator/commands/preview.h"

typedef struct {
    const prompt *opening; /* text before the first line; may be empty */
    uint64_t n_max;        /* tokens of an answer; UINT64_MAX: until EOS or the context is full */
    bool special;          /* parse special tokens in lines */
    sampler_params sampler;
    uint32_t n_draft;      /* of generate_limits */
    draft_source *draft;   /* likewise */
} chat_request;

/* Talk until the input ends. Takes SIGINT over from main's handler while it runs. ST_INTERRUPTED:
 * Ctrl-C at the prompt, or a signal to end; otherwise errors as session_open, session_prime,
 * session_step, tokenizer_encode, line_in_next and output_write. */
MUST_USE status chat_run(pipeline *p, const tokenizer *words, const chat_request *q, errmsg *e);

#endif
