/* options_test.c - the command line: every type with its borders and refusals, who wins over whom,
 * doors as flags. */
#include "coordinator/commands/options.h"
#include "tests/support/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool flag;
static const char *text;
static uint32_t u32;
static int64_t i64;
static uint64_t u64;
static float f32;

static const option own[] = {
    {"flag", 0, OPTION_FLAG, NULL, "a flag", &flag, 0, 0},
    {"text", 't', OPTION_TEXT, "T", "a text", &text, 0, 0},
    {"count", 'c', OPTION_U32, "N", "a count", &u32, 2, 9},
    {"any", 0, OPTION_U32, "N", "any count", &u32, 0, 0},
    {"number", 'n', OPTION_I64, "N", "a number", &i64, -1, (double)INT64_MAX},
    {"wide", 0, OPTION_I64, "N", "any number", &i64, 0, 0},
    {"big", 0, OPTION_U64, "N", "a big one", &u64, 0, 0},
    {"real", 0, OPTION_F32, "X", "a real one", &f32, -2, 2},
    {"free", 0, OPTION_F32, "X", "any real one", &f32, 0, 0},
    {"over", 0, OPTION_F32_OVER, "X", "a real one over 0", &f32, 0, 1},
    {"under", 0, OPTION_F32_UNDER, "X", "a real one under 1", &f32, 0, 1},
};
#define N_OWN    ((uint32_t)(sizeof own / sizeof own[0]))
#define ARGS_MAX 16

static common_options got;
static errmsg e;
static const char *positional[2];
static uint32_t n_positional;

/* Parse the words of one line, separated by spaces; "''" stands for an empty one. */
static status parse(const char *line)
{
    static char words[512];
    char *argv[ARGS_MAX + 2] = {(char *)"command"};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w != NULL && argc <= ARGS_MAX; w = strtok(NULL, " ")) {
        argv[argc++] = strcmp(w, "''") == 0 ? w + 2 : w;
    }
    flag = false;
    text = NULL;
    u32 = 0;
    i64 = 0;
    u64 = 0;
    f32 = 0;
    errmsg_clear(&e);
    return options_parse(argc, argv, own, N_OWN, &got, positional, 2, &n_positional, &e);
}

/* The line is refused with the code, and the message has each of the parts, joined by '|'. */
static void refused(const char *line, status code, const char *parts)
{
    char copy[256];
    assert_int_equal(parse(line), code);
    assert_int_equal(e.code, code);
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *p = strtok(copy, "|"); p != NULL; p = strtok(NULL, "|")) {
        if (strstr(e.text, p) == NULL) fail_msg("'%s' is not in: %s", p, e.text);
    }
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(""), ST_OK);
    assert_false(got.help);
    assert_false(got.json);
    assert_int_equal(got.doors.n_stages, 1);
    assert_int_equal(got.plan.kv_type, DT_F16);
    assert_int_equal(got.plan.n_ctx, 0);
    assert_int_equal(got.plan.n_sessions, 0);
    assert_int_equal(got.n_threads, 0);
    assert_null(got.isa);
    assert_int_equal(got.log_level, LOG_INFO);
    pipeline_options o = options_pipeline(&got);
    assert_int_equal(o.start_timeout_ms, 30000);
    assert_int_equal(o.hang_timeout_ms, 5000);
    assert_ptr_equal(o.doors, &got.doors);
}

