/* The planned cuts against formulas and against brute force over every legal set of cuts, on models
 * described by hand. */
#include "tests/support/tap.h"
#include "common/fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model whose layer il has layer_bytes[il] in two tensors. */
typedef struct {
    model_desc m;
    gguf_tensor q[LAYERS_MAX], down[LAYERS_MAX], embd, norm, head, factors;
} fake_model;

static fake_model *fake(uint32_t n_layers, const uint64_t *layer_bytes)
{
    fake_model *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->m.arch = "llama"; /* whose layers have the two tensors used here */
    f->m.n_layers = n_layers;
    for (uint32_t il = 0; il < n_layers; il++) {
        uint64_t bytes = layer_bytes != NULL ? layer_bytes[il] : 100;
        f->q[il].bytes = bytes / 3;
        f->down[il].bytes = bytes - bytes / 3;
        f->m.layer[il].attn_q.t = &f->q[il];
        f->m.layer[il].ffn_down.t = &f->down[il];
    }
    f->m.token_embd.t = &f->embd;
    f->m.output_norm.t = &f->norm;
    f->m.output.t = &f->head;
    return f;
}

static void tie(fake_model *f)
{
    f->m.tied = true;
    f->m.output = f->m.token_embd;
}

static doors doors_of(uint32_t n_stages, splits_kind splits)
{
    doors d = doors_default();
    d.n_stages = n_stages;
    d.stages_set = n_stages > 1;
    d.splits = splits;
    return d;
}

static doors doors_list(uint32_t n_cuts, const uint32_t *cuts)
{
    doors d = doors_of(n_cuts + 1, SPLITS_LIST);
    d.n_cuts = n_cuts;
    memcpy(d.cut, cuts, n_cuts * sizeof *cuts);
    return d;
}
#define LIST(...)                                                                                  \
    doors_list(sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[]){__VA_ARGS__})

static fence good(const doors *d, const model_desc *m)
{
    fence f;
    errmsg e = {0};
    if (fence_plan(&f, d, m, &e) != ST_OK) fail_msg("refused: %s", e.text);
    assert_int_equal(f.n_stages, d->n_stages);
    assert_int_equal(f.at[0], 0);
    assert_int_equal(f.at[f.n_stages], m->n_layers);
    for (uint32_t s = 0; s < f.n_stages; s++) {
        assert_true(f.at[s] < f.at[s + 1]);
        if (s > 0) assert_false(m->cut_forbidden[f.at[s]]);
    }
    return f;
}

static void bad(doors d, const model_desc *m, const char *const *parts)
{
    fence f;
    errmsg e = {0};
    if (fence_plan(&f, &d, m, &e) != ST_BAD_DOOR) fail_msg("not refused");
    assert_int_equal(f.n_stages, 1);
    assert_int_equal(f.at[0], 0);
    assert_int_equal(f.at[1], m->n_layers);
    assert_true(strlen(e.text) < sizeof e.text - 1);
    assert_non_null(strstr(e.text, "; rule: "));
    for (; *parts != NULL; parts++) {
        if (strstr(e.text, *parts) == NULL) fail_msg("no '%s' in: %s", *parts, e.text);
    }
}
#define BAD(d, m, ...) bad(d, m, (const char *const[]){__VA_ARGS__, NULL})

static void one_stage_has_every_layer(void **state)
{
    (void)state;
    static const splits_kind kinds[] = {SPLITS_EVEN, SPLITS_AUTO};
    static const uint32_t layers[] = {1, 5, LAYERS_MAX};
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < 3; j++) {
            fake_model *f = fake(layers[j], NULL);
            memset(f->m.cut_forbidden, true, sizeof f->m.cut_forbidden);
            doors d = doors_of(1, kinds[i]);
            fence e = good(&d, &f->m);
            assert_false(e.moved);
            free(f);
        }
    }
}

static void even_cuts_follow_the_formula(void **state)
{
    (void)state;
    for (uint32_t n_layers = 1; n_layers <= 80; n_layers++) {
        fake_model *f = fake(n_layers, NULL);
        for (uint32_t n = 1; n <= n_layers && n <= STAGES_MAX; n++) {
            doors d = doors_of(n, SPLITS_EVEN);
            fence e = good(&d, &f->m);
            for (uint32_t s = 0; s <= n; s++)
                assert_int_equal(e.at[s], s * n_layers / n);
            assert_false(e.moved);
        }
        free(f);
    }
}

