/* Attention and the KV ops, through the cpu table: against float64, and the same bits from every
 * instruction set, number of threads, block table and company of rows. */
#include "tests/support/kernel_check.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BLOCKS 16u
#define N_KEYS 768u /* 12 blocks, 3 cells */

static const dtype kv_types[] = {DT_F32, DT_F16, DT_BF16};

typedef struct {
    uint32_t n_heads, n_kv_heads, n_head, window;
    dtype type;
} shape;

/* A device with one sequence of N_KEYS keys in its pools, behind a shuffled block table. */
typedef struct {
    const backend *b;
    backend_device *d;
    backend_queue *q;
    kv_args kv;
    uint64_t pool_bytes;
    uint32_t table[N_KEYS / KV_BLOCK];
} sequence;

static dev_ptr on_host(const void *p)
{
    return (dev_ptr){(uintptr_t)p}; /* the cpu's device memory is host memory */
}

static void sequence_open(sequence *s, const char *isa, uint32_t n_threads, const shape *h)
{
    *s = (sequence){.b = backend_cpu()};
    errmsg e = {0};
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = n_threads, .isa = isa};
    assert_int_equal(s->b->device_open(&s->d, &spec, &e), ST_OK);
    assert_int_equal(s->b->queue_open(s->d, &s->q, &e), ST_OK);
    s->pool_bytes = dtype_bytes(h->type, (uint64_t)N_BLOCKS * h->n_kv_heads * KV_BLOCK * h->n_head);
    s->kv = (kv_args){.type = h->type, .n_kv_heads = h->n_kv_heads, .n_head = h->n_head};
    assert_int_equal(s->b->alloc(s->d, &s->kv.k, s->pool_bytes, &e), ST_OK);
    assert_int_equal(s->b->alloc(s->d, &s->kv.v, s->pool_bytes, &e), ST_OK);
}

static void sequence_close(sequence *s)
{
    s->b->free(s->d, s->kv.k, s->pool_bytes);
    s->b->free(s->d, s->kv.v, s->pool_bytes);
    s->b->queue_close(s->q);
    s->b->device_close(s->d);
}

/* Block ids in an order that `seed` decides. */
static void shuffle_table(sequence *s, uint64_t seed)
{
    uint32_t id[N_BLOCKS];
    seeded r = {seed};
    for (uint32_t i = 0; i < N_BLOCKS; i++) id[i] = i;
    for (uint32_t i = N_BLOCKS - 1; i > 0; i--) {
        uint32_t j = seeded_below(&r, i + 1), keep = id[i];
        id[i] = id[j];
        id[j] = keep;
    }
    memcpy(s->table, id, sizeof s->table);
}

static void write_keys(sequence *s, const float *k, const float *v, uint32_t first, uint32_t n)
{
    uint32_t position[N_KEYS], table[N_KEYS];
    uint8_t live[N_KEYS];
    for (uint32_t i = 0; i < n; i++) {
        position[i] = first + i;
        table[i] = 0;
        live[i] = 1;
    }
    row_args rows = {on_host(position), on_host(table), on_host(s->table), on_host(live), 0, 0};
    uint64_t row = (uint64_t)s->kv.n_kv_heads * s->kv.n_head;
    dev_ptr k_rows = on_host(k + first * row), v_rows = on_host(v + first * row);
    assert_int_equal(s->b->kv_write(s->q, &s->kv, k_rows, v_rows, &rows, n), ST_OK);
}

static void attend(sequence *s, float *out, const float *x, const uint32_t *position,
                   const shape *h, float scale, uint32_t n_rows)
{
    uint32_t table[16] = {0};
    uint8_t live[16];
    memset(live, 1, sizeof live);
    assert_true(n_rows <= 16);
    row_args rows = {on_host(position), on_host(table), on_host(s->table), on_host(live), 0, 0};
    assert_int_equal(s->b->attention(s->q, on_host(out), on_host(x), &s->kv, &rows, h->n_heads,
                                     scale, h->window, n_rows),
                     ST_OK);
}

