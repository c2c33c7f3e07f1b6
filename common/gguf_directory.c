/* gguf_directory.c - the tensors of one file: entries, shapes, types, and where their data lies.
 *
 * Each entry is a string, u32 dimensions, u64 each of them, u32 type, u64 offset from the start of
 * the data, which begins at the next multiple of the alignment after the last entry. */
#include "common/gguf_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Shape and type of t, its bytes from them. */
static status parse_shape(gguf_reader *r, gguf_tensor *t)
{
    TRY(reader_u32(r, &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > 4) {
        return reader_refuse(r, "tensor %s has %" PRIu32 " dimensions, must be 1 to 4", t->name,
                             t->n_dims);
    }
    uint64_t values = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->dim[d] = 1;
        if (d >= t->n_dims) continue;
        TRY(reader_u64(r, &t->dim[d]));
        if (t->dim[d] == 0)
            return reader_refuse(r, "tensor %s: dimension %" PRIu32 " is 0", t->name, d);
        if (t->dim[d] > INT64_MAX || __builtin_mul_overflow(values, t->dim[d], &values) ||
            values > INT64_MAX) {
            return reader_refuse(
                r, "tensor %s: dimension %" PRIu32 " of %" PRIu64 " makes more than 2^63 values",
                t->name, d, t->dim[d]);
        }
    }
    uint32_t type = 0;
    TRY(reader_u32(r, &type));
    const dtype_info *info = dtype_get(type);
    if (info == NULL) {
        return reader_refuse(
            r, "tensor %s has type number %" PRIu32 ", which this build does not know", t->name,
            type);
    }
    t->type = (dtype)type;
    if (t->dim[0] % info->block_values != 0) {
        return reader_refuse(r,
                             "tensor %s: rows of %" PRIu64
                             " values are not whole blocks of %s (%" PRIu32 " values)",
                             t->name, t->dim[0], info->name, info->block_values);
    }
    uint64_t blocks = values / info->block_values;
    if (__builtin_mul_overflow(blocks, (uint64_t)info->block_bytes, &t->bytes)) {
        return reader_refuse(r, "tensor %s: %" PRIu64 " values of %s are more than 2^64 bytes",
                             t->name, values, info->name);
    }
    return ST_OK;
}

static status parse_tensors(gguf_reader *r, uint64_t n_tensors)
{
    gguf_part *p = r->part;
    for (uint64_t i = 0; i < n_tensors; i++) {
        void *table = p->tensor;
        TRY(reader_grow(r, &table, i, sizeof *p->tensor));
        p->tensor = table;
        gguf_tensor *t = &p->tensor[i];
        memset(t, 0, sizeof *t);
        reader_subject(r, "tensor %" PRIu64 " of %" PRIu64 " in the directory", i + 1, n_tensors);
        uint64_t bytes = 0;
        TRY(reader_u64(r, &bytes));
        TRY(reader_need(r, bytes));
        if (bytes < 1 || bytes >= GGUF_NAME_BYTES) {
            return reader_refuse(
                r, "%s at offset %" PRIu64 " has a name of %" PRIu64 " bytes, must be 1 to %u",
                r->subject, r->at - 8, bytes, GGUF_NAME_BYTES - 1);
        }
        TRY(reader_take(r, t->name, bytes));
        if (strlen(t->name) != bytes) {
            return reader_refuse(r, "%s has a NUL byte in its name (%s)", r->subject, t->name);
        }
        reader_subject(r, "the directory entry of tensor %s", t->name);
        TRY(parse_shape(r, t));
        TRY(reader_u64(r, &t->offset));
        p->n_tensors = i + 1;
    }
    return ST_OK;
}

static uint64_t align_up(uint64_t x, uint64_t alignment)
{
    return (x + alignment - 1) & ~(alignment - 1); /* x is inside a file: far from 2^64 */
}

static int place_order(const void *a, const void *b)
{
    const gguf_tensor *x = *(const gguf_tensor *const *)a, *y = *(const gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Offsets become places in the file, aligned and inside it. */
static status place_tensors(gguf_reader *r)
{
    gguf_part *p = r->part;
    p->data_at = align_up(r->at, p->alignment);
    for (uint64_t i = 0; i < p->n_tensors; i++) {
        gguf_tensor *t = &p->tensor[i];
        if (t->offset % p->alignment != 0) {
            return reader_refuse(
                r, "tensor %s has offset %" PRIu64 ", not a multiple of the alignment %" PRIu32,
                t->name, t->offset, p->alignment);
        }
        if (p->data_at > p->bytes || t->offset > p->bytes - p->data_at ||
            t->bytes > p->bytes - p->data_at - t->offset) {
            return reader_refuse(r,
                                 "tensor %s needs %" PRIu64 " bytes at offset %" PRIu64
                                 " + %" PRIu64 ", the file ends at %" PRIu64 ": cut short",
                                 t->name, t->bytes, p->data_at, t->offset, p->bytes);
        }
        t->offset += p->data_at;
    }
    return ST_OK;
}

/* Tensors lie apart from each other; *end is where the last one ends. There is at least one. */
static status check_apart(gguf_reader *r, uint64_t *end)
{
    gguf_part *p = r->part;
    const gguf_tensor **by_place = malloc(p->n_tensors * sizeof *by_place);
    if (by_place == NULL) {
        return errmsg_set(r->e, ST_RESOURCES, "%s: no memory for %" PRIu64 " tensors", p->name,
                          p->n_tensors);
    }
    for (uint64_t i = 0; i < p->n_tensors; i++)
        by_place[i] = &p->tensor[i];
    qsort(by_place, p->n_tensors, sizeof *by_place, place_order);
    status s = ST_OK;
    for (uint64_t i = 1; i < p->n_tensors && s == ST_OK; i++) {
        const gguf_tensor *a = by_place[i - 1], *b = by_place[i];
        if (b->offset < a->offset + a->bytes) {
            s = reader_refuse(r, "tensors %s and %s overlap at offset %" PRIu64, a->name, b->name,
                              b->offset);
        }
    }
    const gguf_tensor *last = by_place[p->n_tensors - 1];
    *end = last->offset + last->bytes;
    free(by_place);
    return s;
}

/* Nothing may follow but padding: what else is there was not described, most often because parts of
 * a split model were joined with cat. */
static status check_tail(gguf_reader *r, uint64_t end)
{
    gguf_part *p = r->part;
    uint64_t padded = align_up(end, p->alignment);
    if (p->bytes <= padded) return ST_OK;
    uint8_t tail[4096];
    uint64_t n = p->bytes - end < sizeof tail ? p->bytes - end : sizeof tail;
    TRY(gguf_pread(p, tail, n, end, "what follows the last tensor", r->e));
    const uint8_t *magic = memmem(tail, n, "GGUF", 4);
    if (magic != NULL) {
        return reader_refuse(r,
                             "a second GGUF file begins at offset %" PRIu64
                             ": parts joined into one file; give the separate parts, or merge "
                             "them with a GGUF tool",
                             end + (uint64_t)(magic - tail));
    }
    return reader_refuse(r,
                         "%" PRIu64 " bytes follow the %s, which ends at offset %" PRIu64
                         ": the header does not describe them",
                         p->bytes - end, p->n_tensors > 0 ? "last tensor" : "metadata", end);
}

status gguf_directory_parse(gguf_reader *r, uint64_t n_tensors)
{
    TRY(parse_tensors(r, n_tensors));
    TRY(place_tensors(r));
    uint64_t end = r->at;
    if (n_tensors > 0) TRY(check_apart(r, &end));
    return check_tail(r, end);
}
