#include "coordinator/engine/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

unsigned leftovers_remove_in(const char *dir, uid_t uid, pid_t pid)
{
    char prefix[64];
    unsigned n = 0;
    int bytes = snprintf(prefix, sizeof prefix, "cuda.shm.%u.%x.", (unsigned)uid, (unsigned)pid);
    DIR *d = opendir(dir);
    if (d == NULL) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, prefix, (size_t)bytes) != 0) continue;
        n += unlinkat(dirfd(d), e->d_name, 0) == 0;
    }
    closedir(d);
    return n;
}

void leftovers_remove(pid_t pid)
{
    leftovers_remove_in("/dev/shm", getuid(), pid);
}
