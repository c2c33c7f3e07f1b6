#include "tests/support/tokens.h"

#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

uint32_t *tokens_encode(const tokenizer *tok, const char *text, uint64_t bytes, tokenize_options o,
                        uint64_t *n)
{
    uint32_t *ids;
    errmsg e;
    errmsg_clear(&e);
    if (tokenizer_encode(tok, text, bytes, o, &ids, n, &e) != ST_OK) fail_msg("%s", e.text);
    assert_non_null(ids);
    for (uint64_t i = 0; i < *n; i++)
        assert_true(ids[i] < tokenizer_n(tok));
    return ids;
}

void tokens_expect(const tokenizer *tok, const char *text, uint64_t bytes, tokenize_options o,
                   const uint32_t *wanted, uint32_t end)
{
    uint64_t n, n_wanted = 0;
    uint32_t *ids = tokens_encode(tok, text, bytes, o, &n);
    while (wanted[n_wanted] != end)
        n_wanted++;
    bool same = n == n_wanted && memcmp(ids, wanted, n * sizeof *ids) == 0;
    if (!same) {
        print_message("# '%.40s' gives", text);
        for (uint64_t i = 0; i < n && i < 40; i++)
            print_message(" %u", ids[i]);
        print_message("\n");
    }
    free(ids);
    assert_true(same);
}
