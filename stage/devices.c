#include "stage/devices.h"

#include "kernels/backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define GPUS_MAX 64u

status devices_write(int fd, errmsg *e)
{
    backend_gpu gpu[GPUS_MAX];
    uint32_t n = 0;
    if (backend_cuda() == NULL) {
        dprintf(fd, "cuda -1\n");
        return ST_OK;
    }
    TRY(backend_gpus(gpu, GPUS_MAX, &n, e));
    int written = dprintf(fd, "cuda %u\n", n);
    for (uint32_t i = 0; i < n && written > 0; i++) {
        const backend_gpu *g = &gpu[i];
        written = dprintf(fd, "gpu %u %s %u.%u %llu %llu %s %s\n", g->ordinal, g->uuid, g->major,
                          g->minor, (unsigned long long)g->memory_bytes,
                          (unsigned long long)g->memory_free_bytes,
                          g->mps         ? "mps"
                          : g->exclusive ? "exclusive"
                                         : "shared",
                          g->name);
    }
    for (uint32_t i = 0; i < n * n && written > 0; i++) {
        if (i / n == i % n) continue;
        uint32_t from = gpu[i / n].ordinal, to = gpu[i % n].ordinal;
        written = dprintf(fd, "link %u %u %s\n", from, to, backend_gpu_link(from, to));
    }
    if (written > 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "descriptor %d: %s", fd, strerror(errno));
}
