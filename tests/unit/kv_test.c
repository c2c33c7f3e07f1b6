/* Operations on the KV cache of one stage: books, device content, refusals. */
#include "stage/kv.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

#define N_LAYERS 2u
#define N_BLOCKS 6u
#define N_WINDOW 4u /* window blocks, for a model with windows */

typedef struct {
    const backend *b;
    backend_device *device;
    backend_queue *q;
    model_desc *m;
    char *host;
    kv_cache c;
} fixture;

static const stage_limits limits = {.n_ctx = 200,
                                    .n_branches = 3,
                                    .rows_max = 8,
                                    .n_readback = 4,
                                    .n_blocks = {N_BLOCKS, N_WINDOW},
                                    .last_stage = true};

static int begin(void **state)
{
    errmsg e = {0};
    host_layout at;
    fixture *f = calloc(1, sizeof *f);
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = 1, .isa = "auto"};
    f->b = backend_cpu();
    f->m = calloc(1, sizeof *f->m);
    f->m->n_kv_heads = 2;
    f->m->n_head = 16;
    f->m->n_vocab = 320;
    f->m->rope.n_rot = 16;
    host_layout_make(&at, f->m, &limits);
    f->host = calloc(1, at.bytes);
    assert_int_equal(f->b->device_open(&f->device, &spec, &e), ST_OK);
    assert_int_equal(f->b->queue_open(f->device, &f->q, &e), ST_OK);
    assert_int_equal(kv_open(&f->c, f->b, f->device, f->m, 0, N_LAYERS, DT_F32, &limits, f->host,
                             &at, NULL, &e),
                     ST_OK);
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    f->b->queue_close(f->q);
    kv_close(&f->c);
    f->b->device_close(f->device);
    free(f->host);
    free(f->m);
    free(f);
    return 0;
}

static status apply(fixture *f, wire_kv_op op, errmsg *e)
{
    errmsg_clear(e);
    return kv_ops(&f->c, f->q, &op, 1, e);
}

static void good(fixture *f, wire_kv_op op)
{
    errmsg e = {0};
    status s = apply(f, op, &e);
    if (s != ST_OK) print_error("# %s\n", e.text);
    assert_int_equal(s, ST_OK);
}

static void bad(fixture *f, wire_kv_op op, const char *part)
{
    errmsg e = {0};
    assert_int_equal(apply(f, op, &e), ST_PROTOCOL);
    if (strstr(e.text, part) == NULL) print_error("# %s does not say %s\n", e.text, part);
    assert_non_null(strstr(e.text, part));
}

static wire_kv_op op_of(kv_op_kind kind, uint32_t branch, uint32_t a, uint32_t b, uint32_t c)
{
    return (wire_kv_op){.kind = kind, .branch = branch, .generation = 7, .a = a, .b = b, .c = c};
}

static wire_row row_at(uint32_t branch, uint32_t position, uint32_t token)
{
    return (wire_row){
        .branch = branch, .generation = 7, .position = position, .token = token, .flags = ROW_LIVE};
}

/* Write value to one position of a block in all layers, as a kv_write of one row would. */
static void write_block(fixture *f, uint32_t branch, uint32_t position, float value)
{
    enum { WIDTH = 2 * 16 };
    float x[WIDTH];
    uint32_t tables[8], n_used = 0, at[KV_POOLS];
    wire_row r = row_at(branch, position, (uint32_t)value);
    errmsg e = {0};
    for (uint32_t i = 0; i < WIDTH; i++)
        x[i] = value;
    kv_step_begin(&f->c);
    assert_int_equal(kv_row_check(&f->c, &r, 0, &e), ST_OK);
    kv_row_place(&f->c, &r, tables, &n_used, at);
    uint8_t live = 1;
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        row_args rows = {{(uintptr_t)&position},
                         {(uintptr_t)&at[f->m->layer[i].kind]},
                         {(uintptr_t)tables},
                         {(uintptr_t)&live},
                         0,
                         0};
        kv_args layer = kv_layer(&f->c, i);
        assert_int_equal(f->b->kv_write(f->q, &layer, (dev_ptr){(uintptr_t)x},
                                        (dev_ptr){(uintptr_t)x}, &rows, 1),
                         ST_OK);
    }
}

