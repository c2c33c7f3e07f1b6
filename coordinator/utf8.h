/* utf8.h - whole characters out of a stream of pieces.
 *
 * A character may come over several tokens. Bytes are held back until the character is whole; bytes
 * that cannot become one come out as U+FFFD (one per maximal invalid sequence, as Unicode
 * recommends); what is unfinished at the end comes out as one U+FFFD. */
#ifndef COORDINATOR_UTF8_H
#define COORDINATOR_UTF8_H

#include <stdint.h>

typedef struct {
    unsigned char held[4];
    uint32_t n_held;
} utf8_stream;

/* Feed bytes; writes at most 3 * (bytes + 4) bytes to out; returns how many. */
uint64_t utf8_feed(utf8_stream *s, const char *in, uint64_t bytes, char *out);

/* End of text: what was held comes out as U+FFFD (at most 3 bytes). */
uint64_t utf8_end(utf8_stream *s, char *out);

#endif
