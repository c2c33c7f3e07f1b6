/* Attention, KV writes and block operations on the GPU: near the cpu's, and a row's bits do not
 * depend on rows beside it, nor on whether cells are spread over blocks.
 *
 *     gpu_attention_test [PATTERN]    PATTERN: only tests of that name, * and ? standing for others;
 *                                     each_kernel_once is small enough for compute-sanitizer */
#include "tests/support/gpu_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static side cpu, gpu;

typedef struct {
    dtype type;
    uint32_t n_heads, n_kv_heads, n_head, window;
} attention_case;

/* Two sequences of 700 positions, block tables shuffled together, K and V in pools of both sides.
 */
enum { LENGTH = 700, PER = (LENGTH + KV_BLOCK - 1) / KV_BLOCK, BLOCKS = 2 * PER + 1 };

typedef struct {
    const side *on;
    attention_case c;
    kv_args kv;
    uint64_t pool_bytes;
} pools;

static uint32_t tables[2 * PER];

static void deal_blocks(void)
{
    for (uint32_t i = 0; i < 2 * PER; i++)
        tables[i] = (i * 7 + 3) % BLOCKS;
}

static row_args rows_on(const side *on, const uint32_t *position, const uint32_t *table,
                        const uint8_t *live, uint32_t n_rows, uint32_t n_positions)
{
    return (row_args){side_put(on, position, 4ull * n_rows), side_put(on, table, 4ull * n_rows),
                      side_put(on, tables, sizeof tables), side_put(on, live, n_rows), n_positions, 0};
}

static void rows_free(const side *on, row_args *r, uint32_t n_rows)
{
    side_free(on, r->position, 4ull * n_rows);
    side_free(on, r->table, 4ull * n_rows);
    side_free(on, r->tables, sizeof tables);
    side_free(on, r->live, n_rows);
}

static void pools_open(pools *p, const side *on, attention_case c, uint64_t seed)
{
    seeded s = {seed};
    uint64_t width = (uint64_t)c.n_kv_heads * c.n_head, n = 2 * LENGTH * width;
    float *k = seeded_floats(&s, n, 2), *v = seeded_floats(&s, n, 2);
    uint32_t position[2 * LENGTH], table[2 * LENGTH];
    uint8_t live[2 * LENGTH];
    *p = (pools){.on = on, .c = c};
    p->pool_bytes = dtype_bytes(c.type, BLOCKS * KV_BLOCK * width);
    p->kv = (kv_args){side_put(on, NULL, p->pool_bytes), side_put(on, NULL, p->pool_bytes), c.type,
                      c.n_kv_heads, c.n_head};
    deal_blocks();
    for (uint32_t i = 0; i < 2 * LENGTH; i++) {
        position[i] = i % LENGTH;
        table[i] = i / LENGTH * PER;
        live[i] = 1;
    }
    row_args rows = rows_on(on, position, table, live, 2 * LENGTH, 0);
    dev_ptr ks = side_put(on, k, 4 * n), vs = side_put(on, v, 4 * n);
    assert_int_equal(on->b->kv_write(on->q, &p->kv, ks, vs, &rows, 2 * LENGTH), ST_OK);
    char one;
    side_get(on, &one, p->kv.k, 1);
    rows_free(on, &rows, 2 * LENGTH);
    side_free(on, ks, 4 * n);
    side_free(on, vs, 4 * n);
    free(k);
    free(v);
}

static void pools_close(pools *p)
{
    side_free(p->on, p->kv.k, p->pool_bytes);
    side_free(p->on, p->kv.v, p->pool_bytes);
}

/* Row i asks at position[i] of sequence which[i]. spread: tell the device how far positions go. */
static void ask(const pools *p, float *out, const float *x, const uint32_t *position,
                const uint32_t *which, const uint8_t *live, uint32_t n_rows, bool spread,
                uint32_t n_runs)
{
    uint64_t bytes = 4ull * n_rows * p->c.n_heads * p->c.n_head;
    uint32_t table[2 * LENGTH];
    for (uint32_t i = 0; i < n_rows; i++)
        table[i] = which[i] * PER;
    row_args rows = rows_on(p->on, position, table, live, n_rows, spread ? LENGTH : 0);
    rows.n_runs = n_runs;
    dev_ptr xs = side_put(p->on, x, bytes), to = side_put(p->on, NULL, bytes);
    assert_int_equal(p->on->b->attention(p->on->q, to, xs, &p->kv, &rows, p->c.n_heads, 0.09f,
                                         p->c.window, n_rows),
                     ST_OK);
    side_get(p->on, out, to, bytes);
    rows_free(p->on, &rows, n_rows);
    side_free(p->on, xs, bytes);
    side_free(p->on, to, bytes);
}

