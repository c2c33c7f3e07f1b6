/* bench: how fast prompt and generation are here, and how near to what the memory allows. */
#include "common/doortext.h"
#include "coordinator/bench/bench_sessions.h"
#include "coordinator/trace/trace.h"

#include <string.h>

#define PROMPT_DEFAULT 512u
#define GENERATE_DEFAULT 128u
#define REPEAT_DEFAULT 5u
#define REPEAT_SESSIONS_DEFAULT 3u
#define SEED_DEFAULT 42u

#define USAGE                                                                                      \
    "bench [-m FILE | --shape SHAPE] [-p N] [-n N] [--stages N,N,..] [-r N]\n"    \
    "       [-o md|csv|json]\n"                                                                    \
    "       memra-pp bench --sessions N,N,.. [--batch N,N,..] [-m FILE | --shape SHAPE] ..."
#define ABOUT                                                                                      \
    "Measures tokens per second of a prompt (pp) and of generation (tg), each once unmeasured "    \
    "and\n"                                                                                        \
    "then -r times in a fresh session of random tokens; the bytes that a generated token must\n"   \
    "read (every weight once, and the KV cache at the mean position); this machine's read\n"       \
    "bandwidth, measured in the same run, and the share of it that was reached; and how busy "     \
    "each\n"                                                                                       \
    "stage was. Here --stages takes a list: one after the other, with the same model.\n\n"         \
    "With --sessions it measures so many sessions at once instead: each asks for a prompt of -p\n" \
    "random tokens of its own, all at the same time, and when all prompts are through each\n"      \
    "generates -n tokens. For every number of sessions it prints the tokens per second of all\n"   \
    "together, how long a session waits for its first token and for later ones (what comes\n"      \
    "at once, as accepted drafts do, is one wait), how busy each stage was, and the\n"             \
    "processor time of this process. --batch bounds the sessions whose rows\n"                     \
    "one walk through a stage's layers takes (1: no batching), so that\n"                          \
    "  --stages 1,2 --sessions 8 --batch 0,4\n"                                                    \
    "compares two stages, each of whose walks has 4 rows, with one stage that batches all 8, "     \
    "and\n"                                                                                        \
    "with one stage that walks 4 at a time. --beside N adds how long\n"                            \
    "sessions wait for a token while another one reads a prompt of N tokens, and that in times "   \
    "of\n"                                                                                         \
    "one of its chunks. KV for all sessions at once must fit; a session's context is then what "   \
    "the\n"                                                                                        \
    "test takes, where --ctx asks for no more."

/* Numbers from min to max, separated by commas. */
static status take_list(bench_list *out, const char *name, const char *list, uint32_t min,
                        uint32_t max, errmsg *e)
{
    const char *at = list, *item;
    size_t n;
    out->n = 0;
    while (doortext_next(&at, ',', &item, &n)) {
        char quoted[DOORTEXT_QUOTE_BYTES];
        uint64_t value;
        bool number = doortext_number(item, n, max, &value) == NUMBER_OK && value >= min;
        if (!number || out->n == BENCH_LIST_MAX)
            return errmsg_set(
                e, ST_USAGE,
                "%s=%s is no such list; rule: at most %u numbers from %u to %u, separated by "
                "commas",
                name, doortext_quote(quoted, list, strlen(list)), BENCH_LIST_MAX, min, max);
        out->at[out->n++] = (uint32_t)value;
    }
    return ST_OK;
}

/* As given; NULL: not. */
typedef struct {
    const char *stages, *sessions, *batch;
} list_texts;

static status take_lists(bench_request *q, const list_texts *t, errmsg *e)
{
    q->listed = t->stages != NULL;
    q->stages = (bench_list){1, {q->common->doors.n_stages}};
    if (q->listed) TRY(take_list(&q->stages, "--stages", t->stages, 1, STAGES_MAX, e));
    uint32_t most = 0;
    for (uint32_t i = 0; i < q->stages.n; i++)
        if (q->stages.at[i] > most) most = q->stages.at[i];
    TRY(doors_check_faults(&q->common->doors, most,
                           q->listed ? "--stages" : doors_name(&q->common->doors, DOOR_STAGES), e));
    if (q->n_repeat == 0)
        q->n_repeat = t->sessions != NULL ? REPEAT_SESSIONS_DEFAULT : REPEAT_DEFAULT;
    if (t->sessions == NULL && t->batch != NULL)
        return errmsg_set(e, ST_USAGE, "--batch is for --sessions N,N,..; see --help");
    if (t->sessions == NULL && q->n_beside > 0)
        return errmsg_set(e, ST_USAGE, "--beside is for --sessions N,N,..; see --help");
    if (t->sessions == NULL && q->n_prompt == 0 && q->n_generate == 0)
        return errmsg_set(e, ST_USAGE, "-p 0 and -n 0 leave nothing to measure");
    if (t->sessions == NULL) return ST_OK;
    TRY(take_list(&q->sessions, "--sessions", t->sessions, 1, PLAN_SESSIONS_MAX, e));
    q->batch.n = 1;
    if (t->batch != NULL) TRY(take_list(&q->batch, "--batch", t->batch, 0, PLAN_SESSIONS_MAX, e));
    if (q->n_prompt == 0 || q->n_generate == 0)
        return errmsg_set(e, ST_USAGE, "--sessions needs -p and -n of 1 at least");
    if (q->depth > 0)
        return errmsg_set(e, ST_USAGE,
                          "--depth is not for --sessions: there -p stands before the rest");
    return ST_OK;
}

