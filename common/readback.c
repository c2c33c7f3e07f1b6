#include "common/readback.h"

#include "common/shm.h"

#include <stddef.h>

static const uint64_t logits_offset = offsetof(readback_row, logits);

static uint64_t row_bytes(uint32_t n_vocab)
{
    uint64_t b = logits_offset + (uint64_t)n_vocab * sizeof(float);
    return (b + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static uint64_t rings_bytes(uint32_t n_branches)
{
    _Static_assert(READBACK_RING * sizeof(readback_token) % CACHE_LINE == 0, "rings end on lines");
    return (uint64_t)n_branches * READBACK_RING * sizeof(readback_token);
}

uint64_t readback_bytes(uint32_t n_rows, uint32_t n_vocab, uint32_t n_branches)
{
    return CACHE_LINE + rings_bytes(n_branches) + n_rows * row_bytes(n_vocab);
}

bool readback_valid(const readback_header *h, uint64_t bytes)
{
    return bytes >= CACHE_LINE && h->magic == READBACK_MAGIC && h->n_vocab > 0 &&
           h->row_bytes == row_bytes(h->n_vocab) &&
           h->bytes == readback_bytes(h->n_rows, h->n_vocab, h->n_branches) && h->bytes == bytes;
}

static void view(readback *out, void *map)
{
    const readback_header *h = map;
    *out = (readback){.map = map,
                      .n_rows = h->n_rows,
                      .n_vocab = h->n_vocab,
                      .n_branches = h->n_branches,
                      .row_bytes = h->row_bytes,
                      .bytes = h->bytes};
}

status readback_create(readback *out, int *fd, uint32_t n_rows, uint32_t n_vocab,
                       uint32_t n_branches, errmsg *e)
{
    void *map = NULL;
    *out = (readback){0};
    uint64_t bytes = readback_bytes(n_rows, n_vocab, n_branches);
    TRY(shm_create(fd, &map, "readback rows", bytes, e));
    readback_header *h = map;
    *h = (readback_header){.magic = READBACK_MAGIC,
                           .n_rows = n_rows,
                           .n_vocab = n_vocab,
                           .n_branches = n_branches,
                           .row_bytes = row_bytes(n_vocab),
                           .bytes = bytes};
    view(out, map);
    return ST_OK;
}

status readback_map(readback *out, int fd, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = 0;
    *out = (readback){0};
    TRY(shm_map(&map, &bytes, "readback rows", fd, e));
    if (!readback_valid(map, bytes)) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "readback rows: not a layout of this build");
    }
    view(out, map);
    return ST_OK;
}

void readback_unmap(readback *r)
{
    shm_unmap(r->map, r->bytes);
    *r = (readback){0};
}

readback_row *readback_row_at(const readback *r, uint32_t i)
{
    CHECK(i < r->n_rows);
    uint64_t rows = CACHE_LINE + rings_bytes(r->n_branches);
    return (readback_row *)((char *)r->map + rows + i * r->row_bytes);
}

readback_token *readback_token_at(const readback *r, uint32_t branch, uint32_t position)
{
    CHECK(branch < r->n_branches);
    readback_token *rings = (readback_token *)((char *)r->map + CACHE_LINE);
    return &rings[(uint64_t)branch * READBACK_RING + position % READBACK_RING];
}
