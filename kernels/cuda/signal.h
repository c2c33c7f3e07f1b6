/* signal.h - the kernels of a boundary between devices: rows stored with a release of the
 * receiver's word, and taken after an acquire of it (peer.c has the protocol). Plain types: C and
 * CUDA C++. */
#ifndef KERNELS_CUDA_SIGNAL_H
#define KERNELS_CUDA_SIGNAL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/came.h"

#ifdef __CUDACC__
#define SIGNAL_BOTH_SIDES __host__ __device__
#else
#define SIGNAL_BOTH_SIDES
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a take waits for. All in the waiter's own memory, of device or host. */
typedef struct {
    const uint64_t *word;   /* device: epoch << 32 | count */
    const uint64_t *poison; /* host: the epoch that is poisoned */
    uint64_t want;          /* the word's value; its upper half is the epoch */
    bool spin;              /* false: the stream has waited for the word already */
} signal_wait;

/* The word of a poisoned epoch: beyond every count, so that a wait for "at least" ends too. */
static inline SIGNAL_BOTH_SIDES uint64_t signal_poisoned(uint64_t value)
{
    return value | 0xffffffffu;
}

/* Lines of came.h in the receiver's memory, of device or host: those of a message's bytes, 8 in
 * each, then one for each of its rows. Nobody waits for one word before another: this is the
 * shortest way from one device to another. */
#define SIGNAL_LINE_BYTES 16u
typedef struct {
    void *line;
    uint32_t flag;   /* of the message: never 0, and no older line's */
    bool beside;     /* more of the message has been, or will be, copied on the stream */
} signal_lane;

/* The rows of a message as the stage has them on its device. came NULL: rows of no interest
 * here. */
typedef struct {
    uint32_t *tokens;
    uint8_t *live;
    const uint8_t *finite; /* NULL: nobody asks */
    rows_came *came;
    uint32_t n_rows;
    uint16_t mark;
} signal_rows;

/* bytes (a multiple of 16) of `from`, then the rows. Nothing, when what came before is gone. */
cudaError_t cuda_signal_send(cudaStream_t s, const signal_lane *l, const void *from, uint64_t bytes,
                             const signal_rows *r);
/* Until all of it is there, or the epoch is poisoned: bytes to `to`, and the rows, dead then.
 * valid: as cuda_signal_take, NULL: nobody asks. */
cudaError_t cuda_signal_catch(cudaStream_t s, const signal_lane *l, const uint64_t *poison,
                              uint64_t value, void *to, uint64_t bytes, const signal_rows *r,
                              uint64_t *valid);

/* The release alone, behind a copy on the stream. */
cudaError_t cuda_signal_release(cudaStream_t s, uint64_t *word, uint64_t value);
/* By a word, in the stream's turn: wait, copy bytes if it is the wanted one, tell *valid (host):
 * want, or signal_poisoned. */
cudaError_t cuda_signal_take(cudaStream_t s, const signal_wait *w, void *to, const void *from,
                             uint64_t bytes, uint64_t *valid);
/* The same in parts, around a copy on the stream: *outcome lies on the device. */
cudaError_t cuda_signal_wait(cudaStream_t s, const signal_wait *w, uint64_t *outcome);
cudaError_t cuda_signal_tell(cudaStream_t s, const uint64_t *outcome, uint64_t *valid);
/* What had to be waited for is there: tell value. */
cudaError_t cuda_signal_tell_value(cudaStream_t s, uint64_t value, uint64_t *valid);

#ifdef __cplusplus
}
#endif

#endif
