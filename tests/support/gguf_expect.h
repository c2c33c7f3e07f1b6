/* gguf_expect.h - what the tests of model files expect of an opening. */
#ifndef TESTS_SUPPORT_GGUF_EXPECT_H
#define TESTS_SUPPORT_GGUF_EXPECT_H

#include "common/gguf.h"
#include "tests/support/gguf_build.h"
#include "tests/support/tap.h"

/* Open b, which must be right; b is freed, the result is the caller's. */
gguf *gguf_opened(gguf_build *b);

/* Opening these bytes must be refused as a bad model, with a line that holds both texts. */
void gguf_assert_bytes_refused(const uint8_t *bytes, uint64_t n, const char *one, const char *two);

/* The same for a build, which is freed. */
void gguf_assert_refused(gguf_build *b, const char *one, const char *two);

/* general.architecture, n = 7, words = {"one", "", "three"}, tensors a [4, 2] and b [3]. */
gguf_build *gguf_small(void);

#endif
