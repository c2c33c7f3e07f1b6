/* gguf_split.c - opening a model: its file or all parts of it, checked against each other.
 *
 * The part that was given says how many there are (split.count) and which it is (split.no); its
 * name must say the same, and the names of the others follow from it. Then every part must repeat
 * count and number, and the tensors together must be as many as split.tensors.count says. */
#include "common/gguf_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX_BYTES 20 /* "-00001-of-00003.gguf" */

typedef struct {
    bool split; /* one of several parts */
    uint32_t no, count;
    bool has_total;
    uint32_t total; /* tensors of all parts */
} split_keys;

static status split_u32(const gguf_part *p, const char *key, bool *has, uint32_t *out, errmsg *e)
{
    const gguf_item *it = gguf_part_item(p, key);
    *has = it != NULL;
    if (it == NULL) return ST_OK;
    if (it->kind != KIND_BOOL && gguf_kind_bytes(it->kind) != 0 && it->kind != KIND_F32 &&
        it->kind != KIND_F64 && gguf_int_u32(it->integer, out)) {
        return ST_OK;
    }
    return errmsg_set(e, ST_BAD_MODEL, "%s: key %s (%s) is not a number from 0 to 4294967295",
                      p->name, key, gguf_kind_name(it->kind));
}

static status split_read(const gguf_part *p, split_keys *out, errmsg *e)
{
    bool has_no = false, has_count = false;
    *out = (split_keys){0};
    TRY(split_u32(p, "split.count", &has_count, &out->count, e));
    TRY(split_u32(p, "split.no", &has_no, &out->no, e));
    TRY(split_u32(p, "split.tensors.count", &out->has_total, &out->total, e));
    if (!has_count && has_no) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: key split.no is %" PRIu32 " but split.count is missing", p->name,
                          out->no);
    }
    if (out->count == 0) { /* no split, or merged again: what the other keys say is stale */
        *out = (split_keys){.count = 1};
        return ST_OK;
    }
    if (out->count > 1 && !has_no) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: key split.count is %" PRIu32 " but split.no is missing", p->name,
                          out->count);
    }
    if (out->count > GGUF_FILES_MAX) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: key split.count is %" PRIu32 ", more than the limit of %u parts",
                          p->name, out->count, GGUF_FILES_MAX);
    }
    if (out->no >= out->count) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: key split.no is %" PRIu32
                          ", must be less than split.count, %" PRIu32,
                          p->name, out->no, out->count);
    }
    out->split = out->count > 1;
    return ST_OK;
}

/* The path for messages; of a long one its end. */
static void name_set(gguf_part *p, const char *path)
{
    size_t n = strlen(path), room = sizeof p->name - 1;
    if (n <= room)
        snprintf(p->name, sizeof p->name, "%s", path);
    else
        snprintf(p->name, sizeof p->name, "...%s", path + n - (room - 3));
}

static status part_open(gguf_part *p, const char *path, const char *role, errmsg *e)
{
    name_set(p, path);
    /* Non-blocking: a FIFO must be refused, not waited for. */
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (p->fd < 0) {
        bool ours = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (errno == ENOENT && role[0] != '\0')
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: %sis missing (%s): all parts belong in one folder", p->name,
                              role, strerror(errno));
        return errmsg_set(e, ours ? ST_RESOURCES : ST_BAD_MODEL, "%s: %scannot be opened: %s",
                          p->name, role, strerror(errno));
    }
    return gguf_part_parse(p, e);
}

/* Two decimal numbers of five digits from "-%05u-of-%05u.gguf"; false when s is not of that form.
 */
static bool suffix_read(const char *s, uint32_t *no, uint32_t *count)
{
    if (strlen(s) != SUFFIX_BYTES) return false;
    for (int i = 0; i < SUFFIX_BYTES; i++) {
        char pattern = "-ddddd-of-ddddd.gguf"[i];
        if (pattern == 'd' ? s[i] < '0' || s[i] > '9' : s[i] != pattern) return false;
    }
    *no = (uint32_t)strtoul(s + 1, NULL, 10);
    *count = (uint32_t)strtoul(s + 10, NULL, 10);
    return true;
}

