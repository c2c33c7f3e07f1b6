/* shape.h - a model of random weights, made in memory: sizing and speed before anything is
 * downloaded.
 *
 * A shape is a model without a vocabulary of texts: "8b", "8b,layers=4", or spelled out,
 * "layers=16,embd=2048,ff=8192,heads=32,kv-heads=8,head=64,vocab=128256", which is a llama model; the
 * names of other architectures begin with them ("gemma3-4b"). Its file is a memfd that
 * has what a real file has (header, directory, data in the stored form of its type), so that plan,
 * coordinator and stages read it as they read any other. shape_open makes it sparse: a header and
 * holes, whatever its size; shape_fill gives the holes their values.
 *
 * Values follow from seed, tensor and place alone, never from the threads that write them. Norms
 * are 1; a matrix of rows of n values has values of mean 0 and a spread within a factor 1.5 of
 * 1/sqrt(n), so that activations and logits stay of the order of 1. */
#ifndef COORDINATOR_SHAPE_H
#define COORDINATOR_SHAPE_H

#include "coordinator/commands/options.h"

#define SHAPE_NAME_BYTES 96

typedef struct {
    const char *arch; /* static */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, n_head, n_vocab, n_ctx_train;
    uint32_t window;  /* of gemma3's local layers; 0: there are none */
    bool tied;
    dtype type; /* of the matrices; norms are F32 */
    uint64_t seed;
    char name[SHAPE_NAME_BYTES]; /* for people: "random 8b q8_0" */
} shape;

/* What a person gave on the command line. */
typedef struct {
    const char *text, *type; /* --shape, --type; NULL: not given */
    shape shape;             /* filled by shape_take */
} shape_options;

/* The two rows for a command's table of options. */
#define SHAPE_OPTIONS(o)                                                                           \
    {"shape",                                                                                      \
     0,                                                                                            \
     OPTION_TEXT,                                                                                  \
     "SHAPE",                                                                                      \
     "instead of a file a model of random weights, made in memory. 1b, 3b, 8b, 70b "               \
     "and 405b are the llama 3 ones, qwen3-4b and gemma3-4b are others; \"8b,layers=4\" "          \
     "changes one; spelled out, a llama: "                                                         \
     "layers=,embd=,ff=,heads=,vocab= and, if wanted, kv-heads= (heads), "                         \
     "head= (embd/heads), tied= (0), ctx= (131072), seed= (1)",                                    \
     &(o).text,                                                                                    \
     0,                                                                                            \
     0},                                                                                           \
    {                                                                                              \
        "type", 0, OPTION_TEXT, "TYPE",                                                            \
            "stored type of its matrices, as GGUF names it (q8_0, f16, ..). Default: q8_0",        \
            &(o).type, 0, 0                                                                        \
    }

/* Matrices of this type can be filled. */
bool shape_has_values(dtype t);

/* Understand text and type (NULL: q8_0). ST_USAGE naming what is wrong and the rule. */
MUST_USE status shape_parse(shape *out, const char *text, const char *type, errmsg *e);

/* Its file, sealed against other sizes, close-on-exec, the caller's; as good as nothing of it is in
 * memory. ST_RESOURCES; *fd is -1 then. */
MUST_USE status shape_open(int *fd, const shape *s, errmsg *e);

/* Write the values, with n_threads (0: one per usable core). ST_RESOURCES: no memory or threads;
 * ST_INTERRUPTED: *interrupt (may be NULL) became non-zero. */
MUST_USE status shape_fill(int fd, const shape *s, uint32_t n_threads,
                           const volatile int *interrupt, errmsg *e);

/* For commands, after options_parse: when --shape was given, c's model becomes the shape's sparse
 * file (the descriptor lives as long as the process). ST_USAGE: --type alone, --shape together with
 * -m; otherwise as shape_parse and shape_open. */
MUST_USE status shape_take(shape_options *o, common_options *c, errmsg *e);

/* And before weights are needed: fill it, if there is one (o may be NULL). ST_RESOURCES also when
 * it does not fit into free memory beside what one stage would need; otherwise as shape_fill. */
MUST_USE status shape_ready(const shape_options *o, const common_options *c, errmsg *e);

#endif
