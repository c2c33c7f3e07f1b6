/* options.h - the command line: what all commands share, read in one place.
 *
 * Every command takes --help, the doors as flags (common/doors.h) and the options below; a command
 * adds its own through a table. Long options only with --, values as "--x v" or "--x=v"; letters
 * (-m, -p, ..) take their value from the next argument; "--" ends the options. The argument after
 * an option that takes a value is its value, whatever it looks like. Numbers are decimal; a value
 * out of range is refused with one line naming option, value and rule (ST_USAGE). An option given
 * twice: the last one counts. An empty value of a door is its default; an empty value of anything
 * but OPTION_TEXT is refused. */
#ifndef COORDINATOR_OPTIONS_H
#define COORDINATOR_OPTIONS_H

#include "common/doors.h"
#include "common/log.h"
#include "coordinator/pipeline.h"

/* OPTION_I64 may have a minus sign; the F32 are [-]digits[.digits][e[-]digits]. */
typedef enum {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_U32,
    OPTION_I64,
    OPTION_U64,
    OPTION_F32,
    OPTION_F32_OVER, /* min itself is refused */
    OPTION_F32_UNDER /* max itself is refused */
} option_type;

typedef struct {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    option_type type;
    const char *argument; /* "FILE", "N"; NULL for a flag */
    const char *help;     /* says the default; '\n' breaks the line */
    void *out;            /* bool, const char *, uint32_t, int64_t, uint64_t or float */
    double min, max;      /* for numbers, inclusive but as the type says; both 0: no check */
} option;

/* Shared by all commands. */
typedef struct {
    bool help;
    const char *model; /* -m; none named: the demo model; NULL: that is not there either */
    bool model_is_demo;
    uint32_t default_stages; /* run --default-stages; 0: one */
    int model_fd; /* > 0: the model is this file, `model` only its name (shape.h); the caller's */
    doors doors;
    plan_request plan;                      /* --ctx, --sessions, --kv-bytes, --kv-type */
    uint32_t n_threads;                     /* --threads */
    const char *isa;                        /* --isa auto|ref|avx2|avx512|amx; NULL: auto */
    bool any_pre;                           /* --any-pre-tokenizer */
    const char *run_dir;                    /* --run-dir */
    const char *stage_program;              /* --stage-program */
    double start_timeout_s, hang_timeout_s; /* --start-timeout, --hang-timeout */
    uint32_t restarts;                      /* --restarts */
    double restart_window_s;                /* --restart-window */
    log_level log_level;                    /* --log-level */
    const char *log_file;                   /* --log-file */
    bool json;                              /* --json, for the commands that have it */
    const char *trace_file;                 /* --trace, for the commands that have it */
    struct trace *trace;                    /* options_trace; NULL: none */
} common_options;

/* Parse argv[1..] of a command: its own table and the shared ones; where both have a name or
 * letter, the command's own wins. Positional arguments (gate names) go to positional (at most
 * positional_max; more are refused). ST_USAGE or ST_BAD_DOOR with *e; ST_RESOURCES: the log file
 * cannot be written. With --help everything else is left unread and *out says so. After an
 * argument that is refused the rest is read all the same: *out says whether --json is among them.
 * Otherwise the log is open (level and file) when it returns ST_OK. Texts in *out are argv's own.
 */
MUST_USE status options_parse(int argc, char **argv, const option *own, uint32_t n_own,
                              common_options *out, const char **positional, uint32_t positional_max,
                              uint32_t *n_positional, errmsg *e);

/* ST_BAD_MODEL, saying what to do, when there is no model: none named and no demo model found. */
MUST_USE status options_model(const common_options *c, errmsg *e);

/* Open the model that c names, by path or descriptor. Errors as gguf_open. */
MUST_USE status options_open_model(const common_options *c, gguf **out, errmsg *e);

/* The row for a command's table of options, in which c is its common_options; after options_parse
 * the command calls options_trace, and trace_close(c.trace) in the end. */
#define TRACE_OPTION(c)                                                                            \
    {                                                                                              \
        "trace", 0, OPTION_TEXT, "FILE",                                                           \
            "write what every stage and boundary did, and when, to FILE, a Chrome trace: open it " \
            "in ui.perfetto.dev. Whole at any time. Default: none",                                \
            &(c).trace_file, 0, 0                                                                  \
    }

/* Begin the trace that c asks for, if it does. Errors as trace_open. */
MUST_USE status options_trace(common_options *c, errmsg *e);

/* The place of an option's value in a list of words that ends with NULL. ST_USAGE: it is none of
 * them; *e names option (as given: "--isa", "-o"), value and rule. */
MUST_USE status options_word(const char *name, const char *word, const char *const *words,
                             const char *rule, uint32_t *out, errmsg *e);

/* ST_USAGE when --json was given to a command that has no such form. */
MUST_USE status options_no_json(const common_options *c, const char *command, errmsg *e);

/* --help of a command to stdout: usage line, what it does, its own options, shared options, doors,
 * exit codes. */
void options_help(const char *usage, const char *about, const option *own, uint32_t n_own);

/* What a command is to a person, and its own options and positional arguments, if it has any. */
typedef struct {
    const char *usage, *about;
    const option *own;
    uint32_t n_own;
    const char **positional; /* [positional_max] */
    uint32_t positional_max, *n_positional;
    void (*refused_json)(const errmsg *why); /* how --json is told that nothing begins; NULL: not */
} command_form;

/* How every command begins: its line is parsed, as options_parse does, and room made for its stacks
 * (limits.h), or its help printed. False: that was all, and *code is its exit code. */
MUST_USE bool options_begin(common_options *out, int argc, char **argv, const command_form *form,
                            int *code);

/* The pipeline options that common options ask for (model, doors, timeouts...). They point into
 * c. */
pipeline_options options_pipeline(const common_options *c);

/* A line for each of the doors' faults that no stage of the pipelines so far, which are closed, has
 * carried out: for a command that came to its end. */
void options_tell_faults(const common_options *c);

/* --- commands: one file each, coordinator/cmd_NAME.c ---------------------------------------- */

/* Runs the command; returns the exit code. argv[0] is the command's name. */
typedef int (*command_run)(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_gate(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_devices(int argc, char **argv);

/* Set by SIGINT, SIGTERM and SIGHUP: the signal's number, 0 so far. Handlers are installed by main;
 * a second signal, SIGHUP aside, ends the program at once (stages end with it). A command passes it
 * to pipeline_open and ends with 128 + *interrupted. */
extern volatile int interrupted;

/* Its value; the handler may run on another thread. */
static inline int interrupt_signal(void)
{
    return __atomic_load_n(&interrupted, __ATOMIC_RELAXED);
}

/* Print the error to stderr by log_error and return its exit code (128 + signal when interrupted).
 * Nothing is printed for ST_INTERRUPTED, nor for a reader of stdout that went away (output.h: exit
 * code 141, as if SIGPIPE had ended us). With --log-file the line goes to stderr as well. */
int command_failed(const errmsg *e);

#endif
