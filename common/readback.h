/* readback.h - where the last stage commits results: shared host memory of the coordinator.
 *
 * [n_branches] rings of tokens and [n_rows] rows, each one line of words and n_vocab logits. The
 * last stage writes what was drawn, then sets `commit` (release) to the step's sequence: the commit
 * point. The coordinator hands out row ids; a ring's entry is the position of the row whose logits
 * gave the token, modulo READBACK_RING: steps in flight do not have more positions of one branch
 * than that. A token is compared with n_vocab by the coordinator before it is used. */
#ifndef COMMON_READBACK_H
#define COMMON_READBACK_H

#include "common/runblock.h"

#include <stdbool.h>

#define READBACK_MAGIC 0x4b424452u /* "RDBK" */

#define READBACK_RING 64u

typedef struct {
    uint32_t magic, n_rows, n_vocab, n_branches;
    uint64_t row_bytes, bytes;
} readback_header;

typedef struct {
    _Atomic uint64_t commit; /* as in a row */
    uint32_t token, status;
} readback_token;

typedef struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t commit; /* the step's seq; 0: nothing */
    uint32_t token;                               /* TOKEN_NONE when none was asked for */
    uint32_t status;                              /* status of the row: ST_OK or ST_NAN */
    float logits[];                               /* [n_vocab], at offset 16 of the line */
} readback_row;

/* One process's view: sizes are its own copies, checked once, so that nothing another process
 * writes into the header later moves an address. */
typedef struct {
    void *map;
    uint32_t n_rows, n_vocab, n_branches;
    uint64_t row_bytes, bytes;
} readback;

uint64_t readback_bytes(uint32_t n_rows, uint32_t n_vocab, uint32_t n_branches);
bool readback_valid(const readback_header *h, uint64_t bytes);
/* Create and seal (coordinator); map what fd holds (last stage). ST_RESOURCES, ST_PROTOCOL. */
MUST_USE status readback_create(readback *out, int *fd, uint32_t n_rows, uint32_t n_vocab,
                                uint32_t n_branches, errmsg *e);
MUST_USE status readback_map(readback *out, int fd, errmsg *e);
void readback_unmap(readback *r);
/* i < n_rows */
readback_row *readback_row_at(const readback *r, uint32_t i);
/* branch < n_branches */
readback_token *readback_token_at(const readback *r, uint32_t branch, uint32_t position);

#endif
