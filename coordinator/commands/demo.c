#include "coordinator/commands/demo.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LEVELS_MAX 4 /* SOURCE/build/PRESET/bin, and one more */

/* dir/rest when a file of that name can be read. */
static const char *readable(const char *dir, const char *rest, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, "%s/%s", dir, rest);
    return n > 0 && (size_t)n < bytes && access(out, R_OK) == 0 ? out : NULL;
}

const char *demo_path_near(const char *dir, char *out, size_t bytes)
{
    char above[PATH_MAX];
    int n = snprintf(above, sizeof above, "%s", dir);
    if (n <= 0 || (size_t)n >= sizeof above) return NULL;
    char *slash = strrchr(above, '/');
    if (slash == NULL) return NULL;
    *slash = '\0';
    if (readable(above, "share/memra-pp/demo.gguf", out, bytes) != NULL) return out;
    for (int level = 0; level < LEVELS_MAX && above[0] != '\0'; level++) {
        if (readable(above, "launch/demo/demo.gguf", out, bytes) != NULL) return out;
        slash = strrchr(above, '/');
        if (slash == NULL) return NULL;
        *slash = '\0';
    }
    return NULL;
}

const char *demo_path(char *out, size_t bytes)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return NULL;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (slash == NULL) return NULL;
    *slash = '\0';
    return demo_path_near(program, out, bytes);
}
