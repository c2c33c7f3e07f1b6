/* gguf_expect.c - see gguf_expect.h. */
#include "tests/support/gguf_expect.h"

#include <stdlib.h>
#include <string.h>

gguf *gguf_opened(gguf_build *b)
{
    int fd = gguf_build_fd(b);
    gguf *g = NULL;
    errmsg e = {0};
    if (gguf_open_fds(&g, &fd, 1, &e) != ST_OK) fail_msg("refused: %s", e.text);
    gguf_build_free(b);
    return g;
}

void gguf_assert_bytes_refused(const uint8_t *bytes, uint64_t n, const char *one, const char *two)
{
    int fd = bytes_fd(bytes, n);
    gguf *g = NULL;
    errmsg e = {0};
    status s = gguf_open_fds(&g, &fd, 1, &e);
    if (s != ST_BAD_MODEL) fail_msg("status %s, expected a refusal with '%s'", status_word(s), one);
    assert_null(g);
    assert_int_equal(e.code, ST_BAD_MODEL);
    if (strstr(e.text, one) == NULL || strstr(e.text, two) == NULL) {
        fail_msg("'%s' does not say '%s' and '%s'", e.text, one, two);
    }
}

void gguf_assert_refused(gguf_build *b, const char *one, const char *two)
{
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    gguf_assert_bytes_refused(bytes, n, one, two);
    free(bytes);
    gguf_build_free(b);
}

gguf_build *gguf_small(void)
{
    static const char *const words[] = {"one", "", "three"};
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    gguf_build *b = gguf_build_new();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_u32(b, "n", 7);
    gguf_build_strs(b, "words", words, 3);
    gguf_build_tensor(b, "a", DT_F32, 4, 2, x);
    gguf_build_tensor(b, "b", DT_F32, 3, 0, x);
    return b;
}
