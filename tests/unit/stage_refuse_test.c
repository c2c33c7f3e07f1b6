/* What a stage object refuses, and what it does with dead rows, no rows and NaN. */
#include "tests/support/gguf_build.h"
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static gguf *file_of(const gguf_build *b)
{
    gguf *g = NULL;
    errmsg e = {0};
    int fd = gguf_build_fd(b);
    assert_int_equal(gguf_open_fds(&g, &fd, 1, &e), ST_OK);
    return g;
}

static void open_small(chain *c, uint32_t n_cuts)
{
    llama_spec m = llama_spec_default();
    chain_spec s = chain_spec_default();
    gguf_build *b = gguf_build_llama(&m);
    s.n_cuts = n_cuts;
    s.cut[0] = 1;
    s.cut[1] = 2;
    s.rows_max = 8;
    s.n_ctx = 130;
    s.n_branches = 2;
    chain_open(c, file_of(b), &s);
    gguf_build_free(b);
}

static void expect(const errmsg *e, status code, const char *part)
{
    if (e->code != code || strstr(e->text, part) == NULL) {
        print_error("# %s: '%s' does not say '%s'\n", status_word(e->code), e->text, part);
    }
    assert_int_equal(e->code, code);
    assert_non_null(strstr(e->text, part));
}

static wire_row row_of(const chain_session *s, uint32_t position, uint32_t flags,
                       uint32_t readback_i)
{
    return (wire_row){.session = 31,
                      .generation = s->generation,
                      .branch = s->branch,
                      .position = position,
                      .token = 5,
                      .flags = flags,
                      .readback = readback_i,
                      .sampler_i = 0};
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    chain c;
    chain_session s;
    const uint32_t both = ROW_LIVE | ROW_LOGITS | ROW_SAMPLE;
    const sampler_params greedy = sampler_default();
    open_small(&c, 0);
    session_begin(&c, &s, 0);
    session_feed(&c, &s, (uint32_t[]){1, 2, 3}, 3, 3, NULL);
    const struct {
        const char *part;
        size_t at;
        uint32_t value;
    } wrong[] = {
        {"branch 2 is not below 2", offsetof(wire_row, branch), 2},
        {"branch 4294967295", offsetof(wire_row, branch), UINT32_MAX},
        {"branch 1 is not open", offsetof(wire_row, branch), 1},
        {"generation 4294967295", offsetof(wire_row, generation), UINT32_MAX},
        {"position 64 is not below 64", offsetof(wire_row, position), 64},
        {"position 130 is not below 130", offsetof(wire_row, position), 130},
        {"position 4294967295", offsetof(wire_row, position), UINT32_MAX},
        {"token 320 is not below 320", offsetof(wire_row, token), 320},
        {"token 2147483647", offsetof(wire_row, token), 0x7fffffff},
        {"flags 0xf", offsetof(wire_row, flags), 15},
        {"readback row 8 is not below 8", offsetof(wire_row, readback), 8},
        {"readback row 4294967295", offsetof(wire_row, readback), WIRE_NONE},
        {"sampler 1 is not below 1", offsetof(wire_row, sampler_i), 1},
        {"sampler 4294967295", offsetof(wire_row, sampler_i), WIRE_NONE},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errmsg e = {0};
        wire_row rows[2] = {row_of(&s, 3, both, 0), row_of(&s, 4, both, 1)};
        memcpy((char *)&rows[1] + wrong[i].at, &wrong[i].value, sizeof(uint32_t));
        assert_int_not_equal(stage_rows(c.stage[0], rows, 2, 1, &e), ST_OK);
        expect(&e, ST_PROTOCOL, wrong[i].part);
        expect(&e, ST_PROTOCOL, "row 1: ");
    }
    errmsg e = {0};
    wire_row twice[2] = {row_of(&s, 3, both, 3), row_of(&s, 4, both, 3)};
    assert_int_not_equal(stage_rows(c.stage[0], twice, 2, 1, &e), ST_OK);
    expect(&e, ST_PROTOCOL, "readback row 3 twice");
    errmsg_clear(&e);
    wire_row many[9] = {{0}};
    assert_int_not_equal(stage_rows(c.stage[0], many, 9, 1, &e), ST_OK);
    expect(&e, ST_PROTOCOL, "a step of 9 rows: the largest has 8");
    errmsg_clear(&e);
    sampler_params odd = greedy;
    odd.temperature = -1;
    wire_row row = row_of(&s, 3, both, 0);
    assert_int_not_equal(chain_step(&c, NULL, 0, &row, 1, &odd, 1, &e), ST_OK);
    expect(&e, ST_PROTOCOL, "row 0: sampler 0");
    errmsg_clear(&e);
    assert_int_equal(chain_step(&c, NULL, 0, &row, 1, &greedy, 1, &e), ST_OK); /* still whole */
    chain_close(&c);
}

