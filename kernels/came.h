/* came.h - what the device itself says of the rows of a round: the token that was drawn for each,
 * whether it lives, and where it was found to hold NaN or infinity. It travels behind the hidden
 * state, from one stage's device to the next, where rounds are put behind each other on the devices
 * (stage/ring.h). Plain types: C and CUDA C++. */
#ifndef KERNELS_CAME_H
#define KERNELS_CAME_H

#include <stdint.h>

#ifdef __CUDACC__
#define CAME_BOTH_SIDES __host__ __device__
#else
#define CAME_BOTH_SIDES
#endif

#define CAME_ROWS 64u /* of one message, at most */

typedef struct {
    uint32_t token;
    uint16_t live; /* 1 or 0 */
    uint16_t mark; /* poison_mark of common/boundary.h; 0: none */
} came_row;

/* How the last take on a queue ended, in the taker's memory. */
typedef struct {
    uint32_t gone; /* 1: it was aborted; all rows are dead, and nothing is sent on */
    uint32_t reserved;
    came_row row[CAME_ROWS];
} rows_came;

/* Rows travel as lines of two words, each with the message's flag in its upper half, so that
 * whoever reads a word whole knows that it is of this message: no word need be waited for before
 * another. */
static inline CAME_BOTH_SIDES uint64_t came_word(uint32_t flag, uint32_t data)
{
    return (uint64_t)flag << 32 | data;
}

static inline CAME_BOTH_SIDES uint32_t came_state(came_row r)
{
    return (uint32_t)r.live | (uint32_t)r.mark << 16;
}

static inline CAME_BOTH_SIDES came_row came_row_of(uint32_t token, uint32_t state)
{
    came_row r;
    r.token = token;
    r.live = state & 1;
    r.mark = (uint16_t)(state >> 16);
    return r;
}

/* The mark of a row that leaves a stage: the one it came with, or the stage's own where its hidden
 * state was found not to be finite. A mark of 0 for `own`: the stage draws tokens, and a marked row
 * ends. */
static inline CAME_BOTH_SIDES came_row came_leaves(came_row came, uint32_t token, uint32_t live,
                                                   uint32_t not_finite, uint16_t own)
{
    came_row r;
    r.token = token;
    r.live = live != 0;
    r.mark = came.mark;
    if (own != 0 && came.mark == 0 && live != 0 && not_finite != 0) r.mark = own;
    if (own == 0 && came.mark != 0) r.live = 0;
    return r;
}

#endif
