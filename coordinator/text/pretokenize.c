/* pretokenize.c - applies the patterns of a pre-tokenizer one inside the other.
 *
 * What a pattern cuts out is cut by the next one at once, so that no list of words is kept between
 * them. The library wants well-formed text: a text that is not is searched in a copy with U+FFFD
 * for each stray byte, and the borders are carried over by walking both together. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "coordinator/text/pretokenize.h"

#include "coordinator/text/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT       "\xEF\xBF\xBD" /* U+FFFD */
#define REPLACEMENT_BYTES 3u

struct pretokenizer {
    const pre_kind *kind;
    uint32_t n;
    pcre2_code *code[PRE_PATTERNS_MAX];
    pcre2_match_context *limits;
};

typedef struct {
    const pretokenizer *p;
    pcre2_match_data *match;
    pretokenize_word word;
    void *to;
    const char
        *text; /* what the caller gave and has not got back yet; NULL: it is searched itself */
    uint64_t bytes;
} cutting;

static status compile(pcre2_code **out, const char *pattern, errmsg *e)
{
    int error;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY;
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &at, NULL);
    if (*out == NULL) {
        char why[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return errmsg_set(e, ST_RESOURCES, "a pre-tokenizer's pattern cannot be compiled: %s", why);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* where it fails, patterns are interpreted */
    return ST_OK;
}

status pretokenizer_open(pretokenizer **out, const pre_kind *k, errmsg *e)
{
    *out = NULL;
    status s = ST_OK;
    pretokenizer *p = calloc(1, sizeof *p);
    if (p != NULL) p->limits = pcre2_match_context_create(NULL);
    if (p == NULL || p->limits == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the pre-tokenizer");
        goto done;
    }
    /* Backtracking is linear in every pattern; the default limit is met by a long run of spaces. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    p->kind = k;
    for (; k->pattern[p->n] != NULL; p->n++)
        TRY_DONE(s, compile(&p->code[p->n], k->pattern[p->n], e));
    *out = p;
done:
    if (s != ST_OK) pretokenizer_close(p);
    return s;
}

void pretokenizer_close(pretokenizer *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

const pre_kind *pretokenizer_kind(const pretokenizer *p)
{
    return p->kind;
}

/* The bytes of the character at text, of a stray byte 1. */
static uint32_t step(const char *text, uint64_t bytes, bool *stray)
{
    uint32_t n = (unsigned char)text[0] < 0x80 ? 1 : utf8_char_bytes(text, bytes);
    *stray = n == 0;
    return n == 0 ? 1 : n;
}

static status give(cutting *c, const char *word, uint64_t bytes, errmsg *e)
{
    if (c->text == NULL) return c->word(c->to, word, bytes, e);
    uint64_t n = 0;
    bool stray;
    for (uint64_t copied = 0; copied < bytes;) {
        uint32_t taken = step(c->text + n, c->bytes - n, &stray);
        copied += stray ? REPLACEMENT_BYTES : taken;
        n += taken;
    }
    const char *from = c->text;
    c->text += n;
    c->bytes -= n;
    return c->word(c->to, from, n, e);
}

static status cut(cutting *c, uint32_t level, const char *text, uint64_t bytes, errmsg *e)
{
    if (bytes == 0) return ST_OK;
    if (level == c->p->n) return give(c, text, bytes, e);
    const PCRE2_SIZE *border = pcre2_get_ovector_pointer(c->match);
    for (uint64_t at = 0; at < bytes;) {
        int n = pcre2_match(c->p->code[level], (PCRE2_SPTR)text, bytes, at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, c->match, c->p->limits);
        if (n == PCRE2_ERROR_NOMATCH) return cut(c, level + 1, text + at, bytes - at, e);
        if (n < 0) {
            char why[128] = "";
            pcre2_get_error_message(n, (PCRE2_UCHAR *)why, sizeof why);
            return errmsg_set(e, ST_RESOURCES, "a text cannot be cut into words: %s", why);
        }
        uint64_t from = border[0], to = border[1];
        TRY(cut(c, level + 1, text + at, from - at, e));
        TRY(cut(c, level + 1, text + from, to - from, e));
        at = to;
    }
    return ST_OK;
}

static uint64_t count_stray(const char *text, uint64_t bytes)
{
    uint64_t n = 0;
    bool stray;
    for (uint64_t at = 0; at < bytes; n += stray)
        at += step(text + at, bytes - at, &stray);
    return n;
}

/* As many bytes as text has, and two more for each stray one. */
static void copy_repaired(char *out, const char *text, uint64_t bytes)
{
    bool stray;
    for (uint64_t at = 0; at < bytes;) {
        uint32_t n = step(text + at, bytes - at, &stray);
        const char *from = stray ? REPLACEMENT : text + at;
        uint32_t out_bytes = stray ? REPLACEMENT_BYTES : n;
        memcpy(out, from, out_bytes);
        out += out_bytes;
        at += n;
    }
}

status pretokenize(const pretokenizer *p, const char *text, uint64_t bytes, pretokenize_word word,
                   void *to, errmsg *e)
{
    status s;
    char *copy = NULL;
    cutting c = {.p = p, .word = word, .to = to};
    c.match = pcre2_match_data_create(1, NULL);
    uint64_t n_stray = count_stray(text, bytes);
    if (n_stray > 0) {
        copy = malloc(bytes + n_stray * (REPLACEMENT_BYTES - 1));
        if (copy != NULL) copy_repaired(copy, text, bytes);
        c.text = text;
        c.bytes = bytes;
    }
    if (c.match == NULL || (n_stray > 0 && copy == NULL)) {
        s = errmsg_set(e, ST_RESOURCES, "no memory to cut a text of %llu bytes into words",
                       (unsigned long long)bytes);
        goto done;
    }
    uint64_t searched = bytes + n_stray * (REPLACEMENT_BYTES - 1);
    TRY_DONE(s, cut(&c, 0, copy != NULL ? copy : text, searched, e));
done:
    free(copy);
    pcre2_match_data_free(c.match);
    return s;
}
