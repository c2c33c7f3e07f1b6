/* shm.h - shared host memory between coordinator and stages: sealed memfds.
 *
 * No name in any file system, so nothing can be left behind. The size is sealed at creation: a
 * process that has the descriptor cannot shrink the memory under another's feet. */
#ifndef COMMON_SHM_H
#define COMMON_SHM_H

#include "common/status.h"

#include <stdint.h>

/* Create, size, seal and map `bytes` of zeroed memory; *fd is close-on-exec and the caller's.
 * `what` names it in messages. ST_RESOURCES: bytes and cause; nothing stays open then. */
MUST_USE status shm_create(int *fd, void **map, const char *what, uint64_t bytes, errmsg *e);

/* Map what fd holds, whole. */
MUST_USE status shm_map(void **map, uint64_t *bytes, const char *what, int fd, errmsg *e);

void shm_unmap(void *map, uint64_t bytes);

#endif
