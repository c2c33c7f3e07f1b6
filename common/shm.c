#include "common/shm.h"
#include "common/amount.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static status map_fd(void **map, const char *what, int fd, uint64_t bytes, errmsg *e)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return errmsg_set(e, ST_RESOURCES, "cannot map %s for the %s: %s",
                          amount_said(bytes), what, strerror(errno));
    }
    *map = p;
    return ST_OK;
}

status shm_create(int *fd, void **map, const char *what, uint64_t bytes, errmsg *e)
{
    *fd = -1;
    *map = NULL;
    int f = memfd_create("memra-pp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (f < 0 || ftruncate(f, (off_t)bytes) != 0 ||
        fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status s = errmsg_set(e, ST_RESOURCES, "cannot create %s of shared memory for the %s: %s",
                              amount_said(bytes), what, strerror(errno));
        if (f >= 0) close(f);
        return s;
    }
    status s = map_fd(map, what, f, bytes, e);
    if (s != ST_OK) {
        close(f);
        return s;
    }
    *fd = f;
    return ST_OK;
}

status shm_map(void **map, uint64_t *bytes, const char *what, int fd, errmsg *e)
{
    struct stat st;
    *map = NULL;
    *bytes = 0;
    if (fstat(fd, &st) != 0 || st.st_size <= 0) {
        return errmsg_set(e, ST_PROTOCOL, "descriptor %d is not the %s", fd, what);
    }
    TRY(map_fd(map, what, fd, (uint64_t)st.st_size, e));
    *bytes = (uint64_t)st.st_size;
    return ST_OK;
}

void shm_unmap(void *map, uint64_t bytes)
{
    if (map != NULL) munmap(map, bytes);
}
