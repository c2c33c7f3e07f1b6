#include "coordinator/engine/rundir.h"

#include "common/process.h"
#include "coordinator/engine/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_MAX_BYTES 20 /* "run-PID-N" */

status rundir_base(char out[RUNDIR_PATH_MAX + 1], const char *base, errmsg *e)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n;
    if (base != NULL && *base != '\0')
        n = snprintf(out, RUNDIR_PATH_MAX + 1, "%s", base);
    else if (runtime != NULL && *runtime == '/' && access(runtime, W_OK) == 0)
        n = snprintf(out, RUNDIR_PATH_MAX + 1, "%s/memra-pp", runtime);
    else
        n = snprintf(out, RUNDIR_PATH_MAX + 1, "/tmp/memra-pp-%u", (unsigned)getuid());
    if (n > RUNDIR_PATH_MAX - NAME_MAX_BYTES) {
        return errmsg_set(e, ST_RESOURCES,
                          "run directory '%.60s...' is too long for sockets below it: at most %d "
                          "characters (--run-dir)",
                          base != NULL ? base : out, RUNDIR_PATH_MAX - NAME_MAX_BYTES);
    }
    return ST_OK;
}

static status check_base(const char *base, errmsg *e)
{
    struct stat st;
    if (mkdir(base, 0700) != 0 && errno != EEXIST)
        return errmsg_set(e, ST_RESOURCES, "cannot make run directory %s: %s (--run-dir)", base,
                          strerror(errno));
    if (lstat(base, &st) != 0)
        return errmsg_set(e, ST_RESOURCES, "run directory %s: %s (--run-dir)", base,
                          strerror(errno));
    if (S_ISLNK(st.st_mode)) {
        return errmsg_set(e, ST_RESOURCES,
                          "run directory %s is a symbolic link, and may come to lead elsewhere: "
                          "name where it leads to (--run-dir)",
                          base);
    }
    if (!S_ISDIR(st.st_mode)) {
        return errmsg_set(e, ST_RESOURCES, "run directory %s is not a directory (--run-dir)", base);
    }
    if (st.st_uid != getuid()) {
        return errmsg_set(e, ST_RESOURCES,
                          "run directory %s belongs to user %u, not to us (%u): name another with "
                          "--run-dir",
                          base, (unsigned)st.st_uid, (unsigned)getuid());
    }
    if ((st.st_mode & 022) != 0) {
        return errmsg_set(
            e, ST_RESOURCES,
            "run directory %s may be written by others (mode %04o): chmod go-w it, or "
            "name another with --run-dir",
            base, (unsigned)(st.st_mode & 07777));
    }
    return ST_OK;
}

/* "run-PID-N" or "new-PID-N": whatever else lies there is not ours and stays. */
static bool is_run_of(const char *name, unsigned *pid)
{
    unsigned n;
    int end = 0;
    return (sscanf(name, "run-%u-%u%n", pid, &n, &end) == 2 ||
            sscanf(name, "new-%u-%u%n", pid, &n, &end) == 2) &&
           name[end] == '\0' && strlen(name) < NAME_MAX_BYTES;
}

static bool is_run_name(const char *name)
{
    unsigned pid;
    return is_run_of(name, &pid);
}

