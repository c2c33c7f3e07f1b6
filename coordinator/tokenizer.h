/* tokenizer.h - text to token ids and back, as the model file says.
 *
 * Owns the vocabulary. Kinds now: "llama" (SentencePiece-style: pieces merged greedily by score, the
 * leftmost among equals, byte fallback, optional space prefix). Others are refused by name. Text is
 * bytes; invalid UTF-8 goes through the byte fallback, byte by byte, and comes back the same. */
#ifndef COORDINATOR_TOKENIZER_H
#define COORDINATOR_TOKENIZER_H

#include "common/gguf.h"

typedef struct tokenizer tokenizer;

/* ST_BAD_MODEL: kind not supported, arrays missing or of unequal length, byte tokens missing, ids
 * out of range, more pieces than n_vocab. */
MUST_USE status tokenizer_open(tokenizer **out, const gguf *g, uint32_t n_vocab, errmsg *e);
void tokenizer_close(tokenizer *t);

typedef struct {
    bool bos;       /* put BOS first where the file says so (add_bos_token) */
    bool special;   /* parse special tokens that stand in the text */
} tokenize_options;

/* Encode bytes of text: *out is an owned array of *n ids. An empty text gives BOS alone or nothing.
 * Never two BOS: when the text itself starts with the BOS piece (special), none is added.
 * ST_RESOURCES: no memory. */
MUST_USE status tokenizer_encode(const tokenizer *t, const char *text, uint64_t bytes,
                                 tokenize_options o, uint32_t **out, uint64_t *n, errmsg *e);

/* The bytes of one token as it appears in text: *bytes of *text, owned by t. Control tokens give
 * no bytes unless special. first: the first token of the text (drops the prefixed space). id must
 * be < n_vocab. */
void tokenizer_piece(const tokenizer *t, uint32_t id, bool first, bool special, const char **text,
                     uint32_t *bytes);

/* TOKEN_NONE (sampler.h) when the model has none. */
uint32_t tokenizer_bos(const tokenizer *t);
bool tokenizer_is_end(const tokenizer *t, uint32_t id); /* EOS, EOT: generation stops there */
uint32_t tokenizer_n(const tokenizer *t);

#endif