/* The first value of a block's position in K of layer 0 and V of the last. */
static void expect_block(fixture *f, uint32_t block, uint32_t offset, float value)
{
    float got[2];
    kv_args first = kv_layer(&f->c, 0), last = kv_layer(&f->c, N_LAYERS - 1);
    uint64_t at = ((uint64_t)block * 2 * KV_BLOCK + offset) * 16 * sizeof(float);
    assert_int_equal(f->b->download(f->q, &got[0], dev_offset(first.k, at), sizeof(float)), ST_OK);
    assert_int_equal(f->b->download(f->q, &got[1], dev_offset(last.v, at), sizeof(float)), ST_OK);
    assert_true(got[0] == value && got[1] == value);
}

static void expect_users(fixture *f, const uint32_t users[N_BLOCKS])
{
    assert_memory_equal(f->c.pool[0].users, users, N_BLOCKS * sizeof *users);
}

static void tables_count_their_blocks(void **state)
{
    fixture *f = *state;
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    good(f, op_of(KV_ALLOC, 0, 0, 5, 0));
    good(f, op_of(KV_ALLOC, 0, 1, 2, 0));
    good(f, op_of(KV_ALLOC, 0, 2, 3, 0));
    expect_users(f, (uint32_t[]){0, 0, 1, 1, 0, 1});
    good(f, op_of(KV_OPEN, 2, 0, 0, 0));
    good(f, op_of(KV_FORK, 2, 130, 0, 0)); /* two whole blocks */
    expect_users(f, (uint32_t[]){0, 0, 2, 1, 0, 2});
    good(f, op_of(KV_ALLOC, 2, 1, 4, 0)); /* replaced: its own from now on */
    expect_users(f, (uint32_t[]){0, 0, 1, 1, 1, 2});
    good(f, op_of(KV_TRUNCATE, 0, 65, 0, 0));
    expect_users(f, (uint32_t[]){0, 0, 1, 0, 1, 2});
    good(f, op_of(KV_TRUNCATE, 0, 64, 0, 0));
    expect_users(f, (uint32_t[]){0, 0, 0, 0, 1, 2});
    good(f, op_of(KV_TRUNCATE, 0, 200, 0, 0)); /* nothing there */
    good(f, op_of(KV_FREE, 0, 0, 0, 0));
    good(f, op_of(KV_TRUNCATE, 2, 0, 0, 0));
    expect_users(f, (uint32_t[]){0, 0, 0, 0, 0, 0});
    good(f, op_of(KV_FREE, 2, 0, 0, 0));
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
}

static void copies_and_wipes_reach_every_layer(void **state)
{
    fixture *f = *state;
    uint32_t history[3];
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, op_of(KV_ALLOC, 1, 0, 3, 0));
    for (uint32_t p = 0; p < 3; p++)
        write_block(f, 1, p, 10.0f + (float)p);
    expect_block(f, 3, 2, 12.0f);
    good(f, op_of(KV_ALLOC, 1, 0, 4, 0));
    good(f, op_of(KV_COPY, 0, 4, 3, 2));
    expect_block(f, 4, 0, 10.0f);
    expect_block(f, 4, 1, 11.0f);
    expect_block(f, 4, 2, 0.0f);
    write_block(f, 1, 2, 99.0f);
    expect_block(f, 3, 2, 12.0f);
    kv_history(&f->c, 1, 2, history, 3);
    assert_int_equal(history[0], 10);
    assert_int_equal(history[1], 11);
    assert_int_equal(history[2], 99);
    good(f, op_of(KV_WIPE, 0, 4, 0, 0));
    expect_block(f, 4, 0, 0.0f);
    kv_history(&f->c, 1, 2, history, 3);
    assert_int_equal(history[2], 0);
}

