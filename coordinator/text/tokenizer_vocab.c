/* tokenizer_vocab.c - owns reading the vocabulary: every length and id is compared before it is
 * used. */
#include "coordinator/text/tokenizer_vocab.h"

#include "common/sampler.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_MAX (1u << 28)

static uint32_t hash_bytes(const char *text, uint64_t bytes)
{
    uint64_t h = 0xCBF29CE484222325ull; /* FNV-1a, then mixed: the low bits are used */
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001B3ull;
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

/* The slot that holds text, or the free one where it would be. */
static uint32_t *find_slot(const vocab *v, const char *text, uint64_t bytes)
{
    uint32_t i = hash_bytes(text, bytes) & v->slot_mask;
    while (v->slot[i] != TOKEN_NONE) {
        const piece *p = &v->piece[v->slot[i]];
        if (p->bytes == bytes && memcmp(p->text, text, bytes) == 0) break;
        i = (i + 1) & v->slot_mask;
    }
    return &v->slot[i];
}

uint32_t vocab_find(const vocab *v, const char *text, uint64_t bytes)
{
    return bytes == 0 || bytes > v->bytes_max ? TOKEN_NONE : *find_slot(v, text, bytes);
}

uint32_t vocab_find_plain(const vocab *v, const char *text, uint64_t bytes)
{
    uint32_t id = vocab_find(v, text, bytes);
    if (id == TOKEN_NONE) return TOKEN_NONE;
    piece_type type = v->piece[id].type;
    bool hidden = type == PIECE_CONTROL || type == PIECE_UNKNOWN || type == PIECE_BYTE;
    return hidden ? TOKEN_NONE : id;
}

static status index_pieces(vocab *v, errmsg *e)
{
    uint64_t n_slots = 16;
    while (n_slots < 2ull * v->n)
        n_slots *= 2;
    v->slot = malloc(n_slots * sizeof *v->slot);
    if (v->slot == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the vocabulary's index");
    memset(v->slot, 0xFF, n_slots * sizeof *v->slot); /* TOKEN_NONE */
    v->slot_mask = (uint32_t)(n_slots - 1);
    for (uint32_t id = 0; id < v->n; id++) {
        const piece *p = &v->piece[id];
        if (p->bytes == 0) continue;
        uint32_t *slot = find_slot(v, p->text, p->bytes);
        if (*slot != TOKEN_NONE)
            return errmsg_set(e, ST_BAD_MODEL,
                              "tokenizer.ggml.tokens: tokens %u and %u are both "
                              "'%.*s'",
                              *slot, id, p->bytes > 64 ? 64 : (int)p->bytes, p->text);
        *slot = id;
    }
    return ST_OK;
}

static status read_pieces(vocab *v, const gguf *g, uint32_t n_vocab, bool needs_types, errmsg *e)
{
    static const char scores_key[] = "tokenizer.ggml.scores";
    static const char types_key[] = "tokenizer.ggml.token_type";
    float *scores = NULL;
    uint32_t *types = NULL;
    uint64_t n = 0, text_bytes = 0;
    status s;
    TRY_DONE(s, gguf_array_str(g, "tokenizer.ggml.tokens", 0, &v->strings, &n, e));
    if (n == 0 || n > n_vocab || n > PIECES_MAX) {
        s = errmsg_set(e, ST_BAD_MODEL, "tokenizer.ggml.tokens: %llu tokens for a model of %u",
                       (unsigned long long)n, n_vocab);
        goto done;
    }
    if (needs_types || gguf_has(g, scores_key))
        TRY_DONE(s, gguf_array_f32(g, scores_key, n, &scores, &n, e));
    if (needs_types || gguf_has(g, types_key))
        TRY_DONE(s, gguf_array_u32(g, types_key, n, &types, &n, e));
    for (uint64_t i = 0; i < n; i++)
        text_bytes += v->strings[i].bytes;
    v->n = (uint32_t)n;
    v->piece = calloc(n, sizeof *v->piece);
    v->shown = malloc(text_bytes + 1);
    if (v->piece == NULL || v->shown == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for a vocabulary of %u tokens", v->n);
        goto done;
    }
    for (uint32_t id = 0; id < v->n; id++) {
        piece *p = &v->piece[id];
        p->text = p->shown = v->strings[id].text;
        p->bytes = v->strings[id].bytes;
        p->score = scores == NULL ? 0 : scores[id];
        uint32_t type = types == NULL ? PIECE_NORMAL : types[id];
        p->type = type <= PIECE_BYTE ? (piece_type)type : PIECE_UNDEFINED;
        if (p->bytes > v->bytes_max) v->bytes_max = p->bytes;
        if (isnan(p->score)) {
            s = errmsg_set(e, ST_BAD_MODEL, "tokenizer.ggml.scores: token %u has no score (NaN)",
                           id);
            goto done;
        }
    }
done:
    free(scores);
    free(types);
    return s;
}

status vocab_read_id(const vocab *v, const gguf *g, const char *key, uint32_t *out, errmsg *e)
{
    if (!gguf_has(g, key)) return ST_OK;
    uint32_t id;
    if (!gguf_u32(g, key, &id) || id >= v->n)
        return errmsg_set(e, ST_BAD_MODEL, "%s is not the id of one of the %u tokens", key, v->n);
    *out = id;
    return ST_OK;
}

static status read_flag(const gguf *g, const char *key, bool *out, errmsg *e)
{
    if (gguf_has(g, key) && !gguf_bool(g, key, out))
        return errmsg_set(e, ST_BAD_MODEL, "%s is not true or false", key);
    return ST_OK;
}

static uint32_t default_id(const vocab *v, uint32_t id, bool control_only)
{
    bool holds = id < v->n && (!control_only || v->piece[id].type == PIECE_CONTROL);
    return holds ? id : TOKEN_NONE;
}

static status read_ids(vocab *v, const gguf *g, const vocab_defaults *defaults, errmsg *e)
{
    uint32_t eot = TOKEN_NONE, eom = TOKEN_NONE, unknown = TOKEN_NONE;
    v->bos = default_id(v, defaults->bos, defaults->control_ids);
    v->eos = default_id(v, defaults->eos, defaults->control_ids);
    v->add_bos = defaults->add_bos;
    v->add_space_prefix = defaults->add_space_prefix;
    TRY(vocab_read_id(v, g, "tokenizer.ggml.bos_token_id", &v->bos, e));
    TRY(vocab_read_id(v, g, "tokenizer.ggml.eos_token_id", &v->eos, e));
    TRY(vocab_read_id(v, g, "tokenizer.ggml.eot_token_id", &eot, e));
    TRY(vocab_read_id(v, g, "tokenizer.ggml.eom_token_id", &eom, e));
    TRY(vocab_read_id(v, g, "tokenizer.ggml.unknown_token_id", &unknown,
                      e)); /* checked, not used */
    TRY(read_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos, e));
    TRY(read_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos, e));
    TRY(read_flag(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, e));
    if (v->bos == TOKEN_NONE && !gguf_has(g, "tokenizer.ggml.add_bos_token")) v->add_bos = false;
    if (defaults->always_bos) v->add_bos = v->bos != TOKEN_NONE;
    if (v->add_bos && v->bos == TOKEN_NONE)
        return errmsg_set(e, ST_BAD_MODEL,
                          "tokenizer.ggml.add_bos_token asks for a BOS token, and "
                          "tokenizer.ggml.bos_token_id names none");
    if (v->add_eos && v->eos == TOKEN_NONE)
        return errmsg_set(e, ST_BAD_MODEL,
                          "tokenizer.ggml.add_eos_token asks for an EOS token, and "
                          "tokenizer.ggml.eos_token_id names none");
    const uint32_t ends[] = {v->eos, eot, eom};
    for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i] != TOKEN_NONE) v->piece[ends[i]].end = true;
    return ST_OK;
}

