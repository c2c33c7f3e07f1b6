/* status.h - what can go wrong, in one list, and how it is passed on.
 *
 * Three kinds, never mixed. A bug: CHECK prints the expression and aborts, in every build. A fault
 * (system, file, device, message): a must-use `status`, described once in an `errmsg` where it
 * arises, passed on by TRY. "Not now" (timeout, closed) is an ordinary value: ST_TIMEOUT,
 * ST_CLOSED.
 *
 * ST_OK is 0; every other value is a fault. */
#ifndef COMMON_STATUS_H
#define COMMON_STATUS_H

#include <stdarg.h>
#include <stddef.h>

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt_i, args_i) __attribute__((format(printf, fmt_i, args_i)))

/* name, exit code of the program that ends because of it, one word for JSON */
#define STATUS_LIST(X)                                                                             \
    X(ST_OK, 0, "ok")                                                                              \
    X(ST_USAGE, 2, "usage")           /* a command line that cannot be meant */                    \
    X(ST_BAD_DOOR, 2, "bad_door")     /* a door's value breaks its rule */                         \
    X(ST_BAD_MODEL, 3, "bad_model")   /* the model file is damaged or not supported */             \
    X(ST_RESOURCES, 4, "resources")   /* memory, device, file or directory cannot be had */        \
    X(ST_STAGE_LOST, 5, "stage_lost") /* a stage ended or stopped answering */                     \
    X(ST_DEVICE, 6, "device")         /* a device failed: a CUDA error, final for its process */   \
    X(ST_PROTOCOL, 5, "protocol")     /* a message or a boundary header failed its check */        \
    X(ST_NAN, 7, "nan")               /* NaN or infinity in a hidden state or in logits */         \
    X(ST_CONTEXT_FULL, 4, "context_full") /* no position left in the session's context */          \
    X(ST_TIMEOUT, 5, "timeout")           /* not now: a bounded wait ran out */                    \
    X(ST_CLOSED, 5, "closed")             /* not now: the other side is gone or we are closing */  \
    X(ST_INTERRUPTED, 130, "interrupted") /* the person asked to stop */                           \
    X(ST_FAILED, 1, "failed")             /* a gate or check ran and is red */

typedef enum {
#define X(name, exit_code, word) name,
    STATUS_LIST(X)
#undef X
    STATUS_COUNT
} status;

/* The program's exit code for s. */
int status_exit_code(status s);

/* One word for s, static storage. */
const char *status_word(status s);

/* A message for a person: what was wrong, where, what would fix it. One line, always terminated.
 * The first error is kept: errmsg_set on a message that is already set does nothing. */
typedef struct {
    status code;
    char text[512];
} errmsg;

/* Set *e (which may be NULL) to code and the formatted line, unless it is set; returns code. */
status errmsg_set(errmsg *e, status code, const char *format, ...) PRINTF_LIKE(3, 4);

/* Empty *e. */
void errmsg_clear(errmsg *e);

/* Return from the calling function when expr is a fault. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        status try_status_ = (expr);                                                               \
        if (try_status_ != ST_OK) return try_status_;                                              \
    } while (0)

/* Go to `done:` with *s set when expr is a fault; for functions that have to clean up. */
#define TRY_DONE(s, expr)                                                                          \
    do {                                                                                           \
        (s) = (expr);                                                                              \
        if ((s) != ST_OK) goto done;                                                               \
    } while (0)

/* A bug in this program: print the expression and abort. Always on. */
#define CHECK(expr)                                                                                \
    do {                                                                                           \
        if (!(expr)) check_failed(__FILE__, __LINE__, #expr);                                      \
    } while (0)
void check_failed(const char *file, int line, const char *expr) __attribute__((noreturn));

#endif