/* Logits of position 3 of a session, in a step with a dead row before and after it. */
static void dead_rows_write_nothing(void **state)
{
    (void)state;
    chain c;
    chain_session s, other;
    float *plain = NULL;
    for (uint32_t run = 0; run < 2; run++) {
        errmsg e = {0};
        open_small(&c, run);
        uint64_t bytes = c.model->n_vocab * sizeof(float);
        session_begin(&c, &s, 0);
        session_begin(&c, &other, 1); /* has no block at all: a dead row needs none */
        session_feed(&c, &s, (uint32_t[]){1, 2, 3}, 3, 3, NULL);
        wire_row rows[3] = {row_of(&other, 129, ROW_LOGITS | ROW_SAMPLE, 0),
                            row_of(&s, 3, ROW_LIVE | ROW_LOGITS, 1), row_of(&s, 2, ROW_LOGITS, 2)};
        rows[2].token = 77; /* would spoil position 2 */
        const sampler_params p = sampler_default();
        if (run == 0) {
            assert_int_equal(chain_step(&c, NULL, 0, &rows[1], 1, &p, 1, &e), ST_OK);
            plain = malloc(bytes);
            memcpy(plain, chain_logits(&c, 1), bytes);
        } else {
            assert_int_equal(chain_step(&c, NULL, 0, rows, 3, &p, 1, &e), ST_OK);
            assert_memory_equal(plain, chain_logits(&c, 1), bytes);
            assert_true(atomic_load(&readback_row_at(&c.results, 0)->commit) != c.seq);
            assert_true(atomic_load(&readback_row_at(&c.results, 2)->commit) != c.seq);
            rows[1].position = 3; /* the same again: position 2 is as it was */
            assert_int_equal(chain_step(&c, NULL, 0, &rows[1], 1, &p, 1, &e), ST_OK);
            assert_memory_equal(plain, chain_logits(&c, 1), bytes);
        }
        chain_close(&c);
    }
    free(plain);
}

static void no_rows_are_legal(void **state)
{
    (void)state;
    chain c;
    errmsg e = {0};
    open_small(&c, 2);
    assert_int_equal(chain_step(&c, NULL, 0, NULL, 0, NULL, 0, &e), ST_OK);
    assert_int_equal(chain_step(&c, NULL, 0, NULL, 0, NULL, 0, &e), ST_OK);
    chain_close(&c);
}

/* A model with one value of a tensor replaced. */
static void open_spoiled(chain *c, const char *tensor, uint64_t value_i, float value,
                         uint32_t n_cuts)
{
    llama_spec m = llama_spec_default();
    chain_spec s = chain_spec_default();
    gguf_build *b = gguf_build_llama(&m);
    memcpy(gguf_build_find(b, tensor)->data + value_i * sizeof value, &value, sizeof value);
    s.n_cuts = n_cuts;
    s.cut[0] = 1;
    chain_open(c, file_of(b), &s);
    gguf_build_free(b);
}

#define SPOILED 9u /* token */
#define N_VOCAB 320u