/* One head in float64 over the rounded keys and values: no cells, no running maximum. */
static void head_float64(double *out, const float *q, const float *k, const float *v,
                         uint32_t stride, uint32_t first, uint32_t last, uint32_t n_head,
                         double scale)
{
    double score[N_KEYS], high = -INFINITY, sum = 0;
    for (uint32_t j = first; j <= last; j++) {
        score[j] = 0;
        for (uint32_t i = 0; i < n_head; i++)
            score[j] += (double)q[i] * (double)k[(uint64_t)j * stride + i];
        score[j] *= scale;
        if (score[j] > high) high = score[j];
    }
    for (uint32_t i = 0; i < n_head; i++) out[i] = 0;
    for (uint32_t j = first; j <= last; j++) {
        double e = exp(score[j] - high);
        sum += e;
        for (uint32_t i = 0; i < n_head; i++) out[i] += e * (double)v[(uint64_t)j * stride + i];
    }
    for (uint32_t i = 0; i < n_head; i++) out[i] /= sum;
}

static const uint32_t positions[] = {0, 1, 15, 16, 63, 64, 255, 256, 257, 511, 512, 700, 767};
enum { N_ROWS = sizeof positions / sizeof *positions };

static void check_shape(const shape *h, uint64_t seed)
{
    const cpu_isa *isas[CHECK_ISAS];
    uint32_t n_isas = check_isas(isas);
    seeded s = {seed};
    uint32_t kv_row = h->n_kv_heads * h->n_head, q_row = h->n_heads * h->n_head;
    float *k = seeded_floats(&s, (uint64_t)N_KEYS * kv_row, 1);
    float *v = seeded_floats(&s, (uint64_t)N_KEYS * kv_row, 2);
    float *x = seeded_floats(&s, (uint64_t)N_ROWS * q_row, 1);
    float *want = calloc((uint64_t)N_ROWS * q_row, sizeof *want);
    float *got = calloc((uint64_t)N_ROWS * q_row, sizeof *got);
    assert_true(want && got);
    float scale = 1.0f / sqrtf((float)h->n_head);

    for (uint32_t i = 0; i < n_isas; i++) {
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            sequence q;
            sequence_open(&q, isas[i]->name, n_threads, h);
            shuffle_table(&q, seed + i * 3 + n_threads);
            write_keys(&q, k, v, 0, n_threads == 2 ? 100 : N_KEYS); /* in one piece or in two */
            if (n_threads == 2) write_keys(&q, k, v, 100, N_KEYS - 100);
            bool reference = i == 0 && n_threads == 1;
            float *to = reference ? want : got;
            attend(&q, to, x, positions, h, scale, N_ROWS);
            char what[96];
            snprintf(what, sizeof what, "%s, %u threads, heads %u/%u of %u, %s", isas[i]->name,
                     n_threads, h->n_heads, h->n_kv_heads, h->n_head, dtype_get(h->type)->name);
            assert_true(same_bits(what, want, to, (uint64_t)N_ROWS * q_row));
            /* Each row alone. */
            for (uint32_t r = 0; r < N_ROWS && n_threads == 1; r++) {
                attend(&q, got, x + r * q_row, positions + r, h, scale, 1);
                assert_true(same_bits(what, want + r * q_row, got, q_row));
            }
            sequence_close(&q);
        }
    }

    /* The values as they are stored. */
    uint16_t *stored = malloc((uint64_t)N_KEYS * kv_row * 4);
    assert_non_null(stored);
    isas[0]->from_f32(stored, h->type, k, (uint64_t)N_KEYS * kv_row);
    isas[0]->to_f32(k, stored, h->type, (uint64_t)N_KEYS * kv_row);
    isas[0]->from_f32(stored, h->type, v, (uint64_t)N_KEYS * kv_row);
    isas[0]->to_f32(v, stored, h->type, (uint64_t)N_KEYS * kv_row);
    free(stored);
    double o[256];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        uint32_t last = positions[r];
        uint32_t first = h->window != 0 && last >= h->window ? last + 1 - h->window : 0;
        for (uint32_t head = 0; head < h->n_heads; head++) {
            uint32_t at = head / (h->n_heads / h->n_kv_heads) * h->n_head;
            head_float64(o, x + r * q_row + head * h->n_head, k + at, v + at, kv_row, first, last,
                         h->n_head, (double)scale);
            for (uint32_t i = 0; i < h->n_head; i++) {
                double y = (double)want[r * q_row + head * h->n_head + i];
                assert_true(fabs(y - o[i]) <= 4e-6 * (1 + fabs(o[i])));
            }
        }
    }
    free(k);
    free(v);
    free(x);
    free(want);
    free(got);
}

