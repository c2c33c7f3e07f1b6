#include "common/journal.h"

#include "common/shm.h"

static uint64_t round_line(uint64_t n)
{
    return (n + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static uint64_t rows_offset(uint32_t n_blocks)
{
    return round_line(sizeof(journal_header)) +
           (uint64_t)n_blocks * JOURNAL_BLOCK * sizeof(_Atomic uint64_t);
}

uint64_t journal_bytes(uint32_t n_blocks, uint32_t n_embd)
{
    return rows_offset(n_blocks) + (uint64_t)n_blocks * JOURNAL_BLOCK * n_embd * sizeof(float);
}

bool journal_valid(const journal_header *h, uint64_t bytes)
{
    return bytes >= sizeof *h && h->magic == JOURNAL_MAGIC && h->n_blocks > 0 && h->n_embd > 0 &&
           h->bytes == journal_bytes(h->n_blocks, h->n_embd) && h->bytes == bytes;
}

status journal_create(int *fd, uint32_t n_blocks, uint32_t n_embd, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = journal_bytes(n_blocks, n_embd);
    TRY(shm_create(fd, &map, "journal", bytes, e));
    *(journal_header *)map = (journal_header){
        .magic = JOURNAL_MAGIC, .n_blocks = n_blocks, .n_embd = n_embd, .bytes = bytes};
    shm_unmap(map, bytes);
    return ST_OK;
}

status journal_map(journal *out, int fd, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = 0;
    *out = (journal){0};
    TRY(shm_map(&map, &bytes, "journal", fd, e));
    const journal_header *h = map;
    if (!journal_valid(h, bytes)) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "journal: not a layout of this build");
    }
    *out = (journal){.map = map, .n_blocks = h->n_blocks, .n_embd = h->n_embd, .bytes = bytes};
    return ST_OK;
}

void journal_unmap(journal *j)
{
    if (j->map != NULL) shm_unmap(j->map, j->bytes);
    *j = (journal){0};
}

_Atomic uint64_t *journal_commit(const journal *j, uint32_t block, uint32_t at)
{
    CHECK(block < j->n_blocks && at < JOURNAL_BLOCK);
    _Atomic uint64_t *commits =
        (_Atomic uint64_t *)((char *)j->map + round_line(sizeof(journal_header)));
    return &commits[(uint64_t)block * JOURNAL_BLOCK + at];
}

float *journal_row(const journal *j, uint32_t block, uint32_t at)
{
    CHECK(block < j->n_blocks && at < JOURNAL_BLOCK);
    float *rows = (float *)((char *)j->map + rows_offset(j->n_blocks));
    return &rows[((uint64_t)block * JOURNAL_BLOCK + at) * j->n_embd];
}