/* The parts beside the one that was given. first: that one, with its keys in k. */
static status open_siblings(gguf *g, gguf_part *first, const split_keys *k, const char *path,
                            errmsg *e)
{
    size_t n = strlen(path);
    uint32_t no = 0, count = 0;
    if (n < SUFFIX_BYTES || !suffix_read(path + n - SUFFIX_BYTES, &no, &count)) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: is part %" PRIu32 " of %" PRIu32 " (split.no %" PRIu32
                          "), so its name must end in -%05" PRIu32 "-of-%05" PRIu32
                          ".gguf for the others to be found",
                          first->name, k->no + 1, k->count, k->no, k->no + 1, k->count);
    }
    if (no != k->no + 1 || count != k->count) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: its name says part %" PRIu32 " of %" PRIu32
                          ", its metadata part %" PRIu32 " of %" PRIu32 " (split.no %" PRIu32
                          "): renamed or swapped",
                          first->name, no, count, k->no + 1, k->count, k->no);
    }
    char sibling[PATH_MAX + 16];
    if (n >= PATH_MAX) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: the path is too long", first->name);
    }
    g->n_parts = count;
    g->part[k->no] = *first;
    *first = (gguf_part){.fd = -1};
    for (uint32_t i = 0; i < count; i++) {
        if (i == k->no) continue;
        char role[48];
        snprintf(role, sizeof role, "part %" PRIu32 " of %" PRIu32 " ", i + 1, count);
        snprintf(sibling, sizeof sibling, "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf",
                 (int)(n - SUFFIX_BYTES), path, i + 1, count);
        TRY(part_open(&g->part[i], sibling, role, e));
    }
    return ST_OK;
}

/* Every part says the same count and its own number. */
static status check_parts(const gguf *g, errmsg *e)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < g->n_parts; i++)
        total += g->part[i].n_tensors;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const gguf_part *p = &g->part[i];
        split_keys k;
        TRY(split_read(p, &k, e));
        if (k.count != g->n_parts) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: should be part %" PRIu32 " of %" PRIu32
                              ", its metadata says it is one of %" PRIu32 " (split.count)",
                              p->name, i + 1, g->n_parts, k.count);
        }
        if (k.no != i) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: should be part %" PRIu32 " of %" PRIu32
                              ", its metadata says part %" PRIu32 " (split.no %" PRIu32
                              "): renamed or swapped",
                              p->name, i + 1, g->n_parts, k.no + 1, k.no);
        }
    }
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const gguf_part *p = &g->part[i];
        split_keys k;
        TRY(split_read(p, &k, e));
        if (k.has_total && k.total != total) {
            return errmsg_set(e, ST_BAD_MODEL,
                              "%s: split.tensors.count is %" PRIu32 ", the %" PRIu32
                              " parts hold %" PRIu64 " tensors",
                              p->name, k.total, g->n_parts, total);
        }
    }
    if (total > GGUF_TENSORS_MAX) {
        return errmsg_set(e, ST_BAD_MODEL,
                          "%s: %" PRIu64 " tensors in all parts, more than the limit "
                          "of %u",
                          g->part[0].name, total, GGUF_TENSORS_MAX);
    }
    return ST_OK;
}

