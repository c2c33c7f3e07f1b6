#include "tests/support/stage_pair.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/shm.h"
#include "coordinator/engine/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOOKS_MS 1

int pair_say(const pair_side *s, const char *format, ...)
{
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("# side %u: %s\n", s->i, line);
    fflush(stdout);
    return 1;
}

uint32_t pair_devices(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        backend_gpu gpus[16];
        uint32_t n = 0;
        errmsg e = {0};
        exit(backend_gpus(gpus, 16, &n, &e) == ST_OK ? (int)n : 0);
    }
    int w = 0;
    return pid > 0 && waitpid(pid, &w, 0) == pid && WIFEXITED(w) ? (uint32_t)WEXITSTATUS(w) : 0;
}

void pair_make(stage_pair *p, const pair_spec *spec)
{
    errmsg e = {0};
    int fd;
    void *map;
    *p = (stage_pair){.spec = *spec};
    if (boundary_create(&p->fd[0], spec->rows_max, spec->n_embd, 0, &e) != ST_OK ||
        boundary_create(&p->fd[1], spec->rows_max, 0, 0, &e) != ST_OK ||
        shm_create(&fd, &map, "test", sizeof *p->shared, &e) != ST_OK) {
        printf("Bail out! %s\n", e.text);
        exit(1);
    }
    close(fd);
    p->shared = map;
}

static status open_side(pair_side *s, uint32_t epoch, errmsg *e)
{
    const pair_spec *spec = &s->pair->spec;
    uint64_t bytes = (uint64_t)spec->rows_max * spec->n_embd * sizeof(float);
    device_spec d = {.numa_node = UINT32_MAX,
                     .n_threads = 1,
                     .isa = "auto",
                     .cuda_index = spec->device[s->i]};
    s->b = backend_cuda();
    s->host = malloc(bytes);
    TRY(s->b->device_open(&s->d, &d, e));
    TRY(s->b->queue_open(s->d, &s->q, e));
    TRY(s->b->alloc(s->d, &s->hidden, bytes, e));
    wire_config c = {.stage_i = s->i,
                     .n_stages = PAIR_N,
                     .edge_epoch = epoch,
                     .rows_max = spec->rows_max,
                     .in_fd = s->pair->fd[(s->i + 1) % PAIR_N],
                     .out_fd = s->pair->fd[s->i],
                     .transport = spec->transport,
                     .signal = spec->signal,
                     .wait_limit_ms = 60000};
    return edges_open(&s->x, &c, s->b, s->q, &s->shared->words[s->i], &s->stop, e);
}

static void close_side(pair_side *s)
{
    edges_close(&s->x);
    if (s->hidden.addr != 0) s->b->free(s->d, s->hidden, 0);
    if (s->q != NULL) s->b->queue_close(s->q);
    if (s->d != NULL) s->b->device_close(s->d);
}

static void run_side(const stage_pair *p, uint32_t i, uint32_t epoch, bool connect, pair_function f)
{
    pair_side s = {.pair = p, .shared = p->shared, .i = i};
    errmsg e = {0};
    char who[16];
    snprintf(who, sizeof who, "side %u", i);
    log_open(who, LOG_WARN, STDERR_FILENO);
    status st = open_side(&s, epoch, &e);
    if (st != ST_OK) {
        pair_say(&s, "%s", e.text);
        exit(2);
    }
    if (connect) st = edges_connect(&s.x, s.hidden, false, &e);
    if (st != ST_OK) {
        snprintf(p->shared->refusal, sizeof p->shared->refusal, "%s", e.text);
        close_side(&s);
        exit(PAIR_REFUSED); /* not _exit: the driver cleans up behind it */
    }
    const edge *g = i == 0 ? &s.x.out : &s.x.in;
    if (connect)
        snprintf(p->shared->way[i], sizeof p->shared->way[i], "%s (%s)", g->kind->name,
                 g->kind->signal(g->way));
    int code = f(&s);
    close_side(&s);
    exit(code);
}

