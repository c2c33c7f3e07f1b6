/* status: the live runs below a run directory, asked over their status socket. A run is alive while
 * it holds its lock; one that does not answer within a second is listed as such, or as stopped. */
#include "common/amount.h"
#include "common/doortext.h"
#include "common/process.h"
#include "common/threads.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/options.h"
#include "coordinator/engine/rundir.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define USAGE "status [PID] [--run-dir DIR] [--json]"
#define ABOUT                                                                                      \
    "Lists the live runs of this user, or shows the one whose coordinator has this PID:\n"         \
    "its stages with pid, device, state, epoch, layers, restarts and how the last one was\n"       \
    "lost, messages that were dropped, sessions that NaN has ended, how many sessions wait\n"      \
    "for KV (queue), the journals' use, and rows and bytes per boundary; a draft model's\n"       \
    "process too. With --json the list is\n"                                                      \
    "{\"runs\": [..]}, and one run is what it says of itself, with those that serve it, as a\n"   \
    "draft model does, in \"others\". No live run is no error, a --run-dir that is missing is.\n"  \
    "Exit codes of PID: 4, there is no such run; 5, it does not answer within a second,\n"        \
    "being stopped (SIGSTOP, Ctrl-Z) or hanging; in the list its state says so."

#define ANSWER_MS       1000
#define RUNS_MAX        256u
#define REPLY_BYTES_MAX (8u << 20)

typedef struct {
    uint32_t n;
    char path[RUNS_MAX][RUNDIR_PATH_MAX + 1];
} runs;

static void add_run(void *ctx, const char *path)
{
    runs *r = ctx;
    if (r->n < RUNS_MAX) snprintf(r->path[r->n++], sizeof r->path[0], "%s", path);
}

/* By pid, and of one pid in the order in which it opened them. */
static int in_order(const void *a, const void *b)
{
    return strverscmp(a, b);
}

/* The PID in ".../run-PID-N"; 0 when the name has none. */
static uint64_t run_pid(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name == NULL ? path : name + 1;
    uint64_t pid = 0;
    if (strncmp(name, "run-", 4) != 0) return 0;
    size_t n = strcspn(name + 4, "-");
    return doortext_number(name + 4, n, INT32_MAX, &pid) == NUMBER_OK ? pid : 0;
}

/* --- the question --------------------------------------------------------------------------- */

/* Receive one frame that is a JSON object; NULL: none came in time, or it is none. */
static json_t *receive(void *socket)
{
    zmq_msg_t m;
    json_t *j = NULL;
    zmq_msg_init(&m);
    /* The timeout may run out early when a signal comes; then nobody waits for the answer. */
    if (zmq_msg_recv(&m, socket, 0) >= 0 && zmq_msg_size(&m) <= REPLY_BYTES_MAX) {
        j = json_loadb(zmq_msg_data(&m), zmq_msg_size(&m), 0, NULL);
    }
    zmq_msg_close(&m);
    if (j != NULL && !json_is_object(j)) {
        json_decref(j);
        j = NULL;
    }
    return j;
}

/* What the run at path says of itself; NULL: it does not answer. */
static json_t *ask(void *zmq, const char *path)
{
    char endpoint[RUNDIR_PATH_MAX + 32];
    const int answer_ms = ANSWER_MS, linger = 0;
    json_t *j = NULL;
    void *socket = zmq_socket(zmq, ZMQ_REQ);
    if (socket == NULL) return NULL;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/status", path);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &answer_ms, sizeof answer_ms);
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &answer_ms, sizeof answer_ms);
    if (zmq_connect(socket, endpoint) == 0 && zmq_send(socket, "status", 6, 0) >= 0) {
        j = receive(socket);
    }
    zmq_close(socket);
    return j;
}

/* Of a run that did not answer. */
static bool is_stopped(uint64_t pid)
{
    char state = process_state((pid_t)pid);
    return state == 'T' || state == 't';
}

static const char *silent_state(uint64_t pid)
{
    return is_stopped(pid) ? "stopped" : "not answering";
}

static status refuse_silent(uint64_t pid, const char *path, errmsg *e)
{
    if (is_stopped(pid))
        return errmsg_set(e, ST_TIMEOUT,
                          "run %" PRIu64
                          " does not answer, its process is stopped (SIGSTOP, Ctrl-Z): kill "
                          "-CONT %" PRIu64 " lets it go on",
                          pid, pid);
    return errmsg_set(e, ST_TIMEOUT,
                      "run %" PRIu64
                      " does not answer within %d s: it hangs, or the machine is too busy; "
                      "ask again, or end it with kill %" PRIu64 " (%s)",
                      pid, ANSWER_MS / 1000, pid, path);
}

static status refuse_absent(const common_options *c, uint64_t pid, errmsg *e)
{
    char base[RUNDIR_PATH_MAX + 1];
    TRY(rundir_base(base, c->run_dir, e));
    return errmsg_set(e, ST_RESOURCES,
                      "no live run has pid %" PRIu64
                      " below %s (--run-dir); status alone lists those that "
                      "there are",
                      pid, base);
}