static bool name_has(const char *name, uint64_t bytes, const char *word)
{
    uint64_t n = strlen(word);
    for (uint64_t at = 0; at + n <= bytes; at++) {
        uint64_t i = 0;
        while (i < n && tolower((unsigned char)name[at + i]) == word[i])
            i++;
        if (i == n) return true;
    }
    return false;
}

/* Phi-3's special tokens swallow the white space after them; files say so by the name only. */
static void mark_strips(vocab *v, const gguf *g)
{
    const char *name;
    uint64_t bytes;
    if (!gguf_string(g, "general.name", &name, &bytes)) return;
    if (!name_has(name, bytes, "phi-3") && !name_has(name, bytes, "phi3")) return;
    for (uint32_t i = 0; i < v->n_special; i++)
        v->piece[v->special[i]].strip_right = true;
    static const char *const keeps[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (uint32_t i = 0; i < sizeof keeps / sizeof keeps[0]; i++) {
        uint32_t id = vocab_find(v, keeps[i], strlen(keeps[i]));
        if (id != TOKEN_NONE) v->piece[id].strip_right = false;
    }
}

static bool is_special(const piece *p)
{
    return p->bytes > 0 &&
           (p->type == PIECE_CONTROL || p->type == PIECE_UNKNOWN || p->type == PIECE_USER_DEFINED);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static status list_special(vocab *v, errmsg *e)
{
    for (uint32_t id = 0; id < v->n; id++)
        v->n_special += is_special(&v->piece[id]);
    uint64_t *keys = malloc((v->n_special + 1ull) * sizeof *keys);
    v->special = malloc((v->n_special + 1ull) * sizeof *v->special);
    if (keys == NULL || v->special == NULL) {
        free(keys);
        return errmsg_set(e, ST_RESOURCES, "no memory for %u special tokens", v->n_special);
    }
    uint32_t n = 0;
    for (uint32_t id = 0; id < v->n; id++)
        if (is_special(&v->piece[id])) keys[n++] = (uint64_t)~v->piece[id].bytes << 32 | id;
    qsort(keys, n, sizeof *keys, by_key);
    for (uint32_t i = 0; i < n; i++)
        v->special[i] = (uint32_t)keys[i];
    free(keys);
    return ST_OK;
}

status vocab_open(vocab *v, const gguf *g, uint32_t n_vocab, const vocab_defaults *defaults,
                  errmsg *e)
{
    *v = (vocab){0};
    TRY(read_pieces(v, g, n_vocab, defaults->needs_types, e));
    TRY(index_pieces(v, e));
    TRY(read_ids(v, g, defaults, e));
    TRY(vocab_mark_known(v, g, e));
    TRY(list_special(v, e));
    mark_strips(v, g);
    return ST_OK;
}

void vocab_close(vocab *v)
{
    free(v->piece);
    free(v->strings);
    free(v->shown);
    free(v->slot);
    free(v->special);
    *v = (vocab){0};
}
