/* model.h - what a model is made of: a description that the layer walk, the plan and the checks
 * all read, so that the next architecture is a table entry and not a fork.
 *
 * model_read looks up the architecture's entry (model_arch.h), reads the hyper-parameters from the
 * file's metadata and resolves every tensor the architecture needs, with its shape and type
 * checked. Refuses by name: an unknown architecture, a missing or misshapen tensor, a type without
 * products, norms and biases that are not F32, rope scaling that is not known, keys that ask for
 * arithmetic the entry does not have (experts, soft caps, ..), expert or other extra
 * tensors that the entry does not know (a tensor that would be ignored is never ignored silently),
 * a file without tensors. */
#ifndef COMMON_MODEL_H
#define COMMON_MODEL_H

#include "common/gguf.h"

#define LAYERS_MAX 512u
#define ROPE_PAIRS_MAX 256u /* half of the largest head */
#define MODEL_WIDTH_MAX (1u << 20) /* n_embd, n_ff, n_heads * n_head */
#define MODEL_VOCAB_MAX (1u << 24)

/* A tensor of the model, as a stage finds it: type, shape and place in the file. Owned by the gguf:
 * a model_desc is good until gguf_close. */
typedef struct {
    const gguf_tensor *t; /* NULL: the model has none */
} tensor_ref;

typedef enum { ROPE_PAIRS /* elements 2i, 2i+1: llama */, ROPE_NEOX /* i, i + d/2 */ } rope_kind;
typedef enum { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN } rope_scaling;
typedef enum { FFN_SWIGLU /* silu gate */, FFN_GEGLU /* tanh-gelu gate */ } ffn_kind;

/* What a layer's rows attend to: every position up to their own, or the last `window` of them. The
 * number is that of the class of its KV blocks (kvclass.h). */
typedef enum { LAYER_GLOBAL, LAYER_WINDOW, LAYER_KINDS } layer_kind;

/* Rotation of one kind of layer. The angle of pair i at position p is computed in double from
 * these (stage/rope.c): llama3 factors divide the frequency (freq_factors), linear divides the
 * position by `factor`, yarn blends both (ext_factor 1, beta_fast, beta_slow, original context).
 * cos and sin are multiplied by attn_factor as it stands here: for yarn it already holds the 1 +
 * 0.1 ln(factor) of the paper times what the file says, otherwise it is 1. Source: the YaRN paper
 * and llama 3.1's published rule. */
typedef struct {
    rope_kind kind;
    rope_scaling scaling;
    uint32_t n_rot;       /* rotated elements per head, even, <= head size */
    float base;
    float factor;         /* >= 1; 1 without scaling */
    uint32_t n_ctx_orig;  /* yarn: >= 1; n_ctx_train where the file does not say */
    float beta_fast, beta_slow; /* yarn: beta_fast >= beta_slow > 0; 32 and 1 by default */
    float attn_factor;
    tensor_ref freq_factors; /* f32 [n_rot / 2], finite, > 0, of the whole model; may be absent */
} rope_desc;

typedef struct {
    layer_kind kind;
    tensor_ref attn_norm;                    /* f32 [n_embd] */
    tensor_ref attn_q, attn_k, attn_v;       /* [n_embd, n_heads*head], [n_embd, n_kv_heads*head] */
    tensor_ref attn_q_bias, attn_k_bias, attn_v_bias; /* may be absent */
    tensor_ref attn_q_norm, attn_k_norm;     /* f32 [n_head], before rotation; may be absent */
    tensor_ref attn_output;                  /* [n_heads*head, n_embd] */
    tensor_ref attn_post_norm;               /* f32 [n_embd], after the block; may be absent */
    tensor_ref ffn_norm;                     /* f32 [n_embd] */
    tensor_ref ffn_gate, ffn_up, ffn_down;   /* [n_embd, n_ff] x2, [n_ff, n_embd] */
    tensor_ref ffn_post_norm;                /* as attn_post_norm */
} layer_desc;

typedef struct {
    const char *arch;         /* the entry's name, static */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, n_head; /* n_head: size of one head */
    uint32_t n_vocab;         /* rows of token_embd; the file's vocabulary may have fewer pieces */
    uint32_t n_ctx_train;
    float rms_eps;
    float attn_scale;         /* usually 1/sqrt(n_head) */
    float embd_scale;         /* embeddings are multiplied by it; usually 1 */
    uint32_t window;          /* positions that a window layer sees, its own included; 0: there is
                                 no window layer */
    rope_desc rope;           /* of global layers */
    rope_desc rope_window;    /* of window layers; n_rot 0 where there is none */
    ffn_kind ffn;
    uint32_t aux_bytes;       /* extra bytes that a row carries across a boundary; 0 now */
    tensor_ref token_embd;    /* [n_embd, n_vocab] */
    tensor_ref output_norm;   /* f32 [n_embd] */
    tensor_ref output;        /* [n_embd, n_vocab]; the same as token_embd when tied */
    bool tied;
    bool cut_forbidden[LAYERS_MAX]; /* [il]: no boundary may stand before layer il */
    layer_desc layer[LAYERS_MAX];
} model_desc;

/* Describe g. *out is large: allocate it. ST_BAD_MODEL: *e names file and tensor, key or
 * architecture; *out is not to be used then. */
MUST_USE status model_read(model_desc *out, const gguf *g, errmsg *e);

/* The rotation of layers of that kind. */
const rope_desc *model_rope_of(const model_desc *m, layer_kind kind);

/* 2 for a model with window layers, otherwise 1: kinds below it are what the model has, though
 * maybe no layer of the global one. */
uint32_t model_n_kinds(const model_desc *m);

/* How many of the layers [begin, end) are of that kind. */
uint32_t model_n_layers_of(const model_desc *m, layer_kind kind, uint32_t begin, uint32_t end);

/* Layer il's tensors, those that are there, to out [MODEL_LAYER_TENSORS]; how many. */
#define MODEL_LAYER_TENSORS 24u
uint32_t model_layer_tensors(const model_desc *m, uint32_t il, const gguf_tensor **out);

/* Stored bytes of layer il's tensors. */
uint64_t model_layer_bytes(const model_desc *m, uint32_t il);

/* Architectures that have an entry, as one line "llama, ..." in static storage. */
const char *model_archs(void);

#endif
