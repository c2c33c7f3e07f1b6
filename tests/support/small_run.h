/* small_run.h - a random model on disk and pipelines over it, for tests of the library. Functions assert
 * that what they do was done. */
#ifndef TESTS_SUPPORT_SMALL_RUN_H
#define TESTS_SUPPORT_SMALL_RUN_H

#include "coordinator/pipeline.h"
#include "tests/support/gguf_build.h"

/* Write the model to path. */
void small_model(const char *path, const llama_spec *spec);

/* A random model of the architecture, of 4 layers at least, as dir/ARCH.gguf. Its path goes to path, for
 * the caller to unlink. */
#define SMALL_PATH_BYTES 64
void small_model_arch(char path[SMALL_PATH_BYTES], const char *dir, const char *arch, uint32_t n_ctx,
                      uint32_t n_vocab);

/* Options of a pipeline over it: this build's stages, one thread each, f16 KV, runs below run_dir. What
 * d, path and run_dir point to must outlive the options. */
pipeline_options small_options(const char *path, const char *run_dir, const doors *d);

/* This build's stage program: below $MEMRA_BUILD where a build was moved, static. */
const char *small_stage_program(void);

pipeline *small_open(const pipeline_options *o);

/* A session that draws greedily. */
session *small_session(pipeline *p);

/* What s draws alone, step by step: drawn[0] is given, drawn[1] to drawn[n] are written. */
void small_steps(session *s, uint32_t *drawn, uint32_t n);

#endif
