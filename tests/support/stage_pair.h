/* stage_pair.h - two processes with the edges of two stages, each on a device of its own, for tests
 * and measurements of boundaries between real devices.
 *
 * The parent touches no CUDA. A side is forked, opens its device, connects and runs a function; it
 * ends with its exit code, 0 well, after a line on stdout that begins with '#' where there is
 * something to say. */
#ifndef TESTS_SUPPORT_STAGE_PAIR_H
#define TESTS_SUPPORT_STAGE_PAIR_H

#include "stage/connect.h"

#include <sys/types.h>

#define PAIR_N       2u
#define PAIR_REFUSED 10 /* exit code: the transport was refused; `refusal` says why */

typedef struct {
    uint32_t device[PAIR_N]; /* ordinals */
    transport_kind transport;
    signal_kind signal;
    uint32_t rows_max, n_embd;
} pair_spec;

/* What parent and sides share. */
typedef struct {
    _Atomic uint32_t phase;  /* the test's own */
    _Atomic uint64_t ns[4];
    stage_words words[PAIR_N];
    char way[PAIR_N][48];    /* "ipc (spin, memop)" */
    char refusal[512];
} pair_shared;

typedef struct {
    pair_spec spec;
    pair_shared *shared;
    int fd[PAIR_N];
    pid_t pid[PAIR_N];
} stage_pair;

/* One side, inside its process. */
typedef struct {
    const stage_pair *pair;
    pair_shared *shared;
    uint32_t i;
    const backend *b;
    backend_device *d;
    backend_queue *q;
    edges x;
    _Atomic uint32_t stop;
    dev_ptr hidden;          /* [rows_max, n_embd] */
    float *host;             /* the same size */
} pair_side;

typedef int (*pair_function)(pair_side *s);

/* CUDA devices here, counted in a process of its own. */
uint32_t pair_devices(void);

void pair_make(stage_pair *p, const pair_spec *spec);
/* Fork side i: device, edges of that epoch, connected (0: not), f, and everything closed again.
 * PAIR_REFUSED when connecting failed. */
void pair_start(stage_pair *p, uint32_t i, uint32_t epoch, pair_function f);
void pair_start_unconnected(stage_pair *p, uint32_t i, uint32_t epoch, pair_function f);
/* Wait for a side, for at most limit_s; then it is killed. Its exit code, or 128 + the signal. */
int pair_wait(stage_pair *p, uint32_t i, unsigned limit_s);
void pair_free(stage_pair *p);

/* A step of n_rows from side 0, or into side 1, with a pattern that the receiver checks: 0:
 * equal. */
int pair_send(pair_side *s, uint32_t step, uint32_t n_rows);
int pair_receive(pair_side *s, uint32_t step, uint32_t n_rows);

/* Print "# ..." from a side; returns 1. */
int pair_say(const pair_side *s, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