static void even_cuts_move_off_forbidden_ones(void **state)
{
    (void)state;
    fake_model *f = fake(8, NULL);
    doors d = doors_of(4, SPLITS_EVEN); /* 2 4 6 */
    f->m.cut_forbidden[4] = true;
    fence e = good(&d, &f->m);
    assert_true(e.moved);
    assert_int_equal(e.at[1], 2);
    assert_int_equal(e.at[2], 3); /* 3 and 5 are as near: the earlier */
    assert_int_equal(e.at[3], 6);
    f->m.cut_forbidden[3] = true;
    e = good(&d, &f->m);
    assert_int_equal(e.at[2], 5);
    f->m.cut_forbidden[5] = true;
    e = good(&d, &f->m); /* 4 goes to 6, which pushes 6 on to 7 */
    assert_int_equal(e.at[1], 2);
    assert_int_equal(e.at[2], 6);
    assert_int_equal(e.at[3], 7);
    f->m.cut_forbidden[7] = true;
    e = good(&d, &f->m); /* only 1, 2 and 6 are left */
    assert_int_equal(e.at[1], 1);
    assert_int_equal(e.at[2], 2);
    assert_int_equal(e.at[3], 6);
    f->m.cut_forbidden[1] = true;
    BAD(d, &f->m, "MEMRA_PP_STAGES=\"4\"", "8 layers", "2 places");
    f->m.cut_forbidden[0] = true; /* says nothing: no cut stands there */
    d = doors_of(3, SPLITS_EVEN);
    good(&d, &f->m);
    free(f);
}

static void even_cuts_are_legal_whatever_is_forbidden(void **state)
{
    (void)state;
    srand(7);
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t n_layers = 1 + (uint32_t)rand() % 24, n_legal = 0;
        fake_model *f = fake(n_layers, NULL);
        for (uint32_t c = 1; c < n_layers; c++) {
            f->m.cut_forbidden[c] = rand() % 3 == 0;
            n_legal += !f->m.cut_forbidden[c];
        }
        uint32_t n = 1 + (uint32_t)rand() % n_layers;
        doors d = doors_of(n, SPLITS_EVEN);
        if (n - 1 > n_legal) {
            BAD(d, &f->m, "MEMRA_PP_STAGES", " only; rule: ");
        } else {
            fence e = good(&d, &f->m);
            bool off = false;
            for (uint32_t s = 1; s < n; s++)
                off = off || e.at[s] != s * n_layers / n;
            assert_int_equal(e.moved, off);
        }
        free(f);
    }
}

static void a_list_is_taken_as_it_is(void **state)
{
    (void)state;
    fake_model *f = fake(5, NULL);
    for (uint32_t a = 1; a < 5; a++) {
        doors d = LIST(a);
        fence e = good(&d, &f->m);
        assert_int_equal(e.at[1], a);
        for (uint32_t b = a + 1; b < 5; b++) {
            d = LIST(a, b);
            e = good(&d, &f->m);
            assert_int_equal(e.at[1], a);
            assert_int_equal(e.at[2], b);
            assert_false(e.moved);
        }
    }
    free(f);
}

static void a_list_refuses_cuts_outside_the_model(void **state)
{
    (void)state;
    fake_model *f = fake(5, NULL);
    BAD(LIST(0), &f->m, "MEMRA_PP_SPLITS=\"0\"", "cut 0", "first stage no layer", "5 layers");
    BAD(LIST(5), &f->m, "MEMRA_PP_SPLITS=\"5\"", "cut 5", "last stage no layer", "5 layers");
    BAD(LIST(2, 5), &f->m, "MEMRA_PP_SPLITS=\"2,5\"", "cut 5");
    BAD(LIST(2, 4294967295u), &f->m, "MEMRA_PP_SPLITS=\"2,4294967295\"", "cut 4294967295");
    free(f);
}

static void a_list_refuses_cuts_out_of_order(void **state)
{
    (void)state;
    fake_model *f = fake(5, NULL);
    BAD(LIST(2, 2), &f->m, "MEMRA_PP_SPLITS=\"2,2\"", "cut 2", "not above");
    BAD(LIST(3, 1), &f->m, "MEMRA_PP_SPLITS=\"3,1\"", "cut 1", "not above");
    free(f);
}

