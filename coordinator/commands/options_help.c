/* The options of all commands, and how they and a command's own are told to a person. */
#include "common/doortext.h"
#include "coordinator/commands/options_impl.h"

#include <stdio.h>
#include <string.h>

#define LEFT_COLUMNS  30
#define DOOR_COLUMNS  26
#define HELP_COLUMNS  68 /* words that would stand beyond go to the next line */
#define N_THREADS_MAX 256u
#define TIMEOUT_S_MIN 0.01
#define TIMEOUT_S_MAX 86400.0

void options_shared(option out[N_SHARED], common_options *c, shared_texts *t)
{
    const option table[N_SHARED] = {
        {"model", 'm', OPTION_TEXT, "FILE",
         "model file, GGUF; any part of a split one. Default: the demo model", &c->model, 0, 0},
        {"ctx", 0, OPTION_U32, "N",
         "positions of a session. Default: 4096, or the model's own if that is less",
         &c->plan.n_ctx, 1, PLAN_CTX_MAX},
        {"sessions", 0, OPTION_U32, "N", "sessions open at once. Default: 1", &c->plan.n_sessions,
         1, PLAN_SESSIONS_MAX},
        {"kv-bytes", 0, OPTION_U64, "BYTES",
         "bound of the KV cache over all stages. Default: sessions x ctx", &c->plan.kv_bytes, 1,
         18446744073709551615.0},
        {"journal-bytes", 0, OPTION_U64, "BYTES",
         "bound of the memory that keeps rows that crossed boundaries, to replace a stage with; 0: "
         "none, they walk all stages again. Default: all that fill the KV cache, where that fits",
         &c->plan.journal_bytes, 0, 18446744073709551615.0},
        {"kv-type", 0, OPTION_TEXT, "TYPE", "type of the KV cache: f32, f16 or bf16. Default: f16",
         &t->kv_type, 0, 0},
        {"threads", 0, OPTION_U32, "N",
         "threads per stage, 256 at most. Default, and 0: the cores shared among the stages",
         &c->n_threads, 0, N_THREADS_MAX},
        {"isa", 0, OPTION_TEXT, "NAME",
         "instruction set: auto, ref, avx2, avx512 or amx; the bits are the same. Default: auto",
         &c->isa, 0, 0},
        {"any-pre-tokenizer", 0, OPTION_FLAG, NULL,
         "take the default pre-tokenizer where the file's own is not known. Default: refused",
         &c->any_pre, 0, 0},
        {"run-dir", 0, OPTION_TEXT, "DIR",
         "where runs keep their private folders.\nDefault: $XDG_RUNTIME_DIR/memra-pp, else "
         "/tmp/memra-pp-UID",
         &c->run_dir, 0, 0},
        {"stage-program", 0, OPTION_TEXT, "FILE",
         "the stage program. Default: memra-stage beside this program", &c->stage_program, 0, 0},
        {"start-timeout", 0, OPTION_F32, "SECONDS",
         "give a stage up that shows no progress in its start (loading, also of a replacement) for "
         "so long. "
         "Default: 30",
         &t->start_timeout_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX},
        {"hang-timeout", 0, OPTION_F32, "SECONDS",
         "give a stage up that, once started, shows no progress in a step or does not answer for "
         "so long; one that is slow and moves is not given up. "
         "Default: 5",
         &t->hang_timeout_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX},
        {"restarts", 0, OPTION_U32, "N",
         "replace a lost stage at most N times within the window, 0 to 64; 0: the run ends with "
         "the "
         "first loss. Default: 10",
         &c->restarts, 0, RESTARTS_MAX},
        {"restart-window", 0, OPTION_F32, "SECONDS", "that window. Default: 60",
         &t->restart_window_s, TIMEOUT_S_MIN, TIMEOUT_S_MAX},
        {"log-level", 0, OPTION_TEXT, "LEVEL",
         "error, warn, info or debug. Default: info; below it no lines but errors and warnings",
         &t->log_level, 0, 0},
        {"log-file", 0, OPTION_TEXT, "FILE",
         "append log lines to FILE; if it cannot be written, they go to standard error from there "
         "on. "
         "Default: standard error",
         &c->log_file, 0, 0},
        {"json", 0, OPTION_FLAG, NULL, "output as JSON, for the commands that have it", &c->json, 0,
         0},
        {"help", 'h', OPTION_FLAG, NULL, "this text", &c->help, 0, 0},
    };
    memcpy(out, table, sizeof table);
}

const option *option_find(const option *table, uint32_t n, const char *name, size_t bytes,
                          char letter)
{
    for (uint32_t i = 0; i < n; i++) {
        if (table[i].name == NULL) continue;
        if (letter != 0 ? table[i].letter == letter : doortext_is(name, bytes, table[i].name)) {
            return &table[i];
        }
    }
    return NULL;
}

/* A text from a column on, of whose first line so many columns are used. */
static void print_wrapped(const char *help, int column, int used)
{
    for (;;) {
        size_t n = strcspn(help, "\n");
        if (n > HELP_COLUMNS) {
            for (n = HELP_COLUMNS; n > 0 && help[n] != ' '; n--)
                continue;
        }
        printf("%*s%.*s\n", column - used, "", (int)n, help);
        if (help[n] == '\0') return;
        help += n + 1;
        used = 0;
    }
}

/* Options and their help in two columns; a long option pushes its help to the next line. */
static void print_entry(const char *left, const char *help)
{
    int used = printf("  %s", left);
    if (used > LEFT_COLUMNS - 1) {
        printf("\n");
        used = 0;
    }
    print_wrapped(help, LEFT_COLUMNS, used);
}

static void print_options(const option *table, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const option *o = &table[i];
        if (o->name == NULL) continue;
        char left[96], letter[8] = "";
        if (o->letter != 0) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->argument != NULL ? " " : "",
                 o->argument != NULL ? o->argument : "");
        print_entry(left, o->help);
    }
}

void options_help(const char *usage, const char *about, const option *own, uint32_t n_own)
{
    printf("usage: memra-pp %s\n\n%s\n", usage, about);
    if (n_own > 0) printf("\nOptions:\n");
    print_options(own, n_own);
    option shared[N_SHARED] = {0};
    common_options c;
    shared_texts texts;
    options_shared(shared, &c, &texts);
    for (uint32_t i = 0; i < N_SHARED; i++) {
        bool hidden = shared[i].name != NULL &&
                      option_find(own, n_own, shared[i].name, strlen(shared[i].name), 0) != NULL;
        if (hidden) shared[i].name = NULL;
    }
    printf("\nOptions of all commands:\n");
    print_options(shared, N_SHARED);
    printf(
        "\nDoors, as a flag or as the variable beside it (the flag wins; empty is the default):\n");
    uint32_t n_doors;
    const door_info *door = doors_table(&n_doors);
    for (uint32_t i = 0; i < n_doors; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s", door[i].flag);
        printf("  %-*s%s\n", DOOR_COLUMNS - 2, left, door[i].variable);
        print_wrapped(door[i].rule, DOOR_COLUMNS, 0);
    }
    printf("\nExit codes: 0 done, 1 a check is red, 2 usage or door, 3 model file, 4 resources "
           "(memory,\n"
           "device, file, context; an output, log or trace that is not whole), 5 a stage was lost "
           "for good,\n"
           "7 NaN or infinity in a hidden state or in logits, 128+n ended by signal n (141: the "
           "reader of\n"
           "standard output went away).\n");
}
