/* gguf.h - a model file, read with bounds.
 *
 * Owns the descriptors of one file or of all parts of a split file, the metadata and the tensor
 * directory. Reads by pread only (a file cut short while it runs cannot fault the reader); nothing
 * is mapped here. Everything is validated before it is believed: magic, version (2 and 3), counts,
 * string and array lengths, array nesting (4 deep), value types, bools (0 or 1), duplicate keys
 * and tensor names, dimension count (1..4), zero dimensions and overflow, alignment (u32, a power
 * of two and a multiple of 8, as the specification says), row sizes that are whole blocks, every
 * tensor's bytes aligned, inside its file and not overlapping another's, no bytes read beyond the
 * end, nothing but padding after the last tensor. No count is believed before the file is seen to
 * be large enough for it; arrays are walked when the file is opened and read only when asked for.
 *
 * Split files may be opened by any part; the parts are found by the name pattern
 * "-%05d-of-%05d.gguf" (numbered from 1 there, from 0 in split.no) and each must say so itself.
 * Metadata is that of part 1. A split.count of 0 or 1 means one file (merging tools write 0).
 *
 * Refuses: big-endian files, version 1, parts that are missing, swapped or joined, types without a
 * row in dtype.h (named, with tensor and number), empty names, names with a NUL byte, and what is
 * beyond the limits below. Source: the GGUF specification. */
#ifndef COMMON_GGUF_H
#define COMMON_GGUF_H

#include "common/dtype.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define GGUF_NAME_BYTES 128    /* a tensor's name with its terminator; longer ones are refused */
#define GGUF_FILES_MAX 64u     /* parts of a split model */
#define GGUF_TENSORS_MAX (1u << 18) /* of all parts */
#define GGUF_KEYS_MAX 65536u
#define GGUF_KEY_BYTES_MAX 65535u
#define GGUF_STRING_BYTES_MAX (16u << 20)
#define GGUF_TEXT_BYTES_MAX (64u << 20) /* keys and strings outside arrays, together */
#define GGUF_STRINGS_MAX (1u << 22) /* of one array of strings or arrays; twice that in a file */

typedef struct {
    char name[GGUF_NAME_BYTES];
    dtype type;
    uint32_t n_dims;           /* 1..4 */
    uint64_t dim[4];           /* dim[0] is the row length; unused ones are 1 */
    uint64_t bytes;
    uint32_t file_i;           /* which part holds it */
    uint64_t offset;           /* bytes from the start of that part; offset + bytes <= its size */
} gguf_tensor;

typedef struct gguf gguf;

/* Open the model at path (all parts of it). ST_BAD_MODEL: *e says file, offset and rule broken
 * (also: there is no such file, it is not a regular file, or it cannot be read). ST_RESOURCES: no
 * memory or descriptor. *out is NULL then. Descriptors are close-on-exec. */
MUST_USE status gguf_open(gguf **out, const char *path, errmsg *e);

/* The same over descriptors that are already open, in part order (a stage gets them from the
 * coordinator). Takes no ownership of the array; owns the descriptors from then on, on error
 * too. */
MUST_USE status gguf_open_fds(gguf **out, const int *fds, uint32_t n_fds, errmsg *e);

void gguf_close(gguf *g);

uint32_t gguf_n_files(const gguf *g);
int gguf_fd(const gguf *g, uint32_t file_i);
uint64_t gguf_file_bytes(const gguf *g, uint32_t file_i);
/* The part's path as messages show it (a long one from the end), owned by g. */
const char *gguf_file_name(const gguf *g, uint32_t file_i);

/* ST_OK while every part has the size and modification time it had when opened; ST_BAD_MODEL naming
 * the part otherwise. */
MUST_USE status gguf_unchanged(const gguf *g, errmsg *e);

/* Tensors in the order of the parts and of their directories; owned by g. */
uint64_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, uint64_t i); /* i < gguf_n_tensors */
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name); /* NULL: no such tensor */

/* Read the first `bytes` stored bytes of t (at most t->bytes) into to. ST_BAD_MODEL naming tensor
 * and file when they cannot be read any more. */
MUST_USE status gguf_tensor_read(const gguf *g, const gguf_tensor *t, void *to, uint64_t bytes,
                                 errmsg *e);

/* Metadata. Each returns false, with *out unchanged, when the key is absent, or has a type or value
 * that cannot be read as asked (integers of any width convert when the value fits; f32 and f64
 * convert, an f64 beyond f32's range does not). */
bool gguf_has(const gguf *g, const char *key);
/* The stored type of the value at key for messages ("u32", "array of string"); NULL: no key. */
const char *gguf_type_name(const gguf *g, const char *key);
bool gguf_u32(const gguf *g, const char *key, uint32_t *out);
bool gguf_f32(const gguf *g, const char *key, float *out);
bool gguf_bool(const gguf *g, const char *key, bool *out);
/* The string stays owned by g; length in bytes, also terminated; may contain NUL bytes. */
bool gguf_string(const gguf *g, const char *key, const char **out, uint64_t *bytes);

/* Number of elements of the array at key, 0 when there is none. */
uint64_t gguf_array_n(const gguf *g, const char *key);

/* The array at key as n owned values, which the caller frees; read from the file at the call.
 * ST_BAD_MODEL when absent, of another kind, not n_expected long (n_expected 0: any), or with an
 * element that does not convert as above (bools convert to u32 too; the index is named);
 * ST_RESOURCES without memory. *out is NULL and *n 0 then. Strings: *out points to n entries; text
 * and entries are one allocation. An empty array gives an allocation too. */
typedef struct {
    const char *text; /* not terminated */
    uint32_t bytes;
} gguf_str;
MUST_USE status gguf_array_f32(const gguf *g, const char *key, uint64_t n_expected, float **out,
                               uint64_t *n, errmsg *e);
MUST_USE status gguf_array_u32(const gguf *g, const char *key, uint64_t n_expected, uint32_t **out,
                               uint64_t *n, errmsg *e);
MUST_USE status gguf_array_str(const gguf *g, const char *key, uint64_t n_expected, gguf_str **out,
                               uint64_t *n, errmsg *e);

#endif
