#include "stage/mailbox.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

status mailbox_open(mailbox *m, errmsg *e)
{
    *m = (mailbox){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)};
    if (m->fd < 0) return errmsg_set(e, ST_RESOURCES, "eventfd: %s", strerror(errno));
    pthread_mutex_init(&m->lock, NULL);
    return ST_OK;
}

void mailbox_close(mailbox *m)
{
    if (m->fd < 0) return;
    for (mail *a = m->first, *next; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    *m = (mailbox){.fd = -1};
}

status mailbox_push(mailbox *m, const void *frame, uint64_t bytes, errmsg *e)
{
    mail *a = malloc(sizeof *a + bytes);
    if (a == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a message");
    a->next = NULL;
    a->bytes = bytes;
    memcpy(a->frame, frame, bytes);
    pthread_mutex_lock(&m->lock);
    if (m->last != NULL)
        m->last->next = a;
    else
        m->first = a;
    m->last = a;
    pthread_mutex_unlock(&m->lock);
    uint64_t one = 1;
    ssize_t n = write(m->fd, &one, sizeof one);
    CHECK(n == sizeof one);
    return ST_OK;
}

mail *mailbox_pop(mailbox *m, int timeout_ms)
{
    uint64_t one;
    if (read(m->fd, &one, sizeof one) != sizeof one) {
        struct pollfd p = {.fd = m->fd, .events = POLLIN};
        if (timeout_ms == 0 || poll(&p, 1, timeout_ms) <= 0) return NULL;
        if (read(m->fd, &one, sizeof one) != sizeof one) return NULL;
    }
    pthread_mutex_lock(&m->lock);
    mail *a = m->first;
    CHECK(a != NULL);
    m->first = a->next;
    if (m->first == NULL) m->last = NULL;
    pthread_mutex_unlock(&m->lock);
    return a;
}

const mail *mailbox_peek(mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    const mail *a = m->first;
    pthread_mutex_unlock(&m->lock);
    return a;
}
