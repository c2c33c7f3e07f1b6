/* fits.h - whether a stage fits on its device, asked before anything is allocated there, and whether it
 * took what was foretold. Devices without memory of their own are the coordinator's to count. */
#ifndef STAGE_FITS_H
#define STAGE_FITS_H

#include "kernels/backend.h"
#include "stage/weights.h"

typedef struct {
    const backend *backend;
    backend_device *device;
    uint32_t stage_i, layer_begin, layer_end, n_ctx;
    uint64_t weights_bytes, kv_bytes, scratch_bytes, slots_bytes; /* on the device */
    uint64_t load_bytes;                                          /* there too, while weights come */
} device_need;

/* ST_RESOURCES naming the stage, its layers, what it needs, what is free and what would fit. */
MUST_USE status fits_check(const device_need *n, errmsg *e);

/* Weights went to this device and nowhere else: before and after the load, what it holds has grown by
 * what they take. ST_PROTOCOL: it has not. */
MUST_USE status fits_begin_load(const device_need *n, uint64_t *held_bytes, errmsg *e);
MUST_USE status fits_end_load(const device_need *n, uint64_t held_bytes, errmsg *e);

#endif
