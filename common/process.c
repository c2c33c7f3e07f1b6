#include "common/process.h"

#include <stdio.h>

char process_state(pid_t pid)
{
    char path[32], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    /* "PID (NAME) STATE ..": the name may have anything in it, the last parenthesis ends it. */
    for (int c = fgetc(f); c != EOF; c = fgetc(f)) {
        if (c == ')' && fscanf(f, " %c", &state) != 1) break;
    }
    fclose(f);
    return state;
}
