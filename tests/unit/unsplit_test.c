/* Walks of the whole model on stage 0: where they are allowed, that they are made and give the bits of
 * one stage, beside split ones of the same sessions, with forks, windows, drafts and lost stages; and the
 * same with all weights on stage 0. */
#include "tests/support/tap.h"

#include "coordinator/machine/unsplit.h"
#include "coordinator/pipeline.h"
#include "tests/support/small_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 320u
#define N_CTX 260u
#define N_PROMPT 150u
#define N_TOKENS 60u /* drawn after it */
#define CHUNK 32u

static char dir[] = "/tmp/memra-u.XXXXXX";

typedef struct {
    const char *arch;
    char path[64];
    float *logits;                /* [N_PROMPT + N_TOKENS, N_VOCAB] */
    uint32_t drawn[N_TOKENS + 1]; /* after the prompt */
} model;
static model llama = {.arch = "llama"}, gemma = {.arch = "gemma3"}; /* the latter with a window of 24 */
static uint32_t prompt[N_PROMPT];

#define OK(expr)                                                                                   \
    do {                                                                                           \
        errmsg_clear(&e);                                                                          \
        if ((expr) != ST_OK) fail_msg("%s: %s", #expr, e.text);                                    \
    } while (0)

static pipeline *open_placed(const model *m, uint32_t n_stages, bool shard, const char *faults)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    d.shard = shard;
    snprintf(d.fault_text, sizeof d.fault_text, "%s", faults);
    pipeline_options o = small_options(m->path, dir, &d);
    o.plan.n_sessions = 3;
    o.plan.n_ctx = N_CTX;
    o.plan.n_chunk = CHUNK;
    o.plan.journal_bytes = PLAN_JOURNAL_ALL;
    o.unsplit = true;
    return small_open(&o);
}

static pipeline *open_with(const model *m, uint32_t n_stages, const char *faults)
{
    return open_placed(m, n_stages, true, faults);
}

static float *row_of(const model *m, uint32_t position)
{
    return m->logits + (size_t)position * N_VOCAB;
}

static void make_model(model *m)
{
    errmsg e = {0};
    snprintf(m->path, sizeof m->path, "%s/%s.gguf", dir, m->arch);
    llama_spec spec = llama_spec_arch(m->arch);
    if (spec.n_layers < 4) spec.n_layers = 4;
    spec.n_ctx = N_CTX;
    spec.n_vocab = N_VOCAB;
    small_model(m->path, &spec);
    m->logits = malloc((N_PROMPT + N_TOKENS) * N_VOCAB * sizeof *m->logits);
    assert_non_null(m->logits);
    pipeline *p = open_with(m, 1, "");
    session *s = small_session(p);
    OK(session_prime(s, prompt, N_PROMPT, m->logits, &m->drawn[0], &e));
    for (uint32_t k = 0; k < N_TOKENS; k++)
        OK(session_step(s, m->drawn[k], row_of(m, N_PROMPT + k), &m->drawn[k + 1], &e));
    session_drop(s);
    pipeline_close(p);
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) return 1;
    for (uint32_t i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + 11) % N_VOCAB;
    make_model(&llama);
    make_model(&gemma);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(llama.logits);
    free(gemma.logits);
    unlink(llama.path);
    unlink(gemma.path);
    return rmdir(dir); /* not empty: a run directory was left behind */
}

/* --- where it is allowed --------------------------------------------------------------------------- */

#define GPU(ordinal, uuid) "gpu " ordinal " GPU-" uuid "-0000-0000-0000-000000000000 9.0 15000 14000 shared H\n"

/* Two, one of which has two numbers. */
static gpu_list two_gpus(const char *link)
{
    char text[1024];
    gpu_list l;
    errmsg e = {0};
    int n = snprintf(text, sizeof text, "cuda 3\n%s%s%s", GPU("0", "aaaaaaaa"), GPU("1", "bbbbbbbb"),
                     GPU("2", "aaaaaaaa"));
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            if (from != to)
                n += snprintf(text + n, sizeof text - (size_t)n, "link %d %d %s\n", from, to, link);
    OK(gpus_parse(&l, text, &e));
    return l;
}

static plan on(device_door a, device_door b)
{
    return (plan){.cuts = {.n_stages = 2}, .stage = {{.device = a}, {.device = b}}};
}

static const step_doors whole = {.batch_pp = true, .spec_pp = true, .prime_pp = true};

