/* The plain reference of attention: cell by cell, as isa.h says. */
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/lanes_ref.h"

#include "common/fmath.h"

#include <string.h>

typedef struct {
    float m, l;
    float *o; /* [n_head] */
} cell;

/* Where position p's vector of n_head values lies in a pool. */
static const char *kv_at(const void *pool, uint64_t block_stride, const uint32_t *table, uint32_t p,
                         uint64_t vector_bytes)
{
    return (const char *)pool + table[p / KV_BLOCK] * block_stride + p % KV_BLOCK * vector_bytes;
}

static void cell_merge(cell *a, const cell *b, uint32_t n_head)
{
    float m = a->m > b->m ? a->m : b->m;
    float wa = fm_expf(a->m - m), wb = fm_expf(b->m - m);
    a->m = m;
    a->l = __builtin_fmaf(b->l, wb, a->l * wa);
    for (uint32_t i = 0; i < n_head; i++) a->o[i] = __builtin_fmaf(b->o[i], wb, a->o[i] * wa);
}

void attention_head_ref(float *out, const float *q, const void *k, const void *v, dtype type,
                        uint64_t block_stride, const uint32_t *table, uint32_t first, uint32_t last,
                        uint32_t n_head, float scale, float *scratch)
{
    uint64_t vector_bytes = dtype_bytes(type, n_head);
    float *scores = scratch, *vector = scores + ATTN_CELL;
    cell all = {.o = vector + n_head}, one = {.o = all.o + n_head};
    bool any = false;
    for (uint32_t begin = first; begin <= last;) {
        uint32_t end = begin / ATTN_CELL * ATTN_CELL + ATTN_CELL;
        if (end > last) end = last + 1;
        one.m = -__builtin_inff();
        for (uint32_t j = begin; j < end; j++) {
            to_f32_ref(vector, kv_at(k, block_stride, table, j, vector_bytes), type, n_head);
            lanes sum = {{0}};
            for (uint32_t i = 0; i < n_head; i++) lanes_add_product(&sum, i, q[i], vector[i]);
            scores[j - begin] = scale * lanes_tree(&sum);
            if (scores[j - begin] > one.m) one.m = scores[j - begin];
        }
        lanes l = {{0}};
        memset(one.o, 0, n_head * sizeof *one.o);
        for (uint32_t j = begin; j < end; j++) {
            float e = fm_expf(scores[j - begin] - one.m);
            l.v[j % 16] += e;
            to_f32_ref(vector, kv_at(v, block_stride, table, j, vector_bytes), type, n_head);
            for (uint32_t i = 0; i < n_head; i++)
                one.o[i] = __builtin_fmaf(e, vector[i], one.o[i]);
        }
        one.l = lanes_tree(&l);
        if (any) {
            cell_merge(&all, &one, n_head);
        } else {
            all.m = one.m;
            all.l = one.l;
            memcpy(all.o, one.o, n_head * sizeof *one.o);
        }
        any = true;
        begin = end;
    }
    for (uint32_t i = 0; i < n_head; i++) out[i] = all.o[i] / all.l;
}
