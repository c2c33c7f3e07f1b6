/* bench: how fast prompt and generation are here, and how near to what the memory allows. */
#include "common/doortext.h"
#include "coordinator/bench/bench.h"

#include <string.h>

#define PROMPT_DEFAULT 512u
#define GENERATE_DEFAULT 128u
#define REPEAT_DEFAULT 5u
#define SEED_DEFAULT 42u

#define USAGE "bench [-m FILE | --shape SHAPE] [-p N] [-n N] [--stages N,N,..] [-r N] [-o md|csv|json]"
#define ABOUT                                                                                      \
    "Measures tokens per second of a prompt (pp) and of generation (tg), each once unmeasured and\n" \
    "then -r times in a fresh session of random tokens; the bytes that a generated token must\n"   \
    "read (every weight once, and the KV cache at the mean position); this machine's read\n"       \
    "bandwidth, measured in the same run, and the share of it that was reached; and how busy each\n" \
    "stage was. Here --stages takes a list: one after the other, with the same model."

/* The numbers of stages: the list, or what the door says. */
static status take_stages(bench_request *q, const char *list, errmsg *e)
{
    if (list == NULL) {
        q->n_stages[q->n_configs++] = q->common->doors.n_stages;
        return ST_OK;
    }
    q->listed = true;
    const char *at = list, *item;
    size_t n;
    while (doortext_next(&at, ',', &item, &n)) {
        char quoted[DOORTEXT_QUOTE_BYTES];
        uint64_t value;
        if (doortext_number(item, n, STAGES_MAX, &value) != NUMBER_OK || value == 0) {
            return errmsg_set(e, ST_USAGE, "--stages %s: numbers from 1 to %u, separated by commas",
                              doortext_quote(quoted, list, strlen(list)), STAGES_MAX);
        }
        if (q->n_configs == STAGES_MAX)
            return errmsg_set(e, ST_USAGE, "--stages: at most %u numbers", STAGES_MAX);
        q->n_stages[q->n_configs++] = (uint32_t)value;
    }
    return ST_OK;
}

static status take_format(bench_format *out, const char *word, bool json, errmsg *e)
{
    static const char *const words[] = {[BENCH_MD] = "md", [BENCH_CSV] = "csv", [BENCH_JSON] = "json"};
    if (json && word == NULL) word = "json";
    if (word == NULL) word = "md";
    for (uint32_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = (bench_format)i;
        return ST_OK;
    }
    return errmsg_set(e, ST_USAGE, "-o '%.40s': md, csv or json", word);
}

static void told(void *format_, const bench_result *r, const bench_test *t)
{
    bench_format format = *(bench_format *)format_;
    if (t == NULL)
        bench_print_begin(format, r);
    else
        bench_print_test(format, r, t);
}

int cmd_bench(int argc, char **argv)
{
    common_options c;
    shape_options random = {0};
    bench_request q = {.common = &c,
                       .random = &random,
                       .n_prompt = PROMPT_DEFAULT,
                       .n_generate = GENERATE_DEFAULT,
                       .n_repeat = REPEAT_DEFAULT,
                       .seed = SEED_DEFAULT};
    const char *list = NULL, *word = NULL;
    const option own[] = {
        {"prompt", 'p', OPTION_U32, "N", "tokens of the prompt; 0: leave it out. Default: 512",
         &q.n_prompt, 0, PLAN_CTX_MAX},
        {"generate", 'n', OPTION_U32, "N", "tokens to generate; 0: leave it out. Default: 128",
         &q.n_generate, 0, PLAN_CTX_MAX},
        {"depth", 0, OPTION_U32, "N", "tokens before the generated ones. Default: 0", &q.depth, 0,
         PLAN_CTX_MAX},
        {"draft", 0, OPTION_U32, "N",
         "generate with up to N drafted tokens per step, as run --draft. Default: 0", &q.n_draft, 0,
         GENERATE_DRAFT_MAX},
        {"stages", 0, OPTION_TEXT, "N,N,..", "numbers of stages. Default: MEMRA_PP_STAGES, else 1",
         &list, 0, 0},
        {"repeat", 'r', OPTION_U32, "N", "measured repetitions. Default: 5", &q.n_repeat, 1,
         BENCH_REPEAT_MAX},
        {"output", 'o', OPTION_TEXT, "FORMAT", "md, csv or json. Default: md", &word, 0, 0},
        {"seed", 0, OPTION_U64, "S", "of the random tokens. Default: 42", &q.seed, 0, 0},
        SHAPE_OPTIONS(random),
    };
    const uint32_t n_own = sizeof own / sizeof *own;
    bench_format format = BENCH_MD;
    errmsg e = {0};
    if (options_parse(argc, argv, own, n_own, &c, NULL, 0, NULL, &e) != ST_OK)
        return command_failed(&e);
    if (c.help) {
        options_help(USAGE, ABOUT, own, n_own);
        return 0;
    }
    status s = take_stages(&q, list, &e);
    if (s == ST_OK) s = take_format(&format, word, c.json, &e);
    if (s == ST_OK && q.n_prompt == 0 && q.n_generate == 0)
        s = errmsg_set(&e, ST_USAGE, "-p 0 and -n 0 leave nothing to measure");
    if (s == ST_OK) s = shape_take(&random, &c, &e);
    if (s == ST_OK) s = options_model(&c, &e);
    if (s != ST_OK) return command_failed(&e);
    bench_result r;
    s = bench_run(&r, &q, told, &format, &e);
    if (s == ST_OK) bench_print_end(format, &r);
    bench_free(&r);
    return s == ST_OK ? 0 : command_failed(&e);
}
