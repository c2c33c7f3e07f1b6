/* attention_v16.h - body of attention_avx2.c and attention_avx512.c, written in the v16 operations
 * of the header included before this one.
 *
 * Scores are made for sixteen keys at a time, on the grid of absolute positions, so that the tree
 * runs for sixteen sums at once; a group never crosses a KV block. In groups that the range only
 * partly covers, keys outside are not loaded and selected away. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/v16_load.h"

#include <string.h>

_Static_assert(KV_BLOCK % 16 == 0 && ATTN_CELL % KV_BLOCK == 0, "groups in blocks in cells");
_Static_assert(ATTN_CELL + 2 * (CPU_HEAD_MAX + 16) <= CPU_SCRATCH_FLOATS, "scratch");

typedef struct {
    const char *pool;
    uint64_t block_stride, vector_bytes;
    const uint32_t *table;
} kv_view;

V16 const char *kv_at(const kv_view *v, uint32_t p)
{
    return v->pool + v->table[p / KV_BLOCK] * v->block_stride + p % KV_BLOCK * v->vector_bytes;
}

V16 uint64_t bytes_of_16(dtype type)
{
    return bytes_of_32(type) / 2;
}

/* acc[j] = lanes of dot(q, key j) for the n_keys keys from `key` on. */
V16 void dots(v16 *acc, dtype type, const char *key, uint64_t vector_bytes, const float *q,
              uint32_t n_head, const uint32_t n_keys)
{
    v16 a[KEY_TILE];
#pragma GCC unroll 16
    for (uint32_t j = 0; j < n_keys; j++) a[j] = v16_zero();
    uint32_t i = 0;
    for (; i + 16 <= n_head; i += 16, key += bytes_of_16(type)) {
        v16 qv = v16_load(q + i);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < n_keys; j++)
            a[j] = v16_fma(qv, v16_load_half(type, key + j * vector_bytes, 0), a[j]);
    }
    if (i < n_head) {
        uint32_t n = n_head - i;
        v16_mask m = v16_mask_range(0, n);
        v16 qv = v16_load_part(q + i, n);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < n_keys; j++) {
            v16 kv = v16_load_stored_part(type, key + j * vector_bytes, n);
            a[j] = v16_select(m, v16_fma(qv, kv, a[j]), a[j]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t j = 0; j < n_keys; j++) acc[j] = a[j];
}

/* The scores of the keys [begin, end), which lie in one group of sixteen; -inf outside. */
V16 v16 group_scores(dtype type, const kv_view *k, uint32_t begin, uint32_t end, const float *q,
                     uint32_t n_head, float scale)
{
    v16 acc[16];
    uint32_t group = begin / 16 * 16;
    if (end - begin == 16) {
        const char *key = kv_at(k, group);
        for (uint32_t j = 0; j < 16; j += KEY_TILE)
            dots(acc + j, type, key + j * k->vector_bytes, k->vector_bytes, q, n_head, KEY_TILE);
        return v16_mul(v16_set1(scale), v16_reduce16(acc));
    }
    for (uint32_t j = 0; j < 16; j++) acc[j] = v16_zero();
    for (uint32_t p = begin; p < end; p++)
        dots(acc + (p - group), type, kv_at(k, p), k->vector_bytes, q, n_head, 1);
    v16 s = v16_mul(v16_set1(scale), v16_reduce16(acc));
    return v16_select(v16_mask_range(begin - group, end - group), s,
                      v16_set1(-__builtin_inff()));
}

/* o[0, n) = sum over the keys [begin, end) of e[key mod ATTN_CELL] * v[key, 0..n), keys ascending;
 * n = 16 * n_vectors, or less for the last vector of a head. */
