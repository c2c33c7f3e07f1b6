/* memory_use.h - what a process really has in memory, by kind, from /proc/PID/smaps. */
#ifndef TESTS_SUPPORT_MEMORY_USE_H
#define TESTS_SUPPORT_MEMORY_USE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t weights; /* resident in mappings of the model's file */
    uint64_t shared;  /* its share of the run's own shared memory: slots, readback, run block */
    uint64_t own;     /* anonymous: heap, stacks, mappings, what was written of libraries' data */
    uint64_t code;    /* its share of what is resident of programs and libraries */
} memory_use;

/* model: a part of the mapped file's name. False: the process is gone or cannot be read. */
bool memory_use_read(memory_use *out, int pid, const char *model);

#endif
