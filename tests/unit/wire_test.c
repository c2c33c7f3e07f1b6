/* Control messages: a good one of each kind is taken, and no byte string of another shape is. */
#include "tests/support/tap.h"

#include "common/wire.h"
#include "tests/support/wire_example.h"

#include <stdlib.h>
#include <string.h>

static _Alignas(16) unsigned char frame[1 << 16];

static wire_header *head(wire_kind kind, uint32_t body_bytes)
{
    memset(frame, 0, sizeof frame);
    wire_header *h = (wire_header *)frame;
    *h = (wire_header){.magic = WIRE_MAGIC, .version = WIRE_VERSION, .kind = (uint16_t)kind,
                       .stage = 1, .epoch = 1, .body_bytes = body_bytes};
    return h;
}

static wire_config *good_config(void)
{
    head(WIRE_CONFIG, sizeof(wire_config));
    wire_config *c = (wire_config *)(frame + sizeof(wire_header));
    *c = wire_example_config();
    return c;
}

#define CONFIG_BYTES (sizeof(wire_header) + sizeof(wire_config))

static void config_fields_have_bounds(void **state)
{
    (void)state;
    good_config();
    assert_true(wire_valid(frame, CONFIG_BYTES));
#define BAD(change)                                                                                \
    do {                                                                                           \
        wire_config *c = good_config();                                                            \
        change;                                                                                    \
        assert_false(wire_valid(frame, CONFIG_BYTES));                                             \
    } while (0)
    BAD(c->edge_epoch = 0);
    BAD(c->n_stages = 0);
    BAD(c->n_stages = STAGES_MAX + 1);
    BAD(c->stage_i = 2);
    BAD(c->layer_begin = 4);
    BAD(c->layer_end = 5);
    BAD(c->n_ctx = 0);
    BAD(c->n_branches = 0);
    BAD(c->rows_max = 0);
    BAD(c->rows_max = WIRE_ROWS_MAX + 1);
    BAD(c->n_readback = 0);
    BAD(c->kv_type = DT_Q8_0);
    BAD(c->device = DEVICE_AUTO);
    BAD(c->device = DEVICE_CPU_NODE);
    BAD(c->device = DEVICE_CUDA + 1);
    BAD(memset(c->cuda_uuid, 'x', sizeof c->cuda_uuid));
    BAD(c->n_threads = 0);
    BAD(c->run_block_fd = -1);
    BAD(c->trace_fd = -1);
    BAD(c->readback_fd = -1);
    BAD(c->in_fd = -1);
    BAD(c->out_fd = -1);
    BAD(c->journal_in_fd = -2);
    BAD(c->journal_out_fd = -2);
    BAD(c->n_seam = 0);
    BAD(c->n_seam = 2); /* it has neighbours */
    BAD(c->loan_fd = -2);
    BAD(c->loan_fd = -1); /* what are the loans for then */
    BAD(c->loans = 0);
    BAD(c->loans = 4);
    BAD(c->range[0] = 1);
    BAD(c->range[1] = 3);
    BAD(c->range[1] = 0);
    BAD(c->range[2] = 5);
    BAD(c->n_model_fds = 0);
    BAD(c->n_model_fds = GGUF_FILES_MAX + 1);
    BAD(c->transport = TRANSPORT_SHM + 1);
    BAD(c->signal = SIGNAL_SPIN + 1);
    BAD(memset(c->isa, 'x', sizeof c->isa));
    BAD(memset(c->fault, 'x', sizeof c->fault));
    BAD(memset(c->build, 'x', sizeof c->build));
}

