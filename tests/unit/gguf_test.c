/* gguf_test.c - every way in which one file can be wrong, and the line that says so. */
#include "common/clock.h"
#include "common/gguf.h"
#include "tests/support/gguf_expect.h"
#include "tests/support/tap.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void wrong_header(void **state)
{
    (void)state;
    gguf_assert_bytes_refused((const uint8_t *)"", 0, "the file ends at 0", "header");
    gguf_assert_bytes_refused((const uint8_t *)"GGUF\3\0\0\0", 8, "cut short: the header",
                              "offset 8");
    gguf_assert_bytes_refused((const uint8_t *)"ggml\3\0\0\0", 8, "not a GGUF file", "67 67 6d 6c");
    static const struct {
        uint32_t version;
        const char *says;
    } versions[] = {{0, "version 0 is not supported"},
                    {1, "version 1 is not supported"},
                    {4, "version 4 is not supported"},
                    {0x03000000, "version 3: a big-endian file"}};
    for (unsigned i = 0; i < 4; i++) {
        gguf_build *b = gguf_small();
        b->version = versions[i].version;
        gguf_assert_refused(b, versions[i].says, "");
    }
    static const uint64_t counts[] = {1000, 300000, 1ull << 40, UINT64_MAX - 1};
    for (unsigned i = 0; i < 4; i++) {
        char number[32];
        snprintf(number, sizeof number, "%llu", (unsigned long long)counts[i]);
        gguf_build *b = gguf_small();
        b->n_keys_said = counts[i];
        gguf_assert_refused(b, number, "metadata keys");
        b = gguf_small();
        b->n_tensors_said = counts[i];
        gguf_assert_refused(b, number, "tensors");
    }
    gguf_build *b = gguf_small();
    b->n_tensors_said = 3; /* the data is read as a third entry */
    gguf_assert_refused(b, "tensor 3 of 3", "offset");
}

static void wrong_keys(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    gguf_build_raw(b, "n", B_U8, "\1", 1);
    gguf_assert_refused(b, "key n is there twice", "");
    b = gguf_small();
    gguf_build_raw(b, "", B_U8, "\1", 1);
    gguf_assert_refused(b, "metadata key 4 of 4", "string of 0 bytes");
    b = gguf_small();
    b->key[1].key = realloc(b->key[1].key, 70000);
    memset(b->key[1].key, 'k', 70000);
    b->key[1].key_bytes = 65536;
    gguf_assert_refused(b, "metadata key 2 of 3", "65536 bytes, must be 1 to 65535");
    b = gguf_small();
    b->key[1].key = realloc(b->key[1].key, 4);
    memcpy(b->key[1].key, "n\0x", 4);
    b->key[1].key_bytes = 3;
    gguf_assert_refused(b, "NUL byte", "(n)");
    b = gguf_small();
    b->key[1].kind = 13;
    gguf_assert_refused(b, "key n", "type 13, which GGUF does not define");
    b = gguf_small();
    gguf_build_raw(b, "yes", B_BOOL, "\2", 1);
    gguf_assert_refused(b, "key yes", "bool of value 2");
    b = gguf_small();
    gguf_build_raw(b, "s", B_STRING, "\377\377\377\377\377\377\377\377", 8);
    gguf_assert_refused(b, "the value of key s needs 18446744073709551615 bytes",
                        "the file ends at");
    b = gguf_small();
    uint8_t *big = calloc(1, (16u << 20) + 16);
    big[3] = 1; /* 2^24 + 1 bytes */
    big[0] = 1;
    gguf_build_raw(b, "s", B_STRING, big, (16u << 20) + 9);
    gguf_assert_refused(b, "key s", "16777217 bytes, must be 0 to 16777216");
    b = gguf_small();
    big[0] = 0;
    for (char key[] = "0"; key[0] < '4'; key[0]++) {
        gguf_build_raw(b, key, B_STRING, big, (16u << 20) + 8);
    }
    gguf_assert_refused(b, "the value of key 3", "more than 64 MiB");
    free(big);
}

/* An array's type, count and elements, as bytes. */
#define LE32(x) (uint8_t)(x), (uint8_t)((x) >> 8), (uint8_t)((x) >> 16), (uint8_t)((x) >> 24)
#define LE64(x) LE32(x), LE32((uint64_t)(x) >> 32)