static void expect(const plan *p, const gpu_list *gpus, step_doors d, const char *door, const char *why)
{
    errmsg e = {0};
    doors named = doors_default();
    status s = unsplit_check(p, gpus, &named, &d, &e);
    if (door == NULL) {
        if (s != ST_OK) fail_msg("%s", e.text);
        return;
    }
    assert_int_equal(s, ST_BAD_DOOR);
    if (strstr(e.text, door) == NULL || strstr(e.text, why) == NULL) fail_msg("%s", e.text);
}

static void one_device_allows_all(void **state)
{
    (void)state;
    const gpu_list none = {0}, gpus = two_gpus("none");
    step_doors nothing_split = {0};
    const device_door cpu = {.kind = DEVICE_CPU}, node = {DEVICE_CPU_NODE, 1}, zero = {DEVICE_CUDA, 0},
                      same = {DEVICE_CUDA, 2}; /* by another number */
    plan p = on(cpu, cpu), q = on(node, node), r = on(zero, same);
    expect(&p, &none, nothing_split, NULL, NULL);
    expect(&q, &none, nothing_split, NULL, NULL);
    expect(&r, &gpus, nothing_split, NULL, NULL);
    assert_true(unsplit_possible(&p, &none) && unsplit_possible(&r, &gpus));
    p.cuts.n_stages = 1;
    expect(&p, &none, nothing_split, NULL, NULL);
}

static void several_devices_allow_prompts(void **state)
{
    (void)state;
    const gpu_list gpus = two_gpus("nvlink"), apart = two_gpus("none");
    const device_door zero = {DEVICE_CUDA, 0}, one = {DEVICE_CUDA, 1}, cpu = {.kind = DEVICE_CPU};
    const device_door node = {DEVICE_CPU_NODE, 0}, other = {DEVICE_CPU_NODE, 1};
    plan p = on(zero, one), q = on(node, other), mixed = on(zero, cpu);
    step_doors batch = whole, spec = whole, prime = whole;
    batch.batch_pp = spec.spec_pp = prime.prime_pp = false;
    const plan *several[] = {&p, &q};
    for (size_t i = 0; i < 2; i++) {
        expect(several[i], &gpus, whole, NULL, NULL);
        expect(several[i], &gpus, prime, NULL, NULL);
        expect(several[i], &gpus, batch, "MEMRA_BATCH_PP=0 asks for batched decode",
               "MEMRA_PP_ALLOW_UNSPLIT_BATCH=1");
        expect(several[i], &gpus, spec, "MEMRA_SPEC_PP=0 asks for speculation", "stage 1 on another device");
        batch.allow_unsplit_batch = true;
        expect(several[i], &gpus, batch, NULL, NULL);
        batch.allow_unsplit_batch = false;
    }
    assert_true(unsplit_possible(&p, &gpus));
    /* Nothing helps where the memory cannot be reached. */
    batch.allow_unsplit_batch = true;
    expect(&p, &apart, prime, "MEMRA_PRIME_PP=0 asks for prompts", "cannot reach");
    expect(&p, &apart, batch, "MEMRA_BATCH_PP=0", "cannot reach");
    expect(&mixed, &gpus, prime, "MEMRA_PRIME_PP=0", "one kind");
    assert_false(unsplit_possible(&mixed, &gpus) || unsplit_possible(&p, &apart));
    /* Nor can weights be read there. */
    errmsg e = {0};
    doors named = doors_default();
    OK(unsplit_check_shard(&mixed, &gpus, &named, &e)); /* they lie with each stage */
    p.gathered = mixed.gathered = true;
    OK(unsplit_check_shard(&p, &gpus, &named, &e));
    assert_int_equal(unsplit_check_shard(&p, &apart, &named, &e), ST_BAD_DOOR);
    errmsg_clear(&e);
    assert_int_equal(unsplit_check_shard(&mixed, &gpus, &named, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "MEMRA_PP_SHARD=0 puts all weights on the device of stage 0"));
}

static void nobody_lends_unasked(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = 2;
    pipeline_options o = small_options(llama.path, dir, &d);
    pipeline *p = small_open(&o);
    step_doors prime = d.step;
    prime.prime_pp = false;
    assert_int_equal(pipeline_set_step_doors(p, &prime, &e), ST_USAGE);
    OK(pipeline_set_step_doors(p, &d.step, &e));
    pipeline_close(p);
    /* By the doors that it is opened with, it does. */
    d.step.prime_pp = false;
    o = small_options(llama.path, dir, &d);
    p = small_open(&o);
    OK(pipeline_set_step_doors(p, &whole, &e));
    OK(pipeline_set_step_doors(p, &prime, &e));
    pipeline_close(p);
}

