/* plan.h - what a run needs, computed before anything is allocated.
 *
 * Per stage: bytes of weights, KV, scratch, host memory of the stage and boundary slots (those it
 * receives through); for the host: readback rows, run block, journal. The same numbers size the
 * real allocations, so that the plan is what the processes use. Pure functions; nothing is
 * allocated. */
#ifndef COMMON_PLAN_H
#define COMMON_PLAN_H

#include "common/fence.h"
#include "common/kvclass.h"

/* Defaults, stated in --help. */
#define PLAN_CTX_DEFAULT      4096u /* at most; the model's own training context if that is less */
#define PLAN_CHUNK_DEFAULT    256u  /* rows of a prompt chunk; where a stage is on a GPU: */
#define PLAN_CHUNK_CUDA       4096u /* with one stage */
#define PLAN_CHUNK_CUDA_PIPE  1024u /* with several */
#define PLAN_SESSIONS_DEFAULT 1u
#define PLAN_READBACK_DEFAULT 16u

/* What a process takes beside what it is sized for, measured (tests/unit/memory_test.c): allocator,
 * stacks, tables of the model, written pages of libraries, and its share of programs' and
 * libraries' code. A piece of the vocabulary: text, index, merges. */
#define PLAN_PROCESS_BYTES (5ull << 19)
#define PLAN_PIECE_BYTES   96ull

/* What a cpu device holds of activations in fixed point (kernels/cpu/fixed.h), at most. */
#define PLAN_FIXED_BYTES (8ull << 20)

/* What a stage takes of a CUDA device beside weights, KV, scratch and slots: the driver's context
 * with the kernels and their local memory, measured on an H200 (tests/gpu/gpu_memory_test.c); a
 * queue's own scratch, and pieces of weights on their way (kernels/cuda/device.h, loader.h).
 * Allocations there are of whole pages; places of weights are aligned. */
#define PLAN_CUDA_CONTEXT_BYTES (530ull << 20)
#define PLAN_CUDA_QUEUE_BYTES   (290ull << 20)
#define PLAN_CUDA_LOADER_BYTES  (64ull << 20)
#define PLAN_CUDA_LANES_BYTES   (544ull << 10) /* beside the slots of a boundary */
#define PLAN_CUDA_PAGE_BYTES    (2ull << 20)
#define PLAN_CUDA_ALIGN_BYTES   256u

/* Limits; beyond them a request is refused. */
#define PLAN_CTX_MAX      (1u << 24)
#define PLAN_SESSIONS_MAX 1024u
#define PLAN_READBACK_MAX 4096u
#define PLAN_JOURNAL_ALL  UINT64_MAX
#define PLAN_BYTES_MAX    (1ull << 60) /* of one run's KV */

typedef struct {
    uint32_t n_ctx;      /* positions per session, 1..PLAN_CTX_MAX; 0: default. More than the model
                            was trained for is allowed (the caller may say so) */
    uint32_t n_sessions; /* sessions (branches) that may be open at once; 0: default */
    uint64_t kv_bytes;   /* bound of KV bytes over all stages; 0: sessions x ctx */
    uint64_t journal_bytes; /* bound of the journals' bytes together; 0: none are kept;
                               PLAN_JOURNAL_ALL: for every KV block */
    dtype kv_type;       /* F32, F16, BF16 */
    uint32_t n_chunk;    /* rows of the largest step, 1..WIRE_ROWS_MAX; 0: default (not more than
                            a prompt of n_ctx, or a row of each session, has). The door
                            MEMRA_PRIME_CHUNK raises it when it asks for more */
    uint32_t n_readback; /* readback rows, 1..PLAN_READBACK_MAX; 0: default */
    bool costs;          /* auto cuts: what a byte costs on each stage's device (fence.h) */
    uint32_t cost[STAGES_MAX];
} plan_request;