static void wrong_arrays(void **state)
{
    (void)state;
    const uint8_t element[] = {LE32(13u), LE64(1ull), 0};
    const uint8_t many[] = {LE32(4u), LE64(1ull << 61), 0, 0, 0, 0};
    const uint8_t more[] = {LE32(4u), LE64(1000ull), 0, 0, 0, 0};
    const uint8_t strings[] = {LE32(8u), LE64(1ull << 62)};
    const uint8_t length[] = {LE32(8u), LE64(1ull), LE64(UINT64_MAX)};
    const uint8_t inner[] = {LE32(9u), LE64(1ull), LE32(4u), LE64(UINT64_MAX)};
    static const char *const says[][2] = {
        {"key x", "elements of type 13"},
        {"key x says 2305843009213693952 elements of type u32", "cut short"},
        {"key x says 1000 elements of type u32", "cut short"},
        {"key x says 4611686018427387904 elements of type string", "cut short"},
        {"key x needs 18446744073709551615 bytes", "cut short"},
        {"key x says 18446744073709551615 elements of type u32", "cut short"},
    };
    const struct {
        const uint8_t *at;
        uint64_t n;
    } values[] = {{element, sizeof element}, {many, sizeof many},     {more, sizeof more},
                  {strings, sizeof strings}, {length, sizeof length}, {inner, sizeof inner}};
    for (unsigned i = 0; i < 6; i++) {
        gguf_build *b = gguf_small();
        gguf_build_raw(b, "x", B_ARRAY, values[i].at, values[i].n);
        gguf_assert_refused(b, says[i][0], says[i][1]);
    }
}

static void nested_arrays(void **state)
{
    (void)state;
    const uint8_t depth[] = {LE32(9u), LE64(1ull), LE32(9u), LE64(1ull), LE32(9u), LE64(1ull),
                             LE32(9u), LE64(1ull), LE32(4u), LE64(1ull), LE32(5u)};
    gguf_build *b = gguf_small();
    gguf_build_raw(b, "x", B_ARRAY, depth, sizeof depth);
    gguf_assert_refused(b, "key x", "arrays nested more than 4 deep");
    b = gguf_small();
    gguf_build_raw(b, "x", B_ARRAY, depth + 12, sizeof depth - 12);
    gguf *g = gguf_opened(b); /* four deep: walked over */
    assert_int_equal(gguf_array_n(g, "x"), 1);
    assert_string_equal(gguf_type_name(g, "x"), "array of array");
    uint32_t *u = NULL, n32 = 0;
    uint64_t n = 0;
    errmsg e = {0};
    assert_int_equal(gguf_array_u32(g, "x", 0, &u, &n, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "key x is an array of array"));
    assert_true(gguf_u32(g, "n", &n32) && n32 == 7);
    gguf_close(g);
}

static void alignments(void **state)
{
    (void)state;
    static const uint32_t right[] = {8, 16, 32, 64, 4096};
    for (unsigned i = 0; i < 5; i++) {
        gguf_build *b = gguf_small();
        b->alignment = right[i];
        gguf_build_u32(b, "general.alignment", right[i]);
        gguf *g = gguf_opened(b);
        assert_int_equal(gguf_tensor_at(g, 1)->offset % right[i], 0);
        gguf_close(g);
    }
    static const uint32_t wrong[] = {0, 1, 2, 4, 12, 24, 33, UINT32_MAX};
    for (unsigned i = 0; i < 8; i++) {
        char number[32];
        snprintf(number, sizeof number, "is %u,", wrong[i]);
        gguf_build *b = gguf_small();
        gguf_build_u32(b, "general.alignment", wrong[i]);
        gguf_assert_refused(b, "key general.alignment", number);
    }
    gguf_build *b = gguf_small();
    gguf_build_scalar(b, "general.alignment", B_U64, 32);
    gguf_assert_refused(b, "key general.alignment", "has type u64, must be u32");
    b = gguf_small();
    gguf_build_u32(b, "general.alignment", 1u << 31);
    gguf_assert_refused(b, "tensor a needs 32 bytes at offset 2147483648", "cut short");
}

