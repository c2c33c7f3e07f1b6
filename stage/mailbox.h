/* mailbox.h - frames (wire.h) handed from one thread to another, in order.
 *
 * Many may push, one pops. `fd` is readable while frames wait, so that a consumer can poll it
 * beside its sockets. */
#ifndef STAGE_MAILBOX_H
#define STAGE_MAILBOX_H

#include "common/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mail {
    struct mail *next;
    uint64_t bytes;
    _Alignas(16) unsigned char frame[];
} mail;

typedef struct {
    pthread_mutex_t lock;
    mail *first, *last;
    int fd; /* eventfd */
} mailbox;

MUST_USE status mailbox_open(mailbox *m, errmsg *e);
void mailbox_close(mailbox *m); /* frees what still waits */

/* Copy the frame in. ST_RESOURCES: no memory. */
MUST_USE status mailbox_push(mailbox *m, const void *frame, uint64_t bytes, errmsg *e);

/* The next frame, which the caller frees; NULL when none came within timeout_ms. */
mail *mailbox_pop(mailbox *m, int timeout_ms);
/* The same, which stays where it is; NULL: none waits. For the thread that pops. */
const mail *mailbox_peek(mailbox *m);

#endif
