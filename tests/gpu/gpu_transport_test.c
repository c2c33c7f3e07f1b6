/* Every transport and signal between two processes, on one GPU and on two: each byte of rows of a
 * decode step and of prompt chunks; a sender that is killed, with and without rows announced, lets
 * its receiver go at once; and the receiver meets a new sender under the next epoch.
 *
 * Usage: gpu_transport_test [TRANSPORT]     that one alone */
#include "tests/support/stage_pair.h"

#include "common/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROWS_MAX   64u
#define EMBD       4096u /* 16 KB a row: up to 4 rows are stored by a kernel */
#define STEPS      120u
#define LET_GO_NS  (500 * NS_PER_MS)
#define ABORT_NS   (2 * NS_PER_S) /* NCCL takes half a second to give a communicator up */
#define SIDE_S     60u
#define BUSY_BYTES (4ull << 30)
#define BUSY_COPIES 800u
#define SILENT_OUT 1u    /* phases of the kills */
#define DEAD       2u

typedef struct {
    transport_kind transport;
    signal_kind signal;
} way;

static const way ways[] = {
    {TRANSPORT_AUTO, SIGNAL_AUTO}, {TRANSPORT_IPC, SIGNAL_SPIN},  {TRANSPORT_IPC, SIGNAL_MEMOP},
    {TRANSPORT_IPC, SIGNAL_EVENT}, {TRANSPORT_NCCL, SIGNAL_AUTO}, {TRANSPORT_HOST, SIGNAL_AUTO},
    {TRANSPORT_SHM, SIGNAL_AUTO},
};
#define WAYS (sizeof ways / sizeof *ways)

static uint32_t n_done, n_red;

static void tell(bool good, const char *what, const stage_pair *p, const char *more)
{
    char name[32];
    snprintf(name, sizeof name, "%s", transport_word(p->spec.transport));
    if (p->spec.signal != SIGNAL_AUTO)
        snprintf(name, sizeof name, "%s by %s", transport_word(p->spec.transport),
                 signal_word(p->spec.signal));
    printf("%sok %u - %s over %s, devices %u,%u: %s\n", good ? "" : "not ", ++n_done, what, name,
           p->spec.device[0], p->spec.device[1], more);
    fflush(stdout);
    n_red += !good;
}

static uint32_t rows_of(uint32_t step)
{
    static const uint32_t sizes[] = {1, 4, 5, 16, 1, ROWS_MAX, 2, 1};
    return sizes[step % (sizeof sizes / sizeof *sizes)];
}

static int send_steps(pair_side *s)
{
    int code = 0;
    for (uint32_t step = 1; step <= STEPS && code == 0; step++)
        code = pair_send(s, step, rows_of(step));
    while (code == 0 && atomic_load(&s->shared->phase) == 0) /* the receiver has it all */
        usleep(200);
    return code;
}

static int receive_steps(pair_side *s)
{
    int code = 0;
    for (uint32_t step = 1; step <= STEPS && code == 0; step++)
        code = pair_receive(s, step, rows_of(step));
    atomic_store(&s->shared->phase, 1);
    return code;
}

static bool may_be_refused(const stage_pair *p)
{
    return p->spec.transport == TRANSPORT_NCCL;
}

/* A transport that cannot be here, said in one line. */
static bool refused(stage_pair *p, int rx)
{
    if (rx != PAIR_REFUSED || !may_be_refused(p)) return false;
    kill(p->pid[0], SIGKILL); /* as the coordinator does */
    pair_wait(p, 0, SIDE_S);
    tell(strstr(p->shared->refusal, "MEMRA_PP_TRANSPORT=nccl cannot work here") != NULL, "refusal",
         p, p->shared->refusal);
    return true;
}

static void crossings(const pair_spec *spec)
{
    stage_pair p;
    pair_make(&p, spec);
    pair_start(&p, 1, 1, receive_steps);
    pair_start(&p, 0, 1, send_steps);
    int rx = pair_wait(&p, 1, SIDE_S);
    if (!refused(&p, rx)) {
        if (rx != 0) kill(p.pid[0], SIGKILL);
        int tx = pair_wait(&p, 0, SIDE_S);
        char more[200];
        snprintf(more, sizeof more, "%.40s, %u steps, ends %d %d %.80s", p.shared->way[1], STEPS,
                 tx, rx, p.shared->refusal);
        tell(tx == 0 && rx == 0, "rows", &p, more);
    }
    pair_free(&p);
}

/* --- death of the sender --- */

/* Work for some two seconds, so that what is sent next does not get there. */
static int occupy(pair_side *s)
{
    errmsg e = {0};
    dev_ptr p;
    if (s->b->alloc(s->d, &p, 2 * BUSY_BYTES, &e) != ST_OK) return pair_say(s, "%s", e.text);
    for (uint32_t i = 0; i < BUSY_COPIES; i++)
        if (s->b->copy(s->q, p, dev_offset(p, BUSY_BYTES), BUSY_BYTES) != ST_OK) return 1;
    return 0;
}

