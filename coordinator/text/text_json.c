#include "coordinator/text/text_json.h"

#include "coordinator/text/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

json_t *text_json(const char *text)
{
    uint64_t bytes = strlen(text);
    utf8_stream characters = {0};
    char *whole = malloc(3 * (bytes + 4) + 3); /* as utf8_feed and utf8_end may need */
    if (whole == NULL) return NULL;
    uint64_t n = utf8_feed(&characters, text, bytes, whole);
    n += utf8_end(&characters, whole + n);
    json_t *v = json_stringn(whole, n);
    free(whole);
    return v;
}
