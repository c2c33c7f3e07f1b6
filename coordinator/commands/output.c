#include "coordinator/commands/output.h"
#include "coordinator/commands/options.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes are tried only when poll says that there is room: a pipe whose reader stands still must
 * not keep us from noticing a signal, whichever thread got it. What can be written at once is
 * written after a signal too: the end of a text, the last line of JSON. */
static status wait_for(int fd, short what, errmsg *e)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = what};
        int n = poll(&p, 1, interrupt_signal() != 0 ? 0 : 100);
        if (n > 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return ST_OK;
        if (interrupt_signal() != 0) return errmsg_set(e, ST_INTERRUPTED, "interrupted");
    }
}

/* How much to write at once: PIPE_BUF is what poll promises of a pipe; a file takes more. */
static uint64_t piece_bytes(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? 1u << 20 : PIPE_BUF;
}

status output_write(int fd, const char *what, const void *data, uint64_t bytes, errmsg *e)
{
    const char *at = data;
    const uint64_t piece = piece_bytes(fd);
    while (bytes > 0) {
        TRY(wait_for(fd, POLLOUT, e));
        ssize_t n = write(fd, at, bytes < piece ? bytes : piece);
        if (n >= 0) {
            at += n;
            bytes -= (uint64_t)n;
        } else if (errno == EPIPE) {
            return errmsg_set(e, ST_CLOSED, "%s", "");
        } else if (errno != EINTR && errno != EAGAIN) {
            return errmsg_set(e, ST_RESOURCES, "%s cannot be written: %s", what, strerror(errno));
        }
    }
    return ST_OK;
}

status output_text(const char *text, errmsg *e)
{
    return output_write(STDOUT_FILENO, "standard output", text, strlen(text), e);
}

status output_line(errmsg *e, const char *format, ...)
{
    char *line = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&line, format, args);
    va_end(args);
    if (n < 0) return errmsg_set(e, ST_RESOURCES, "no memory for a line of output");
    line[n] = '\n'; /* in place of the terminator: the line is written by length */
    status s = output_write(STDOUT_FILENO, "standard output", line, (uint64_t)n + 1, e);
    free(line);
    return s;
}

static int flush_errno;

void output_flush(void)
{
    errno = 0;
    if (fflush(stdout) != 0 && flush_errno == 0) flush_errno = errno;
}

/* The reason may have been told to a printf that nobody asked: of a pipe, poll still knows it. */
status output_flushed(errmsg *e)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (flush_errno == 0 && !ferror(stdout)) return ST_OK;
    if (flush_errno == EPIPE || (poll(&out, 1, 0) > 0 && (out.revents & POLLERR)))
        return errmsg_set(e, ST_CLOSED, "%s", "");
    return errmsg_set(e, ST_RESOURCES, "standard output cannot be written: %s",
                      flush_errno != 0 ? strerror(flush_errno) : "some of it is lost");
}

status output_json(json_t *owned, errmsg *e)
{
    char *text = owned == NULL ? NULL : json_dumps(owned, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(owned);
    if (text == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line of JSON");
    status s = output_line(e, "%s", text);
    free(text);
    return s;
}

status input_read(const char *path, uint64_t max_bytes, char **out, uint64_t *bytes, errmsg *e)
{
    *out = NULL;
    *bytes = 0;
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    uint64_t room = 0, n = 0;
    char *text = NULL;
    status s = ST_OK;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errmsg_set(e, ST_RESOURCES, "%s cannot be read: %s", name, strerror(errno));
    for (;;) {
        if (room - n < 2) {
            room = room == 0 ? 65536 : 2 * room;
            char *more = realloc(text, room);
            if (more == NULL) {
                s = errmsg_set(e, ST_RESOURCES, "no memory for the text of %s", name);
                goto done;
            }
            text = more;
        }
        TRY_DONE(s, wait_for(fd, POLLIN, e));
        ssize_t r = read(fd, text + n, room - n - 1);
        if (r == 0) break;
        if (r < 0 && errno != EINTR && errno != EAGAIN) {
            s = errmsg_set(e, ST_RESOURCES, "%s cannot be read: %s", name, strerror(errno));
            goto done;
        }
        if (r > 0) n += (uint64_t)r;
        if (n > max_bytes) {
            s = errmsg_set(e, ST_USAGE, "%s is longer than the %" PRIu64 " bytes allowed", name,
                           max_bytes);
            goto done;
        }
    }
    text[n] = '\0';
    *out = text;
    *bytes = n;
    text = NULL;
done:
    free(text);
    if (!standard) close(fd);
    return s;
}

void output_clean(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
    }
}