static void test_values(void **state)
{
    (void)state;
    assert_int_equal(parse("--flag --text x --count 2 --number -1 --big 18446744073709551615"),
                     ST_OK);
    assert_true(flag);
    assert_string_equal(text, "x");
    assert_int_equal(u32, 2);
    assert_int_equal(i64, -1);
    assert_true(u64 == UINT64_MAX);
    assert_int_equal(parse("--text=a=b --count=9 --number=1000000000000000000"), ST_OK);
    assert_string_equal(text, "a=b");
    assert_int_equal(u32, 9);
    assert_true(i64 == 1000000000000000000);
    assert_int_equal(parse("-t --flag -c 003 -n 9223372036854775807"), ST_OK);
    assert_string_equal(text,
                        "--flag"); /* the argument after is the value, whatever it looks like */
    assert_false(flag);
    assert_int_equal(u32, 3);
    assert_true(i64 == INT64_MAX);
    assert_int_equal(parse("--text= --wide -9223372036854775807"), ST_OK);
    assert_string_equal(text, "");
    assert_true(i64 == -INT64_MAX);
    assert_int_equal(parse("--any 4294967295"), ST_OK);
    assert_true(u32 == UINT32_MAX);
}

static void test_reals(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        float value;
    } good[] = {{"--real 0", 0},     {"--real 1.5", 1.5f}, {"--real .5", 0.5f},
                {"--real 2.", 2},    {"--real -2", -2},    {"--real 1e-1", 0.1f},
                {"--real 1E0", 1},   {"--real 5e-46", 0},  {"--free 1e+30", 1e30f},
                {"--over 1", 1},     {"--over 1e-45", 1e-45f}, {"--under 0", 0},
                {"--under 0.99", 0.99f},
                {"--free -0", -0.0f}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(parse(good[i].line), ST_OK);
        assert_true(f32 == good[i].value);
    }
    static const char *const bad[] = {"nan", "inf", "-inf", "0x1p3", "1.5x", "",     "-", ".",
                                      "1e",  "1e+", "+1",   "1,5",   "--1",  "1..5", "e5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--free=%s", bad[i]);
        refused(line, ST_USAGE, "--free=|is not a decimal number|rule: a decimal number");
    }
    refused("--over 0", ST_USAGE, "--over=\"0\"|out of range|a decimal number over 0, at most 1");
    refused("--over 1e-50", ST_USAGE, "out of range|over 0"); /* 0, rounded */
    refused("--over 1.001", ST_USAGE, "out of range|over 0, at most 1");
    refused("--under 1", ST_USAGE, "--under=\"1\"|out of range|a decimal number from 0, under 1");
    refused("--under -0.1", ST_USAGE, "out of range|from 0, under 1");
    refused("--real 2.001", ST_USAGE, "--real=\"2.001\"|out of range|from -2 to 2");
    refused("--free 1e39", ST_USAGE, "too big");
}

static void test_numbers_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "5x", "1.5", "+5", "0x10", "5e3", "a", "-", "--5", "5-"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--number=%s", bad[i]);
        refused(line, ST_USAGE,
                "--number=|not a whole number|rule: a whole decimal number, -1 or more");
        snprintf(line, sizeof line, "--big=%s", bad[i]);
        refused(line, ST_USAGE, "--big=|not a whole number");
        snprintf(line, sizeof line, "--count=%s", bad[i]);
        refused(line, ST_USAGE,
                "--count=|not a whole number|rule: a whole decimal number from 2 to 9");
    }
    refused("-n -2", ST_USAGE, "-n=\"-2\"|out of range");
    refused("-n 9223372036854775808", ST_USAGE, "too big");
    refused("-n -9223372036854775809", ST_USAGE, "too big");
    refused("--big -1", ST_USAGE, "not a whole number");
    refused("--big 18446744073709551616", ST_USAGE, "too big");
    refused("--any 4294967296", ST_USAGE, "too big");
    refused("-c 1", ST_USAGE, "-c=\"1\"|out of range");
    refused("-c 10", ST_USAGE, "out of range");
    char *spaced[] = {(char *)"command", (char *)"-n", (char *)" 5"};
    errmsg_clear(&e);
    assert_int_equal(options_parse(3, spaced, own, N_OWN, &got, NULL, 0, NULL, &e), ST_USAGE);
}