/* Wait for the kill, with a step announced whose rows are behind other work, or without. */
static int announce_and_wait(pair_side *s)
{
    errmsg e = {0};
    wire_row row = {.flags = ROW_LIVE};
    if (pair_send(s, 2, 1) != 0) return 1;
    if (s->pair->shared->ns[3] != 0) {
        if (occupy(s) != 0) return 1;
        status st = edges_send(&s->x, 1, 3, &row, NULL, 1, s->hidden, &e);
        if (st != ST_OK) return pair_say(s, "%s %s", status_word(st), e.text);
    }
    atomic_store(&s->shared->phase, SILENT_OUT);
    for (;;)
        pause();
}

/* The control thread of a stage: told to stop by the coordinator, which has seen the death. */
static void *stop_when_dead(void *arg)
{
    pair_side *s = arg;
    while (atomic_load(&s->shared->phase) != DEAD)
        usleep(100);
    atomic_store(&s->shared->ns[0], now_ns());
    atomic_store(&s->stop, 1);
    edges_wake(&s->x);
    return NULL;
}

static int receive_again(pair_side *s)
{
    errmsg e = {0};
    atomic_store(&s->stop, 0);
    edge_renew(&s->x, &s->x.out, 2);
    edge_renew(&s->x, &s->x.in, 2);
    if (edges_connect(&s->x, s->hidden, false, &e) != ST_OK) return pair_say(s, "%s", e.text);
    return receive_steps(s);
}

static int survive(pair_side *s)
{
    pthread_t control;
    errmsg e = {0};
    wire_row row = {.flags = ROW_LIVE};
    if (pair_receive(s, 2, 1) != 0) return 1;
    pthread_create(&control, NULL, stop_when_dead, s);
    incoming in = {.slot = 1, .seq = 3, .rows = &row, .n_rows = 1, .hidden = s->hidden};
    status st = edges_receive(&s->x, &in, &e);
    uint64_t let_go = now_ns();
    pthread_join(control, NULL);
    atomic_store(&s->shared->ns[1], let_go - atomic_load(&s->shared->ns[0]));
    if (st != ST_CLOSED) return pair_say(s, "waiting ended with %s %s", status_word(st), e.text);
    atomic_store(&s->shared->phase, 0);
    return receive_again(s);
}

static void death(const pair_spec *spec, bool announced)
{
    stage_pair p;
    char more[240];
    pair_make(&p, spec);
    p.shared->ns[3] = announced;
    pair_start(&p, 1, 1, survive);
    pair_start(&p, 0, 1, announce_and_wait);
    uint64_t deadline = now_ns() + SIDE_S * NS_PER_S;
    while (atomic_load(&p.shared->phase) != SILENT_OUT && p.shared->refusal[0] == '\0' &&
           now_ns() < deadline)
        usleep(500);
    int rx = 0;
    if (p.shared->refusal[0] != '\0' && (rx = pair_wait(&p, 1, SIDE_S), refused(&p, rx))) {
        pair_free(&p);
        return;
    }
    usleep(100000); /* the receiver waits, on its device where rows were announced */
    kill(p.pid[0], SIGKILL);
    pair_wait(&p, 0, SIDE_S);
    atomic_store(&p.shared->phase, DEAD);
    while (atomic_load(&p.shared->phase) == DEAD && now_ns() < deadline)
        usleep(100);
    pair_start(&p, 0, 2, send_steps);
    rx = pair_wait(&p, 1, SIDE_S);
    if (rx != 0) kill(p.pid[0], SIGKILL);
    int tx = pair_wait(&p, 0, SIDE_S);
    uint64_t limit_ns = spec->transport == TRANSPORT_NCCL ? ABORT_NS : LET_GO_NS;
    uint64_t took = atomic_load(&p.shared->ns[1]);
    snprintf(more, sizeof more,
             "let go after %.0f us, then %u steps with another, ends %d %d %.80s",
             (double)took / 1e3, STEPS, tx, rx, p.shared->refusal);
    tell(tx == 0 && rx == 0 && took > 0 && took < limit_ns,
         announced ? "death after the announcement" : "death before it", &p, more);
    pair_free(&p);
}

int main(int argc, char **argv)
{
    uint32_t n = pair_devices();
    if (n == 0) {
        printf("1..0 # SKIP no CUDA device\n");
        return 0;
    }
    alarm(280);
    for (uint32_t two = 0; two <= (n > 1); two++) {
        for (size_t i = 0; i < WAYS; i++) {
            if (argc > 1 && strcmp(argv[1], transport_word(ways[i].transport)) != 0) continue;
            pair_spec spec = {.device = {0, two},
                              .transport = ways[i].transport,
                              .signal = ways[i].signal,
                              .rows_max = ROWS_MAX,
                              .n_embd = EMBD};
            crossings(&spec);
            if (spec.transport == TRANSPORT_NCCL && two == 0) continue; /* refused, as seen */
            if (spec.transport != TRANSPORT_AUTO) death(&spec, false);
            if (spec.transport == TRANSPORT_IPC || spec.transport == TRANSPORT_NCCL)
                death(&spec, true);
        }
    }
    printf("1..%u\n# %s: %u of %u red\n", n_done, n_red == 0 ? "ok" : "not ok", n_red, n_done);
    return n_red == 0 ? 0 : 1;
}