static void bad_operations_are_refused(void **state)
{
    fixture *f = *state;
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, op_of(KV_ALLOC, 0, 0, 0, 0));
    bad(f, op_of(KV_OPEN, 0, 0, 0, 0), "open already");
    bad(f, op_of(KV_OPEN, 3, 0, 0, 0), "branch 3 is not below 3");
    bad(f, op_of(KV_FREE, 2, 0, 0, 0), "branch 2 is not open");
    bad(f, op_of(KV_FREE, UINT32_MAX, 0, 0, 0), "is not below 3");
    bad(f, op_of(KV_ALLOC, 0, 2, 1, 0), "entry a 2 is above 1");
    bad(f, op_of(KV_ALLOC, 0, 4, 1, 0), "entry a 4 is not below 4");
    bad(f, op_of(KV_ALLOC, 0, 1, N_BLOCKS, 0), "block b 6 is not below 6");
    bad(f, op_of(KV_TRUNCATE, 0, 201, 0, 0), "position a 201 is above 200");
    bad(f, op_of(KV_FORK, 1, 128, 0, 0), "is above 1");
    bad(f, op_of(KV_FORK, 1, UINT32_MAX, 0, 0), "is above 1");
    bad(f, op_of(KV_FORK, 0, 64, 0, 0), "must be empty");
    bad(f, op_of(KV_FORK, 1, 64, 2, 0), "parent b 2 is not open");
    bad(f, op_of(KV_FORK, 1, 64, 9, 0), "parent b 9 is not below 3");
    bad(f, op_of(KV_COPY, 0, 6, 0, 1), "block a 6");
    bad(f, op_of(KV_COPY, 0, 1, 6, 1), "block b 6");
    bad(f, op_of(KV_COPY, 0, 1, 0, 65), "positions c 65 is above 64");
    bad(f, op_of(KV_COPY, 0, 1, 1, 1), "block a 1 is block b 1");
    bad(f, op_of(KV_WIPE, 0, 6, 0, 0), "block a 6");
    good(f, op_of(KV_FORK, 1, 64, 0, 0));
    bad(f, op_of(KV_WIPE, 0, 0, 0, 0), "2 is above 1");
    bad(f, op_of(KV_COPY, 0, 0, 1, 1), "2 is above 1");
    bad(f, op_of(KV_SNAPSHOT, 0, 0, 0, 0), "(snapshot): this model has no recurrent state");
    bad(f, op_of(KV_RESTORE, 0, 0, 0, 0), "(restore)");
    bad(f, op_of(KV_OP_COUNT, 0, 0, 0, 0), "kind 10");
    bad(f, op_of((kv_op_kind)UINT32_MAX, 0, 0, 0, 0), "kind 4294967295");
    wire_kv_op op = op_of(KV_OPEN, 2, 0, 0, 0);
    op.kv_class = KV_CLASS_WINDOW;
    bad(f, op, "class 1 (window)");
    op.kv_class = UINT32_MAX;
    bad(f, op, "(unknown)");
    op = op_of(KV_TRUNCATE, 0, 0, 0, 0);
    op.generation = 8;
    bad(f, op, "generation 8 is not the branch's 7");
    expect_users(f, (uint32_t[]){2, 0, 0, 0, 0, 0});
}

static void bad_row(fixture *f, wire_row r, const char *part)
{
    errmsg e = {0};
    assert_int_equal(kv_row_check(&f->c, &r, 3, &e), ST_PROTOCOL);
    if (strstr(e.text, part) == NULL) print_error("# %s does not say %s\n", e.text, part);
    assert_non_null(strstr(e.text, part));
    assert_non_null(strstr(e.text, "row 3: "));
}

static void rows_are_checked_against_their_branch(void **state)
{
    fixture *f = *state;
    errmsg e = {0};
    wire_row r = row_at(0, 0, 1);
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    kv_step_begin(&f->c);
    bad_row(f, r, "is not below 0");
    good(f, op_of(KV_ALLOC, 0, 0, 2, 0));
    bad_row(f, row_at(1, 0, 1), "branch 1 is not open");
    bad_row(f, row_at(0, 64, 1), "position 64 is not below 64");
    r.generation = 6;
    bad_row(f, r, "generation 6");
    r = row_at(0, 5, 1);
    assert_int_equal(kv_row_check(&f->c, &r, 0, &e), ST_OK);
    bad_row(f, r, "position 5 of branch 0 comes after position 5");
    bad_row(f, row_at(0, 4, 1), "comes after position 5");
    kv_step_begin(&f->c);
    assert_int_equal(kv_row_check(&f->c, &r, 0, &e), ST_OK);
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, op_of(KV_FORK, 1, 64, 0, 0));
    kv_step_begin(&f->c);
    bad_row(f, r, "block 2, which is shared");
}

