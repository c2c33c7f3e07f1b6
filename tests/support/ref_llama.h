/* ref_llama.h - the truth: a dense model in double precision, naive and on its own.
 *
 * Reads hyper-parameters and tensors straight from the file (not through model.c), dequantises F32,
 * F16, BF16 and Q8_0 exactly and the other types as the kernels' plain reference does (quant_test
 * checks it), computes a whole sequence at once with the C library's functions.
 * Knows llama, qwen2, qwen3 and gemma3, rope scaling none, linear and yarn, and rope_freqs; a
 * tensor that is there is used. For small models: O(n^2) and slow. */
#ifndef TESTS_SUPPORT_REF_LLAMA_H
#define TESTS_SUPPORT_REF_LLAMA_H

#include "common/gguf.h"

/* The logits after each of n tokens, f64 [n, *n_vocab], owned by the caller. What it does not
 * understand is a CHECK. */
double *ref_llama_logits(const gguf *g, const uint32_t *tokens, uint32_t n, uint32_t *n_vocab);

#endif