static void a_list_refuses_forbidden_cuts(void **state)
{
    (void)state;
    fake_model *f = fake(5, NULL);
    f->m.cut_forbidden[3] = true;
    BAD(LIST(1, 3), &f->m, "MEMRA_PP_SPLITS=\"1,3\"", "cut 3", "forbidden by the model");
    doors d = LIST(1, 4);
    good(&d, &f->m);
    free(f);
}

static void a_list_has_stages_minus_1_cuts(void **state)
{
    (void)state;
    fake_model *f = fake(9, NULL);
    doors d = LIST(1, 2, 3);
    d.n_stages = 3;
    BAD(d, &f->m, "MEMRA_PP_SPLITS=\"1,2,3\"", "3 cuts make 4 stages, not 3");
    d.n_stages = 5;
    BAD(d, &f->m, "3 cuts make 4 stages, not 5");
    d.n_cuts = 1000;
    BAD(d, &f->m, "1000 cuts");
    free(f);
}

static void the_older_spelling_and_flags_are_named(void **state)
{
    (void)state;
    fake_model *f = fake(5, NULL);
    doors d = LIST(7);
    d.split_old = true;
    BAD(d, &f->m, "MEMRA_PP_SPLIT=\"7\"", "cut 7");
    d.from_flag[DOOR_SPLIT] = true;
    BAD(d, &f->m, "--split=\"7\"", "cut 7");
    d = doors_of(6, SPLITS_EVEN);
    d.from_flag[DOOR_STAGES] = true;
    BAD(d, &f->m, "--stages=\"6\"", "6 stages", "5 layers");
    free(f);
}

static void never_more_stages_than_layers(void **state)
{
    (void)state;
    static const splits_kind kinds[] = {SPLITS_EVEN, SPLITS_AUTO};
    for (uint32_t n_layers = 1; n_layers < STAGES_MAX; n_layers++) {
        fake_model *f = fake(n_layers, NULL);
        char stages[32], layers[32];
        snprintf(stages, sizeof stages, "%u stages", n_layers + 1);
        snprintf(layers, sizeof layers, "%u layer%s;", n_layers, n_layers == 1 ? "" : "s");
        for (size_t i = 0; i < 2; i++) {
            BAD(doors_of(n_layers + 1, kinds[i]), &f->m, "MEMRA_PP_STAGES=\"", stages, layers);
            BAD(doors_of(STAGES_MAX, kinds[i]), &f->m, "\"64\"", "64 stages", layers);
        }
        free(f);
    }
}

static void stage_bytes_count_what_a_stage_holds(void **state)
{
    (void)state;
    static const uint64_t layers[] = {1000, 2000, 4000};
    fake_model *f = fake(3, layers);
    f->embd.bytes = 10;
    f->norm.bytes = 1;
    f->head.bytes = 20;
    fence one = {.n_stages = 1, .at = {0, 3}}, two = {.n_stages = 2, .at = {0, 1, 3}};
    fence three = {.n_stages = 3, .at = {0, 1, 2, 3}};
    assert_int_equal(fence_stage_bytes(&one, &f->m, 0), 7031);
    assert_int_equal(fence_stage_bytes(&two, &f->m, 0), 1010);
    assert_int_equal(fence_stage_bytes(&two, &f->m, 1), 6021);
    assert_int_equal(fence_stage_bytes(&three, &f->m, 1), 2000);
    f->factors.bytes = 5;
    f->m.rope.freq_factors.t = &f->factors;
    assert_int_equal(fence_stage_bytes(&three, &f->m, 1), 2005);
    f->m.rope.freq_factors.t = NULL;
    tie(f);
    assert_int_equal(fence_stage_bytes(&one, &f->m, 0), 7011);
    assert_int_equal(fence_stage_bytes(&two, &f->m, 0), 1010);
    assert_int_equal(fence_stage_bytes(&two, &f->m, 1), 6011);
    free(f);
}

/* Largest stage and sum of squares of f, in bytes that a step reads x cost (NULL: 1). */
typedef struct {
    uint64_t largest;
    double squares;
} worth;

static worth worth_of(const fence *f, const model_desc *m, const uint32_t *cost)
{
    worth w = {0};
    for (uint32_t s = 0; s < f->n_stages; s++) {
        uint64_t bytes = fence_step_bytes(f, m, s) * (cost != NULL ? cost[s] : 1);
        if (bytes > w.largest) w.largest = bytes;
        w.squares += (double)bytes * (double)bytes; /* exact: the models here are small */
    }
    return w;
}

