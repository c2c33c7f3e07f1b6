/* journal.h - the rows that crossed a boundary, kept for whoever replaces the stage behind it.
 *
 * For every KV block of the global class below n_blocks JOURNAL_BLOCK rows, those of its positions:
 * a commit word each, and hidden f32 [n_embd]. The boundary's sender writes them beside its send; a
 * replacement of the receiver reads them. It is the coordinator's memory (a sealed memfd) and
 * outlives both. The first stage has none: its journal is the tokens.
 *
 * commit is the step that wrote the row, 0: nothing whole. A writer sets 0, writes the row, then
 * sets the step (release): a row that its writer did not finish is not there.
 *
 * Mapping: journal_header; commit u64 [n_blocks, JOURNAL_BLOCK]; hidden f32 [n_blocks,
 * JOURNAL_BLOCK, n_embd]; parts start on cache lines. */
#ifndef COMMON_JOURNAL_H
#define COMMON_JOURNAL_H

#include "common/kvclass.h"

#include "common/runblock.h"

#include <stdbool.h>

#define JOURNAL_MAGIC 0x4c4e524au /* "JRNL" */
#define JOURNAL_BLOCK KV_BLOCK /* positions of a KV block */

typedef struct {
    uint32_t magic, n_blocks, n_embd, reserved;
    uint64_t bytes;
} journal_header;

/* One process's view: sizes are its own copies, checked once. map NULL: there is none. */
typedef struct {
    void *map;
    uint32_t n_blocks, n_embd;
    uint64_t bytes;
} journal;

uint64_t journal_bytes(uint32_t n_blocks, uint32_t n_embd); /* of the mapping */
bool journal_valid(const journal_header *h, uint64_t bytes);

/* Create and seal (coordinator); map what fd holds (stages). ST_RESOURCES, ST_PROTOCOL. */
MUST_USE status journal_create(int *fd, uint32_t n_blocks, uint32_t n_embd, errmsg *e);
MUST_USE status journal_map(journal *out, int fd, errmsg *e);
void journal_unmap(journal *j);

/* block < n_blocks, at < JOURNAL_BLOCK; rows of one block are neighbours. */
_Atomic uint64_t *journal_commit(const journal *j, uint32_t block, uint32_t at);
float *journal_row(const journal *j, uint32_t block, uint32_t at);

#endif
