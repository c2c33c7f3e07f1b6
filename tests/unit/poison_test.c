/* NaN and infinity end the session whose rows hold them, and nothing else: the others in the same
 * steps have the bits that they have alone, and a row that was never asked for does not count. What
 * it held is wiped before it is used again: taint_test.c. The model is one whose embedding of one
 * token is NaN.
 *
 * MEMRA_POISON_DEVICE=cuda: all stages on the first GPU, heads and chunks as its attention of
 * prompts takes them. */
#include "tests/support/tap.h"

#include "coordinator/pipeline.h"
#include "tests/support/ok.h"
#include "tests/support/own_seat.h"
#include "tests/support/small_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_LAYERS   4u
#define N_VOCAB    320u
#define N_CTX      300u
#define N_SESSIONS 4u   /* that go on */
#define N_PROMPT   40u
#define N_TOKENS   120u /* drawn by each of them */

static char dir[] = "/tmp/memra-t.XXXXXX";
static char model_path[64], bad_path[64];
static uint32_t prompt[N_SESSIONS][N_PROMPT], truth[N_SESSIONS][N_TOKENS];
static uint32_t spoiled; /* the token */
static uint32_t n_embd = 64;
static device_kind kind = DEVICE_CPU;

static pipeline *open_of(const char *path, uint32_t n_stages, const char *fault_text)
{
    static doors d;
    errmsg e = {0};
    d = doors_default();
    d.n_stages = d.n_devices = n_stages;
    for (uint32_t s = 0; s < n_stages; s++) d.device[s] = (device_door){.kind = kind};
    d.step.prime_chunk =
        kind == DEVICE_CUDA ? 128 : 16; /* several chunks of a prompt are in flight */
    if (fault_text != NULL) {
        snprintf(d.fault_text, sizeof d.fault_text, "%s", fault_text);
        OK(fault_parse(&d.faults, fault_text, &e));
    }
    pipeline_options o = small_options(path, dir, &d);
    o.plan.n_sessions = N_SESSIONS + 2;
    o.plan.n_ctx = N_CTX;
    o.plan.journal_bytes = PLAN_JOURNAL_ALL;
    return small_open(&o);
}

static session *open_session(pipeline *p, uint32_t i, bool share)
{
    session_options o = session_options_default();
    session *s;
    errmsg e = {0};
    o.sampler.temperature = 0.9f;
    o.sampler.seed = i;
    o.share = share;
    OK(session_open_with(p, &o, &s, &e));
    return s;
}

/* The session of stream i, its prompt walked; the first token that it draws in *next. */
static session *primed(pipeline *p, uint32_t i, bool share, uint32_t *next)
{
    session *s = open_session(p, i, share);
    errmsg e = {0};
    OK(session_prime(s, prompt[i], N_PROMPT, NULL, next, &e));
    return s;
}

static bool occurs(uint32_t token)
{
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        for (uint32_t k = 0; k < N_PROMPT; k++)
            if (prompt[i][k] == token) return true;
        for (uint32_t k = 0; k < N_TOKENS; k++)
            if (truth[i][k] == token) return true;
    }
    return false;
}

static void make_truth(void)
{
    errmsg e = {0};
    pipeline *p = open_of(model_path, 1, NULL);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        for (uint32_t k = 0; k < N_PROMPT; k++)
            prompt[i][k] = ((k < 20 ? 0 : i) * 101 + k * 37 + 11) % N_VOCAB;
        session *s = primed(p, i, false, &truth[i][0]);
        for (uint32_t k = 1; k < N_TOKENS; k++)
            OK(session_step(s, truth[i][k - 1], NULL, &truth[i][k], &e));
        session_drop(s);
    }
    pipeline_close(p);
    for (spoiled = 3; occurs(spoiled); spoiled++) assert_true(spoiled + 1 < N_VOCAB);
}

static void write_model(const char *path, const char *tensor, uint64_t value_i, float value)
{
    llama_spec spec = llama_spec_default();
    spec.n_layers = N_LAYERS;
    spec.n_ctx = N_CTX;
    spec.n_vocab = N_VOCAB;
    if (kind == DEVICE_CUDA) {
        spec.n_embd = n_embd;
        spec.n_head = 64;
    }
    gguf_build *b = gguf_build_llama(&spec);
    if (tensor != NULL)
        memcpy(gguf_build_find(b, tensor)->data + value_i * sizeof value, &value, sizeof value);
    gguf_build_file(b, path);
    gguf_build_free(b);
}

