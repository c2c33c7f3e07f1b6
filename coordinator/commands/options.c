/* One table of what all commands share; parsing, help and the doors' flags all read it. The doors
 * come last, so that a line about a door never hides an option that is wrong by itself. */
#include "common/doortext.h"
#include "coordinator/commands/demo.h"
#include "coordinator/commands/options_impl.h"
#include "coordinator/commands/outfile.h"
#include "coordinator/machine/limits.h"
#include "coordinator/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define START_TIMEOUT_S 30.0
#define HANG_TIMEOUT_S  5.0
#define RESTART_WINDOW_S 60.0

volatile int interrupted;
static uint32_t faults_met; /* of the doors', by all pipelines that are closed */

/* --- the line ------------------------------------------------------------------------------- */

typedef struct {
    int argc, at;
    char **argv;
    const option *own, *shared;
    uint32_t n_own;
    common_options *c;
    door_values values;
    const char **positional;
    uint32_t positional_max, *n_positional;
    bool options_over; /* "--" was seen */
    errmsg *e;
} line;

static const option *find(const line *l, const char *name, size_t bytes, char letter)
{
    const option *o = option_find(l->own, l->n_own, name, bytes, letter);
    return o != NULL ? o : option_find(l->shared, N_SHARED, name, bytes, letter);
}

/* The value of the option called name: what stands after its '=', or the next argument. */
static status value_of(line *l, const char *name, const char *attached, const char **out)
{
    if (attached != NULL) {
        *out = attached;
    } else if (l->at + 1 < l->argc) {
        *out = l->argv[++l->at];
    } else {
        return errmsg_set(l->e, ST_USAGE, "%s needs a value; see --help", name);
    }
    return ST_OK;
}

/* Keep name as the nearest so far if it is nearer to the one given. */
static void nearer(const char *given, const char *name, const char **nearest, uint32_t *edits)
{
    uint32_t n = name != NULL ? doortext_edits(given, name) : UINT32_MAX;
    if (n >= *edits) return;
    *edits = n;
    *nearest = name;
}

/* An option that is none: "--name", or "" when it is too long or of letters. */
static status unknown(const line *l, const char *text, const char *name)
{
    char quoted[DOORTEXT_QUOTE_BYTES], hint[OPTION_NAME_BYTES + 32] = "";
    char lower[OPTION_NAME_BYTES] = "";
    for (size_t i = 0; name[i] != '\0'; i++)
        lower[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    const char *nearest = NULL;
    uint32_t edits = DOORS_EDITS_MAX + 1, n_doors;
    const door_info *door = doors_table(&n_doors);
    doortext_quote(quoted, text, strlen(text));
    if (text[1] != '-' && find(l, NULL, 0, text[1]) != NULL)
        snprintf(hint, sizeof hint, " (a letter and its value are two arguments)");
    for (uint32_t i = 0; strlen(name) > 3 && i < l->n_own; i++)
        nearer(lower + 2, l->own[i].name, &nearest, &edits);
    for (uint32_t i = 0; strlen(name) > 3 && i < N_SHARED; i++)
        nearer(lower + 2, l->shared[i].name, &nearest, &edits);
    for (uint32_t i = 0; strlen(name) > 3 && i < n_doors; i++)
        nearer(lower + 2, door[i].flag, &nearest, &edits);
    if (nearest != NULL && edits < strlen(nearest) / 2 + 1)
        snprintf(hint, sizeof hint, "; the nearest is --%s", nearest);
    return errmsg_set(l->e, ST_USAGE, "unknown option %s%s; see --help", quoted, hint);
}

/* Take the argument that starts with a dash. */
static status take_option(line *l)
{
    const char *text = l->argv[l->at], *attached = NULL;
    option_given g = {.e = l->e};
    int door = -1;
    if (text[1] == '-') {
        size_t n = strcspn(text + 2, "=");
        if (text[2 + n] == '=') attached = text + 2 + n + 1;
        if (n < sizeof g.name - 2) snprintf(g.name, sizeof g.name, "%.*s", (int)n + 2, text);
        g.o = find(l, text + 2, n, 0);
        if (g.o == NULL && g.name[0] != '\0') door = doors_flag_index(g.name + 2);
    } else if (text[2] == '\0') {
        snprintf(g.name, sizeof g.name, "%s", text);
        g.o = find(l, NULL, 0, text[1]);
    }
    if (door >= 0) {
        l->values.from_flag[door] = true;
        return value_of(l, g.name, attached, &l->values.value[door]);
    }
    if (g.o == NULL) return unknown(l, text, g.name);
    if (g.o->type == OPTION_FLAG) {
        if (attached != NULL) {
            return errmsg_set(l->e, ST_USAGE, "%s takes no value; see --help", g.name);
        }
        return option_take(&g);
    }
    TRY(value_of(l, g.name, attached, &g.value));
    return option_take(&g);
}

/* --- words and files ------------------------------------------------------------------------ */

status options_word(const char *name, const char *word, const char *const *words, const char *rule,
                    uint32_t *out, errmsg *e)
{
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(word, words[i]) == 0) {
            *out = i;
            return ST_OK;
        }
    }
    option_given g = {.value = word, .e = e};
    snprintf(g.name, sizeof g.name, "%s", name);
    return option_refuse(&g, "is none of its words", rule);
}

