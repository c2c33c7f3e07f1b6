#include "coordinator/shape/gguf_write.h"

#include <stdlib.h>
#include <string.h>

#define GGUF_VERSION 3u
#define COUNTS_AT    8u /* tensors, then keys; after magic and version */

/* Value types as the file numbers them. */
enum { VALUE_U32 = 4, VALUE_F32 = 6, VALUE_TEXT = 8 };

static void put(gguf_write *w, const void *data, uint64_t n)
{
    if (w->no_memory) return;
    if (w->n + n > w->room) {
        uint64_t room = 2 * (w->n + n);
        unsigned char *more = realloc(w->bytes, room);
        if (more == NULL) {
            w->no_memory = true;
            return;
        }
        w->bytes = more;
        w->room = room;
    }
    memcpy(w->bytes + w->n, data, n);
    w->n += n;
}

static void put_u32(gguf_write *w, uint32_t x)
{
    put(w, &x, sizeof x); /* little-endian, as all machines that stages run on */
}

static void put_u64(gguf_write *w, uint64_t x)
{
    put(w, &x, sizeof x);
}

static void put_text(gguf_write *w, const char *text)
{
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

void gguf_write_begin(gguf_write *w)
{
    *w = (gguf_write){0};
    put(w, "GGUF", 4);
    put_u32(w, GGUF_VERSION);
    put_u64(w, 0);
    put_u64(w, 0);
}

void gguf_write_free(gguf_write *w)
{
    free(w->bytes);
    *w = (gguf_write){0};
}

static void begin_key(gguf_write *w, const char *key, uint32_t value_type)
{
    CHECK(w->n_tensors == 0);
    put_text(w, key);
    put_u32(w, value_type);
    w->n_keys++;
}

void gguf_write_u32(gguf_write *w, const char *key, uint32_t value)
{
    begin_key(w, key, VALUE_U32);
    put_u32(w, value);
}

void gguf_write_f32(gguf_write *w, const char *key, float value)
{
    begin_key(w, key, VALUE_F32);
    put(w, &value, sizeof value);
}

void gguf_write_text(gguf_write *w, const char *key, const char *value)
{
    begin_key(w, key, VALUE_TEXT);
    put_text(w, value);
}

static uint64_t align(uint64_t n)
{
    return (n + GGUF_WRITE_ALIGNMENT - 1) / GGUF_WRITE_ALIGNMENT * GGUF_WRITE_ALIGNMENT;
}

void gguf_write_tensor(gguf_write *w, const char *name, dtype type, uint64_t row, uint64_t rows)
{
    put_text(w, name);
    put_u32(w, rows == 0 ? 1 : 2);
    put_u64(w, row);
    if (rows > 0) put_u64(w, rows);
    put_u32(w, (uint32_t)type);
    put_u64(w, w->data_bytes);
    w->data_bytes += align(dtype_bytes(type, row * (rows > 0 ? rows : 1)));
    w->n_tensors++;
}

status gguf_write_end(gguf_write *w, errmsg *e)
{
    static const unsigned char zeros[GGUF_WRITE_ALIGNMENT];
    put(w, zeros, align(w->n) - w->n);
    if (w->no_memory) return errmsg_set(e, ST_RESOURCES, "no memory for the header of a model");
    memcpy(w->bytes + COUNTS_AT, &w->n_tensors, sizeof w->n_tensors);
    memcpy(w->bytes + COUNTS_AT + sizeof w->n_tensors, &w->n_keys, sizeof w->n_keys);
    return ST_OK;
}
