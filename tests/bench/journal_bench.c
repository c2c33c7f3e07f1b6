/* journal_bench - what it costs a stage to keep the rows that it sends, beside the work on those rows.
 *
 *     journal_bench [shape [type]]            default: layers=4,embd=2048,ff=5632,heads=16,vocab=512 q8_0
 *
 * One stage with half of the shape's layers, one thread: processor time of the walk and of the keep,
 * for decode rows and for chunks of a prompt, each the least of several runs, in turn. A stage of a
 * real model has more layers a row, so that the share there is smaller. */
#include "coordinator/shape/shape.h"
#include "stage/keep.h"
#include "tests/support/stage_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROWS_MAX 256u
#define CTX      512u
#define RUNS     15u

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

/* A step of n rows at the end of branch 0, which has room for them. */
static void measure(chain *c, const journal *j, uint32_t n)
{
    wire_row rows[ROWS_MAX];
    errmsg e = {0};
    uint64_t walk_ns = UINT64_MAX, keep_ns = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (wire_row){.generation = 1, .position = CTX - n + i, .token = 3, .flags = ROW_LIVE,
                             .readback = WIRE_NONE, .sampler_i = WIRE_NONE, .stop_i = WIRE_NONE, .rounds = 1};
    }
    for (uint32_t run = 0; run < RUNS; run++) {
        uint64_t begin = cpu_ns();
        must(stage_rows(c->stage[0], rows, n, 0, &e), &e);
        must(stage_embed(c->stage[0], &e), &e);
        must(stage_walk(c->stage[0], false, c->poison, &e), &e);
        uint64_t walked = cpu_ns();
        keep_begin(j, c->stage[0], rows, n);
        must(keep_rows(j, c->stage[0], backend_cpu(), run + 1, rows, n, &e), &e);
        least(&walk_ns, walked - begin);
        least(&keep_ns, cpu_ns() - walked);
    }
    printf("%4u rows: walk %10.1f us, keep %8.2f us, %.2f %%\n", n, (double)walk_ns / 1e3,
           (double)keep_ns / 1e3, 100.0 * (double)keep_ns / (double)walk_ns);
}

int main(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : "layers=4,embd=2048,ff=5632,heads=16,vocab=512";
    errmsg e = {0};
    shape s;
    int fd = -1, journal_fd = -1;
    gguf *file;
    journal j;
    must(shape_parse(&s, text, argc > 2 ? argv[2] : "q8_0", &e), &e);
    must(shape_open(&fd, &s, &e), &e);
    must(shape_fill(fd, &s, 1, NULL, &e), &e);
    must(gguf_open_fds(&file, &fd, 1, &e), &e);
    chain c;
    chain_spec spec = chain_spec_default();
    spec.n_cuts = 1;
    spec.cut[0] = s.n_layers / 2;
    spec.kv_type = DT_F16;
    spec.rows_max = ROWS_MAX;
    spec.n_ctx = CTX;
    spec.n_blocks = CTX / KV_BLOCK;
    chain_open(&c, file, &spec);
    must(journal_create(&journal_fd, spec.n_blocks, s.n_embd, &e), &e);
    must(journal_map(&j, journal_fd, &e), &e);
    wire_kv_op op = {.kind = KV_OPEN, .generation = 1};
    must(stage_kv_ops(c.stage[0], &op, 1, &e), &e);
    for (uint32_t i = 0; i < spec.n_blocks; i++) {
        op = (wire_kv_op){.kind = KV_ALLOC, .generation = 1, .a = i, .b = i};
        must(stage_kv_ops(c.stage[0], &op, 1, &e), &e);
    }
    printf("%s, %u of %u layers, one thread\n", s.name, s.n_layers / 2, s.n_layers);
    for (uint32_t n = 1; n <= ROWS_MAX; n *= n == 1 ? 8 : 32) measure(&c, &j, n);
    journal_unmap(&j);
    close(journal_fd);
    chain_close(&c);
    return 0;
}
