/* tokenizer_split.c - cuts a text at its special tokens.
 *
 * As llama.cpp does: token by token, the longest first, each over all text that is left, so that a
 * long token wins over a short one that begins before it. A vocabulary may have thousands of
 * special tokens and the text none: a token whose first two bytes do not stand together anywhere in
 * the text is not looked for. */
#include "coordinator/text/tokenizer_vocab.h"

#include "common/sampler.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    fragment *at;
    uint32_t n, room;
} fragments;

typedef struct {
    uint32_t bits[65536 / 32];
} pair_set;

static uint32_t pair_of(const char *text)
{
    return (uint32_t)(unsigned char)text[0] << 8 | (unsigned char)text[1];
}

static void pairs_collect(pair_set *set, const char *text, uint64_t bytes)
{
    memset(set, 0, sizeof *set);
    for (uint64_t i = 0; i + 1 < bytes; i++) {
        uint32_t pair = pair_of(text + i);
        set->bits[pair / 32] |= 1u << pair % 32;
    }
}

static bool may_stand_in(const piece *p, const pair_set *set)
{
    if (p->bytes < 2) return true;
    uint32_t pair = pair_of(p->text);
    return set->bits[pair / 32] >> pair % 32 & 1;
}

static status add(fragments *f, fragment x, errmsg *e)
{
    if (f->n == f->room) {
        uint64_t room = f->room == 0 ? 16 : 2ull * f->room;
        fragment *grown = room < FRAGMENT_END ? realloc(f->at, room * sizeof *grown) : NULL;
        if (grown == NULL)
            return errmsg_set(e, ST_RESOURCES, "no memory to cut a text at its special tokens");
        f->at = grown;
        f->room = (uint32_t)room;
    }
    f->at[f->n++] = x;
    return ST_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cut fragment i, which is text, at every place where the token id stands. */
static status cut(fragments *f, uint32_t i, const char *text, const vocab *v, uint32_t id,
                  errmsg *e)
{
    const piece *p = &v->piece[id];
    for (;;) {
        uint64_t from = f->at[i].from, end = from + f->at[i].bytes;
        const char *found = memmem(text + from, end - from, p->text, p->bytes);
        if (found == NULL) return ST_OK;
        uint64_t at = (uint64_t)(found - text), right = at + p->bytes;
        while (p->strip_right && right < end && is_space(text[right]))
            right++;
        uint32_t next = f->at[i].next, token_i = f->n, right_i = token_i + 1;
        TRY(add(f, (fragment){at, p->bytes, id, right_i}, e));
        TRY(add(f, (fragment){right, end - right, TOKEN_NONE, next}, e));
        f->at[i].bytes = at - from;
        f->at[i].next = token_i;
        i = right_i;
    }
}

status vocab_split(const vocab *v, const char *text, uint64_t bytes, bool special, fragment **out,
                   errmsg *e)
{
    *out = NULL;
    fragments f = {0};
    pair_set pairs;
    pairs_collect(&pairs, text, bytes);
    status s;
    TRY_DONE(s, add(&f, (fragment){0, bytes, TOKEN_NONE, FRAGMENT_END}, e));
    for (uint32_t k = 0; k < v->n_special && bytes > 0; k++) {
        const piece *p = &v->piece[v->special[k]];
        if (p->type != PIECE_USER_DEFINED && !special) continue;
        if (p->bytes > bytes || !may_stand_in(p, &pairs)) continue;
        for (uint32_t i = 0, next; i != FRAGMENT_END; i = next) {
            next = f.at[i].next;
            if (f.at[i].id == TOKEN_NONE) TRY_DONE(s, cut(&f, i, text, v, v->special[k], e));
        }
    }
    *out = f.at;
    f.at = NULL;
done:
    free(f.at);
    return s;
}
