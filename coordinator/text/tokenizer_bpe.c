/* tokenizer_bpe.c - owns the BPE kinds: "gpt2" over bytes, "gemma4" over characters.
 *
 * A word comes from the pre-tokenizer, becomes a list of symbols (ids of the pieces for its bytes
 * or characters), and is merged; what is left are its ids. A symbol without a piece is never merged
 * and comes out as the tokens of its bytes, where there are any. Merging goes by ids alone: rules
 * for texts that are no pieces could only lead to texts without an id. */
#include "coordinator/text/tokenizer_bpe.h"

#include "common/sampler.h"
#include "coordinator/text/pretokenize.h"
#include "coordinator/text/tokenizer_kind.h"
#include "coordinator/text/tokenizer_merges.h"
#include "coordinator/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SPACE "\xE2\x96\x81" /* U+2581 */

typedef struct {
    pretokenizer *pre;
    merge_table merges;
    uint32_t space_id; /* of U+2581 */
} bpe;

static void bpe_close(void *state)
{
    bpe *b = state;
    if (b == NULL) return;
    pretokenizer_close(b->pre);
    merge_table_close(&b->merges);
    free(b);
}

static status find_pre(const pre_kind **out, const gguf *g, tokenizer_options o, errmsg *e)
{
    static const char key[] = "tokenizer.ggml.pre", way_out[] = "--any-pre-tokenizer takes another "
                                                                "one, for other ids than the model "
                                                                "was trained with";
    const char *name = "";
    uint64_t bytes = 0;
    bool there = gguf_string(g, key, &name, &bytes);
    *out = pre_kind_find(name, bytes);
    if (*out != NULL) return ST_OK;
    if (o.any_pre) {
        *out = pre_kind_find("default", strlen("default"));
        return ST_OK;
    }
    if (!there)
        return errmsg_set(e, ST_BAD_MODEL,
                          "the model file does not name its pre-tokenizer (%s); %s", key, way_out);
    return errmsg_set(e, ST_BAD_MODEL, "pre-tokenizer '%.*s' (%s) is not known; %s",
                      bytes > 64 ? 64 : (int)bytes, name, key, way_out);
}

static status begin(void **state, vocab_defaults *defaults, const pre_kind *pre, errmsg *e)
{
    *state = NULL;
    status s;
    bpe *b = calloc(1, sizeof *b);
    if (b == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the tokenizer");
    TRY_DONE(s, pretokenizer_open(&b->pre, pre, e));
    /* 11 is Falcon's, whose files were the first to leave it out. */
    uint32_t id = pre->no_bos_id || pre->raw ? TOKEN_NONE : 11;
    *defaults = (vocab_defaults){.bos = id,
                                 .eos = pre->raw ? TOKEN_NONE : 11,
                                 .add_bos = pre->add_bos,
                                 .always_bos = pre->raw,
                                 .control_ids = true};
    *state = b;
done:
    if (s != ST_OK) bpe_close(b);
    return s;
}

static status bpe_begin(void **state, vocab_defaults *defaults, const gguf *g, tokenizer_options o,
                        errmsg *e)
{
    const pre_kind *pre;
    *state = NULL;
    TRY(find_pre(&pre, g, o, e));
    return begin(state, defaults, pre, e);
}

static status gemma4_begin(void **state, vocab_defaults *defaults, const gguf *g,
                           tokenizer_options o, errmsg *e)
{
    (void)g, (void)o;
    return begin(state, defaults, pre_kind_find("gemma4", strlen("gemma4")), e);
}

static void show_bytes(vocab *v)
{
    char *shown = v->shown;
    for (uint32_t id = 0; id < v->n; id++) {
        piece *p = &v->piece[id];
        bool mapped = p->type == PIECE_NORMAL || p->type == PIECE_UNUSED ||
                      p->type == PIECE_UNDEFINED || p->type == PIECE_BYTE;
        if (!mapped) { /* as it stands in the file */
            p->shown = p->text;
            p->shown_bytes = p->bytes;
            continue;
        }
        p->shown = shown;
        p->shown_bytes = byte_chars_decode(shown, p->text, p->bytes);
        shown += p->shown_bytes;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[BYTE_CHAR_BYTES_MAX];
        uint32_t id = vocab_find_plain(v, text, byte_char(text, (unsigned char)byte));
        /* A user-defined token stands for its own text, not for the byte that it is written as. */
        bool its_own = id != TOKEN_NONE && v->piece[id].type == PIECE_USER_DEFINED && byte > 0x7E;
        v->byte_id[byte] = its_own ? TOKEN_NONE : id;
    }
}

static status bpe_prepare(void *state, vocab *v, const gguf *g, errmsg *e)
{
    bpe *b = state;
    v->add_space_prefix = false; /* files may say so, and never mean it */
    if (pretokenizer_kind(b->pre)->raw)
        TRY(vocab_show_all(v, e));
    else
        show_bytes(v);
    b->space_id = vocab_find_plain(v, SPACE, strlen(SPACE));
    return merge_table_open(&b->merges, v, g, e);
}

typedef struct {
    const bpe *b;
    const vocab *v;
    id_list *out;
    merge_work work;
    char *mapped; /* a word as pieces write it, [v->bytes_max] */
} encoding;

/* The piece that the word is as a whole. */
static uint32_t whole_word(encoding *x, const char *word, uint64_t bytes)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        if (n + BYTE_CHAR_BYTES_MAX > x->v->bytes_max + 1ull) return TOKEN_NONE;
        n += byte_char(x->mapped + n, (unsigned char)word[i]);
    }
    return vocab_find_plain(x->v, x->mapped, n);
}

