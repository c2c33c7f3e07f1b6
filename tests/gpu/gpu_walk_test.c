/* A step of one row in one launch gives the bits of the single ops, in hidden state, logits and
 * pools, at any position; and it tells of NaN.
 *
 *     gpu_walk_test [PATTERN]    PATTERN: only tests of that name, * and ? standing for others;
 *                                each_kernel_once is small enough for compute-sanitizer */
#include "tests/support/gpu_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static side cpu, gpu;

enum { LAYERS = 3, VOCAB = 1000, N_CTX = 4096, BLOCKS = N_CTX / KV_BLOCK };
enum { NEOX = 1, GELU = 2, BIAS = 4, HEAD_NORM = 8, POST_NORM = 16 };

/* window: of every second layer, the others see all positions; 0: no layer has one. */
typedef struct {
    dtype type, head_type, v_type;
    uint32_t n_embd, n_ff, n_heads, n_kv_heads, n_head, n_rot, has, window;
} walk_case;

static dev_weight matrix(seeded *s, dtype type, uint32_t n_in, uint32_t n_out)
{
    void *base;
    errmsg e = {0};
    dev_weight w;
    const void *stored = seeded_stored(s, type, (uint64_t)n_in * n_out, 2, &base);
    if (gpu.b->weight_open(gpu.d, &w, stored, type, n_in, n_out, &e) != ST_OK)
        fail_msg("%s", e.text);
    free(base);
    return w;
}

static dev_ptr vector(seeded *s, uint64_t n, float scale)
{
    float *x = seeded_floats(s, n, 2);
    for (uint64_t i = 0; i < n; i++)
        x[i] *= scale;
    dev_ptr p = side_put(&gpu, x, 4 * n);
    free(x);
    return p;
}

/* A pool of small f16 numbers. */
static dev_ptr pool(seeded *s, uint64_t n)
{
    uint16_t *x = malloc(2 * n);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (uint16_t)(0x2c00 + (seeded_next(s) & 0x8fff));
    dev_ptr p = side_put(&gpu, x, 2 * n);
    free(x);
    return p;
}

static void twin(dev_ptr out[2], dev_ptr one, uint64_t bytes)
{
    void *host = malloc(bytes);
    side_get(&gpu, host, one, bytes);
    out[0] = one;
    out[1] = side_put(&gpu, host, bytes);
    free(host);
}

typedef struct {
    walk_case c;
    uint64_t pool_bytes;
    walk_layer by_ops[LAYERS], by_walk[LAYERS];
    walk_desc w;
    dev_ptr normed, up, hidden_in;
    uint32_t tables[2 * BLOCKS]; /* of both kinds */
} subject;

/* What keeps q, k and v of such weights near 1. */
static float norm_scale(dtype t)
{
    return t == DT_F16 || t == DT_BF16 || t == DT_F32 ? 0x1p-3f : t == DT_Q8_0 ? 0x1p-10f : 0x1p-12f;
}