/* One step with a row for each token, in a session of its own; what is asked for is in readback row
 * k. */
static void step_of(chain *c, const uint32_t *token, uint32_t n, uint32_t flags)
{
    wire_kv_op ops[2];
    wire_row rows[2];
    errmsg e = {0};
    for (uint32_t k = 0; k < n; k++) {
        chain_session s;
        session_begin(c, &s, k);
        ops[k] = (wire_kv_op){.kind = KV_ALLOC, .branch = k, .generation = s.generation, .b = k};
        rows[k] = row_of(&s, 0, ROW_LIVE | flags, k);
        rows[k].token = token[k];
    }
    assert_int_equal(chain_step(c, ops, n, rows, n, NULL, 0, &e), ST_OK);
}

/* The stage that finds it marks the row, the one after leaves the mark, and the other row of the
 * step has the bits that it has alone. */
static void nan_marks_its_row_and_no_other(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY};
    const uint32_t both[2] = {SPOILED, 5};
    for (uint32_t i = 0; i < 3; i++) {
        chain c;
        float want[N_VOCAB];
        open_spoiled(&c, "token_embd.weight", SPOILED * 64 + 7, odd[i], 1);
        step_of(&c, both + 1, 1, ROW_LOGITS);
        memcpy(want, chain_logits(&c, 0), sizeof want);
        assert_int_equal(c.poison[0], 0);
        chain_close(&c);
        open_spoiled(&c, "token_embd.weight", SPOILED * 64 + 7, odd[i], 1);
        step_of(&c, both, 2, ROW_LOGITS);
        assert_int_equal(c.poison[0], poison_hidden(0));
        assert_int_equal(chain_result(&c, 0)->status, ST_NAN);
        assert_int_equal(c.poison[1], 0);
        assert_memory_equal(chain_logits(&c, 1), want, sizeof want);
        chain_close(&c);
    }
}

static void nan_of_a_later_stage_has_its_mark(void **state)
{
    (void)state;
    const uint32_t token = 5;
    chain c;
    open_spoiled(&c, "blk.2.attn_norm.weight", 3, NAN, 1);
    step_of(&c, &token, 1, 0);
    assert_int_equal(c.poison[0], poison_hidden(1));
    assert_int_equal(poison_stage(c.poison[0]), 1);
    assert_false(poison_in_logits(c.poison[0]));
    chain_close(&c);
}

static void nan_logits_are_committed_without_a_token(void **state)
{
    (void)state;
    chain c;
    chain_session s;
    errmsg e = {0};
    const sampler_params p = sampler_default();
    open_spoiled(&c, "output.weight", 100 * 64, NAN, 0);
    session_begin(&c, &s, 0);
    const wire_kv_op op = {.kind = KV_ALLOC, .branch = 0, .generation = s.generation};
    wire_row rows[2] = {row_of(&s, 0, ROW_LIVE | ROW_SAMPLE, 4),
                        row_of(&s, 1, ROW_LIVE | ROW_LOGITS, 5)};
    assert_int_equal(chain_step(&c, &op, 1, rows, 2, &p, 1, &e), ST_OK);
    for (uint32_t i = 4; i < 6; i++) {
        assert_int_equal(chain_result(&c, i)->status, ST_NAN);
        assert_int_equal(chain_result(&c, i)->token, TOKEN_NONE);
        assert_int_equal(c.poison[i - 4], poison_logits(0));
    }
    chain_close(&c);
}

/* --- opening --- */

typedef struct {
    gguf *file;
    model_desc *m;
    wire_config config;
    uint64_t last_done;
    uint32_t n_calls, stop_at;
} opening;

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    opening *o = ctx;
    assert_true(done <= total && done >= o->last_done);
    o->last_done = done;
    return ++o->n_calls == o->stop_at;
}