static void wrong_tensor_entries(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    gguf_build_tensor(b, "a", DT_F32, 4, 0, NULL);
    gguf_assert_refused(b, "tensor a is there twice", "");
    char long_name[140];
    memset(long_name, 'x', sizeof long_name);
    long_name[128] = '\0';
    b = gguf_small();
    gguf_build_tensor(b, long_name, DT_F32, 4, 0, NULL);
    gguf_assert_refused(b, "tensor 3 of 3", "name of 128 bytes, must be 1 to 127");
    long_name[127] = '\0';
    b = gguf_small();
    gguf_build_tensor(b, long_name, DT_F32, 4, 0, NULL);
    gguf *g = gguf_opened(b);
    assert_non_null(gguf_tensor_find(g, long_name));
    gguf_close(g);
    b = gguf_small();
    b->tensor[1].name_bytes = UINT64_MAX;
    gguf_assert_refused(b, "tensor 2 of 2", "needs 18446744073709551615 bytes");
    b = gguf_small();
    gguf_build_tensor(b, "nul", DT_F32, 4, 0, NULL)->name[1] = '\0';
    gguf_assert_refused(b, "NUL byte in its name", "(n)");
    static const uint32_t n_dims[] = {0, 5, UINT32_MAX};
    static const char *const n_dims_said[] = {"0 dimensions", "5 dimensions",
                                              "4294967295 dimensions"};
    for (unsigned i = 0; i < 3; i++) {
        b = gguf_small();
        b->tensor[0].n_dims = n_dims[i];
        gguf_assert_refused(b, "tensor a has", n_dims_said[i]);
    }
    b = gguf_small();
    b->tensor[0].dim[1] = 0;
    gguf_assert_refused(b, "tensor a: dimension 1 is 0", "");
    b = gguf_small();
    b->tensor[0].dim[0] = b->tensor[0].dim[1] = 1ull << 33;
    gguf_assert_refused(b, "tensor a: dimension 1 of 8589934592", "more than 2^63 values");
    b = gguf_small();
    b->tensor[0].dim[0] = UINT64_MAX;
    gguf_assert_refused(b, "tensor a: dimension 0 of 18446744073709551615",
                        "more than 2^63 values");
    b = gguf_small();
    b->tensor[0].dim[0] = 1ull << 62;
    b->tensor[0].dim[1] = 1;
    gguf_assert_refused(b, "tensor a", "more than 2^64 bytes");
    static const uint32_t types[] = {4, 5, 31, 36, 40, 250, UINT32_MAX};
    for (unsigned i = 0; i < 7; i++) {
        char number[32];
        snprintf(number, sizeof number, "type number %u,", types[i]);
        b = gguf_small();
        b->tensor[1].type = types[i];
        gguf_assert_refused(b, "tensor b", number);
    }
    b = gguf_small();
    gguf_build_tensor(b, "q", DT_Q8_0, 64, 1, NULL)->dim[0] = 48;
    gguf_assert_refused(b, "tensor q: rows of 48 values", "whole blocks of Q8_0 (32 values)");
    b = gguf_small();
    b->tensor[0].type = DT_Q4_K;
    gguf_assert_refused(b, "tensor a: rows of 4 values", "Q4_K (256 values)");
}

static void wrong_places(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    b->tensor[1].offset = 33;
    gguf_assert_refused(b, "tensor b has offset 33", "alignment 32");
    static const uint64_t beyond[] = {64, 1ull << 20, 1ull << 63, UINT64_MAX - 31};
    for (unsigned i = 0; i < 4; i++) {
        char number[32];
        snprintf(number, sizeof number, "+ %llu,", (unsigned long long)beyond[i]);
        b = gguf_small();
        b->tensor[1].offset = beyond[i];
        gguf_assert_refused(b, "tensor b needs 12 bytes at offset", number);
    }
    b = gguf_small();
    b->tensor[0].dim[1] = 1000;
    gguf_assert_refused(b, "tensor a needs 16000 bytes", "the file ends at");
    b = gguf_small();
    b->tensor[1].offset = 0;
    gguf_assert_refused(b, "tensors a and b overlap", "offset");
    b = gguf_small();
    b->tensor[0].offset = 32; /* 32 bytes from there: over b's and past the end by padding only */
    b->tensor[1].offset = 32;
    gguf_assert_refused(b, "overlap", "");
}

