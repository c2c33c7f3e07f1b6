/* model_arch.h - the architectures this build knows, as data.
 *
 * An entry says which tensors a layer and the model have (name, shape in the model's own
 * dimensions, kind, whether they may be absent, where the description keeps them), how heads are
 * rotated, and which keys would ask for arithmetic that the entry does not have. A new
 * architecture is an entry: biases are optional rules, norms of q and k or norms after a block are
 * further rules with fields of their own in layer_desc, an embedding scale or a window pattern a
 * further field here and there. */
#ifndef COMMON_MODEL_ARCH_H
#define COMMON_MODEL_ARCH_H

#include "common/model.h"

#include <stddef.h>

typedef enum { DIM_1, DIM_EMBD, DIM_Q /* n_heads * n_head */, DIM_KV /* n_kv_heads * n_head */,
               DIM_FF, DIM_VOCAB, DIM_ROT_PAIRS /* n_rot / 2 */ } model_dim;

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
