#include "coordinator/engine/ngram.h"

#include <stdlib.h>
#include <string.h>

struct ngram_index {
    uint64_t n_ends;   /* n-grams that end at or before it are in the tables */
    uint32_t mask;
    uint32_t *last[NGRAM_LENGTHS]; /* [mask + 1]: where the n-gram ends, exclusive; 0: none */
};

ngram_index *ngram_index_open(uint64_t n_max)
{
    uint64_t room = 64;
    while (room < n_max && room < 1u << 30) room *= 2;
    ngram_index *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    d->mask = (uint32_t)room - 1;
    for (uint32_t i = 0; i < NGRAM_LENGTHS; i++) {
        d->last[i] = calloc(room, sizeof *d->last[i]);
        if (d->last[i] != NULL) continue;
        ngram_index_close(d);
        return NULL;
    }
    return d;
}

void ngram_index_close(ngram_index *d)
{
    if (d == NULL) return;
    for (uint32_t i = 0; i < NGRAM_LENGTHS; i++) free(d->last[i]);
    free(d);
}

static uint32_t gram_length(uint32_t i)
{
    return NGRAM_MAX - i;
}

/* Where the n-gram that ends before `end` is remembered. */
static uint32_t *entry(const ngram_index *d, uint32_t i, const uint32_t *tokens, uint64_t end)
{
    uint64_t h = 0;
    for (uint32_t k = gram_length(i); k > 0; k--) {
        h = (h ^ tokens[end - k]) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
        h ^= h >> 29;
    }
    return &d->last[i][h & d->mask];
}

static void remember(ngram_index *d, const uint32_t *tokens, uint64_t n_ends)
{
    for (; d->n_ends < n_ends; d->n_ends++) {
        uint64_t end = d->n_ends + 1;
        for (uint32_t i = 0; i < NGRAM_LENGTHS; i++)
            if (end >= gram_length(i)) *entry(d, i, tokens, end) = (uint32_t)end;
    }
}

/* Where the longest n-gram that ends the tokens ended before; 0: nowhere that is known. */
static uint64_t find(const ngram_index *d, const uint32_t *tokens, uint64_t n)
{
    for (uint32_t i = 0; i < NGRAM_LENGTHS; i++) {
        uint32_t length = gram_length(i);
        if (n <= length) continue;
        uint64_t end = *entry(d, i, tokens, n);
        if (end == 0) continue;
        if (memcmp(tokens + end - length, tokens + n - length, length * sizeof *tokens) == 0)
            return end;
    }
    return 0;
}

uint32_t ngram_index_guess(ngram_index *d, const uint32_t *tokens, uint64_t n, uint32_t *out,
                           uint32_t room)
{
    if (n == 0) return 0;
    remember(d, tokens, n - 1);
    uint64_t from = find(d, tokens, n);
    if (from == 0) return 0;
    for (uint32_t k = 0; k < room; k++)
        out[k] = from + k < n ? tokens[from + k] : out[from + k - n];
    return room;
}

/* --- as a source ------------------------------------------------------------------------------ */

static void *sit(draft_source *d, const draft_task *t)
{
    (void)d;
    return ngram_index_open(t->n_ctx);
}

static void leave(void *seat)
{
    ngram_index_close(seat);
}

static uint32_t guess(void *seat, const uint32_t *tokens, uint64_t n, uint32_t *out, uint32_t room,
                      uint64_t *spent_ns)
{
    *spent_ns = 0;
    return ngram_index_guess(seat, tokens, n, out, room);
}

draft_source ngram_source = {.sit = sit, .leave = leave, .guess = guess};