static uint64_t good_step(uint32_t n_ops, uint32_t n_rows, uint32_t n_samplers)
{
    const wire_step made = {.flags = STEP_PRIME, .slot = 1, .n_kv_ops = n_ops, .n_rows = n_rows,
                            .n_samplers = n_samplers, .n_stops = 2, .rounds = 3, .n_groups = 2};
    uint64_t bytes = wire_step_bytes(&made);
    head(WIRE_STEP, (uint32_t)(bytes - sizeof(wire_header)));
    *(wire_step *)(frame + sizeof(wire_header)) = made;
    step_view v = wire_step_view(frame);
    for (uint32_t i = 0; i < n_rows; i++) {
        ((wire_row *)v.rows)[i] = (wire_row){.flags = ROW_LIVE | ROW_SAMPLE,
                                             .readback = WIRE_NONE,
                                             .stop_i = i % 2 == 0 ? WIRE_NONE : 1,
                                             .rounds = 1 + i % 3};
    }
    ((wire_stops *)v.stops)[1].n = WIRE_STOP_IDS;
    ((uint32_t *)v.group_end)[0] = n_rows / 2;
    ((uint32_t *)v.group_end)[1] = n_rows;
    return bytes;
}

static void step_arrays_lie_inside(void **state)
{
    (void)state;
    wire_step *s = (wire_step *)(frame + sizeof(wire_header));
    assert_true(wire_valid(frame, good_step(0, 0, 0)));
    uint64_t bytes = good_step(3, 5, 2);
    assert_true(wire_valid(frame, bytes));
    step_view v = wire_step_view(frame);
    assert_true((const unsigned char *)(v.group_end + 2) == frame + bytes);
    assert_int_equal((uintptr_t)v.rows % _Alignof(wire_row), 0);
    assert_int_equal((uintptr_t)v.samplers % _Alignof(sampler_params), 0);
#define BAD_STEP(change)                                                                           \
    do {                                                                                           \
        bytes = good_step(3, 5, 2);                                                                \
        change;                                                                                    \
        assert_false(wire_valid(frame, bytes));                                                    \
    } while (0)
    BAD_STEP(s->n_rows = 6);
    BAD_STEP(s->n_rows = UINT32_MAX);
    BAD_STEP(s->n_kv_ops = UINT32_MAX);
    BAD_STEP(s->n_samplers = UINT32_MAX);
    BAD_STEP(s->slot = 2);
    BAD_STEP(s->flags = 0x80000000u);
    BAD_STEP(s->flags |= STEP_VERIFY); /* it is a prompt */
    BAD_STEP(s->flags = STEP_VERIFY);  /* of several rounds */
    BAD_STEP(s->flags |= STEP_GOES_ON); /* it is a prompt */
    BAD_STEP(s->flags |= STEP_UNSPLIT); /* it has operations */
    BAD_STEP(s->flags |= STEP_AHEAD); /* it is a prompt */
    BAD_STEP(s->rounds = 0);
    BAD_STEP(s->rounds = WIRE_ROUNDS_MAX + 1);
    BAD_STEP(s->rounds = 2); /* row 2 has three */
    BAD_STEP(s->n_groups = 0);
    BAD_STEP(s->n_groups = 3);
    BAD_STEP(s->n_groups = UINT32_MAX);
    BAD_STEP(s->n_stops = UINT32_MAX);
    BAD_STEP(((wire_row *)v.rows)[4].rounds = 0);
    BAD_STEP(((wire_row *)v.rows)[4].stop_i = 2);
    BAD_STEP(((wire_row *)v.rows)[4].flags = ROW_LIVE);
    BAD_STEP(((wire_row *)v.rows)[4].flags |= ROW_LOGITS);
    BAD_STEP(((wire_row *)v.rows)[4].readback = 0);
    BAD_STEP(((wire_stops *)v.stops)[0].n = WIRE_STOP_IDS + 1);
    BAD_STEP(((uint32_t *)v.group_end)[0] = 6);
    BAD_STEP(((uint32_t *)v.group_end)[1] = 1);
    BAD_STEP(((uint32_t *)v.group_end)[1] = 4);
    BAD_STEP(bytes--);
    BAD_STEP(bytes++);
    /* 2^32 bytes of rows wrap a 32-bit size to what is there; 64-bit sums do not. */
    BAD_STEP((s->n_rows = 5 + 0x80000000u, s->n_kv_ops = 3 + 0x40000000u));
}