/* Every legal fence in ascending order of cuts; keeps the best by (largest, squares, earliest). */
static void try_all(fence *f, uint32_t s, const model_desc *m, const uint32_t *cost, fence *best,
                    worth *best_worth)
{
    if (s == f->n_stages) {
        worth w = worth_of(f, m, cost);
        if (w.largest < best_worth->largest ||
            (w.largest == best_worth->largest && w.squares < best_worth->squares)) {
            *best = *f;
            *best_worth = w;
        }
        return;
    }
    for (uint32_t cut = f->at[s - 1] + 1; cut < m->n_layers; cut++) {
        if (m->cut_forbidden[cut]) continue;
        f->at[s] = cut;
        try_all(f, s + 1, m, cost, best, best_worth);
    }
}

static void check_costs(const fake_model *f, uint32_t n_stages, const uint32_t *cost)
{
    fence all = {.n_stages = n_stages}, best = {0};
    all.at[n_stages] = f->m.n_layers;
    worth w = {.largest = UINT64_MAX};
    try_all(&all, 1, &f->m, cost, &best, &w);
    doors d = doors_of(n_stages, SPLITS_AUTO);
    if (best.n_stages == 0) {
        BAD(d, &f->m, "MEMRA_PP_STAGES", " only; rule: ");
        return;
    }
    fence got;
    errmsg e = {0};
    if (fence_plan_costs(&got, &d, &f->m, cost, &e) != ST_OK) fail_msg("refused: %s", e.text);
    assert_int_equal(worth_of(&got, &f->m, cost).largest, w.largest);
    assert_memory_equal(&got, &best, sizeof got);
}

static void check_auto(const fake_model *f, uint32_t n_stages)
{
    check_costs(f, n_stages, NULL);
}

static void auto_is_the_best_of_all_cuts(void **state)
{
    (void)state;
    srand(1);
    for (uint32_t round = 0; round < 600; round++) {
        uint32_t n_layers = 1 + (uint32_t)rand() % 10;
        uint64_t bytes[10];
        for (uint32_t il = 0; il < n_layers; il++)
            bytes[il] = (uint64_t)(rand() % 8) * 10 + 3;
        fake_model *f = fake(n_layers, bytes);
        f->embd.bytes = (uint64_t)(rand() % 200);
        f->head.bytes = (uint64_t)(rand() % 200);
        f->norm.bytes = 1;
        f->factors.bytes = 7;
        if (rand() % 2) f->m.rope.freq_factors.t = &f->factors;
        if (rand() % 2) tie(f);
        for (uint32_t c = 1; c < n_layers; c++)
            f->m.cut_forbidden[c] = rand() % 4 == 0;
        for (uint32_t n = 1; n <= n_layers; n++)
            check_auto(f, n);
        free(f);
    }
}

static void auto_weighs_the_devices(void **state)
{
    (void)state;
    srand(2);
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t n_layers = 1 + (uint32_t)rand() % 9, cost[STAGES_MAX] = {0};
        uint64_t bytes[9];
        for (uint32_t il = 0; il < n_layers; il++)
            bytes[il] = (uint64_t)(rand() % 8) * 10 + 3;
        fake_model *f = fake(n_layers, bytes);
        f->embd.bytes = (uint64_t)(rand() % 100);
        f->head.bytes = (uint64_t)(rand() % 100);
        for (uint32_t n = 1; n <= n_layers; n++) {
            for (uint32_t s = 0; s < n; s++)
                cost[s] = FENCE_COST_UNIT + (uint32_t)rand() % (4 * FENCE_COST_UNIT);
            check_costs(f, n, cost);
        }
        free(f);
    }
    /* A device three times as fast gets three times the layers. */
    fake_model *f = fake(12, NULL);
    doors d = doors_of(2, SPLITS_AUTO);
    const uint32_t third[STAGES_MAX] = {3 * FENCE_COST_UNIT, FENCE_COST_UNIT};
    fence got;
    errmsg e = {0};
    assert_int_equal(fence_plan_costs(&got, &d, &f->m, third, &e), ST_OK);
    assert_int_equal(got.at[1], 3);
    free(f);
}

