/* run: a prompt continued. The text goes to standard output as it comes; everything that is said
 * about it goes to stderr. */
#include "common/amount.h"
#include "coordinator/commands/chat.h"
#include "coordinator/commands/draft_option.h"
#include "coordinator/commands/generate.h"
#include "coordinator/commands/output.h"
#include "coordinator/text/text_json.h"
#include "coordinator/trace/trace.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_DEFAULT 256
#define N_DRAFT_DEFAULT 8u

#define USAGE "run [-m FILE] [-p TEXT | -f FILE] [-n N] [-i] [options]"
#define ABOUT                                                                                      \
    "Prints the prompt and then its continuation, as it comes, whole UTF-8 characters\n"           \
    "only; bytes that are no character come out as U+FFFD. An empty prompt is the model's\n"       \
    "BOS token alone, and refused where it has none. It ends after N tokens (limit), at\n"         \
    "the model's end of text (eos), when the context is full (length), or when a signal\n"         \
    "comes (interrupted). A prompt longer than the context is refused before anything\n"           \
    "starts.\n\n"                                                                                  \
    "--json prints one object per generated token, {\"token\":ID,\"text\":TEXT} (a text is\n"      \
    "empty while a character is unfinished), and none of the prompt; then a last line\n"           \
    "with stop, text (U+FFFD if a character stayed unfinished), n_prompt, n_generated,\n"          \
    "n_drafted, n_accepted, prompt_tokens_per_s, generation_tokens_per_s, and busy and idle\n"     \
    "share of each stage. Where the run failed, or its command line was refused, stop is\n"        \
    "error, error says why and code is the exit code.\n\n"                                         \
    "The same options, model and prompt give the same text, whatever the stages, cuts and\n"       \
    "threads.\n\n"                                                                                 \
    "-i keeps the session over turns of plain text: each line from standard input is\n"            \
    "appended, and its continuation of at most N tokens printed; the prompt stands before the\n"   \
    "first line. On a terminal lines can be edited and called back. Ctrl-C stops an answer, at\n"  \
    "the prompt it ends the program, as Ctrl-D does. A line that ends in \\ goes on in the "       \
    "next;\n"                                                                                      \
    "an empty one continues the answer; /clear forgets everything."

typedef struct {
    const char *text, *file, *draft_model;
    int64_t n;
    uint32_t n_draft;
    bool special, interactive;
    sampler_params sampler;
} run_options;

/* The prompt's tokens, refused here when they cannot be run at all. */
static status encode(const preview *v, const prompt *text, bool special, uint32_t **tokens,
                     uint64_t *n, errmsg *e)
{
    tokenize_options how = {.bos = true, .special = special};
    TRY(tokenizer_encode(v->words, text->text, text->bytes, how, tokens, n, e));
    uint32_t bos = tokenizer_bos(v->words);
    if (*n == 0 && bos != TOKEN_NONE) {
        /* The file does not ask for BOS before a text, but it is all there is to start from. */
        free(*tokens);
        *tokens = malloc(sizeof **tokens);
        if (*tokens == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the prompt");
        (*tokens)[(*n)++] = bos;
    }
    if (*n == 0) {
        return errmsg_set(e, ST_USAGE,
                          "the prompt is empty and the model has no BOS token to start "
                          "from; give some text with -p or -f");
    }
    if (*n > v->plan->n_ctx) {
        return errmsg_set(e, ST_CONTEXT_FULL,
                          "the prompt has %" PRIu64
                          " tokens and the context %u position%s; shorten "
                          "it or raise --ctx",
                          *n, v->plan->n_ctx, plural(v->plan->n_ctx));
    }
    return ST_OK;
}

/* --- the end -------------------------------------------------------------------------------- */

/* why: NULL where nothing failed. */
static status print_last_json(const generate_request *q, const generate_result *r,
                              const errmsg *why, errmsg *e)
{
    json_t *stages = json_array();
    for (uint32_t i = 0; i < r->stages.n_stages; i++) {
        double busy = shares_busy(&r->stages, i);
        json_array_append_new(
            stages, json_pack("{s:i, s:f, s:f}", "stage", (int)i, "busy", busy, "idle", 1 - busy));
    }
    json_t *last = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "stop", stop_reason_word(r->stop), "text",
        r->rest, "n_prompt", (json_int_t)q->n_tokens, "n_generated", (json_int_t)r->n_generated,
        "n_drafted", (json_int_t)r->drafts.n_drafted, "n_accepted",
        (json_int_t)r->drafts.n_accepted, "prompt_tokens_per_s", generate_prompt_rate(q, r),
        "generation_tokens_per_s", generate_step_rate(r), "stages", stages);
    if (last != NULL && why != NULL) {
        json_object_set_new(last, "error", text_json(why->text));
        json_object_set_new(last, "code", json_integer(status_exit_code(why->code)));
    }
    return output_json(last, e);
}