static int name_order(const void *a, const void *b, void *tensors)
{
    const gguf_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* One directory out of the parts'. */
static status assemble(gguf *g, errmsg *e)
{
    TRY(check_parts(g, e));
    for (uint32_t i = 0; i < g->n_parts; i++)
        g->n_tensors += g->part[i].n_tensors;
    g->tensor = malloc(g->n_tensors * sizeof *g->tensor + 1);
    g->by_name = malloc(g->n_tensors * sizeof *g->by_name + 1);
    if (g->tensor == NULL || g->by_name == NULL) {
        return errmsg_set(e, ST_RESOURCES, "%s: no memory for %" PRIu64 " tensors", g->part[0].name,
                          g->n_tensors);
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        gguf_part *p = &g->part[i];
        for (uint64_t j = 0; j < p->n_tensors; j++, at++) {
            g->tensor[at] = p->tensor[j];
            g->tensor[at].file_i = i;
            g->by_name[at] = (uint32_t)at;
        }
        free(p->tensor);
        p->tensor = NULL;
        p->n_tensors = 0;
    }
    if (at > 1) qsort_r(g->by_name, at, sizeof *g->by_name, name_order, g->tensor);
    for (uint64_t i = 1; i < at; i++) {
        const gguf_tensor *a = &g->tensor[g->by_name[i - 1]], *b = &g->tensor[g->by_name[i]];
        if (strcmp(a->name, b->name) == 0) {
            return errmsg_set(e, ST_BAD_MODEL, "%s: tensor %s is there twice",
                              g->part[b->file_i].name, b->name);
        }
    }
    return ST_OK;
}

static gguf *gguf_new(void)
{
    gguf *g = calloc(1, sizeof *g);
    for (uint32_t i = 0; g != NULL && i < GGUF_FILES_MAX; i++)
        g->part[i].fd = -1;
    return g;
}

static status open_path(gguf *g, const char *path, errmsg *e)
{
    gguf_part first = {.fd = -1};
    split_keys k;
    status s;
    TRY_DONE(s, part_open(&first, path, "", e));
    TRY_DONE(s, split_read(&first, &k, e));
    if (k.split) {
        TRY_DONE(s, open_siblings(g, &first, &k, path, e));
    } else {
        g->n_parts = 1;
        g->part[0] = first;
        first = (gguf_part){.fd = -1};
    }
    s = assemble(g, e);
done:
    gguf_part_close(&first);
    return s;
}

status gguf_open(gguf **out, const char *path, errmsg *e)
{
    *out = NULL;
    gguf *g = gguf_new();
    if (g == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory to open it", path);
    status s = open_path(g, path, e);
    if (s != ST_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

static status open_fds(gguf *g, errmsg *e)
{
    for (uint32_t i = 0; i < g->n_parts; i++) {
        gguf_part *p = &g->part[i];
        snprintf(p->name, sizeof p->name, "model file %" PRIu32 " of %" PRIu32 " (descriptor %d)",
                 i + 1, g->n_parts, p->fd);
        int flags = fcntl(p->fd, F_GETFD);
        if (flags < 0 || fcntl(p->fd, F_SETFD, flags | FD_CLOEXEC) < 0) {
            return errmsg_set(e, ST_BAD_MODEL, "%s: %s", p->name, strerror(errno));
        }
        TRY(gguf_part_parse(p, e));
    }
    return assemble(g, e);
}

status gguf_open_fds(gguf **out, const int *fds, uint32_t n_fds, errmsg *e)
{
    *out = NULL;
    gguf *g = n_fds >= 1 && n_fds <= GGUF_FILES_MAX ? gguf_new() : NULL;
    if (g == NULL) {
        for (uint32_t i = 0; i < n_fds; i++)
            close(fds[i]);
        if (n_fds >= 1 && n_fds <= GGUF_FILES_MAX) {
            return errmsg_set(e, ST_RESOURCES, "no memory to open the model");
        }
        return errmsg_set(e, ST_BAD_MODEL, "a model of %" PRIu32 " files, must be 1 to %u", n_fds,
                          GGUF_FILES_MAX);
    }
    g->n_parts = n_fds;
    for (uint32_t i = 0; i < n_fds; i++)
        g->part[i].fd = fds[i];
    status s = open_fds(g, e);
    if (s != ST_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

void gguf_close(gguf *g)
{
    if (g == NULL) return;
    for (uint32_t i = 0; i < g->n_parts; i++)
        gguf_part_close(&g->part[i]);
    free(g->tensor);
    free(g->by_name);
    free(g);
}
