/* log_test.c - where lines go, and what becomes of those that cannot be written. */
#include "common/clock.h"
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

static uint64_t took_ms(uint64_t since_ns)
{
    return (now_ns() - since_ns) / NS_PER_MS;
}

static void a_reader_that_stands_still_holds_nobody_up(void **state)
{
    (void)state;
    static char stuffing[4096], got[1u << 20];
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    int before = dup(STDERR_FILENO);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    uint64_t full = 0;
    for (ssize_t n; (n = write(ends[1], stuffing, sizeof stuffing)) > 0;)
        full += (uint64_t)n;
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    log_open("who", LOG_INFO, STDERR_FILENO);
    uint64_t since = now_ns();
    log_warn("one");
    uint64_t first_ms = took_ms(since);
    since = now_ns();
    for (int i = 0; i < 100; i++)
        log_warn("more");
    uint64_t others_ms = took_ms(since);
    bool lost = log_lost();
    uint64_t n_read = 0;
    while (n_read < full)
        n_read += (uint64_t)read(ends[0], got, full - n_read);
    log_warn("again");
    log_warn("and again");
    dup2(before, STDERR_FILENO);
    close(before);
    close(ends[1]);
    ssize_t n = read(ends[0], got, sizeof got - 1);
    assert_true(n > 0);
    got[n] = '\0';
    close(ends[0]);
    assert_string_equal(got, "who: warning: 101 lines were dropped: their reader stood still\n"
                             "who: warning: again\nwho: warning: and again\n");
    assert_true(first_ms >= LOG_WAIT_MS && first_ms < 4 * LOG_WAIT_MS);
    assert_true(others_ms < LOG_WAIT_MS);
    assert_false(lost); /* which is of files */
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
    assert_string_equal(text,
                        "who: warning: --log-file /dev/full cannot be written: No space left on "
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
        cmocka_unit_test(a_reader_that_stands_still_holds_nobody_up),
        cmocka_unit_test(a_full_disk_is_said_once),
        cmocka_unit_test(a_lost_stderr_is_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