static void open_subject(subject *u, walk_case c)
{
    seeded s = {11};
    float scale = norm_scale(c.type);
    uint64_t q_width = (uint64_t)c.n_heads * c.n_head, kv_width = (uint64_t)c.n_kv_heads * c.n_head;
    *u = (subject){.c = c, .pool_bytes = 2ull * BLOCKS * KV_BLOCK * kv_width};
    for (uint32_t i = 0; i < LAYERS; i++) {
        walk_layer *l = &u->by_ops[i];
        *l = (walk_layer){.attn_norm = vector(&s, c.n_embd, scale), .ffn_norm = vector(&s, c.n_embd, scale)};
        l->attn_q = matrix(&s, c.type, c.n_embd, (uint32_t)q_width);
        l->attn_k = matrix(&s, c.type, c.n_embd, (uint32_t)kv_width);
        l->attn_v = matrix(&s, c.v_type, c.n_embd, (uint32_t)kv_width);
        l->attn_output = matrix(&s, c.type, (uint32_t)q_width, c.n_embd);
        l->ffn_gate = matrix(&s, c.type, c.n_embd, c.n_ff);
        l->ffn_up = matrix(&s, c.type, c.n_embd, c.n_ff);
        l->ffn_down = matrix(&s, c.v_type, c.n_ff, c.n_embd);
        l->kind_i = c.window != 0 ? i % 2 : 0;
        if (c.has & HEAD_NORM) {
            l->attn_q_norm = vector(&s, c.n_head, 0.25f);
            l->attn_k_norm = vector(&s, c.n_head, 0.25f);
        }
        if (c.has & POST_NORM) {
            l->attn_post_norm = vector(&s, c.n_embd, 1);
            l->ffn_post_norm = vector(&s, c.n_embd, 1);
        }
        if (c.has & BIAS) {
            l->attn_q_bias = vector(&s, q_width, 1);
            l->attn_k_bias = vector(&s, kv_width, 1);
            l->attn_v_bias = vector(&s, kv_width, 1);
        }
        l->kv = (kv_args){.type = DT_F16, .n_kv_heads = c.n_kv_heads, .n_head = c.n_head};
        u->by_walk[i] = *l;
        dev_ptr k[2], v[2];
        twin(k, pool(&s, u->pool_bytes / 2), u->pool_bytes);
        twin(v, pool(&s, u->pool_bytes / 2), u->pool_bytes);
        u->by_ops[i].kv.k = k[0];
        u->by_walk[i].kv.k = k[1];
        u->by_ops[i].kv.v = v[0];
        u->by_walk[i].kv.v = v[1];
    }
    for (uint32_t i = 0; i < 2 * BLOCKS; i++)
        u->tables[i] = (i * (i < BLOCKS ? 5 : 7) + 2) % BLOCKS;
    const uint32_t table[2] = {0, BLOCKS};
    const uint8_t live = 1;
    row_args rows = {.position = side_put(&gpu, NULL, 4),
                     .tables = side_put(&gpu, u->tables, sizeof u->tables),
                     .live = side_put(&gpu, &live, 1)};
    u->w = (walk_desc){
        .n_layers = LAYERS,
        .n_embd = c.n_embd,
        .n_ff = c.n_ff,
        .n_heads = c.n_heads,
        .n_ctx = N_CTX,
        .rms_eps = 1e-5f,
        .attn_scale = 0.09f,
        .gelu = (c.has & GELU) != 0,
        .n_kinds = c.window != 0 ? 2 : 1,
        .layer = u->by_walk,
        .hidden = side_put(&gpu, NULL, 4ull * c.n_embd),
        .q = side_put(&gpu, NULL, 4 * q_width),
        .k = side_put(&gpu, NULL, 4 * kv_width),
        .v = side_put(&gpu, NULL, 4 * kv_width),
        .attn = side_put(&gpu, NULL, 4 * q_width),
        .gate = side_put(&gpu, NULL, 4ull * c.n_ff),
        .output = matrix(&s, c.head_type, c.n_embd, VOCAB),
        .output_norm = vector(&s, c.n_embd, 1),
        .logits = side_put(&gpu, NULL, 4 * VOCAB),
        .finite = side_put(&gpu, NULL, 2)};
    for (uint32_t i = 0; i < u->w.n_kinds; i++) {
        rows.table = side_put(&gpu, &table[i], 4);
        u->w.kind[i] = (walk_kind){.rope = {vector(&s, c.n_rot / 2, 0.25f),
                                            vector(&s, c.n_rot / 2, 0.25f), c.n_rot,
                                            (c.has & NEOX) != 0},
                                   .rows = rows,
                                   .window = i == 1 ? c.window : 0};
    }
    u->normed = side_put(&gpu, NULL, 4ull * c.n_embd);
    u->up = side_put(&gpu, NULL, 4ull * c.n_ff);
    u->hidden_in = vector(&s, c.n_embd, 1);
}

#define OP(op, ...) assert_int_equal(gpu.b->op(gpu.q, __VA_ARGS__), ST_OK)

