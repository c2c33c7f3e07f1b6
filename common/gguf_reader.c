/* gguf_reader.c - the window on one file. */
#include "common/gguf_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void reader_subject(gguf_reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->subject, sizeof r->subject, format, args);
    va_end(args);
}

status reader_refuse(gguf_reader *r, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return errmsg_set(r->e, ST_BAD_MODEL, "%s: %s", r->part->name, text);
}

uint64_t reader_left(const gguf_reader *r)
{
    return r->part->bytes - r->at;
}

status reader_need(gguf_reader *r, uint64_t n)
{
    if (n <= reader_left(r)) return ST_OK;
    return reader_refuse(
        r, "cut short: %s needs %" PRIu64 " bytes at offset %" PRIu64 ", the file ends at %" PRIu64,
        r->subject, n, r->at, r->part->bytes);
}

static status window_fill(gguf_reader *r)
{
    uint64_t n = reader_left(r) < READER_WINDOW_BYTES ? reader_left(r) : READER_WINDOW_BYTES;
    r->window_n = 0;
    TRY(gguf_pread(r->part, r->window, n, r->at, r->subject, r->e));
    r->window_at = r->at;
    r->window_n = n;
    return ST_OK;
}

status reader_take(gguf_reader *r, void *to, uint64_t n)
{
    TRY(reader_need(r, n));
    for (uint8_t *p = to; n > 0;) {
        if (r->at < r->window_at || r->at >= r->window_at + r->window_n) TRY(window_fill(r));
        uint64_t from = r->at - r->window_at;
        uint64_t part = r->window_n - from < n ? r->window_n - from : n;
        memcpy(p, r->window + from, part);
        p += part;
        n -= part;
        r->at += part;
    }
    return ST_OK;
}

status reader_u32(gguf_reader *r, uint32_t *out)
{
    uint8_t b[4];
    TRY(reader_take(r, b, sizeof b));
    *out = (uint32_t)gguf_int_decode(KIND_U32, b).u;
    return ST_OK;
}

status reader_u64(gguf_reader *r, uint64_t *out)
{
    uint8_t b[8];
    TRY(reader_take(r, b, sizeof b));
    *out = gguf_int_decode(KIND_U64, b).u;
    return ST_OK;
}

status reader_text(gguf_reader *r, char **out, uint64_t *bytes, uint64_t bytes_min,
                   uint64_t bytes_max)
{
    uint64_t n = 0;
    TRY(reader_u64(r, &n));
    TRY(reader_need(r, n));
    if (n < bytes_min || n > bytes_max) {
        return reader_refuse(r,
                             "%s at offset %" PRIu64 " is a string of %" PRIu64
                             " bytes, must be %" PRIu64 " to %" PRIu64,
                             r->subject, r->at - 8, n, bytes_min, bytes_max);
    }
    if (n > r->text_left) {
        return reader_refuse(r, "%s at offset %" PRIu64 ": keys and strings of more than %u MiB",
                             r->subject, r->at - 8, GGUF_TEXT_BYTES_MAX >> 20);
    }
    r->text_left -= n;
    *out = malloc(n + 1);
    if (*out == NULL) {
        return errmsg_set(r->e, ST_RESOURCES, "%s: no memory for %" PRIu64 " bytes of %s",
                          r->part->name, n, r->subject);
    }
    (*out)[n] = '\0';
    *bytes = n;
    return reader_take(r, *out, n);
}

status reader_grow(gguf_reader *r, void **table, uint64_t n, size_t slot_bytes)
{
    if (n != 0 && (n < 16 || (n & (n - 1)) != 0)) return ST_OK;
    uint64_t room = n < 16 ? 16 : 2 * n;
    void *more = realloc(*table, room * slot_bytes);
    if (more == NULL) {
        return errmsg_set(r->e, ST_RESOURCES, "%s: no memory for a table of %" PRIu64 " entries",
                          r->part->name, room);
    }
    *table = more;
    return ST_OK;
}