static void tables_are_placed_once_per_step(void **state)
{
    fixture *f = *state;
    errmsg e = {0};
    uint32_t tables[16], n_used = 0;
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, op_of(KV_ALLOC, 0, 0, 5, 0));
    good(f, op_of(KV_ALLOC, 0, 1, 4, 0));
    good(f, op_of(KV_ALLOC, 1, 0, 1, 0));
    const wire_row rows[] = {row_at(0, 63, 9), row_at(1, 0, 8), row_at(0, 64, 7), row_at(1, 1, 6)};
    const uint32_t at[] = {0, 2, 0, 2};
    for (uint32_t step = 0; step < 2; step++) {
        kv_step_begin(&f->c);
        n_used = 0;
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(kv_row_check(&f->c, &rows[i], i, &e), ST_OK);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t starts[KV_POOLS];
            kv_row_place(&f->c, &rows[i], tables, &n_used, starts);
            assert_int_equal(starts[KV_CLASS_GLOBAL], at[i]);
        }
        assert_int_equal(n_used, 3);
        assert_memory_equal(tables, ((uint32_t[]){5, 4, 1}), 3 * sizeof *tables);
    }
    uint32_t history[2];
    kv_history(&f->c, 0, 64, history, 2);
    assert_int_equal(history[0], 9);
    assert_int_equal(history[1], 7);
    kv_history(&f->c, 0, 64, history, 0);
}

/* --- a model whose first layer sees a window --- */

static int begin_window(void **state)
{
    errmsg e = {0};
    host_layout at;
    begin(state);
    fixture *f = *state;
    kv_close(&f->c);
    free(f->host);
    f->m->n_layers = N_LAYERS;
    f->m->window = 70;
    f->m->rope_window = f->m->rope;
    f->m->layer[0].kind = LAYER_WINDOW;
    host_layout_make(&at, f->m, &limits);
    f->host = calloc(1, at.bytes);
    assert_int_equal(kv_open(&f->c, f->b, f->device, f->m, 0, N_LAYERS, DT_F32, &limits, f->host,
                             &at, NULL, &e),
                     ST_OK);
    assert_int_equal(kv_bytes(&f->c), plan_kv_bytes(f->m, 1, N_BLOCKS + N_WINDOW, DT_F32));
    return 0;
}

static wire_kv_op window_op(kv_op_kind kind, uint32_t branch, uint32_t a, uint32_t b, uint32_t c)
{
    wire_kv_op op = op_of(kind, branch, a, b, c);
    op.kv_class = KV_CLASS_WINDOW;
    return op;
}

static void expect_window_users(fixture *f, const uint32_t users[N_WINDOW])
{
    assert_memory_equal(f->c.pool[KV_CLASS_WINDOW].users, users, N_WINDOW * sizeof *users);
}

static void windows_release_and_fork(void **state)
{
    fixture *f = *state;
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    for (uint32_t i = 0; i < 3; i++) {
        good(f, op_of(KV_ALLOC, 0, i, i, 0));
        good(f, window_op(KV_ALLOC, 0, i, 3 - i, 0));
    }
    expect_window_users(f, (uint32_t[]){0, 1, 1, 1});
    good(f, window_op(KV_RELEASE, 0, 1, 0, 0));
    good(f, window_op(KV_RELEASE, 0, 0, 0, 0)); /* what is gone is gone */
    expect_window_users(f, (uint32_t[]){0, 1, 1, 0});
    good(f, window_op(KV_ALLOC, 0, 3, 3, 0)); /* handed out again at once */
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, op_of(KV_FORK, 1, 192, 0, 0));
    good(f, window_op(KV_FORK, 1, 192, 0, 0));
    expect_window_users(f, (uint32_t[]){0, 2, 2, 1});
    good(f, window_op(KV_TRUNCATE, 0, 65, 0, 0));
    expect_window_users(f, (uint32_t[]){0, 1, 2, 0});
    good(f, window_op(KV_TRUNCATE, 0, 64, 0, 0)); /* below what was released: nothing is left */
    expect_window_users(f, (uint32_t[]){0, 1, 1, 0});
    good(f, window_op(KV_ALLOC, 0, 1, 0, 0));
    expect_users(f, (uint32_t[]){2, 2, 2, 0, 0, 0});
    good(f, op_of(KV_FREE, 1, 0, 0, 0)); /* every class */
    expect_window_users(f, (uint32_t[]){1, 0, 0, 0});
    good(f, op_of(KV_FREE, 0, 0, 0, 0));
    expect_window_users(f, (uint32_t[]){0, 0, 0, 0});
}

