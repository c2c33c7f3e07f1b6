/* gate: the program's own check that its output does not depend on how it was run. */
#include "common/amount.h"
#include "coordinator/commands/draft_option.h"
#include "coordinator/gates/gate_pipe.h"
#include "coordinator/shape/shape.h"
#include "coordinator/trace/trace.h"

#include "common/boundary.h"

#include <stdlib.h>
#include <string.h>

#define PROMPT_DEFAULT 288u   /* past four KV blocks and one attention cell */
#define PROMPT_MIN 24u
#define PROMPT_MAX     4000u /* the prompt is also taken in one piece, with a result row for each */
#define DECODE_DEFAULT 8u
#define DECODE_MAX 1024u
#define SEED_DEFAULT 42u
#define KILLS_DEFAULT 30u
#define KILLS_MAX 100000u

#define NAMES "ppn, batch, spec, prime, transport, recovery"

#define USAGE                                                                                      \
    "gate ppn|batch|spec|prime|transport|recovery|all [-m FILE] [--stages N]\n"                    \
    "       [--splits ..] [--canary] [--json]"
#define ABOUT                                                                                      \
    "Runs the same work in two ways and compares every bit of the logits, and every token:\n"      \
    "  ppn        one stage = N stages at every cut; serial = pipelined = all on one stream\n"     \
    "  batch      a session alone = the same among others that join and leave\n"                   \
    "  spec       plain decode = drafts verified, any depth, greedy and sampled\n"                 \
    "  prime      a prompt in one piece = in chunks of any sizes, forked, truncated\n"             \
    "  transport  bytes sent = bytes received: every edge, both slots\n"                           \
    "  recovery   sessions undisturbed = while stages are killed, stopped and hung at random\n"    \
    "             moments: while prompts are primed, drafts verified, others replaced\n"           \
    "batch, spec and prime also walk unsplit, on the first stage alone, where the devices allow "  \
    "it.\n"                                                                                        \
    "Counters must show that each mechanism ran: rows, bytes and crossings of every boundary,\n"   \
    "chunks, probes, stages that met inside their layers, steps walked unsplit, rounds whose "     \
    "rows\n"                                                                                       \
    "came ahead of the hosts, from device to device. With no --stages and --splits a small "       \
    "model\n"                                                                                      \
    "is walked at every set of cuts. Lines are TAP.\n\n"                                           \
    "--canary breaks the mechanisms on purpose, one after the other, and the gate must notice\n"   \
    "each. Exit codes: 0 every arm is green; 1 an arm is red. With --canary: 1 every breakage\n"   \
    "was noticed (red, as it must be); 0 \"canary stayed green\": the gate is blind to one."

typedef struct {
    const char *name;
    status (*run)(const gate_context *g, errmsg *e);
} gate_entry;

static const gate_entry gates[] = {
    {"ppn", gate_ppn},
    {"batch", gate_batch},
    {"spec", gate_spec},
    {"prime", gate_prime},
    {"transport", gate_transport},
    {"recovery", gate_recovery},
};
#define N_GATES (sizeof gates / sizeof *gates)

/* What the gates need to know of the model, before any pipeline is opened; cuts that the doors name
 * and the model does not have are refused here. */
static status read_model(gate_model *out, const common_options *c, errmsg *e)
{
    gguf *file = NULL;
    model_desc *m = NULL;
    status s = ST_OK;
    TRY_DONE(s, options_open_model(c, &file, e));
    m = malloc(sizeof *m);
    if (m == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the model's description");
        goto done;
    }
    TRY_DONE(s, model_read(m, file, e));
    fence f;
    TRY_DONE(s, fence_plan(&f, &c->doors, m, e));
    *out = (gate_model){.n_layers = m->n_layers,
                        .n_vocab = m->n_vocab,
                        .n_embd = m->n_embd,
                        .n_ctx_train = m->n_ctx_train,
                        .row_bytes = boundary_row_bytes(m->n_embd, m->aux_bytes)};
    memcpy(out->cut_forbidden, m->cut_forbidden, sizeof out->cut_forbidden);
done:
    free(m);
    if (file != NULL) gguf_close(file);
    return s;
}

