/* tokenizer_vocab.h - inside the tokenizer: the vocabulary that all kinds share.
 *
 * Owns the pieces with score and type, the index by text, the ids that the file names, and the list
 * of special pieces. Source of types and keys: the GGUF specification, tokenizer.ggml.*. */
#ifndef COORDINATOR_TOKENIZER_VOCAB_H
#define COORDINATOR_TOKENIZER_VOCAB_H

#include "common/gguf.h"

/* tokenizer.ggml.token_type; other values in a file count as PIECE_UNDEFINED. */
typedef enum {
    PIECE_UNDEFINED,
    PIECE_NORMAL,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
} piece_type;

typedef struct {
    const char *text;  /* as the file has it; may be empty, then no text gives this id */
    const char *shown; /* as it appears in text; filled by the kind */
    uint32_t bytes, shown_bytes;
    float score;
    piece_type type;
    bool end;         /* generation stops there */
    bool strip_right; /* white space after it is swallowed when it is cut out of a text */
} piece;

typedef struct {
    uint32_t n;
    piece *piece;      /* [n] */
    gguf_str *strings; /* owns the pieces' text */
    char *shown;       /* owns the shown text, as many bytes as all pieces have */
    uint32_t *slot;    /* [slot_mask + 1] open addressing by text; TOKEN_NONE: free */
    uint32_t slot_mask;
    uint32_t bytes_max;    /* of the longest piece */
    uint32_t byte_id[256]; /* the token of each byte; filled by the kind */
    uint32_t *special;     /* [n_special] longest first, then lower id */
    uint32_t n_special;
    uint32_t bos, eos; /* TOKEN_NONE: none */
    bool add_bos, add_eos, add_space_prefix;
} vocab;

/* What a kind assumes where the file is silent. An id that is not in the vocabulary: none. */
typedef struct {
    uint32_t bos, eos;
    bool add_bos, add_space_prefix;
} vocab_defaults;

/* Read all that kinds share. Errors as tokenizer_open; *v is to be closed in either case. */
MUST_USE status vocab_open(vocab *v, const gguf *g, uint32_t n_vocab,
                           const vocab_defaults *defaults, errmsg *e);
void vocab_close(vocab *v);

/* The piece with exactly this text, TOKEN_NONE: none. */
uint32_t vocab_find(const vocab *v, const char *text, uint64_t bytes);

/* A text, cut at its special tokens: a list by index, from 0 along next to FRAGMENT_END. */
typedef struct {
    uint64_t from, bytes; /* of the text; bytes may be 0 */
    uint32_t id;          /* the special token; TOKEN_NONE: text */
    uint32_t next;
} fragment;
#define FRAGMENT_END UINT32_MAX

/* Cut text at user-defined tokens, and with special at control and unknown ones: the longest token
 * first over the whole text, each from left to right. *out is owned by the caller. ST_RESOURCES. */
MUST_USE status vocab_split(const vocab *v, const char *text, uint64_t bytes, bool special,
                            fragment **out, errmsg *e);

#endif
