/* stage_chain.h - several stage objects in one process, driven as the coordinator would: tests.
 *
 * A chain owns the file, the stages and the books of its sessions. Rows walk through the stages by
 * copies of the hidden state. Functions that return void assert that the step was done. */
#ifndef TESTS_SUPPORT_STAGE_CHAIN_H
#define TESTS_SUPPORT_STAGE_CHAIN_H

#include "common/plan.h"
#include "stage/stage.h"

typedef struct {
    uint32_t n_cuts, cut[STAGES_MAX]; /* none: one stage */
    dtype kv_type;
    const char *isa;
    const backend *backend; /* NULL: the cpu's; another must keep its memory where the cpu's does */
    uint32_t n_threads, rows_max, n_ctx, n_branches;
    bool keeps; /* a journal is behind each stage: not in the plan, which knows the cpu alone */
    stage_meanwhile meanwhile; /* of all of them */
    void *meanwhile_ctx;
    uint32_t n_blocks; /* of a model without windows; one with gets what its plan says */
} chain_spec;
chain_spec chain_spec_default(void); /* one stage, f32 KV, auto, 1 thread, 32 rows, ctx 256 */

typedef struct {
    gguf *file;
    model_desc *model;
    plan plan;
    uint32_t n_stages;
    stage *stage[STAGES_MAX];
    wire_config config[STAGES_MAX];
    readback results;
    int results_fd;
    float *carry;   /* [rows_max, n_embd] */
    wire_row *rows; /* [rows_max]: of the step being made */
    poison_mark *poison; /* [rows_max]: of the last step */
    uint64_t seq;
    uint32_t n_classes, n_blocks[KV_POOLS], *refs[KV_POOLS]; /* blocks in use */
} chain;

/* A session's books: blocks by class, those below first were released. */
typedef struct {
    uint32_t branch, generation, n;
    struct {
        uint32_t first, n, block[256];
    } table[KV_POOLS];
} chain_session;

/* Owns file from then on. */
void chain_open(chain *c, gguf *file, const chain_spec *s);
void chain_close(chain *c);

/* One step through all stages; the first error is returned. */
MUST_USE status chain_step(chain *c, const wire_kv_op *ops, uint32_t n_ops, const wire_row *rows,
                           uint32_t n_rows, const sampler_params *samplers, uint32_t n_samplers,
                           errmsg *e);
/* The committed logits of readback row i of the last step; asserts that it is of that step. */
const float *chain_logits(const chain *c, uint32_t i);
readback_row *chain_result(const chain *c, uint32_t i);

void session_begin(chain *c, chain_session *s, uint32_t branch);
void session_end(chain *c, chain_session *s);
/* Append tokens in chunks; logits [n, n_vocab] or NULL. */
void session_feed(chain *c, chain_session *s, const uint32_t *tokens, uint32_t n, uint32_t chunk,
                  float *logits);
/* One token for each of several sessions in one step; logits[i] [n_vocab]. */
void sessions_feed(chain *c, chain_session *const *s, const uint32_t *tokens, uint32_t n,
                   float *const *logits);
/* Append one token and draw the next. */
uint32_t session_sample(chain *c, chain_session *s, uint32_t token, const sampler_params *p);
void session_split(chain *c, chain_session *from, chain_session *to, uint32_t branch); /* fork */
void session_cut(chain *c, chain_session *s, uint32_t n); /* truncate */

/* Distances of f32 logits. */
double logits_error(const float *a, const double *truth, uint64_t n); /* sum((a-b)^2) / sum(b^2) */

#endif
