/* The ops on KV pools ([n_blocks, n_kv_heads, KV_BLOCK, n_head], backend.h): writing rows,
 * attention, copying and wiping blocks. */
#include "kernels/cpu/device.h"

#include <string.h>

typedef struct {
    const backend_device *d;
    const kv_args *kv;
    const uint32_t *position, *table, *tables;
    const uint8_t *live;
    const float *k, *v; /* kv_write */
    const float *x;     /* attention: queries */
    float *out;
    float scale;
    uint32_t n_heads, window, n_rows;
} kv_op;

static kv_op kv_op_of(const backend_queue *q, const kv_args *kv, const row_args *rows,
                      uint32_t n_rows)
{
    return (kv_op){.d = q->device, .kv = kv, .position = host_of(rows->position),
                   .table = host_of(rows->table), .tables = host_of(rows->tables),
                   .live = host_of(rows->live), .n_rows = n_rows};
}

/* Bytes from the start of a pool's block to the start of KV head h's part, and of a whole block. */
static uint64_t head_bytes(const kv_args *kv)
{
    return dtype_bytes(kv->type, (uint64_t)KV_BLOCK * kv->n_head);
}

static uint64_t block_bytes(const kv_args *kv)
{
    return head_bytes(kv) * kv->n_kv_heads;
}

static void kv_write_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const kv_op *o = arg;
    const kv_args *kv = o->kv;
    uint64_t begin, end, n = kv->n_head, vector_bytes = dtype_bytes(kv->type, n);
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    for (uint64_t r = begin; r < end; r++) {
        if (o->live[r] == 0) continue;
        uint32_t p = o->position[r];
        uint64_t at = o->tables[o->table[r] + p / KV_BLOCK] * block_bytes(kv) +
                      p % KV_BLOCK * vector_bytes;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++, at += head_bytes(kv)) {
            uint64_t from = (r * kv->n_kv_heads + h) * n;
            o->d->isa->from_f32((char *)host_of(kv->k) + at, kv->type, o->k + from, n);
            o->d->isa->from_f32((char *)host_of(kv->v) + at, kv->type, o->v + from, n);
        }
    }
}

status cpu_kv_write(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v, const row_args *rows,
                    uint32_t n_rows)
{
    kv_op o = kv_op_of(q, kv, rows, n_rows);
    o.k = host_of(k);
    o.v = host_of(v);
    uint64_t work = (uint64_t)n_rows * kv->n_kv_heads * kv->n_head / 2;
    pool_run(o.d->threads, kv_write_part, &o, device_n_parts(o.d, work));
    return ST_OK;
}

/* Tasks (row, head) are dealt out like cards: the rows of a prompt become longer one by one. A dead
 * row's result is not used; it may have no blocks at all, so it is not read either. */
static void attention_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const kv_op *o = arg;
    const kv_args *kv = o->kv;
    uint64_t n = kv->n_head, group = o->n_heads / kv->n_kv_heads;
    for (uint64_t task = part_i; task < (uint64_t)o->n_rows * o->n_heads; task += n_parts) {
        uint64_t r = task / o->n_heads, h = task % o->n_heads;
        float *out = o->out + task * n;
        if (o->live[r] == 0) {
            memset(out, 0, n * sizeof *out);
            continue;
        }
        uint32_t last = o->position[r], first = 0;
        if (o->window != 0 && last >= o->window) first = last + 1 - o->window;
        uint64_t at = h / group * head_bytes(kv);
        o->d->isa->attention_head(out, o->x + task * n, (char *)host_of(kv->k) + at,
                                  (char *)host_of(kv->v) + at, kv->type, block_bytes(kv),
                                  o->tables + o->table[r], first, last, kv->n_head, o->scale,
                                  device_scratch(o->d, part_i));
    }
}

status cpu_attention(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                     const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                     uint32_t n_rows)
{
    CHECK(kv->n_head <= CPU_HEAD_MAX && n_heads % kv->n_kv_heads == 0);
    kv_op o = kv_op_of(q, kv, rows, n_rows);
    o.out = host_of(out);
    o.x = host_of(x);
    o.n_heads = n_heads;
    o.scale = scale;
    o.window = window;
    uint64_t n_keys = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t n = o.position[r] + 1ull;
        n_keys += window != 0 && n > window ? window : n;
    }
    pool_run(o.d->threads, attention_part, &o,
             device_n_parts(o.d, n_keys * n_heads * kv->n_head / 8));
    return ST_OK;
}

status cpu_kv_copy_block(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                         uint32_t n_positions)
{
    (void)q;
    CHECK(n_positions <= KV_BLOCK);
    if (to == from) return ST_OK;
    uint64_t bytes = dtype_bytes(kv->type, (uint64_t)n_positions * kv->n_head);
    for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
        uint64_t at = h * head_bytes(kv);
        uint64_t to_at = to * block_bytes(kv) + at, from_at = from * block_bytes(kv) + at;
        memcpy((char *)host_of(kv->k) + to_at, (char *)host_of(kv->k) + from_at, bytes);
        memcpy((char *)host_of(kv->v) + to_at, (char *)host_of(kv->v) + from_at, bytes);
    }
    return ST_OK;
}

status cpu_kv_wipe_block(backend_queue *q, const kv_args *kv, uint32_t block)
{
    (void)q;
    uint64_t bytes = block_bytes(kv);
    memset((char *)host_of(kv->k) + block * bytes, 0, bytes);
    memset((char *)host_of(kv->v) + block * bytes, 0, bytes);
    return ST_OK;
}
