/* How many stages there are, where the doors alone do not say it: a caller's counts, a default. */
#include "tests/support/tap.h"
#include "common/doors.h"

#include <string.h>

static void devices_are_dealt_out(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d;
    door_values v = {0};
    v.value[DOOR_DEVICES] = "cpu:0,cpu:1";
    assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
    errmsg_clear(&e);
    v.stages_elsewhere = true;
    assert_int_equal(doors_parse(&d, &v, &e), ST_OK);
    d.n_stages = 3;
    doors_deal_devices(&d);
    assert_int_equal(d.n_devices, 3);
    assert_int_equal(d.device[2].index, 0);
    d.n_stages = 1;
    doors_deal_devices(&d);
    assert_int_equal(d.n_devices, 1);
}

/* What a launcher asks for where nothing was said is told as that, never as a variable that nobody
 * set. */
static void stages_by_default(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d;
    door_values v = {.default_stages = 2};
    assert_int_equal(doors_parse(&d, &v, &e), ST_OK);
    assert_int_equal(d.n_stages, 2);
    assert_true(d.stages_set && d.stages_default);
    const char *beside = "MEMRA_PP_STAGES=unset, 2 by default (--stages N says otherwise); rule: ";
    static const struct {
        door_id id;
        const char *value, *line;
    } bad[] = {
        {DOOR_DEVICES, "cpu", "MEMRA_PP_DEVICES=\"cpu\" has a wrong number of devices for "},
        {DOOR_SPLITS, "1,2", "MEMRA_PP_SPLITS=\"1,2\" has a wrong number of cuts for "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v.value[bad[i].id] = bad[i].value;
        assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
        if (strncmp(e.text, bad[i].line, strlen(bad[i].line)) != 0) fail_msg("%s", e.text);
        if (strstr(e.text, beside) == NULL) fail_msg("%s", e.text);
        v.value[bad[i].id] = NULL;
        errmsg_clear(&e);
    }
    v.value[DOOR_FAULT] = "stage=2,kind=kill";
    assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
    assert_string_equal(
        e.text, "MEMRA_PP_FAULT=\"stage=2,kind=kill\" names stage 2, and by default "
                "there are 2; rule: S is 0 to one less than the stages: --stages 3 or more has it");
    v.value[DOOR_FAULT] = NULL;
    v.value[DOOR_STAGES] = "3"; /* who says something means it */
    assert_int_equal(doors_parse(&d, &v, &e), ST_OK);
    assert_int_equal(d.n_stages, 3);
    assert_false(d.stages_default);
    v.value[DOOR_STAGES] = "1";
    assert_int_equal(doors_parse(&d, &v, &e), ST_OK);
    assert_int_equal(d.n_stages, 1);
}

/* Of a list, its largest: what a shorter pipeline has no stage for happens in another. */
static void faults_of_a_list_of_counts(void **state)
{
    (void)state;
    errmsg e = {0};
    doors d;
    door_values v = {.stages_elsewhere = true};
    v.value[DOOR_FAULT] = "stage=all,kind=slow:1;stage=3,kind=kill";
    assert_int_equal(doors_parse(&d, &v, &e), ST_OK);
    assert_int_equal(doors_check_faults(&d, 4, "--stages", &e), ST_OK);
    assert_int_equal(doors_check_faults(&d, 3, "--stages", &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, " names stage 3, and --stages asks for 3 at most"));
    assert_non_null(strstr(e.text, ": --stages 4 or more has it"));
}

/* Of one count, or none: what would have the stage that was named. */
static void faults_of_a_stage_that_there_is_none_of(void **state)
{
    (void)state;
    static const struct {
        const char *stages, *fault, *line;
    } bad[] = {
        {NULL, "stage=2,kind=kill",
         " names stage 2, and nothing asks for so many stages; rule: S is 0 to one less than the "
         "stages: --stages 3 or more has it"},
        {"2", "stage=2,kind=kill",
         " names stage 2, and MEMRA_PP_STAGES=\"2\" has no such stage; rule: S is 0 to one less "
         "than the stages: --stages 3 or more has it"},
        {"2", "stage=64,kind=kill", ": 64 is the most there can be"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        errmsg e = {0};
        doors d;
        door_values v = {0};
        v.value[DOOR_STAGES] = bad[i].stages;
        v.value[DOOR_FAULT] = bad[i].fault;
        assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
        if (strstr(e.text, bad[i].line) == NULL) fail_msg("%s", e.text);
    }
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_dealt_out),
        cmocka_unit_test(stages_by_default),
        cmocka_unit_test(faults_of_a_list_of_counts),
        cmocka_unit_test(faults_of_a_stage_that_there_is_none_of),
    };
    return cmocka_run_group_tests_name("doors", tests, NULL, NULL);
}
