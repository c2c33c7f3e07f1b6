/* gguf.c - questions about an open model: its files, its tensors, its metadata. */
#include "common/gguf_impl.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREAD_BYTES_MAX (1u << 30) /* one call of pread moves no more than about 2 GiB */

static const struct {
    const char *name, *array_name;
    uint32_t bytes;
} kind_table[KIND_COUNT] = {
#define X(name, number, word, bytes) [name] = {word, "array of " word, bytes},
    GGUF_KIND_LIST(X)
#undef X
};

const char *gguf_kind_name(uint32_t kind)
{
    return kind < KIND_COUNT ? kind_table[kind].name : "?";
}

uint32_t gguf_kind_bytes(uint32_t kind)
{
    return kind < KIND_COUNT ? kind_table[kind].bytes : 0;
}

gguf_int gguf_int_decode(gguf_kind kind, const uint8_t *p)
{
    uint32_t n = gguf_kind_bytes(kind);
    uint64_t u = 0;
    for (uint32_t b = 0; b < n; b++)
        u |= (uint64_t)p[b] << (8 * b);
    bool has_sign = kind == KIND_I8 || kind == KIND_I16 || kind == KIND_I32 || kind == KIND_I64;
    if (!has_sign || (u >> (8 * n - 1)) == 0) return (gguf_int){.u = u, .i = (int64_t)u};
    if (n < 8) u |= UINT64_MAX << (8 * n);
    return (gguf_int){.negative = true, .i = (int64_t)u};
}

double gguf_real_decode(gguf_kind kind, const uint8_t *p)
{
    uint64_t u = gguf_int_decode(kind == KIND_F32 ? KIND_U32 : KIND_U64, p).u;
    if (kind == KIND_F32) {
        uint32_t bits = (uint32_t)u;
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

bool gguf_int_u32(gguf_int i, uint32_t *out)
{
    if (i.negative || i.u > UINT32_MAX) return false;
    *out = (uint32_t)i.u;
    return true;
}

status gguf_pread(const gguf_part *p, void *to, uint64_t n, uint64_t at, const char *what,
                  errmsg *e)
{
    for (uint8_t *q = to; n > 0;) {
        ssize_t got = pread(p->fd, q, n < PREAD_BYTES_MAX ? n : PREAD_BYTES_MAX, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return errmsg_set(e, ST_BAD_MODEL, "%s: %s at offset %" PRIu64 " cannot be read: %s",
                              p->name, what, at, strerror(errno));
        }
        if (got == 0) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: cut short while it was read: %s needs %" PRIu64
                              " more bytes at offset %" PRIu64,
                              p->name, what, n, at);
        }
        q += got;
        n -= (uint64_t)got;
        at += (uint64_t)got;
    }
    return ST_OK;
}

uint32_t gguf_n_files(const gguf *g)
{
    return g->n_parts;
}

int gguf_fd(const gguf *g, uint32_t file_i)
{
    CHECK(file_i < g->n_parts);
    return g->part[file_i].fd;
}

uint64_t gguf_file_bytes(const gguf *g, uint32_t file_i)
{
    CHECK(file_i < g->n_parts);
    return g->part[file_i].bytes;
}

const char *gguf_file_name(const gguf *g, uint32_t file_i)
{
    CHECK(file_i < g->n_parts);
    return g->part[file_i].name;
}

status gguf_unchanged(const gguf *g, errmsg *e)
{
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const gguf_part *p = &g->part[i];
        struct stat st;
        if (fstat(p->fd, &st) != 0) {
            return errmsg_set(e, ST_BAD_MODEL, "%s: %s", p->name, strerror(errno));
        }
        if ((uint64_t)st.st_size != p->bytes) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: changed since it was opened: %" PRIu64 " bytes then, %" PRIu64
                              " now",
                              p->name, p->bytes, (uint64_t)st.st_size);
        }
        if (st.st_mtim.tv_sec != p->modified.tv_sec || st.st_mtim.tv_nsec != p->modified.tv_nsec) {
            return errmsg_set(e, ST_BAD_MODEL, "%s: changed since it was opened: it was written to",
                              p->name);
        }
    }
    return ST_OK;
}

uint64_t gguf_n_tensors(const gguf *g)
{
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, uint64_t i)
{
    CHECK(i < g->n_tensors);
    return &g->tensor[i];
}

const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name)
{
    for (uint64_t low = 0, high = g->n_tensors; low < high;) {
        uint64_t mid = low + (high - low) / 2;
        const gguf_tensor *t = &g->tensor[g->by_name[mid]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

status gguf_tensor_read(const gguf *g, const gguf_tensor *t, void *to, uint64_t bytes, errmsg *e)
{
    CHECK(bytes <= t->bytes && t->file_i < g->n_parts);
    char what[GGUF_NAME_BYTES + 8];
    snprintf(what, sizeof what, "tensor %s", t->name);
    return gguf_pread(&g->part[t->file_i], to, bytes, t->offset, what, e);
}

const gguf_item *gguf_part_item(const gguf_part *p, const char *key)
{
    for (uint64_t low = 0, high = p->n_items; low < high;) {
        uint64_t mid = low + (high - low) / 2;
        int order = strcmp(key, p->item[mid].key);
        if (order == 0) return &p->item[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

static const gguf_item *find(const gguf *g, const char *key)
{
    return gguf_part_item(&g->part[0], key);
}

bool gguf_has(const gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

const char *gguf_type_name(const gguf *g, const char *key)
{
    const gguf_item *it = find(g, key);
    if (it == NULL) return NULL;
    return it->kind == KIND_ARRAY ? kind_table[it->element].array_name : kind_table[it->kind].name;
}

static bool is_integer(const gguf_item *it)
{
    return it->kind != KIND_F32 && it->kind != KIND_F64 && it->kind != KIND_BOOL &&
           it->kind != KIND_STRING && it->kind != KIND_ARRAY;
}

bool gguf_u32(const gguf *g, const char *key, uint32_t *out)
{
    const gguf_item *it = find(g, key);
    return it != NULL && is_integer(it) && gguf_int_u32(it->integer, out);
}

bool gguf_f32(const gguf *g, const char *key, float *out)
{
    const gguf_item *it = find(g, key);
    if (it == NULL || (it->kind != KIND_F32 && it->kind != KIND_F64)) return false;
    if (it->kind == KIND_F64 && (it->real > FLT_MAX || it->real < -FLT_MAX)) return false;
    *out = (float)it->real;
    return true;
}

bool gguf_bool(const gguf *g, const char *key, bool *out)
{
    const gguf_item *it = find(g, key);
    if (it == NULL || it->kind != KIND_BOOL) return false;
    *out = it->integer.u != 0;
    return true;
}

bool gguf_string(const gguf *g, const char *key, const char **out, uint64_t *bytes)
{
    const gguf_item *it = find(g, key);
    if (it == NULL || it->kind != KIND_STRING) return false;
    *out = it->text;
    if (bytes != NULL) *bytes = it->text_bytes;
    return true;
}

uint64_t gguf_array_n(const gguf *g, const char *key)
{
    const gguf_item *it = find(g, key);
    return it != NULL && it->kind == KIND_ARRAY ? it->n : 0;
}
