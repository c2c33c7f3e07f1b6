/* prime: a prompt in one piece = in chunks of any sizes, serial = overlapped over the stages.
 *
 * The reference takes the whole prompt as one chunk through one stage, then decodes greedily: what
 * the KV cache holds shows in those tokens. The arms, for every number of stages:
 *
 *   chunks of T        T from a list around the borders of KV blocks and attention cells; with more
 *                      than one stage both serially and overlapped, where stages must meet
 *   odd pieces         several calls, each of a random length
 *   unsplit            the same prompt, each call of it or every other one, on the first stage
 *                      alone (MEMRA_PRIME_PP=0): decode, which is split, reads what it has left
 *   fork and truncate  a fork in the middle of a KV block; parent and child go on differently; the
 *                      child forgets its own way and takes the parent's, after the parent has gone;
 *                      the parent forgets half of its prompt and reads it again */
#include "common/clock.h"
#include "coordinator/gates/gate_count.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/gates/gate_run.h"
#include "coordinator/commands/random_tokens.h"

#include <stdlib.h>

static const uint32_t chunk_sizes[] = {1, 2, 3, 7, 8, 63, 64, 65};
#define PIECE_MAX       97u
#define CANARY_TRIES    3u /* of an arm that cannot overlap */
#define MEET_CHUNKS_MIN 3u /* an overlapped arm of so many chunks must show stages that met */

typedef struct {
    const gate_context *g;
    uint32_t *tokens; /* the prompt */
    uint32_t n_rows;  /* prompt and greedy decode */
    gate_record reference, got;
} work;

typedef enum { SPLIT, UNSPLIT, UNSPLIT_BY_TURNS } prompt_way;

/* What was asked of the pipeline so far. */
typedef struct {
    uint64_t rows, chunks, steps;
    uint64_t rows_alone, chunks_alone; /* of prompts that walked unsplit */
    prompt_way way;
    pipeline *p;
    step_doors doors;
    uint32_t n_calls;
} asked;

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static step_doors doors_of(const work *w, uint32_t chunk, bool pipe)
{
    return gate_doors(w->g, chunk, pipe, pipe);
}

/* Before a prompt call of n rows: how it walks. */
static status ask(asked *x, uint32_t n, uint32_t chunk, errmsg *e)
{
    uint32_t n_chunks = (n + chunk - 1) / chunk;
    bool alone = x->way == UNSPLIT || (x->way == UNSPLIT_BY_TURNS && x->n_calls++ % 2 == 0);
    x->rows += n;
    x->chunks += n_chunks;
    x->steps += n_chunks;
    if (alone) x->rows_alone += n;
    if (alone) x->chunks_alone += n_chunks;
    x->doors.prime_pp = !alone;
    return pipeline_set_step_doors(x->p, &x->doors, e);
}

/* Prompt rows [begin, end) into the record; *next: the token drawn after the last. */
static status prime_rows(work *w, session *s, uint32_t begin, uint32_t end, uint32_t chunk,
                         uint32_t *next, asked *x, errmsg *e)
{
    uint32_t n = end - begin;
    if (n == 0) return ST_OK;
    TRY(ask(x, n, chunk, e));
    return session_prime(s, w->tokens + begin, n, gate_record_rows(&w->got, begin, n), next, e);
}

/* The greedy tail after the prompt. */
static status decode_rows(work *w, session *s, uint32_t next, asked *x, errmsg *e)
{
    w->got.tokens[w->g->n_prompt - 1] = next;
    for (uint32_t i = w->g->n_prompt; i < w->n_rows; i++) {
        TRY(session_step(s, next, gate_record_rows(&w->got, i, 1), &next, e));
        w->got.tokens[i] = next;
        x->rows++;
        x->steps++;
    }
    return ST_OK;
}

/* --- ways through the prompt --------------------------------------------------------------- */

static status walk_chunks(work *w, session *s, uint32_t chunk, asked *x, errmsg *e)
{
    uint32_t next;
    TRY(prime_rows(w, s, 0, w->g->n_prompt, chunk, &next, x, e));
    return decode_rows(w, s, next, x, e);
}

static status walk_pieces(work *w, session *s, uint32_t chunk, asked *x, errmsg *e)
{
    uint64_t random = w->g->seed;
    uint32_t next = TOKEN_NONE;
    for (uint32_t at = 0; at < w->g->n_prompt;) {
        uint32_t n = 1 + (uint32_t)(random_next(&random) % PIECE_MAX);
        n = least(n, w->g->n_prompt - at);
        TRY(prime_rows(w, s, at, at + n, chunk, &next, x, e));
        at += n;
    }
    return decode_rows(w, s, next, x, e);
}

