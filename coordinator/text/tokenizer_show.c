/* tokenizer_show.c - owns how pieces with U+2581 for a space, and byte tokens, appear in text. */
#include "coordinator/text/tokenizer_vocab.h"

#include "common/sampler.h"

#include <string.h>

#define SPACE       "\xE2\x96\x81" /* U+2581 */
#define SPACE_BYTES 3u

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte of a piece that is written <0xXX>; -1: it has another form. */
static int byte_of_piece(const piece *p)
{
    if (p->bytes != 6 || memcmp(p->text, "<0x", 3) != 0 || p->text[5] != '>') return -1;
    int high = hex_digit(p->text[3]), low = hex_digit(p->text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Write p as it appears in text; returns its bytes, at most p->bytes. */
static uint32_t show(char *out, const piece *p)
{
    if (p->type == PIECE_BYTE) {
        out[0] = (char)byte_of_piece(p);
        return 1;
    }
    bool escaped = p->type == PIECE_NORMAL || p->type == PIECE_UNUSED || p->type == PIECE_UNDEFINED;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->bytes; n++) {
        bool space =
            escaped && p->bytes - i >= SPACE_BYTES && memcmp(p->text + i, SPACE, SPACE_BYTES) == 0;
        out[n] = space ? ' ' : p->text[i];
        i += space ? SPACE_BYTES : 1;
    }
    return n;
}

status vocab_show_all(vocab *v, errmsg *e)
{
    for (uint32_t b = 0; b < 256; b++)
        v->byte_id[b] = TOKEN_NONE;
    char *shown = v->shown;
    for (uint32_t id = 0; id < v->n; id++) {
        piece *p = &v->piece[id];
        if (p->type == PIECE_BYTE) {
            int byte = byte_of_piece(p);
            if (byte < 0)
                return errmsg_set(e, ST_BAD_MODEL,
                                  "tokenizer.ggml.tokens: token %u has type 6 (byte) but is not "
                                  "written <0xXX>",
                                  id);
            v->byte_id[byte] = id;
        }
        p->shown = shown;
        p->shown_bytes = show(shown, p);
        shown += p->shown_bytes;
    }
    return ST_OK;
}
