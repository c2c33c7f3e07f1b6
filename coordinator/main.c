/* memra-pp: chooses the command, and owns what belongs to the whole process: signals, --version. */
#include "coordinator/machine/inventory.h"
#include "coordinator/commands/options.h"
#include "coordinator/commands/output.h"
#include "build_id.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    command_run run;
    const char *about;
} commands[] = {
    {"run", cmd_run, "continue a prompt, text to standard output"},
    {"plan", cmd_plan, "what a run would need: cuts, devices, bytes"},
    {"logits", cmd_logits, "the logits after each of given tokens, to a file"},
    {"tokenize", cmd_tokenize, "the token ids of a text"},
    {"gate", cmd_gate, "check that the output does not depend on how it was run"},
    {"bench", cmd_bench, "measure prompt and generation speed"},
    {"status", cmd_status, "live runs, and what one of them does"},
    {"devices", cmd_devices, "what a stage can be placed on here"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* The first signal asks, the second ends: stages end with the process that started them. A terminal
 * that closes may send SIGHUP twice, by the kernel and by the shell: it only ever asks. */
static void on_signal(int n)
{
    if (interrupt_signal() == 0)
        __atomic_store_n(&interrupted, n, __ATOMIC_RELAXED);
    else if (n != SIGHUP)
        _exit(128 + n);
}

static void install_handlers(void)
{
    /* Without SA_RESTART: a call that waits returns, and its caller looks at `interrupted`. */
    struct sigaction a = {.sa_handler = on_signal};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* else: nohup */
        sigaction(SIGHUP, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
    sigaction(SIGXFSZ, &a, NULL);
}

/* A descriptor 0, 1 or 2 that is closed would become a file or socket of ours, and text would be
 * written into it. Opened the wrong way round, reading and writing them fails instead. */
static void fill_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        (void)opened; /* the lowest free one is fd itself */
    }
}

static void help(FILE *f)
{
    fprintf(f, "usage: memra-pp COMMAND [options]\n"
               "       memra-pp COMMAND --help\n"
               "       memra-pp --version\n\n"
               "Runs a large language model cut into stages, one process each; the output never\n"
               "depends on how it was cut.\n\nCommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].about);
    }
}

static int run_command(int argc, char **argv)
{
    errmsg e = {0};
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    char names[128] = "";
    for (size_t i = 0, n = 0; i < N_COMMANDS; i++) {
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "",
                              commands[i].name);
    }
    errmsg_set(&e, ST_USAGE, "no command '%.40s'; there are: %s", argv[1], names);
    return command_failed(&e);
}

int main(int argc, char **argv)
{
    fill_descriptors();
    install_handlers();
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* it would print lines of its own beside ours */
    int code = 0;
    if (argc < 2) {
        help(stderr);
        return status_exit_code(ST_USAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help(stdout);
    } else if (strcmp(argv[1], "--version") == 0) {
        printf("memra-pp %s build %s, backends: %s\n", MEMRA_VERSION, MEMRA_BUILD_ID,
               inventory_backends());
    } else {
        code = run_command(argc, argv);
    }
    errmsg e = {0};
    output_flush(); /* whether help and tables arrived is known only in the end */
    if (output_flushed(&e) != ST_OK && code == 0) code = command_failed(&e);
    if (code == 0 && log_lost()) code = status_exit_code(ST_RESOURCES); /* said when it happened */
    return code;
}