/* Other tokens than the prompt's, which are then forgotten. */
static status detour(work *w, session *s, uint32_t at, uint32_t n, uint32_t chunk, asked *x,
                     errmsg *e)
{
    uint32_t other[PIECE_MAX];
    random_tokens(other, n, w->g->model.n_vocab, ~w->g->seed);
    TRY(ask(x, n, chunk, e));
    TRY(session_prime(s, other, n, NULL, NULL, e));
    return session_truncate(s, at, e);
}

/* Compared three times over: parent, child, and the parent read again. */
static status walk_forks(work *w, session **parent, uint32_t chunk, gate_arm *a, asked *x,
                         errmsg *e)
{
    uint32_t n = w->g->n_prompt, fork_at = n * 5 / 12, half = n / 2, next = TOKEN_NONE;
    session *child = NULL;
    status s = ST_OK;
    TRY_DONE(s, prime_rows(w, *parent, 0, fork_at, chunk, &next, x, e));
    TRY_DONE(s, session_fork(*parent, &child, e));
    TRY_DONE(s, detour(w, child, fork_at, least(PIECE_MAX, n - fork_at), chunk, x, e));
    TRY_DONE(s, prime_rows(w, *parent, fork_at, n, chunk, &next, x, e));
    TRY_DONE(s, decode_rows(w, *parent, next, x, e));
    gate_record_compare(a, &w->reference, &w->got, 0, w->n_rows);
    TRY_DONE(s, session_truncate(*parent, half, e));
    TRY_DONE(s, prime_rows(w, *parent, half, n, chunk, &next, x, e));
    TRY_DONE(s, decode_rows(w, *parent, next, x, e));
    gate_record_compare(a, &w->reference, &w->got, half, w->n_rows);
    session_drop(*parent);
    *parent = NULL;
    TRY_DONE(s, prime_rows(w, child, fork_at, n, chunk, &next, x, e));
    TRY_DONE(s, decode_rows(w, child, next, x, e));
    gate_record_compare(a, &w->reference, &w->got, fork_at, w->n_rows);
done:
    if (child != NULL) session_drop(child);
    return s;
}

/* --- arms ---------------------------------------------------------------------------------- */

typedef enum { WALK_CHUNKS, WALK_PIECES, WALK_FORKS } walk_kind;

typedef struct {
    walk_kind kind;
    uint32_t chunk;
    bool pipe;
    prompt_way way;
    bool run_split;         /* canaries: walked split, judged by `way` */
    uint32_t run_chunk;   /* canaries: walked with this chunk length, judged by `chunk`; 0: same */
    bool run_serial;      /* canaries: walked serially */
    bool run_other_token; /* canaries: one token of the prompt is another */
} arm_way;

static status walk(work *w, pipeline *p, const arm_way *how, gate_arm *a, asked *x, errmsg *e)
{
    gate_record_clear(&w->got);
    *x = (asked){.p = p, .way = how->run_split ? SPLIT : how->way};
    sampler_params sampler = sampler_default();
    session *s = NULL;
    x->doors = doors_of(w, how->run_chunk > 0 ? how->run_chunk : how->chunk,
                        how->pipe && !how->run_serial);
    TRY(session_open(p, &sampler, &s, e));
    uint32_t *middle = &w->tokens[w->g->n_prompt / 2], kept = *middle;
    if (how->run_other_token) *middle = (kept + 1) % w->g->model.n_vocab;
    status st;
    switch (how->kind) {
    case WALK_PIECES:
        st = walk_pieces(w, s, how->chunk, x, e);
        break;
    case WALK_FORKS:
        st = walk_forks(w, &s, how->chunk, a, x, e);
        break;
    default:
        st = walk_chunks(w, s, how->chunk, x, e);
        break;
    }
    *middle = kept;
    if (s != NULL) session_drop(s);
    if (st == ST_OK && how->kind != WALK_FORKS && a != NULL)
        gate_record_compare(a, &w->reference, &w->got, 0, w->n_rows);
    return st;
}

