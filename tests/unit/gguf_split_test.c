/* gguf_split_test.c - models in several files: found from any of them, refused when one is wrong.
 */
#include "common/gguf.h"
#include "tests/support/gguf_build.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARTS 3u

typedef struct {
    char dir[32];
    gguf_build *whole, *part[PARTS];
} parts;

static void path_of(const parts *p, unsigned no, char path[96])
{
    snprintf(path, 96, "%s/model-%05u-of-%05u.gguf", p->dir, no, PARTS);
}

static void write_parts(const parts *p)
{
    char path[96];
    for (unsigned i = 0; i < PARTS; i++) {
        path_of(p, i + 1, path);
        gguf_build_file(p->part[i], path);
    }
}

static int setup(void **state)
{
    parts *p = calloc(1, sizeof *p);
    llama_spec spec = llama_spec_default();
    p->whole = gguf_build_llama(&spec);
    strcpy(p->dir, "/tmp/gguf_split.XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    uint64_t at[PARTS + 1] = {0, 5, 6, p->whole->n_tensors};
    for (unsigned i = 0; i < PARTS; i++) {
        p->part[i] = gguf_build_part(p->whole, i, PARTS, at[i], at[i + 1]);
    }
    write_parts(p);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    parts *p = *state;
    char path[96];
    for (unsigned i = 0; i < PARTS; i++) {
        path_of(p, i + 1, path);
        unlink(path);
        gguf_build_free(p->part[i]);
    }
    rmdir(p->dir);
    gguf_build_free(p->whole);
    free(p);
    return 0;
}

/* Opening part no (from 1) must be refused with a line that holds both texts. */
static void assert_refused(const parts *p, unsigned no, const char *one, const char *two)
{
    char path[96];
    path_of(p, no, path);
    gguf *g = NULL;
    errmsg e = {0};
    status s = gguf_open(&g, path, &e);
    if (s != ST_BAD_MODEL) fail_msg("status %s, expected '%s'", status_word(s), one);
    assert_null(g);
    if (strstr(e.text, one) == NULL || strstr(e.text, two) == NULL) {
        fail_msg("'%s' does not say '%s' and '%s'", e.text, one, two);
    }
}

static void assert_same_model(const parts *p, const gguf *g)
{
    assert_int_equal(gguf_n_files(g), PARTS);
    assert_int_equal(gguf_n_tensors(g), p->whole->n_tensors);
    uint32_t n = 0;
    assert_true(gguf_u32(g, "llama.block_count", &n) && n == 3);
    assert_true(gguf_u32(g, "split.no", &n) && n == 0);
    for (uint64_t i = 0; i < p->whole->n_tensors; i++) {
        const built_tensor *b = &p->whole->tensor[i];
        const gguf_tensor *t = gguf_tensor_at(g, i);
        assert_string_equal(t->name, b->name);
        assert_int_equal(t->file_i, i < 5 ? 0 : i < 6 ? 1 : 2);
        assert_int_equal(t->bytes, b->bytes);
        uint8_t *data = malloc(t->bytes);
        errmsg e = {0};
        assert_int_equal(gguf_tensor_read(g, t, data, t->bytes, &e), ST_OK);
        assert_memory_equal(data, b->data, b->bytes);
        free(data);
    }
}

static void any_part_opens_all(void **state)
{
    const parts *p = *state;
    for (unsigned no = 1; no <= PARTS; no++) {
        char path[96];
        path_of(p, no, path);
        gguf *g = NULL;
        errmsg e = {0};
        if (gguf_open(&g, path, &e) != ST_OK) fail_msg("part %u: %s", no, e.text);
        assert_same_model(p, g);
        gguf_close(g);
    }
}

static void a_relative_path(void **state)
{
    const parts *p = *state;
    char *back = getcwd(NULL, 0);
    assert_int_equal(chdir(p->dir), 0);
    gguf *g = NULL;
    errmsg e = {0};
    assert_int_equal(gguf_open(&g, "model-00002-of-00003.gguf", &e), ST_OK);
    assert_same_model(p, g);
    gguf_close(g);
    assert_int_equal(chdir(back), 0);
    free(back);
}

static void descriptors_in_order(void **state)
{
    const parts *p = *state;
    gguf *g = NULL;
    errmsg e = {0};
    int fds[PARTS];
    for (unsigned i = 0; i < PARTS; i++)
        fds[i] = gguf_build_fd(p->part[i]);
    assert_int_equal(gguf_open_fds(&g, fds, PARTS, &e), ST_OK);
    assert_same_model(p, g);
    gguf_close(g);
    for (unsigned i = 0; i < PARTS; i++)
        fds[i] = gguf_build_fd(p->part[PARTS - 1 - i]);
    assert_int_equal(gguf_open_fds(&g, fds, PARTS, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "should be part 1 of 3, its metadata says part 3 (split.no 2)"));
    for (unsigned i = 0; i < 2; i++)
        fds[i] = gguf_build_fd(p->part[i]);
    e = (errmsg){0};
    assert_int_equal(gguf_open_fds(&g, fds, 2, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "part 1 of 2, its metadata says it is one of 3 (split.count)"));
}

static void a_part_is_missing(void **state)
{
    const parts *p = *state;
    for (unsigned missing = 1; missing <= PARTS; missing++) {
        char path[96], says[64];
        path_of(p, missing, path);
        unlink(path);
        snprintf(says, sizeof says, "-%05u-of-00003.gguf: part %u of 3 is missing", missing,
                 missing);
        for (unsigned no = 1; no <= PARTS; no++) {
            if (no != missing) assert_refused(p, no, says, "No such file");
        }
        assert_refused(p, missing, "cannot be opened", "No such file");
        write_parts(p);
    }
}

static void parts_are_swapped(void **state)
{
    const parts *p = *state;
    char two[96], three[96];
    path_of(p, 2, two);
    path_of(p, 3, three);
    gguf_build_file(p->part[2], two);
    gguf_build_file(p->part[1], three);
    assert_refused(p, 1, "-00002-of-00003.gguf: should be part 2 of 3",
                   "its metadata says part 3 (split.no 2): renamed or swapped");
    assert_refused(p, 2, "its name says part 2 of 3, its metadata part 3 of 3 (split.no 2)",
                   "swapped");
    assert_refused(p, 3, "its name says part 3 of 3, its metadata part 2 of 3 (split.no 1)",
                   "swapped");
    gguf_build_file(p->part[0], two); /* the first twice */
    assert_refused(p, 1, "-00002-of-00003.gguf: should be part 2", "says part 1 (split.no 0)");
}

static void append(const char *to, const gguf_build *b)
{
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(b, &n);
    FILE *f = fopen(to, "ab");
    assert_true(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    free(bytes);
}

static void parts_are_joined(void **state)
{
    const parts *p = *state;
    char path[96];
    path_of(p, 1, path);
    append(path, p->part[1]);
    assert_refused(p, 1, "-00001-of-00003.gguf: a second GGUF file begins at offset", "joined");
    assert_refused(p, 2, "-00001-of-00003.gguf: a second GGUF file begins at offset", "joined");
    append(path, p->part[2]);
    assert_refused(p, 1, "a second GGUF file begins at offset", "joined");
}

static void another_name(void **state)
{
    const parts *p = *state;
    char path[96];
    snprintf(path, sizeof path, "%s/model.gguf", p->dir);
    gguf_build_file(p->part[1], path);
    gguf *g = NULL;
    errmsg e = {0};
    assert_int_equal(gguf_open(&g, path, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "is part 2 of 3 (split.no 1), so its name must end in "
                                   "-00002-of-00003.gguf"));
    unlink(path);
    snprintf(path, sizeof path, "%s/model-00002-of-00004.gguf", p->dir);
    gguf_build_file(p->part[1], path);
    e = (errmsg){0};
    assert_int_equal(gguf_open(&g, path, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "its name says part 2 of 4, its metadata part 2 of 3"));
    unlink(path);
}

/* Spoil part i in memory, write it, and put it right again. */
static void spoiled(const parts *p, unsigned i, const char *key, uint32_t kind, uint64_t value,
                    unsigned open_no, const char *one, const char *two)
{
    gguf_build *b = gguf_build_part(p->whole, i, PARTS,
                                    i == 0   ? 0
                                    : i == 1 ? 5
                                             : 6,
                                    i == 0   ? 5
                                    : i == 1 ? 6
                                             : p->whole->n_tensors);
    char path[96];
    path_of(p, i + 1, path);
    if (kind == B_ARRAY)
        gguf_build_unset(b, key);
    else if (kind == B_STRING)
        gguf_build_str(b, key, "3");
    else
        gguf_build_scalar(b, key, kind, value);
    gguf_build_file(b, path);
    assert_refused(p, open_no, one, two);
    gguf_build_file(p->part[i], path);
    gguf_build_free(b);
}

static void wrong_split_keys(void **state)
{
    const parts *p = *state;
    spoiled(p, 0, "split.count", B_STRING, 0, 1, "key split.count (string)", "not a number");
    spoiled(p, 0, "split.no", B_I32, UINT32_MAX, 1, "key split.no (i32)", "not a number");
    spoiled(p, 0, "split.no", B_U16, 3, 1, "key split.no is 3", "less than split.count, 3");
    spoiled(p, 0, "split.no", B_ARRAY, 0, 1, "split.count is 3 but split.no is missing", "00001");
    spoiled(p, 2, "split.count", B_ARRAY, 0, 3, "split.no is 2 but split.count is missing",
            "00003");
    spoiled(p, 0, "split.count", B_U16, 65, 1, "key split.count is 65", "limit of 64 parts");
    spoiled(p, 1, "split.count", B_U16, 4, 1, "should be part 2 of 3", "one of 4 (split.count)");
    spoiled(p, 1, "split.count", B_U16, 1, 1, "key split.no is 1, must be less than split.count, 1",
            "00002");
    spoiled(p, 1, "split.count", B_U16, 0, 1, "should be part 2 of 3", "one of 1 (split.count)");
    spoiled(p, 1, "split.tensors.count", B_I32, 31, 1,
            "split.tensors.count is 31, the 3 parts hold", "30 tensors");
}

static void a_part_is_something_else(void **state)
{
    const parts *p = *state;
    char path[96];
    path_of(p, 3, path);
    FILE *f = fopen(path, "wb");
    assert_true(f != NULL && fputs("<html>404</html>", f) >= 0 && fclose(f) == 0);
    assert_refused(p, 1, "-00003-of-00003.gguf: not a GGUF file", "3c 68 74 6d");
    /* Cut short: the part is named, not the first one. */
    uint64_t n = 0;
    uint8_t *bytes = gguf_build_bytes(p->part[2], &n);
    f = fopen(path, "wb");
    assert_true(f != NULL && fwrite(bytes, 1, n / 2, f) == n / 2 && fclose(f) == 0);
    free(bytes);
    assert_refused(p, 2, "-00003-of-00003.gguf: tensor", "cut short");
    /* A whole model in the place of a part; a tensor that another part has, too. */
    gguf_build_file(p->whole, path);
    assert_refused(p, 1, "-00003-of-00003.gguf: should be part 3 of 3", "one of 1 (split.count)");
    gguf_build *b = gguf_build_part(p->whole, 2, PARTS, 5, p->whole->n_tensors - 1);
    gguf_build_file(b, path);
    gguf_build_free(b);
    assert_refused(p, 1, "tensor blk.0.attn_output.weight is there twice", "-0000");
}

static void one_file_that_was_split(void **state)
{
    parts *p = *state;
    char path[96];
    snprintf(path, sizeof path, "%s/merged.gguf", p->dir);
    for (unsigned count = 0; count <= 1; count++) {
        gguf_build_scalar(p->whole, "split.count", B_U16, count);
        gguf_build_scalar(p->whole, "split.no", B_U16, 0);
        gguf_build_scalar(p->whole, "split.tensors.count", B_I32, p->whole->n_tensors);
        gguf_build_file(p->whole, path);
        gguf *g = NULL;
        errmsg e = {0};
        if (gguf_open(&g, path, &e) != ST_OK) fail_msg("%s", e.text);
        assert_int_equal(gguf_n_files(g), 1);
        gguf_close(g);
    }
    unlink(path);
}

static void a_first_part_without_tensors(void **state)
{
    const parts *p = *state;
    gguf_build *part[2] = {gguf_build_part(p->whole, 0, 2, 0, 0),
                           gguf_build_part(p->whole, 1, 2, 0, p->whole->n_tensors)};
    int fds[2] = {gguf_build_fd(part[0]), gguf_build_fd(part[1])};
    gguf *g = NULL;
    errmsg e = {0};
    assert_int_equal(gguf_open_fds(&g, fds, 2, &e), ST_OK);
    assert_int_equal(gguf_tensor_at(g, 0)->file_i, 1);
    gguf_close(g);
    gguf_build_free(part[0]);
    gguf_build_free(part[1]);
}

#define WITH_PARTS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        WITH_PARTS(any_part_opens_all),
        WITH_PARTS(a_relative_path),
        WITH_PARTS(descriptors_in_order),
        WITH_PARTS(a_part_is_missing),
        WITH_PARTS(parts_are_swapped),
        WITH_PARTS(parts_are_joined),
        WITH_PARTS(another_name),
        WITH_PARTS(wrong_split_keys),
        WITH_PARTS(a_part_is_something_else),
        WITH_PARTS(one_file_that_was_split),
        WITH_PARTS(a_first_part_without_tensors),
    };
    return cmocka_run_group_tests_name("gguf_split", tests, NULL, NULL);
}
