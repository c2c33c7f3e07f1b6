/* utf8_test.c - characters stay whole however they are cut, and what is malformed is replaced as
 * Unicode says; compared with a decoder that looks at the whole text and works on code points. */
#include "coordinator/text/utf8.h"
#include "tests/support/tap.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define FFFD     "\xEF\xBF\xBD"
#define TEXT_MAX 64

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((rng_state >> 33) % below);
}

/* The reference: the longest run of bytes that starts a well-formed character is found by trying
 * all code points' ranges, not by a state machine. */
static bool starts_character(const unsigned char *t, uint32_t n)
{
    static const struct {
        uint32_t first, last, bytes;
    } ranges[] = {{0, 0x7F, 1},
                  {0x80, 0x7FF, 2},
                  {0x800, 0xD7FF, 3},
                  {0xE000, 0xFFFF, 3},
                  {0x10000, 0x10FFFF, 4}};
    for (uint32_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
        uint32_t bytes = ranges[r].bytes;
        if (n > bytes) continue;
        static const unsigned char mark[5] = {0, 0, 0xC0, 0xE0, 0xF0};
        uint32_t lead_bits = bytes == 1 ? 7 : 7 - bytes;
        if ((t[0] & ~((1u << lead_bits) - 1)) != mark[bytes]) continue;
        uint32_t low = t[0] & ((1u << lead_bits) - 1);
        bool shaped = true;
        for (uint32_t i = 1; i < n; i++) {
            if ((t[i] & 0xC0) != 0x80) shaped = false;
            low = low << 6 | (t[i] & 0x3F);
        }
        uint32_t open_bits = 6 * (bytes - n); /* bits that are still to come */
        uint32_t high = low << open_bits | ((1u << open_bits) - 1);
        low <<= open_bits;
        if (shaped && high >= ranges[r].first && low <= ranges[r].last) return true;
    }
    return false;
}

static bool whole_character(const unsigned char *t, uint32_t n)
{
    if (!starts_character(t, n)) return false;
    return n == (t[0] < 0x80 ? 1u : t[0] < 0xE0 ? 2u : t[0] < 0xF0 ? 3u : 4u);
}

static uint64_t decode_reference(const unsigned char *t, uint32_t n, char *out)
{
    uint64_t o = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t run = 0;
        while (run < 4 && i + run < n && starts_character(t + i, run + 1)) {
            run++;
            if (whole_character(t + i, run)) break;
        }
        if (run > 0 && whole_character(t + i, run)) {
            memcpy(out + o, t + i, run);
            o += run;
        } else {
            memcpy(out + o, FFFD, 3);
            o += 3;
        }
        i += run > 0 ? run : 1;
    }
    return o;
}

/* Feed text in pieces of the given lengths (0 ends the list; the rest goes in one piece). */
static void expect_pieces(const char *text, uint64_t bytes, const uint32_t *pieces,
                          const char *wanted, uint64_t wanted_bytes)
{
    utf8_stream s = {0};
    char out[3 * (TEXT_MAX + 4) * 2];
    uint64_t n = 0, at = 0;
    while (at < bytes) {
        uint64_t take = bytes - at;
        if (pieces != NULL && *pieces != 0) take = *pieces++;
        n += utf8_feed(&s, text + at, take, out + n);
        at += take;
    }
    n += utf8_end(&s, out + n);
    assert_int_equal(s.n_held, 0);
    assert_int_equal(n, wanted_bytes);
    assert_memory_equal(out, wanted, n);
}

static void expect(const char *text, const char *wanted)
{
    expect_pieces(text, strlen(text), NULL, wanted, strlen(wanted));
    uint32_t ones[TEXT_MAX + 1];
    for (uint32_t i = 0; i < TEXT_MAX; i++)
        ones[i] = 1;
    ones[TEXT_MAX] = 0;
    expect_pieces(text, strlen(text), ones, wanted, strlen(wanted));
}

static void four_bytes_over_tokens(void **state)
{
    (void)state;
    const char *text = "\xF0\x9F\x98\x80";
    expect_pieces(text, 4, (uint32_t[]){1, 1, 1, 1, 0}, text, 4);
    expect_pieces(text, 4, (uint32_t[]){2, 2, 0}, text, 4);
    expect_pieces(text, 4, (uint32_t[]){3, 1, 0}, text, 4);
    expect_pieces(text, 4, (uint32_t[]){1, 3, 0}, text, 4);
}