static status arm_walk(work *w, pipeline *p, uint32_t n_stages, const arm_way *how, gate_arm *a,
                       errmsg *e)
{
    bool both_slots = n_stages > 1 && how->pipe, may_meet = both_slots && how->way == SPLIT;
    bool must_meet = may_meet && how->kind == WALK_CHUNKS &&
                     (w->g->n_prompt + how->chunk - 1) / how->chunk >= MEET_CHUNKS_MIN;
    uint64_t begin = now_ns();
    while (gate_may_try(a, begin) && (!how->run_serial || a->tries < CANARY_TRIES)) {
        gate_counts before;
        gate_arm_again(a);
        gate_counts_take(&before, p);
        asked x;
        TRY(walk(w, p, how, a, &x, e));
        gate_expect want = {.n_stages = n_stages,
                            .row_bytes = w->g->model.row_bytes,
                            .rows = x.rows,
                            .chunks = x.chunks,
                            .steps = x.steps,
                            .rows_alone = x.rows_alone,
                            .chunks_alone = x.chunks_alone,
                            .prompts_alone = how->way == UNSPLIT,
                            .slots = both_slots ? SLOTS_ANY : SLOTS_FIRST_ONLY};
        if (how->run_split) want.rows_alone = x.rows; /* what should have been */
        gate_counts_check(a, p, &before, &want);
        if (!may_meet && how->way != UNSPLIT_BY_TURNS && a->overlaps > 0)
            gate_arm_red(a, "stages met inside their layers %llu times, and should not",
                         (unsigned long long)a->overlaps);
        if (!must_meet || a->overlaps > 0) return ST_OK;
    }
    if (a->green)
        gate_arm_red(a, "no two stages were inside their layers at once, in %u tries", a->tries);
    return ST_OK;
}

static status arm_run(work *w, pipeline *p, uint32_t n_stages, const arm_way *how, gate_arm *a,
                      errmsg *e)
{
    a->cuts = pipeline_plan(p)->cuts;
    errmsg why = {0};
    status s = arm_walk(w, p, n_stages, how, a, &why);
    return gate_arm_ended(a, s, &why, e);
}

static void arm_name(gate_arm *a, const work *w, uint32_t n_stages, const arm_way *how)
{
    const char *order = n_stages == 1                  ? ""
                        : how->way == UNSPLIT          ? ", unsplit"
                        : how->way == UNSPLIT_BY_TURNS ? ", unsplit by turns"
                        : how->pipe                    ? ", overlapped"
                                                       : ", serial";
    if (how->kind == WALK_PIECES)
        gate_arm_begin(a, "prime", "odd pieces%s", order);
    else if (how->kind == WALK_FORKS)
        gate_arm_begin(a, "prime", "fork and truncate%s", order);
    else if (how->chunk >= w->g->n_prompt)
        gate_arm_begin(a, "prime", "one piece%s", order);
    else
        gate_arm_begin(a, "prime", "chunks of %u%s", how->chunk, order);
}

static status arm_report(work *w, pipeline *p, const arm_way *how, errmsg *e)
{
    gate_arm a;
    uint32_t n_stages = pipeline_plan(p)->cuts.n_stages;
    arm_name(&a, w, n_stages, how);
    TRY(arm_run(w, p, n_stages, how, &a, e));
    gate_report_arm(w->g->report, &a);
    return ST_OK;
}

static status unsplit_run(work *w, pipeline *p, errmsg *e)
{
    uint32_t n = w->g->n_prompt, chunk = least(n, gate_chunk(w->g));
    step_doors d = doors_of(w, chunk, true);
    d.prime_pp = false;
    if (!gate_may_unsplit(w->g, p, &d)) return ST_OK;
    TRY(arm_report(w, p, &(arm_way){.chunk = n, .pipe = true, .way = UNSPLIT}, e));
    TRY(arm_report(w, p, &(arm_way){.chunk = chunk, .pipe = true, .way = UNSPLIT}, e));
    TRY(arm_report(
        w, p, &(arm_way){.kind = WALK_PIECES, .chunk = n, .pipe = true, .way = UNSPLIT_BY_TURNS},
        e));
    return arm_report(
        w, p, &(arm_way){.kind = WALK_FORKS, .chunk = chunk, .pipe = true, .way = UNSPLIT}, e);
}

/* All arms on one pipeline. */
static status pipe_run(void *ctx, pipeline *p, errmsg *e)
{
    work *w = ctx;
    uint32_t n_stages = pipeline_plan(p)->cuts.n_stages, n = w->g->n_prompt;
    for (uint32_t pipe = n_stages == 1 ? 1 : 0; pipe <= 1; pipe++) {
        for (uint32_t i = 0; i < sizeof chunk_sizes / sizeof *chunk_sizes; i++) {
            arm_way how = {.chunk = chunk_sizes[i], .pipe = pipe != 0};
            if (how.chunk < n) TRY(arm_report(w, p, &how, e));
        }
        TRY(arm_report(w, p, &(arm_way){.chunk = n, .pipe = pipe != 0}, e));
        TRY(arm_report(w, p, &(arm_way){.kind = WALK_PIECES, .chunk = n, .pipe = pipe != 0}, e));
        uint32_t chunk = least(n, gate_chunk(w->g));
        TRY(arm_report(w, p, &(arm_way){.kind = WALK_FORKS, .chunk = chunk, .pipe = pipe != 0}, e));
    }
    return unsplit_run(w, p, e);
}

