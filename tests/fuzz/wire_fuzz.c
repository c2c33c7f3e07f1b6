/* Frames from the other side of a socket: wire_valid reads nothing outside them, and what it takes
 * can be walked whole. */
#include "common/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum_bytes(const void *from, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++) sum += ((const unsigned char *)from)[i];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Byte 0 decides whether the head is made right, so that bodies are reached. */
    if (size < 1) return 0;
    size_t bytes = size - 1;
    unsigned char *frame = aligned_alloc(16, (bytes + 16) / 16 * 16);
    memcpy(frame, data + 1, bytes);
    if ((data[0] & 1) != 0 && bytes >= sizeof(wire_header)) {
        wire_header *h = (wire_header *)frame;
        h->magic = WIRE_MAGIC;
        h->version = WIRE_VERSION;
        h->kind = (uint16_t)(1 + h->kind % 10);
        h->stage %= STAGES_MAX;
        h->body_bytes = (uint32_t)(bytes - sizeof *h);
    }
    /* An exact copy, so that a byte too far is seen. */
    unsigned char *exact = malloc(bytes + (bytes == 0));
    memcpy(exact, frame, bytes);
    volatile bool valid = wire_valid(exact, bytes);
    if (valid && wire_head(exact)->kind == WIRE_STEP) {
        step_view v = wire_step_view(exact);
        volatile uint64_t sum = sum_bytes(v.rows, v.step->n_rows * sizeof *v.rows) +
                                sum_bytes(v.samplers, v.step->n_samplers * sizeof *v.samplers) +
                                sum_bytes(v.kv_ops, v.step->n_kv_ops * sizeof *v.kv_ops) +
                                sum_bytes(v.stops, v.step->n_stops * sizeof *v.stops) +
                                sum_bytes(v.group_end, v.step->n_groups * sizeof *v.group_end);
        for (uint32_t g = 0; g < v.step->n_groups; g++)
            CHECK(v.group_end[g] <= v.step->n_rows);
        (void)sum;
    }
    free(exact);
    free(frame);
    return 0;
}
