/* walks.h - small models with what one stage says of them, and sessions that are compared with it
 * bit by bit, however their steps walk. Functions assert that what they do was done. */
#ifndef TESTS_SUPPORT_WALKS_H
#define TESTS_SUPPORT_WALKS_H

#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#define WALKS_VOCAB  320u
#define WALKS_CTX    260u
#define WALKS_PROMPT 150u
#define WALKS_TOKENS 60u /* drawn after it */

typedef struct {
    const char *arch;
    char path[SMALL_PATH_BYTES];
    float *logits;                    /* [WALKS_PROMPT + WALKS_TOKENS, WALKS_VOCAB] */
    uint32_t drawn[WALKS_TOKENS + 1]; /* after the prompt */
    draft_source drafts;              /* walks_drafting's */
} walks_model;
extern walks_model walks_llama, walks_gemma; /* the latter with a window of 24 */
extern uint32_t walks_prompt[WALKS_PROMPT];

/* cmocka's: a folder with the models in it; closing fails when anything else was left there. */
int walks_open(void **state);
int walks_close(void **state);
const char *walks_dir(void);

typedef struct {
    uint32_t n_stages;
    bool gathered, one_stream; /* MEMRA_PP_SHARD=0, MEMRA_PP_STREAMS=0 */
    const char *faults;        /* NULL: none */
} walks_place;
/* Whose steps may walk unsplit. */
pipeline *walks_pipeline(const walks_model *m, const walks_place *how);

/* Which paths walk split from now on. */
void walks_set(pipeline *p, bool batch, bool spec, bool prime);

/* Prompt positions [begin, end), compared; the token after the last. */
uint32_t walks_prime(const walks_model *m, session *s, uint32_t begin, uint32_t end);
/* Token k after the prompt as a step, compared. */
void walks_step(const walks_model *m, session *s, uint32_t k);
/* Tokens [from + 1, from + n] drawn by itself, compared; limits may be NULL. */
void walks_generate(const walks_model *m, session *s, uint32_t from, uint32_t n,
                    const generate_limits *limits);
/* Drafts, every fifth of which is wrong. */
generate_limits walks_drafting(walks_model *m);

/* A session from prompt to drafts, whose steps walk split and unsplit. */
void walks_both_ways(walks_model *m, pipeline *p);

#endif
