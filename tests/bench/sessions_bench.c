/* Many sessions at once over real stages: tokens/s together, and what the coordinator (this process)
 * spends on them.
 *
 *     sessions_bench MODEL STAGES SESSIONS TOKENS [OVERLAP [FAULT]]
 *
 * MODEL: a file, or random:SHAPE:TYPE (shape.h), made in memory. MEMRA_PP_DEVICES and
 * MEMRA_STAGE_PROGRAM are heeded. Every session has a prompt of 16 tokens (MEMRA_BENCH_PROMPT) and
 * generates TOKENS by itself, taken by one thread as they come; the time is from the first
 * generation's begin to the last token. One line, for RESULTS.md. */
#include "common/clock.h"
#include "coordinator/pipeline.h"
#include "coordinator/shape/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define N_PROMPT 16u
#define N_PROMPT_MAX 65536u
#define N_SESSIONS_MAX 256u

static uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * NS_PER_S +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static void must(status s, const errmsg *e)
{
    if (s == ST_OK) return;
    fprintf(stderr, "sessions_bench: %s\n", e->text);
    exit(1);
}

/* random:SHAPE:TYPE to a descriptor of its file. */
static int random_model(const char *name, errmsg *e)
{
    char text[SHAPE_NAME_BYTES];
    snprintf(text, sizeof text, "%s", name + strlen("random:"));
    char *type = strchr(text, ':');
    if (type != NULL) *type++ = '\0';
    shape x;
    int fd;
    must(shape_parse(&x, text, type, e), e);
    must(shape_open(&fd, &x, e), e);
    must(shape_fill(fd, &x, 0, NULL, e), e);
    return fd;
}

static uint32_t prompt_tokens(void)
{
    const char *text = getenv("MEMRA_BENCH_PROMPT");
    long n = text != NULL ? atol(text) : 0;
    return n > 0 && n <= (long)N_PROMPT_MAX ? (uint32_t)n : N_PROMPT;
}

int main(int argc, char **argv)
{
    if (argc < 5) return 2;
    uint32_t n_stages = (uint32_t)atoi(argv[2]), n = (uint32_t)atoi(argv[3]);
    uint64_t n_tokens = strtoull(argv[4], NULL, 10);
    if (n == 0 || n > N_SESSIONS_MAX || n_stages == 0 || n_tokens == 0) return 2;
    door_values v = {0};
    doors d;
    errmsg e = {0};
    doors_from_environment(&v);
    v.value[DOOR_STAGES] = argv[2];
    must(doors_parse(&d, &v, &e), &e);
    if (argc > 5) d.step.overlap = atoi(argv[5]) != 0;
    if (argc > 6) snprintf(d.fault_text, sizeof d.fault_text, "%s", argv[6]);
    pipeline_options o = pipeline_options_default(argv[1], &d);
    if (strncmp(argv[1], "random:", 7) == 0) o.model_fd = random_model(argv[1], &e);
    const char *program = getenv("MEMRA_STAGE_PROGRAM");
    const uint32_t n_prompt = prompt_tokens();
    o.stage_program = program != NULL ? program : MEMRA_STAGE_PROGRAM;
    o.n_threads = 1;
    o.plan.n_sessions = n;
    o.plan.n_ctx = (uint32_t)(n_prompt + n_tokens);
    o.plan.kv_type = DT_F16;
    pipeline *p;
    must(pipeline_open(&p, &o, NULL, &e), &e);
    session *s[N_SESSIONS_MAX];
    generation *g[N_SESSIONS_MAX];
    uint32_t token[N_SESSIONS_MAX];
    uint32_t *prompt = malloc(n_prompt * sizeof *prompt);
    if (prompt == NULL) return 1;
    sampler_params sampler = sampler_default();
    for (uint32_t i = 0; i < n; i++) {
        sampler.seed = i;
        for (uint32_t k = 0; k < n_prompt; k++) prompt[k] = (i * 31 + k * 7 + 3) % pipeline_model(p)->n_vocab;
        must(session_open(p, &sampler, &s[i], &e), &e);
        must(session_prime(s[i], prompt, n_prompt, NULL, &token[i], &e), &e);
    }
    stage_snapshot before[STAGES_MAX], after[STAGES_MAX];
    for (uint32_t k = 0; k < n_stages; k++) pipeline_stage(p, k, &before[k]);
    uint64_t begin = now_ns(), cpu = cpu_ns();
    for (uint32_t i = 0; i < n; i++)
        must(session_generate(s[i], token[i], &(generate_limits){.n_max = n_tokens}, &g[i], &e), &e);
    for (uint64_t k = 0; k < n_tokens; k++)
        for (uint32_t i = 0; i < n; i++) must(generation_next(g[i], &token[i], &e), &e);
    uint64_t wall = now_ns() - begin;
    cpu = cpu_ns() - cpu;
    for (uint32_t k = 0; k < n_stages; k++) pipeline_stage(p, k, &after[k]);
    double per_s = (double)(n * n_tokens) * NS_PER_S / (double)wall;
    printf("| %u | %u | %s | %.0f | %.3f | %.3f |", n_stages, n, d.step.overlap ? "on" : "off", per_s,
           (double)cpu / (double)wall, (double)cpu / (double)(n * n_tokens) * 5000 / NS_PER_S);
    for (uint32_t k = 0; k < n_stages; k++)
        printf("%s%.0f %%", k == 0 ? " " : ", ", 100.0 * (double)(after[k].busy_ns - before[k].busy_ns) / (double)wall);
    printf(" |\n");
    for (uint32_t i = 0; i < n; i++) {
        must(generation_close(g[i], &e), &e);
        session_drop(s[i]);
    }
    free(prompt);
    pipeline_close(p);
    return 0;
}