static void by_ops(const subject *u)
{
    const walk_desc *w = &u->w;
    const walk_case *c = &u->c;
    const dev_ptr none = {0};
    for (int i = 0; i < LAYERS; i++) {
        const walk_layer *l = &u->by_ops[i];
        const walk_kind *kind = &w->kind[l->kind_i];
        OP(rms_norm, u->normed, w->hidden, l->attn_norm, c->n_embd, w->rms_eps, 1);
        OP(matmul, w->q, &l->attn_q, u->normed, l->attn_q_bias, 1);
        OP(matmul, w->k, &l->attn_k, u->normed, l->attn_k_bias, 1);
        OP(matmul, w->v, &l->attn_v, u->normed, l->attn_v_bias, 1);
        if (c->has & HEAD_NORM) {
            OP(rms_norm, w->q, w->q, l->attn_q_norm, c->n_head, w->rms_eps, c->n_heads);
            OP(rms_norm, w->k, w->k, l->attn_k_norm, c->n_head, w->rms_eps, c->n_kv_heads);
        }
        OP(rope, w->q, &kind->rope, c->n_heads, c->n_head, 1);
        OP(rope, w->k, &kind->rope, c->n_kv_heads, c->n_head, 1);
        OP(kv_write, &l->kv, w->k, w->v, &kind->rows, 1);
        OP(attention, w->attn, w->q, &l->kv, &kind->rows, c->n_heads, w->attn_scale, kind->window, 1);
        OP(matmul, u->normed, &l->attn_output, w->attn, none, 1);
        if (c->has & POST_NORM)
            OP(rms_norm, u->normed, u->normed, l->attn_post_norm, c->n_embd, w->rms_eps, 1);
        OP(add, w->hidden, u->normed, c->n_embd);
        OP(rms_norm, u->normed, w->hidden, l->ffn_norm, c->n_embd, w->rms_eps, 1);
        OP(matmul, w->gate, &l->ffn_gate, u->normed, none, 1);
        OP(matmul, u->up, &l->ffn_up, u->normed, none, 1);
        if (c->has & GELU)
            OP(gelu_mul, w->gate, w->gate, u->up, c->n_ff);
        else
            OP(silu_mul, w->gate, w->gate, u->up, c->n_ff);
        OP(matmul, u->normed, &l->ffn_down, w->gate, none, 1);
        if (c->has & POST_NORM)
            OP(rms_norm, u->normed, u->normed, l->ffn_post_norm, c->n_embd, w->rms_eps, 1);
        OP(add, w->hidden, u->normed, c->n_embd);
    }
    OP(rms_norm, u->normed, w->hidden, w->output_norm, c->n_embd, w->rms_eps, 1);
    OP(matmul, w->logits, &w->output, u->normed, none, 1);
}

static void same_pools(const subject *u, const char *what)
{
    char *a = malloc(u->pool_bytes), *b = malloc(u->pool_bytes);
    for (int i = 0; i < 2 * LAYERS; i++) {
        const kv_args *ops = &u->by_ops[i / 2].kv, *walk = &u->by_walk[i / 2].kv;
        side_get(&gpu, a, i % 2 ? ops->v : ops->k, u->pool_bytes);
        side_get(&gpu, b, i % 2 ? walk->v : walk->k, u->pool_bytes);
        if (memcmp(a, b, u->pool_bytes) != 0)
            fail_msg("%s: the %s pools of layer %d differ", what, i % 2 ? "V" : "K", i / 2);
    }
    free(a);
    free(b);
}

/* The row's position, and a window's table without the blocks that it has left: reading one fails. */
static void place_row(const subject *u, uint32_t position)
{
    static uint32_t tables[2 * BLOCKS];
    memcpy(tables, u->tables, sizeof tables);
    uint32_t first = u->c.window != 0 && position >= u->c.window ? position + 1 - u->c.window : 0;
    for (uint32_t i = 0; i < first / KV_BLOCK; i++)
        tables[BLOCKS + i] = UINT32_MAX / 4;
    OP(upload, u->w.kind[0].rows.position, &position, 4);
    OP(upload, u->w.kind[0].rows.tables, tables, sizeof tables);
}

