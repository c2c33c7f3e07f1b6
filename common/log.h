/* log.h - one line per event, to stderr or a file.
 *
 * Every line is written with one write(2), so that lines of several processes do not mix. The level
 * and the descriptor are the only process-wide state of common/; set once in main, before threads.
 *
 * A file that cannot be written (a full disk) is given up: one line on stderr says so, and that
 * line and all later ones go there. What is lost on stderr itself is lost.
 *
 * Nobody waits for a reader that stands still (a pager, Ctrl-S) longer than LOG_WAIT_MS: what it
 * has no room for is dropped, lines after that without waiting, and the first one that it takes
 * again comes behind one that counts them. */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include "common/status.h"

#include <stdbool.h>

#define LOG_WAIT_MS 250u

typedef enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;

/* Set the program's name as it stands before each line ("memra-pp", "memra-stage 1"), the level and
 * the descriptor that lines go to. */
void log_open(const char *who, log_level level, int fd);

/* "error", "warn", "info" or "debug" into *out; ST_USAGE for any other word. */
MUST_USE status log_level_parse(const char *word, log_level *out);

log_level log_level_now(void);
int log_fd_now(void); /* stderr, once the file was given up */

/* The file was given up, or had no room for long: it lacks lines. Any thread. */
bool log_lost(void);

void log_line(log_level level, const char *format, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
