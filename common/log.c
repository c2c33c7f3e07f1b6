#include "common/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct {
    char who[48];
    log_level level;
    int fd;
} sink = {"memra-pp", LOG_INFO, STDERR_FILENO};

static const char *const level_words[] = {"error", "warn", "info", "debug"};

void log_open(const char *who, log_level level, int fd)
{
    snprintf(sink.who, sizeof sink.who, "%s", who);
    sink.level = level;
    sink.fd = fd;
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
    return sink.fd;
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
    ssize_t written = write(sink.fd, line, end + 1);
    (void)written; /* nowhere left to say that a log line could not be written */
}
