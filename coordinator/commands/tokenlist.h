/* tokenlist.h - token ids as people write them: decimal numbers separated by commas or white space.
 */
#ifndef COORDINATOR_TOKENLIST_H
#define COORDINATOR_TOKENLIST_H

#include "common/status.h"

#include <stdint.h>

/* Read the bytes of text into an owned array. name is the option for messages. ST_USAGE: no token,
 * an empty place between commas, or what is no number, with its place in the list (from 1); *out is
 * NULL then. ST_RESOURCES. */
MUST_USE status tokenlist_parse(const char *name, const char *text, uint64_t bytes, uint32_t **out,
                                uint64_t *n, errmsg *e);

/* Every id is < n_vocab. ST_USAGE naming the first that is not and its place. */
MUST_USE status tokenlist_check(const char *name, const uint32_t *tokens, uint64_t n,
                                uint32_t n_vocab, errmsg *e);

#endif
