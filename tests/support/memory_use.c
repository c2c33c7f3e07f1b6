#include "tests/support/memory_use.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OWN_SHARED_NAME "/memfd:memra-pp " /* the kernel appends "(deleted)" */

/* The name at the end of a mapping's first line, "" when it has none; false: not such a line. */
static bool mapping_name(const char *line, char name[512])
{
    uint64_t from, to;
    int at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %n", &from, &to, &at) < 2)
        return false;
    snprintf(name, 512, "%s", at > 0 ? line + at : "");
    name[strcspn(name, "\n")] = '\0';
    return true;
}

bool memory_use_read(memory_use *out, int pid, const char *model)
{
    char path[64], line[1024], name[512] = "";
    *out = (memory_use){0};
    snprintf(path, sizeof path, "/proc/%d/smaps", pid);
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    uint64_t pss = 0, kib;
    while (fgets(line, sizeof line, f) != NULL) {
        if (mapping_name(line, name)) continue;
        bool weights = strstr(name, model) != NULL;
        bool shared = strncmp(name, OWN_SHARED_NAME, strlen(OWN_SHARED_NAME)) == 0;
        if (weights && sscanf(line, "Rss: %" SCNu64, &kib) == 1) out->weights += kib << 10;
        if (!weights && sscanf(line, "Pss: %" SCNu64, &kib) == 1) pss = kib << 10;
        if (weights || sscanf(line, "Anonymous: %" SCNu64, &kib) != 1)
            continue; /* the last of both */
        if (shared) {
            out->shared += pss;
        } else {
            out->own += kib << 10;
            out->code += pss > kib << 10 ? pss - (kib << 10) : 0;
        }
    }
    fclose(f);
    return true;
}
