/* doornames_test.c - variables that are meant for a door and are none. */
#include "common/doors.h"
#include "common/doortext.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <string.h>

static void edits_are_counted(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        uint32_t n;
    } cases[] = {{"", "", 0},       {"stages", "stages", 0}, {"stage", "stages", 1}, {"", "abc", 3},
                 {"kitten", "sitting", 3}, {"STAGES", "stages", 6}, {"ab", "ba", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(doortext_edits(cases[i].a, cases[i].b), cases[i].n);
        assert_int_equal(doortext_edits(cases[i].b, cases[i].a), cases[i].n);
    }
    char longer[DOORTEXT_NAME_BYTES + 2];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_true(doortext_edits(longer, longer) > DOORTEXT_NAME_BYTES);
    assert_int_equal(doortext_edits(longer + 1, longer + 1), 0);
}

/* A variable that is meant for a door and is none. */
static void misspelt_names_are_refused(void **state)
{
    (void)state;
    static const char *const fine[] = {"MEMRA_PP_STAGES=2", "MEMRA_PP_STAGES=x",
                                       "MEMRA_BUILD=/x",    "MEMRA_SHARED=/y",
                                       "MEMRA_TESTS=ON",    "MEMRA_SOAK_STEPS=3",
                                       "MEMRA_PP_STAGE=",   "MEMRA=1",
                                       "memra_pp_stages=",  "memra_build=/x",
                                       "memra=1",           "PATH=/bin",
                                       "MEMRA_PP_STAGE",    NULL};
    errmsg e = {0};
    assert_int_equal(doors_check_names(fine, &e), ST_OK);
    static const struct {
        const char *variable, *nearest;
    } bad[] = {
        {"MEMRA_PP_STAGE=2", "MEMRA_PP_STAGES"},   {"MEMRA_STAGES=2", "MEMRA_PP_STAGES"},
        {"MEMRAPP_DEVICES=0", "MEMRA_PP_DEVICES"}, {"MEMRA_PP_PRIME_PIPE=0", "MEMRA_PRIME_PIPE"},
        {"MEMRA_SPEC_PIPE=0", "MEMRA_SPEC_PP"},    {"MEMRA_BATCH=0", "MEMRA_BATCH_PP"},
        {"MEMRA_PP_=1", "MEMRA_PP_SPLIT"},         {"memra_pp_stages=2", "MEMRA_PP_STAGES"},
        {"Memra_Pp_Stages=2", "MEMRA_PP_STAGES"},  {"MEMRA_PRIME_pipe=0", "MEMRA_PRIME_PIPE"},
        {"memra_stages=2", "MEMRA_PP_STAGES"},     {"memra_pp_x=1", "MEMRA_PP_SPLIT"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const environment[] = {"HOME=/", bad[i].variable, NULL};
        errmsg_clear(&e);
        assert_int_equal(doors_check_names(environment, &e), ST_BAD_DOOR);
        char name[64], *equals;
        snprintf(name, sizeof name, "%s", bad[i].variable);
        equals = strchr(name, '=');
        equals[0] = '\0';
        if (strncmp(e.text, name, strlen(name)) != 0 || strstr(e.text, bad[i].nearest) == NULL)
            fail_msg("%s", e.text);
    }
}

int main(void)
{
    tap_begin(30);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_are_counted),
        cmocka_unit_test(misspelt_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