V16 void add_values(float *o, dtype type, const kv_view *v, uint64_t at, const float *e,
                    uint32_t begin, uint32_t end, uint32_t n, const uint32_t n_vectors)
{
    v16 acc[VALUE_TILE];
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n_vectors; c++) acc[c] = v16_zero();
    for (uint32_t p = begin; p < end;) {
        uint32_t block_end = p / KV_BLOCK * KV_BLOCK + KV_BLOCK;
        if (block_end > end) block_end = end;
        const char *value = kv_at(v, p) + at;
        for (; p < block_end; p++, value += v->vector_bytes) {
            v16 ev = v16_set1(e[p % ATTN_CELL]);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < n_vectors; c++) {
                v16 vv = n < 16 ? v16_load_stored_part(type, value, n)
                                : v16_load_half(type, value + c * bytes_of_16(type), 0);
                acc[c] = v16_fma(ev, vv, acc[c]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t c = 0; c < n_vectors; c++) v16_store(o + 16 * c, acc[c]);
}

typedef struct {
    float m, l;
    float *o; /* [n_head rounded up to 16] */
} cell;

/* The keys [begin, end) of one cell into *c. e: [ATTN_CELL]. */
V16 void cell_run(cell *c, dtype type, const kv_view *k, const kv_view *v, uint32_t begin,
                  uint32_t end, const float *q, uint32_t n_head, float scale, float *e)
{
    float lane[16];
    v16 high = v16_set1(-__builtin_inff());
    for (uint32_t p = begin; p < end;) {
        uint32_t group_end = p / 16 * 16 + 16;
        if (group_end > end) group_end = end;
        v16 s = group_scores(type, k, p, group_end, q, n_head, scale);
        v16_store(e + p % ATTN_CELL / 16 * 16, s);
        high = v16_max(s, high);
        p = group_end;
    }
    v16_store(lane, high);
    c->m = lane[0];
    for (int i = 1; i < 16; i++) c->m = lane[i] > c->m ? lane[i] : c->m;

    /* -inf from the lanes outside the range becomes 0, unless m is -inf too: then all is NaN. */
    v16 sum[16];
    for (int i = 0; i < 16; i++) sum[i] = v16_zero();
    v16 m = v16_set1(c->m);
    for (uint32_t p = begin / 16 * 16; p < end; p += 16) {
        float *at = e + p % ATTN_CELL;
        v16 x = v16_exp(v16_sub(v16_load(at), m));
        v16_store(at, x);
        sum[0] = v16_add(sum[0], x);
    }
    v16_store(lane, v16_reduce16(sum));
    c->l = lane[0];

    uint32_t i = 0;
    uint64_t step = bytes_of_16(type);
    for (; i + 16 * VALUE_TILE <= n_head; i += 16 * VALUE_TILE)
        add_values(c->o + i, type, v, i / 16 * step, e, begin, end, 16 * VALUE_TILE, VALUE_TILE);
    for (; i + 64 <= n_head; i += 64)
        add_values(c->o + i, type, v, i / 16 * step, e, begin, end, 64, 4);
    for (; i + 16 <= n_head; i += 16)
        add_values(c->o + i, type, v, i / 16 * step, e, begin, end, 16, 1);
    if (i < n_head) add_values(c->o + i, type, v, i / 16 * step, e, begin, end, n_head - i, 1);
}

static void cell_merge(cell *a, const cell *b, uint32_t n_head)
{
    v16 w[2];
    float weight[16], m = a->m > b->m ? a->m : b->m;
    w[0] = v16_exp(v16_set1(a->m - m));
    w[1] = v16_exp(v16_set1(b->m - m));
    v16_store(weight, w[0]);
    float wa = weight[0];
    v16_store(weight, w[1]);
    float wb = weight[0];
    a->m = m;
    a->l = __builtin_fmaf(b->l, wb, a->l * wa);
    for (uint32_t i = 0; i < n_head; i += 16)
        v16_store(a->o + i, v16_fma(v16_load(b->o + i), w[1], v16_mul(v16_load(a->o + i), w[0])));
}

V16 void attention_type(float *out, const float *q, const kv_view *k, const kv_view *v, dtype type,
                        uint32_t first, uint32_t last, uint32_t n_head, float scale,
                        float *scratch)
{
    uint32_t padded = (n_head + 15) / 16 * 16;
    float *e = scratch;
    cell all = {.o = e + ATTN_CELL}, one = {.o = all.o + padded};
    for (uint32_t begin = first; begin <= last;) {
        uint32_t end = begin / ATTN_CELL * ATTN_CELL + ATTN_CELL;
        if (end > last) end = last + 1;
        cell_run(begin == first ? &all : &one, type, k, v, begin, end, q, n_head, scale, e);
        if (begin != first) cell_merge(&all, &one, n_head);
        begin = end;
    }
    v16 l = v16_set1(all.l);
    uint32_t i = 0;
    for (; i + 16 <= n_head; i += 16) v16_store(out + i, v16_div(v16_load(all.o + i), l));
    if (i < n_head) v16_store_part(out + i, v16_div(v16_load(all.o + i), l), n_head - i);
}

/* One function per type, so that each is optimised with its type as a constant. */
#define ATTENTION_OF(name, type)                                                                   \
    static void name(float *out, const float *q, const kv_view *k, const kv_view *v,               \
                     uint32_t first, uint32_t last, uint32_t n_head, float scale, float *scratch)  \
    {                                                                                              \
        attention_type(out, q, k, v, type, first, last, n_head, scale, scratch);                   \
    }
ATTENTION_OF(attention_f32, DT_F32)
ATTENTION_OF(attention_f16, DT_F16)
ATTENTION_OF(attention_bf16, DT_BF16)

void ISA_NAME(attention_head, V16_ISA)(float *out, const float *q, const void *k, const void *v,
                                       dtype type, uint64_t block_stride, const uint32_t *table,
                                       uint32_t first, uint32_t last, uint32_t n_head, float scale,
                                       float *scratch)
{
    kv_view kv = {k, block_stride, dtype_bytes(type, n_head), table}, vv = kv;
    vv.pool = v;
    switch (type) {
    case DT_F32:
        attention_f32(out, q, &kv, &vv, first, last, n_head, scale, scratch);
        return;
    case DT_F16:
        attention_f16(out, q, &kv, &vv, first, last, n_head, scale, scratch);
        return;
    case DT_BF16:
        attention_bf16(out, q, &kv, &vv, first, last, n_head, scale, scratch);
        return;
    default:
        CHECK(!"a type that supports() refuses");
    }
}
