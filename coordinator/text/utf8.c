/* utf8.c - owns the definition of a well-formed character; the held bytes are always a prefix of
 * one, so that a byte that does not continue them ends a maximal invalid sequence and starts
 * afresh. */
#include "coordinator/text/utf8.h"

#include "common/status.h"

#include <stdbool.h>
#include <string.h>

/* Bytes of the character that lead begins; 0: no character begins so. */
static uint32_t char_bytes_of_lead(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

/* May b stand at index i (1..3) of a character with this lead? */
static bool continues(unsigned char lead, uint32_t i, unsigned char b)
{
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {
        if (lead == 0xE0) low = 0xA0;  /* overlong below */
        if (lead == 0xED) high = 0x9F; /* surrogates above */
        if (lead == 0xF0) low = 0x90;  /* overlong below */
        if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF */
    }
    return b >= low && b <= high;
}

static uint64_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

static uint64_t feed_byte(utf8_stream *s, unsigned char b, char *out)
{
    uint64_t n = 0;
    if (s->n_held > 0 && !continues(s->held[0], s->n_held, b)) {
        n = put_replacement(out);
        s->n_held = 0;
    }
    if (s->n_held == 0 && char_bytes_of_lead(b) == 0) return n + put_replacement(out + n);
    s->held[s->n_held++] = b;
    if (s->n_held == char_bytes_of_lead(s->held[0])) {
        memcpy(out + n, s->held, s->n_held);
        n += s->n_held;
        s->n_held = 0;
    }
    return n;
}

uint64_t utf8_feed(utf8_stream *s, const char *in, uint64_t bytes, char *out)
{
    CHECK(s->n_held < sizeof s->held);
    uint64_t n = 0;
    for (uint64_t i = 0; i < bytes; i++)
        n += feed_byte(s, (unsigned char)in[i], out + n);
    return n;
}

uint64_t utf8_end(utf8_stream *s, char *out)
{
    if (s->n_held == 0) return 0;
    s->n_held = 0;
    return put_replacement(out);
}

uint32_t utf8_char_bytes(const char *text, uint64_t bytes)
{
    if (bytes == 0) return 0;
    unsigned char lead = (unsigned char)text[0];
    uint32_t n = char_bytes_of_lead(lead);
    if (n > bytes) return 0;
    for (uint32_t i = 1; i < n; i++)
        if (!continues(lead, i, (unsigned char)text[i])) return 0;
    return n;
}
