#include "coordinator/machine/gpus.h"

#include "common/clock.h"
#include "coordinator/engine/child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES       131072u
#define CAPABILITY_MAJOR 9u
#define LOOK_MS          50 /* at whether somebody does not want to wait any longer */

static status find_program(char *path, size_t bytes, const char *given, errmsg *e)
{
    if (given != NULL) {
        snprintf(path, bytes, "%s", given);
    } else {
        ssize_t n = readlink("/proc/self/exe", path, bytes - 16);
        char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
        if (slash == NULL)
            return errmsg_set(e, ST_RESOURCES, "cannot find out where this program lies");
        strcpy(slash + 1, "memra-stage");
    }
    if (access(path, X_OK) == 0) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "cannot run %s: %s", path, strerror(errno));
}

/* All that comes until the other end is closed, terminated. */
static status read_all(int fd, char *text, uint32_t limit_ms, const volatile int *interrupt,
                       errmsg *e)
{
    uint64_t deadline = now_ns() + limit_ms * NS_PER_MS;
    size_t n = 0;
    for (;;) {
        uint64_t now = now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (interrupt != NULL && __atomic_load_n(interrupt, __ATOMIC_RELAXED) != 0)
            return ST_INTERRUPTED;
        int ready = now < deadline ? poll(&p, 1, LOOK_MS) : -1;
        if (ready == 0 || (ready < 0 && now < deadline && errno == EINTR)) continue;
        if (ready < 0)
            return errmsg_set(e, ST_RESOURCES, "memra-stage --probe gave no answer in %u ms",
                              limit_ms);
        ssize_t got = read(fd, text + n, TEXT_BYTES - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return ST_OK;
}

const gpu *gpus_get(const gpu_list *l, uint32_t ordinal)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->at[i].ordinal == ordinal) return &l->at[i];
    }
    return NULL;
}

bool gpus_same(const gpu_list *l, uint32_t a, uint32_t b)
{
    const gpu *x = gpus_get(l, a), *y = gpus_get(l, b);
    return a == b || (x != NULL && y != NULL && strcmp(x->uuid, y->uuid) == 0);
}

gpu_link gpus_link(const gpu_list *l, uint32_t from, uint32_t to)
{
    const gpu *x = gpus_get(l, from), *y = gpus_get(l, to);
    return x != NULL && y != NULL ? (gpu_link)l->link[x - l->at][y - l->at] : GPU_LINK_NONE;
}

const char *gpu_link_word(gpu_link k)
{
    return k == GPU_LINK_NVLINK ? "NVLink" : k == GPU_LINK_PCIE ? "PCIe" : "none";
}

status gpu_usable(const gpu *g, errmsg *e)
{
    if (g->mps)
        return errmsg_set(
            e, ST_RESOURCES,
            "cuda:%u runs under MPS, where a stage's fault would be every stage's: stop "
            "it (echo quit | nvidia-cuda-mps-control)",
            g->ordinal);
    if (g->exclusive)
        return errmsg_set(e, ST_RESOURCES,
                          "cuda:%u is in exclusive or prohibited compute mode: nvidia-smi -i %s -c "
                          "DEFAULT opens it to several processes",
                          g->ordinal, g->uuid);
    if (g->major >= CAPABILITY_MAJOR) return ST_OK;
    return errmsg_set(e, ST_RESOURCES,
                      "cuda:%u is of compute capability %u.%u: the kernels of this build need %u.0",
                      g->ordinal, g->major, g->minor, CAPABILITY_MAJOR);
}

static bool parse_gpu(gpu *g, const char *line)
{
    char mode[16];
    int n = sscanf(line,
                   "gpu %" SCNu32 " %47s %" SCNu32 ".%" SCNu32 " %" SCNu64 " %" SCNu64
                   " %15s %63[^\n]",
                   &g->ordinal, g->uuid, &g->major, &g->minor, &g->memory_bytes,
                   &g->memory_free_bytes, mode, g->name);
    if (n != 8) return false;
    g->exclusive = strcmp(mode, "exclusive") == 0;
    g->mps = strcmp(mode, "mps") == 0;
    return g->exclusive || g->mps || strcmp(mode, "shared") == 0;
}

static bool parse_link(gpu_list *l, const char *line)
{
    uint32_t from, to;
    char kind[16];
    if (sscanf(line, "link %" SCNu32 " %" SCNu32 " %15s", &from, &to, kind) != 3) return false;
    const gpu *x = gpus_get(l, from), *y = gpus_get(l, to);
    if (x == NULL || y == NULL) return false;
    l->link[x - l->at][y - l->at] = strcmp(kind, "nvlink") == 0 ? GPU_LINK_NVLINK
                                    : strcmp(kind, "pcie") == 0 ? GPU_LINK_PCIE
                                                                : GPU_LINK_NONE;
    return true;
}

status gpus_parse(gpu_list *out, const char *text, errmsg *e)
{
    int n;
    const char *line = text;
    *out = (gpu_list){0};
    bool fine = sscanf(line, "cuda %d", &n) == 1 && n >= -1 && n <= (int)GPUS_MAX;
    for (int i = 0; fine && i < n; i++) {
        line = strchr(line, '\n');
        fine = line != NULL && parse_gpu(&out->at[i], ++line);
        out->n += fine;
    }
    for (int i = 0; fine && n > 1 && i < n * (n - 1); i++) {
        line = strchr(line, '\n');
        fine = line != NULL && parse_link(out, ++line);
    }
    if (!fine) {
        *out = (gpu_list){0};
        return errmsg_set(e, ST_RESOURCES,
                          "memra-stage --probe says '%.40s', which is no device list", text);
    }
    out->built = n >= 0;
    return ST_OK;
}

status gpus_read(gpu_list *out, const char *stage_program, uint32_t limit_ms,
                 const volatile int *interrupt, errmsg *e)
{
    char path[4096], fd_text[12], text[TEXT_BYTES];
    int ends[2];
    *out = (gpu_list){0};
    TRY(find_program(path, sizeof path, stage_program, e));
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errmsg_set(e, ST_RESOURCES, "pipe: %s", strerror(errno));
    snprintf(fd_text, sizeof fd_text, "%d", ends[1]);
    char *const argv[] = {path, "--probe", fd_text, NULL};
    child c;
    status s = child_start(&c, argv, &ends[1], 1, e);
    bool asked = s == ST_OK;
    close(ends[1]);
    if (s == ST_OK) s = read_all(ends[0], text, limit_ms, interrupt, e);
    close(ends[0]);
    child_destroy(&c);
    if (s == ST_OK) s = gpus_parse(out, text, e);
    out->asked = asked;
    return s;
}