/* --- for a person --------------------------------------------------------------------------- */

/* Members of what a run says, with a stand-in for what is missing: another build may say less. */
static const char *text_of(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));
    return s == NULL ? "-" : s;
}

static int64_t number_of(const json_t *j, const char *key)
{
    return json_integer_value(json_object_get(j, key));
}

static int64_t element_of(const json_t *j, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(j, key), i));
}

/* A run's text for a terminal. */
static status clean_line(errmsg *e, const char *format, ...) PRINTF_LIKE(2, 3);
static status clean_line(errmsg *e, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    output_clean(line);
    return output_line(e, "%s", line);
}

/* " (draft model)", or nothing: a run that serves another one of its process says as what. */
static const char *called(char *out, size_t bytes, const json_t *j)
{
    const char *name = json_string_value(json_object_get(j, "called"));
    if (name == NULL) return "";
    snprintf(out, bytes, " (%s)", name);
    return out;
}

static status print_listed(const char *path, const json_t *j, errmsg *e)
{
    if (j == NULL) {
        return clean_line(e, "%-8" PRIu64 " %-13s %-7s %-9s %s", run_pid(path),
                          silent_state(run_pid(path)), "-", "-", path);
    }
    char as[64];
    return clean_line(e, "%-8" PRId64 " %-13s %-7" PRId64 " %-9" PRId64 " %s%s",
                      number_of(j, "pid"), text_of(j, "state"), number_of(j, "n_stages"),
                      number_of(j, "sessions"), text_of(j, "model"), called(as, sizeof as, j));
}

static status print_stage(const json_t *g, errmsg *e)
{
    char layers[48];
    int64_t begin = element_of(g, "layers", 0), last = element_of(g, "layers", 1) - 1;
    if (begin == last)
        snprintf(layers, sizeof layers, "%" PRId64, begin);
    else
        snprintf(layers, sizeof layers, "%" PRId64 "-%" PRId64, begin, last);
    const char *uuid = json_string_value(json_object_get(g, "uuid"));
    return clean_line(e,
                      "%-6" PRId64 " %-8" PRId64 " %-9s %-6" PRId64 " %-9s %-9" PRId64 " %-9" PRId64
                      " %-9" PRId64 " %4.0f %% %s%s%s",
                      number_of(g, "stage"), number_of(g, "pid"), text_of(g, "state"),
                      number_of(g, "epoch"), layers, number_of(g, "restarts"),
                      number_of(g, "steps"), number_of(g, "rows"),
                      100 * json_number_value(json_object_get(g, "busy")), text_of(g, "device"),
                      uuid != NULL ? ", " : "", uuid != NULL ? uuid : "");
}

static status print_run(const json_t *j, errmsg *e)
{
    size_t i;
    json_t *item;
    char as[64];
    TRY(clean_line(e, "run %" PRId64 "%s: %s, %s", number_of(j, "pid"), called(as, sizeof as, j),
                   text_of(j, "state"), text_of(j, "model")));
    if (json_is_string(json_object_get(j, "failure")))
        TRY(clean_line(e, "failure: %s", text_of(j, "failure")));
    TRY(clean_line(e, "sessions %" PRId64 ", queue %" PRId64 ", KV blocks %" PRId64 " of %" PRId64,
                   number_of(j, "sessions"), number_of(j, "queue"), number_of(j, "kv_blocks_used"),
                   number_of(j, "kv_blocks")));
    if (json_is_false(json_object_get(j, "sharded")))
        TRY(clean_line(e, "all weights lie on the device of stage 0, the others read them there"));
    const json_t *kept = json_object_get(j, "journal");
    if (json_is_object(kept)) {
        TRY(clean_line(e, "journal %s, blocks %" PRId64 " of %" PRId64,
                       amount_said((uint64_t)number_of(kept, "bytes")),
                       number_of(kept, "blocks_used"), number_of(kept, "blocks")));
    }
    TRY(output_line(e, "%-6s %-8s %-9s %-6s %-9s %-9s %-9s %-9s %-6s %s", "stage", "pid", "state",
                    "epoch", "layers", "restarts", "steps", "rows", "busy", "device"));
    json_array_foreach(json_object_get(j, "stages"), i, item) TRY(print_stage(item, e));
    json_array_foreach(json_object_get(j, "stages"), i, item)
    {
        if (json_is_string(json_object_get(item, "last_fault")))
            TRY(clean_line(e, "last fault: %s", text_of(item, "last_fault")));
        if (number_of(item, "bad_messages") > 0)
            TRY(clean_line(e,
                           "stage %" PRId64 ": messages that failed their check, dropped: %" PRId64,
                           number_of(item, "stage"), number_of(item, "bad_messages")));
    }
    if (number_of(j, "poisoned") > 0)
        TRY(clean_line(e, "sessions ended by NaN or infinity: %" PRId64, number_of(j, "poisoned")));
    const json_t *boundaries = json_object_get(j, "boundaries");
    if (json_array_size(boundaries) == 0) return ST_OK;
    TRY(output_line(e, "%-9s %-10s %-8s %-9s %-12s %s", "boundary", "transport", "signal", "rows",
                    "bytes", "crossings by slot"));
    json_array_foreach(boundaries, i, item)
    {
        char ends[48];
        snprintf(ends, sizeof ends, "%" PRId64 " > %" PRId64, number_of(item, "from"),
                 number_of(item, "to"));
        TRY(clean_line(e, "%-9s %-10s %-8s %-9" PRId64 " %-12" PRId64 " %" PRId64 ", %" PRId64,
                       ends, text_of(item, "transport"), text_of(item, "signal"),
                       number_of(item, "rows"), number_of(item, "bytes"),
                       element_of(item, "crossings", 0), element_of(item, "crossings", 1)));
    }
    return ST_OK;
}

