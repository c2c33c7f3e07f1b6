/* tokenizer_kind.h - inside the tokenizer: what one kind of tokenizer is made of.
 *
 * A kind is an entry: its name in tokenizer.ggml.model, what it assumes, what it completes and
 * checks at open, and how it encodes a text without special tokens. */
#ifndef COORDINATOR_TOKENIZER_KIND_H
#define COORDINATOR_TOKENIZER_KIND_H

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_vocab.h"

/* Ids that grow; zero is empty. The owner frees id. */
typedef struct {
    uint32_t *id;
    uint64_t n, room;
} id_list;

/* ST_RESOURCES: no memory; the list is as before. */
MUST_USE status id_list_add(id_list *l, uint32_t id, errmsg *e);

typedef struct {
    const char *name;
    /* Before the vocabulary is read: what is assumed where the file is silent, and what the kind
     * keeps for itself (NULL: nothing). ST_BAD_MODEL, ST_RESOURCES: *state is NULL. */
    status (*begin)(void **state, vocab_defaults *defaults, const gguf *g, tokenizer_options o,
                    errmsg *e);
    /* Complete both: byte_id and the shown text of each piece. ST_BAD_MODEL, ST_RESOURCES. */
    status (*prepare)(void *state, vocab *v, const gguf *g, errmsg *e);
    /* Append the ids of text (bytes > 0, no special token in it). space_prefix: as if a space stood
     * before it. ST_RESOURCES. */
    status (*encode)(const void *state, const vocab *v, const char *text, uint64_t bytes,
                     bool space_prefix, id_list *out, errmsg *e);
    void (*close)(void *state); /* state may be NULL */
} tokenizer_kind;

extern const tokenizer_kind tokenizer_spm;        /* "llama" */
extern const tokenizer_kind tokenizer_bpe;        /* "gpt2" */
extern const tokenizer_kind tokenizer_bpe_gemma4; /* "gemma4" */

#endif
