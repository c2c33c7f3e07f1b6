/* command_files_test.c - the small readers and writers that commands are made of: the demo model's
 * place, files that are whole or not there, token lists, byte counts. */
#include "coordinator/commands/demo.h"
#include "coordinator/commands/outfile.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/tokenlist.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static errmsg e;
static char folder[] = "/tmp/memra-options-XXXXXX";

static const char *below(const char *name)
{
    static char path[4][256];
    static uint32_t next;
    char *out = path[next++ % 4];
    snprintf(out, 256, "%s/%s", folder, name);
    return out;
}

static void put_file(const char *name, const char *content)
{
    FILE *f = fopen(below(name), "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static void test_demo(void **state)
{
    (void)state;
    char out[512];
    static const char *const folders[] = {"tree",
                                          "tree/launch",
                                          "tree/launch/demo",
                                          "tree/build",
                                          "tree/build/x",
                                          "tree/build/x/bin",
                                          "usr",
                                          "usr/bin",
                                          "usr/share",
                                          "usr/share/memra-pp"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        mkdir(below(folders[i]), 0700);
    assert_null(demo_path_near(below("tree/build/x/bin"), out, sizeof out));
    assert_null(demo_path_near(below("usr/bin"), out, sizeof out));
    put_file("tree/launch/demo/demo.gguf", "");
    put_file("usr/share/memra-pp/demo.gguf", "");
    assert_string_equal(demo_path_near(below("tree/build/x/bin"), out, sizeof out),
                        below("tree/launch/demo/demo.gguf"));
    assert_string_equal(demo_path_near(below("usr/bin"), out, sizeof out),
                        below("usr/share/memra-pp/demo.gguf"));
    assert_null(demo_path_near(below("usr/bin"), out, 8)); /* no room */
    assert_null(demo_path_near("/bin", out, sizeof out));
    assert_null(demo_path_near("bin", out, sizeof out));
    assert_null(demo_path_near("", out, sizeof out));
}

static void test_outfile(void **state)
{
    (void)state;
    outfile f;
    struct stat st;
    errmsg_clear(&e);
    put_file("old", "old");
    assert_int_equal(outfile_open(&f, below("old"), &e), ST_OK);
    assert_int_equal(outfile_write(&f, "new text", 8, &e), ST_OK);
    assert_int_equal(stat(below("old"), &st), 0);
    assert_int_equal(st.st_size, 3); /* untouched until it is whole */
    outfile_close(&f);
    assert_int_equal(stat(below("old"), &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(symlink("old", below("link")), 0);
    assert_int_equal(outfile_open(&f, below("link"), &e), ST_OK);
    assert_int_equal(outfile_write(&f, "new text", 8, &e), ST_OK);
    assert_int_equal(outfile_commit(&f, &e), ST_OK);
    assert_int_equal(stat(below("old"), &st), 0);
    assert_int_equal(st.st_size, 8);
    assert_int_equal(lstat(below("link"), &st), 0);
    assert_true(S_ISLNK(st.st_mode)); /* the link still is one */
    assert_int_equal(outfile_open(&f, below("never"), &e), ST_OK);
    outfile_close(&f);
    assert_int_equal(access(below("never"), F_OK), -1);
    assert_int_equal(outfile_open(&f, "/dev/null", &e),
                     ST_OK); /* no regular file: written as it is */
    assert_int_equal(outfile_write(&f, "x", 1, &e), ST_OK);
    assert_int_equal(outfile_commit(&f, &e), ST_OK);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    assert_int_equal(outfile_open(&f, below("no/such/folder"), &e), ST_RESOURCES);
    errmsg_clear(&e);
    assert_int_equal(outfile_open(&f, folder, &e), ST_RESOURCES);
    errmsg_clear(&e);
    assert_int_equal(outfile_open(&f, "", &e), ST_USAGE);
}

static void test_tokenlist(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n, token[4];
    } good[] = {{"1", 1, {1}},
                {"1,5,9", 3, {1, 5, 9}},
                {"1 5\n9\n", 3, {1, 5, 9}},
                {" 4294967295 , 0 ", 2, {UINT32_MAX, 0}},
                {"007", 1, {7}}};
    uint32_t *tokens;
    uint64_t n;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        errmsg_clear(&e);
        assert_int_equal(
            tokenlist_parse("--tokens", good[i].text, strlen(good[i].text), &tokens, &n, &e),
            ST_OK);
        assert_int_equal(n, good[i].n);
        assert_memory_equal(tokens, good[i].token, n * sizeof *tokens);
        free(tokens);
    }
    static const char *const bad[] = {"",   " ",   ",", "1,",         ",1",    "1,,2", "1;2",
                                      "-1", "1.5", "x", "4294967296", "1, ,2", "0x1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        errmsg_clear(&e);
        assert_int_equal(tokenlist_parse("--tokens", bad[i], strlen(bad[i]), &tokens, &n, &e),
                         ST_USAGE);
        assert_null(tokens);
        assert_non_null(strstr(e.text, "--tokens"));
    }
    errmsg_clear(&e);
    assert_int_equal(tokenlist_parse("--tokens", "1\0002", 3, &tokens, &n, &e), ST_USAGE);
    const uint32_t list[] = {0, 511, 512};
    errmsg_clear(&e);
    assert_int_equal(tokenlist_check("--tokens", list, 2, 512, &e), ST_OK);
    assert_int_equal(tokenlist_check("--tokens", list, 3, 512, &e), ST_USAGE);
    assert_non_null(strstr(e.text, "token 512 in place 3"));
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_outfile),
        cmocka_unit_test(test_tokenlist),
    };
    tap_begin(60);
    if (mkdtemp(folder) == NULL) return 1;
    return cmocka_run_group_tests(tests, NULL, remove_folder);
}
