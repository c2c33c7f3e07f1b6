/* Walks of the whole model on stage 0: they are made and give the bits of one stage, beside split
 * ones of the same sessions, with forks, windows, drafts and lost stages. */
#include "tests/support/tap.h"

#include "tests/support/ok.h"
#include "tests/support/small_run.h"
#include "tests/support/walks.h"

#include <stdio.h>
#include <string.h>

static pipeline *open_with(const walks_model *m, uint32_t n_stages, const char *faults)
{
    return walks_pipeline(m, &(walks_place){.n_stages = n_stages, .faults = faults});
}

static uint64_t n_unsplit(const pipeline *p)
{
    stage_snapshot s;
    pipeline_stage(p, 0, &s);
    return s.n_unsplit;
}

static void nobody_lends_unasked(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d = doors_default();
    const step_doors split = d.step;
    d.n_stages = 2;
    pipeline_options o = small_options(walks_llama.path, walks_dir(), &d);
    pipeline *p = small_open(&o);
    step_doors prime = d.step;
    prime.prime_pp = false;
    assert_int_equal(pipeline_set_step_doors(p, &prime, &e), ST_USAGE);
    OK(pipeline_set_step_doors(p, &d.step, &e));
    pipeline_close(p);
    /* By the doors that it is opened with, it does. */
    d.step.prime_pp = false;
    o = small_options(walks_llama.path, walks_dir(), &d);
    p = small_open(&o);
    OK(pipeline_set_step_doors(p, &split, &e));
    OK(pipeline_set_step_doors(p, &prime, &e));
    pipeline_close(p);
}

static void paths_of(walks_model *m, uint32_t n_stages)
{
    const generate_limits drafts = walks_drafting(m);
    pipeline *p = open_with(m, n_stages, "");
    for (uint32_t i = 0; i < 8; i++) {
        bool batch = i & 1, spec = i & 2, prime_ = i & 4;
        session *s = small_session(p);
        uint64_t n[4] = {n_unsplit(p)};
        walks_set(p, batch, spec, prime_);
        assert_int_equal(walks_prime(m, s, 0, WALKS_PROMPT), m->drawn[0]);
        n[1] = n_unsplit(p);
        walks_step(m, s, 0);
        walks_generate(m, s, 1, 20, NULL);
        n[2] = n_unsplit(p);
        walks_generate(m, s, 21, 20, &drafts);
        n[3] = n_unsplit(p);
        assert_int_equal(n[1] > n[0], !prime_);
        assert_int_equal(n[2] > n[1], !batch);
        assert_true(spec || n[3] > n[2]);
        assert_true(!spec || !batch || n[3] == n[2]);
        session_drop(s);
    }
    pipeline_close(p);
}

static void every_path_walks_unsplit(void **state)
{
    (void)state;
    paths_of(&walks_llama, 2);
    paths_of(&walks_llama, 4);
    paths_of(&walks_gemma, 3);
}

/* The others walked nothing of it, and rows crossed all the same. */
static void others_hand_rows_on(void **state)
{
    (void)state;
    pipeline *p = open_with(&walks_llama, 3, "");
    session *s = small_session(p);
    walks_set(p, false, false, false);
    walks_prime(&walks_llama, s, 0, WALKS_PROMPT);
    walks_step(&walks_llama, s, 0);
    for (uint32_t i = 0; i < 3; i++) {
        stage_snapshot x;
        pipeline_stage(p, i, &x);
        assert_int_equal(x.n_rows, i == 0 ? WALKS_PROMPT + 1 : 0);
        assert_int_equal(x.n_unsplit > 0, i == 0);
        assert_int_equal(x.n_chunks > 0, i == 0);
        if (i < 2) assert_int_equal(x.tx_rows, WALKS_PROMPT + 1);
        assert_true(x.n_steps > 0);
    }
    session_drop(s);
    pipeline_close(p);
}

static void steps_flip(const walks_model *m, uint32_t n_stages)
{
    errmsg e = {0};
    pipeline *p = open_with(m, n_stages, "");
    session *s = small_session(p), *child;
    for (uint32_t at = 0, i = 0; at < WALKS_PROMPT; i++) {
        uint32_t n = 1 + i * 17 % 40, end = at + n < WALKS_PROMPT ? at + n : WALKS_PROMPT;
        walks_set(p, true, true, i % 2 == 0);
        walks_prime(m, s, at, end);
        at = end;
    }
    for (uint32_t k = 0; k < 20; k++) {
        walks_set(p, k % 3 != 0, true, true);
        walks_step(m, s, k);
    }
    /* The fork copies a block that was written both ways; both go on differently from there. */
    OK(session_fork(s, &child, &e));
    walks_set(p, false, true, false);
    for (uint32_t k = 20; k < 40; k++)
        walks_step(m, child, k);
    walks_set(p, true, true, true);
    for (uint32_t k = 20; k < 30; k++)
        walks_step(m, s, k);
    /* What an unsplit prompt writes anew is what split decode reads. */
    OK(session_truncate(s, 70, &e));
    walks_set(p, true, true, false);
    walks_prime(m, s, 70, WALKS_PROMPT);
    for (uint32_t k = 0; k < 5; k++)
        walks_step(m, s, k);
    session_drop(s);
    walks_set(p, true, true, true);
    for (uint32_t k = 40; k < 50; k++)
        walks_step(m, child, k);
    session_drop(child);
    pipeline_close(p);
}

