/* replay.c - a main for a fuzz target without libFuzzer: run it once on each file that is named. */
#include "common/status.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        long n = 0;
        if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (n = ftell(f)) < 0) {
            fprintf(stderr, "replay: %s cannot be read\n", argv[i]);
            return 2;
        }
        rewind(f);
        uint8_t *data = malloc((size_t)n + 1);
        CHECK(data != NULL && fread(data, 1, (size_t)n, f) == (size_t)n);
        fclose(f);
        LLVMFuzzerTestOneInput(data, (size_t)n);
        free(data);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