typedef struct {
    uint32_t layer_begin, layer_end;
    device_door device; /* as the door says; unset and auto are cpu. Not checked to exist */
    uint64_t weights_bytes, kv_bytes, scratch_bytes, slots_bytes;
    uint64_t host_bytes; /* the stage's own host memory: host_layout */
    uint64_t process_bytes; /* PLAN_PROCESS_BYTES, the rows that a boundary's end keeps, and
                               a cpu device's rows in fixed point */
    uint64_t device_bytes;  /* on a CUDA device: all that the process takes there, at its peak,
                               weights in the forms that its kernels read; without the embedding,
                               which stays in host memory. Elsewhere 0 */
} stage_plan;

typedef struct {
    fence cuts;
    uint32_t n_ctx, n_sessions, rows_max, n_readback;
    uint32_t n_blocks[KV_POOLS]; /* KV blocks by class, the same in every stage */
    dtype kv_type;
    bool gathered;             /* MEMRA_PP_SHARD=0: stage 0 has the weights of all */
    bool one_process; /* MEMRA_PP_STREAMS=0: all stages are in one: no slots, no journals */
    stage_plan stage[STAGES_MAX];
    uint64_t run_block_bytes, readback_bytes, slots_total_bytes;
    uint32_t n_journal_blocks; /* of each journal: those of class global below it are kept */
    uint64_t journal_bytes;    /* of all; 0: none */
    bool journal_may_go;       /* nobody asked for so many: rather none than not to fit */
    uint64_t coordinator_bytes; /* the process itself: PLAN_PROCESS_BYTES, its vocabulary, books:
                                   tokens and tables of sessions, of the mirror and of prefixes */
    uint64_t total_bytes;   /* without weights that stay in the page cache: what is allocated */
    uint64_t weights_total_bytes; /* over the stages; a tied head of two stages counts twice */
} plan;

/* ST_BAD_DOOR and ST_RESOURCES as fence_plan; ST_BAD_MODEL: a vocabulary that cannot be sampled;
 * ST_USAGE: a context, chunk or count out of range, a KV type that is none; ST_RESOURCES also:
 * kv_bytes too small for one session of n_ctx (the message says what would fit), or sessions that
 * no machine has room for. *out is unspecified then. */
MUST_USE status plan_make(plan *out, const model_desc *m, const doors *d, const plan_request *r,
                          errmsg *e);

/* Of the host: what is allocated there, and the weights that must stay in its memory. */
uint64_t plan_needed_bytes(const plan *p, const model_desc *m);

/* Compare what all stages together need of the host, weights included (they must stay in memory to
 * be of use; but for what lies on CUDA devices: of their weights the embedding alone), with what it
 * has free (free_bytes; 0: unknown, fits); when it is too much, journals that may go are dropped
 * first. ST_RESOURCES naming the largest stage, what is needed, what is free and the context that
 * would fit, if any does. */
MUST_USE status plan_fits(plan *p, const model_desc *m, uint64_t free_bytes, errmsg *e);

typedef struct {
    bool last_stage;
    bool keeps; /* what it sends goes to a journal, from a device that works while the host does */
    bool on_cuda;
} stage_role;

/* The pieces of a stage's scratch arena on the device, in bytes from its start, each on a border of
 * 64 bytes: one formula for plan and stage. All f32 unless said; R = rows_max. */