static void check_step(const subject *u, const backend_walk *walk, uint32_t position, bool head)
{
    char what[160];
    const walk_desc *w = &u->w;
    uint32_t n = u->c.n_embd;
    float *want = malloc(4ull * n), *got = malloc(4ull * n), logits[2][VOCAB];
    uint8_t finite[2] = {9, 9};
    snprintf(what, sizeof what, "%s, %u wide, %u/%u heads of %u, has %u, window %u, position %u%s",
             dtype_get(u->c.type)->name, n, u->c.n_heads, u->c.n_kv_heads, u->c.n_head, u->c.has,
             u->c.window, position, head ? "" : ", no head");
    place_row(u, position);
    OP(copy, w->hidden, u->hidden_in, 4ull * n);
    by_ops(u);
    side_get(&gpu, want, w->hidden, 4ull * n);
    side_get(&gpu, logits[0], w->logits, sizeof logits[0]);
    memset(logits[1], 0xff, sizeof logits[1]);
    OP(upload, w->logits, logits[1], sizeof logits[1]);
    OP(upload, w->finite, finite, 2);
    OP(copy, w->hidden, u->hidden_in, 4ull * n);
    OP(walk, walk, head);
    side_get(&gpu, got, w->hidden, 4ull * n);
    assert_true(same_bits(what, want, got, n));
    side_get(&gpu, finite, w->finite, 2);
    assert_int_equal(finite[0], 0);
    assert_int_equal(finite[1], 0);
    if (head) {
        side_get(&gpu, logits[1], w->logits, sizeof logits[1]);
        assert_true(same_bits(what, logits[0], logits[1], VOCAB));
    }
    same_pools(u, what);
    free(want);
    free(got);
}

static void close_subject(subject *u)
{
    for (int i = 0; i < LAYERS; i++) {
        side_free(&gpu, u->by_ops[i].kv.k, u->pool_bytes);
        side_free(&gpu, u->by_ops[i].kv.v, u->pool_bytes);
        side_free(&gpu, u->by_walk[i].kv.k, u->pool_bytes);
        side_free(&gpu, u->by_walk[i].kv.v, u->pool_bytes);
    }
}

static backend_walk *open_walk(const walk_desc *w)
{
    errmsg e = {0};
    backend_walk *walk;
    if (gpu.b->walk_open(gpu.d, &walk, w, &e) != ST_OK) fail_msg("%s", e.text);
    return walk;
}

/* With its head, without, and where there is none. */
static void check_case(walk_case c, const uint32_t *position, uint32_t n)
{
    subject u;
    open_subject(&u, c);
    backend_walk *walk = open_walk(&u.w);
    assert_non_null(walk);
    for (uint32_t i = 0; i < n; i++)
        check_step(&u, walk, position[i], i % 3 != 2);
    gpu.b->walk_close(walk);
    walk_desc without = u.w;
    without.output.data.addr = 0;
    walk = open_walk(&without);
    assert_non_null(walk);
    check_step(&u, walk, position[n - 1], false);
    gpu.b->walk_close(walk);
    close_subject(&u);
}

static void each_kernel_once(void **state)
{
    (void)state;
    static const walk_case cases[] = {
        {DT_Q8_0, DT_F16, DT_Q6_K, 256, 512, 4, 2, 64, 64, 0, 0},
        {DT_Q8_0, DT_F16, DT_Q6_K, 256, 512, 4, 2, 64, 64, NEOX | HEAD_NORM, 0},
        {DT_Q8_0, DT_F16, DT_Q6_K, 256, 512, 2, 1, 256, 256, NEOX | GELU | HEAD_NORM | POST_NORM, 200},
    };
    static const uint32_t position = 300;
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(cases[i], &position, 1);
}

