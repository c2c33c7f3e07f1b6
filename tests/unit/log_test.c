/* log_test.c - where lines go, and what becomes of those that cannot be written. */
#include "common/log.h"
#include "tests/support/tap.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What stderr got since it was turned to a file; it goes on there. */
static int err_file = -1, err_before = -1;

static void catch_stderr(void)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    err_file = fileno(f);
    err_before = dup(STDERR_FILENO);
    assert_true(dup2(err_file, STDERR_FILENO) >= 0);
}

static const char *caught(void)
{
    static char text[4096];
    dup2(err_before, STDERR_FILENO);
    close(err_before);
    ssize_t n = pread(err_file, text, sizeof text - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void levels_are_kept(void **state)
{
    (void)state;
    catch_stderr();
    log_open("who", LOG_WARN, STDERR_FILENO);
    log_error("one");
    log_warn("two");
    log_info("three");
    const char *text = caught();
    assert_string_equal(text, "who: error: one\nwho: warning: two\n");
    assert_false(log_lost());
}

static void a_long_line_is_one_line(void **state)
{
    (void)state;
    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    catch_stderr();
    log_open("who", LOG_INFO, STDERR_FILENO);
    log_info("%s", longer);
    const char *text = caught();
    assert_int_equal(strlen(text), 1023);
    assert_int_equal(text[1022], '\n');
}

static void a_full_disk_is_said_once(void **state)
{
    (void)state;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0);
    catch_stderr();
    log_open("who", LOG_ERROR, full);
    assert_int_equal(log_fd_now(), full);
    log_info("not of this level"); /* nothing is written, so nothing fails */
    assert_false(log_lost());
    log_error("one");
    log_error("two");
    const char *text = caught();
    assert_string_equal(text, "who: warning: --log-file /dev/full cannot be written: No space left on "
                              "device; lines go to standard error from here on\n"
                              "who: error: one\nwho: error: two\n");
    assert_true(log_lost());
    assert_int_equal(log_fd_now(), STDERR_FILENO);
    close(full);
    log_open("who", LOG_INFO, STDERR_FILENO); /* a new log is whole */
    assert_false(log_lost());
}

static void a_lost_stderr_is_silent(void **state)
{
    (void)state;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    int before = dup(STDERR_FILENO);
    assert_true(full >= 0 && before >= 0 && dup2(full, STDERR_FILENO) >= 0);
    log_open("who", LOG_INFO, STDERR_FILENO);
    log_info("nobody reads this");
    assert_false(log_lost());
    dup2(before, STDERR_FILENO);
    close(before);
    close(full);
}

int main(void)
{
    tap_begin(30);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_kept),
        cmocka_unit_test(a_long_line_is_one_line),
        cmocka_unit_test(a_full_disk_is_said_once),
        cmocka_unit_test(a_lost_stderr_is_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