#define PLAN_LOGITS_ROWS 16u
#define PLAN_HEAD_ROWS   64u /* H: rows whose results are on their way together */
#define PLAN_CAME_BYTES  (8u + 8u * PLAN_HEAD_ROWS) /* rows_came: stage/rows.c checks */
typedef struct {
    uint64_t hidden;   /* [R, n_embd]: the residual stream; what boundaries fill and send */
    uint64_t normed;   /* [R, n_embd] */
    uint64_t q, k, v;  /* [R, n_heads * n_head], [R, n_kv_heads * n_head] x 2 */
    uint64_t attn;     /* [R, n_heads * n_head] */
    uint64_t gate, up; /* [R, n_ff] x 2 */
    uint64_t frequency[LAYER_KINDS];     /* f64 [n_rot / 2], by kind of layer */
    uint64_t cos[LAYER_KINDS], sin[LAYER_KINDS]; /* [R, n_rot / 2] x 2, likewise */
    uint64_t tokens, position;           /* u32 [R] x 2 */
    uint64_t table;        /* u32 [kinds, R] */
    uint64_t tables;       /* u32 [kinds * R * blocks_per_ctx]: tables of the step's branches */
    uint64_t live, finite; /* u8 [R], [R + H]: the rows', then those of logits */
    uint64_t came;         /* rows_came: of kernels/came.h */
    uint64_t sent;         /* [R, n_embd]: hidden on its way to a journal; stages that keep only */
    uint64_t logits;       /* [PLAN_LOGITS_ROWS, n_vocab]; from here on: last stage only */
    uint64_t kept_logits;  /* the same: of rows whose logits the host wants, while it reads them */
    uint64_t sampler;      /* sampler_scratch_bytes; 0 on a CUDA device, whose queue has it */
    uint64_t bytes;
} scratch_layout;
void scratch_layout_make(scratch_layout *out, const model_desc *m, uint32_t rows_max,
                         uint32_t n_ctx, stage_role role);

/* What a stage serves, as far as it decides sizes. */
typedef struct {
    uint32_t n_ctx, n_branches, rows_max, n_readback;
    uint32_t n_blocks[KV_POOLS];
    bool last_stage;
    bool keeps; /* what it sends goes to a journal, from a device that works while the host does */
} stage_limits;

/* The pieces of a stage's host memory, likewise: what a step uploads and downloads, and the KV
 * bookkeeping. */
#define PLAN_BRANCH_BYTES 40u
#define PLAN_SAMPLE_BYTES 1152u
#define PLAN_RESULT_BYTES 16u
typedef struct {
    uint64_t rows;                    /* wire_row [2, R]: of the step in hand and the one before */
    uint64_t tokens, position;        /* u32 [R] x 2 */
    uint64_t table;                   /* u32 [kinds, R] */
    uint64_t tables;                  /* u32 [kinds * R * blocks_per_ctx] */
    uint64_t live, finite;            /* u8 [R], [R + H] */
    uint64_t came, none_came;         /* rows_came x 2: what came back, and nothing */
    uint64_t sent;                    /* f32 [R, n_embd]; stages that keep only */
    uint64_t readback_seen;           /* u32 [n_readback] */
    uint64_t branches;                /* PLAN_BRANCH_BYTES [n_branches] */
    uint64_t branch_tables[KV_POOLS]; /* u32 [n_branches, blocks_per_ctx] by class */
    uint64_t block_users[KV_POOLS];   /* u32 [n_blocks] by class */
    uint64_t history; /* u32 [n_blocks of class global, KV_BLOCK]; from here on: last stage only */
    uint64_t logits;  /* f32 [PLAN_LOGITS_ROWS, n_vocab] */
    uint64_t sample_rows, sample_results; /* [H] of PLAN_SAMPLE_BYTES, of PLAN_RESULT_BYTES */
    uint64_t bytes;
} host_layout;
void host_layout_make(host_layout *out, const model_desc *m, const stage_limits *l);

/* Blocks that a session of n_ctx positions fills. */
uint32_t plan_blocks_per_ctx(uint32_t n_ctx);

/* Window blocks that a session of n_ctx positions has at most at a time: those that the windows of
 * a step of rows_max rows touch, wherever it begins. 0: the model has no window layers. */
uint32_t plan_window_blocks(const model_desc *m, uint32_t n_ctx, uint32_t rows_max);

/* plan_cuda.c: device_bytes of stage s, whose other numbers are there. */
uint64_t plan_cuda_bytes(const plan *p, const model_desc *m, uint32_t s);

/* Bytes of KV of `n_layers` layers of one class; one layer's K pool is the 2 * n_layers-th part. */
uint64_t plan_kv_bytes(const model_desc *m, uint32_t n_layers, uint32_t n_blocks, dtype kv_type);

#endif
