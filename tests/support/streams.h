/* streams.h - a small model, pipelines over it, and what sessions must say: prompts with samplers,
 * each walked alone, step by step, through one stage. Functions assert that what they do was
 * done. */
#ifndef TESTS_SUPPORT_STREAMS_H
#define TESTS_SUPPORT_STREAMS_H

#include "coordinator/pipeline.h"

#define STREAMS_VOCAB 320u
#define STREAMS_CTX   260u

typedef struct {
    sampler_params sampler;
    uint32_t n_prompt, n_truth;
    uint32_t prompt[STREAMS_CTX];
    uint32_t truth[STREAMS_CTX + 1]; /* [n_truth]: the token after the prompt, and those after it */
} stream;

/* A folder with the model in it: a llama, or gguf_build.h's model of that architecture (gemma3:
 * with window layers, and chunks so short that windows slide); closing asserts that nothing was
 * left behind. */
void streams_open(void);
void streams_open_arch(const char *arch);
void streams_close(void);

/* A pipeline over the model. kv_blocks: of the global class over all sessions, and their share of
 * the window's; 0: what they fill. */
pipeline *streams_pipeline(const doors *d, uint32_t n_sessions, uint32_t kv_blocks);
/* The same with journals, so that a stage that is lost is replayed from them. */
pipeline *streams_pipeline_journals(const doors *d, uint32_t n_sessions, uint32_t kv_blocks);

/* A stream that begins with n_shared tokens of `family`, has n_prompt in all, and its sampler from
 * `seed`; the truth is walked through p (of one stage), to the context's end. */
void streams_make(stream *out, pipeline *p, uint32_t family, uint32_t n_shared, uint32_t n_prompt,
                  uint64_t seed);

#endif