/* The stream's end where the run came to none: what is not to be written is not tried again. */
static void print_failed_json(const generate_request *q, generate_result *r, const errmsg *why)
{
    errmsg ignored = {0};
    bool stopped = why->code == ST_INTERRUPTED;
    r->stop = stopped ? STOP_INTERRUPTED : STOP_ERROR;
    status s = why->code == ST_CLOSED
                   ? ST_OK
                   : print_last_json(q, r, stopped ? NULL : why, &ignored);
    (void)s; /* the run ends with its own error */
}

/* The line, or the room for it, was refused: the stream is its end alone. */
static void print_refused_json(const errmsg *why)
{
    const generate_request none = {0};
    generate_result nothing = {0};
    print_failed_json(&none, &nothing, why);
}

static void log_last(const generate_request *q, const generate_result *r)
{
    char text[1024] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < r->stages.n_stages && n < sizeof text - 24; i++) {
        double busy = 100 * shares_busy(&r->stages, i);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%u %.0f/%.0f", i == 0 ? "stage " : ", ",
                              i, busy, 100 - busy);
    }
    log_info("prompt: %" PRIu64 " token%s, %.1f tokens/s; generated: %" PRIu64
             " token%s, %.1f tokens/s; stop: %s; busy/idle %%: %s",
             q->n_tokens, plural(q->n_tokens), generate_prompt_rate(q, r), r->n_generated,
             plural(r->n_generated), generate_step_rate(r), stop_reason_word(r->stop),
             text);
    if (r->drafts.n_verifies > 0)
        log_info("drafts: %" PRIu64 " of %" PRIu64 " token%s accepted, in %" PRIu64 " step%s",
                 r->drafts.n_accepted, r->drafts.n_drafted, plural(r->drafts.n_drafted),
                 r->drafts.n_verifies, plural(r->drafts.n_verifies));
}

/* --- the command ---------------------------------------------------------------------------- */

/* What runs: the model, and the one that drafts for it, if there is one. */
typedef struct {
    pipeline *p;
    draft_option option;
    draft_model *drafts;
} models;

static draft_source *source_of(const models *m)
{
    return m->drafts != NULL ? draft_model_source(m->drafts) : NULL;
}

static status open_pipeline(pipeline **out, const common_options *c, const preview *v, errmsg *e)
{
    TRY(banner_open(out, c, e));
    if (pipeline_model(*out)->n_vocab == v->model->n_vocab) return ST_OK;
    return errmsg_set(e, ST_BAD_MODEL, "%s changed while it was opened", c->model);
}

/* Everything that can be refused is, before anything starts. */
static status open_models(models *m, const common_options *c, const run_options *o,
                          const preview *v, errmsg *e)
{
    *m = (models){0};
    if (o->draft_model != NULL && o->n_draft == 0)
        return errmsg_set(e, ST_USAGE, "--draft 0 leaves nothing to do for --draft-model");
    if (o->draft_model != NULL) TRY(draft_option_open(&m->option, o->draft_model, c, v, e));
    TRY(open_pipeline(&m->p, c, v, e));
    if (o->draft_model == NULL) return ST_OK;
    errmsg why = {0};
    status s = draft_option_start(&m->drafts, &m->option, &why);
    if (s == ST_STAGE_LOST)
        log_warn("the draft model is lost, what it was to draft for goes on plainly: %s", why.text);
    else if (s != ST_OK)
        *e = why;
    return s == ST_STAGE_LOST ? ST_OK : s;
}

static void close_models(models *m)
{
    if (m->p != NULL) pipeline_close(m->p);
    draft_model_close(m->drafts);
    draft_option_close(&m->option);
}

static status check_interactive(const common_options *c, const run_options *o, errmsg *e)
{
    if (o->n == 0) return errmsg_set(e, ST_USAGE, "-n 0 with -i leaves nothing to say");
    if (o->file != NULL && strcmp(o->file, "-") == 0)
        return errmsg_set(e, ST_USAGE, "-f - and -i both read standard input");
    return options_no_json(c, "run -i", e);
}

static status interact(const common_options *c, const run_options *o, const preview *v,
                       const prompt *text, errmsg *e)
{
    chat_request q = {.opening = text,
                      .n_max = o->n < 0 ? UINT64_MAX : (uint64_t)o->n,
                      .special = o->special,
                      .sampler = o->sampler,
                      .n_draft = o->n_draft};
    models m;
    status s = open_models(&m, c, o, v, e);
    q.draft = source_of(&m);
    if (s == ST_OK) s = chat_run(m.p, v->words, &q, e);
    close_models(&m);
    return s;
}