enum { ROWS = 24 };

static void check(attention_case c, uint32_t n_rows)
{
    char what[96];
    pools on_cpu, on_gpu;
    seeded s = {77};
    uint64_t width = (uint64_t)c.n_heads * c.n_head, n = n_rows * width;
    float *x = seeded_floats(&s, n, 2), *out[4];
    uint32_t position[ROWS], which[ROWS];
    uint8_t live[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        /* A prompt's rows that follow each other, borders of cells and blocks, single rows. */
        position[i] = i < 10    ? 250 + i
                      : i == 10 ? 0
                      : i == 11 ? LENGTH - 1
                                : seeded_below(&s, LENGTH);
        which[i] = i < 12 ? 0 : i % 2;
        live[i] = i != 14;
    }
    for (int i = 0; i < 4; i++)
        out[i] = calloc(n, 4);
    pools_open(&on_cpu, &cpu, c, 5);
    pools_open(&on_gpu, &gpu, c, 5);
    ask(&on_cpu, out[0], x, position, which, live, n_rows, false, 0);
    ask(&on_gpu, out[1], x, position, which, live, n_rows, false, 0);
    ask(&on_gpu, out[2], x, position, which, live, n_rows, true, 0);
    for (uint32_t r = 0; r < n_rows; r++)
        ask(&on_gpu, out[3] + r * width, x + r * width, &position[r], &which[r], &live[r], 1,
            r % 2, 0);
    snprintf(what, sizeof what, "%s, %u/%u heads of %u, window %u", dtype_get(c.type)->name,
             c.n_heads, c.n_kv_heads, c.n_head, c.window);
    double d = distance(out[1], out[0], n);
    bool core = c.type == DT_F16 && c.n_head % 8 == 0 && c.n_head <= 256; /* operands are f16 */
    if (!(d < (core ? 3e-7 : 1e-11))) fail_msg("%s: %.2e from the cpu", what, d);
    printf("# %s: %.1e from the cpu\n", what, d);
    assert_true(same_bits(what, out[1], out[2], n));
    assert_true(same_bits(what, out[1], out[3], n));
    pools_close(&on_cpu);
    pools_close(&on_gpu);
    for (int i = 0; i < 4; i++)
        free(out[i]);
    free(x);
}

static void attention_is_near_and_alone(void **state)
{
    (void)state;
    static const attention_case cases[] = {
        {DT_F16, 32, 8, 128, 0}, {DT_F32, 4, 4, 64, 0},    {DT_BF16, 8, 1, 128, 0},
        {DT_F16, 12, 1, 32, 0},  {DT_F16, 6, 2, 80, 0},    {DT_F16, 3, 3, 7, 0},
        {DT_F32, 2, 1, 256, 0},  {DT_F16, 4, 2, 512, 0},   {DT_F16, 8, 2, 128, 1},
        {DT_F16, 8, 2, 64, 100}, {DT_BF16, 8, 8, 48, 300}, {DT_F32, 16, 1, 72, 256},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i], ROWS);
}

/* Rows of a prompt beside each other and another's, with a dead row between, are as each row alone:
 * and what stands in a block past a session's last position is nobody's, NaN included. */
