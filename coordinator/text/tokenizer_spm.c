/* tokenizer_spm.c - owns the SentencePiece-style kind.
 *
 * A space is written as U+2581 in the pieces. The text starts as one symbol per character (a byte
 * that belongs to none is a symbol of its own); a heap holds the neighbours that form a piece when
 * joined, the highest score first, the leftmost among equals. The best pair becomes one symbol, its
 * new neighbours are added, until none is left; an entry whose symbols have changed since is known
 * by its length and dropped. A symbol that is no piece in the end comes out as its bytes' tokens.
 * Every join forms a piece, so that nothing has to be taken apart again. */
#include "coordinator/text/tokenizer_kind.h"

#include "common/sampler.h"
#include "coordinator/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SPACE       "\xE2\x96\x81" /* U+2581 */
#define SPACE_BYTES 3u
#define NO_SYMBOL   UINT32_MAX

typedef struct {
    uint32_t from, bytes; /* of the escaped text; bytes 0: joined to the one on its left */
    uint32_t prev, next;
} symbol;

typedef struct {
    float score;
    uint32_t left;  /* with the symbol after it */
    uint32_t bytes; /* of both when they were added */
} bigram;

typedef struct {
    const vocab *v;
    char *text; /* escaped */
    symbol *symbol;
    bigram *heap; /* a binary heap, the best at 0 */
    uint64_t n_heap, heap_room;
} merge;

