#include "coordinator/commands/outfile.h"
#include "coordinator/commands/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static status refuse(const outfile *f, errmsg *e)
{
    return errmsg_set(e, ST_RESOURCES, "%.300s cannot be written: %s", f->path, strerror(errno));
}

/* Where path leads, links followed, and whether something that is no regular file stands there. */
static status resolve(outfile *f, const char *path, errmsg *e)
{
    struct stat st;
    if (strlen(path) >= PATH_MAX - 32) {
        return errmsg_set(e, ST_RESOURCES, "the path of %zu bytes is too long to be written",
                          strlen(path));
    }
    snprintf(f->path, sizeof f->path, "%s", path);
    if (stat(path, &st) != 0) return ST_OK;
    f->direct = !S_ISREG(st.st_mode);
    if (!f->direct && realpath(path, f->path) == NULL) return refuse(f, e);
    return ST_OK;
}

status outfile_is_file(const char *option, const char *path, const char *because, errmsg *e)
{
    if (strcmp(path, "-") != 0) return ST_OK;
    return errmsg_set(e, ST_USAGE,
                      "%s - is standard output elsewhere, %s: name a file (./- is one)", option,
                      because);
}

status outfile_spares(const char *option, const char *path, const char *other, errmsg *e)
{
    struct stat mine, theirs;
    char magic[4] = {0};
    if (stat(path, &mine) != 0 || !S_ISREG(mine.st_mode)) return ST_OK;
    if (other != NULL && stat(other, &theirs) == 0 && mine.st_dev == theirs.st_dev &&
        mine.st_ino == theirs.st_ino) {
        return errmsg_set(e, ST_USAGE, "%s %.300s is the file that the log goes to: name another",
                          option, path);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ST_OK; /* whoever writes it says why not */
    ssize_t n = pread(fd, magic, sizeof magic, 0);
    close(fd);
    if (n != sizeof magic || memcmp(magic, "GGUF", sizeof magic) != 0) return ST_OK;
    return errmsg_set(e, ST_USAGE, "%s %.300s would overwrite a model file (GGUF): name another",
                      option, path);
}

status outfile_open(outfile *out, const char *path, errmsg *e)
{
    *out = (outfile){.fd = -1};
    if (path[0] == '\0') return errmsg_set(e, ST_USAGE, "-o needs a name, it is empty");
    if (strcmp(path, "-") == 0) {
        out->standard = true;
        out->fd = STDOUT_FILENO;
        snprintf(out->path, sizeof out->path, "standard output");
        return ST_OK;
    }
    TRY(outfile_spares("-o", path, NULL, e));
    TRY(resolve(out, path, e));
    if (out->direct) {
        out->fd = open(out->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return out->fd < 0 ? refuse(out, e) : ST_OK;
    }
    char dir[PATH_MAX];
    memcpy(dir, out->path, sizeof dir);
    if (snprintf(out->temp, sizeof out->temp, "%s.part-%d", out->path, (int)getpid()) >=
        (int)sizeof out->temp) {
        errno = ENAMETOOLONG;
        return refuse(out, e);
    }
    out->fd = open(dirname(dir), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (out->fd >= 0) return ST_OK;
    out->fd = open(out->temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (out->fd < 0) return refuse(out, e);
    out->named = true;
    return ST_OK;
}

status outfile_write(outfile *f, const void *data, uint64_t bytes, errmsg *e)
{
    return output_write(f->fd, f->path, data, bytes, e);
}

status outfile_commit(outfile *f, errmsg *e)
{
    if (f->standard) {
        outfile_close(f);
        return ST_OK;
    }
    if (f->direct) {
        int fd = f->fd;
        f->fd = -1;
        return close(fd) == 0 ? ST_OK : refuse(f, e);
    }
    if (!f->named) {
        char self[32];
        snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
        if (linkat(AT_FDCWD, self, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW) != 0) return refuse(f, e);
        f->named = true;
    }
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0 || rename(f->temp, f->path) != 0)
        return refuse(f, e); /* some disks say it now */
    f->named = false;
    return ST_OK;
}

void outfile_close(outfile *f)
{
    if (f->named) unlink(f->temp);
    if (f->fd >= 0 && !f->standard) close(f->fd);
    f->named = false;
    f->fd = -1;
}
