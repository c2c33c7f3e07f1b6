/* Large pieces are mappings of their own (zero without being written, huge pages where the kernel
 * gives them); small ones come from the allocator, which also lets AddressSanitizer watch them. */
#include "kernels/cpu/memory.h"
#include "common/amount.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MAPPED_FROM (1u << 20)
#define HUGE_PAGE (2u << 20)

/* Bytes that the machine could still hand out; UINT64_MAX where it does not say. */
static uint64_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL) return UINT64_MAX;
    uint64_t available = UINT64_MAX, swap = 0, kib;
    char line[128];
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) available = kib * 1024;
        if (sscanf(line, "SwapFree: %" SCNu64, &kib) == 1) swap = kib * 1024;
    }
    fclose(f);
    return available == UINT64_MAX ? available : available + swap;
}

static status refuse(uint64_t bytes, uint64_t available, int error, errmsg *e)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return errmsg_set(e, ST_RESOURCES,
                          "cpu: cannot allocate %s: %s; this process is limited to %s of address "
                          "space (ulimit -v)",
                          amount_said(bytes), strerror(error), amount_said(limit.rlim_cur));
    return errmsg_set(e, ST_RESOURCES,
                      "cpu: cannot allocate %s: %s; the machine has %s available",
                      amount_said(bytes), strerror(error), amount_said(available));
}

status memory_alloc(void **out, uint64_t bytes, errmsg *e)
{
    *out = NULL;
    if (bytes < MAPPED_FROM) {
        *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (*out == NULL) return refuse(bytes, available_bytes(), errno, e);
        memset(*out, 0, bytes);
        return ST_OK;
    }
    uint64_t available = available_bytes();
    if (bytes > available || bytes > SIZE_MAX / 2) return refuse(bytes, available, ENOMEM, e);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return refuse(bytes, available, errno, e);
    if (bytes >= HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE); /* a hint that may fail */
    *out = p;
    return ST_OK;
}

void memory_free(void *p, uint64_t bytes)
{
    if (p == NULL) return;
    if (bytes < MAPPED_FROM)
        free(p);
    else
        munmap(p, bytes);
}
