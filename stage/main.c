/* memra-stage: one stage process. Started by memra-pp, which hands it descriptors; of no use
 * alone. */
#include "common/log.h"
#include "common/wire.h"
#include "kernels/backend.h"
#include "stage/control.h"
#include "stage/devices.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "build_id.h"

static const char *const usage =
    "memra-stage: one stage of a memra-pp pipeline; memra-pp starts it.\n"
    "\n"
    "  --endpoint E      the coordinator's socket for this incarnation (ipc://...)\n"
    "  --stage S         which stage this is, from 0\n"
    "  --epoch E         which incarnation of that stage\n"
    "  --death-fd F      inherited pipe; when it closes this process ends\n"
    "  --run-block-fd F  inherited shared memory of the run\n"
    "  --log-level L     error, warn, info or debug\n"
    "  --log-fd F        inherited descriptor that log lines go to (2)\n"
    "  --probe F         write the CUDA devices here to descriptor F, and end\n"
    "  --version         version, build and backends\n"
    "  --help            this text\n"
    "\n"
    "Exit codes: 0 told to stop, 2 usage, 3 model file, 4 resources, 5 fault or coordinator gone,\n"
    "6 a device failed (a CUDA error), 70 injected exit, 128+n ended by signal n.\n";

static bool number(const char *text, uint32_t max, uint32_t *out)
{
    char *end = NULL;
    if (text == NULL || *text < '0' || *text > '9') return false;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0' || v > max) return false;
    *out = (uint32_t)v;
    return true;
}

static int usage_error(const char *what)
{
    fprintf(stderr, "memra-stage: error: %s (memra-pp starts this program; see --help)\n", what);
    return status_exit_code(ST_USAGE);
}

static int probe(int fd)
{
    errmsg e = {0};
    status s = devices_write(fd, &e);
    if (s != ST_OK) fprintf(stderr, "memra-stage: error: %s\n", e.text);
    return status_exit_code(s);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"endpoint", required_argument, NULL, 'e'},  {"stage", required_argument, NULL, 's'},
        {"epoch", required_argument, NULL, 'n'},     {"death-fd", required_argument, NULL, 'd'},
        {"run-block-fd", required_argument, NULL, 'r'}, {"log-level", required_argument, NULL, 'l'},
        {"log-fd", required_argument, NULL, 'f'},
        {"probe", required_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},         {"help", no_argument, NULL, 'h'},
        {0}};
    control_options o = {.death_fd = -1, .run_block_fd = -1};
    log_level level = LOG_INFO;
    uint32_t n = 0, log_fd = 2;
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'e':
            o.endpoint = optarg;
            break;
        case 's':
            ok = number(optarg, STAGES_MAX - 1, &o.stage_i);
            break;
        case 'n':
            ok = number(optarg, UINT32_MAX - 1, &o.epoch);
            break;
        case 'd':
            ok = number(optarg, INT32_MAX, &n);
            o.death_fd = (int)n;
            break;
        case 'r':
            ok = number(optarg, INT32_MAX, &n);
            o.run_block_fd = (int)n;
            break;
        case 'l':
            ok = log_level_parse(optarg, &level) == ST_OK;
            break;
        case 'f':
            ok = number(optarg, INT32_MAX, &log_fd);
            break;
        case 'p':
            if (!number(optarg, INT32_MAX, &n)) return usage_error("--probe: a descriptor");
            return probe((int)n);
        case 'v':
            printf("memra-stage %s build %s, backends: %s\n", MEMRA_VERSION, MEMRA_BUILD_ID,
                   backend_names());
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            return status_exit_code(ST_USAGE);
        }
    }
    if (!ok || optind != argc) return usage_error("a value is out of range");
    if (o.endpoint == NULL || o.epoch == 0 || o.death_fd < 0 || o.run_block_fd < 0 ||
        fcntl(o.death_fd, F_GETFD) < 0 || fcntl(o.run_block_fd, F_GETFD) < 0) {
        return usage_error("endpoint, epoch or an inherited descriptor is missing");
    }
    /* Ctrl-C goes to the whole group: the coordinator decides, stages are told. */
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* it would print lines of its own beside ours */
    setenv("NCCL_SOCKET_IFNAME", "lo", 0); /* both ends are here: nothing listens to the network */
    setenv("NCCL_NVLS_ENABLE", "0", 0);    /* send and receive need no multicast */
    prctl(PR_SET_NAME, "memra-stage"); /* started by a descriptor it is called by its number */
    char who[32];
    snprintf(who, sizeof who, "memra-stage %u", o.stage_i);
    log_open(who, level, (int)log_fd);
    return control_run(&o);
}
