/* text_json.h - texts of any bytes, as paths and messages that quote them are, in JSON. */
#ifndef COORDINATOR_TEXT_JSON_H
#define COORDINATOR_TEXT_JSON_H

struct json_t;

/* The text as an owned JSON string; what is no UTF-8 is U+FFFD, as in utf8.h. NULL: no memory. */
struct json_t *text_json(const char *text);

#endif
