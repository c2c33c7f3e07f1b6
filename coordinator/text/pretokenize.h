/* pretokenize.h - a text cut into words, inside which alone byte-level BPE merges.
 *
 * Owns the table of pre-tokenizers: the names in tokenizer.ggml.pre that are known, the patterns
 * behind each, and what else a name decides. The patterns of one pre-tokenizer are applied one
 * after the other: each is searched from left to right in every word that the ones before it left,
 * and cuts out its matches and what stands between them; nothing beyond a word's borders is seen
 * (the end of a word is an end of the text). White space is Unicode's White_Space, as llama.cpp
 * has it; letters, numbers, marks and punctuation are those of the PCRE2 library that is linked
 * (10.42: Unicode 14), so that a character assigned since then may be cut otherwise than by
 * llama.cpp. A byte that is no part of a well-formed character counts as U+FFFD.
 *
 * The words put together are the text. Time grows linearly with the text, whatever it holds: no
 * pattern scans a run of characters again for each of them. */
#ifndef COORDINATOR_PRETOKENIZE_H
#define COORDINATOR_PRETOKENIZE_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define PRE_PATTERNS_MAX 8u

typedef struct {
    const char *names;                          /* separated by single spaces */
    const char *pattern[PRE_PATTERNS_MAX + 1u]; /* PCRE2, in order, ended by NULL */
    bool ignore_merges; /* a word that is a piece is that piece, whatever the merges say */
    bool add_bos;       /* where the file is silent */
    bool no_bos_id;     /* there is no default id of BOS */
    bool raw;           /* pieces are text with U+2581 for a space, not mapped bytes */
} pre_kind;

/* The pre-tokenizer of that name, NULL: none is known. */
const pre_kind *pre_kind_find(const char *name, uint64_t bytes);

typedef struct pretokenizer pretokenizer;

/* Compile k's patterns. k is kept. ST_RESOURCES: no memory, or the library refuses a pattern. *out
 * is NULL then. */
MUST_USE status pretokenizer_open(pretokenizer **out, const pre_kind *k, errmsg *e);
void pretokenizer_close(pretokenizer *p); /* p may be NULL */
const pre_kind *pretokenizer_kind(const pretokenizer *p);

/* Gets the words in order; bytes > 0. Any other status than ST_OK ends the cutting and is passed
 * on. */
typedef status (*pretokenize_word)(void *to, const char *word, uint64_t bytes, errmsg *e);

/* Cut text (bytes may be 0: no words). Any number of threads may cut at once. ST_RESOURCES: no
 * memory, or the library reached a limit of its own; the words given so far are then worthless. */
MUST_USE status pretokenize(const pretokenizer *p, const char *text, uint64_t bytes,
                            pretokenize_word word, void *to, errmsg *e);

#endif
