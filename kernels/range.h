/* range.h - names for stretches of a thread's time, for profilers that show them beside what the
 * device did (NVTX). A build with a CUDA toolkit has them; where no profiler listens a call is a
 * comparison. Ranges of a thread lie inside one another: each push has its pop. */
#ifndef KERNELS_RANGE_H
#define KERNELS_RANGE_H

void range_push(const char *name); /* read before it returns */
void range_pop(void);

#endif
