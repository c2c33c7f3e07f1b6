/* tokenizer.c - owns the choice of the kind and what all kinds do alike: special tokens are cut
 * out, each text between them goes to the kind, BOS and EOS stand around. Refuses kinds without an
 * entry. */
#include "coordinator/text/tokenizer.h"

#include "common/sampler.h"
#include "coordinator/text/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer {
    const tokenizer_kind *kind;
    void *state; /* of the kind */
    vocab v;
    uint32_t n_vocab; /* of the model; the vocabulary may be shorter */
};

static const tokenizer_kind *const kinds[] = {&tokenizer_spm, &tokenizer_bpe,
                                              &tokenizer_bpe_gemma4};
#define KIND_NAMES "llama, gpt2, gemma4"
#define N_KINDS    (sizeof kinds / sizeof kinds[0])

status id_list_add(id_list *l, uint32_t id, errmsg *e)
{
    if (l->n == l->room) {
        uint64_t room = l->room == 0 ? 64 : l->room * 2;
        uint32_t *grown = realloc(l->id, room * sizeof *grown);
        if (grown == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a text's token ids");
        l->id = grown;
        l->room = room;
    }
    l->id[l->n++] = id;
    return ST_OK;
}

static status find_kind(const tokenizer_kind **out, const gguf *g, errmsg *e)
{
    const char *name;
    uint64_t bytes;
    if (!gguf_string(g, "tokenizer.ggml.model", &name, &bytes))
        return errmsg_set(e, ST_BAD_MODEL,
                          "holds no tokenizer (tokenizer.ggml.model)");
    for (uint32_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i]->name) == bytes && memcmp(kinds[i]->name, name, bytes) == 0) {
            *out = kinds[i];
            return ST_OK;
        }
    }
    return errmsg_set(
        e, ST_BAD_MODEL,
        "tokenizer kind '%.*s' (tokenizer.ggml.model) is not supported; supported: " KIND_NAMES,
        bytes > 64 ? 64 : (int)bytes, name);
}

status tokenizer_open(tokenizer **out, const gguf *g, uint32_t n_vocab, errmsg *e)
{
    return tokenizer_open_with(out, g, n_vocab, (tokenizer_options){0}, e);
}

static status open_unnamed(tokenizer **out, const gguf *g, uint32_t n_vocab, tokenizer_options o,
                           errmsg *e)
{
    const tokenizer_kind *kind = NULL;
    TRY(find_kind(&kind, g, e));
    tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the tokenizer");
    t->kind = kind;
    t->n_vocab = n_vocab;
    status s;
    vocab_defaults defaults;
    TRY_DONE(s, kind->begin(&t->state, &defaults, g, o, e));
    TRY_DONE(s, vocab_open(&t->v, g, n_vocab, &defaults, e));
    TRY_DONE(s, kind->prepare(t->state, &t->v, g, e));
    *out = t;
done:
    if (s != ST_OK) tokenizer_close(t);
    return s;
}

status tokenizer_open_with(tokenizer **out, const gguf *g, uint32_t n_vocab, tokenizer_options o,
                           errmsg *e)
{
    *out = NULL;
    errmsg why = {0};
    status s = open_unnamed(out, g, n_vocab, o, &why);
    if (s == ST_OK) return ST_OK;
    if (s != ST_BAD_MODEL) return errmsg_set(e, s, "%s", why.text);
    return errmsg_set(e, s, "%s: %s", gguf_file_name(g, 0), why.text);
}

void tokenizer_close(tokenizer *t)
{
    if (t == NULL) return;
    t->kind->close(t->state);
    vocab_close(&t->v);
    free(t);
}

static status encode_fragments(const tokenizer *t, const char *text, const fragment *fragments,
                               id_list *ids, errmsg *e)
{
    bool after_special = true; /* the start of the text counts as one */
    for (uint32_t i = 0; i != FRAGMENT_END; i = fragments[i].next) {
        const fragment *f = &fragments[i];
        if (f->id != TOKEN_NONE) {
            TRY(id_list_add(ids, f->id, e));
            after_special = true;
        } else if (f->bytes > 0) {
            bool prefix = t->v.add_space_prefix && after_special;
            TRY(t->kind->encode(t->state, &t->v, text + f->from, f->bytes, prefix, ids, e));
            after_special = false;
        }
    }
    return ST_OK;
}

status tokenizer_encode(const tokenizer *t, const char *text, uint64_t bytes, tokenize_options o,
                        uint32_t **out, uint64_t *n, errmsg *e)
{
    *out = NULL;
    *n = 0;
    if (bytes > TOKENIZER_TEXT_BYTES_MAX)
        return errmsg_set(e, ST_RESOURCES,
                          "a text of %llu bytes is longer than the %u that can be "
                          "tokenized at once",
                          (unsigned long long)bytes, TOKENIZER_TEXT_BYTES_MAX);
    id_list ids = {0};
    fragment *fragments = NULL;
    status s;
    if (o.bos && t->v.add_bos) TRY_DONE(s, id_list_add(&ids, t->v.bos, e));
    uint64_t n_added = ids.n;
    TRY_DONE(s, vocab_split(&t->v, text, bytes, o.special, &fragments, e));
    TRY_DONE(s, encode_fragments(t, text, fragments, &ids, e));
    if (n_added == 1 && ids.n > 1 && ids.id[1] == t->v.bos)
        memmove(ids.id, ids.id + 1, --ids.n * sizeof *ids.id);
    if (o.eos && t->v.add_eos) TRY_DONE(s, id_list_add(&ids, t->v.eos, e));
    if (ids.id == NULL) { /* no ids: still an array that can be freed */
        TRY_DONE(s, id_list_add(&ids, 0, e));
        ids.n = 0;
    }
    *out = ids.id;
    *n = ids.n;
    ids.id = NULL;
done:
    free(fragments);
    free(ids.id);
    return s;
}

void tokenizer_piece(const tokenizer *t, uint32_t id, bool first, bool special, const char **text,
                     uint32_t *bytes)
{
    CHECK(id < t->n_vocab);
    *text = "";
    *bytes = 0;
    if (id >= t->v.n) return;
    const piece *p = &t->v.piece[id];
    bool hidden = p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN;
    if (hidden && !special) return;
    bool drop = first && t->v.add_space_prefix && !hidden && p->type != PIECE_USER_DEFINED &&
                p->type != PIECE_BYTE && p->shown_bytes > 0 && p->shown[0] == ' ';
    *text = p->shown + drop;
    *bytes = p->shown_bytes - drop;
}

uint32_t tokenizer_bos(const tokenizer *t)
{
    return t->v.bos;
}

bool tokenizer_is_end(const tokenizer *t, uint32_t id)
{
    return id < t->v.n && t->v.piece[id].end;
}

uint32_t tokenizer_n(const tokenizer *t)
{
    return t->v.n;
}

static bool same_piece(const piece *a, const piece *b)
{
    return a->bytes == b->bytes && a->type == b->type && memcmp(a->text, b->text, a->bytes) == 0;
}

bool tokenizer_same(const tokenizer *a, const tokenizer *b, uint32_t *at)
{
    uint32_t n = a->v.n < b->v.n ? a->v.n : b->v.n;
    *at = UINT32_MAX;
    if (a->kind != b->kind) return false;
    for (*at = 0; *at < n; (*at)++)
        if (!same_piece(&a->v.piece[*at], &b->v.piece[*at])) return false;
    return a->v.n == b->v.n;
}