/* --- walks ------------------------------------------------------------------------------------------ */

static void set(pipeline *p, bool batch, bool spec, bool prime)
{
    errmsg e = {0};
    step_doors d = doors_default().step;
    d.batch_pp = batch;
    d.spec_pp = spec;
    d.prime_pp = prime;
    OK(pipeline_set_step_doors(p, &d, &e));
}

static uint64_t n_unsplit(const pipeline *p)
{
    stage_snapshot s;
    pipeline_stage(p, 0, &s);
    return s.n_unsplit;
}

static void same_rows(const model *m, const float *got, uint32_t position, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(got + (size_t)i * N_VOCAB, row_of(m, position + i), N_VOCAB * sizeof *got) != 0)
            fail_msg("%s: row %u differs", m->arch, position + i);
}

/* Prompt positions [begin, end), compared; the token after the last. */
static uint32_t prime(const model *m, session *s, uint32_t begin, uint32_t end)
{
    errmsg e = {0};
    uint32_t next;
    float *got = calloc((end - begin) * N_VOCAB, sizeof *got);
    assert_non_null(got);
    OK(session_prime(s, prompt + begin, end - begin, got, &next, &e));
    same_rows(m, got, begin, end - begin);
    free(got);
    return next;
}

/* Token k after the prompt as a step. */
static void step(const model *m, session *s, uint32_t k)
{
    errmsg e = {0};
    float got[N_VOCAB];
    uint32_t next;
    OK(session_step(s, m->drawn[k], got, &next, &e));
    same_rows(m, got, N_PROMPT + k, 1);
    assert_int_equal(next, m->drawn[k + 1]);
}

static void generate(const model *m, session *s, uint32_t from, uint32_t n, generate_limits limits)
{
    errmsg e = {0};
    generation *g;
    uint32_t token;
    limits.n_max = n;
    OK(session_generate(s, m->drawn[from], &limits, &g, &e));
    for (uint32_t k = 0; k < n; k++) {
        OK(generation_next(g, &token, &e));
        assert_int_equal(token, m->drawn[from + 1 + k]);
    }
    OK(generation_close(g, &e));
}

/* What was drawn, every fifth token another. */
static uint32_t guess(void *ctx, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room)
{
    const model *m = ctx;
    (void)tokens;
    for (uint32_t k = 0; k < room; k++) {
        uint64_t at = n - N_PROMPT + k;
        out[k] = at <= N_TOKENS ? (m->drawn[at] + (at % 5 == 0)) % N_VOCAB : 0;
    }
    return room;
}

static generate_limits drafting(model *m)
{
    return (generate_limits){.n_draft = 3, .draft_always = true, .draft = guess, .draft_ctx = m};
}