static bool better(const bigram *a, const bigram *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static status heap_push(merge *m, bigram b, errmsg *e)
{
    if (m->n_heap == m->heap_room) {
        uint64_t room = m->heap_room == 0 ? 256 : m->heap_room * 2;
        bigram *grown = realloc(m->heap, room * sizeof *grown);
        if (grown == NULL) return errmsg_set(e, ST_RESOURCES, "no memory to tokenize a text");
        m->heap = grown;
        m->heap_room = room;
    }
    uint64_t i = m->n_heap++;
    while (i > 0 && better(&b, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = b;
    return ST_OK;
}

static bigram heap_pop(merge *m)
{
    bigram top = m->heap[0], last = m->heap[--m->n_heap];
    uint64_t i = 0;
    for (uint64_t child = 1; child < m->n_heap; child = 2 * i + 1) {
        if (child + 1 < m->n_heap && better(&m->heap[child + 1], &m->heap[child])) child++;
        if (!better(&m->heap[child], &last)) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* Add the symbol left and the one after it, if they form a piece. */
static status add_pair(merge *m, uint32_t left, errmsg *e)
{
    if (left == NO_SYMBOL || m->symbol[left].next == NO_SYMBOL) return ST_OK;
    const symbol *l = &m->symbol[left];
    uint64_t bytes = (uint64_t)l->bytes + m->symbol[l->next].bytes;
    uint32_t id = vocab_find_plain(m->v, m->text + l->from, bytes);
    if (id == TOKEN_NONE) return ST_OK;
    return heap_push(m, (bigram){m->v->piece[id].score, left, (uint32_t)bytes}, e);
}

/* The text with its spaces escaped; returns its bytes. room: SPACE_BYTES * (bytes + 1). */
static uint64_t escape(char *out, const char *text, uint64_t bytes, bool space_prefix)
{
    uint64_t n = 0;
    if (space_prefix) {
        memcpy(out, SPACE, SPACE_BYTES);
        n = SPACE_BYTES;
    }
    for (uint64_t i = 0; i < bytes; i++) {
        if (text[i] == ' ') {
            memcpy(out + n, SPACE, SPACE_BYTES);
            n += SPACE_BYTES;
        } else {
            out[n++] = text[i];
        }
    }
    return n;
}

/* One symbol per character; returns how many. */
static uint32_t symbols_make(symbol *out, const char *text, uint64_t bytes)
{
    uint32_t n = 0;
    for (uint64_t at = 0; at < bytes; n++) {
        uint32_t length = utf8_char_bytes(text + at, bytes - at);
        if (length == 0) length = 1;
        out[n] = (symbol){(uint32_t)at, length, n == 0 ? NO_SYMBOL : n - 1, n + 1};
        at += length;
    }
    out[n - 1].next = NO_SYMBOL;
    return n;
}

static status merge_all(merge *m, uint32_t n_symbols, errmsg *e)
{
    for (uint32_t i = 0; i < n_symbols; i++)
        TRY(add_pair(m, i, e));
    while (m->n_heap > 0) {
        bigram b = heap_pop(m);
        symbol *left = &m->symbol[b.left];
        if (left->bytes == 0 || left->next == NO_SYMBOL) continue;
        symbol *right = &m->symbol[left->next];
        if (left->bytes + right->bytes != b.bytes) continue;
        left->bytes = b.bytes;
        right->bytes = 0;
        left->next = right->next;
        if (left->next != NO_SYMBOL) m->symbol[left->next].prev = b.left;
        TRY(add_pair(m, left->prev, e));
        TRY(add_pair(m, b.left, e));
    }
    return ST_OK;
}

static status emit(const merge *m, id_list *out, errmsg *e)
{
    for (uint32_t i = 0; i != NO_SYMBOL; i = m->symbol[i].next) {
        const symbol *s = &m->symbol[i];
        uint32_t id = vocab_find_plain(m->v, m->text + s->from, s->bytes);
        if (id != TOKEN_NONE) {
            TRY(id_list_add(out, id, e));
            continue;
        }
        for (uint32_t j = 0; j < s->bytes; j++)
            TRY(id_list_add(out, m->v->byte_id[(unsigned char)m->text[s->from + j]], e));
    }
    return ST_OK;
}

static status spm_encode(const void *state, const vocab *v, const char *text, uint64_t bytes,
                         bool space_prefix, id_list *out, errmsg *e)
{
    (void)state;
    merge m = {.v = v};
    status s = ST_OK;
    m.text = malloc(SPACE_BYTES * (bytes + 1));
    m.symbol = malloc((bytes + 1) * sizeof *m.symbol); /* an escaped space is one symbol */
    if (m.text == NULL || m.symbol == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory to tokenize a text of %llu bytes",
                       (unsigned long long)bytes);
        goto done;
    }
    uint64_t escaped_bytes = escape(m.text, text, bytes, space_prefix);
    uint32_t n_symbols = symbols_make(m.symbol, m.text, escaped_bytes);
    TRY_DONE(s, merge_all(&m, n_symbols, e));
    TRY_DONE(s, emit(&m, out, e));
done:
    free(m.text);
    free(m.symbol);
    free(m.heap);
    return s;
}

static status spm_begin(void **state, vocab_defaults *defaults, const gguf *g, tokenizer_options o,
                        errmsg *e)
{
    (void)g, (void)o, (void)e;
    *state = NULL;
    *defaults = (vocab_defaults){
        .bos = 1, .eos = 2, .add_bos = true, .add_space_prefix = true, .needs_types = true};
    return ST_OK;
}

static status spm_prepare(void *state, vocab *v, const gguf *g, errmsg *e)
{
    (void)state, (void)g;
    TRY(vocab_show_all(v, e));
    for (uint32_t b = 0; b < 256; b++) {
        char byte = (char)b;
        if (v->byte_id[b] == TOKEN_NONE) v->byte_id[b] = vocab_find_plain(v, &byte, 1);
        if (v->byte_id[b] == TOKEN_NONE)
            return errmsg_set(e, ST_BAD_MODEL,
                              "tokenizer.ggml.tokens: no token for byte <0x%02X>; a vocabulary "
                              "without byte fallback is not supported",
                              b);
    }
    return ST_OK;
}

static void spm_close(void *state)
{
    (void)state;
}

const tokenizer_kind tokenizer_spm = {
    .name = "llama",
    .begin = spm_begin,
    .prepare = spm_prepare,
    .encode = spm_encode,
    .close = spm_close,
};