static void one_launch_gives_the_ops_bits(void **state)
{
    (void)state;
    enum { QWEN3 = NEOX | HEAD_NORM, GEMMA3 = NEOX | GELU | HEAD_NORM | POST_NORM };
    static const walk_case cases[] = {
        {DT_Q4_K, DT_Q6_K, DT_Q6_K, 4096, 14336, 32, 8, 128, 128, 0, 0},
        {DT_F16, DT_F16, DT_F16, 512, 1024, 4, 2, 64, 64, 0, 0},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, 2048, 8448, 32, 8, 128, 128, 0, 0},
        {DT_BF16, DT_BF16, DT_BF16, 1024, 9216, 32, 4, 128, 128, NEOX, 0},
        {DT_Q8_0, DT_F16, DT_F16, 288, 800, 6, 3, 48, 32, NEOX | BIAS, 0},
        {DT_Q4_0, DT_Q8_0, DT_Q6_K, 512, 768, 7, 1, 64, 64, GELU, 0},
        {DT_F16, DT_Q4_K, DT_Q5_1, 256, 256, 16, 16, 16, 16, NEOX | GELU | BIAS, 0},
        {DT_Q5_K, DT_IQ4_XS, DT_Q3_K, 4096, 14336, 32, 8, 128, 128, 0, 0},
        /* Qwen3 4B, Gemma 3 4B, 1B and the width of 12B, and each of their features by itself */
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, 2560, 9728, 32, 8, 128, 128, QWEN3, 0},
        {DT_Q4_K, DT_Q8_0, DT_Q6_K, 2560, 10240, 8, 4, 256, 256, GEMMA3, 1000},
        {DT_BF16, DT_BF16, DT_BF16, 1152, 6912, 4, 1, 256, 256, GEMMA3, 512},
        {DT_Q8_0, DT_F16, DT_Q8_0, 3840, 2048, 16, 8, 256, 256, GEMMA3, 1024},
        {DT_F16, DT_F16, DT_F16, 4096, 512, 8, 8, 128, 128, GEMMA3, 64},
        {DT_Q8_0, DT_F16, DT_F16, 288, 800, 6, 3, 48, 32, NEOX | BIAS | HEAD_NORM | POST_NORM, 5},
        {DT_F16, DT_F16, DT_F16, 512, 1024, 8, 1, 80, 80, HEAD_NORM, 0},
        {DT_F16, DT_F16, DT_F16, 512, 1024, 4, 2, 64, 64, POST_NORM, 0},
        {DT_F16, DT_F16, DT_F16, 512, 1024, 4, 2, 64, 64, 0, 300},
        {DT_Q8_0, DT_F16, DT_F16, 512, 768, 5, 1, 192, 64, 0, 1},
        {DT_Q4_0, DT_F16, DT_F16, 512, 768, 6, 2, 256, 256, 0, 0},
    };
    static const uint32_t positions[] = {0, 1, 63, 64, 255, 256, 700, 2047, 4095, 5};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(cases[i], positions, sizeof positions / sizeof *positions);
}

static void nan_is_told(void **state)
{
    (void)state;
    static const uint32_t has[] = {0, POST_NORM};
    for (uint32_t i = 0; i < 4; i++) {
        const walk_case c = {DT_F16, DT_F16, DT_F16, 512, 1024, 4, 2, 64, 64, has[i / 2], 0};
        bool head = i % 2 == 0;
        subject u;
        uint8_t finite[2] = {9, 9};
        float bad = NAN;
        open_subject(&u, c);
        backend_walk *walk = open_walk(&u.w);
        OP(copy, u.w.hidden, u.hidden_in, 4ull * c.n_embd);
        OP(upload, dev_offset(u.w.hidden, 400), &bad, 4);
        OP(upload, u.w.finite, finite, 2);
        OP(walk, walk, head);
        side_get(&gpu, finite, u.w.finite, 2);
        assert_int_equal(finite[0], 1);
        assert_int_equal(finite[1], head);
        gpu.b->walk_close(walk);
        close_subject(&u);
    }
}

static void what_it_lacks_it_leaves_to_the_ops(void **state)
{
    (void)state;
    walk_case c = {DT_F32, DT_F16, DT_F16, 512, 1024, 4, 2, 64, 64, 0, 0};
    subject u;
    open_subject(&u, c);
    assert_null(open_walk(&u.w));
    close_subject(&u);
    c.type = DT_F16;
    open_subject(&u, c);
    u.by_walk[0].kv.type = DT_F32;
    assert_null(open_walk(&u.w));
    close_subject(&u);
    c.has = POST_NORM;
    open_subject(&u, c);
    u.by_walk[1].ffn_post_norm.addr = 0; /* a norm after one of its blocks only */
    assert_null(open_walk(&u.w));
    close_subject(&u);
    c.n_embd = 4128; /* wider than a row that a block norms twice */
    open_subject(&u, c);
    assert_null(open_walk(&u.w));
    close_subject(&u);
}

int main(int argc, char **argv)
{
    if (!gpu_begin(&cpu, &gpu, 300)) return 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kernel_once),
        cmocka_unit_test(one_launch_gives_the_ops_bits),
        cmocka_unit_test(nan_is_told),
        cmocka_unit_test(what_it_lacks_it_leaves_to_the_ops),
    };
    int failed = cmocka_run_group_tests_name("gpu walk", tests, NULL, NULL);
    gpu_end(&cpu, &gpu);
    return failed;
}