static status run(common_options *c, const run_options *o, errmsg *e)
{
    status s;
    prompt text = {0};
    preview v = {0};
    models m = {0};
    uint32_t *tokens = NULL;
    generate_request q = {.text = &text,
                          .sampler = o->sampler,
                          .json = c->json,
                          .n_draft = o->n_draft,
                          .n_max = o->n < 0 ? UINT64_MAX : (uint64_t)o->n};
    generate_result r = {0};
    bool ended = false; /* the stream of JSON */
    if (o->interactive) TRY_DONE(s, check_interactive(c, o, e));
    TRY_DONE(s, options_trace(c, e));
    TRY_DONE(s, sampler_valid(&o->sampler, e));
    TRY_DONE(s, prompt_read(&text, o->text, o->file, e));
    TRY_DONE(s, preview_open(&v, c, e));
    TRY_DONE(s, preview_words(&v, e));
    if (o->interactive) {
        s = interact(c, o, &v, &text, e);
        goto done;
    }
    TRY_DONE(s, encode(&v, &text, o->special, &tokens, &q.n_tokens, e));
    q.tokens = tokens;
    TRY_DONE(s, open_models(&m, c, o, &v, e));
    q.draft = source_of(&m);
    TRY_DONE(s, generate(&r, m.p, v.words, &q, e));
    ended = true;
    if (q.json) TRY_DONE(s, print_last_json(&q, &r, NULL, e));
    log_last(&q, &r);
    if (r.stop == STOP_INTERRUPTED) s = errmsg_set(e, ST_INTERRUPTED, "interrupted");
done:
    if (q.json && !ended) print_failed_json(&q, &r, e);
    close_models(&m);
    free(tokens);
    preview_close(&v);
    prompt_free(&text);
    return s;
}

int cmd_run(int argc, char **argv)
{
    run_options o = {.n = N_DEFAULT,
                     .n_draft = N_DRAFT_DEFAULT,
                     .sampler = {.temperature = 0.8f,
                                 .top_k = 40,
                                 .top_p = 0.95f,
                                 .min_p = 0.05f,
                                 .repetition_penalty = 1,
                                 .penalty_last_n = 64}};
    common_options c;
    sampler_params *p = &o.sampler;
    const option own[] = {
        {"prompt", 'p', OPTION_TEXT, "TEXT", "the prompt, plain text. Default: empty", &o.text, 0,
         0},
        {"file", 'f', OPTION_TEXT, "FILE", "read the prompt from FILE, - is standard input",
         &o.file, 0, 0},
        {"n-tokens", 'n', OPTION_I64, "N",
         "tokens to generate, never more than the context holds. 0: none, no "
         "text, the prompt is processed; -1: until EOS or the context is full. Default: 256",
         &o.n, -1, (double)INT64_MAX},
        {"draft", 0, OPTION_U32, "N",
         "verify up to N drafted tokens per step, 16 at most, only where that measures faster: "
         "finding "
         "out takes a 256th of the time. The text is the same. 0: none. Default: 8",
         &o.n_draft, 0, GENERATE_DRAFT_MAX},
        DRAFT_MODEL_OPTION(o.draft_model),
        {"interactive", 'i', OPTION_FLAG, NULL, "lines from standard input, a session over turns",
         &o.interactive, 0, 0},
        {"special", 0, OPTION_FLAG, NULL,
         "parse special tokens in the prompt. Default: they are text", &o.special, 0, 0},
        {"default-stages", 0, OPTION_U32, "N",
         "stages where --stages and MEMRA_PP_STAGES are unset: what pp-run.sh says of its demo. "
         "Default: 1",
         &c.default_stages, 1, STAGES_MAX},
        {"temp", 0, OPTION_F32, "T", "temperature, 0: always the likeliest token. Default: 0.8",
         &p->temperature, 0, 1000},
        {"top-k", 0, OPTION_U32, "K", "of the K likeliest tokens; 0: off. Default: 40", &p->top_k,
         0, UINT32_MAX},
        {"top-p", 0, OPTION_F32_OVER, "P",
         "of the likeliest that together reach P; 1: off. Default: 0.95", &p->top_p, 0, 1},
        {"min-p", 0, OPTION_F32_UNDER, "P",
         "of those at least P times as likely as the likeliest; 0: off. Default: 0.05", &p->min_p,
         0, 1},
        {"repetition-penalty", 0, OPTION_F32_OVER, "X",
         "divide repeated tokens' logits; 1: off. Default: 1", &p->repetition_penalty, 0, 1000},
        {"frequency-penalty", 0, OPTION_F32, "X", "lower logits per repetition. Default: 0, off",
         &p->frequency_penalty, -1000, 1000},
        {"presence-penalty", 0, OPTION_F32, "X", "lower logits of tokens seen. Default: 0, off",
         &p->presence_penalty, -1000, 1000},
        {"penalty-last-n", 0, OPTION_U32, "N", "tokens that penalties look at. Default: 64",
         &p->penalty_last_n, 0, SAMPLER_HISTORY_MAX},
        {"seed", 0, OPTION_U64, "S", "of the random draws, the same at every start. Default: 0",
         &p->seed, 0, 0},
        TRACE_OPTION(c),
    };
    errmsg e = {0};
    uint32_t n_own = sizeof own / sizeof own[0];
    const command_form form = {USAGE, ABOUT, own, n_own, NULL, 0, NULL, print_refused_json};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    status s = run(&c, &o, &e);
    if (s == ST_OK) options_tell_faults(&c);
    bool whole = trace_close(c.trace);
    if (s == ST_OK) return whole ? 0 : status_exit_code(ST_RESOURCES);
    return command_failed(&e);
}