/* Layers of 1:8, in several orders: never above 1.1 times the best possible. */
static void auto_balances_layers_of_1_to_8(void **state)
{
    (void)state;
    for (uint32_t period = 1; period <= 4; period++) {
        uint64_t bytes[12];
        for (uint32_t il = 0; il < 12; il++)
            bytes[il] = il / period % 2 ? 8000000 : 1000000;
        fake_model *f = fake(12, bytes);
        for (uint32_t n = 2; n <= 6; n++)
            check_auto(f, n);
        doors two = doors_of(2, SPLITS_AUTO);
        uint32_t cut = good(&two, &f->m).at[1];
        f->embd.bytes = 90000000; /* rows of it are gathered: the cut stays */
        assert_int_equal(good(&two, &f->m).at[1], cut);
        f->embd.bytes = 0;
        f->head.bytes = 30000000; /* a vocabulary as large as half the layers */
        for (uint32_t n = 2; n <= 6; n++)
            check_auto(f, n);
        doors d = doors_of(4, SPLITS_AUTO);
        fence e = good(&d, &f->m);
        assert_int_equal(e.at[3], 11); /* the head's stage keeps the one layer it must have */
        free(f);
    }
}

static void auto_is_even_where_the_largest_stage_does_not_decide(void **state)
{
    (void)state;
    fake_model *f = fake(10, NULL);
    f->head.bytes = 100000;
    doors d = doors_of(4, SPLITS_AUTO);
    fence e = good(&d, &f->m);
    assert_int_equal(e.at[1], 3);
    assert_int_equal(e.at[2], 6);
    assert_int_equal(e.at[3], 9);
    free(f);
}

static void auto_stands_the_limits(void **state)
{
    (void)state;
    uint64_t *bytes = calloc(LAYERS_MAX, sizeof *bytes);
    assert_non_null(bytes);
    for (uint32_t il = 0; il < LAYERS_MAX; il++)
        bytes[il] = 1ull << 44; /* 2^53 in all */
    fake_model *f = fake(LAYERS_MAX, bytes);
    doors d = doors_of(STAGES_MAX, SPLITS_AUTO);
    fence e = good(&d, &f->m);
    for (uint32_t s = 0; s <= STAGES_MAX; s++)
        assert_int_equal(e.at[s], s * 8);
    free(f);
    free(bytes);
}

static void stage_of_finds_the_owner(void **state)
{
    (void)state;
    fence f = {.n_stages = 3, .at = {0, 2, 3, 7}};
    static const uint32_t owner[] = {0, 0, 1, 2, 2, 2, 2, 2, 2};
    for (uint32_t il = 0; il < 9; il++)
        assert_int_equal(fence_stage_of(&f, il), owner[il]);
    assert_int_equal(fence_stage_of(&f, UINT32_MAX), 2);
    fence one = {.n_stages = 1, .at = {0, 7}};
    assert_int_equal(fence_stage_of(&one, 0), 0);
    assert_int_equal(fence_stage_of(&one, 8), 0);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_has_every_layer),
        cmocka_unit_test(even_cuts_follow_the_formula),
        cmocka_unit_test(even_cuts_move_off_forbidden_ones),
        cmocka_unit_test(even_cuts_are_legal_whatever_is_forbidden),
        cmocka_unit_test(a_list_is_taken_as_it_is),
        cmocka_unit_test(a_list_refuses_cuts_outside_the_model),
        cmocka_unit_test(a_list_refuses_cuts_out_of_order),
        cmocka_unit_test(a_list_refuses_forbidden_cuts),
        cmocka_unit_test(a_list_has_stages_minus_1_cuts),
        cmocka_unit_test(the_older_spelling_and_flags_are_named),
        cmocka_unit_test(never_more_stages_than_layers),
        cmocka_unit_test(stage_bytes_count_what_a_stage_holds),
        cmocka_unit_test(auto_is_the_best_of_all_cuts),
        cmocka_unit_test(auto_weighs_the_devices),
        cmocka_unit_test(auto_balances_layers_of_1_to_8),
        cmocka_unit_test(auto_is_even_where_the_largest_stage_does_not_decide),
        cmocka_unit_test(auto_stands_the_limits),
        cmocka_unit_test(stage_of_finds_the_owner),
    };
    return cmocka_run_group_tests_name("fence", tests, NULL, NULL);
}
