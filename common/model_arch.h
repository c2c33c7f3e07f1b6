/* model_arch.h - the architectures this build knows, as data.
 *
 * An entry says which tensors a layer and the model have (name, shape in the model's own
 * dimensions, kind, whether they may be absent, where the description keeps them), how heads are
 * rotated, and which keys would ask for arithmetic that the entry does not have. A new
 * architecture is an entry: biases, norms of q and k and norms after a block are rules, an
 * embedding scale or a pattern of windows is a field. */
#ifndef COMMON_MODEL_ARCH_H
#define COMMON_MODEL_ARCH_H

#include "common/model.h"

#include <stddef.h>

typedef enum { DIM_1, DIM_EMBD, DIM_Q /* n_heads * n_head */, DIM_KV /* n_kv_heads * n_head */,
               DIM_HEAD, DIM_FF, DIM_VOCAB, DIM_ROT_PAIRS /* n_rot / 2 */ } model_dim;

typedef enum { USE_MATRIX /* any type with products */, USE_VECTOR /* F32 */ } tensor_use;

typedef struct {
    const char *name;      /* after "blk.N." for a layer's */
    size_t at;             /* of its tensor_ref in layer_desc or model_desc */
    tensor_use use;
    model_dim row, rows;   /* dim[0] and dim[1] */
    bool optional;
} tensor_rule;

/* A key (after "ARCH.") that may only have the value with which it changes nothing. */
typedef struct {
    const char *key;
    double neutral;        /* numbers, and bools as 0 or 1 */
    const char *meaning;   /* for the refusal: what it asks for */
} neutral_key;

typedef struct {
    const char *name;      /* general.architecture */
    rope_kind rope;
    ffn_kind ffn;
    bool embd_scaled;      /* embeddings times sqrt(n_embd), rounded to f32 */
    uint32_t wide_layers;  /* a model of so many layers scales attention by 1/sqrt(n_embd / n_heads)
                              where the file does not say; 0: none */
    uint32_t window_period; /* of so many layers the last is global, the others see a window, where
                               the file does not say; 0: all are global */
    float window_base;     /* rotation base of window layers where the file does not say */
    const tensor_rule *model_rule, *layer_rule;
    uint32_t n_model_rules, n_layer_rules;
    const neutral_key *neutral;
    uint32_t n_neutral;
    const char *const *ignored; /* a layer's tensors that hold nothing of their own */
    uint32_t n_ignored;
} model_arch;

/* The entry of that name (bytes long), NULL when there is none. */
const model_arch *model_arch_find(const char *name, uint64_t bytes);

#endif