/* --- the command ---------------------------------------------------------------------------- */

/* All runs of the process; as JSON its first, with the others in it. */
static status show_one(const common_options *c, void *zmq, const runs *r, uint64_t pid, errmsg *e)
{
    json_t *first = NULL, *others = json_array();
    status s = ST_OK;
    for (uint32_t i = 0; i < r->n && s == ST_OK; i++) {
        if (run_pid(r->path[i]) != pid) continue;
        json_t *j = ask(zmq, r->path[i]);
        if (j == NULL && !rundir_lives(r->path[i])) continue; /* it ended meanwhile */
        if (j == NULL)
            s = refuse_silent(pid, r->path[i], e);
        else if (!c->json)
            s = print_run(j, e);
        if (first == NULL)
            first = j;
        else
            json_array_append_new(others, j);
    }
    if (s == ST_OK && first == NULL) s = refuse_absent(c, pid, e);
    if (s == ST_OK && c->json) {
        json_object_set(first, "others", others);
        s = output_json(json_incref(first), e);
    }
    json_decref(others);
    json_decref(first);
    return s;
}

static status list_json(void *zmq, const runs *r, errmsg *e)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n && interrupt_signal() == 0; i++) {
        json_t *j = ask(zmq, r->path[i]);
        if (j == NULL && !rundir_lives(r->path[i])) continue;
        if (j == NULL) {
            j = json_pack("{s:I, s:s}", "pid", (json_int_t)run_pid(r->path[i]), "state",
                          silent_state(run_pid(r->path[i])));
        }
        json_array_append_new(list, j);
    }
    return output_json(json_pack("{s:o}", "runs", list), e);
}

static status list_table(void *zmq, const runs *r, errmsg *e)
{
    if (r->n == 0) return output_text("no live run\n", e);
    TRY(output_line(e, "%-8s %-13s %-7s %-9s %s", "pid", "state", "stages", "sessions", "model"));
    for (uint32_t i = 0; i < r->n && interrupt_signal() == 0; i++) {
        json_t *j = ask(zmq, r->path[i]);
        if (j == NULL && !rundir_lives(r->path[i])) continue;
        status s = print_listed(r->path[i], j, e);
        json_decref(j);
        TRY(s);
    }
    return ST_OK;
}

static status show(const common_options *c, const char *pid_text, errmsg *e)
{
    status s = ST_OK;
    uint64_t pid = 0;
    if (pid_text != NULL &&
        doortext_number(pid_text, strlen(pid_text), INT32_MAX, &pid) != NUMBER_OK) {
        char quoted[DOORTEXT_QUOTE_BYTES];
        return errmsg_set(e, ST_USAGE, "%s is not a process id; rule: status [PID], decimal digits",
                          doortext_quote(quoted, pid_text, strlen(pid_text)));
    }
    runs *r = calloc(1, sizeof *r);
    void *zmq = zmq_ctx_new();
    if (r == NULL || zmq == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the list of runs");
        goto done;
    }
    TRY_DONE(s, rundir_list(c->run_dir, add_run, r, e));
    if (r->n > 0) TRY_DONE(s, threads_can_start(ZEROMQ_THREADS, "status", e));
    qsort(r->path, r->n, sizeof r->path[0], in_order);
    s = pid_text != NULL ? show_one(c, zmq, r, pid, e)
        : c->json        ? list_json(zmq, r, e)
                         : list_table(zmq, r, e);
done:
    if (zmq != NULL) zmq_ctx_term(zmq);
    free(r);
    if (s == ST_OK && interrupt_signal() != 0) s = errmsg_set(e, ST_INTERRUPTED, "interrupted");
    return s;
}

int cmd_status(int argc, char **argv)
{
    common_options c;
    errmsg e = {0};
    const char *pid = NULL;
    uint32_t n_positional;
    const command_form form = {USAGE, ABOUT, NULL, 0, &pid, 1, &n_positional, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    return show(&c, n_positional > 0 ? pid : NULL, &e) == ST_OK ? 0 : command_failed(&e);
}