static status take_words(common_options *c, const shared_texts *t, errmsg *e)
{
    static const char *const types[] = {"f32", "f16", "bf16", NULL};
    static const dtype type_of[] = {DT_F32, DT_F16, DT_BF16};
    static const char *const isas[] = {"auto", "ref", "avx2", "avx512", "amx", NULL};
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    uint32_t i = 0;
    TRY(options_word("--kv-type", t->kv_type, types, "f32, f16 or bf16", &i, e));
    c->plan.kv_type = type_of[i];
    TRY(options_word("--isa", c->isa == NULL ? "auto" : c->isa, isas,
                     "auto, ref, avx2, avx512 or amx", &i, e));
    TRY(options_word("--log-level", t->log_level, levels, "error, warn, info or debug", &i, e));
    return log_level_parse(t->log_level, &c->log_level);
}

static status open_log(const common_options *c, errmsg *e)
{
    int fd = STDERR_FILENO;
    if (c->log_file != NULL) {
        TRY(outfile_is_file("--log-file", c->log_file, "and lines there would mix with the text",
                            e));
        TRY(outfile_spares("--log-file", c->log_file, NULL, e));
        fd = open(c->log_file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) {
            return errmsg_set(e, ST_RESOURCES, "--log-file %s cannot be written: %s", c->log_file,
                              strerror(errno));
        }
    }
    log_open("memra-pp", c->log_level, fd);
    return ST_OK;
}

/* A command's own list of stage counts that has one alone is the door's value as well. */
static void stages_of_command(line *l)
{
    const option *own = option_find(l->own, l->n_own, "stages", 6, 0);
    const char *text = own != NULL ? *(const char **)own->out : NULL;
    uint64_t n = 0;
    l->values.stages_elsewhere = own != NULL;
    if (text == NULL || doortext_number(text, strlen(text), STAGES_MAX, &n) != NUMBER_OK) return;
    l->values.value[DOOR_STAGES] = text;
    l->values.from_flag[DOOR_STAGES] = true;
}

/* What was given as words becomes values; then the doors; then the log. */
static status finish(line *l, const shared_texts *t)
{
    common_options *c = l->c;
    TRY(take_words(c, t, l->e));
    c->start_timeout_s = (double)t->start_timeout_s;
    c->hang_timeout_s = (double)t->hang_timeout_s;
    c->restart_window_s = (double)t->restart_window_s;
    stages_of_command(l);
    l->values.default_stages = c->default_stages;
    TRY(doors_check_names((const char *const *)environ, l->e));
    TRY(doors_parse(&c->doors, &l->values, l->e));
    if (c->model == NULL) {
        static char demo[PATH_MAX];
        c->model = demo_path(demo, sizeof demo);
        c->model_is_demo = c->model != NULL;
    }
    return open_log(c, l->e);
}

static status take_argument(line *l)
{
    const char *text = l->argv[l->at];
    if (!l->options_over && strcmp(text, "--") == 0) {
        l->options_over = true;
        return ST_OK;
    }
    if (!l->options_over && text[0] == '-' && text[1] != '\0') return take_option(l);
    if (l->n_positional != NULL && *l->n_positional < l->positional_max) {
        l->positional[(*l->n_positional)++] = text;
        return ST_OK;
    }
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(l->e, ST_USAGE, "unexpected argument %s; see --help",
                      doortext_quote(quoted, text, strlen(text)));
}

/* After one that was refused: the others only say how that is to be told (--json). */
static void take_rest(line *l)
{
    errmsg ignored = {0};
    l->e = &ignored;
    for (l->at++; l->at < l->argc; l->at++) {
        status s = take_argument(l);
        (void)s;
    }
}

status options_parse(int argc, char **argv, const option *own, uint32_t n_own, common_options *out,
                     const char **positional, uint32_t positional_max, uint32_t *n_positional,
                     errmsg *e)
{
    option shared[N_SHARED] = {0};
    shared_texts texts = {.kv_type = "f16",
                          .log_level = "info",
                          .start_timeout_s = (float)START_TIMEOUT_S,
                          .hang_timeout_s = (float)HANG_TIMEOUT_S,
                          .restart_window_s = (float)RESTART_WINDOW_S};
    *out = (common_options){
        .doors = doors_default(), .restarts = RESTARTS_DEFAULT, .log_level = LOG_INFO};
    out->plan.journal_bytes = PLAN_JOURNAL_ALL;
    if (n_positional != NULL) *n_positional = 0;
    options_shared(shared, out, &texts);
    line l = {.argc = argc,
              .at = 1,
              .argv = argv,
              .own = own,
              .n_own = n_own,
              .shared = shared,
              .c = out,
              .positional = positional,
              .positional_max = positional_max,
              .n_positional = n_positional,
              .e = e};
    doors_from_environment(&l.values);
    for (; l.at < argc; l.at++) {
        status s = take_argument(&l);
        if (s != ST_OK) take_rest(&l);
        if (s != ST_OK || out->help) return s;
    }
    return finish(&l, &texts);
}

