/* gguf_write.h - the beginning of a GGUF file: keys and the directory of tensors, in memory.
 *
 * Keys first, then tensors; each tensor's data follows the one before it, aligned. Version 3,
 * little-endian, alignment GGUF_WRITE_ALIGNMENT (the specification's default). Running out of
 * memory is remembered, and told by gguf_write_end. Source: the GGUF specification. */
#ifndef COORDINATOR_GGUF_WRITE_H
#define COORDINATOR_GGUF_WRITE_H

#include "common/dtype.h"
#include "common/status.h"

#define GGUF_WRITE_ALIGNMENT 32u

typedef struct {
    unsigned char *bytes; /* owned */
    uint64_t n, room;
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes; /* of the tensors so far, aligned */
    bool no_memory;
} gguf_write;

/* Start with an empty header; gguf_write_free in any case. */
void gguf_write_begin(gguf_write *w);
void gguf_write_free(gguf_write *w);

void gguf_write_u32(gguf_write *w, const char *key, uint32_t value);
void gguf_write_f32(gguf_write *w, const char *key, float value);
void gguf_write_text(gguf_write *w, const char *key, const char *value);

/* A tensor of rows x row values (rows 0: one dimension). row is whole blocks of type. No key after
 * the first tensor. */
void gguf_write_tensor(gguf_write *w, const char *name, dtype type, uint64_t row, uint64_t rows);

/* Pad to where the data begins; w->n is that place then, and the file has w->n + w->data_bytes.
 * ST_RESOURCES: no memory. */
MUST_USE status gguf_write_end(gguf_write *w, errmsg *e);

#endif
