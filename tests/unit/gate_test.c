/* What the gates judge with, on records and doors made by hand: every bit counts, the first
 * difference is named, nothing that was not walked passes, and the cuts to walk are the legal ones.
 */
#include "tests/support/tap.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/gates/gate_record.h"
#include "coordinator/commands/random_tokens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS  6u
#define VOCAB 5u

typedef struct {
    gate_record reference, got;
    gate_arm arm;
} pair;

static void fill(gate_record *r)
{
    errmsg e = {0};
    assert_int_equal(gate_record_open(r, ROWS, VOCAB, &e), ST_OK);
    float *x = gate_record_rows(r, 0, ROWS);
    for (uint32_t i = 0; i < ROWS * VOCAB; i++)
        x[i] = (float)i * 0.25f - 3.0f;
    for (uint32_t i = 0; i < ROWS; i += 2)
        r->tokens[i] = i;
}

static pair pair_open(void)
{
    pair p;
    fill(&p.reference);
    fill(&p.got);
    gate_arm_begin(&p.arm, "ppn", "by hand");
    return p;
}

static void pair_close(pair *p)
{
    gate_record_close(&p->reference);
    gate_record_close(&p->got);
}

static void compare(pair *p)
{
    gate_record_compare(&p->arm, &p->reference, &p->got, 0, ROWS);
}

static void equal_records_are_green_and_counted(void **state)
{
    (void)state;
    pair p = pair_open();
    p.reference.logits[7] = p.got.logits[7] = NAN; /* bits, not values */
    compare(&p);
    assert_true(p.arm.green);
    assert_int_equal(p.arm.n_rows, ROWS);
    assert_int_equal(p.arm.n_values, ROWS * VOCAB);
    assert_int_equal(p.arm.n_tokens, ROWS / 2);
    pair_close(&p);
}

static void the_last_bit_of_one_value_is_seen_and_named(void **state)
{
    (void)state;
    pair p = pair_open();
    uint32_t bits;
    float *x = &p.got.logits[3 * VOCAB + 2];
    memcpy(&bits, x, sizeof bits);
    bits ^= 1;
    memcpy(x, &bits, sizeof bits);
    p.got.logits[5 * VOCAB] += 1;
    compare(&p);
    assert_false(p.arm.green);
    assert_non_null(strstr(p.arm.why, "row 3 column 2 is 1.25"));
    assert_non_null(strstr(p.arm.why, "2 of 30 values differ"));
    char hex[16];
    snprintf(hex, sizeof hex, "0x%08x", bits);
    assert_non_null(strstr(p.arm.why, hex));
    pair_close(&p);
}

static void zero_and_minus_zero_differ(void **state)
{
    (void)state;
    pair p = pair_open();
    p.reference.logits[12] = 0.0f;
    p.got.logits[12] = -0.0f;
    compare(&p);
    assert_false(p.arm.green);
    pair_close(&p);
}

static void another_token_or_none_is_seen(void **state)
{
    (void)state;
    pair p = pair_open();
    p.got.tokens[2] = 4;
    compare(&p);
    assert_string_equal(p.arm.why, "token 4 was drawn after row 2, the reference drew 2");
    pair_close(&p);
    p = pair_open();
    p.got.tokens[4] = TOKEN_NONE;
    compare(&p);
    assert_false(p.arm.green);
    pair_close(&p);
}

static void a_row_that_was_not_walked_is_red(void **state)
{
    (void)state;
    pair p = pair_open();
    p.got.filled[5] = false;
    compare(&p);
    assert_string_equal(p.arm.why, "row 5 was not walked by this arm");
    pair_close(&p);
    p = pair_open();
    gate_record_clear(&p.reference);
    compare(&p);
    assert_string_equal(p.arm.why, "row 0 was not walked by the reference");
    pair_close(&p);
}

/* --- the report ---------------------------------------------------------------------------- */

/* The exit code of a report over these arms and canaries, and its text. */
static int report(bool json, uint32_t n_green, uint32_t n_red, bool canaries, char **text)
{
    size_t n;
    gate_report r = {.to = open_memstream(text, &n), .json = json};
    assert_non_null(r.to);
    gate_arm a;
    for (uint32_t i = 0; i < n_green + n_red; i++) {
        gate_arm_begin(&a, "ppn", "arm %u", i);
        if (i >= n_green) gate_arm_red(&a, "a reason with bytes of a path: \xff\"");
        if (canaries)
            gate_report_canary(&r, &a, "something", "a reason");
        else
            gate_report_arm(&r, &a);
    }
    int code = gate_report_verdict(&r, "ppn");
    fclose(r.to);
    return code;
}

