#include "coordinator/engine/child.h"

#include "coordinator/engine/leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Between fork and exec: async-signal-safe calls only. */
static void become(int program_fd, char *const argv[], const int *fds, uint32_t n_fds, pid_t parent,
                   int errno_fd)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_IGN); /* Ctrl-C goes to the whole group: we decide, children are told */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    bool ok = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
    if (ok && getppid() != parent) _exit(127); /* it died before the line above */
    for (uint32_t i = 0; ok && i < n_fds; i++) ok = fcntl(fds[i], F_SETFD, 0) == 0;
    if (ok && program_fd >= 0) fexecve(program_fd, argv, environ);
    /* ENOENT: an interpreter would find its script's descriptor closed. EPERM: a sandbox that knows
     * no execveat. */
    if (ok && (program_fd < 0 || errno == ENOENT || errno == EPERM)) execv(argv[0], argv);
    int error = errno;
    ssize_t n = write(errno_fd, &error, sizeof error);
    (void)n;
    _exit(127);
}

status child_start(child *out, char *const argv[], const int *fds, uint32_t n_fds, errmsg *e)
{
    return child_start_open(out, -1, argv, fds, n_fds, e);
}

status child_start_open(child *out, int program_fd, char *const argv[], const int *fds,
                        uint32_t n_fds, errmsg *e)
{
    int report[2];
    *out = (child){.pidfd = -1};
    if (pipe2(report, O_CLOEXEC) != 0)
        return errmsg_set(e, ST_RESOURCES, "cannot start %s: %s", argv[0], strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) become(program_fd, argv, fds, n_fds, parent, report[1]);
    int fork_errno = errno;
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return errmsg_set(e, ST_RESOURCES, "cannot start %s: %s", argv[0], strerror(fork_errno));
    }
    int error = 0;
    ssize_t n;
    do {
        n = read(report[0], &error, sizeof error);
    } while (n < 0 && errno == EINTR);
    close(report[0]);
    out->pid = pid;
    out->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (n == (ssize_t)sizeof error || out->pidfd < 0) {
        if (n != (ssize_t)sizeof error) error = errno;
        child_destroy(out);
        out->no_program = error == ENOENT || error == EACCES || error == ENOEXEC;
        return errmsg_set(e, ST_RESOURCES, "cannot start %s: %s (--stage-program)", argv[0],
                          strerror(error));
    }
    fcntl(out->pidfd, F_SETFD, FD_CLOEXEC);
    return ST_OK;
}

static void ended(child *c)
{
    c->ended = true;
    leftovers_remove(c->pid);
}

bool child_reap(child *c)
{
    if (c->pid == 0 || c->ended) return c->ended;
    if (waitpid(c->pid, &c->wait_status, WNOHANG) == c->pid) ended(c);
    return c->ended;
}

void child_signal(const child *c, int signal_number)
{
    if (c->pid != 0 && !c->ended) kill(c->pid, signal_number);
}

bool child_wait(child *c, uint32_t limit_ms)
{
    if (c->pid == 0) return true;
    struct pollfd p = {.fd = c->pidfd, .events = POLLIN};
    if (!child_reap(c)) poll(&p, 1, (int)limit_ms);
    return child_reap(c);
}

void child_destroy(child *c)
{
    if (c->pid == 0) return;
    if (!child_reap(c)) {
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, &c->wait_status, 0) < 0 && errno == EINTR) continue;
        ended(c);
    }
    if (c->pidfd >= 0) close(c->pidfd);
    *c = (child){.pidfd = -1};
}

int child_stopped_by(const child *c)
{
    siginfo_t info = {0};
    if (c->pid == 0 || c->ended) return 0;
    /* Not consumed: it stays stopped for the next look. */
    if (waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0) return 0;
    return info.si_pid == c->pid ? info.si_status : 0;
}

void child_describe(const child *c, char *text, uint32_t text_bytes)
{
    int s = c->wait_status;
    if (!c->ended)
        snprintf(text, text_bytes, "still running");
    else if (WIFSIGNALED(s))
        snprintf(text, text_bytes, "killed by SIG%s",
                 sigabbrev_np(WTERMSIG(s)) != NULL ? sigabbrev_np(WTERMSIG(s)) : "?");
    else
        snprintf(text, text_bytes, "ended with exit code %d", WEXITSTATUS(s));
}