static void attention_agrees(void **state)
{
    (void)state;
    static const uint32_t heads[][3] = {{8, 4, 8}, {4, 4, 64}, {2, 1, 128}, {3, 1, 20}, {1, 1, 1},
                                        {2, 2, 160}};
    static const uint32_t windows[] = {0, 1, 16, 100, 300};
    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t i = 0; i < 6; i++) {
            shape h = {heads[i][0], heads[i][1], heads[i][2], windows[(t + i) % 5], kv_types[t]};
            check_shape(&h, 100 + 10 * t + i);
            h.window = 0;
            if ((t + i) % 5 != 0 && i < 3) check_shape(&h, 200 + 10 * t + i);
        }
    }
}

/* Keys outside [first, last] are never read: NaN there changes nothing. */
static void masked_keys_are_not_touched(void **state)
{
    (void)state;
    const cpu_isa *isas[CHECK_ISAS];
    uint32_t n_isas = check_isas(isas);
    shape h = {2, 1, 24, 50, DT_F16};
    seeded s = {11};
    float *k = seeded_floats(&s, N_KEYS * 24, 1), *v = seeded_floats(&s, N_KEYS * 24, 1);
    float *x = seeded_floats(&s, 48, 1), want[48], got[48];
    static const uint32_t at[] = {40, 63, 64, 255, 256, 300, 330};
    for (uint32_t i = 0; i < n_isas; i++) {
        for (uint32_t p = 0; p < sizeof at / sizeof *at; p++) {
            sequence q;
            sequence_open(&q, isas[i]->name, 1, &h);
            shuffle_table(&q, p);
            write_keys(&q, k, v, 0, N_KEYS);
            attend(&q, want, x, &at[p], &h, 0.2f, 1);
            uint32_t first = at[p] >= h.window ? at[p] + 1 - h.window : 0;
            memset((void *)(uintptr_t)q.kv.k.addr, 0xff, q.pool_bytes); /* NaN */
            memset((void *)(uintptr_t)q.kv.v.addr, 0xff, q.pool_bytes);
            write_keys(&q, k, v, first, at[p] + 1 - first);
            attend(&q, got, x, &at[p], &h, 0.2f, 1);
            assert_true(same_bits(isas[i]->name, want, got, 48));
            assert_true(isas[i]->all_finite(got, 48));
            sequence_close(&q);
        }
    }
    free(k);
    free(v);
    free(x);
}

/* NaN or infinity in a key that counts must reach the output, where check_finite finds it. */
static void bad_values_come_out(void **state)
{
    (void)state;
    const cpu_isa *isas[CHECK_ISAS];
    uint32_t n_isas = check_isas(isas);
    shape h = {1, 1, 16, 0, DT_F32};
    static const float bad[] = {NAN, INFINITY};
    for (uint32_t i = 0; i < n_isas; i++) {
        for (uint32_t j = 0; j < 300; j += 37) {
            for (int b = 0; b < 2; b++) {
                seeded s = {12};
                float *k = seeded_floats(&s, N_KEYS * 16, 1);
                float *v = seeded_floats(&s, N_KEYS * 16, 1);
                float *x = seeded_floats(&s, 16, 1), out[16];
                x[3] = 1;
                k[j * 16 + 3] = bad[b];
                sequence q;
                sequence_open(&q, isas[i]->name, 1, &h);
                shuffle_table(&q, 1);
                write_keys(&q, k, v, 0, N_KEYS);
                attend(&q, out, x, &(uint32_t){300}, &h, 1, 1);
                assert_false(isas[i]->all_finite(out, 16));
                sequence_close(&q);
                free(k);
                free(v);
                free(x);
            }
        }
    }
}

