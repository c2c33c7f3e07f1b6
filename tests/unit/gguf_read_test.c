/* gguf_read_test.c - what is read from a right file, and from one that changes while it is open. */
#include "common/clock.h"
#include "tests/support/gguf_expect.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void versions_and_tensors(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_build *b = gguf_small();
        b->version = version;
        gguf *g = gguf_opened(b);
        assert_int_equal(gguf_n_files(g), 1);
        assert_int_equal(gguf_n_tensors(g), 2);
        const gguf_tensor *t = gguf_tensor_find(g, "b");
        assert_non_null(t);
        assert_ptr_equal(t, gguf_tensor_at(g, 1));
        assert_int_equal(t->n_dims, 1);
        assert_int_equal(t->dim[0], 3);
        assert_int_equal(t->dim[1], 1);
        assert_int_equal(t->bytes, 12);
        assert_true(t->offset % 32 == 0 && t->offset + t->bytes <= gguf_file_bytes(g, 0));
        float x[3];
        errmsg e = {0};
        assert_int_equal(gguf_tensor_read(g, t, x, sizeof x, &e), ST_OK);
        assert_true(x[0] == 1 && x[2] == 3);
        assert_null(gguf_tensor_find(g, "c"));
        assert_null(gguf_tensor_find(g, ""));
        assert_int_equal(fcntl(gguf_fd(g, 0), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        gguf_close(g);
    }
}

static void scalars(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    double d = 0.5, huge = 1e300;
    uint64_t d_bits, huge_bits;
    memcpy(&d_bits, &d, 8);
    memcpy(&huge_bits, &huge, 8);
    gguf_build_scalar(b, "u8", B_U8, 255);
    gguf_build_scalar(b, "i8", B_I8, 5);
    gguf_build_scalar(b, "i8-", B_I8, 0xff);
    gguf_build_scalar(b, "u16", B_U16, 65535);
    gguf_build_scalar(b, "i32-", B_I32, 0xffffffff);
    gguf_build_scalar(b, "u64", B_U64, UINT32_MAX);
    gguf_build_scalar(b, "u64+", B_U64, 1ull << 32);
    gguf_build_scalar(b, "i64", B_I64, 9);
    gguf_build_scalar(b, "f64", B_F64, d_bits);
    gguf_build_scalar(b, "f64+", B_F64, huge_bits);
    gguf_build_f32(b, "f32", -2.5f);
    gguf_build_bool(b, "yes", true);
    gguf_build_raw(b, "nul", B_STRING, "\3\0\0\0\0\0\0\0a\0b", 11);
    gguf_build_raw(b, "\xff\xfe", B_U8, "\1", 1); /* keys need not be UTF-8 */
    gguf *g = gguf_opened(b);
    static const struct {
        const char *key;
        uint32_t value;
    } fits[] = {{"u8", 255}, {"i8", 5}, {"u16", 65535}, {"u64", UINT32_MAX},
                {"i64", 9},  {"n", 7},  {"\xff\xfe", 1}};
    uint32_t u = 77;
    for (unsigned i = 0; i < sizeof fits / sizeof *fits; i++) {
        assert_true(gguf_u32(g, fits[i].key, &u));
        assert_int_equal(u, fits[i].value);
    }
    static const char *const no[] = {"i8-", "i32-", "u64+",  "f32",   "f64",
                                     "yes", "nul",  "words", "absent"};
    u = 77;
    for (unsigned i = 0; i < sizeof no / sizeof *no; i++)
        assert_false(gguf_u32(g, no[i], &u));
    assert_int_equal(u, 77);
    float f = 0;
    assert_true(gguf_f32(g, "f32", &f) && f == -2.5f);
    assert_true(gguf_f32(g, "f64", &f) && f == 0.5f);
    assert_false(gguf_f32(g, "f64+", &f) || gguf_f32(g, "n", &f) || gguf_f32(g, "absent", &f));
    bool yes = false;
    assert_true(gguf_bool(g, "yes", &yes) && yes);
    assert_false(gguf_bool(g, "n", &yes) || gguf_bool(g, "absent", &yes));
    const char *text = NULL;
    uint64_t bytes = 0;
    assert_true(gguf_string(g, "general.architecture", &text, &bytes));
    assert_string_equal(text, "llama");
    assert_true(gguf_string(g, "nul", &text, &bytes));
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "a\0b", 4);
    assert_false(gguf_string(g, "n", &text, &bytes) || gguf_string(g, "absent", &text, &bytes));
    assert_true(gguf_has(g, "n") && !gguf_has(g, "absent"));
    assert_string_equal(gguf_type_name(g, "words"), "array of string");
    assert_string_equal(gguf_type_name(g, "i8-"), "i8");
    assert_null(gguf_type_name(g, "absent"));
    gguf_close(g);
}

