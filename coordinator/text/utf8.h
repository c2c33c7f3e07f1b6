/* utf8.h - whole characters out of a stream of pieces.
 *
 * A character may come over several tokens. Bytes are held back until the character is whole; bytes
 * that cannot become one come out as U+FFFD (one per maximal invalid sequence, as Unicode
 * recommends); what is unfinished at the end comes out as one U+FFFD. How the bytes are cut into
 * feeds never changes the output. Well-formed is what table 3-7 of the Unicode standard says: no
 * overlong forms, no surrogates, nothing above U+10FFFF. A NUL byte is a character like others. */
#ifndef COORDINATOR_UTF8_H
#define COORDINATOR_UTF8_H

#include <stdint.h>

/* Start with all zero. held[0 .. n_held) is the beginning of one well-formed character. */
typedef struct {
    unsigned char held[4];
    uint32_t n_held; /* 0..3 between calls */
} utf8_stream;

/* Feed bytes; writes at most 3 * (bytes + 4) bytes to out; returns how many. in and out must not
 * overlap; in may be NULL when bytes is 0. */
uint64_t utf8_feed(utf8_stream *s, const char *in, uint64_t bytes, char *out);

/* End of text: what was held comes out as U+FFFD (at most 3 bytes). The stream is empty then. */
uint64_t utf8_end(utf8_stream *s, char *out);

/* Length of the well-formed character at the start of text: 1..4, or 0 when the bytes there are
 * none (or bytes is 0). */
uint32_t utf8_char_bytes(const char *text, uint64_t bytes);

#endif