static void dead_rows_write_nothing(void **state)
{
    (void)state;
    shape h = {2, 2, 8, 0, DT_F16};
    sequence q;
    sequence_open(&q, "auto", 2, &h);
    shuffle_table(&q, 5);
    seeded s = {13};
    float *k = seeded_floats(&s, 3 * 16, 1);
    uint32_t position[] = {0, 1, 2}, table[] = {0, 9999999, 0}; /* the dead row has no table */
    uint8_t live[] = {1, 0, 1};
    row_args rows = {on_host(position), on_host(table), on_host(q.table), on_host(live), 0, 0};
    assert_int_equal(q.b->kv_write(q.q, &q.kv, on_host(k), on_host(k), &rows, 3), ST_OK);
    const uint16_t *pool = (const uint16_t *)(uintptr_t)q.kv.k.addr;
    for (uint32_t head = 0; head < 2; head++) {
        const uint16_t *at = pool + (q.table[0] * 2 + head) * KV_BLOCK * 8;
        uint16_t row[8];
        cpu_isa_ref.from_f32(row, DT_F16, k + head * 8, 8);
        assert_memory_equal(at, row, sizeof row);
        for (int i = 0; i < 8; i++) assert_int_equal(at[8 + i], 0);
        cpu_isa_ref.from_f32(row, DT_F16, k + 32 + head * 8, 8);
        assert_memory_equal(at + 16, row, sizeof row);
    }
    float x[48] = {1}, out[48];
    assert_int_equal(q.b->attention(q.q, on_host(out), on_host(x), &q.kv, &rows, 2, 1, 0, 3),
                     ST_OK);
    assert_true(cpu_isa_ref.all_finite(out, 48));
    free(k);
    sequence_close(&q);
}

static void blocks_are_copied_and_wiped(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 3; t++) {
        shape h = {2, 2, 12, 0, kv_types[t]};
        sequence q;
        sequence_open(&q, "auto", 1, &h);
        uint64_t vector = dtype_bytes(h.type, 12), head = vector * KV_BLOCK, block = 2 * head;
        uint8_t *pool[] = {(uint8_t *)(uintptr_t)q.kv.k.addr, (uint8_t *)(uintptr_t)q.kv.v.addr};
        for (uint64_t i = 0; i < q.pool_bytes; i++) {
            pool[0][i] = (uint8_t)(i * 7 + i / 251);
            pool[1][i] = (uint8_t)(i * 5 + i / 253);
        }
        uint8_t *before[2] = {malloc(q.pool_bytes), malloc(q.pool_bytes)};
        assert_true(before[0] && before[1]);
        for (int p = 0; p < 2; p++) memcpy(before[p], pool[p], q.pool_bytes);
        assert_int_equal(q.b->kv_copy_block(q.q, &q.kv, 3, 7, 5), ST_OK);
        assert_int_equal(q.b->kv_copy_block(q.q, &q.kv, 4, 4, KV_BLOCK), ST_OK);
        assert_int_equal(q.b->kv_copy_block(q.q, &q.kv, 5, 6, 0), ST_OK);
        for (int p = 0; p < 2; p++) {
            for (int hd = 0; hd < 2; hd++)
                memcpy(before[p] + 3 * block + (unsigned)hd * head,
                       before[p] + 7 * block + (unsigned)hd * head, 5 * vector);
            assert_memory_equal(before[p], pool[p], q.pool_bytes);
        }
        assert_int_equal(q.b->kv_wipe_block(q.q, &q.kv, 7), ST_OK);
        for (int p = 0; p < 2; p++) {
            memset(before[p] + 7 * block, 0, block);
            assert_memory_equal(before[p], pool[p], q.pool_bytes);
            free(before[p]);
        }
        sequence_close(&q);
    }
}

int main(void)
{
    tap_begin(300);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees),
        cmocka_unit_test(masked_keys_are_not_touched),
        cmocka_unit_test(bad_values_come_out),
        cmocka_unit_test(dead_rows_write_nothing),
        cmocka_unit_test(blocks_are_copied_and_wiped),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
