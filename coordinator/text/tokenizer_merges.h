/* tokenizer_merges.h - inside the tokenizer: the merges of byte-level BPE.
 *
 * Owns tokenizer.ggml.merges as rules over ids. A rule stands there as the texts of two pieces with
 * a space between them (the first space that is not the first byte); the earlier rule goes first.
 * Rules whose two pieces or whose result plain text cannot form (no such piece; a control, unknown
 * or byte token) are passed over, and so are those without a space; of two rules for the same two
 * pieces the first counts. */
#ifndef COORDINATOR_TOKENIZER_MERGES_H
#define COORDINATOR_TOKENIZER_MERGES_H

#include "coordinator/text/tokenizer_vocab.h"

typedef struct {
    uint32_t left, right; /* left TOKEN_NONE: a free slot */
    uint32_t id;          /* what the two become */
    uint32_t rank;        /* lower goes first */
} merge_rule;

typedef struct {
    merge_rule *slot; /* [mask + 1] open addressing */
    uint64_t mask;
} merge_table;

/* ST_BAD_MODEL: the file has no merges; ST_RESOURCES. *m may be closed in either case. */
MUST_USE status merge_table_open(merge_table *m, const vocab *v, const gguf *g, errmsg *e);
void merge_table_close(merge_table *m);

#define MERGE_END  UINT32_MAX        /* of prev and next */
#define MERGE_GONE (UINT32_MAX - 1u) /* the id of a symbol that became part of the one before it   \
                                      */

typedef struct {
    uint32_t id; /* TOKEN_NONE: no piece; never merged */
    uint32_t prev, next;
    uint32_t from; /* for the caller */
} merge_symbol;

typedef struct {
    uint32_t rank, left; /* the symbol left and the one after it */
    uint32_t left_id, right_id;
} merge_pair;

/* The symbols of a word and the room to merge them; zero is empty. Kept from word to word. */
typedef struct {
    merge_symbol *symbol; /* [n] */
    merge_pair *heap;     /* a binary heap, the lowest rank at 0 */
    uint64_t n, room, n_heap, heap_room;
} merge_work;

void merge_work_free(merge_work *w);

/* Empty w and make room for n symbols. ST_RESOURCES. */
MUST_USE status merge_work_begin(merge_work *w, uint64_t n, errmsg *e);

/* Append a symbol; there is room for it. */
void merge_work_add(merge_work *w, uint32_t id, uint32_t from);

/* Merge until no rule applies: the lowest rank first, the leftmost among equals. Time grows as
 * n log n. What is left are the symbols from 0 along next. ST_RESOURCES. */
MUST_USE status merge_work_run(merge_work *w, const merge_table *m, errmsg *e);

#endif
