/* gguf_build.h - GGUF files made by tests: right ones, and wrong ones on purpose.
 *
 * A gguf_build is a list of keys and a list of tensors with their data. Everything that a writer
 * decides stands in public fields, so that a test can spoil it before the bytes are made. Running
 * out of memory is a CHECK. */
#ifndef TESTS_SUPPORT_GGUF_BUILD_H
#define TESTS_SUPPORT_GGUF_BUILD_H

#include "common/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Value types, numbered as GGUF numbers them. */
enum { B_U8, B_I8, B_U16, B_I16, B_U32, B_I32, B_F32, B_BOOL, B_STRING, B_ARRAY, B_U64, B_I64,
       B_F64 };

#define OFFSET_AUTO UINT64_MAX

typedef struct {
    char *name;            /* owned */
    uint64_t name_bytes;   /* what the length field says; name_held of them are written */
    uint64_t name_held;
    uint32_t n_dims;       /* this many dimensions are written, at most 8 */
    uint64_t dim[8];
    uint32_t type;
    uint64_t offset;       /* OFFSET_AUTO: after the tensor before it, aligned */
    uint8_t *data;         /* owned; may be NULL (bytes of zeros) */
    uint64_t bytes;
} built_tensor;

typedef struct {
    char *key;             /* owned */
    uint64_t key_bytes;
    uint32_t kind;
    uint8_t *value;        /* owned: what stands after the kind */
    uint64_t bytes;
} built_key;

typedef struct {
    char magic[4];
    uint32_t version;
    uint32_t alignment;    /* used for placing; the key is a key like others */
    bool pad_end;          /* pad after the last tensor */
    uint64_t n_tensors_said, n_keys_said; /* OFFSET_AUTO: the truth */
    uint64_t n_keys, n_tensors;
    built_key *key;
    built_tensor *tensor;
} gguf_build;

/* Version 3, alignment 32, no keys, no tensors. */
gguf_build *gguf_build_new(void);
void gguf_build_free(gguf_build *b);

/* Set a key; one that is there already gets the new value (gguf_build_raw always adds). */
void gguf_build_u32(gguf_build *b, const char *key, uint32_t value);
void gguf_build_f32(gguf_build *b, const char *key, float value);
void gguf_build_bool(gguf_build *b, const char *key, bool value);
void gguf_build_str(gguf_build *b, const char *key, const char *value);
/* A scalar of any kind from the low bytes of value. */
void gguf_build_scalar(gguf_build *b, const char *key, uint32_t kind, uint64_t value);
/* n elements of a fixed-size kind, each_bytes wide, as they stand in memory (little-endian). */
void gguf_build_array(gguf_build *b, const char *key, uint32_t element, const void *values,
                      uint64_t n, uint32_t each_bytes);
void gguf_build_strs(gguf_build *b, const char *key, const char *const *text, uint64_t n);
/* A value as bytes, whatever they are. */
void gguf_build_raw(gguf_build *b, const char *key, uint32_t kind, const void *value,
                    uint64_t bytes);
void gguf_build_unset(gguf_build *b, const char *key);

/* Add a tensor of at most two dimensions (rows 0: one dimension); data is copied, NULL: zeros. */
built_tensor *gguf_build_tensor(gguf_build *b, const char *name, dtype type, uint64_t row,
                                uint64_t rows, const void *data);
/* The tensor of that name; CHECKs that it is there. Valid until the next tensor is added. */
built_tensor *gguf_build_find(gguf_build *b, const char *name);
void gguf_build_remove(gguf_build *b, const char *name);

/* The file's bytes, owned by the caller. */
uint8_t *gguf_build_bytes(const gguf_build *b, uint64_t *n);
/* Write them to path. */
void gguf_build_file(const gguf_build *b, const char *path);
/* In an anonymous file of its own; the caller owns the descriptor. */
int gguf_build_fd(const gguf_build *b);
int bytes_fd(const uint8_t *bytes, uint64_t n);

/* A small random model with an SPM vocabulary: llama, or another architecture of the same shape. */
typedef struct {
    const char *arch;      /* NULL: llama; qwen2, qwen3, gemma3 have the tensors that they need */
    uint32_t window, period; /* gemma3: keys that are not written when 0 */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, n_head, n_vocab, n_ctx;
    dtype type;            /* of the matrices; rows must be whole blocks */
    bool tied, biases, rope_freqs; /* the last two: llama */
    uint64_t seed;
} llama_spec;
/* 3 layers, 64 wide, 4 heads over 2, 320 tokens, F32, untied. */
llama_spec llama_spec_default(void);
/* The same as that architecture; gemma3 with 7 layers, two of three of which see a window of 24,
 * and another base for each kind. */
llama_spec llama_spec_arch(const char *arch);
gguf_build *gguf_build_llama(const llama_spec *s);

/* The vocabulary alone: <unk> <s> </s>, 256 byte tokens, letters, pieces up to n_vocab (>= 300). */
void gguf_build_vocab(gguf_build *b, uint32_t n_vocab);

/* Keep the tensors [from, to) of b only, with the keys of part no of count; the first part keeps
 * the other keys. */
gguf_build *gguf_build_part(const gguf_build *b, uint32_t no, uint32_t count, uint64_t from,
                            uint64_t to);

#endif
