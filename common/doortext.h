/* doortext.h - the texts that people write into doors and flags: strict numbers, lists, and how a
 * refused value is shown. Pure functions, no allocation, any bytes are accepted as input. */
#ifndef COMMON_DOORTEXT_H
#define COMMON_DOORTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DOORTEXT_SHOWN_BYTES 32u /* of a value; the rest is replaced by its length */
#define DOORTEXT_QUOTE_BYTES (4 * DOORTEXT_SHOWN_BYTES + 40)

typedef enum { NUMBER_OK, NUMBER_NOT_DIGITS, NUMBER_TOO_BIG } number_result;

/* Read the n bytes at s as a decimal number of at least one digit and nothing else (no sign, space
 * or prefix; leading zeros are digits), at most max. *out is written with NUMBER_OK only. */
number_result doortext_number(const char *s, size_t n, uint64_t max, uint64_t *out);

/* True when the n bytes at s are exactly word. */
bool doortext_is(const char *s, size_t n, const char *word);

/* Walk a list. *at is the rest of the list (NULL: none left); each call takes the element before
 * the next separator, empty ones too, so that "1,,2," has four. False when none was left. */
bool doortext_next(const char **at, char separator, const char **item, size_t *n);

/* How many letters of a must be put in, left out or changed to make it b: the edits, at most
 * DOORTEXT_NAME_BYTES; more than that also when either is longer. Case counts. */
#define DOORTEXT_NAME_BYTES 48u
uint32_t doortext_edits(const char *a, const char *b);

/* The n bytes at s in double quotes into out, for a message of one line: printable ASCII as it is,
 * quote and backslash escaped, every other byte as \xNN; only the first DOORTEXT_SHOWN_BYTES, with
 * the length when there are more. Returns out. */
const char *doortext_quote(char out[DOORTEXT_QUOTE_BYTES], const char *s, size_t n);

#endif
