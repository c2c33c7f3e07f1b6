/* journal_bench - what it costs a stage to keep the rows that it sends, beside the work on those rows.
 *
 *     journal_bench [cpu|cuda [shape [type]]]     default: layers=4,embd=2048,ff=5632,heads=16,vocab=512
 *                                                 q8_0 on the cpu, four layers of an 8B on cuda
 *
 * One stage with half of the shape's layers. cpu: one thread, processor time of the walk and of the keep,
 * for decode rows and for chunks of a prompt, each the least of several runs, in turn. cuda: a context
 * filled in steps of so many rows, by the wall clock, without a journal and with one, in turn, the least
 * of several; and with one that was made just now, whose memory is not pinned yet. A stage of a real model
 * has more layers a row, so that the share there is smaller. */
#include "common/clock.h"
#include "coordinator/shape/shape.h"
#include "stage/keep.h"
#include "tests/support/stage_chain.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROWS_MAX 2048u
#define CTX      4096u
#define RUNS     15u /* cpu; cuda: */
#define PASSES   5u
#define STEPS    256u /* of a pass, at most */

typedef struct {
    chain c;
    const backend *b;
    keeper keeper; /* what the stage knows */
    wire_row rows[ROWS_MAX];
    uint64_t seq;
} bench;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void must(status s, const errmsg *e)
{
    if (s == ST_OK) return;
    fprintf(stderr, "journal_bench: %s\n", e->text);
    exit(status_exit_code(s));
}

static void least(uint64_t *least_ns, uint64_t ns)
{
    if (ns < *least_ns) *least_ns = ns;
}

static status meanwhile(void *ctx, errmsg *e)
{
    bench *x = ctx;
    return keep_land(&x->keeper, e);
}

/* A journal that nobody has touched; the one before is gone. */
static void new_journal(bench *x)
{
    errmsg e = {0};
    int fd = -1;
    keeper_close(&x->keeper);
    must(journal_create(&fd, CTX / KV_BLOCK, x->c.model->n_embd, &e), &e);
    must(keeper_open(&x->keeper, fd, x->c.stage[0], x->b, ROWS_MAX, &e), &e);
    close(fd);
}

static void walk(bench *x, uint32_t position, uint32_t n)
{
    errmsg e = {0};
    stage *s = x->c.stage[0];
    for (uint32_t i = 0; i < n; i++) {
        x->rows[i] = (wire_row){.generation = 1, .position = position + i, .token = 3, .flags = ROW_LIVE,
                                .readback = WIRE_NONE, .sampler_i = WIRE_NONE, .stop_i = WIRE_NONE, .rounds = 1};
    }
    must(stage_rows(s, x->rows, n, 0, &e), &e);
    must(stage_embed(s, &e), &e);
    must(stage_walk(s, false, x->c.poison, &e), &e);
}

static void keep(bench *x, uint32_t n)
{
    errmsg e = {0};
    must(keep_begin(&x->keeper, x->rows, n, &e), &e);
    must(keep_rows(&x->keeper, ++x->seq, x->rows, n, &e), &e);
}

/* A step of n rows at the end of branch 0. */
static void measure_cpu(bench *x, uint32_t n)
{
    uint64_t walk_ns = UINT64_MAX, keep_ns = UINT64_MAX;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint64_t begin = cpu_ns();
        walk(x, 512 - n, n);
        uint64_t walked = cpu_ns();
        keep(x, n);
        least(&walk_ns, walked - begin);
        least(&keep_ns, cpu_ns() - walked);
    }
    printf("%4u rows: walk %10.1f us, keep %8.2f us, %.2f %%\n", n, (double)walk_ns / 1e3,
           (double)keep_ns / 1e3, 100.0 * (double)keep_ns / (double)walk_ns);
}

