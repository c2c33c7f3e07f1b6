/* gguf_build.c - the writer side of GGUF, for tests. */
#include "tests/support/gguf_build.h"

#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes that grow. */
typedef struct {
    uint8_t *at;
    uint64_t n, room;
} sink;

static void put(sink *s, const void *bytes, uint64_t n)
{
    if (s->n + n > s->room) {
        s->room = 2 * (s->n + n) + 256;
        s->at = realloc(s->at, s->room);
        CHECK(s->at != NULL);
    }
    if (bytes != NULL)
        memcpy(s->at + s->n, bytes, n);
    else
        memset(s->at + s->n, 0, n);
    s->n += n;
}

static void put_int(sink *s, uint64_t value, uint32_t n)
{
    uint8_t b[8];
    for (uint32_t i = 0; i < n; i++)
        b[i] = (uint8_t)(value >> (8 * i));
    put(s, b, n);
}

static void pad(sink *s, uint32_t alignment)
{
    while (alignment > 1 && s->n % alignment != 0)
        put(s, NULL, 1);
}

static void *copy(const void *from, uint64_t n)
{
    uint8_t *to = calloc(1, n + 1);
    CHECK(to != NULL);
    if (from != NULL) memcpy(to, from, n);
    return to;
}

gguf_build *gguf_build_new(void)
{
    gguf_build *b = copy(NULL, sizeof *b);
    memcpy(b->magic, "GGUF", 4);
    b->version = 3;
    b->alignment = 32;
    b->pad_end = true;
    b->n_tensors_said = b->n_keys_said = OFFSET_AUTO;
    return b;
}

void gguf_build_free(gguf_build *b)
{
    for (uint64_t i = 0; i < b->n_keys; i++) {
        free(b->key[i].key);
        free(b->key[i].value);
    }
    for (uint64_t i = 0; i < b->n_tensors; i++) {
        free(b->tensor[i].name);
        free(b->tensor[i].data);
    }
    free(b->key);
    free(b->tensor);
    free(b);
}

void gguf_build_raw(gguf_build *b, const char *key, uint32_t kind, const void *value,
                    uint64_t bytes)
{
    b->key = realloc(b->key, (b->n_keys + 1) * sizeof *b->key);
    CHECK(b->key != NULL);
    b->key[b->n_keys++] = (built_key){.key = copy(key, strlen(key)),
                                      .key_bytes = strlen(key),
                                      .kind = kind,
                                      .value = copy(value, bytes),
                                      .bytes = bytes};
}

void gguf_build_unset(gguf_build *b, const char *key)
{
    for (uint64_t i = 0; i < b->n_keys; i++) {
        if (strcmp(b->key[i].key, key) != 0) continue;
        free(b->key[i].key);
        free(b->key[i].value);
        b->n_keys--;
        memmove(&b->key[i], &b->key[i + 1], (b->n_keys - i) * sizeof *b->key);
        return;
    }
}

/* In the place of an older value of the same key. */
static void set(gguf_build *b, const char *key, uint32_t kind, sink *s)
{
    uint64_t i = 0;
    while (i < b->n_keys && strcmp(b->key[i].key, key) != 0)
        i++;
    if (i == b->n_keys) gguf_build_raw(b, key, kind, NULL, 0);
    free(b->key[i].value);
    b->key[i].kind = kind;
    b->key[i].value = s->at;
    b->key[i].bytes = s->n;
}

void gguf_build_scalar(gguf_build *b, const char *key, uint32_t kind, uint64_t value)
{
    static const uint32_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    sink s = {0};
    put_int(&s, value, bytes[kind]);
    set(b, key, kind, &s);
}

void gguf_build_u32(gguf_build *b, const char *key, uint32_t value)
{
    gguf_build_scalar(b, key, B_U32, value);
}

void gguf_build_bool(gguf_build *b, const char *key, bool value)
{
    gguf_build_scalar(b, key, B_BOOL, value);
}

void gguf_build_f32(gguf_build *b, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    gguf_build_scalar(b, key, B_F32, bits);
}

static void put_str(sink *s, const char *text)
{
    put_int(s, strlen(text), 8);
    put(s, text, strlen(text));
}

void gguf_build_str(gguf_build *b, const char *key, const char *value)
{
    sink s = {0};
    put_str(&s, value);
    set(b, key, B_STRING, &s);
}

void gguf_build_array(gguf_build *b, const char *key, uint32_t element, const void *values,
                      uint64_t n, uint32_t each_bytes)
{
    sink s = {0};
    put_int(&s, element, 4);
    put_int(&s, n, 8);
    put(&s, values, n * each_bytes);
    set(b, key, B_ARRAY, &s);
}

void gguf_build_strs(gguf_build *b, const char *key, const char *const *text, uint64_t n)
{
    sink s = {0};
    put_int(&s, B_STRING, 4);
    put_int(&s, n, 8);
    for (uint64_t i = 0; i < n; i++)
        put_str(&s, text[i]);
    set(b, key, B_ARRAY, &s);
}

