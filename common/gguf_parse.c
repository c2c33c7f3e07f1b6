/* gguf_parse.c - one file's header and keys, turned into a gguf_part.
 *
 * Little-endian: "GGUF", u32 version, u64 tensors, u64 keys; each key: string, u32 type, value; the
 * tensors' entries (gguf_directory.c); padding to the alignment; data. A string is a u64 length and
 * its bytes; an array a u32 type, a u64 count and its elements.
 *
 * Every count is compared with what the rest of the file could hold before anything is sized by it,
 * and tables grow with what was really read, so that a header of 24 bytes can cost neither memory
 * nor time. Arrays are walked, not kept. */
#include "common/gguf_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGNMENT_DEFAULT 32u
#define NESTING_MAX       4u
#define KEY_BYTES_MIN     13u /* length, one character, type, one byte of value */
#define TENSOR_BYTES_MIN  33u /* length, one character, one dimension, type, offset */

/* Walk over n elements of type kind without keeping them. */
static status skip_elements(gguf_reader *r, uint32_t kind, uint64_t n, unsigned depth)
{
    if (kind >= KIND_COUNT) {
        return reader_refuse(r,
                             "%s at offset %" PRIu64 " has elements of type %" PRIu32
                             ", which GGUF does not define",
                             r->subject, r->at - 12, kind);
    }
    uint32_t each = gguf_kind_bytes(kind);
    uint32_t each_min = each != 0 ? each : kind == KIND_STRING ? 8 : 12;
    if (n > reader_left(r) / each_min) {
        return reader_refuse(r,
                             "cut short: %s says %" PRIu64 " elements of type %s at offset %" PRIu64
                             ", the file ends at %" PRIu64,
                             r->subject, n, gguf_kind_name(kind), r->at, r->part->bytes);
    }
    if (each != 0) {
        r->at += n * each;
        return ST_OK;
    }
    if (n > GGUF_STRINGS_MAX) {
        return reader_refuse(r, "%s has %" PRIu64 " elements of type %s, more than the limit of %u",
                             r->subject, n, gguf_kind_name(kind), GGUF_STRINGS_MAX);
    }
    if (n > r->walk_left) {
        return reader_refuse(
            r, "%s at offset %" PRIu64 ": more than %u strings in all arrays together", r->subject,
            r->at, 2 * GGUF_STRINGS_MAX);
    }
    r->walk_left -= n;
    if (kind == KIND_ARRAY && depth >= NESTING_MAX) {
        return reader_refuse(r, "%s at offset %" PRIu64 ": arrays nested more than %u deep",
                             r->subject, r->at, NESTING_MAX);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (kind == KIND_STRING) {
            uint64_t bytes = 0;
            TRY(reader_u64(r, &bytes));
            TRY(reader_need(r, bytes));
            if (bytes > GGUF_STRING_BYTES_MAX) {
                return reader_refuse(
                    r, "%s: string %" PRIu64 " has %" PRIu64 " bytes, more than the limit of %u",
                    r->subject, i, bytes, GGUF_STRING_BYTES_MAX);
            }
            r->at += bytes;
        } else {
            uint32_t inner = 0;
            uint64_t inner_n = 0;
            TRY(reader_u32(r, &inner));
            TRY(reader_u64(r, &inner_n));
            TRY(skip_elements(r, inner, inner_n, depth + 1));
        }
    }
    return ST_OK;
}

static status parse_value(gguf_reader *r, gguf_item *it)
{
    uint32_t kind = 0;
    TRY(reader_u32(r, &kind));
    if (kind >= KIND_COUNT) {
        return reader_refuse(
            r, "%s at offset %" PRIu64 " has type %" PRIu32 ", which GGUF does not define",
            r->subject, r->at - 4, kind);
    }
    it->kind = (gguf_kind)kind;
    if (kind == KIND_STRING) {
        return reader_text(r, &it->text, &it->text_bytes, 0, GGUF_STRING_BYTES_MAX);
    }
    if (kind == KIND_ARRAY) {
        uint32_t element = 0;
        TRY(reader_u32(r, &element));
        TRY(reader_u64(r, &it->n));
        it->at = r->at;
        TRY(skip_elements(r, element, it->n, 1));
        it->element = (gguf_kind)element;
        it->bytes = r->at - it->at;
        return ST_OK;
    }
    uint8_t b[8] = {0};
    TRY(reader_take(r, b, gguf_kind_bytes(kind)));
    if (kind == KIND_F32 || kind == KIND_F64) {
        it->real = gguf_real_decode(it->kind, b);
        return ST_OK;
    }
    it->integer = gguf_int_decode(it->kind, b);
    if (kind == KIND_BOOL && it->integer.u > 1) {
        return reader_refuse(
            r, "%s at offset %" PRIu64 " is a bool of value %" PRIu64 ", must be 0 or 1",
            r->subject, r->at - 1, it->integer.u);
    }
    return ST_OK;
}

static int item_order(const void *a, const void *b)
{
    return strcmp(((const gguf_item *)a)->key, ((const gguf_item *)b)->key);
}

