#include "coordinator/commands/tokenlist.h"
#include "common/doortext.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

status tokenlist_parse(const char *name, const char *text, uint64_t bytes, uint32_t **out,
                       uint64_t *n, errmsg *e)
{
    const char *at = text, *end = text + bytes;
    char quoted[DOORTEXT_QUOTE_BYTES];
    bool comma = false; /* one stands before the place that is read now */
    *out = NULL;
    *n = 0;
    uint32_t *tokens = malloc((bytes / 2 + 1) * sizeof *tokens);
    if (tokens == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the list of tokens");
    for (;;) {
        while (at < end && is_space(*at))
            at++;
        if (at == end && !comma) break;
        const char *item = at;
        while (at < end && *at != ',' && !is_space(*at))
            at++;
        size_t item_bytes = (size_t)(at - item);
        uint64_t value;
        if (doortext_number(item, item_bytes, UINT32_MAX, &value) != NUMBER_OK) {
            free(tokens);
            *n += 1;
            return errmsg_set(e, ST_USAGE,
                              "%s: %s in place %" PRIu64
                              " is not a token id; rule: decimal numbers "
                              "separated by commas or spaces",
                              name, doortext_quote(quoted, item, item_bytes), *n);
        }
        tokens[(*n)++] = (uint32_t)value;
        while (at < end && is_space(*at))
            at++;
        comma = at < end && *at == ',';
        if (comma) at++;
    }
    if (*n == 0) {
        free(tokens);
        return errmsg_set(e, ST_USAGE, "%s: no token is in the list", name);
    }
    *out = tokens;
    return ST_OK;
}

status tokenlist_check(const char *name, const uint32_t *tokens, uint64_t n, uint32_t n_vocab,
                       errmsg *e)
{
    for (uint64_t i = 0; i < n; i++) {
        if (tokens[i] >= n_vocab) {
            return errmsg_set(e, ST_USAGE,
                              "%s: token %u in place %" PRIu64 " is not in the vocabulary of %u "
                              "(0 to %u)",
                              name, tokens[i], i + 1, n_vocab, n_vocab - 1);
        }
    }
    return ST_OK;
}