static int set_up(void **state)
{
    (void)state;
    const char *device = getenv("MEMRA_POISON_DEVICE");
    if (device != NULL && strcmp(device, "cuda") == 0) {
        kind = DEVICE_CUDA;
        n_embd = 256;
    }
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(model_path, sizeof model_path, "%s/m.gguf", dir);
    snprintf(bad_path, sizeof bad_path, "%s/b.gguf", dir);
    write_model(model_path, NULL, 0, 0);
    make_truth();
    write_model(bad_path, "token_embd.weight", (uint64_t)spoiled * n_embd + 5, NAN);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(model_path);
    unlink(bad_path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* --- sessions end ----------------------------------------------------------------------------- */

/* Streams that generate by themselves, in the same steps as whatever else goes on. */
typedef struct {
    session *s[N_SESSIONS];
    generation *g[N_SESSIONS];
    uint32_t first[N_SESSIONS];
} others;

static void others_begin(others *o, pipeline *p)
{
    errmsg e = {0};
    const generate_limits l = {.n_max = N_TOKENS - 1};
    for (uint32_t i = 0; i < N_SESSIONS; i++) o->s[i] = primed(p, i, false, &o->first[i]);
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        OK(session_generate(o->s[i], o->first[i], &l, &o->g[i], &e));
}

/* All of their tokens are those that they draw alone. */
static void others_end(others *o)
{
    errmsg e = {0};
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        assert_int_equal(o->first[i], truth[i][0]);
        for (uint32_t k = 1; k < N_TOKENS; k++) {
            uint32_t token;
            OK(generation_next(o->g[i], &token, &e));
            assert_int_equal(token, truth[i][k]);
        }
        OK(generation_close(o->g[i], &e));
        OK(session_check(o->s[i], &e));
        session_drop(o->s[i]);
    }
}

/* "found by stage 1 (pid 17, layers 2-3);" of the where "stage 1 (layers 2-3)"; of any other, that
 * it is there. */
static bool names(const char *text, const char *where)
{
    unsigned stage[2], first[2], last[2];
    int pid = 0, n = 0;
    const char *found = strstr(text, "found by ");
    if (sscanf(where, "stage %u (layers %u-%u)", &stage[0], &first[0], &last[0]) != 3)
        return strstr(text, where) != NULL;
    if (found != NULL)
        sscanf(found, "found by stage %u (pid %d, layers %u-%u);%n", &stage[1], &pid, &first[1],
               &last[1], &n);
    return n > 0 && pid > 1 && stage[0] == stage[1] && first[0] == first[1] && last[0] == last[1];
}

/* The call ended with the session, for that row. */
static void ended(status st, const errmsg *e, const char *where, uint32_t position)
{
    char at[32];
    snprintf(at, sizeof at, "at position %u,", position);
    if (st != ST_NAN || e->code != ST_NAN || !names(e->text, where) || strstr(e->text, at) == NULL)
        fail_msg("%s (not %s %s): %s", status_word(st), where, at, e->text);
}

/* Whatever is asked of it, it says why; and it can be dropped. */
static void is_over(session *s, const char *where, uint32_t position)
{
    errmsg e = {0};
    uint32_t token = 1, next;
    session *f;
    pending *w;
    generation *g;
    const generate_limits l = {.n_max = 4};
    ended(session_check(s, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_step(s, token, NULL, &next, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_prime(s, &token, 1, NULL, NULL, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_step_deferred(s, token, &w, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_fork(s, &f, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_truncate(s, 0, &e), &e, where, position);
    errmsg_clear(&e);
    ended(session_generate(s, token, &l, &g, &e), &e, where, position);
    session_drop(s);
}

#define HIDDEN "hidden state at position"
static const char *const in_stage_0[] = {"stage 0 (layers 0-3)", "stage 0 (layers 0-1)",
                                         "stage 0 (layers 0-0)"};

static void by_prompt(pipeline *p, const char *where)
{
    uint32_t tokens[200], next = 0;
    errmsg e = {0};
    for (uint32_t at = 0; at < 200; at += 66) {
        session *s = open_session(p, 7, false);
        for (uint32_t k = 0; k < 200; k++) tokens[k] = prompt[k % N_SESSIONS][k % N_PROMPT];
        tokens[at] = spoiled;
        errmsg_clear(&e);
        ended(session_prime(s, tokens, 200, NULL, &next, &e), &e, where, at);
        assert_int_equal(next, TOKEN_NONE);
        assert_non_null(strstr(e.text, HIDDEN));
        is_over(s, where, at);
    }
}

static void by_step(pipeline *p, const char *where)
{
    uint32_t next;
    errmsg e = {0};
    session *s = primed(p, 0, false, &next), *f;
    OK(session_fork(s, &f, &e));
    ended(session_step(f, spoiled, NULL, &next, &e), &e, where, N_PROMPT);
    is_over(f, where, N_PROMPT);
    OK(session_step(s, truth[0][0], NULL, &next, &e)); /* its parent is none the worse */
    assert_int_equal(next, truth[0][1]);
    session_drop(s);
}

static void by_deferred_steps(pipeline *p, const char *where)
{
    uint32_t next;
    errmsg e = {0};
    session *s = primed(p, 1, false, &next);
    pending *w[4];
    for (uint32_t i = 0; i < 4; i++)
        OK(session_step_deferred(s, i == 1 ? spoiled : truth[1][i], &w[i], &e));
    OK(pending_logits_wait(w[0], NULL, &next, &e));
    assert_int_equal(next, truth[1][1]);
    ended(pending_logits_wait(w[1], NULL, &next, &e), &e, where, N_PROMPT + 1);
    pending_drop(w[3]);
    is_over(s, where, N_PROMPT + 1);
    errmsg_clear(&e);
    ended(pending_logits_wait(w[2], NULL, &next, &e), &e, where, N_PROMPT + 1); /* outlives it */
}

static void by_generation(pipeline *p, const char *where)
{
    uint32_t next;
    errmsg e = {0};
    const generate_limits l = {.n_max = 50};
    generation *g;
    session *s = primed(p, 2, false, &next);
    OK(session_generate(s, spoiled, &l, &g, &e));
    ended(generation_next(g, &next, &e), &e, where, N_PROMPT);
    assert_int_equal(next, TOKEN_NONE);
    errmsg_clear(&e);
    ended(generation_close(g, &e), &e, where, N_PROMPT);
    is_over(s, where, N_PROMPT);
}

static void one_ends_and_the_others_go_on(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        void (*const way[])(pipeline * p, const char *where) = {by_prompt, by_step,
                                                                by_deferred_steps, by_generation};
        pipeline *p = open_of(bad_path, n_stages, NULL);
        for (uint32_t i = 0; i < 4; i++) {
            others o;
            others_begin(&o, p);
            way[i](p, in_stage_0[n_stages - 1]);
            others_end(&o);
        }
        OK(pipeline_check(p, &e));
        assert_int_equal(pipeline_recoveries(p, 0, NULL, 0), 0);
        pipeline_close(p);
    }
}

/* Found by a middle stage and by the last one, in a step that all share: one of them ends. */
static void found_by_a_later_stage(void **state)
{
    (void)state;
    errmsg e = {0};
    const char *const where[] = {"stage 1 (layers 1-1)", "stage 2 (layers 2-3)"};
    for (uint32_t stage = 1; stage < 3; stage++) {
        char fault_text[64];
        generation *g[N_SESSIONS];
        session *s[N_SESSIONS];
        uint32_t token[N_SESSIONS], n_ended = 0;
        const generate_limits l = {.n_max = N_TOKENS - 1};
        snprintf(fault_text, sizeof fault_text, "stage=%u,at=decode,kind=nan", stage);
        pipeline *p = open_of(model_path, 3, fault_text);
        for (uint32_t i = 0; i < N_SESSIONS; i++) s[i] = primed(p, i, false, &token[i]);
        for (uint32_t i = 0; i < N_SESSIONS; i++)
            OK(session_generate(s[i], token[i], &l, &g[i], &e));
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            status st = ST_OK;
            errmsg_clear(&e);
            for (uint32_t k = 1; k < N_TOKENS && st == ST_OK; k++) {
                st = generation_next(g[i], &token[i], &e);
                if (st == ST_OK) assert_int_equal(token[i], truth[i][k]);
            }
            n_ended += st != ST_OK;
            if (st != ST_OK && (st != ST_NAN || !names(e.text, where[stage - 1])))
                fail_msg("%s", e.text);
            errmsg_clear(&e);
            assert_int_equal(generation_close(g[i], &e), st);
            session_drop(s[i]);
        }
        assert_int_equal(n_ended, 1);
        pipeline_close(p);
    }
}

static void logits_that_are_not_finite(void **state)
{
    (void)state;
    char path[64];
    errmsg e = {0};
    uint32_t next;
    snprintf(path, sizeof path, "%s/l.gguf", dir);
    write_model(path, "output.weight", 17 * (uint64_t)n_embd, INFINITY);
    for (uint32_t n_stages = 1; n_stages <= 2; n_stages++) {
        const char *where = n_stages == 1 ? "stage 0 (layers 0-3)" : "stage 1 (layers 2-3)";
        pipeline *p = open_of(path, n_stages, NULL);
        session *s = open_session(p, 0, false), *quiet = open_session(p, 1, false);
        ended(session_prime(s, prompt[0], N_PROMPT, NULL, &next, &e), &e, where, N_PROMPT - 1);
        assert_non_null(strstr(e.text, "in the logits at position"));
        is_over(s, where, N_PROMPT - 1);
        OK(session_prime(quiet, prompt[0], N_PROMPT, NULL, NULL, &e)); /* asks for no logits */
        OK(session_check(quiet, &e));
        session_drop(quiet);
        pipeline_close(p);
    }
    unlink(path);
}

/* --- rows that do not count ------------------------------------------------------------------- */

/* Drafts that are the spoiled token, always. */
typedef struct {
    draft_source source;
    uint64_t n_calls;
} spoiler;

static uint32_t guess_spoiled(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out,
                              uint32_t room, uint64_t *spent_ns)
{
    spoiler *d = seat;
    (void)tokens, (void)n;
    *spent_ns = 0;
    d->n_calls++;
    for (uint32_t i = 0; i < room; i++) out[i] = spoiled;
    return room;
}

/* A row that is NaN among drafts is walked again without: found once (by a fault), it is not again;
 * found again, the session ends, at that row. */
static void a_row_among_drafts_has_another_try(void **state)
{
    (void)state;
    errmsg e = {0};
    spoiler d = {.source = own_seat(guess_spoiled)};
    const generate_limits l = {.n_max = N_TOKENS - 1, .n_draft = 3, .draft_always = true,
                               .draft = &d.source};
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        pipeline *p = open_of(bad_path, n_stages, "stage=0,at=decode,kind=nan");
        uint32_t token;
        generation *g;
        session *s = primed(p, 0, false, &token);
        OK(session_generate(s, token, &l, &g, &e));
        for (uint32_t k = 1; k < N_TOKENS; k++) {
            OK(generation_next(g, &token, &e));
            assert_int_equal(token, truth[0][k]);
        }
        OK(generation_close(g, &e));
        session_drop(s);
        s = primed(p, 1, false, &token);
        OK(session_generate(s, spoiled, &l, &g, &e));
        ended(generation_next(g, &token, &e), &e, "stage 0", N_PROMPT);
        errmsg_clear(&e);
        ended(generation_close(g, &e), &e, "stage 0", N_PROMPT);
        is_over(s, "stage 0", N_PROMPT);
        errmsg_clear(&e);
        pipeline_close(p);
    }
}

static void a_draft_that_was_wrong_is_no_reason(void **state)
{
    (void)state;
    errmsg e = {0};
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        pipeline *p = open_of(bad_path, n_stages, NULL);
        spoiler d = {.source = own_seat(guess_spoiled)};
        uint32_t token;
        const generate_limits l = {.n_max = N_TOKENS - 1, .n_draft = 3, .draft_always = true,
                                   .draft = &d.source};
        session *s = primed(p, 0, false, &token);
        generation *g;
        OK(session_generate(s, token, &l, &g, &e));
        for (uint32_t k = 1; k < N_TOKENS; k++) {
            OK(generation_next(g, &token, &e));
            assert_int_equal(token, truth[0][k]);
        }
        OK(generation_close(g, &e));
        draft_counts n;
        pipeline_drafts(p, &n);
        assert_true(d.n_calls > 50 && n.n_verifies > 50 && n.n_accepted == 0);
        session_drop(s);
        pipeline_close(p);
    }
}

/* --- what it held ----------------------------------------------------------------------------- */

/* Its prefix is nobody's any more, and who held it already goes on. */
static void a_shared_prefix_is_not_handed_on(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t tokens[150], got[3], want, next;
    schedule_snapshot before, after;
    pipeline *p = open_of(bad_path, 2, NULL);
    for (uint32_t k = 0; k < 150; k++) tokens[k] = prompt[k % N_SESSIONS][k % N_PROMPT];
    session *holder = open_session(p, 3, true), *s = open_session(p, 3, true), *later;
    OK(session_prime(holder, tokens, 150, NULL, &want, &e));
    OK(session_prime(s, tokens, 150, NULL, &got[0], &e));
    assert_int_equal(got[0], want);
    pipeline_schedule(p, &before);
    assert_int_equal(before.n_shared_rows, 128);
    ended(session_step(s, spoiled, NULL, &next, &e), &e, "stage 0", 150);
    session_drop(s);
    later = open_session(p, 3, true);
    OK(session_prime(later, tokens, 150, NULL, &got[1], &e));
    assert_int_equal(got[1], want);
    pipeline_schedule(p, &after);
    assert_int_equal(after.n_shared_rows, before.n_shared_rows);
    OK(session_truncate(holder, 149, &e));
    OK(session_step(holder, tokens[149], NULL, &got[2], &e));
    assert_int_equal(got[2], want);
    session_drop(holder);
    session_drop(later);
    pipeline_close(p);
}

/* Nothing of it is brought back with a stage that is replaced, and those that follow in its blocks,
 * in the new process and in the old ones, have their bits. */
static void stages_are_lost_after_it(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_of(bad_path, 3, NULL);
    for (uint32_t stage = 0; stage < 3; stage++) {
        others o;
        stage_snapshot t;
        uint32_t next, n = (uint32_t)pipeline_recoveries(p, 0, NULL, 0);
        session *s = primed(p, 0, false, &next);
        others_begin(&o, p);
        ended(session_step(s, spoiled, NULL, &next, &e), &e, "stage 0", N_PROMPT);
        errmsg_clear(&e);
        pipeline_stage(p, stage, &t);
        kill(t.pid, SIGKILL);
        session_drop(s);
        others_end(&o);
        while (pipeline_recoveries(p, 0, NULL, 0) == n) usleep(1000);
    }
    OK(pipeline_check(p, &e));
    pipeline_close(p);
}

/* --- ids -------------------------------------------------------------------------------------- */

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    errmsg e = {0};
    uint32_t tokens[2] = {1, N_VOCAB}, next;
    const generate_limits l = {.n_max = 4};
    pending *w;
    generation *g;
    pipeline *p = open_of(model_path, 2, NULL);
    session *s = open_session(p, 0, false);
    assert_int_equal(session_prime(s, tokens, 2, NULL, NULL, &e), ST_USAGE);
    assert_non_null(strstr(e.text, "token 320 at place 1 is not in the vocabulary of 320"));
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t id = i == 0 ? N_VOCAB : UINT32_MAX;
        errmsg_clear(&e);
        assert_int_equal(session_step(s, id, NULL, &next, &e), ST_USAGE);
        assert_int_equal(session_step_deferred(s, id, &w, &e), ST_USAGE);
        assert_int_equal(session_generate(s, id, &l, &g, &e), ST_USAGE);
    }
    assert_int_equal(session_position(s), 0);
    session_drop(s);
    pipeline_close(p);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_ends_and_the_others_go_on),
        cmocka_unit_test(found_by_a_later_stage),
        cmocka_unit_test(logits_that_are_not_finite),
        cmocka_unit_test(a_row_among_drafts_has_another_try),
        cmocka_unit_test(a_draft_that_was_wrong_is_no_reason),
        cmocka_unit_test(a_shared_prefix_is_not_handed_on),
        cmocka_unit_test(stages_are_lost_after_it),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