static void doors_flip_between_steps(void **state)
{
    (void)state;
    steps_flip(&walks_llama, 2);
    steps_flip(&walks_llama, 3);
    steps_flip(&walks_gemma, 2);
    steps_flip(&walks_gemma, 4);
}

/* Split prompts beside unsplit generations, and the other way round: each gets its turn. */
static void both_kinds_take_turns(void **state)
{
    (void)state;
    for (int unsplit_prompts = 0; unsplit_prompts <= 1; unsplit_prompts++) {
        errmsg e = {0};
        pipeline *p = open_with(&walks_llama, 3, "");
        session *a = small_session(p), *b = small_session(p);
        generation *g;
        uint32_t token, n = 0;
        walks_set(p, unsplit_prompts != 0, true, unsplit_prompts == 0);
        walks_prime(&walks_llama, a, 0, WALKS_PROMPT);
        OK(session_generate(a, walks_llama.drawn[0], &(generate_limits){.n_max = WALKS_TOKENS}, &g,
                            &e));
        for (int i = 0; i < 4;
             i++) { /* would stand still while the generation always comes first */
            walks_prime(&walks_llama, b, 0, WALKS_PROMPT);
            OK(session_truncate(b, 0, &e));
        }
        for (; n < WALKS_TOKENS; n++) {
            OK(generation_next(g, &token, &e));
            assert_int_equal(token, walks_llama.drawn[n + 1]);
        }
        OK(generation_close(g, &e));
        session_drop(a);
        session_drop(b);
        pipeline_close(p);
    }
}

/* --- lost stages
 * -------------------------------------------------------------------------------------- */

static void one_is_lost(walks_model *m, uint32_t n_stages, uint32_t victim, const char *at)
{
    const generate_limits drafts = walks_drafting(m);
    char broken[96];
    errmsg e = {0};
    snprintf(broken, sizeof broken, "stage=%u,at=%s,kind=kill", victim, at);
    pipeline *p = open_with(m, n_stages, broken);
    session *s = small_session(p), *split = small_session(p);
    walks_set(p, true, true, true);
    if (strcmp(at, "decode") == 0) walks_prime(m, split, 0, WALKS_PROMPT);
    walks_set(p, false, false, false);
    walks_prime(m, s, 0, WALKS_PROMPT);
    for (uint32_t k = 0; k < 5; k++)
        walks_step(m, s, k);
    walks_generate(m, s, 5, 20, NULL);
    walks_generate(m, s, 25, 12, &drafts);
    assert_int_equal(pipeline_recoveries(p, 0, NULL, 0), 1);
    /* What was walked unsplit is there for the others too, and what was split is still there. */
    walks_set(p, true, true, true);
    for (uint32_t k = 37; k < 45; k++)
        walks_step(m, s, k);
    if (strcmp(at, "decode") != 0) walks_prime(m, split, 0, WALKS_PROMPT);
    for (uint32_t k = 0; k < 5; k++)
        walks_step(m, split, k);
    OK(pipeline_check(p, &e));
    session_drop(s);
    session_drop(split);
    pipeline_close(p);
}

static void whoever_is_lost_nothing_is(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        one_is_lost(&walks_llama, 3, victim, "prime");
        one_is_lost(&walks_llama, 3, victim, "decode");
        one_is_lost(&walks_gemma, 3, victim, "decode");
    }
}

/* The rows of an unsplit prompt are in no journal: whoever is lost afterwards has them from tokens.
 */
static void split_steps_after_it_survive_a_loss(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        char broken[64];
        snprintf(broken, sizeof broken, "stage=%u,at=decode,kind=kill", victim);
        pipeline *p = open_with(&walks_llama, 3, broken);
        session *s = small_session(p);
        /* The blocks were another's first, whose rows are in the journal. */
        errmsg e = {0};
        uint32_t other[WALKS_PROMPT], next;
        for (uint32_t i = 0; i < WALKS_PROMPT; i++)
            other[i] = (walks_prompt[i] + 1) % WALKS_VOCAB;
        walks_set(p, true, true, true);
        OK(session_prime(s, other, WALKS_PROMPT, NULL, &next, &e));
        session_drop(s);
        s = small_session(p);
        walks_set(p, true, true, false);
        walks_prime(&walks_llama, s, 0, WALKS_PROMPT);
        for (uint32_t k = 0; k < 10; k++)
            walks_step(&walks_llama, s, k);
        recovery_record r;
        assert_int_equal(pipeline_recoveries(p, 0, &r, 1), 1);
        assert_int_equal(r.through, victim != 0); /* no journal has the rows */
        session_drop(s);
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_lends_unasked),
        cmocka_unit_test(every_path_walks_unsplit),
        cmocka_unit_test(others_hand_rows_on),
        cmocka_unit_test(doors_flip_between_steps),
        cmocka_unit_test(both_kinds_take_turns),
        cmocka_unit_test(whoever_is_lost_nothing_is),
        cmocka_unit_test(split_steps_after_it_survive_a_loss),
    };
    return cmocka_run_group_tests(tests, walks_open, walks_close);
}