static status parse_items(gguf_reader *r, uint64_t n_items)
{
    gguf_part *p = r->part;
    for (uint64_t i = 0; i < n_items; i++) {
        void *table = p->item;
        TRY(reader_grow(r, &table, i, sizeof *p->item));
        p->item = table;
        gguf_item *it = &p->item[i];
        memset(it, 0, sizeof *it);
        p->n_items = i + 1; /* from here on gguf_part_close frees it */
        reader_subject(r, "metadata key %" PRIu64 " of %" PRIu64, i + 1, n_items);
        uint64_t key_bytes = 0;
        TRY(reader_text(r, &it->key, &key_bytes, 1, GGUF_KEY_BYTES_MAX));
        if (strlen(it->key) != key_bytes) {
            return reader_refuse(r, "%s has a NUL byte inside (%s)", r->subject, it->key);
        }
        reader_subject(r, "the value of key %.100s", it->key);
        TRY(parse_value(r, it));
    }
    if (p->n_items > 1) qsort(p->item, p->n_items, sizeof *p->item, item_order);
    for (uint64_t i = 1; i < p->n_items; i++) {
        if (strcmp(p->item[i - 1].key, p->item[i].key) == 0) {
            return reader_refuse(r, "key %.100s is there twice", p->item[i].key);
        }
    }
    return ST_OK;
}

static status parse_alignment(gguf_reader *r)
{
    gguf_part *p = r->part;
    p->alignment = ALIGNMENT_DEFAULT;
    const gguf_item *it = gguf_part_item(p, "general.alignment");
    if (it == NULL) return ST_OK;
    if (it->kind != KIND_U32) {
        return reader_refuse(r, "key general.alignment has type %s, must be u32",
                             gguf_kind_name(it->kind));
    }
    uint64_t a = it->integer.u;
    if (a < 8 || (a & (a - 1)) != 0) {
        return reader_refuse(
            r, "key general.alignment is %" PRIu64 ", must be a power of two and a multiple of 8",
            a);
    }
    p->alignment = (uint32_t)a;
    return ST_OK;
}

/* A count of the header is one that the limits allow and that the rest of the file could hold. */
static status check_count(gguf_reader *r, const char *what, uint64_t n, uint64_t limit,
                          uint64_t each_bytes)
{
    if (n > limit) {
        return reader_refuse(r, "the header says %" PRIu64 " %s, more than the limit of %" PRIu64,
                             n, what, limit);
    }
    if (n > reader_left(r) / each_bytes) {
        return reader_refuse(r,
                             "cut short: the header says %" PRIu64 " %s, which the %" PRIu64
                             " bytes after offset %" PRIu64 " cannot hold",
                             n, what, reader_left(r), r->at);
    }
    return ST_OK;
}

static status parse_header(gguf_reader *r, uint64_t *n_tensors, uint64_t *n_items)
{
    gguf_part *p = r->part;
    uint8_t magic[4];
    reader_subject(r, "the header");
    TRY(reader_take(r, magic, sizeof magic));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return reader_refuse(r, "not a GGUF file: it begins with the bytes %02x %02x %02x %02x",
                             magic[0], magic[1], magic[2], magic[3]);
    }
    TRY(reader_u32(r, &p->version));
    if (p->version != 0 && (p->version & 0xffff) == 0) {
        return reader_refuse(r,
                             "GGUF version %" PRIu32 ": a big-endian file, which is not supported",
                             __builtin_bswap32(p->version));
    }
    if (p->version != 2 && p->version != 3) {
        return reader_refuse(r, "GGUF version %" PRIu32 " is not supported (2 and 3 are)",
                             p->version);
    }
    TRY(reader_u64(r, n_tensors));
    TRY(reader_u64(r, n_items));
    TRY(check_count(r, "tensors", *n_tensors, GGUF_TENSORS_MAX, TENSOR_BYTES_MIN));
    return check_count(r, "metadata keys", *n_items, GGUF_KEYS_MAX, KEY_BYTES_MIN);
}

static status parse(gguf_reader *r)
{
    uint64_t n_tensors = 0, n_items = 0;
    TRY(parse_header(r, &n_tensors, &n_items));
    TRY(parse_items(r, n_items));
    TRY(parse_alignment(r));
    return gguf_directory_parse(r, n_tensors);
}

status gguf_part_parse(gguf_part *p, errmsg *e)
{
    struct stat st;
    if (fstat(p->fd, &st) != 0) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: %s", p->name, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: not a regular file", p->name);
    }
    p->bytes = (uint64_t)st.st_size;
    p->modified = st.st_mtim;
    gguf_reader *r = calloc(1, sizeof *r);
    if (r == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory to read it", p->name);
    r->part = p;
    r->e = e;
    r->text_left = GGUF_TEXT_BYTES_MAX;
    r->walk_left = 2 * (uint64_t)GGUF_STRINGS_MAX;
    status s = parse(r);
    free(r);
    return s;
}

void gguf_part_close(gguf_part *p)
{
    for (uint64_t i = 0; i < p->n_items; i++) {
        free(p->item[i].key);
        free(p->item[i].text);
    }
    free(p->item);
    free(p->tensor);
    if (p->fd >= 0) close(p->fd);
    *p = (gguf_part){.fd = -1};
}
