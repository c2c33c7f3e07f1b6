/* loan.h - what stages lend each other: one shared mapping in which each says where it lies.
 *
 * A walk of the whole model on the primary needs the other stages' weights, K and V where they are,
 * and stages whose weights all lie on the primary need those. The loan is the coordinator's memory
 * (a sealed memfd, made only where somebody may borrow); for each range of layers it has a page:
 *
 * kv       by class, written by the stage of the range when it has loaded: where its pools are
 * weights  written by whoever holds the range's weights, with an entry for each tensor, in the
 *          order of stage/weights.h; nothing where weights lie in the file's mapping, which all
 *          have
 *
 * A note is of one incarnation of its writer and void for any other. On the cpu the pools
 * themselves lie here, behind the pages; elsewhere a ticket says how to reach them
 * (kernels/loan.h). Whoever borrows compares every number with what it knows from the model before
 * it uses it. */
#ifndef COMMON_LOAN_H
#define COMMON_LOAN_H

#include "common/kvclass.h"
#include "common/model.h"
#include "common/runblock.h"

#define LOAN_TICKET_BYTES 128u

/* Opaque here: the device's. bytes 0: none is needed. */
typedef struct {
    uint32_t bytes, reserved;
    unsigned char data[LOAN_TICKET_BYTES];
} loan_ticket;

typedef struct {
    _Atomic uint32_t epoch; /* of the incarnation that wrote it, set last; 0: nothing is here */
    uint32_t n_entries;
    uint64_t bytes; /* of the allocation */
    loan_ticket ticket;
} loan_note;

/* One tensor in the allocation. */
typedef struct {
    uint64_t offset;
    int32_t exponent; /* dev_weight's */
    uint32_t reserved;
} loan_entry;

typedef struct {
    loan_note kv[KV_POOLS], weights;
} loan_page;

#define LOAN_ENTRIES_MODEL 8u  /* tensors of a range that are no layer's, at most */
#define LOAN_ENTRIES_LAYER 24u /* of a layer */

/* Where everything is, by one formula for all; offsets from the mapping's start. */
typedef struct {
    uint32_t n_stages;
    uint64_t page[STAGES_MAX], entries[STAGES_MAX];
    uint64_t kv[STAGES_MAX][KV_POOLS], kv_bytes[STAGES_MAX][KV_POOLS];
    uint32_t n_entries_max[STAGES_MAX];
    uint64_t bytes;
} loan_layout;

/* at: n_stages + 1 layers where ranges begin and end (fence.h). pools_here: the pools lie in it. */
void loan_layout_make(loan_layout *out, const model_desc *m, uint32_t n_stages, const uint32_t *at,
                      const uint32_t n_blocks[KV_POOLS], dtype kv_type, bool pools_here);

/* One process's view. map NULL: there is none. */
typedef struct {
    char *map;
    int fd; /* borrowed */
    loan_layout at;
} loan;

/* Create and seal (coordinator, which needs no mapping); map what fd holds, which has to be of the
 * layout's size (stages). ST_RESOURCES, ST_PROTOCOL. */
MUST_USE status loan_create(int *fd, const loan_layout *at, errmsg *e);
MUST_USE status loan_map(loan *out, int fd, const loan_layout *at, errmsg *e);
void loan_unmap(loan *l);

loan_page *loan_page_of(const loan *l, uint32_t range);
loan_entry *loan_entries_of(const loan *l, uint32_t range); /* [n_entries_max[range]] */

/* The rest of the note is written. */
void loan_publish(loan_note *n, uint32_t epoch);
/* A copy of the note, if it is of that incarnation. ST_PROTOCOL: it is not, or its numbers are not
 * possible; *e begins with `what`. */
MUST_USE status loan_read(loan_note *out, const loan_note *n, uint32_t epoch,
                          uint32_t n_entries_max, const char *what, errmsg *e);

#endif
