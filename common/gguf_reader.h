/* gguf_reader.h - the bytes of one file, in order, for the gguf_*.c files only.
 *
 * Bytes come through a window filled by pread. Nothing is taken that is not there: each function
 * that returns a status refuses (ST_BAD_MODEL) with a line naming the file, what is being read
 * (the subject) and the offset. */
#ifndef COMMON_GGUF_READER_H
#define COMMON_GGUF_READER_H

#include "common/gguf_impl.h"

#define READER_WINDOW_BYTES 65536u

typedef struct {
    gguf_part *part;
    errmsg *e;
    uint64_t at;            /* next byte */
    uint64_t window_at, window_n;
    uint64_t text_left;     /* bytes of keys and strings that may still be kept */
    uint64_t walk_left;     /* strings and inner arrays that may still be walked */
    char subject[160];      /* what is being read, for messages */
    uint8_t window[READER_WINDOW_BYTES];
} gguf_reader;

void reader_subject(gguf_reader *r, const char *format, ...) PRINTF_LIKE(2, 3);

/* Set *r->e to the file's name and the line; returns ST_BAD_MODEL. */
status reader_refuse(gguf_reader *r, const char *format, ...) PRINTF_LIKE(2, 3);

/* Bytes from here to the end of the file. */
uint64_t reader_left(const gguf_reader *r);

/* ST_OK when n more bytes are there. */
MUST_USE status reader_need(gguf_reader *r, uint64_t n);

MUST_USE status reader_take(gguf_reader *r, void *to, uint64_t n);
MUST_USE status reader_u32(gguf_reader *r, uint32_t *out);
MUST_USE status reader_u64(gguf_reader *r, uint64_t *out);

/* A string of bytes_min .. bytes_max bytes that is kept, terminated; counted against text_left.
 * *out (NULL before) is owned by the caller, also on error. ST_RESOURCES: no memory. */
MUST_USE status reader_text(gguf_reader *r, char **out, uint64_t *bytes, uint64_t bytes_min,
                            uint64_t bytes_max);

/* Make room for one more slot in *table, which holds n of them; the size doubles, so that memory
 * follows what was really read. ST_RESOURCES: no memory; *table is as before. */
MUST_USE status reader_grow(gguf_reader *r, void **table, uint64_t n, size_t slot_bytes);

/* After the keys: the tensors' entries and the places of their data, all checked, and nothing but
 * padding behind them. */
MUST_USE status gguf_directory_parse(gguf_reader *r, uint64_t n_tensors);

#endif
