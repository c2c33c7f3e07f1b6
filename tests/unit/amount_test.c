/* amount_test.c - bytes and plurals as a person reads them. */
#include "common/amount.h"
#include "tests/support/tap.h"

#include <stdio.h>

static void bytes_have_a_unit_that_fits(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},
                 {1, "1 byte"},
                 {999, "999 bytes"},
                 {1000, "1.0 kB"},
                 {999949, "999.9 kB"},
                 {999950, "1.0 MB"},
                 {1300000, "1.3 MB"},
                 {999949999, "999.9 MB"},
                 {999950000, "1.00 GB"},
                 {24264500000, "24.26 GB"},
                 {999994999999, "999.99 GB"},
                 {999995000000, "1.00 TB"},
                 {UINT64_MAX, "18446.74 PB"}};
    char out[AMOUNT_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(amount_bytes(out, cases[i].bytes), cases[i].text);
}

static void a_tables_cells_are_megabytes(void **state)
{
    (void)state;
    char out[AMOUNT_TEXT];
    assert_string_equal(amount_mb(out, 0), "0.0 MB");
    assert_string_equal(amount_mb(out, 37400), "0.0 MB");
    assert_string_equal(amount_mb(out, 19300000000), "19300.0 MB");
    assert_string_equal(amount_mb(out, UINT64_MAX), "18446744073709.6 MB");
}

static void short_times_are_not_none(void **state)
{
    (void)state;
    static const struct {
        uint64_t ns;
        const char *text;
    } cases[] = {{0, "0.000 s"},          {1000000, "0.001 s"},
                 {10000000, "0.010 s"},   {99499999, "0.099 s"},
                 {99500000, "0.10 s"},    {450000000, "0.45 s"},
                 {994999999, "0.99 s"},   {995000000, "1.0 s"},
                 {30000000000, "30.0 s"}, {86400000000000, "86400.0 s"}};
    char out[AMOUNT_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(amount_seconds(out, cases[i].ns), cases[i].text);
    assert_string_equal(amount_lasted(1500000000), "1.5 s");
}

static void said_amounts_stand_side_by_side(void **state)
{
    (void)state;
    char line[80];
    snprintf(line, sizeof line, "%s of %s", amount_said(1), amount_said(2000));
    assert_string_equal(line, "1 byte of 2.0 kB");
}

static void one_has_no_s(void **state)
{
    (void)state;
    assert_string_equal(plural(0), "s");
    assert_string_equal(plural(1), "");
    assert_string_equal(plural(2), "s");
    assert_string_equal(plural(1ull << 32), "s");
}

int main(void)
{
    tap_begin(30);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_have_a_unit_that_fits),
        cmocka_unit_test(a_tables_cells_are_megabytes),
        cmocka_unit_test(short_times_are_not_none),
        cmocka_unit_test(said_amounts_stand_side_by_side),
        cmocka_unit_test(one_has_no_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
