#include "common/log.h"

#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char who[48];
    log_level level;
    _Atomic int fd;
    atomic_bool lost;
    _Atomic uint32_t n_dropped; /* since a reader stood still */
} sink = {.who = "memra-pp", .level = LOG_INFO, .fd = STDERR_FILENO};

static const char *const level_words[] = {"error", "warn", "info", "debug"};

void log_open(const char *who, log_level level, int fd)
{
    snprintf(sink.who, sizeof sink.who, "%s", who);
    sink.level = level;
    atomic_store(&sink.fd, fd);
    atomic_store(&sink.lost, false);
    atomic_store(&sink.n_dropped, 0);
}

status log_level_parse(const char *word, log_level *out)
{
    for (int i = LOG_ERROR; i <= LOG_DEBUG; i++) {
        if (strcmp(word, level_words[i]) == 0) {
            *out = (log_level)i;
            return ST_OK;
        }
    }
    return ST_USAGE;
}

log_level log_level_now(void)
{
    return sink.level;
}

int log_fd_now(void)
{
    return atomic_load(&sink.fd);
}

bool log_lost(void)
{
    return atomic_load(&sink.lost);
}

static bool write_line(int fd, const char *at, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        n -= (size_t)done;
    }
    return true;
}

/* For a line: what poll promises of a pipe, PIPE_BUF, is more. */
static bool has_room(int fd)
{
    uint64_t now = now_ns(), until = now;
    if (atomic_load(&sink.n_dropped) == 0) until += LOG_WAIT_MS * NS_PER_MS;
    for (;; now = now_ns()) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int ms = until > now ? (int)((until - now) / NS_PER_MS + 1) : 0;
        int n = poll(&p, 1, ms);
        if (n >= 0) return n > 0;
        if (errno != EINTR) return true; /* the write says why it fails */
    }
}

static void drop(int fd)
{
    atomic_fetch_add(&sink.n_dropped, 1);
    if (fd != STDERR_FILENO) atomic_store(&sink.lost, true);
}

static void tell_dropped(int fd)
{
    uint32_t n = atomic_exchange(&sink.n_dropped, 0);
    char line[128];
    if (n == 0) return;
    int bytes =
        snprintf(line, sizeof line, "%s: warning: %u line%s dropped: their reader stood still\n",
                 sink.who, n, n == 1 ? " was" : "s were");
    (void)write_line(fd, line, (size_t)bytes);
}

/* From the file to stderr, said once. */
static void give_up(int fd, int error)
{
    char link[32], name[PATH_MAX], line[PATH_MAX + 256];
    int now = fd;
    if (!atomic_compare_exchange_strong(&sink.fd, &now, STDERR_FILENO)) return;
    atomic_store(&sink.lost, true);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, name, sizeof name);
    int n = snprintf(
        line, sizeof line,
        "%s: warning: --log-file %.*s cannot be written: %s; lines go to standard error from "
        "here on\n",
        sink.who, bytes > 0 ? (int)bytes : 0, name, strerror(error));
    (void)write_line(STDERR_FILENO, line, (size_t)n);
}

void log_line(log_level level, const char *format, ...)
{
    if (level > sink.level) return;
    char line[1024];
    int n = snprintf(line, sizeof line, "%s: %s", sink.who,
                     level == LOG_ERROR  ? "error: "
                     : level == LOG_WARN ? "warning: "
                                         : "");
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    size_t end = strnlen(line, sizeof line - 2);
    (void)m;
    line[end] = '\n';
    int fd = atomic_load(&sink.fd);
    if (!has_room(fd)) {
        drop(fd);
        return;
    }
    tell_dropped(fd);
    if (write_line(fd, line, end + 1) || fd == STDERR_FILENO) return;
    give_up(fd, errno);
    (void)write_line(STDERR_FILENO, line, end + 1);
}