/* The prompt: as asked, else the default, or what the context holds beside the decode steps. */
static status fit_context(gate_context *g, uint32_t asked, errmsg *e)
{
    uint64_t n_ctx = g->common->plan.n_ctx > 0 ? g->common->plan.n_ctx : g->model.n_ctx_train;
    g->n_prompt = asked > 0 ? asked : PROMPT_DEFAULT;
    if (gate_positions(g) <= n_ctx) return ST_OK;
    uint64_t decode = gate_positions(g) - g->n_prompt;
    if (asked == 0 && n_ctx >= decode + PROMPT_MIN) {
        g->n_prompt = (uint32_t)(n_ctx - decode);
        return ST_OK;
    }
    return errmsg_set(
        e, ST_CONTEXT_FULL,
        "a prompt of %u and %llu decoded tokens do not fit into a context of %llu: lower "
        "-p or -n, or raise --ctx",
        asked > 0 ? asked : PROMPT_MIN, (unsigned long long)decode, (unsigned long long)n_ctx);
}

static status find_gates(const char *name, uint32_t *begin, uint32_t *end, errmsg *e)
{
    *begin = 0;
    *end = N_GATES;
    if (strcmp(name, "all") == 0) return ST_OK;
    for (uint32_t i = 0; i < N_GATES; i++) {
        if (strcmp(name, gates[i].name) != 0) continue;
        *begin = i;
        *end = i + 1;
        return ST_OK;
    }
    return errmsg_set(e, ST_USAGE, "no gate '%.40s'; there are: " NAMES ", all", name);
}

/* What several processes do together is not to be seen on one stream. */
static status check_streams(const doors *d, uint32_t begin, uint32_t end, errmsg *e)
{
    if (d->streams || (end - begin == 1 && gates[begin].run == gate_ppn)) return ST_OK;
    return errmsg_set(
        e, ST_BAD_DOOR,
        "%s=0 puts all stages into one process, and only gate ppn can be walked so: leave it "
        "out, or run that gate",
        doors_name(d, DOOR_STREAMS));
}

/* A flag that shuts the door would be the same as none, which is not what who gave it means. */
static status check_stages(const doors *d, errmsg *e)
{
    if (d->stages_set || !d->from_flag[DOOR_STAGES]) return ST_OK;
    return errmsg_set(e, ST_USAGE,
                      "--stages asks for one stage, and gates compare one stage with several: name "
                      "2 or more, or leave it out, then a gate walks several numbers of stages");
}

/* The model that drafts for gate spec, before anything starts. */
static status check_draft(const gate_context *g, uint32_t begin, uint32_t end, errmsg *e)
{
    bool meant = false;
    for (uint32_t i = begin; i < end; i++)
        meant = meant || gates[i].run == gate_spec;
    if (g->draft_path == NULL) return ST_OK;
    if (!meant)
        return errmsg_set(e, ST_USAGE,
                          "--draft-model is for gate spec: leave it out, or run that gate or all");
    common_options own = *g->common;
    gate_model m;
    errmsg why = {0};
    own.model = g->draft_path;
    own.model_fd = 0;
    own.doors = doors_default();
    if (read_model(&m, &own, &why) != ST_OK) return draft_option_refuse(&why, e);
    if (m.n_vocab == g->model.n_vocab) return ST_OK;
    return errmsg_set(e, ST_BAD_MODEL,
                      "--draft-model %.200s has %u tokens, %.200s has %u: it cannot draft for it",
                      g->draft_path, m.n_vocab, g->model_path, g->model.n_vocab);
}