static void recovery_messages_are_checked(void **state)
{
    (void)state;
    wire_step *s = (wire_step *)(frame + sizeof(wire_header));
    uint64_t bytes = good_step(1, 2, 0);
    s->flags = STEP_RESET;
    assert_false(wire_valid(frame, bytes)); /* a step never resets */
    ((wire_header *)frame)->kind = WIRE_REPLAY;
    assert_false(wire_valid(frame, bytes)); /* nor has a replay rounds or groups */
    const wire_step made = {.flags = STEP_RESET, .rounds = 1, .n_groups = 1};
    bytes = wire_step_bytes(&made);
    head(WIRE_REPLAY, (uint32_t)(bytes - sizeof(wire_header)));
    *s = made;
    assert_true(wire_valid(frame, bytes));
    s->flags = STEP_RESET | STEP_THROUGH;
    assert_true(wire_valid(frame, bytes));
    s->flags = STEP_OVERLAP;
    assert_false(wire_valid(frame, bytes));
    head(WIRE_QUIESCE, 0);
    assert_true(wire_valid(frame, sizeof(wire_header)));
    wire_reattach *r = (wire_reattach *)(head(WIRE_REATTACH, sizeof *r) + 1);
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof *r));
    r->edge_epoch = 2;
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof *r));
    head(WIRE_QUIESCED, sizeof(wire_quiesced));
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof(wire_quiesced)));
    head(WIRE_QUIESCED, sizeof(wire_quiesced) - 1);
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_quiesced) - 1));
    head(WIRE_POISONED, sizeof(wire_poisoned));
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof(wire_poisoned)));
    head(WIRE_POISONED, sizeof(wire_poisoned) + 4);
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_poisoned) + 4));
    head(WIRE_REPLAYED, sizeof(wire_replayed));
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof(wire_replayed)));
}

static void heads_are_checked(void **state)
{
    (void)state;
    wire_header *h = head(WIRE_STOP, 0);
    assert_true(wire_valid(frame, sizeof *h));
    assert_false(wire_valid(frame, 0));
    assert_false(wire_valid(frame, sizeof *h - 1));
    assert_false(wire_valid(frame, sizeof *h + 1));
    h->magic++;
    assert_false(wire_valid(frame, sizeof *h));
    h = head(WIRE_STOP, 0);
    h->version++;
    assert_false(wire_valid(frame, sizeof *h));
    h = head(0, 0);
    assert_false(wire_valid(frame, sizeof *h));
    h = head(99, 0);
    assert_false(wire_valid(frame, sizeof *h));
    h = head(WIRE_STOP, 0);
    h->stage = STAGES_MAX;
    assert_false(wire_valid(frame, sizeof *h));
}

static void texts_are_terminated(void **state)
{
    (void)state;
    head(WIRE_HELLO, sizeof(wire_hello));
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof(wire_hello)));
    memset(frame + sizeof(wire_header), 'x', sizeof(wire_hello));
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_hello)));
    head(WIRE_FAULT, sizeof(wire_fault));
    wire_fault *f = (wire_fault *)(frame + sizeof(wire_header));
    assert_true(wire_valid(frame, sizeof(wire_header) + sizeof(wire_fault)));
    f->code = STATUS_COUNT;
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_fault)));
    f->code = 0;
    memset(f->text, 'x', sizeof f->text);
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_fault)));
    head(WIRE_LOADED, sizeof(wire_loaded));
    memset(frame + sizeof(wire_header), 'x', sizeof(wire_loaded));
    assert_false(wire_valid(frame, sizeof(wire_header) + sizeof(wire_loaded)));
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_checked),
        cmocka_unit_test(config_fields_have_bounds),
        cmocka_unit_test(step_arrays_lie_inside),
        cmocka_unit_test(texts_are_terminated),
        cmocka_unit_test(recovery_messages_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