static void exit_codes_are_the_documented_ones(void **state)
{
    (void)state;
    const struct {
        uint32_t n_green, n_red;
        bool canaries;
        int code;
        const char *says;
    } cases[] = {
        {3, 0, false, 0, "# green: ppn: 3 arms"},
        {2, 1, false, 1, "# red: ppn: 1 of 3 arms"},
        {0, 0, false, 1, "# red: ppn: 0 of 0 arms"},
        {0, 2, true, 1, "red: ppn: all 2 canaries were noticed"},
        {1, 2, true, 0, "canary stayed green: ppn: 1 of 3 breakages went unnoticed"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = NULL;
        assert_int_equal(report(false, cases[i].n_green, cases[i].n_red, cases[i].canaries, &text),
                         cases[i].code);
        assert_non_null(strstr(text, cases[i].says));
        free(text);
        assert_int_equal(report(true, cases[i].n_green, cases[i].n_red, cases[i].canaries, &text),
                         cases[i].code);
        assert_non_null(strstr(text, "\"verdict\":"));
        free(text);
    }
}

static void a_canary_that_is_red_for_another_reason_counts_as_unnoticed(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    gate_report r = {.to = open_memstream(&text, &n)};
    gate_arm a;
    gate_arm_begin(&a, "ppn", "arm");
    gate_arm_red(&a, "stage 1 was lost");
    gate_report_canary(&r, &a, "a bit is flipped", "values differ");
    assert_int_equal(gate_report_verdict(&r, "ppn"), 0);
    fclose(r.to);
    assert_non_null(strstr(text, "GREEN   ppn canary, a bit is flipped: stage 1 was lost"));
    free(text);
}

/* --- cuts ---------------------------------------------------------------------------------- */

typedef struct {
    common_options common;
    gate_context g;
} asked;

static void ask(asked *a, uint32_t n_layers, uint32_t n_stages)
{
    *a = (asked){0};
    a->common.doors = doors_default();
    if (n_stages > 1) {
        a->common.doors.n_stages = n_stages;
        a->common.doors.stages_set = true;
    }
    a->g.common = &a->common;
    a->g.model.n_layers = n_layers;
}

static uint32_t n_cuts(asked *a)
{
    gate_cuts *list;
    uint32_t n;
    errmsg e = {0};
    assert_int_equal(gate_cuts_all(&list, &n, &a->g, &e), ST_OK);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; list[i].splits == SPLITS_LIST && k + 1 < list[i].n_stages; k++) {
            assert_false(a->g.model.cut_forbidden[list[i].cut[k]]);
            assert_in_range(list[i].cut[k], 1, a->g.model.n_layers - 1);
            if (k > 0) assert_true(list[i].cut[k] > list[i].cut[k - 1]);
        }
        for (uint32_t j = 0; j < i; j++)
            assert_memory_not_equal(&list[i], &list[j], sizeof *list);
    }
    free(list);
    return n;
}

static void a_small_model_is_cut_in_every_way(void **state)
{
    (void)state;
    asked a;
    for (uint32_t n = 2; n <= GATE_LAYERS_SMALL; n++) {
        ask(&a, n, 0);
        assert_int_equal(n_cuts(&a), (1u << (n - 1)) - 1);
    }
    ask(&a, 6, 0);
    a.g.model.cut_forbidden[2] = a.g.model.cut_forbidden[5] = true;
    assert_int_equal(n_cuts(&a), 7); /* places 1, 3, 4 */
    ask(&a, 32, 0);
    assert_int_equal(n_cuts(&a), 7 + 31); /* even 2..8, and every single cut */
}

static void a_number_of_stages_is_cut_in_every_way_while_there_are_few(void **state)
{
    (void)state;
    asked a;
    ask(&a, 8, 3);
    assert_int_equal(n_cuts(&a), 21);
    ask(&a, 64, 2);
    assert_int_equal(n_cuts(&a), 63);
    ask(&a, 64, 3);
    assert_int_equal(n_cuts(&a), 3); /* even, first, last */
    ask(&a, 64, 64);
    assert_int_equal(n_cuts(&a), 1);
    ask(&a, 512, 64);
    assert_int_equal(n_cuts(&a), 3);
}

static void named_cuts_are_the_only_ones(void **state)
{
    (void)state;
    asked a;
    ask(&a, 8, 3);
    a.common.doors.splits = SPLITS_LIST;
    a.common.doors.n_cuts = 2;
    a.common.doors.cut[0] = 3;
    a.common.doors.cut[1] = 4;
    assert_int_equal(n_cuts(&a), 1);
}

static void a_model_that_cannot_be_cut_is_refused(void **state)
{
    (void)state;
    asked a;
    gate_cuts *list, few[4];
    uint32_t n;
    errmsg e = {0};
    ask(&a, 1, 0);
    assert_int_equal(gate_cuts_all(&list, &n, &a.g, &e), ST_USAGE);
    assert_null(list);
    assert_string_equal(e.text,
                        "a model of 1 layer has no legal cut: there is no pipeline to compare");
    errmsg_clear(&e);
    assert_int_equal(gate_cuts_few(few, &n, &a.g, &e), ST_USAGE);
    errmsg_clear(&e);
    ask(&a, 4, 5);
    assert_int_equal(gate_cuts_all(&list, &n, &a.g, &e), ST_BAD_DOOR);
    errmsg_clear(&e);
    assert_int_equal(gate_cuts_few(few, &n, &a.g, &e), ST_BAD_DOOR);
}

static void random_tokens_are_in_the_vocabulary_and_repeat(void **state)
{
    (void)state;
    uint32_t x[200], y[100], seen = 0;
    random_tokens(x, 200, 7, 42);
    random_tokens(y, 100, 7, 42);
    assert_memory_equal(x, y, sizeof y);
    for (uint32_t i = 0; i < 200; i++) {
        assert_in_range(x[i], 0, 6);
        seen |= 1u << x[i];
    }
    assert_int_equal(seen, 0x7f);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_records_are_green_and_counted),
        cmocka_unit_test(the_last_bit_of_one_value_is_seen_and_named),
        cmocka_unit_test(zero_and_minus_zero_differ),
        cmocka_unit_test(another_token_or_none_is_seen),
        cmocka_unit_test(a_row_that_was_not_walked_is_red),
        cmocka_unit_test(exit_codes_are_the_documented_ones),
        cmocka_unit_test(a_canary_that_is_red_for_another_reason_counts_as_unnoticed),
        cmocka_unit_test(a_small_model_is_cut_in_every_way),
        cmocka_unit_test(a_number_of_stages_is_cut_in_every_way_while_there_are_few),
        cmocka_unit_test(named_cuts_are_the_only_ones),
        cmocka_unit_test(a_model_that_cannot_be_cut_is_refused),
        cmocka_unit_test(random_tokens_are_in_the_vocabulary_and_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