/* A run of line feeds is one piece where there is one. */
static uint32_t whole_lines(const encoding *x, const char *word, uint64_t bytes)
{
    return word[0] == '\n' ? vocab_find_plain(x->v, word, bytes) : TOKEN_NONE;
}

static void add_characters(encoding *x, const char *word, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes;) {
        uint32_t length = utf8_char_bytes(word + at, bytes - at);
        if (length == 0) length = 1;
        uint32_t id = word[at] == ' ' ? x->b->space_id : vocab_find_plain(x->v, word + at, length);
        merge_work_add(&x->work, id, (uint32_t)at);
        at += length;
    }
}

/* The bytes of the character at word + from; word is `bytes` long. */
static status emit_bytes(encoding *x, const char *word, uint64_t bytes, uint32_t from, errmsg *e)
{
    uint32_t length = utf8_char_bytes(word + from, bytes - from);
    for (uint32_t i = 0; i < (length == 0 ? 1 : length); i++) {
        uint32_t id = x->v->byte_id[(unsigned char)word[from + i]];
        if (id != TOKEN_NONE) TRY(id_list_add(x->out, id, e));
    }
    return ST_OK;
}

static status encode_word(void *to, const char *word, uint64_t bytes, errmsg *e)
{
    encoding *x = to;
    const pre_kind *pre = pretokenizer_kind(x->b->pre);
    uint32_t whole = TOKEN_NONE;
    if (pre->raw) whole = whole_lines(x, word, bytes);
    if (pre->ignore_merges) whole = whole_word(x, word, bytes);
    if (whole != TOKEN_NONE) return id_list_add(x->out, whole, e);
    TRY(merge_work_begin(&x->work, bytes, e));
    if (pre->raw) {
        add_characters(x, word, bytes);
    } else {
        for (uint64_t i = 0; i < bytes; i++)
            merge_work_add(&x->work, x->v->byte_id[(unsigned char)word[i]], (uint32_t)i);
    }
    TRY(merge_work_run(&x->work, &x->b->merges, e));
    for (uint32_t i = 0; i != MERGE_END; i = x->work.symbol[i].next) {
        const merge_symbol *s = &x->work.symbol[i];
        if (s->id != TOKEN_NONE)
            TRY(id_list_add(x->out, s->id, e));
        else if (pre->raw)
            TRY(emit_bytes(x, word, bytes, s->from, e));
    }
    return ST_OK;
}

static status bpe_encode(const void *state, const vocab *v, const char *text, uint64_t bytes,
                         bool space_prefix, id_list *out, errmsg *e)
{
    (void)space_prefix;
    status s;
    encoding x = {.b = state, .v = v, .out = out};
    x.mapped = malloc(v->bytes_max + 1ull);
    if (x.mapped == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory to tokenize a text");
        goto done;
    }
    TRY_DONE(s, pretokenize(x.b->pre, text, bytes, encode_word, &x, e));
done:
    free(x.mapped);
    merge_work_free(&x.work);
    return s;
}

const tokenizer_kind tokenizer_bpe = {
    .name = "gpt2",
    .begin = bpe_begin,
    .prepare = bpe_prepare,
    .encode = bpe_encode,
    .close = bpe_close,
};

const tokenizer_kind tokenizer_bpe_gemma4 = {
    .name = "gemma4",
    .begin = gemma4_begin,
    .prepare = bpe_prepare,
    .encode = bpe_encode,
    .close = bpe_close,
};