static void nothing_comes_before_it_is_whole(void **state)
{
    (void)state;
    utf8_stream s = {0};
    char out[64];
    assert_int_equal(utf8_feed(&s, NULL, 0, out), 0);
    assert_int_equal(utf8_feed(&s, "\xF0\x9F", 2, out), 0);
    assert_int_equal(utf8_feed(&s, "\x98", 1, out), 0);
    assert_int_equal(utf8_feed(&s, "\x80!", 2, out), 5);
    assert_memory_equal(out, "\xF0\x9F\x98\x80!", 5);
    assert_int_equal(utf8_end(&s, out), 0);
}

static void cut_at_the_end(void **state)
{
    (void)state;
    expect("a\xC3", "a" FFFD);
    expect("a\xE2\x96", "a" FFFD);
    expect("a\xF0\x9F\x98", "a" FFFD);
    expect("", "");
}

static void malformed(void **state)
{
    (void)state;
    expect("\x80", FFFD);                            /* lone continuation */
    expect("\xC0\xAF", FFFD FFFD);                   /* overlong, two bytes */
    expect("\xE0\x80\xAF", FFFD FFFD FFFD);          /* overlong, three */
    expect("\xF0\x80\x80\xAF", FFFD FFFD FFFD FFFD); /* overlong, four */
    expect("\xED\xA0\x80", FFFD FFFD FFFD);          /* surrogate */
    expect("\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80");
    expect("\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD); /* above U+10FFFF */
    expect("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF");
    expect("\xF5\xFF", FFFD FFFD);
    expect("\xE2\x96\x61", FFFD "a");
    expect("\xF0\x9F\xF0\x9F\x98\x80", FFFD "\xF0\x9F\x98\x80");
    /* The example of the standard's section 3.9: maximal subparts. */
    expect("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
           "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d");
}

static void nul_is_a_character(void **state)
{
    (void)state;
    expect_pieces("a\0b\0", 4, (uint32_t[]){2, 1, 0}, "a\0b\0", 4);
    expect_pieces("\xE2\0", 2, NULL, FFFD "\0", 4);
}

static void every_code_point(void **state)
{
    (void)state;
    for (uint32_t c = 0x80; c < 0x110000; c++) {
        char t[4];
        uint32_t n;
        if (c < 0x800) {
            n = 2, t[0] = (char)(0xC0 | c >> 6);
        } else if (c < 0x10000) {
            n = 3, t[0] = (char)(0xE0 | c >> 12), t[1] = (char)(0x80 | (c >> 6 & 0x3F));
        } else {
            n = 4, t[0] = (char)(0xF0 | c >> 18), t[1] = (char)(0x80 | (c >> 12 & 0x3F));
            t[2] = (char)(0x80 | (c >> 6 & 0x3F));
        }
        t[n - 1] = (char)(0x80 | (c & 0x3F));
        bool surrogate = c >= 0xD800 && c <= 0xDFFF;
        assert_int_equal(utf8_char_bytes(t, n), surrogate ? 0 : n);
        assert_int_equal(utf8_char_bytes(t, n - 1), 0);
    }
    assert_int_equal(utf8_char_bytes("a", 0), 0);
    assert_int_equal(utf8_char_bytes("\0", 1), 1);
}

/* Random bytes, mostly from those that matter, in random pieces. */
static void random_text_random_pieces(void **state)
{
    (void)state;
    static const unsigned char likely[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                           0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                           0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    rng_state = 7;
    for (uint32_t round = 0; round < 200000; round++) {
        unsigned char text[TEXT_MAX];
        uint32_t n = rng(TEXT_MAX + 1), pieces[TEXT_MAX + 1], n_pieces = 0, at = 0;
        for (uint32_t i = 0; i < n; i++)
            text[i] = rng(4) ? likely[rng(sizeof likely)] : (unsigned char)rng(256);
        while (at < n) {
            uint32_t take = 1 + rng(5);
            if (take > n - at) take = n - at;
            pieces[n_pieces++] = take;
            at += take;
        }
        pieces[n_pieces] = 0;
        char wanted[3 * TEXT_MAX];
        uint64_t wanted_bytes = decode_reference(text, n, wanted);
        expect_pieces((char *)text, n, pieces, wanted, wanted_bytes);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t bytes = utf8_char_bytes((char *)text + i, n - i);
            assert_true(bytes == 0 || whole_character(text + i, bytes));
        }
    }
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_bytes_over_tokens),
        cmocka_unit_test(nothing_comes_before_it_is_whole),
        cmocka_unit_test(cut_at_the_end),
        cmocka_unit_test(malformed),
        cmocka_unit_test(nul_is_a_character),
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(random_text_random_pieces),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