static void start(stage_pair *p, uint32_t i, uint32_t epoch, bool connect, pair_function f)
{
    fflush(stdout);
    p->pid[i] = fork();
    if (p->pid[i] == 0) run_side(p, i, epoch, connect, f);
}

void pair_start(stage_pair *p, uint32_t i, uint32_t epoch, pair_function f)
{
    start(p, i, epoch, true, f);
}

void pair_start_unconnected(stage_pair *p, uint32_t i, uint32_t epoch, pair_function f)
{
    start(p, i, epoch, false, f);
}

int pair_wait(stage_pair *p, uint32_t i, unsigned limit_s)
{
    const struct timespec pause = {.tv_nsec = BOOKS_MS * 1000000};
    uint64_t deadline = now_ns() + limit_s * NS_PER_S;
    int w = 0;
    pid_t got;
    while ((got = waitpid(p->pid[i], &w, WNOHANG)) == 0 && now_ns() < deadline)
        nanosleep(&pause, NULL);
    if (got == 0) {
        printf("# side %u is still there after %u s\n", i, limit_s);
        kill(p->pid[i], SIGKILL);
        waitpid(p->pid[i], &w, 0);
    }
    leftovers_remove(p->pid[i]);
    return WIFEXITED(w) ? WEXITSTATUS(w) : 128 + WTERMSIG(w);
}

void pair_free(stage_pair *p)
{
    for (uint32_t i = 0; i < PAIR_N; i++)
        close(p->fd[i]);
    shm_unmap(p->shared, sizeof *p->shared);
}

/* --- steps --- */

static uint32_t pattern(uint32_t step, uint32_t i)
{
    return (step * 2654435761u) ^ (i * 2246822519u + 1);
}

static void row_of(wire_row *rows, uint32_t step, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        rows[r] = (wire_row){.session = 3, .position = r, .token = step, .flags = ROW_LIVE};
}

static status finish(const pair_side *s)
{
    backend_event ev;
    TRY(s->b->event_record(s->q, &ev));
    return s->b->event_wait(s->q, ev);
}

int pair_send(pair_side *s, uint32_t step, uint32_t n_rows)
{
    errmsg e = {0};
    wire_row *rows = calloc(n_rows, sizeof *rows);
    uint32_t n = n_rows * s->pair->spec.n_embd, *words = (uint32_t *)s->host;
    row_of(rows, step, n_rows);
    for (uint32_t i = 0; i < n; i++)
        words[i] = pattern(step, i);
    status st = s->b->upload(s->q, s->hidden, s->host, (uint64_t)n * sizeof(float));
    if (st == ST_OK) st = finish(s);
    if (st == ST_OK) st = edges_send(&s->x, step % 2, step, rows, NULL, n_rows, s->hidden, &e);
    free(rows);
    return st == ST_OK ? 0 : pair_say(s, "step %u: %s %s", step, status_word(st), e.text);
}

int pair_receive(pair_side *s, uint32_t step, uint32_t n_rows)
{
    errmsg e = {0};
    wire_row *rows = calloc(n_rows, sizeof *rows);
    uint32_t n = n_rows * s->pair->spec.n_embd, *words = (uint32_t *)s->host;
    row_of(rows, step, n_rows);
    incoming in = {
        .slot = step % 2, .seq = step, .rows = rows, .n_rows = n_rows, .hidden = s->hidden};
    status st = edges_receive(&s->x, &in, &e);
    if (st == ST_OK) st = s->b->download(s->q, s->host, s->hidden, (uint64_t)n * sizeof(float));
    if (st == ST_OK) st = finish(s);
    free(rows);
    if (st != ST_OK) return pair_say(s, "step %u: %s %s", step, status_word(st), e.text);
    for (uint32_t i = 0; i < n; i++)
        if (words[i] != pattern(step, i))
            return pair_say(s, "step %u of %u rows: element %u is %08x, sent %08x", step, n_rows, i,
                            words[i], pattern(step, i));
    return 0;
}
