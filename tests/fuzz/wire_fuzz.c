/* Frames from the other side of a socket: wire_valid reads nothing outside them, and what it takes
 * can be walked whole. */
#include "common/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum_bytes(const void *from, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += ((const unsigned char *)from)[i];
    return sum;
}

/* Kinds in their order, whatever their numbers are. */
static uint16_t nth_kind(uint32_t n)
{
    static const uint16_t kinds[] = {
#define X(name, number) name,
        WIRE_KIND_LIST(X)
#undef X
    };
    return kinds[n % (sizeof kinds / sizeof *kinds)];
}

/* What a valid step or replay promises to those who walk it. */
static void walk_step(const void *frame)
{
    step_view v = wire_step_view(frame);
    const wire_step *s = v.step;
    volatile uint64_t sum = sum_bytes(v.rows, s->n_rows * sizeof *v.rows) +
                            sum_bytes(v.samplers, s->n_samplers * sizeof *v.samplers) +
                            sum_bytes(v.kv_ops, s->n_kv_ops * sizeof *v.kv_ops) +
                            sum_bytes(v.stops, s->n_stops * sizeof *v.stops) +
                            sum_bytes(v.group_end, s->n_groups * sizeof *v.group_end);
    (void)sum;
    CHECK(wire_step_bytes(s) <= wire_frame_bytes_max() && s->slot < 2);
    CHECK(s->rounds >= 1 && s->rounds <= WIRE_ROUNDS_MAX);
    for (uint32_t g = 0; g < s->n_groups; g++)
        CHECK(v.group_end[g] <= s->n_rows);
    for (uint32_t i = 0; i < s->n_stops; i++)
        CHECK(v.stops[i].n <= WIRE_STOP_IDS);
    for (uint32_t i = 0; i < s->n_rows; i++)
        CHECK(v.rows[i].stop_i == WIRE_NONE || v.rows[i].stop_i < s->n_stops);
    if ((s->flags & STEP_UNSPLIT) != 0) CHECK(s->n_kv_ops == 0);
    if ((s->flags & STEP_GOES_ON) != 0) CHECK((s->flags & (STEP_PRIME | STEP_VERIFY)) == 0);
    for (uint32_t g = 0, begin = 0; (s->flags & STEP_AHEAD) != 0 && g < s->n_groups;
         begin = v.group_end[g++])
        CHECK(v.group_end[g] - begin <= WIRE_AHEAD_ROWS);
    if (wire_head(frame)->kind == WIRE_REPLAY) CHECK(s->rounds == 1 && s->n_groups == 1);
}

/* What a valid configuration promises to the stage that reads its ranges and texts. */
static void walk_config(const wire_config *c)
{
    CHECK(strlen(c->build) < sizeof c->build && strlen(c->isa) < sizeof c->isa);
    CHECK(strlen(c->cuda_uuid) < sizeof c->cuda_uuid && strlen(c->fault) < sizeof c->fault);
    CHECK(c->stage_i < c->n_stages && c->n_stages <= STAGES_MAX &&
          c->n_model_fds <= GGUF_FILES_MAX);
    if (c->loans == 0 && c->n_seam == 1) return;
    uint32_t n = c->n_seam > 1 ? c->n_seam : c->n_stages;
    for (uint32_t s = 0; s < n; s++)
        CHECK(c->range[s] < c->range[s + 1] && c->range[s + 1] <= c->n_layers);
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
        h->kind = nth_kind(h->kind);
        h->stage %= STAGES_MAX;
        h->body_bytes = (uint32_t)(bytes - sizeof *h);
    }
    /* An exact copy, so that a byte too far is seen. */
    unsigned char *exact = malloc(bytes + (bytes == 0));
    memcpy(exact, frame, bytes);
    volatile bool valid = wire_valid(exact, bytes);
    if (valid) {
        uint16_t kind = wire_head(exact)->kind;
        CHECK(strcmp(wire_kind_word(kind), "unknown") != 0);
        if (kind == WIRE_STEP || kind == WIRE_REPLAY) walk_step(exact);
        if (kind == WIRE_CONFIG) walk_config(wire_body(exact));
    }
    free(exact);
    free(frame);
    return 0;
}