static void prompt_is_its_rows(attention_case c)
{
    enum { A = 300, B = 200, R = A + B };
    char what[96];
    pools p;
    seeded s = {78};
    uint64_t width = (uint64_t)c.n_heads * c.n_head, kv_width = (uint64_t)c.n_kv_heads * c.n_head;
    float *x = seeded_floats(&s, R * width, 3), *all = calloc(R * width, 4);
    float *one = calloc(width, 4), *nan = calloc(8 * kv_width, 4);
    static uint32_t position[R], which[R];
    static uint8_t live[R];
    for (uint32_t i = 0; i < R; i++) {
        position[i] = i < A ? LENGTH - A + i : i - A;
        which[i] = i < A ? 0 : 1;
        live[i] = i != A + 70;
    }
    pools_open(&p, &gpu, c, 6);
    uint32_t past[8], past_table[8];
    uint8_t past_live[8];
    for (uint32_t i = 0; i < 8; i++) {
        past[i] = LENGTH + i % 4;
        past_table[i] = i / 4 * PER;
        past_live[i] = 1;
    }
    for (uint64_t i = 0; i < 8 * kv_width; i++)
        nan[i] = NAN;
    row_args rows = rows_on(&gpu, past, past_table, past_live, 8, 0);
    dev_ptr junk = side_put(&gpu, nan, 32 * kv_width);
    assert_int_equal(gpu.b->kv_write(gpu.q, &p.kv, junk, junk, &rows, 8), ST_OK);
    ask(&p, all, x, position, which, live, R, true, 3);
    for (uint32_t r = 0; r < R; r += r % 64 == 62 ? 1 : 7) {
        ask(&p, one, x + r * width, &position[r], &which[r], &live[r], 1, r % 2, 1);
        snprintf(what, sizeof what, "%u/%u heads of %u, window %u, row %u", c.n_heads, c.n_kv_heads,
                 c.n_head, c.window, r);
        assert_true(same_bits(what, one, all + r * width, width));
        for (uint64_t i = 0; i < width; i++)
            assert_true(isfinite(one[i]));
    }
    rows_free(&gpu, &rows, 8);
    side_free(&gpu, junk, 32 * kv_width);
    pools_close(&p);
    free(x);
    free(all);
    free(one);
    free(nan);
}