static void arrays(void **state)
{
    (void)state;
    static const int32_t ints[] = {3, 2, 1};
    static const int32_t negative[] = {3, -2};
    static const double reals[] = {0.5, 1e300};
    static const uint8_t bools[] = {1, 0, 2};
    gguf_build *b = gguf_small();
    gguf_build_array(b, "ints", B_I32, ints, 3, 4);
    gguf_build_array(b, "negative", B_I32, negative, 2, 4);
    gguf_build_array(b, "reals", B_F64, reals, 1, 8);
    gguf_build_array(b, "reals+", B_F64, reals, 2, 8);
    gguf_build_array(b, "bools", B_BOOL, bools, 2, 1);
    gguf_build_array(b, "bools+", B_BOOL, bools, 3, 1);
    gguf_build_array(b, "empty", B_STRING, NULL, 0, 1);
    gguf_build_array(b, "none", B_F32, NULL, 0, 4);
    gguf *g = gguf_opened(b);
    uint32_t *u = NULL;
    float *f = NULL;
    gguf_str *s = NULL;
    uint64_t n = 0;
    errmsg e = {0};
    assert_int_equal(gguf_array_n(g, "words"), 3);
    assert_int_equal(gguf_array_n(g, "n") + gguf_array_n(g, "absent"), 0);
    assert_int_equal(gguf_array_str(g, "words", 3, &s, &n, &e), ST_OK);
    assert_int_equal(n, 3);
    assert_true(s[0].bytes == 3 && memcmp(s[0].text, "one", 3) == 0);
    assert_true(s[1].bytes == 0 && s[2].bytes == 5 && memcmp(s[2].text, "three", 5) == 0);
    free(s);
    assert_int_equal(gguf_array_str(g, "empty", 0, &s, &n, &e), ST_OK);
    assert_int_equal(n, 0);
    assert_non_null(s);
    free(s);
    assert_int_equal(gguf_array_u32(g, "ints", 0, &u, &n, &e), ST_OK);
    assert_true(n == 3 && u[0] == 3 && u[2] == 1);
    free(u);
    assert_int_equal(gguf_array_u32(g, "bools", 2, &u, &n, &e), ST_OK);
    assert_true(u[0] == 1 && u[1] == 0);
    free(u);
    assert_int_equal(gguf_array_f32(g, "reals", 1, &f, &n, &e), ST_OK);
    assert_true(f[0] == 0.5f);
    free(f);
    assert_int_equal(gguf_array_f32(g, "none", 0, &f, &n, &e), ST_OK);
    assert_non_null(f);
    free(f);
    static const struct {
        char as;
        const char *key;
        uint64_t expected;
        const char *says;
    } bad[] = {
        {'s', "absent", 0, "key absent is missing"},
        {'s', "n", 0, "key n has type u32, must be an array"},
        {'s', "ints", 0, "key ints is an array of i32, must be an array of string"},
        {'s', "words", 4, "key words has 3 entries, expected 4"},
        {'u', "words", 0, "array of string"},
        {'u', "reals", 0, "array of f64"},
        {'u', "negative", 0, "key negative: entry 1 does not fit u32"},
        {'u', "bools+", 0, "key bools+: entry 2 does not fit"},
        {'f', "ints", 0, "must be an array of f32"},
        {'f', "reals+", 0, "key reals+: entry 1 does not fit f32"},
        {'f', "absent", 0, "key absent is missing"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (errmsg){0};
        n = 9;
        status st = bad[i].as == 's'   ? gguf_array_str(g, bad[i].key, bad[i].expected, &s, &n, &e)
                    : bad[i].as == 'u' ? gguf_array_u32(g, bad[i].key, bad[i].expected, &u, &n, &e)
                                       : gguf_array_f32(g, bad[i].key, bad[i].expected, &f, &n, &e);
        assert_int_equal(st, ST_BAD_MODEL);
        if (strstr(e.text, bad[i].says) == NULL) fail_msg("'%s', not '%s'", e.text, bad[i].says);
        assert_int_equal(n, 0);
    }
    assert_true(s == NULL && u == NULL && f == NULL);
    gguf_close(g);
}

static void large_vocabulary(void **state)
{
    (void)state;
    enum { N = 262144 };
    const char **list = calloc(N, sizeof *list);
    char(*text)[12] = calloc(N, sizeof *text);
    for (unsigned i = 0; i < N; i++) {
        snprintf(text[i], sizeof *text, "token%u", i);
        list[i] = text[i];
    }
    gguf_build *b = gguf_small();
    gguf_build_strs(b, "tokens", list, N);
    gguf_build_strs(b, "merges", list, N);
    int fd = gguf_build_fd(b);
    gguf_build_free(b);
    uint64_t start = now_ns();
    gguf *g = NULL;
    errmsg e = {0};
    assert_int_equal(gguf_open_fds(&g, &fd, 1, &e), ST_OK);
    printf("# 2 x 262144 strings walked in %.1f ms\n", (double)(now_ns() - start) / 1e6);
    gguf_str *s = NULL;
    uint64_t n = 0;
    assert_int_equal(gguf_array_str(g, "tokens", N, &s, &n, &e), ST_OK);
    for (unsigned i = 0; i < N; i++) {
        assert_true(s[i].bytes == strlen(text[i]) && memcmp(s[i].text, text[i], s[i].bytes) == 0);
    }
    free(s);
    free(list);
    free(text);
    gguf_close(g);
}

static void changed_files(void **state)
{
    (void)state;
    gguf_build *b = gguf_small();
    static const float x[1000];
    gguf_build_array(b, "x", B_F32, x, 1000, 4);
    gguf *g = gguf_opened(b);
    errmsg e = {0};
    float *f = NULL;
    uint64_t n = 0;
    assert_int_equal(gguf_unchanged(g, &e), ST_OK);
    struct timespec later[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(futimens(gguf_fd(g, 0), later), 0);
    assert_int_equal(gguf_unchanged(g, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "changed since it was opened"));
    assert_int_equal(ftruncate(gguf_fd(g, 0), 1000), 0);
    e = (errmsg){0};
    assert_int_equal(gguf_unchanged(g, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "1000 now"));
    e = (errmsg){0};
    assert_int_equal(gguf_array_f32(g, "x", 1000, &f, &n, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "cut short while it was read: x"));
    e = (errmsg){0};
    assert_int_equal(gguf_tensor_read(g, gguf_tensor_at(g, 0), &n, 8, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "tensor a"));
    gguf_close(g);
}

/* Lengths inside a string array that were right when it was opened. */
static void changed_strings(void **state)
{
    (void)state;
    gguf *g = gguf_opened(gguf_small());
    uint8_t bytes[512];
    ssize_t n_read = pread(gguf_fd(g, 0), bytes, sizeof bytes, 0);
    uint8_t *one = memmem(bytes, (size_t)n_read, "one", 3);
    assert_non_null(one);
    uint8_t large = 200;
    assert_int_equal(pwrite(gguf_fd(g, 0), &large, 1, one - bytes - 8), 1);
    gguf_str *s = NULL;
    uint64_t n = 0;
    errmsg e = {0};
    assert_int_equal(gguf_array_str(g, "words", 0, &s, &n, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "changed since it was opened: key words, entry 0"));
    gguf_close(g);
}

static void paths(void **state)
{
    (void)state;
    char dir[] = "/tmp/gguf_test.XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    gguf *g = NULL;
    errmsg e = {0};
    snprintf(path, sizeof path, "%s/none.gguf", dir);
    assert_int_equal(gguf_open(&g, path, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "none.gguf: cannot be opened: No such file"));
    e = (errmsg){0};
    assert_int_equal(gguf_open(&g, dir, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "not a regular file"));
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    e = (errmsg){0};
    assert_int_equal(gguf_open(&g, path, &e), ST_BAD_MODEL); /* and does not wait for a writer */
    assert_non_null(strstr(e.text, "fifo: not a regular file"));
    unlink(path);
    gguf_build *b = gguf_small();
    snprintf(path, sizeof path, "%s/%0200d.gguf", dir,
             1); /* of a long path, messages show the end */
    gguf_build_file(b, path);
    gguf_build_free(b);
    e = (errmsg){0};
    assert_int_equal(gguf_open(&g, path, &e), ST_OK);
    assert_non_null(strstr(gguf_file_name(g, 0), "...00"));
    assert_non_null(strstr(gguf_file_name(g, 0), "1.gguf"));
    gguf_close(g);
    unlink(path);
    rmdir(dir);
}

static unsigned n_descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void descriptors_are_owned(void **state)
{
    (void)state;
    unsigned before = n_descriptors();
    gguf *g = gguf_opened(gguf_small());
    gguf_close(g);
    gguf_build *b = gguf_small();
    b->version = 9;
    gguf_assert_refused(b, "version 9", "");
    int fds[65];
    for (int i = 0; i < 65; i++)
        fds[i] = bytes_fd((const uint8_t *)"x", 1);
    errmsg e = {0};
    assert_int_equal(gguf_open_fds(&g, fds, 65, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "65 files, must be 1 to 64"));
    e = (errmsg){0};
    assert_int_equal(gguf_open_fds(&g, NULL, 0, &e), ST_BAD_MODEL);
    assert_int_equal(n_descriptors(), before);
    gguf_close(NULL);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_and_tensors),
        cmocka_unit_test(scalars),
        cmocka_unit_test(arrays),
        cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(changed_files),
        cmocka_unit_test(changed_strings),
        cmocka_unit_test(paths),
        cmocka_unit_test(descriptors_are_owned),
    };
    return cmocka_run_group_tests_name("gguf_read", tests, NULL, NULL);
}
