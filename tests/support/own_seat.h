/* own_seat.h - a source of drafts for tests that serves one generation and is its own seat: a
 * structure whose first member it is has what its guess needs. */
#ifndef TESTS_SUPPORT_OWN_SEAT_H
#define TESTS_SUPPORT_OWN_SEAT_H

#include "coordinator/draft.h"

/* guess: as draft.h says; its seat is the source. */
draft_source own_seat(uint32_t (*guess)(void *seat, const uint32_t *tokens, uint64_t n,
                                        uint32_t *out, uint32_t room, uint64_t *spent_ns));

#endif
