/* What the CUDA driver leaves of a killed process is removed, and nothing else. */
#include "tests/support/tap.h"

#include "coordinator/engine/child.h"
#include "coordinator/engine/leftovers.h"
#include "coordinator/engine/rundir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/leftovers_test.XXXXXX";

static void put(const char *where, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", where, name);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static bool there(const char *where, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", where, name);
    return access(path, F_OK) == 0;
}

static void only_those_of_the_process(void **state)
{
    (void)state;
    static const char *const its[] = {"cuda.shm.7.1f3.1", "cuda.shm.7.1f3.22"},
                      *const others[] = {"cuda.shm.7.1f30.1", "cuda.shm.8.1f3.1", "cuda.shm.7.1f",
                                         "nccl-1f3", "cuda.shm.7.11f3.1"};
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) put(dir, its[i]);
    for (int i = 0; i < 5; i++) put(dir, others[i]);
    assert_int_equal(leftovers_remove_in(dir, 7, 0x1f3), 2);
    for (int i = 0; i < 2; i++) assert_false(there(dir, its[i]));
    for (int i = 0; i < 5; i++) {
        char path[128];
        assert_true(there(dir, others[i]));
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        unlink(path);
    }
    assert_int_equal(leftovers_remove_in(dir, 7, 0x1f3), 0);
    rmdir(dir);
    assert_int_equal(leftovers_remove_in(dir, 7, 0x1f3), 0); /* no such directory */
}

static void a_killed_child_leaves_nothing(void **state)
{
    (void)state;
    char name[64];
    char *const argv[] = {"/bin/sleep", "100", NULL};
    child c;
    errmsg e = {0};
    assert_int_equal(child_start(&c, argv, NULL, 0, &e), ST_OK);
    snprintf(name, sizeof name, "cuda.shm.%u.%x.1", (unsigned)getuid(), (unsigned)c.pid);
    put("/dev/shm", name);
    assert_true(there("/dev/shm", name));
    child_signal(&c, SIGKILL);
    assert_true(child_wait(&c, 20000));
    assert_false(there("/dev/shm", name));
    child_destroy(&c);
}

/* A run whose processes were all killed: the next start removes what they left. */
static void cleaned_up_behind(bool waited_for)
{
    char base[] = "/tmp/leftovers_test.XXXXXX", its[64], ours[64];
    rundir dead, next;
    siginfo_t how;
    errmsg e = {0};
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &how, WEXITED | (waited_for ? 0 : WNOWAIT)), 0);
    snprintf(its, sizeof its, "cuda.shm.%u.%x.1", (unsigned)getuid(), (unsigned)pid);
    snprintf(ours, sizeof ours, "cuda.shm.%u.%x.77", (unsigned)getuid(), (unsigned)getpid());
    put("/dev/shm", its);
    put("/dev/shm", ours);
    assert_non_null(mkdtemp(base));
    assert_int_equal(rundir_open(&dead, base, &e), ST_OK);
    rundir_note_process(&dead, pid);
    rundir_note_process(&dead, getpid()); /* a number that was given again: it lives */
    close(dead.lock_fd);                  /* as when the coordinator is killed */
    assert_true(there("/dev/shm", its));
    assert_int_equal(rundir_open(&next, base, &e), ST_OK);
    assert_false(there("/dev/shm", its));
    assert_true(there("/dev/shm", ours));
    assert_int_not_equal(access(dead.path, F_OK), 0);
    assert_int_equal(leftovers_remove_in("/dev/shm", getuid(), getpid()), 1);
    rundir_close(&next);
    rmdir(base);
    if (!waited_for) assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_dead_run_is_cleaned_up_behind(void **state)
{
    (void)state;
    cleaned_up_behind(true);
    cleaned_up_behind(false); /* its parent does not ask */
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_those_of_the_process),
        cmocka_unit_test(a_killed_child_leaves_nothing),
        cmocka_unit_test(a_dead_run_is_cleaned_up_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