static void test_line(void **state)
{
    (void)state;
    assert_int_equal(parse("--count 3 --count 4 -t a -t b"), ST_OK); /* the last one counts */
    assert_int_equal(u32, 4);
    assert_string_equal(text, "b");
    assert_int_equal(parse("one --flag - "), ST_OK);
    assert_int_equal(n_positional, 2);
    assert_string_equal(positional[0], "one");
    assert_string_equal(positional[1], "-");
    assert_int_equal(parse("-- --flag -x"), ST_OK);
    assert_int_equal(n_positional, 2);
    assert_string_equal(positional[1], "-x");
    assert_false(flag);
    refused("one two three", ST_USAGE, "unexpected argument|\"three\"");
    refused("--frob", ST_USAGE, "unknown option|\"--frob\"");
    refused("--frob=3", ST_USAGE, "unknown option");
    refused("-x", ST_USAGE, "unknown option");
    refused("-n5", ST_USAGE, "unknown option|two arguments");
    refused("--coun 3", ST_USAGE, "unknown option"); /* no abbreviations */
    refused("--=3", ST_USAGE, "unknown option");
    refused("--flag=1", ST_USAGE, "--flag takes no value");
    refused("--flag --text", ST_USAGE, "--text needs a value");
    refused("-n", ST_USAGE, "-n needs a value");
    refused("--stages", ST_USAGE, "--stages needs a value");
    /* More than a name can be long, and bytes that would break the line. */
    refused(
        "--"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ST_USAGE, "unknown option|bytes");
    refused("--text a\nb --fr\nob", ST_USAGE, "unknown option|\\x0a");
    assert_null(strchr(e.text, '\n'));
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(parse("--flag --help --frob"), ST_OK); /* what follows is left unread */
    assert_true(got.help);
    assert_int_equal(parse("-h"), ST_OK);
    assert_true(got.help);
    setenv("MEMRA_PP_STAGES", "x", 1);
    assert_int_equal(parse("--help"), ST_OK); /* a bad door does not hide it */
    unsetenv("MEMRA_PP_STAGES");
    assert_int_equal(parse("-t --help"), ST_OK);
    assert_false(got.help);
}

static void test_shared(void **state)
{
    (void)state;
    assert_int_equal(
        parse("-m f.gguf --ctx 100 --sessions 3 --kv-bytes 4096 --kv-type bf16 --threads 2 "
              "--isa avx2 --run-dir /r"),
        ST_OK);
    assert_string_equal(got.model, "f.gguf");
    assert_false(got.model_is_demo);
    assert_int_equal(got.plan.n_ctx, 100);
    assert_int_equal(got.plan.n_sessions, 3);
    assert_int_equal(got.plan.kv_bytes, 4096);
    assert_int_equal(got.plan.kv_type, DT_BF16);
    pipeline_options o = options_pipeline(&got);
    assert_int_equal(o.n_threads, 2);
    assert_string_equal(o.isa, "avx2");
    assert_string_equal(o.run_dir, "/r");
    assert_string_equal(o.model_path, "f.gguf");
    assert_int_equal(o.plan.n_ctx, 100);
    assert_int_equal(parse("--start-timeout 1.5 --hang-timeout 0.25 --stage-program s --json"),
                     ST_OK);
    o = options_pipeline(&got);
    assert_int_equal(o.start_timeout_ms, 1500);
    assert_int_equal(o.hang_timeout_ms, 250);
    assert_string_equal(o.stage_program, "s");
    assert_int_equal(options_no_json(&got, "tokenize", &e), ST_USAGE);
    refused("--kv-type f64", ST_USAGE, "--kv-type=\"f64\"|rule: f32, f16 or bf16");
    refused("--kv-type=", ST_USAGE, "--kv-type");
    refused("--isa AVX2", ST_USAGE, "--isa=\"AVX2\"|rule");
    refused("--log-level loud", ST_USAGE, "--log-level=\"loud\"|rule");
    refused("--ctx 0", ST_USAGE, "--ctx=\"0\"|out of range");
    refused("--sessions 0", ST_USAGE, "out of range");
    refused("--kv-bytes 0", ST_USAGE, "out of range");
    refused("--threads 257", ST_USAGE, "from 0 to 256");
    refused("--start-timeout 0", ST_USAGE, "out of range");
    refused("--hang-timeout 1e9", ST_USAGE, "out of range");
    refused("-m ''", ST_USAGE, "-m needs a name");
    refused("--run-dir=", ST_USAGE, "--run-dir needs a name");
    refused("--log-file /nonexistent/folder/log", ST_RESOURCES, "--log-file|No such file");
}