static void windows_refuse(void **state)
{
    fixture *f = *state;
    errmsg e = {0};
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    for (uint32_t i = 0; i < 3; i++) {
        good(f, op_of(KV_ALLOC, 0, i, i, 0));
        good(f, window_op(KV_ALLOC, 0, i, i, 0));
    }
    bad(f, op_of(KV_RELEASE, 0, 1, 0, 0), "(release): class global keeps all");
    bad(f, window_op(KV_RELEASE, 0, 4, 0, 0), "entry a 4 is above 3");
    bad(f, window_op(KV_ALLOC, 0, 3, N_WINDOW, 0), "block b 4 is not below 4");
    bad(f, window_op(KV_OPEN, 1, 0, 0, 0), "it is the whole branch's");
    bad(f, window_op(KV_FREE, 0, 0, 0, 0), "it is the whole branch's");
    good(f, window_op(KV_RELEASE, 0, 1, 0, 0));
    bad(f, window_op(KV_ALLOC, 0, 0, 3, 0), "entry a 0 was released, as all below 1");
    wire_row r = row_at(0, 133, 1); /* its window begins at 64 */
    kv_step_begin(&f->c);
    assert_int_equal(kv_row_check(&f->c, &r, 0, &e), ST_OK);
    kv_step_begin(&f->c);
    bad_row(f, row_at(0, 132, 1), "the window of position 132 begins at 63");
    bad_row(f, row_at(0, 0, 1), "window blocks below 64 were released");
    bad_row(f, row_at(0, 192, 1), "where branch 0's global blocks end");
    good(f, op_of(KV_ALLOC, 0, 3, 3, 0));
    bad_row(f, row_at(0, 192, 1), "where branch 0's window blocks end");
    good(f, op_of(KV_OPEN, 1, 0, 0, 0));
    good(f, window_op(KV_FORK, 1, 192, 0, 0));
    bad_row(f, row_at(0, 133, 1), "window block 2, which is shared");
}

/* Copies reach the layers of their class only; tables of both classes stand among the step's. */
static void classes_are_apart(void **state)
{
    fixture *f = *state;
    errmsg e = {0};
    uint32_t tables[16], n_used = 0, at[KV_POOLS], history[2];
    float got = 0;
    good(f, op_of(KV_OPEN, 0, 0, 0, 0));
    good(f, op_of(KV_ALLOC, 0, 0, 5, 0));
    good(f, window_op(KV_ALLOC, 0, 0, 2, 0));
    write_block(f, 0, 0, 7.0f);
    write_block(f, 0, 1, 8.0f);
    good(f, window_op(KV_COPY, 0, 3, 2, 1));
    kv_args window = kv_layer(&f->c, 0), global = kv_layer(&f->c, 1);
    const uint64_t block = 2 * KV_BLOCK * 16 * sizeof(float);
    f->b->download(f->q, &got, dev_offset(window.k, 3 * block), sizeof got);
    assert_true(got == 7.0f);
    f->b->download(f->q, &got, dev_offset(global.v, 5 * block + 64), sizeof got);
    assert_true(got == 8.0f);
    good(f, window_op(KV_ALLOC, 0, 0, 3, 0));
    good(f, window_op(KV_WIPE, 0, 2, 0, 0));
    kv_history(&f->c, 0, 1, history, 2); /* by the global class */
    assert_true(history[0] == 7 && history[1] == 8);
    wire_row r = row_at(0, 2, 1);
    kv_step_begin(&f->c);
    assert_int_equal(kv_row_check(&f->c, &r, 0, &e), ST_OK);
    kv_row_place(&f->c, &r, tables, &n_used, at);
    assert_int_equal(n_used, 2);
    assert_int_equal(tables[at[KV_CLASS_GLOBAL]], 5);
    assert_int_equal(tables[at[KV_CLASS_WINDOW]], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tables_count_their_blocks, begin, end),
        cmocka_unit_test_setup_teardown(copies_and_wipes_reach_every_layer, begin, end),
        cmocka_unit_test_setup_teardown(bad_operations_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(rows_are_checked_against_their_branch, begin, end),
        cmocka_unit_test_setup_teardown(tables_are_placed_once_per_step, begin, end),
        cmocka_unit_test_setup_teardown(windows_release_and_fork, begin_window, end),
        cmocka_unit_test_setup_teardown(windows_refuse, begin_window, end),
        cmocka_unit_test_setup_teardown(classes_are_apart, begin_window, end),
    };
    tap_begin(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
