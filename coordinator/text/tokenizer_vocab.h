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
    bool always_bos;  /* add_bos, whatever the file says, where there is a BOS */
    bool control_ids; /* an id holds only where it is a control token's */
    bool needs_types; /* a file without scores or types is refused; else: score 0, all normal */
} vocab_defaults;

/* Read all that kinds share. Errors as tokenizer_open; *v is to be closed in either case. */
MUST_USE status vocab_open(vocab *v, const gguf *g, uint32_t n_vocab,
                           const vocab_defaults *defaults, errmsg *e);
void vocab_close(vocab *v);

/* The piece with exactly this text, TOKEN_NONE: none. */
uint32_t vocab_find(const vocab *v, const char *text, uint64_t bytes);

/* The same for text that is no special token's: control, unknown and byte tokens are not found. */
uint32_t vocab_find_plain(const vocab *v, const char *text, uint64_t bytes);

/* Set byte_id from the byte tokens, and show every piece with a space for each U+2581; byte tokens
 * as their byte, control, unknown and user-defined ones as they are. ST_BAD_MODEL: a byte token is
 * not written <0xXX>. */
MUST_USE status vocab_show_all(vocab *v, errmsg *e);

/* Mark the pieces that are known by their text: those that end a turn, and those that are control
 * or user-defined tokens whatever type the file gives them. Called by vocab_open. ST_BAD_MODEL: an
 * id that the file names is not in the vocabulary. */
MUST_USE status vocab_mark_known(vocab *v, const gguf *g, errmsg *e);

/* The id at key; where the file has none, *out stays. ST_BAD_MODEL: beyond the vocabulary. */
MUST_USE status vocab_read_id(const vocab *v, const gguf *g, const char *key, uint32_t *out,
                              errmsg *e);

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