status options_model(const common_options *c, errmsg *e)
{
    if (c->model != NULL) return ST_OK;
    return errmsg_set(
        e, ST_BAD_MODEL,
        "no model: name one with -m FILE; the demo model is not where it belongs "
        "(launch/demo/demo.gguf above the program, or share/memra-pp beside its bin)");
}

/* A plain word that is no file: as people name models. */
static bool is_name(const char *path)
{
    return path[0] != '\0' && strpbrk(path, "/.") == NULL && access(path, F_OK) != 0;
}

status options_open_model(const common_options *c, gguf **out, errmsg *e)
{
    *out = NULL;
    if (c->model_fd <= 0 && is_name(c->model))
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: No such file, and a GGUF file is meant. launch/pp-run.sh -m NAME "
                          "fetches models that it knows by name: launch/get-model.sh --help lists "
                          "them",
                          c->model);
    if (c->model_fd <= 0) return gguf_open(out, c->model, e);
    int fd = fcntl(c->model_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0) return errmsg_set(e, ST_RESOURCES, "%s: %s", c->model, strerror(errno));
    return gguf_open_fds(out, &fd, 1, e);
}

status options_trace(common_options *c, errmsg *e)
{
    if (c->trace_file == NULL) return ST_OK;
    TRY(outfile_is_file("--trace", c->trace_file, "and a trace is written in place", e));
    TRY(outfile_spares("--trace", c->trace_file, c->log_file, e));
    return trace_open(&c->trace, c->trace_file, e);
}

status options_no_json(const common_options *c, const char *command, errmsg *e)
{
    if (!c->json) return ST_OK;
    return errmsg_set(e, ST_USAGE, "--json: %s has no JSON form; see --help", command);
}

/* --- for the commands ----------------------------------------------------------------------- */

pipeline_options options_pipeline(const common_options *c)
{
    pipeline_options o = pipeline_options_default(c->model, &c->doors);
    o.model_fd = c->model_fd;
    o.plan = c->plan;
    o.n_threads = c->n_threads;
    o.isa = c->isa;
    o.run_dir = c->run_dir;
    o.stage_program = c->stage_program;
    o.start_timeout_ms = (uint32_t)(c->start_timeout_s * 1000 + 0.5);
    o.hang_timeout_ms = (uint32_t)(c->hang_timeout_s * 1000 + 0.5);
    o.restarts = c->restarts;
    o.restart_window_ms = (uint32_t)(c->restart_window_s * 1000 + 0.5);
    o.trace = c->trace;
    o.faults_met = &faults_met;
    return o;
}

void options_tell_faults(const common_options *c)
{
    const char *at = c->doors.faults.n > 0 ? c->doors.fault_text : NULL, *entry;
    size_t n;
    for (uint32_t i = 0; doortext_next(&at, ';', &entry, &n); i++) {
        if ((__atomic_load_n(&faults_met, __ATOMIC_RELAXED) >> i & 1) == 0)
            log_warn("%s: %.*s never happened, its moment did not come",
                     doors_name(&c->doors, DOOR_FAULT), (int)n, entry);
    }
}

int command_failed(const errmsg *e)
{
    bool says = e->text[0] != '\0', gone = e->code == ST_CLOSED && !says;
    bool ended = e->code == ST_INTERRUPTED || (!says && interrupt_signal() != 0);
    if (!gone && !ended) {
        log_error("%s", e->text);
        if (log_fd_now() != STDERR_FILENO) dprintf(STDERR_FILENO, "memra-pp: error: %s\n", e->text);
    }
    if (interrupt_signal() != 0) return 128 + interrupt_signal();
    return gone ? 128 + SIGPIPE : status_exit_code(e->code);
}

bool options_begin(common_options *out, int argc, char **argv, const command_form *form, int *code)
{
    errmsg e = {0};
    *code = 0;
    status s = options_parse(argc, argv, form->own, form->n_own, out, form->positional,
                             form->positional_max, form->n_positional, &e);
    if (s == ST_OK && !out->help) s = limits_stack(&e);
    if (s != ST_OK) {
        if (out->json && form->refused_json != NULL) form->refused_json(&e);
        *code = command_failed(&e);
        return false;
    }
    if (out->help) options_help(form->usage, form->about, form->own, form->n_own);
    return !out->help;
}
