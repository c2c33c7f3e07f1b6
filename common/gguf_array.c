/* gguf_array.c - arrays of the metadata, read from the file at the call.
 *
 * The place and size of an array were checked when the file was opened, but the file may have been
 * changed since: lengths inside it are checked again against the bytes that were read. */
#include "common/gguf_impl.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static status find_array(const gguf *g, const char *key, uint64_t n_expected, const gguf_item **out,
                         errmsg *e)
{
    const gguf_part *p = &g->part[0];
    const gguf_item *it = gguf_part_item(p, key);
    if (it == NULL) return errmsg_set(e, ST_BAD_MODEL, "%s: key %s is missing", p->name, key);
    if (it->kind != KIND_ARRAY) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: key %s has type %s, must be an array", p->name, key,
                          gguf_kind_name(it->kind));
    }
    if (n_expected != 0 && it->n != n_expected) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: key %s has %" PRIu64 " entries, expected %" PRIu64,
                          p->name, key, it->n, n_expected);
    }
    *out = it;
    return ST_OK;
}

static status bad_kind(const gguf *g, const char *key, const char *wanted, errmsg *e)
{
    return errmsg_set(e, ST_BAD_MODEL, "%s: key %s is an %s, must be an array of %s",
                      g->part[0].name, key, gguf_type_name(g, key), wanted);
}

/* head_bytes of room, then the array's own bytes, in one owned allocation. */
static status load(const gguf *g, const gguf_item *it, uint64_t head_bytes, uint8_t **out,
                   errmsg *e)
{
    uint8_t *all = malloc(head_bytes + it->bytes + 1);
    if (all == NULL) {
        return errmsg_set(e, ST_RESOURCES, "%s: no memory for the %" PRIu64 " bytes of key %s",
                          g->part[0].name, it->bytes, it->key);
    }
    status s = gguf_pread(&g->part[0], all + head_bytes, it->bytes, it->at, it->key, e);
    if (s != ST_OK) {
        free(all);
        return s;
    }
    *out = all;
    return ST_OK;
}

/* Both kinds of numbers: exactly one of f and u is not NULL and has room for it->n values. */
static status convert(const gguf *g, const gguf_item *it, float *f, uint32_t *u, errmsg *e)
{
    uint8_t *raw = NULL;
    TRY(load(g, it, 0, &raw, e));
    uint32_t each = gguf_kind_bytes(it->element);
    status s = ST_OK;
    for (uint64_t i = 0; i < it->n && s == ST_OK; i++) {
        const uint8_t *p = raw + i * each;
        if (f != NULL) {
            double d = gguf_real_decode(it->element, p);
            bool fits = it->element == KIND_F32 || (d <= FLT_MAX && d >= -FLT_MAX) || d != d;
            if (fits)
                f[i] = (float)d;
            else
                s = ST_BAD_MODEL;
        } else {
            gguf_int v = gguf_int_decode(it->element, p);
            bool fits = gguf_int_u32(v, &u[i]) && (it->element != KIND_BOOL || u[i] <= 1);
            if (!fits) s = ST_BAD_MODEL;
        }
        if (s != ST_OK) {
            errmsg_set(e, s, "%s: key %s: entry %" PRIu64 " does not fit %s", g->part[0].name,
                       it->key, i, f != NULL ? "f32" : "u32");
        }
    }
    free(raw);
    return s;
}

/* *out as n * 4 bytes, whichever kind of number. */
static status read_numbers(const gguf *g, const gguf_item *it, bool real, void **out, uint64_t *n,
                           errmsg *e)
{
    void *values = malloc(it->n * 4 + 1);
    if (values == NULL) {
        return errmsg_set(e, ST_RESOURCES, "%s: no memory for the %" PRIu64 " entries of key %s",
                          g->part[0].name, it->n, it->key);
    }
    status s = convert(g, it, real ? values : NULL, real ? NULL : values, e);
    if (s != ST_OK) {
        free(values);
        return s;
    }
    *out = values;
    *n = it->n;
    return ST_OK;
}

status gguf_array_f32(const gguf *g, const char *key, uint64_t n_expected, float **out, uint64_t *n,
                      errmsg *e)
{
    const gguf_item *it = NULL;
    void *values = NULL;
    *out = NULL;
    *n = 0;
    TRY(find_array(g, key, n_expected, &it, e));
    if (it->element != KIND_F32 && it->element != KIND_F64) return bad_kind(g, key, "f32", e);
    TRY(read_numbers(g, it, true, &values, n, e));
    *out = values;
    return ST_OK;
}

status gguf_array_u32(const gguf *g, const char *key, uint64_t n_expected, uint32_t **out,
                      uint64_t *n, errmsg *e)
{
    const gguf_item *it = NULL;
    void *values = NULL;
    *out = NULL;
    *n = 0;
    TRY(find_array(g, key, n_expected, &it, e));
    if (it->element == KIND_F32 || it->element == KIND_F64 || gguf_kind_bytes(it->element) == 0) {
        return bad_kind(g, key, "u32", e);
    }
    TRY(read_numbers(g, it, false, &values, n, e));
    *out = values;
    return ST_OK;
}

status gguf_array_str(const gguf *g, const char *key, uint64_t n_expected, gguf_str **out,
                      uint64_t *n, errmsg *e)
{
    const gguf_item *it = NULL;
    *out = NULL;
    *n = 0;
    TRY(find_array(g, key, n_expected, &it, e));
    if (it->element != KIND_STRING) return bad_kind(g, key, "string", e);
    uint8_t *all = NULL;
    TRY(load(g, it, it->n * sizeof(gguf_str), &all, e));
    gguf_str *entry = (gguf_str *)all;
    const uint8_t *text = all + it->n * sizeof(gguf_str);
    uint64_t left = it->bytes;
    for (uint64_t i = 0; i < it->n; i++) {
        uint64_t bytes = left < 8 ? UINT64_MAX : gguf_int_decode(KIND_U64, text).u;
        if (bytes > GGUF_STRING_BYTES_MAX || bytes > left - 8) {
            free(all);
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: changed since it was opened: key %s, entry %" PRIu64,
                              g->part[0].name, key, i);
        }
        entry[i] = (gguf_str){.text = (const char *)text + 8, .bytes = (uint32_t)bytes};
        text += 8 + bytes;
        left -= 8 + bytes;
    }
    *out = entry;
    *n = it->n;
    return ST_OK;
}
