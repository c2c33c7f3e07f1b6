/* gguf_impl.h - what the gguf_*.c files share; nobody else includes it.
 *
 * gguf_parse.c (with gguf_reader.c and gguf_directory.c) turns one open file into a gguf_part,
 * gguf_split.c finds and cross-checks the parts of a model, gguf_array.c reads arrays on demand,
 * gguf.c answers questions. */
#ifndef COMMON_GGUF_IMPL_H
#define COMMON_GGUF_IMPL_H

#include "common/gguf.h"

#include <time.h>

/* Value types as the file numbers them: name for messages, bytes of one value (0: variable). */
#define GGUF_KIND_LIST(X)                                                                          \
    X(KIND_U8, 0, "u8", 1)                                                                         \
    X(KIND_I8, 1, "i8", 1)                                                                         \
    X(KIND_U16, 2, "u16", 2)                                                                       \
    X(KIND_I16, 3, "i16", 2)                                                                       \
    X(KIND_U32, 4, "u32", 4)                                                                       \
    X(KIND_I32, 5, "i32", 4)                                                                       \
    X(KIND_F32, 6, "f32", 4)                                                                       \
    X(KIND_BOOL, 7, "bool", 1)                                                                     \
    X(KIND_STRING, 8, "string", 0)                                                                 \
    X(KIND_ARRAY, 9, "array", 0)                                                                   \
    X(KIND_U64, 10, "u64", 8)                                                                      \
    X(KIND_I64, 11, "i64", 8)                                                                      \
    X(KIND_F64, 12, "f64", 8)

typedef enum {
#define X(name, number, word, bytes) name = number,
    GGUF_KIND_LIST(X)
#undef X
    KIND_COUNT
} gguf_kind;

/* An integer of any stored width: its value is u when it is not negative, i otherwise. */
typedef struct {
    bool negative;
    uint64_t u;
    int64_t i;
} gguf_int;

/* One metadata key. Scalars and strings are here; an array is a place in the file. */
typedef struct {
    char *key;              /* owned, terminated, without NUL bytes inside */
    gguf_kind kind;
    gguf_int integer;       /* u8 .. i64, bool */
    double real;            /* f32, f64 */
    char *text;             /* string: owned, terminated */
    uint64_t text_bytes;
    gguf_kind element;      /* array */
    uint64_t n;             /* array: elements of the outermost level */
    uint64_t at, bytes;     /* array: its elements in the file */
} gguf_item;

#define GGUF_LABEL_BYTES 128

typedef struct {
    int fd;                 /* owned; -1: none */
    char name[GGUF_LABEL_BYTES]; /* for messages: the path, or its end */
    uint64_t bytes;
    struct timespec modified;
    uint32_t version;
    uint32_t alignment;
    uint64_t data_at;       /* where tensor data begins; offsets in the file count from here */
    uint64_t n_items;
    gguf_item *item;        /* sorted by key */
    uint64_t n_tensors;
    gguf_tensor *tensor;    /* in file order; moved to the gguf when it is assembled */
} gguf_part;

struct gguf {
    uint32_t n_parts;
    gguf_part part[GGUF_FILES_MAX];
    uint64_t n_tensors;
    gguf_tensor *tensor;    /* parts in order, each in file order */
    uint32_t *by_name;      /* indices of tensor, sorted by name */
};

/* The word for value type number kind ("u32"), "?" when there is none. */
const char *gguf_kind_name(uint32_t kind);

/* Stored bytes of one value of the type; 0: strings, arrays and unknown types. */
uint32_t gguf_kind_bytes(uint32_t kind);

/* Decode the integer or bool of type kind at p (little-endian, gguf_kind_bytes long). */
gguf_int gguf_int_decode(gguf_kind kind, const uint8_t *p);

/* Decode the f32 or f64 at p. */
double gguf_real_decode(gguf_kind kind, const uint8_t *p);

/* i as a u32; false when it does not fit. */
bool gguf_int_u32(gguf_int i, uint32_t *out);

/* Read exactly n bytes at offset at of p; ST_BAD_MODEL when they are not there any more or cannot
 * be read. `what` stands in the message. */
MUST_USE status gguf_pread(const gguf_part *p, void *to, uint64_t n, uint64_t at, const char *what,
                           errmsg *e);

/* Describe the file of p->fd (fd and name are set, the rest is zero). On error what was allocated
 * stays in *p for gguf_part_close. */
MUST_USE status gguf_part_parse(gguf_part *p, errmsg *e);

/* Close the descriptor and free everything. */
void gguf_part_close(gguf_part *p);

/* The item at key, NULL when there is none. */
const gguf_item *gguf_part_item(const gguf_part *p, const char *key);

#endif