built_tensor *gguf_build_tensor(gguf_build *b, const char *name, dtype type, uint64_t row,
                                uint64_t rows, const void *data)
{
    b->tensor = realloc(b->tensor, (b->n_tensors + 1) * sizeof *b->tensor);
    CHECK(b->tensor != NULL);
    built_tensor *t = &b->tensor[b->n_tensors++];
    uint64_t n = strlen(name);
    *t = (built_tensor){.name = copy(name, n),
                        .name_bytes = n,
                        .name_held = n,
                        .n_dims = rows == 0 ? 1 : 2,
                        .dim = {row, rows, 1, 1, 1, 1, 1, 1},
                        .type = type,
                        .offset = OFFSET_AUTO};
    t->bytes = dtype_bytes(type, row * (rows == 0 ? 1 : rows));
    if (data != NULL) t->data = copy(data, t->bytes);
    return t;
}

built_tensor *gguf_build_find(gguf_build *b, const char *name)
{
    uint64_t i = 0;
    while (i < b->n_tensors && strcmp(b->tensor[i].name, name) != 0)
        i++;
    CHECK(i < b->n_tensors);
    return &b->tensor[i];
}

void gguf_build_remove(gguf_build *b, const char *name)
{
    built_tensor *t = gguf_build_find(b, name);
    free(t->name);
    free(t->data);
    b->n_tensors--;
    memmove(t, t + 1, (size_t)(b->tensor + b->n_tensors - t) * sizeof *t);
}

static void put_directory(sink *s, const gguf_build *b)
{
    uint64_t next = 0;
    for (uint64_t i = 0; i < b->n_tensors; i++) {
        const built_tensor *t = &b->tensor[i];
        put_int(s, t->name_bytes, 8);
        put(s, t->name, t->name_held);
        put_int(s, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims && d < 8; d++)
            put_int(s, t->dim[d], 8);
        put_int(s, t->type, 4);
        put_int(s, t->offset == OFFSET_AUTO ? next : t->offset, 8);
        next = (next + t->bytes + b->alignment - 1) / b->alignment * b->alignment;
    }
}

uint8_t *gguf_build_bytes(const gguf_build *b, uint64_t *n)
{
    sink s = {0};
    put(&s, b->magic, 4);
    put_int(&s, b->version, 4);
    put_int(&s, b->n_tensors_said == OFFSET_AUTO ? b->n_tensors : b->n_tensors_said, 8);
    put_int(&s, b->n_keys_said == OFFSET_AUTO ? b->n_keys : b->n_keys_said, 8);
    for (uint64_t i = 0; i < b->n_keys; i++) {
        put_int(&s, b->key[i].key_bytes, 8);
        put(&s, b->key[i].key, b->key[i].key_bytes);
        put_int(&s, b->key[i].kind, 4);
        put(&s, b->key[i].value, b->key[i].bytes);
    }
    put_directory(&s, b);
    for (uint64_t i = 0; i < b->n_tensors; i++) {
        pad(&s, b->alignment);
        put(&s, b->tensor[i].data, b->tensor[i].bytes);
    }
    if (b->pad_end && b->n_tensors > 0) pad(&s, b->alignment);
    *n = s.n;
    return s.at;
}

void gguf_build_file(const gguf_build *b, const char *path)
{
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    free(bytes);
}

int bytes_fd(const uint8_t *bytes, uint64_t n)
{
    int fd = memfd_create("gguf_build", MFD_CLOEXEC);
    CHECK(fd >= 0);
    for (uint64_t at = 0; at < n;) {
        ssize_t put_now = write(fd, bytes + at, n - at);
        CHECK(put_now > 0);
        at += (uint64_t)put_now;
    }
    return fd;
}

int gguf_build_fd(const gguf_build *b)
{
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    int fd = bytes_fd(bytes, n);
    free(bytes);
    return fd;
}

gguf_build *gguf_build_part(const gguf_build *b, uint32_t no, uint32_t count, uint64_t from,
                            uint64_t to)
{
    gguf_build *part = gguf_build_new();
    part->alignment = b->alignment;
    for (uint64_t i = 0; i < b->n_keys && no == 0; i++) {
        gguf_build_raw(part, b->key[i].key, b->key[i].kind, b->key[i].value, b->key[i].bytes);
    }
    gguf_build_scalar(part, "split.no", B_U16, no);
    gguf_build_scalar(part, "split.count", B_U16, count);
    gguf_build_scalar(part, "split.tensors.count", B_I32, b->n_tensors);
    for (uint64_t i = from; i < to; i++) {
        const built_tensor *t = &b->tensor[i];
        gguf_build_tensor(part, t->name, (dtype)t->type, t->dim[0], t->n_dims > 1 ? t->dim[1] : 0,
                          t->data);
    }
    return part;
}
