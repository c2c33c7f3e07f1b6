/* wire_seeds.c - a good frame of each kind, and of each kind of step, for wire_fuzz to start from:
 * wire_seeds DIR. Byte 0 of a seed is wire_fuzz's own: 0, the head is taken as it is. */
#include "common/wire.h"
#include "tests/support/wire_example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void save(const char *dir, const char *name, wire_kind kind, const void *body,
                 uint64_t bytes)
{
    wire_header h = {.magic = WIRE_MAGIC,
                     .version = WIRE_VERSION,
                     .kind = (uint16_t)kind,
                     .stage = 1,
                     .epoch = 1,
                     .body_bytes = (uint32_t)bytes,
                     .seq = 7};
    uint64_t frame_bytes = sizeof h + bytes;
    unsigned char *frame = aligned_alloc(16, (frame_bytes + 15) / 16 * 16);
    CHECK(frame != NULL);
    memcpy(frame, &h, sizeof h);
    if (bytes > 0) memcpy(frame + sizeof h, body, bytes);
    if (!wire_valid(frame, frame_bytes)) { /* a rule has changed: the seed must follow */
        fprintf(stderr, "wire_seeds: the seed %s is not a valid frame\n", name);
        exit(1);
    }
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fputc(0, f) == 0 && fwrite(frame, 1, frame_bytes, f) == frame_bytes &&
          fclose(f) == 0);
    free(frame);
}

/* Of two groups (REPLAY: one), with two of everything; without operations on KV where asked. */
static void save_step(const char *dir, const char *name, wire_kind kind, uint32_t flags,
                      uint32_t rounds)
{
    struct {
        wire_step step;
        wire_row row[2];
        sampler_params sampler[2];
        unsigned char rest[2 * sizeof(wire_kv_op) + 2 * sizeof(wire_stops) + 2 * sizeof(uint32_t)];
    } body = {.step = {.flags = flags,
                       .n_kv_ops = (flags & STEP_UNSPLIT) != 0 ? 0 : 2,
                       .n_rows = 2,
                       .n_samplers = 2,
                       .n_stops = 2,
                       .rounds = rounds,
                       .n_groups = kind == WIRE_REPLAY ? 1 : 2}};
    for (uint32_t i = 0; i < 2; i++) {
        body.row[i] = (wire_row){.session = i,
                                 .branch = i,
                                 .position = 3,
                                 .token = 5,
                                 .flags = ROW_LIVE | ROW_SAMPLE,
                                 .readback = WIRE_NONE,
                                 .sampler_i = i,
                                 .stop_i = i,
                                 .rounds = rounds};
        body.sampler[i] = sampler_default();
    }
    unsigned char *at = body.rest;
    for (uint32_t i = 0; i < body.step.n_kv_ops; i++, at += sizeof(wire_kv_op))
        memcpy(at, &(wire_kv_op){.kind = KV_OPEN + i, .branch = i}, sizeof(wire_kv_op));
    for (uint32_t i = 0; i < 2; i++, at += sizeof(wire_stops))
        memcpy(at, &(wire_stops){.n = WIRE_STOP_IDS}, sizeof(wire_stops));
    for (uint32_t g = 0; g < body.step.n_groups; g++, at += sizeof(uint32_t))
        memcpy(at, &(uint32_t){g + 1 == body.step.n_groups ? 2 : 1}, sizeof(uint32_t));
    save(dir, name, kind, &body, wire_step_bytes(&body.step) - sizeof(wire_header));
}

static void save_steps(const char *dir)
{
    save_step(dir, "step-decode", WIRE_STEP, STEP_OVERLAP, 1);
    save_step(dir, "step-prompt", WIRE_STEP, STEP_PRIME | STEP_PRIME_PIPE, 1);
    save_step(dir, "step-verify", WIRE_STEP, STEP_VERIFY, 1);
    save_step(dir, "step-rounds", WIRE_STEP, STEP_OVERLAP, WIRE_ROUNDS_MAX);
    save_step(dir, "step-goes-on", WIRE_STEP, STEP_OVERLAP | STEP_GOES_ON, 4);
    save_step(dir, "step-ahead", WIRE_STEP, STEP_OVERLAP | STEP_AHEAD, 4);
    save_step(dir, "step-unsplit", WIRE_STEP, STEP_UNSPLIT, 4);
    save_step(dir, "step-unsplit-prompt", WIRE_STEP, STEP_UNSPLIT | STEP_PRIME, 1);
    save_step(dir, "replay", WIRE_REPLAY, STEP_RESET | STEP_OVERWRITTEN, 1);
    save_step(dir, "replay-through", WIRE_REPLAY, STEP_THROUGH, 1);
}

static void save_configs(const char *dir)
{
    wire_config split = wire_example_config();
    split.trace_fd = 9;
    split.loans = LOAN_UNSPLIT | LOAN_GATHERED;
    save(dir, "config-lends", WIRE_CONFIG, &split, sizeof split);
    wire_config seam = split;
    seam.stage_i = seam.layer_begin = seam.loans = 0;
    seam.n_stages = 1;
    seam.n_seam = 2;
    seam.in_fd = seam.out_fd = seam.journal_in_fd = seam.loan_fd = -1;
    save(dir, "config-seam", WIRE_CONFIG, &seam, sizeof seam);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: wire_seeds DIR\n");
        return 2;
    }
    const char *dir = argv[1];
    save_steps(dir);
    save_configs(dir);
#define SAVE(name, kind, type, ...) save(dir, name, kind, &(type){__VA_ARGS__}, sizeof(type))
    SAVE("hello", WIRE_HELLO, wire_hello, .build = "b", .pid = 1);
    SAVE("loaded", WIRE_LOADED, wire_loaded, .device_name = "d");
    SAVE("probed", WIRE_PROBED, wire_probed, .n_probes = 1, .transport = "copy");
    SAVE("result", WIRE_RESULT, wire_result, .n_rows = 2, .round = 1, .group = 1);
    SAVE("poisoned", WIRE_POISONED, wire_poisoned, .session = 1, .position = 3, .stage = 1,
         .in_logits = 1);
    SAVE("quiesced", WIRE_QUIESCED, wire_quiesced, .applied_seq = 6);
    SAVE("reattach", WIRE_REATTACH, wire_reattach, .edge_epoch = 2);
    SAVE("replayed", WIRE_REPLAYED, wire_replayed, .n = 1, .missing = 1);
    SAVE("fault", WIRE_FAULT, wire_fault, .code = ST_PROTOCOL, .text = "t");
    save(dir, "probe", WIRE_PROBE, NULL, 0);
    save(dir, "quiesce", WIRE_QUIESCE, NULL, 0);
    save(dir, "stop", WIRE_STOP, NULL, 0);
    save(dir, "bye", WIRE_BYE, NULL, 0);
    return 0;
}
