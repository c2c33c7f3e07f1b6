/* preview.h - what a command can know of a model before any stage is started: its file, its
 * description, the plan, its tokenizer. What cannot be meant (a text longer than the context, a
 * token that is none) is refused from it, before anything is loaded. */
#ifndef COORDINATOR_PREVIEW_H
#define COORDINATOR_PREVIEW_H

#include "coordinator/commands/options.h"
#include "coordinator/text/tokenizer.h"

typedef struct {
    gguf *file;
    model_desc *model;
    plan *plan;
    tokenizer *words; /* NULL until preview_words */
    bool any_pre;     /* --any-pre-tokenizer */
} preview;

/* Read the file that the options name, describe it and plan the run. Errors as options_model,
 * gguf_open, model_read and plan_make; *out is closed then. Opened or not, preview_close is legal.
 */
MUST_USE status preview_open(preview *out, const common_options *c, errmsg *e);

/* Open the tokenizer of the file. Errors as tokenizer_open. */
MUST_USE status preview_words(preview *p, errmsg *e);

void preview_close(preview *p);

/* The KV type as --kv-type spells it. */
const char *preview_kv_word(const plan *p);

#define PROMPT_BYTES_MAX (256u << 20)

/* A prompt as the options give it: text (-p) or the contents of a file (-f); both NULL: empty. */
typedef struct {
    char *text; /* owned; may contain NUL bytes */
    uint64_t bytes;
} prompt;

/* ST_USAGE: both given, or a file of more than PROMPT_BYTES_MAX; ST_RESOURCES: the file cannot be
 * read; ST_INTERRUPTED. */
MUST_USE status prompt_read(prompt *out, const char *text, const char *file, errmsg *e);
void prompt_free(prompt *p);

#endif