static status take_format(bench_format *out, const char *word, bool json, errmsg *e)
{
    static const char *const words[] = {
        [BENCH_MD] = "md", [BENCH_CSV] = "csv", [BENCH_JSON] = "json", NULL};
    uint32_t i = 0;
    if (word == NULL) word = json ? "json" : "md";
    TRY(options_word("-o", word, words, "md, csv or json", &i, e));
    *out = (bench_format)i;
    return ST_OK;
}

static void told(void *format_, const bench_result *r, const bench_test *t)
{
    bench_format format = *(bench_format *)format_;
    if (t == NULL)
        bench_print_begin(format, r);
    else
        bench_print_test(format, r, t);
}

static void told_sessions(void *format_, const sessions_result *r, const sessions_test *t)
{
    bench_format format = *(bench_format *)format_;
    if (t == NULL)
        bench_sessions_print_begin(format, r);
    else
        bench_sessions_print_test(format, r, t);
}

static status measure(const bench_request *q, bench_format format, errmsg *e)
{
    if (q->sessions.n > 0) {
        sessions_result r;
        status s = bench_sessions_run(&r, q, told_sessions, &format, e);
        if (s == ST_OK) bench_sessions_print_end(format, &r);
        bench_sessions_free(&r);
        return s;
    }
    bench_result r;
    status s = bench_run(&r, q, told, &format, e);
    if (s == ST_OK) bench_print_end(format, &r);
    bench_free(&r);
    return s;
}

int cmd_bench(int argc, char **argv)
{
    common_options c;
    shape_options random = {0};
    bench_request q = {.common = &c,
                       .random = &random,
                       .n_prompt = PROMPT_DEFAULT,
                       .n_generate = GENERATE_DEFAULT,
                       .seed = SEED_DEFAULT};
    list_texts lists = {0};
    const char *word = NULL;
    const option own[] = {
        {"prompt", 'p', OPTION_U32, "N",
         "tokens of the prompt, with --sessions of each one's; 0: leave it out. Default: 512",
         &q.n_prompt, 0, PLAN_CTX_MAX},
        {"generate", 'n', OPTION_U32, "N",
         "tokens to generate, with --sessions each; 0: leave it out. Default: 128", &q.n_generate,
         0, PLAN_CTX_MAX},
        {"depth", 0, OPTION_U32, "N", "tokens before the generated ones. Default: 0", &q.depth, 0,
         PLAN_CTX_MAX},
        {"draft", 0, OPTION_U32, "N",
         "generate with up to N drafted tokens per step, as run --draft. Default: 0", &q.n_draft, 0,
         GENERATE_DRAFT_MAX},
        {"stages", 0, OPTION_TEXT, "N,N,..", "numbers of stages. Default: MEMRA_PP_STAGES, else 1",
         &lists.stages, 0, 0},
        {"sessions", 0, OPTION_TEXT, "N,N,..",
         "numbers of sessions at once, 1 to 1024, in this order; see above. Default: pp and tg of "
         "one",
         &lists.sessions, 0, 0},
        {"batch", 0, OPTION_TEXT, "N,N,..",
         "with --sessions: of how many sessions a walk takes rows at most, for each of these; 0: "
         "all, "
         "shared out to the stages. Default: 0",
         &lists.batch, 0, 0},
        {"beside", 0, OPTION_U32, "N",
         "with --sessions: then also how long they wait for tokens while another one reads a "
         "prompt of N "
         "tokens. Default: 0, not",
         &q.n_beside, 0, PLAN_CTX_MAX},
        {"repeat", 'r', OPTION_U32, "N", "measured repetitions. Default: 5, with --sessions 3",
         &q.n_repeat, 1, BENCH_REPEAT_MAX},
        {"output", 'o', OPTION_TEXT, "FORMAT", "md, csv or json. Default: md", &word, 0, 0},
        {"seed", 0, OPTION_U64, "S", "of the random tokens. Default: 42", &q.seed, 0, 0},
        TRACE_OPTION(c),
        SHAPE_OPTIONS(random),
    };
    const uint32_t n_own = sizeof own / sizeof *own;
    bench_format format = BENCH_MD;
    errmsg e = {0};
    const command_form form = {USAGE, ABOUT, own, n_own, NULL, 0, NULL, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    status s = take_lists(&q, &lists, &e);
    if (s == ST_OK) s = take_format(&format, word, c.json, &e);
    if (s == ST_OK) s = shape_take(&random, &c, &e);
    if (s == ST_OK) s = options_model(&c, &e);
    if (s == ST_OK) s = options_trace(&c, &e);
    if (s == ST_OK) s = measure(&q, format, &e);
    if (s == ST_OK) options_tell_faults(&c);
    bool whole = trace_close(c.trace);
    if (s == ST_OK) return whole ? 0 : status_exit_code(ST_RESOURCES);
    return command_failed(&e);
}
