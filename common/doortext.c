#include "common/doortext.h"

#include <stdio.h>
#include <string.h>

number_result doortext_number(const char *s, size_t n, uint64_t max, uint64_t *out)
{
    if (n == 0) return NUMBER_NOT_DIGITS;
    uint64_t value = 0;
    bool big = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return NUMBER_NOT_DIGITS;
        uint64_t digit = (uint64_t)(s[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) big = true;
        if (!big) value = value * 10 + digit;
    }
    if (big || value > max) return NUMBER_TOO_BIG;
    *out = value;
    return NUMBER_OK;
}

bool doortext_is(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

bool doortext_next(const char **at, char separator, const char **item, size_t *n)
{
    if (*at == NULL) return false;
    *item = *at;
    const char *end = strchr(*at, separator);
    *n = end != NULL ? (size_t)(end - *at) : strlen(*at);
    *at = end != NULL ? end + 1 : NULL;
    return true;
}

uint32_t doortext_edits(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    uint32_t row[DOORTEXT_NAME_BYTES + 1];
    if (n_a > DOORTEXT_NAME_BYTES || n_b > DOORTEXT_NAME_BYTES) return DOORTEXT_NAME_BYTES + 1;
    for (uint32_t j = 0; j <= n_b; j++) row[j] = j;
    for (uint32_t i = 1; i <= n_a; i++) {
        uint32_t diagonal = row[0]; /* edits of the first i - 1 letters of a and j - 1 of b */
        row[0] = i;
        for (uint32_t j = 1; j <= n_b; j++) {
            uint32_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *doortext_quote(char out[DOORTEXT_QUOTE_BYTES], const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t shown = n < DOORTEXT_SHOWN_BYTES ? n : DOORTEXT_SHOWN_BYTES;
    char *o = out;
    *o++ = '"';
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            *o++ = '\\';
            *o++ = (char)c;
        } else if (c >= 0x20 && c < 0x7f) {
            *o++ = (char)c;
        } else {
            *o++ = '\\';
            *o++ = 'x';
            *o++ = hex[c >> 4];
            *o++ = hex[c & 15];
        }
    }
    size_t room = DOORTEXT_QUOTE_BYTES - (size_t)(o - out);
    if (shown < n) {
        snprintf(o, room, "...\" (%zu bytes)", n);
    } else {
        snprintf(o, room, "\"");
    }
    return out;
}