/* Descriptor with the lock held, or -1: a live run has it (or there is no lock file: *none). */
static int lock_of(const char *dir, bool *none)
{
    char path[RUNDIR_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    *none = fd < 0;
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* "p123": a process that the run started. When it is dead, what it left goes, also where its new
 * parent does not wait for it. */
static void clean_up_behind(const char *name)
{
    unsigned pid;
    int end = 0;
    if (sscanf(name, "p%u%n", &pid, &end) != 1 || name[end] != '\0') return;
    char state = process_state((pid_t)pid);
    if (state == 0 || state == 'Z') leftovers_remove((pid_t)pid);
}

static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *entry; d != NULL && (entry = readdir(d)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        clean_up_behind(entry->d_name);
        unlinkat(dirfd(d), entry->d_name, 0);
    }
    if (d != NULL) closedir(d);
    rmdir(dir);
}

/* Without a lock file: a start that was killed between mkdir and lock, or one that is there right
 * now; the latter takes far less than a second, and a minute at most. Its process may be of another
 * container, and look gone. */
static bool is_stale(const char *path, unsigned pid)
{
    struct stat st;
    time_t most = process_state((pid_t)pid) == 0 ? 1 : 60;
    return stat(path, &st) == 0 && time(NULL) - st.st_mtime > most;
}

static void sweep(const char *base)
{
    DIR *d = opendir(base);
    for (struct dirent *entry; d != NULL && (entry = readdir(d)) != NULL;) {
        unsigned pid;
        if (!is_run_of(entry->d_name, &pid)) continue;
        char path[RUNDIR_PATH_MAX + 1];
        snprintf(path, sizeof path, "%s/%.*s", base, NAME_MAX_BYTES, entry->d_name);
        bool none = false;
        int fd = lock_of(path, &none);
        if (fd >= 0 || (none && is_stale(path, pid))) remove_dir(path);
        if (fd >= 0) close(fd);
    }
    if (d != NULL) closedir(d);
}

/* Make fresh, whose lock is held, and call it r->path: nobody sweeps a run that is starting. */
static status make_locked(rundir *r, const char *fresh, errmsg *e)
{
    char lock[RUNDIR_PATH_MAX + 16];
    if (mkdir(fresh, 0700) != 0)
        return errmsg_set(e, ST_RESOURCES, "cannot make %s: %s (--run-dir)", fresh,
                          strerror(errno));
    snprintf(lock, sizeof lock, "%s/lock", fresh);
    r->lock_fd = open(lock, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (r->lock_fd < 0 || flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0 ||
        rename(fresh, r->path) != 0) {
        status s =
            errmsg_set(e, ST_RESOURCES, "cannot lock %s: %s (--run-dir)", lock, strerror(errno));
        if (r->lock_fd >= 0) close(r->lock_fd);
        r->lock_fd = -1;
        remove_dir(fresh);
        return s;
    }
    return ST_OK;
}

status rundir_open(rundir *out, const char *base_given, errmsg *e)
{
    static _Atomic unsigned counter;
    char base[RUNDIR_PATH_MAX + 1], fresh[RUNDIR_PATH_MAX + 1];
    *out = (rundir){.lock_fd = -1};
    TRY(rundir_base(base, base_given, e));
    TRY(check_base(base, e));
    sweep(base);
    unsigned n = counter++;
    snprintf(fresh, sizeof fresh, "%s/new-%d-%u", base, (int)getpid(), n);
    snprintf(out->path, sizeof out->path, "%s/run-%d-%u", base, (int)getpid(), n);
    status s = make_locked(out, fresh, e);
    if (s != ST_OK) *out = (rundir){.lock_fd = -1};
    return s;
}

status rundir_keep(rundir *r, bool *anew, errmsg *e)
{
    char base[RUNDIR_PATH_MAX + 1], lock[RUNDIR_PATH_MAX + 16];
    struct stat held, there;
    snprintf(lock, sizeof lock, "%s/lock", r->path);
    *anew = fstat(r->lock_fd, &held) != 0 || stat(lock, &there) != 0 ||
            held.st_dev != there.st_dev || held.st_ino != there.st_ino;
    if (!*anew) return ST_OK;
    memcpy(base, r->path, sizeof base);
    char *name = strrchr(base, '/');
    *name++ = '\0';
    TRY(check_base(base, e));
    remove_dir(r->path);
    char fresh[RUNDIR_PATH_MAX + 1];
    snprintf(fresh, sizeof fresh, "%s/new%.*s", base, NAME_MAX_BYTES, name + strlen("run"));
    rundir again = *r;
    TRY(make_locked(&again, fresh, e));
    close(r->lock_fd);
    *r = again;
    return ST_OK;
}

static void process_path(char out[RUNDIR_PATH_MAX + 16], const rundir *r, pid_t pid)
{
    snprintf(out, RUNDIR_PATH_MAX + 16, "%s/p%d", r->path, (int)pid);
}

void rundir_note_process(const rundir *r, pid_t pid)
{
    char path[RUNDIR_PATH_MAX + 16];
    process_path(path, r, pid);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) close(fd);
}

void rundir_forget_process(const rundir *r, pid_t pid)
{
    char path[RUNDIR_PATH_MAX + 16];
    process_path(path, r, pid);
    unlink(path);
}

void rundir_close(rundir *r)
{
    if (r->lock_fd < 0) return;
    remove_dir(r->path);
    close(r->lock_fd);
    *r = (rundir){.lock_fd = -1};
}

bool rundir_lives(const char *path)
{
    bool none = false;
    int fd = lock_of(path, &none);
    if (fd >= 0) close(fd);
    return fd < 0 && !none;
}

status rundir_list(const char *base_given, void (*visit)(void *ctx, const char *path), void *ctx,
                   errmsg *e)
{
    char base[RUNDIR_PATH_MAX + 1];
    TRY(rundir_base(base, base_given, e));
    bool named = base_given != NULL && *base_given != '\0';
    DIR *d = opendir(base);
    if (d == NULL && errno == ENOENT && !named) return ST_OK;
    if (d == NULL)
        return errmsg_set(e, ST_RESOURCES, "run directory %s cannot be read: %s (--run-dir)", base,
                          strerror(errno));
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        if (!is_run_name(entry->d_name) || entry->d_name[0] != 'r') continue;
        char path[RUNDIR_PATH_MAX + 1];
        snprintf(path, sizeof path, "%s/%.*s", base, NAME_MAX_BYTES, entry->d_name);
        if (rundir_lives(path)) visit(ctx, path);
    }
    closedir(d);
    return ST_OK;
}
