/* loader.h - bytes of the model's file on their way to a device.
 *
 * Each of its threads brings pieces into pinned memory of its own and puts their copy and their
 * repacking on a stream of its own, so that reading, the bus and the kernels overlap, within a
 * weight and from one to the next, and nobody waits for another's piece. Pinned memory and its
 * image on the device are there while it is open only (LOADER_BYTES each, at most).
 *
 * What lies in a file is read, not copied out of its mapping: pages that nobody touched there need
 * not be unmapped when the process is killed, which took 15 ms a GB before another could take its
 * place. */
#ifndef KERNELS_CUDA_LOADER_H
#define KERNELS_CUDA_LOADER_H

#include "kernels/cuda/device.h"

#define LOADER_THREADS_MAX 8u
#define LOADER_PIECE_BYTES (4ull << 20)
#define LOADER_BYTES       (LOADER_THREADS_MAX * 2 * LOADER_PIECE_BYTES)

/* At most LOADER_PIECE_BYTES: bytes as they are (FORM_ROWS), or n_rows rows of a matrix to tiles of
 * another form, as cuda_repack. What it points to must stay until the loader is closed. */
typedef struct {
    void *to;
    const void *from;
    uint64_t bytes;
    cuda_form form;
    dtype type;
    uint32_t n_in, n_rows;
    uint32_t *max_bits;
} load_piece;

typedef struct loader loader;

/* parts: as backend.h's weights_begin. ST_RESOURCES: no thread. What else a thread lacks is told by
 * loader_close. */
MUST_USE status loader_open(loader **out, backend_device *d, uint32_t n_threads,
                            const file_part *parts, uint32_t n_parts, errmsg *e);

/* May wait for room. One thread; a fault is told by loader_close, and pieces after it are left out.
 */
void loader_put(loader *l, const load_piece *p);

/* Wait until all pieces are in place, and free it. ST_BAD_MODEL: one could not be read;
 * ST_RESOURCES: no memory for what a thread needs; ST_DEVICE. */
status loader_close(loader *l, errmsg *e);

#endif