static void tails(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    b->pad_end = false;
    gguf_close(gguf_opened(b));
    uint64_t n = 0;
    b = gguf_small();
    uint8_t *bytes = gguf_build_bytes(b, &n);
    uint8_t *twice = calloc(1, 2 * n + 64);
    char at[32];
    snprintf(at, sizeof at, "at offset %llu:", (unsigned long long)n);
    memcpy(twice, bytes, n);
    memcpy(twice + n, bytes, n);
    gguf_assert_bytes_refused(twice, 2 * n, "a second GGUF file begins", at);
    memset(twice + n, 0, n);
    gguf_assert_bytes_refused(twice, n + 1, "follow the last tensor", "does not describe");
    /* The first not padded, the second right behind it. */
    b->pad_end = false;
    free(bytes);
    bytes = gguf_build_bytes(b, &n);
    memcpy(twice + n, bytes, n);
    gguf_assert_bytes_refused(twice, 2 * n, "a second GGUF file begins", "joined");
    free(bytes);
    gguf_build_free(b);
    /* Files without tensors: nothing but padding may follow the header either. */
    b = gguf_build_new();
    gguf_build_str(b, "general.architecture", "llama");
    bytes = gguf_build_bytes(b, &n);
    memcpy(twice, bytes, n);
    memcpy(twice + n, bytes, n);
    gguf_assert_bytes_refused(twice, 2 * n, "a second GGUF file begins", "joined");
    free(bytes);
    free(twice);
    gguf_close(gguf_opened(b));
}

/* Every length short of the last tensor's end is refused, and says that it was cut. */
static void cut_everywhere(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    b->pad_end = false;
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    for (uint64_t cut = 0; cut < n; cut++) {
        gguf_assert_bytes_refused(bytes, cut, "cut short", "offset");
    }
    free(bytes);
    gguf_build_free(b);
}

/* The ten places at which people's downloads end, in a model of the usual size and shape. */
static void cut_at_ten_places(void **state)
{
    (void)state;
    llama_spec spec = llama_spec_default();
    gguf_build *b = gguf_build_llama(&spec);
    uint64_t n = 0, header = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    header = (uint64_t)((uint8_t *)memmem(bytes, n, "\0output.weight", 14) - bytes) + 1;
    const struct {
        uint64_t at;
        const char *says;
    } cuts[] = {
        {0, "the header"},
        {3, "the header"},
        {23, "the header"},
        {40, "30 tensors"},
        {1100, "the value of key tokenizer.ggml.tokens"},
        {2400, "the value of key tokenizer.ggml.tokens"},
        {header - 4, "in the directory"},
        {header + 20, "tensor output.weight"},
        {n / 2, "tensor "},
        {n - 1, "tensor output.weight"},
    };
    for (unsigned i = 0; i < 10; i++) {
        gguf_assert_bytes_refused(bytes, cuts[i].at, "cut short", cuts[i].says);
    }
    free(bytes);
    gguf_build_free(b);
}

static void hostile_sizes(void **state)
{
    (void)state;
    /* 8 GB of nothing behind a header that promises much: neither memory nor time. */
    uint8_t head[24] = {'G', 'G', 'U', 'F', 3};
    uint64_t start = now_ns();
    for (int keys = 0; keys < 2; keys++) {
        memset(head + 8, 0, 16);
        head[keys ? 18 : 10] = keys ? 1 : 4; /* 65536 keys or 262144 tensors */
        int fd = bytes_fd(head, sizeof head);
        assert_int_equal(ftruncate(fd, 8ll << 30), 0);
        gguf *g = NULL;
        errmsg e = {0};
        assert_int_equal(gguf_open_fds(&g, &fd, 1, &e), ST_BAD_MODEL);
        assert_non_null(strstr(e.text, keys ? "metadata key 1 of 65536" : "tensor 1 of 262144"));
    }
    /* An array of more strings than anybody has, all empty. */
    const uint8_t array[] = {'G',        'G',        'U', 'F',      LE32(3u), LE64(0ull),
                             LE64(1ull), LE64(1ull), 'x', LE32(9u), LE32(8u), LE64(900000000ull)};
    int fd = bytes_fd(array, sizeof array);
    assert_int_equal(ftruncate(fd, 8ll << 30), 0);
    gguf *g = NULL;
    errmsg e = {0};
    assert_int_equal(gguf_open_fds(&g, &fd, 1, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "key x has 900000000 elements of type string"));
    assert_true(now_ns() - start < 2 * NS_PER_S);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_header),   cmocka_unit_test(wrong_keys),
        cmocka_unit_test(wrong_arrays),   cmocka_unit_test(nested_arrays),
        cmocka_unit_test(alignments),     cmocka_unit_test(wrong_tensor_entries),
        cmocka_unit_test(wrong_places),   cmocka_unit_test(tails),
        cmocka_unit_test(cut_everywhere), cmocka_unit_test(cut_at_ten_places),
        cmocka_unit_test(hostile_sizes),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