static void prepare(opening *o, const gguf_build *b)
{
    errmsg e = {0};
    *o = (opening){.file = file_of(b), .m = malloc(sizeof *o->m)};
    assert_int_equal(model_read(o->m, o->file, &e), ST_OK);
    o->config = (wire_config){.n_stages = 1,
                              .n_layers = 3,
                              .layer_end = 3,
                              .n_ctx = 64,
                              .n_branches = 1,
                              .rows_max = 4,
                              .n_readback = 1,
                              .n_blocks = {2},
                              .kv_type = DT_F16,
                              .n_threads = 1,
                              .numa_node = WIRE_NONE};
}

static status try_open(opening *o, errmsg *e)
{
    stage *s = (stage *)1;
    stage_options options = {.backend = backend_cpu(),
                             .config = &o->config,
                             .file = o->file,
                             .model = o->m,
                             .on_progress = on_progress,
                             .progress_ctx = o};
    errmsg_clear(e);
    o->last_done = o->n_calls = 0;
    status result = stage_open(&s, &options, e);
    assert_true((result == ST_OK) == (s != NULL));
    stage_close(s);
    return result;
}

static void finish(opening *o)
{
    free(o->m);
    gguf_close(o->file);
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    llama_spec m = llama_spec_default();
    gguf_build *b = gguf_build_llama(&m);
    opening o;
    errmsg e;
    prepare(&o, b);
    assert_int_equal(try_open(&o, &e), ST_OK);
    assert_true(o.n_calls >= 1);
    const struct {
        const char *part;
        size_t at;
        uint32_t value;
    } wrong[] = {
        {"n_layers 4", offsetof(wire_config, n_layers), 4},
        {"layer_end 4", offsetof(wire_config, layer_end), 4},
        {"layer_end 0", offsetof(wire_config, layer_end), 0},
        {"layer_begin 3", offsetof(wire_config, layer_begin), 3},
        {"n_ctx 0", offsetof(wire_config, n_ctx), 0},
        {"n_ctx 4294967295", offsetof(wire_config, n_ctx), UINT32_MAX},
        {"n_branches 0", offsetof(wire_config, n_branches), 0},
        {"n_branches 4294967295", offsetof(wire_config, n_branches), UINT32_MAX},
        {"rows_max 4097", offsetof(wire_config, rows_max), 4097},
        {"n_readback 0", offsetof(wire_config, n_readback), 0},
        {"n_blocks 0", offsetof(wire_config, n_blocks), 0},
        {"n_blocks of a class", offsetof(wire_config, n_blocks) + 4, 1},
        {"n_threads 0", offsetof(wire_config, n_threads), 0},
        {"KV type 8", offsetof(wire_config, kv_type), DT_Q8_0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        wire_config right = o.config;
        memcpy((char *)&o.config + wrong[i].at, &wrong[i].value, sizeof(uint32_t));
        assert_int_not_equal(try_open(&o, &e), ST_OK);
        expect(&e, ST_PROTOCOL, wrong[i].part);
        o.config = right;
    }
    o.config.n_blocks[0] = 1u << 24; /* 412 GB of KV */
    assert_int_equal(try_open(&o, &e), ST_RESOURCES);
    o.config.n_blocks[0] = 2;
    strcpy(o.config.isa, "sse1");
    assert_int_equal(try_open(&o, &e), ST_RESOURCES);
    finish(&o);
    gguf_build_free(b);
}

static void loading_stops_when_told(void **state)
{
    (void)state;
    llama_spec m = llama_spec_default();
    gguf_build *b = gguf_build_llama(&m);
    opening o;
    errmsg e;
    prepare(&o, b);
    o.stop_at = 1;
    assert_int_equal(try_open(&o, &e), ST_CLOSED);
    finish(&o);
    gguf_build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(dead_rows_write_nothing),
        cmocka_unit_test(no_rows_are_legal),
        cmocka_unit_test(nan_marks_its_row_and_no_other),
        cmocka_unit_test(nan_of_a_later_stage_has_its_mark),
        cmocka_unit_test(nan_logits_are_committed_without_a_token),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(loading_stops_when_told),
    };
    tap_begin(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
