/* tokenizer_kind.h - inside the tokenizer: what one kind of tokenizer is made of.
 *
 * A kind is an entry: its name in tokenizer.ggml.model, its defaults, what it completes and checks
 * at open, and how it encodes a text without special tokens. */
#ifndef COORDINATOR_TOKENIZER_KIND_H
#define COORDINATOR_TOKENIZER_KIND_H

#include "coordinator/tokenizer_vocab.h"

/* Ids that grow; zero is empty. The owner frees id. */
typedef struct {
    uint32_t *id;
    uint64_t n, room;
} id_list;

/* ST_RESOURCES: no memory; the list is as before. */
MUST_USE status id_list_add(id_list *l, uint32_t id, errmsg *e);

typedef struct {
    const char *name;
    vocab_defaults defaults;
    /* Fill byte_id and the shown text of each piece. ST_BAD_MODEL. */
    status (*prepare)(vocab *v, errmsg *e);
    /* Append the ids of text (bytes > 0, no special token in it). space_prefix: as if a space stood
     * before it. ST_RESOURCES. */
    status (*encode)(const vocab *v, const char *text, uint64_t bytes, bool space_prefix,
                     id_list *out, errmsg *e);
} tokenizer_kind;

extern const tokenizer_kind tokenizer_spm; /* "llama" */

#endif