static void test_own_wins(void **state)
{
    (void)state;
    const char *model = NULL;
    const option mine[] = {{"prompts", 'm', OPTION_TEXT, "T", "", &model, 0, 0},
                           {"ctx", 0, OPTION_TEXT, "T", "", &text, 0, 0}};
    char *argv[] = {(char *)"command", (char *)"-m", (char *)"x", (char *)"--ctx", (char *)"word"};
    assert_int_equal(options_parse(5, argv, mine, 2, &got, NULL, 0, NULL, &e), ST_OK);
    assert_string_equal(model, "x");
    assert_string_equal(text, "word");
    assert_int_equal(got.plan.n_ctx, 0);
}

static void test_doors(void **state)
{
    (void)state;
    assert_int_equal(parse("--stages 3 --splits 1,2 --prime-chunk 7"), ST_OK);
    assert_int_equal(got.doors.n_stages, 3);
    assert_int_equal(got.doors.cut[1], 2);
    assert_int_equal(got.doors.step.prime_chunk, 7);
    setenv("MEMRA_PP_STAGES", "4", 1);
    assert_int_equal(parse(""), ST_OK);
    assert_int_equal(got.doors.n_stages, 4);
    assert_int_equal(parse("--stages=2"), ST_OK); /* the flag wins */
    assert_int_equal(got.doors.n_stages, 2);
    assert_int_equal(parse("--stages="), ST_OK); /* empty: the default */
    assert_int_equal(got.doors.n_stages, 1);
    setenv("MEMRA_PP_STAGES", "+4", 1);
    refused("", ST_BAD_DOOR, "MEMRA_PP_STAGES=\"+4\"|rule");
    assert_int_equal(parse("--stages 2"), ST_OK);
    unsetenv("MEMRA_PP_STAGES");
    refused("--stages 2x", ST_BAD_DOOR, "--stages=\"2x\"|rule");
    refused("--stages 3 --splits 2,1", ST_BAD_DOOR, "--splits=\"2,1\"");
    refused("--stages 2x -n 5x", ST_USAGE, "-n=\"5x\""); /* an option's own fault comes first */
}

static void test_model(void **state)
{
    (void)state;
    common_options none = {0};
    errmsg_clear(&e);
    assert_int_equal(options_model(&none, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "-m FILE"));
    none.model = "x";
    assert_int_equal(options_model(&none, &e), ST_OK);
}

static void test_failed(void **state)
{
    (void)state;
    const errmsg gone = {.code = ST_CLOSED}, asked = {.code = ST_INTERRUPTED};
    assert_int_equal(command_failed(&gone), 141);
    assert_int_equal(command_failed(&asked), 130);
    interrupted = 15;
    assert_int_equal(command_failed(&asked), 143);
    interrupted = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_values),
        cmocka_unit_test(test_reals),    cmocka_unit_test(test_numbers_refused),
        cmocka_unit_test(test_line),     cmocka_unit_test(test_help),
        cmocka_unit_test(test_shared),   cmocka_unit_test(test_own_wins),
        cmocka_unit_test(test_doors),    cmocka_unit_test(test_model),
        cmocka_unit_test(test_failed),
    };
    tap_begin(60);
    uint32_t n_doors;
    const door_info *door = doors_table(&n_doors);
    for (uint32_t i = 0; i < n_doors; i++)
        unsetenv(door[i].variable);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
