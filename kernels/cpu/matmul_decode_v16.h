/* matmul_decode_v16.h - products of few rows, in the v16 operations of the header included before.
 *
 * Weights are streamed once from memory, converted in registers and used for all rows; the next
 * tile's weights are fetched ahead. Bound by memory. */
#ifndef KERNELS_CPU_MATMUL_DECODE_V16_H
#define KERNELS_CPU_MATMUL_DECODE_V16_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/v16_load.h"

typedef struct {
    float *out;
    const char *w;
    const float *x;
    const char *bias; /* NULL: none */
    uint64_t row_bytes;
    uint32_t n_in, n_out, n_rows;
} product;

/* The sums of the lanes acc [n_rows, n_outs] as outputs [o, o + n_outs) of rows [r, r + n_rows). */
V16 void store_tile(const product *p, const v16 *acc, uint32_t r, uint32_t o, uint32_t n_rows,
                    uint32_t n_outs)
{
    float y[16];
    v16_store(y, v16_reduce16(acc));
    for (uint32_t k = 0; k < n_rows; k++) {
        float *out = p->out + (uint64_t)(r + k) * p->n_out + o;
        for (uint32_t j = 0; j < n_outs; j++) {
            float b = y[k * n_outs + j];
            if (p->bias != NULL) b += load_f32(p->bias + 4ull * (o + j));
            out[j] = b;
        }
    }
}

/* Outputs [o, o + n_outs) of rows [r, r + n_rows); n_outs * n_rows <= 16. */
V16 void decode_tile(const product *p, dtype type, uint32_t r, uint32_t o, const uint32_t n_rows,
                     const uint32_t n_outs)
{
    const char *w = p->w + o * p->row_bytes;
    const float *x = p->x + (uint64_t)r * p->n_in;
    const uint64_t ahead = n_outs * p->row_bytes;
    v16 acc[16];
    for (uint32_t i = 0; i < 16; i++) acc[i] = v16_zero();
    uint32_t i = 0;
    for (; i + 32 <= p->n_in; i += 32, w += bytes_of_32(type)) {
#pragma GCC unroll 16
        for (uint32_t j = 0; j < n_outs; j++) {
            const char *wj = w + j * p->row_bytes;
            _mm_prefetch(wj + ahead, _MM_HINT_T0);
            if (type == DT_F32) _mm_prefetch(wj + ahead + 64, _MM_HINT_T0);
#pragma GCC unroll 2
            for (uint32_t half = 0; half < 2; half++) {
                v16 wv = v16_load_half(type, wj, half);
#pragma GCC unroll 4
                for (uint32_t k = 0; k < n_rows; k++) {
                    v16 xv = v16_load(x + (uint64_t)k * p->n_in + i + 16 * half);
                    acc[k * n_outs + j] = v16_fma(wv, xv, acc[k * n_outs + j]);
                }
            }
        }
    }
    for (; i < p->n_in; i += 16, w += bytes_of_32(type) / 2) {
        uint32_t n = p->n_in - i < 16 ? p->n_in - i : 16;
        v16_mask m = v16_mask_range(0, n);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < n_outs; j++) {
            const char *wj = w + j * p->row_bytes;
            v16 wv = n == 16 ? v16_load_half(type, wj, 0) : v16_load_stored_part(type, wj, n);
#pragma GCC unroll 4
            for (uint32_t k = 0; k < n_rows; k++) {
                const float *xk = x + (uint64_t)k * p->n_in + i;
                v16 xv = n == 16 ? v16_load(xk) : v16_load_part(xk, n);
                v16 *a = &acc[k * n_outs + j];
                *a = v16_select(m, v16_fma(wv, xv, *a), *a);
            }
        }
    }
    store_tile(p, acc, r, o, n_rows, n_outs);
}

V16 void decode(const product *p, dtype type, const uint32_t n_rows, const uint32_t n_outs,
                uint32_t o_begin, uint32_t o_end)
{
    uint32_t o = o_begin;
    for (; o + n_outs <= o_end; o += n_outs) decode_tile(p, type, 0, o, n_rows, n_outs);
    for (; o < o_end; o++) decode_tile(p, type, 0, o, n_rows, 1);
}

/* More than four rows: each tile's weights meet four rows at a time and come from L1 after the
 * first four. */
V16 void decode_many(const product *p, dtype type, const uint32_t n_outs, uint32_t o_begin,
                     uint32_t o_end)
{
    for (uint32_t o = o_begin; o < o_end; o += n_outs) {
        uint32_t r = 0;
        for (; r + 4 <= p->n_rows; r += 4) decode_tile(p, type, r, o, 4, n_outs);
        for (; r < p->n_rows; r++) decode_tile(p, type, r, o, 1, n_outs);
    }
}

#endif