/* Steps of n rows to the end of the context; their mean time. */
static uint64_t pass_ns(bench *x, uint32_t n, bool keeps)
{
    errmsg e = {0};
    uint32_t n_steps = CTX / n < STEPS ? CTX / n : STEPS;
    must(stage_settle(x->c.stage[0], &e), &e);
    uint64_t begin = now_ns();
    for (uint32_t i = 0; i < n_steps; i++) {
        walk(x, CTX - (n_steps - i) * n, n);
        if (keeps) keep(x, n);
    }
    must(keep_land(&x->keeper, &e), &e);
    return (now_ns() - begin) / n_steps;
}

static void measure_cuda(bench *x, uint32_t n)
{
    uint64_t walk_ns = UINT64_MAX, new_ns = UINT64_MAX, kept_ns = UINT64_MAX;
    (void)pass_ns(x, n, false);
    for (uint32_t i = 0; i < PASSES; i++) {
        least(&walk_ns, pass_ns(x, n, false));
        new_journal(x);
        least(&new_ns, pass_ns(x, n, true));
        while (pinned_end(x->keeper.pinned) < x->keeper.to.bytes) sched_yield();
        least(&kept_ns, pass_ns(x, n, true));
    }
    double alone = (double)walk_ns, fresh = (double)new_ns - alone, again = (double)kept_ns - alone;
    printf("%4u rows: walk %10.1f us, kept %+8.2f us %+.2f %%, in a new one %+8.2f us %+.2f %%\n", n,
           alone / 1e3, again / 1e3, 100 * again / alone, fresh / 1e3, 100 * fresh / alone);
}

static void open_branch(bench *x)
{
    errmsg e = {0};
    wire_kv_op op = {.kind = KV_OPEN, .generation = 1};
    must(stage_kv_ops(x->c.stage[0], &op, 1, &e), &e);
    for (uint32_t i = 0; i < CTX / KV_BLOCK; i++) {
        op = (wire_kv_op){.kind = KV_ALLOC, .generation = 1, .a = i, .b = i};
        must(stage_kv_ops(x->c.stage[0], &op, 1, &e), &e);
    }
}

int main(int argc, char **argv)
{
    static bench x;
    bool cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    const char *text = cuda ? "8b,layers=8,vocab=512" : "layers=4,embd=2048,ff=5632,heads=16,vocab=512";
    errmsg e = {0};
    shape s;
    int fd = -1;
    gguf *file;
    x.b = cuda ? backend_cuda() : backend_cpu();
    if (x.b == NULL) must(errmsg_set(&e, ST_USAGE, "this build has no CUDA backend"), &e);
    must(shape_parse(&s, argc > 2 ? argv[2] : text, argc > 3 ? argv[3] : "q8_0", &e), &e);
    must(shape_open(&fd, &s, &e), &e);
    must(shape_fill(fd, &s, 1, NULL, &e), &e);
    must(gguf_open_fds(&file, &fd, 1, &e), &e);
    chain_spec spec = chain_spec_default();
    spec.n_cuts = 1;
    spec.cut[0] = s.n_layers / 2;
    spec.backend = x.b;
    spec.keeps = true;
    spec.meanwhile = meanwhile;
    spec.meanwhile_ctx = &x;
    spec.kv_type = DT_F16;
    spec.rows_max = ROWS_MAX;
    spec.n_ctx = CTX;
    spec.n_blocks = CTX / KV_BLOCK;
    chain_open(&x.c, file, &spec);
    open_branch(&x);
    new_journal(&x);
    printf("%s, %u of %u layers, %s\n", s.name, s.n_layers / 2, s.n_layers,
           stage_facts_get(x.c.stage[0]).device_name);
    const uint32_t n_rows[] = {1, 8, 256, 2048};
    for (uint32_t i = 0; i < (cuda ? 4 : 3); i++) {
        if (cuda) measure_cuda(&x, n_rows[i]);
        else measure_cpu(&x, n_rows[i]);
    }
    keeper_close(&x.keeper);
    chain_close(&x.c);
    return 0;
}