static void prompts_are_their_rows(void **state)
{
    (void)state;
    static const attention_case cases[] = {
        {DT_F16, 32, 8, 128, 0}, {DT_F16, 8, 2, 64, 0},  {DT_F16, 4, 4, 128, 100},
        {DT_F16, 3, 1, 64, 400}, {DT_F16, 4, 1, 256, 0}, {DT_BF16, 4, 2, 128, 0}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        prompt_is_its_rows(cases[i]);
}

/* K and V that are not finite, written by one row of a prompt, reach the rows that see them and no others:
 * those before have the bits that they have without it, those after what each has alone. */
static void what_is_not_seen_is_nobodys(attention_case c)
{
    enum { R = 300, AT = LENGTH - R + 171 };
    pools p;
    seeded s = {79};
    uint64_t width = (uint64_t)c.n_heads * c.n_head, kv_width = (uint64_t)c.n_kv_heads * c.n_head;
    float *x = seeded_floats(&s, R * width, 3), *before = calloc(R * width, 4), *all = calloc(R * width, 4);
    float *one = calloc(width, 4), *k = seeded_floats(&s, kv_width, 2), *v = seeded_floats(&s, kv_width, 2);
    static uint32_t position[R], which[R];
    static uint8_t live[R];
    uint32_t n_spoilt = 0;
    for (uint32_t i = 0; i < R; i++) {
        position[i] = LENGTH - R + i;
        live[i] = 1;
    }
    pools_open(&p, &gpu, c, 6);
    ask(&p, before, x, position, which, live, R, true, 1);
    v[1] = NAN; /* of the first head, an odd and an even place; K is finite, so that others are seen */
    v[c.n_head - c.n_head / 4] = -INFINITY;
    const uint32_t at = AT, table = 0;
    const uint8_t lives = 1;
    row_args row = rows_on(&gpu, &at, &table, &lives, 1, 0);
    dev_ptr ks = side_put(&gpu, k, 4 * kv_width), vs = side_put(&gpu, v, 4 * kv_width);
    assert_int_equal(gpu.b->kv_write(gpu.q, &p.kv, ks, vs, &row, 1), ST_OK);
    ask(&p, all, x, position, which, live, R, true, 1);
    for (uint32_t r = 0; r < R; r++) {
        const float *got = all + r * width;
        char what[96];
        snprintf(what, sizeof what, "%s, %u/%u heads of %u, window %u, row %u", dtype_get(c.type)->name,
                 c.n_heads, c.n_kv_heads, c.n_head, c.window, r);
        bool sees = position[r] >= AT && (c.window == 0 || position[r] < AT + c.window);
        if (position[r] < AT) assert_true(same_bits(what, got, before + r * width, width));
        if (r % 5 != 0 && position[r] != AT) continue;
        ask(&p, one, x + r * width, &position[r], &which[r], &live[r], 1, r % 2, 1);
        for (uint64_t i = 0; i < width; i++) {
            if (isfinite(one[i]) && same_bits(what, &got[i], &one[i], 1)) continue;
            if (isfinite(one[i]) || isfinite(got[i]) || !sees) fail_msg("%s, value %d: %g, alone %g", what, (int)i, got[i], one[i]);
            n_spoilt++;
        }
    }
    assert_true(n_spoilt >= 2);
    rows_free(&gpu, &row, 1);
    side_free(&gpu, ks, 4 * kv_width);
    side_free(&gpu, vs, 4 * kv_width);
    pools_close(&p);
    float *mine[] = {x, before, all, one, k, v};
    for (int i = 0; i < 6; i++)
        free(mine[i]);
}

static void values_that_are_not_finite_stay_where_they_are_seen(void **state)
{
    (void)state;
    static const attention_case cases[] = {
        {DT_F16, 32, 8, 128, 0}, {DT_F16, 8, 2, 64, 0},  {DT_F16, 4, 4, 128, 100}, {DT_F16, 3, 1, 64, 400},
        {DT_F16, 4, 1, 256, 0},  {DT_F16, 6, 2, 80, 90}, {DT_BF16, 4, 2, 128, 0},  {DT_F32, 4, 2, 64, 130}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        what_is_not_seen_is_nobodys(cases[i]);
}

/* Rows of two sequences on empty pools, by the fused op or by its parts: results, then K and V. */
static void turn(attention_case c, uint32_t n_rot, bool neox, uint32_t n_rows, bool fused, char *to)
{
    seeded s = {12};
    const side *on = &gpu;
    const backend *b = on->b;
    uint64_t width = (uint64_t)c.n_heads * c.n_head, kv_width = (uint64_t)c.n_kv_heads * c.n_head;
    uint64_t pool_bytes = dtype_bytes(c.type, BLOCKS * KV_BLOCK * kv_width);
    uint64_t n[] = {n_rows * width, n_rows * kv_width, n_rows * kv_width, n_rows * n_rot / 2,
                    n_rows * n_rot / 2};
    dev_ptr in[5], out = side_put(on, NULL, 4 * n[0]); /* x, k, v, cos, sin */
    uint32_t position[2 * LENGTH], table[2 * LENGTH];
    uint8_t live[2 * LENGTH];
    deal_blocks();
    for (uint32_t i = 0; i < n_rows; i++) {
        position[i] = i < n_rows / 2 ? i + 30 : i - n_rows / 2;
        table[i] = i < n_rows / 2 ? 0 : PER;
        live[i] = i != 5;
    }
    row_args rows = rows_on(on, position, table, live, n_rows, LENGTH);
    rows.n_runs = 3;
    for (int i = 0; i < 5; i++) {
        float *host = seeded_floats(&s, n[i], i < 3 ? 2 : 0);
        in[i] = side_put(on, host, 4 * n[i]);
        free(host);
    }
    kv_args kv = {side_put(on, NULL, pool_bytes), side_put(on, NULL, pool_bytes), c.type,
                  c.n_kv_heads, c.n_head};
    rope_args by = {in[3], in[4], n_rot, neox};
    if (fused) {
        assert_int_equal(b->turn_attention(on->q, out, in[0], in[1], in[2], &by, &kv, &rows,
                                           c.n_heads, 0.09f, c.window, n_rows),
                         ST_OK);
    } else {
        assert_int_equal(b->rope(on->q, in[0], &by, c.n_heads, c.n_head, n_rows), ST_OK);
        assert_int_equal(b->rope(on->q, in[1], &by, c.n_kv_heads, c.n_head, n_rows), ST_OK);
        assert_int_equal(b->kv_write(on->q, &kv, in[1], in[2], &rows, n_rows), ST_OK);
        assert_int_equal(b->attention(on->q, out, in[0], &kv, &rows, c.n_heads, 0.09f, c.window,
                                      n_rows),
                         ST_OK);
    }
    side_get(on, to, out, 4 * n[0]);
    side_get(on, to + 4 * n[0], kv.k, pool_bytes);
    side_get(on, to + 4 * n[0] + pool_bytes, kv.v, pool_bytes);
    rows_free(on, &rows, n_rows);
    side_free(on, kv.k, pool_bytes);
    side_free(on, kv.v, pool_bytes);
    side_free(on, out, 4 * n[0]);
    for (int i = 0; i < 5; i++)
        side_free(on, in[i], 4 * n[i]);
}

typedef struct {
    attention_case c;
    uint32_t n_rot, n_rows;
} turn_case;

static void turned_is_its_parts(turn_case t, bool neox)
{
    uint64_t kv_width = (uint64_t)t.c.n_kv_heads * t.c.n_head;
    uint64_t bytes = 4ull * t.n_rows * t.c.n_heads * t.c.n_head +
                     2 * dtype_bytes(t.c.type, BLOCKS * KV_BLOCK * kv_width);
    char *out[2] = {malloc(bytes), malloc(bytes)};
    for (int fused = 0; fused < 2; fused++)
        turn(t.c, t.n_rot, neox, t.n_rows, fused, out[fused]);
    assert_memory_equal(out[0], out[1], bytes);
    free(out[0]);
    free(out[1]);
}

static void turned_attention_is_its_parts(void **state)
{
    (void)state;
    static const turn_case cases[] = {{{DT_F16, 8, 2, 128, 0}, 128, 400}, {{DT_F16, 4, 4, 64, 100}, 64, 300},
                 {{DT_F16, 3, 1, 128, 0}, 64, 201},  {{DT_F16, 4, 2, 64, 0}, 20, 200},
                 {{DT_F16, 8, 2, 128, 0}, 128, 12},  {{DT_BF16, 4, 2, 128, 0}, 128, 200},
                 {{DT_F16, 3, 1, 128, 90}, 64, 40},  {{DT_F16, 36, 2, 64, 0}, 64, 9},
                 {{DT_F16, 4, 2, 96, 0}, 96, 200}};
    for (uint32_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++)
        turned_is_its_parts(cases[i / 2], i % 2);
}

/* Of each type whole rows and cells, of f16 also few rows and prompts; heads of 7: writes value by
 * value. */
static void each_kernel_once(void **state)
{
    (void)state;
    static const attention_case rows[] = {
        {DT_F16, 2, 1, 64, 0},  {DT_F16, 2, 1, 256, 0}, {DT_F16, 1, 1, 264, 0}, {DT_F32, 2, 1, 64, 0},
        {DT_BF16, 2, 1, 64, 0}, {DT_F16, 1, 1, 7, 0},   {DT_F32, 1, 1, 7, 0},   {DT_BF16, 1, 1, 7, 0},
    };
    static const turn_case prompts[] = {
        {{DT_F16, 2, 1, 64, 0}, 64, 100}, {{DT_F16, 2, 1, 128, 0}, 128, 100}};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(rows[i], 12);
    for (uint32_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        turned_is_its_parts(prompts[i], true);
}

/* Rounding to the cache type as the cpu rounds, dead rows write nothing, blocks copied and wiped.
 */
static void pools_hold_what_the_cpus_hold(void **state)
{
    (void)state;
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16};
    for (int t = 0; t < 3; t++) {
        attention_case c = {types[t], 4, 2, 40, 0};
        pools p[2];
        pools_open(&p[0], &cpu, c, 9);
        pools_open(&p[1], &gpu, c, 9);
        char *bytes[2] = {malloc(p[0].pool_bytes), malloc(p[0].pool_bytes)};
        for (int k = 0; k < 2; k++) {
            const side *on = p[k].on;
            static const uint32_t position = 5, table = 0;
            static const uint8_t dead = 0;
            float junk[80] = {1};
            row_args rows = rows_on(on, &position, &table, &dead, 1, 0);
            dev_ptr j = side_put(on, junk, sizeof junk);
            assert_int_equal(on->b->kv_write(on->q, &p[k].kv, j, j, &rows, 1), ST_OK);
            assert_int_equal(on->b->kv_copy_block(on->q, &p[k].kv, 4, 9, 21), ST_OK);
            assert_int_equal(on->b->kv_wipe_block(on->q, &p[k].kv, 2), ST_OK);
            side_get(on, bytes[k], p[k].kv.v, p[k].pool_bytes);
            rows_free(on, &rows, 1);
            side_free(on, j, sizeof junk);
        }
        assert_memory_equal(bytes[0], bytes[1], p[0].pool_bytes);
        for (int k = 0; k < 2; k++) {
            free(bytes[k]);
            pools_close(&p[k]);
        }
    }
}

int main(int argc, char **argv)
{
    if (!gpu_begin(&cpu, &gpu, 300)) return 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kernel_once),
        cmocka_unit_test(attention_is_near_and_alone),
        cmocka_unit_test(prompts_are_their_rows),
        cmocka_unit_test(values_that_are_not_finite_stay_where_they_are_seen),
        cmocka_unit_test(turned_attention_is_its_parts),
        cmocka_unit_test(pools_hold_what_the_cpus_hold),
    };
    int failed = cmocka_run_group_tests_name("gpu attention", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return failed;
}
