#include "common/amount.h"

#include <inttypes.h>
#include <stdio.h>

const char *amount_bytes(char out[AMOUNT_TEXT], uint64_t bytes)
{
    static const struct {
        const char *word;
        int decimals;
    } unit[] = {{"kB", 1}, {"MB", 1}, {"GB", 2}, {"TB", 2}, {"PB", 2}};
    static const double next[] = {999.95, 999.95, 999.995,
                                  999.995}; /* what would be rounded to 1000 */
    if (bytes < 1000) {
        snprintf(out, AMOUNT_TEXT, "%" PRIu64 " byte%s", bytes, plural(bytes));
        return out;
    }
    double value = (double)bytes / 1000;
    int i = 0;
    while (i < 4 && value >= next[i]) {
        value /= 1000;
        i++;
    }
    snprintf(out, AMOUNT_TEXT, "%.*f %s", unit[i].decimals, value, unit[i].word);
    return out;
}

const char *amount_seconds(char out[AMOUNT_TEXT], uint64_t ns)
{
    double s = (double)ns / 1e9;
    snprintf(out, AMOUNT_TEXT, "%.*f s", s < 0.0995 ? 3 : s < 0.995 ? 2 : 1, s);
    return out;
}

const char *amount_mb(char out[AMOUNT_TEXT], uint64_t bytes)
{
    snprintf(out, AMOUNT_TEXT, "%.1f MB", (double)bytes / 1e6);
    return out;
}