/* The reference is an arm too: its counters must be right, and have arrived before the next arm's
 * begin to count. */
static status reference_walk(void *ctx, pipeline *p, gate_arm *a, errmsg *e)
{
    work *w = ctx;
    gate_counts before;
    asked x;
    gate_arm_begin(a, "prime", "reference, one piece");
    gate_arm_again(a);
    a->cuts = pipeline_plan(p)->cuts;
    gate_counts_take(&before, p);
    TRY(walk(w, p, &(arm_way){.chunk = w->g->n_prompt}, NULL, &x, e));
    gate_record_swap(&w->got, &w->reference);
    gate_expect want = {.n_stages = 1, .rows = x.rows, .chunks = x.chunks, .steps = x.steps};
    gate_counts_check(a, p, &before, &want);
    return ST_OK;
}

/* --- canaries ------------------------------------------------------------------------------ */

static status canary_run(work *w, const gate_cuts *c, const char *fault_text, const arm_way *how,
                         const char *broken, const char *because, errmsg *e)
{
    pipeline *p;
    gate_arm a;
    gate_setup setup = {.fault = fault_text, .n_sessions = 2, .unsplit = true};
    TRY(gate_pipe_open(&p, w->g, c, &setup, e));
    arm_name(&a, w, c->n_stages, how);
    step_doors d = doors_of(w, how->chunk, true);
    d.prime_pp = false;
    bool runs = how->way != UNSPLIT || gate_may_unsplit(w->g, p, &d);
    status s = runs ? arm_run(w, p, c->n_stages, how, &a, e) : ST_OK;
    pipeline_close(p);
    if (s == ST_OK && runs) gate_report_canary(w->g->report, &a, broken, because);
    return s;
}

static status canaries_run(void *ctx, const gate_cuts *c, errmsg *e)
{
    work *w = ctx;
    uint32_t n = w->g->n_prompt, chunk = least(n, gate_chunk(w->g));
    arm_way serial = {.chunk = chunk}, overlapped = {.chunk = chunk, .pipe = true};
    TRY(canary_run(w, c, "stage=0,at=prime,kind=corrupt", &serial,
                   "stage 0 flips one bit of what it sends in one chunk", "values differ", e));
    arm_way other = serial;
    other.run_other_token = true;
    TRY(canary_run(w, c, NULL, &other, "one token of the prompt is another", "values differ", e));
    arm_way whole = serial;
    whole.run_chunk = n;
    TRY(canary_run(w, c, NULL, &whole, "the prompt is walked in one piece where chunks should be",
                   "prompt chunks", e));
    arm_way unpiped = overlapped;
    unpiped.run_serial = true;
    TRY(canary_run(w, c, NULL, &unpiped, "the overlapped arm is walked serially",
                   "no two stages were inside", e));
    arm_way forks = {.kind = WALK_FORKS, .chunk = chunk};
    TRY(canary_run(w, c, "stage=0,at=decode,kind=corrupt", &forks,
                   "stage 0 flips one bit of what it sends while a fork goes on", "values differ",
                   e));
    arm_way unsplit = {.chunk = chunk, .pipe = true, .way = UNSPLIT};
    TRY(canary_run(w, c, "stage=1,at=prime,kind=corrupt", &unsplit,
                   "stage 1 flips one bit of an unsplit chunk that it hands on", "values differ",
                   e));
    unsplit.run_split = true;
    return canary_run(w, c, NULL, &unsplit, "the prompt walks split where it should walk unsplit",
                      "walked no step unsplit", e);
}

/* --- the gate ------------------------------------------------------------------------------ */

status gate_prime(const gate_context *g, errmsg *e)
{
    work w = {.g = g, .n_rows = g->n_prompt + g->n_decode};
    const gate_run run = {.g = g,
                          .gate = "prime",
                          .setup = {.n_sessions = 2, .unsplit = true},
                          .ctx = &w,
                          .reference = reference_walk,
                          .arms = pipe_run,
                          .canaries = canaries_run};
    status s = ST_OK;
    w.tokens = malloc(g->n_prompt * sizeof *w.tokens);
    if (w.tokens == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for %u tokens", g->n_prompt);
        goto done;
    }
    random_tokens(w.tokens, g->n_prompt, g->model.n_vocab, g->seed);
    TRY_DONE(s, gate_record_open(&w.reference, w.n_rows, g->model.n_vocab, e));
    TRY_DONE(s, gate_record_open(&w.got, w.n_rows, g->model.n_vocab, e));
    s = gate_run_few(&run, e);
done:
    free(w.tokens);
    gate_record_close(&w.reference);
    gate_record_close(&w.got);
    return s;
}
