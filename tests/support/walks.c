#include "tests/support/ok.h"
#include "tests/support/walks.h"

#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 32u

static char dir[32];
walks_model walks_llama = {.arch = "llama"}, walks_gemma = {.arch = "gemma3"};
uint32_t walks_prompt[WALKS_PROMPT];

const char *walks_dir(void)
{
    return dir;
}

pipeline *walks_pipeline(const walks_model *m, const walks_place *how)
{
    doors d = doors_default();
    d.n_stages = how->n_stages;
    d.shard = !how->gathered;
    d.streams = !how->one_stream;
    if (how->faults != NULL) snprintf(d.fault_text, sizeof d.fault_text, "%s", how->faults);
    pipeline_options o = small_options(m->path, dir, &d);
    o.plan.n_sessions = 3;
    o.plan.n_ctx = WALKS_CTX;
    o.plan.n_chunk = CHUNK;
    o.plan.journal_bytes = PLAN_JOURNAL_ALL;
    o.unsplit = true;
    return small_open(&o);
}

static float *row_of(const walks_model *m, uint32_t position)
{
    return m->logits + (size_t)position * WALKS_VOCAB;
}

static void make_model(walks_model *m)
{
    errmsg e = {0};
    small_model_arch(m->path, dir, m->arch, WALKS_CTX, WALKS_VOCAB);
    m->logits = malloc((WALKS_PROMPT + WALKS_TOKENS) * WALKS_VOCAB * sizeof *m->logits);
    assert_non_null(m->logits);
    pipeline *p = walks_pipeline(m, &(walks_place){.n_stages = 1});
    session *s = small_session(p);
    OK(session_prime(s, walks_prompt, WALKS_PROMPT, m->logits, &m->drawn[0], &e));
    for (uint32_t k = 0; k < WALKS_TOKENS; k++)
        OK(session_step(s, m->drawn[k], row_of(m, WALKS_PROMPT + k), &m->drawn[k + 1], &e));
    session_drop(s);
    pipeline_close(p);
}

int walks_open(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/memra-u.XXXXXX");
    if (mkdtemp(dir) == NULL) return 1;
    for (uint32_t i = 0; i < WALKS_PROMPT; i++)
        walks_prompt[i] = (i * 37 + 11) % WALKS_VOCAB;
    make_model(&walks_llama);
    make_model(&walks_gemma);
    return 0;
}

int walks_close(void **state)
{
    (void)state;
    free(walks_llama.logits);
    free(walks_gemma.logits);
    unlink(walks_llama.path);
    unlink(walks_gemma.path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

void walks_set(pipeline *p, bool batch, bool spec, bool prime)
{
    errmsg e = {0};
    step_doors d = doors_default().step;
    d.batch_pp = batch;
    d.spec_pp = spec;
    d.prime_pp = prime;
    OK(pipeline_set_step_doors(p, &d, &e));
}

static void same_rows(const walks_model *m, const float *got, uint32_t position, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(got + (size_t)i * WALKS_VOCAB, row_of(m, position + i),
                   WALKS_VOCAB * sizeof *got) != 0)
            fail_msg("%s: row %u differs", m->arch, position + i);
}

uint32_t walks_prime(const walks_model *m, session *s, uint32_t begin, uint32_t end)
{
    errmsg e = {0};
    uint32_t next;
    float *got = calloc((end - begin) * WALKS_VOCAB, sizeof *got);
    assert_non_null(got);
    OK(session_prime(s, walks_prompt + begin, end - begin, got, &next, &e));
    same_rows(m, got, begin, end - begin);
    free(got);
    return next;
}

void walks_step(const walks_model *m, session *s, uint32_t k)
{
    errmsg e = {0};
    float got[WALKS_VOCAB];
    uint32_t next;
    OK(session_step(s, m->drawn[k], got, &next, &e));
    same_rows(m, got, WALKS_PROMPT + k, 1);
    assert_int_equal(next, m->drawn[k + 1]);
}

void walks_generate(const walks_model *m, session *s, uint32_t from, uint32_t n,
                    const generate_limits *limits)
{
    errmsg e = {0};
    generation *g;
    uint32_t token;
    generate_limits l = limits != NULL ? *limits : (generate_limits){0};
    l.n_max = n;
    OK(session_generate(s, m->drawn[from], &l, &g, &e));
    for (uint32_t k = 0; k < n; k++) {
        OK(generation_next(g, &token, &e));
        assert_int_equal(token, m->drawn[from + 1 + k]);
    }
    OK(generation_close(g, &e));
}

static void *sit(draft_source *d, const draft_task *t)
{
    (void)t;
    return (char *)d - offsetof(walks_model, drafts);
}

static void leave(void *seat)
{
    (void)seat;
}

/* What was drawn, every fifth token another. */
static uint32_t guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    const walks_model *m = seat;
    (void)tokens;
    *spent_ns = 0;
    for (uint32_t k = 0; k < room; k++) {
        uint64_t at = n - WALKS_PROMPT + k;
        out[k] = at <= WALKS_TOKENS ? (m->drawn[at] + (at % 5 == 0)) % WALKS_VOCAB : 0;
    }
    return room;
}

generate_limits walks_drafting(walks_model *m)
{
    m->drafts = (draft_source){.sit = sit, .leave = leave, .guess = guess};
    return (generate_limits){.n_draft = 3, .draft_always = true, .draft = &m->drafts};
}

void walks_both_ways(walks_model *m, pipeline *p)
{
    session *s = small_session(p);
    const generate_limits drafts = walks_drafting(m);
    walks_set(p, true, true, true);
    walks_prime(m, s, 0, 70);
    walks_set(p, true, true, false);
    walks_prime(m, s, 70, WALKS_PROMPT);
    for (uint32_t k = 0; k < 20; k++) {
        walks_set(p, k % 3 != 0, true, true);
        walks_step(m, s, k);
    }
    walks_generate(m, s, 20, 12, &drafts);
    session_drop(s);
}