static status run_gates(gate_context *g, uint32_t begin, uint32_t end, errmsg *e)
{
    if (!g->canary)
        gate_report_note(
            g->report, "%s: %u layer%s, prompt of %u tokens in chunks of %u, %u + %u + %u decoded",
            g->model_path, g->model.n_layers, plural(g->model.n_layers), g->n_prompt, gate_chunk(g),
            g->n_decode, g->n_decode, gate_burst(g));
    for (uint32_t i = begin; i < end; i++) TRY(gates[i].run(g, e));
    return ST_OK;
}

int cmd_gate(int argc, char **argv)
{
    bool canary = false;
    shape_options random = {0};
    uint32_t n_prompt = 0, n_decode = DECODE_DEFAULT, n_kills = KILLS_DEFAULT;
    uint64_t seed = SEED_DEFAULT;
    common_options c;
    const char *draft_path = NULL;
    const option own[] = {
        {"canary", 0, OPTION_FLAG, NULL,
         "break each mechanism on purpose; exits 1 when all is noticed", &canary, 0, 0},
        {"prompt", 'p', OPTION_U32, "N",
         "tokens of the prompt, 24 to 4000. Default: 288, or what the context holds", &n_prompt,
         PROMPT_MIN, PROMPT_MAX},
        {"decode", 'n', OPTION_U32, "N",
         "steps each of greedy and sampled decode; three times as many deferred, 24 at "
         "least.\nDefault: 8",
         &n_decode, 1, DECODE_MAX},
        {"kills", 0, OPTION_U32, "N",
         "recovery: strikes, over all numbers of stages: by\nSIGKILL, of ten one each by "
         "SIGSTOP and "
         "by hanging, as the seed says;\nsome hit two stages, or one that is being replaced. "
         "Default: 30",
         &n_kills, 1, KILLS_MAX},
        {"draft-model", 0, OPTION_TEXT, "FILE",
         "spec: the model that drafts in the arms where one does. Default: the model itself",
         &draft_path, 0, 0},
        {"seed", 0, OPTION_U64, "S", "of the random prompt and of sampling. Default: 42", &seed, 0,
         0},
        TRACE_OPTION(c),
        SHAPE_OPTIONS(random),
    };
    const uint32_t n_own = sizeof own / sizeof *own;
    const char *name[1];
    uint32_t n_names = 0, begin, end;
    errmsg e = {0};
    const command_form form = {USAGE, ABOUT, own, n_own, name, 1, &n_names, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    gate_report report = {.to = stdout, .json = c.json};
    gate_context g = {.common = &c,
                      .canary = canary,
                      .n_decode = n_decode,
                      .seed = seed,
                      .n_kills = n_kills,
                      .draft_path = draft_path,
                      .report = &report};
    status s = n_names == 0 ? errmsg_set(&e, ST_USAGE, "which gate: " NAMES " or all?")
                            : find_gates(name[0], &begin, &end, &e);
    if (s == ST_OK) s = check_stages(&c.doors, &e);
    if (s == ST_OK) s = check_streams(&c.doors, begin, end, &e);
    if (s == ST_OK) s = shape_take(&random, &c, &e);
    g.model_path = c.model;
    if (s == ST_OK) s = options_model(&c, &e);
    if (s == ST_OK) s = read_model(&g.model, &c, &e);
    if (s == ST_OK) s = check_draft(&g, begin, end, &e);
    if (s == ST_OK) s = fit_context(&g, n_prompt, &e);
    if (s == ST_OK) s = shape_ready(&random, &c, &e);
    if (s == ST_OK) s = options_trace(&c, &e);
    if (s == ST_OK) s = run_gates(&g, begin, end, &e);
    if (s == ST_OK) options_tell_faults(&c);
    bool whole = trace_close(c.trace);
    if (s != ST_OK) return command_failed(&e);
    code = gate_report_verdict(&report, end - begin == 1 ? name[0] : NAMES);
    return code != 0 || whole ? code : status_exit_code(ST_RESOURCES);
}
