/* pinned.h - host memory that other processes share, made known to the device as far as it is used, so
 * that the device's copies go straight there.
 *
 * A thread of its own works from the beginning on, PINNED_AHEAD_BYTES further than what is used: it has
 * the pages made, which takes longer than all else, and pins them in pieces. What it cannot have pinned
 * stays as it is: nobody may rely on it. */
#ifndef STAGE_PINNED_H
#define STAGE_PINNED_H

#include "kernels/backend.h"

#define PINNED_AHEAD_BYTES (256ull << 20)
#define PINNED_PIECE_BYTES (32ull << 20) /* from the mapping's begin on; no copy may go over a border */

typedef struct pinned pinned;

/* [map, map + bytes), a mapping, which is there until pinned_close; q: of the device, open as long.
 * *out NULL where the device pins nothing. ST_RESOURCES: no memory, no thread. */
MUST_USE status pinned_open(pinned **out, const backend *b, backend_queue *q, void *map, uint64_t bytes,
                            errmsg *e);
/* No copy to it is under way. NULL: nothing. */
void pinned_close(pinned *p);

/* The first `end` bytes are used. p NULL: nothing. */
void pinned_use(pinned *p, uint64_t end);
/* So many bytes, from the first on, are pinned. p NULL: none. */
uint64_t pinned_end(const pinned *p);

#endif