/* Every path, this one unsplit: the number of its steps goes up, nothing else's does. */
static void paths_of(model *m, uint32_t n_stages)
{
    pipeline *p = open_with(m, n_stages, "");
    for (uint32_t i = 0; i < 8; i++) {
        bool batch = i & 1, spec = i & 2, prime_ = i & 4;
        session *s = small_session(p);
        uint64_t n[4] = {n_unsplit(p)};
        set(p, batch, spec, prime_);
        assert_int_equal(prime(m, s, 0, N_PROMPT), m->drawn[0]);
        n[1] = n_unsplit(p);
        step(m, s, 0);
        generate(m, s, 1, 20, (generate_limits){0});
        n[2] = n_unsplit(p);
        generate(m, s, 21, 20, drafting(m));
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
    paths_of(&llama, 2);
    paths_of(&llama, 4);
    paths_of(&gemma, 3);
}

/* The others walked nothing of it, and rows crossed all the same. */
static void others_hand_rows_on(void **state)
{
    (void)state;
    pipeline *p = open_with(&llama, 3, "");
    session *s = small_session(p);
    set(p, false, false, false);
    prime(&llama, s, 0, N_PROMPT);
    step(&llama, s, 0);
    for (uint32_t i = 0; i < 3; i++) {
        stage_snapshot x;
        pipeline_stage(p, i, &x);
        assert_int_equal(x.n_rows, i == 0 ? N_PROMPT + 1 : 0);
        assert_int_equal(x.n_unsplit > 0, i == 0);
        assert_int_equal(x.n_chunks > 0, i == 0);
        if (i < 2) assert_int_equal(x.tx_rows, N_PROMPT + 1);
        assert_true(x.n_steps > 0);
    }
    session_drop(s);
    pipeline_close(p);
}

static void steps_flip(const model *m, uint32_t n_stages)
{
    errmsg e = {0};
    pipeline *p = open_with(m, n_stages, "");
    session *s = small_session(p), *child;
    for (uint32_t at = 0, i = 0; at < N_PROMPT; i++) {
        uint32_t n = 1 + i * 17 % 40, end = at + n < N_PROMPT ? at + n : N_PROMPT;
        set(p, true, true, i % 2 == 0);
        prime(m, s, at, end);
        at = end;
    }
    for (uint32_t k = 0; k < 20; k++) {
        set(p, k % 3 != 0, true, true);
        step(m, s, k);
    }
    /* The fork copies a block that was written both ways; both go on differently from there. */
    OK(session_fork(s, &child, &e));
    set(p, false, true, false);
    for (uint32_t k = 20; k < 40; k++) step(m, child, k);
    set(p, true, true, true);
    for (uint32_t k = 20; k < 30; k++) step(m, s, k);
    /* What an unsplit prompt writes anew is what split decode reads. */
    OK(session_truncate(s, 70, &e));
    set(p, true, true, false);
    prime(m, s, 70, N_PROMPT);
    for (uint32_t k = 0; k < 5; k++) step(m, s, k);
    session_drop(s);
    set(p, true, true, true);
    for (uint32_t k = 40; k < 50; k++) step(m, child, k);
    session_drop(child);
    pipeline_close(p);
}

static void doors_flip_between_steps(void **state)
{
    (void)state;
    steps_flip(&llama, 2);
    steps_flip(&llama, 3);
    steps_flip(&gemma, 2);
    steps_flip(&gemma, 4);
}

/* Split prompts beside unsplit generations, and the other way round: each gets its turn. */
static void both_kinds_take_turns(void **state)
{
    (void)state;
    for (int unsplit_prompts = 0; unsplit_prompts <= 1; unsplit_prompts++) {
        errmsg e = {0};
        pipeline *p = open_with(&llama, 3, "");
        session *a = small_session(p), *b = small_session(p);
        generation *g;
        uint32_t token, n = 0;
        set(p, unsplit_prompts != 0, true, unsplit_prompts == 0);
        prime(&llama, a, 0, N_PROMPT);
        OK(session_generate(a, llama.drawn[0], &(generate_limits){.n_max = N_TOKENS}, &g, &e));
        for (int i = 0; i < 4; i++) { /* would stand still while the generation always comes first */
            prime(&llama, b, 0, N_PROMPT);
            OK(session_truncate(b, 0, &e));
        }
        for (; n < N_TOKENS; n++) {
            OK(generation_next(g, &token, &e));
            assert_int_equal(token, llama.drawn[n + 1]);
        }
        OK(generation_close(g, &e));
        session_drop(a);
        session_drop(b);
        pipeline_close(p);
    }
}

/* --- lost stages -------------------------------------------------------------------------------------- */

static void one_is_lost(model *m, uint32_t n_stages, uint32_t victim, const char *at)
{
    char broken[96];
    errmsg e = {0};
    snprintf(broken, sizeof broken, "stage=%u,at=%s,kind=kill", victim, at);
    pipeline *p = open_with(m, n_stages, broken);
    session *s = small_session(p), *split = small_session(p);
    set(p, true, true, true);
    if (strcmp(at, "decode") == 0) prime(m, split, 0, N_PROMPT);
    set(p, false, false, false);
    prime(m, s, 0, N_PROMPT);
    for (uint32_t k = 0; k < 5; k++) step(m, s, k);
    generate(m, s, 5, 20, (generate_limits){0});
    generate(m, s, 25, 12, drafting(m));
    assert_int_equal(pipeline_recoveries(p, 0, NULL, 0), 1);
    /* What was walked unsplit is there for the others too, and what was split is still there. */
    set(p, true, true, true);
    for (uint32_t k = 37; k < 45; k++) step(m, s, k);
    if (strcmp(at, "decode") != 0) prime(m, split, 0, N_PROMPT);
    for (uint32_t k = 0; k < 5; k++) step(m, split, k);
    OK(pipeline_check(p, &e));
    session_drop(s);
    session_drop(split);
    pipeline_close(p);
}

static void whoever_is_lost_nothing_is(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        one_is_lost(&llama, 3, victim, "prime");
        one_is_lost(&llama, 3, victim, "decode");
        one_is_lost(&gemma, 3, victim, "decode");
    }
}

/* The rows of an unsplit prompt are in no journal: whoever is lost afterwards has them from tokens. */
static void split_steps_after_it_survive_a_loss(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        char broken[64];
        snprintf(broken, sizeof broken, "stage=%u,at=decode,kind=kill", victim);
        pipeline *p = open_with(&llama, 3, broken);
        session *s = small_session(p);
        /* The blocks were another's first, whose rows are in the journal. */
        errmsg e = {0};
        uint32_t other[N_PROMPT], next;
        for (uint32_t i = 0; i < N_PROMPT; i++) other[i] = (prompt[i] + 1) % N_VOCAB;
        set(p, true, true, true);
        OK(session_prime(s, other, N_PROMPT, NULL, &next, &e));
        session_drop(s);
        s = small_session(p);
        set(p, true, true, false);
        prime(&llama, s, 0, N_PROMPT);
        for (uint32_t k = 0; k < 10; k++) step(&llama, s, k);
        recovery_record r;
        assert_int_equal(pipeline_recoveries(p, 0, &r, 1), 1);
        assert_int_equal(r.through, victim != 0); /* no journal has the rows */
        session_drop(s);
        pipeline_close(p);
    }
}

/* --- all weights on stage 0 --------------------------------------------------------------------------- */

static void walk_both_ways(model *m, pipeline *p)
{
    session *s = small_session(p);
    set(p, true, true, true);
    prime(m, s, 0, 70);
    set(p, true, true, false);
    prime(m, s, 70, N_PROMPT);
    for (uint32_t k = 0; k < 20; k++) {
        set(p, k % 3 != 0, true, true);
        step(m, s, k);
    }
    generate(m, s, 20, 12, drafting(m));
    session_drop(s);
}

static void all_weights_lie_on_the_first(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        pipeline *apart = open_with(&gemma, n, ""), *p = open_placed(&gemma, n, false, "");
        uint64_t sum = 0;
        stage_snapshot x;
        for (uint32_t i = 0; i < n; i++) {
            pipeline_stage(apart, i, &x);
            assert_true(x.weights_bytes > 0);
            sum += x.weights_bytes;
            pipeline_stage(p, i, &x);
            assert_int_equal(x.weights_bytes > 0, i == 0);
            assert_int_equal(pipeline_plan(p)->stage[i].weights_bytes, x.weights_bytes);
        }
        pipeline_stage(p, 0, &x);
        assert_int_equal(x.weights_bytes, sum);
        assert_int_equal(pipeline_plan(p)->weights_total_bytes, pipeline_plan(apart)->weights_total_bytes);
        assert_true(pipeline_plan(p)->gathered && !pipeline_plan(apart)->gathered);
        walk_both_ways(&gemma, p);
        pipeline_close(apart);
        pipeline_close(p);
    }
    pipeline *one = open_placed(&llama, 1, false, ""); /* nothing is elsewhere */
    assert_false(pipeline_plan(one)->gathered);
    pipeline_close(one);
    pipeline *p = open_placed(&llama, 3, false, "");
    walk_both_ways(&llama, p);
    pipeline_close(p);
}

static void the_first_takes_the_others_with_it(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        char broken[64];
        errmsg e = {0};
        recovery_record r[8];
        snprintf(broken, sizeof broken, "stage=%u,at=decode,kind=kill", victim);
        pipeline *p = open_placed(&llama, 3, false, broken);
        walk_both_ways(&llama, p);
        assert_int_equal(pipeline_recoveries(p, 0, r, 8), victim == 0 ? 3 : 1);
        for (uint32_t i = 0; i < 3; i++) {
            stage_snapshot x;
            pipeline_stage(p, i, &x);
            assert_int_equal(x.n_lost, victim == 0 || victim == i);
            if (victim == 0 && i > 0) assert_non_null(strstr(x.last_fault, "ends with its weights: stage 0"));
        }
        walk_both_ways(&llama, p);
        OK(pipeline_check(p, &e));
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_allows_all),
        cmocka_unit_test(several_devices_allow_prompts),
        cmocka_unit_test(nobody_lends_unasked),
        cmocka_unit_test(every_path_walks_unsplit),
        cmocka_unit_test(others_hand_rows_on),
        cmocka_unit_test(doors_flip_between_steps),
        cmocka_unit_test(both_kinds_take_turns),
        cmocka_unit_test(whoever_is_lost_nothing_is),
        cmocka_unit_test(split_steps_after_it_survive_a_loss),
        cmocka_unit_test(all_weights_lie_on_the_first),
        cmocka_unit_test(the_first_takes_the_others_with_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
