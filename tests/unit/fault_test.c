#include "tests/support/tap.h"
#include "common/fault.h"

#include <stdio.h>
#include <string.h>

static fault_list good(const char *text)
{
    fault_list l;
    errmsg e = {0};
    if (fault_parse(&l, text, &e) != ST_OK) fail_msg("refused: %s", e.text);
    return l;
}

static fault one(const char *text)
{
    fault_list l = good(text);
    assert_int_equal(l.n, 1);
    return l.list[0];
}

/* Refused by a line that names the variable, the offending part and part of the reason. */
static void bad(const char *text, const char *value, const char *why)
{
    fault_list l, none = {0};
    errmsg e = {0};
    if (fault_parse(&l, text, &e) != ST_BAD_DOOR) fail_msg("'%s' was not refused", text);
    assert_memory_equal(&l, &none, sizeof l);
    assert_memory_equal(e.text, "MEMRA_PP_FAULT", 14);
    assert_non_null(strstr(e.text, "; rule: entries stage=S|all"));
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\" ", value);
    if (strstr(e.text, quoted) == NULL) fail_msg("no %s in: %s", quoted, e.text);
    if (strstr(e.text, why) == NULL) fail_msg("no '%s' in: %s", why, e.text);
}

static void nothing_is_no_fault(void **state)
{
    (void)state;
    assert_int_equal(good("").n, 0);
    assert_int_equal(good(NULL).n, 0);
}

static void an_entry_has_its_defaults(void **state)
{
    (void)state;
    fault f = one("stage=3,kind=kill");
    assert_int_equal(f.stage, 3);
    assert_int_equal(f.kind, FAULT_KILL);
    assert_int_equal(f.at, FAULT_AT_ANY);
    assert_true(f.step == FAULT_STEP_ANY);
    assert_int_equal(f.slow_ms, 0);
    assert_false(f.every);
}

static void each_key_is_read_in_any_order(void **state)
{
    (void)state;
    fault f = one("every=1,kind=slow:20,step=17,at=decode,stage=all");
    assert_true(f.stage == FAULT_STAGE_ALL);
    assert_int_equal(f.kind, FAULT_SLOW);
    assert_int_equal(f.slow_ms, 20);
    assert_int_equal(f.at, FAULT_AT_DECODE);
    assert_int_equal(f.step, 17);
    assert_true(f.every);
    assert_false(one("stage=0,kind=stop,every=0").every);
}

static void each_kind_is_known(void **state)
{
    (void)state;
    assert_int_equal(one("stage=0,kind=kill").kind, FAULT_KILL);
    assert_int_equal(one("stage=0,kind=stop").kind, FAULT_STOP);
    assert_int_equal(one("stage=0,kind=hang").kind, FAULT_HANG);
    assert_int_equal(one("stage=0,kind=exit").kind, FAULT_EXIT);
    assert_int_equal(one("stage=0,kind=corrupt").kind, FAULT_CORRUPT);
    assert_int_equal(one("stage=0,kind=cuda").kind, FAULT_CUDA);
    assert_int_equal(one("stage=0,kind=oom").kind, FAULT_OOM);
    assert_int_equal(one("stage=0,kind=nan").kind, FAULT_NAN);
    assert_int_equal(one("stage=0,kind=badmsg").kind, FAULT_BADMSG);
    assert_int_equal(one("stage=0,kind=slow:1").slow_ms, 1);
    assert_int_equal(one("stage=0,kind=slow:3600000").slow_ms, FAULT_SLOW_MS_MAX);
    static const char *const wrong[] = {"", "Kill", "kil", "kills", "9", "kill ", "slow", "slow20"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[64];
        snprintf(text, sizeof text, "stage=0,kind=%s", wrong[i]);
        bad(text, wrong[i], "is not a kind");
    }
    static const char *const slow[] = {"slow:",   "slow:0",       "slow:-1",
                                       "slow:1s", "slow:3600001", "slow:99999999999999999999",
                                       "slow: 1"};
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        char text[64];
        snprintf(text, sizeof text, "stage=0,kind=%s", slow[i]);
        bad(text, slow[i], "is not slow:MS");
    }
}

static void kinds_are_refused_where_they_cannot_be(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        bool fits[5];
    } kinds[] = {
        {"kill", {true, true, true, true, true}},   {"cuda", {true, true, true, true, true}},
        {"badmsg", {true, true, true, true, true}}, {"oom", {true, false, false, false, true}},
        {"nan", {false, true, true, false, true}},  {"corrupt", {true, true, true, false, true}}};
    static const char *const why[] = {[3] = "kind=oom: at load or recovery",
                                      [4] = "kind=nan: at prime, decode",
                                      [5] = "kind=corrupt: anywhere but at idle"};
    static const char *const places[] = {"load", "prime", "decode", "idle", "recovery"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char text[64];
        bool anywhere[FAULTS_MAX];
        snprintf(text, sizeof text, "stage=0,kind=%s", kinds[i].kind);
        fault_list any = good(text);
        for (uint32_t at = 0; at < 5; at++) {
            memset(anywhere, 0, sizeof anywhere);
            assert_int_equal(fault_match(&any, anywhere, 0, (fault_at)(FAULT_AT_LOAD + at), 1) !=
                                 NULL,
                             kinds[i].fits[at]);
            snprintf(text, sizeof text, "stage=0,kind=%s,at=%s", kinds[i].kind, places[at]);
            if (kinds[i].fits[at])
                good(text);
            else
                bad(text, text, why[i]);
        }
    }
    /* What it says is what is wrong: a prompt's chunk is a step, and allocates nothing. */
    bad("stage=0,kind=oom,step=3", "stage=0,kind=oom,step=3",
        "names a step, and kind=oom is of load and recovery");
    bad("stage=0,at=prime,kind=oom,step=3", "stage=0,at=prime,kind=oom,step=3",
        "allocates nothing there");
    bad("stage=0,at=idle,kind=kill,step=3", "stage=0,at=idle,kind=kill,step=3",
        "no step is in hand");
}

static void each_place_is_known(void **state)
{
    (void)state;
    assert_int_equal(one("stage=0,kind=kill,at=load").at, FAULT_AT_LOAD);
    assert_int_equal(one("stage=0,kind=kill,at=prime").at, FAULT_AT_PRIME);
    assert_int_equal(one("stage=0,kind=kill,at=decode").at, FAULT_AT_DECODE);
    assert_int_equal(one("stage=0,kind=kill,at=idle").at, FAULT_AT_IDLE);
    assert_int_equal(one("stage=0,kind=kill,at=recovery").at, FAULT_AT_RECOVERY);
    bad("stage=0,kind=kill,at=", "", "is not a place");
    bad("stage=0,kind=kill,at=any", "any", "is not a place");
    bad("stage=0,kind=kill,at=Load", "Load", "is not a place");
}

static void numbers_are_decimal_digits_only(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",    "-1",  "+1",  " 1",  "1 ",
                                        "0x1", "1.0", "one", "All", "1e3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[64];
        snprintf(text, sizeof text, "stage=%s,kind=kill", wrong[i]);
        bad(text, wrong[i], "is not a stage");
        snprintf(text, sizeof text, "stage=0,kind=kill,step=%s", wrong[i]);
        bad(text, wrong[i], "is not a step");
        snprintf(text, sizeof text, "stage=0,kind=kill,every=%s", wrong[i]);
        bad(text, wrong[i], "is not a value of every");
    }
    bad("stage=4294967295,kind=kill", "4294967295", "is not a stage");
    bad("stage=4294967296,kind=kill", "4294967296", "is not a stage");
    bad("stage=0,kind=kill,step=18446744073709551615", "18446744073709551615", "is not a step");
    bad("stage=0,kind=kill,step=18446744073709551616", "18446744073709551616", "is not a step");
    bad("stage=0,kind=kill,every=2", "2", "is not a value of every");
    assert_int_equal(one("stage=007,kind=kill,step=0017").stage, 7);
    assert_int_equal(one("stage=007,kind=kill,step=0017").step, 17);
    assert_true(one("stage=0,kind=kill,step=18446744073709551614").step == UINT64_MAX - 1);
}

static void stage_and_kind_are_required(void **state)
{
    (void)state;
    bad("kind=kill", "kind=kill", "has no stage=");
    bad("stage=0", "stage=0", "has no kind=");
    bad("stage=0,at=load", "stage=0,at=load", "has no kind=");
    bad("stage=0,kind=kill;stage=1", "stage=1", "has no kind=");
}

static void a_step_needs_a_place_with_steps(void **state)
{
    (void)state;
    bad("stage=0,kind=kill,at=load,step=1", "stage=0,kind=kill,at=load,step=1", "never happen");
    bad("stage=0,kind=kill,at=idle,step=1", "stage=0,kind=kill,at=idle,step=1", "never happen");
    one("stage=0,kind=kill,at=prime,step=1");
}

static void malformed_pairs_are_refused(void **state)
{
    (void)state;
    bad("kill", "kill", "is not key=value");
    bad("stage=0,,kind=kill", "", "is not key=value");
    bad("stage=0,kind=kill,", "", "is not key=value");
    bad(",stage=0,kind=kill", "", "is not key=value");
    bad("stage=0,kind=kill;", "", "is not key=value");
    bad(";stage=0,kind=kill", "", "is not key=value");
    bad(" ", " ", "is not key=value");
    bad("stage=0, kind=kill", " kind=kill", "unknown key");
    bad("Stage=0,kind=kill", "Stage=0", "unknown key");
    bad("=0,kind=kill", "=0", "unknown key");
    bad("stage=0,kind=kill,when=1", "when=1", "unknown key");
    bad("stage=0,stage=0,kind=kill", "stage=0", "a second time");
    bad("stage=0,kind=kill,kind=kill", "kind=kill", "a second time");
    bad("stage==0,kind=kill", "=0", "is not a stage");
    bad("stage=0,kind=kill\n", "kill\\x0a", "is not a kind");
}

static void lists_and_texts_have_bounds(void **state)
{
    (void)state;
    char text[1024] = "stage=0,kind=kill";
    for (uint32_t i = 1; i < FAULTS_MAX; i++)
        strcat(text, ";stage=0,kind=kill");
    assert_int_equal(good(text).n, FAULTS_MAX);
    strcat(text, ";stage=9,kind=kill");
    bad(text, "stage=9,kind=kill", "at most 16");

    char zeros[FAULT_TEXT_BYTES_MAX + 2] = "kind=kill,stage=";
    memset(zeros + 16, '0', sizeof zeros - 17);
    zeros[FAULT_TEXT_BYTES_MAX] = '\0';
    assert_int_equal(one(zeros).stage, 0);
    zeros[FAULT_TEXT_BYTES_MAX] = '0';
    zeros[FAULT_TEXT_BYTES_MAX + 1] = '\0';
    fault_list l;
    errmsg e = {0};
    assert_int_equal(fault_parse(&l, zeros, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "(512 bytes) is longer than 511 bytes"));
}

static void a_flag_is_named_when_it_is_one(void **state)
{
    (void)state;
    fault_list l;
    errmsg e = {0};
    assert_int_equal(fault_parse_as(&l, "--fault", "x", &e), ST_BAD_DOOR);
    assert_memory_equal(e.text, "--fault: \"x\"", 12);
}

static const fault *match(const fault_list *l, bool *fired, uint32_t stage, fault_at at,
                          uint64_t seq)
{
    return fault_match(l, fired, stage, at, seq);
}

static void match_wants_stage_place_and_step(void **state)
{
    (void)state;
    fault_list l = good("stage=1,at=decode,step=17,kind=kill");
    bool fired[FAULTS_MAX] = {false};
    assert_null(match(&l, fired, 0, FAULT_AT_DECODE, 17));
    assert_null(match(&l, fired, 1, FAULT_AT_PRIME, 17));
    assert_null(match(&l, fired, 1, FAULT_AT_DECODE, 16));
    assert_null(match(&l, fired, 1, FAULT_AT_DECODE, 18));
    assert_null(match(&l, fired, 1, FAULT_AT_DECODE, FAULT_STEP_ANY));
    assert_null(match(&l, fired, 1, FAULT_AT_LOAD, FAULT_STEP_ANY));
    assert_ptr_equal(match(&l, fired, 1, FAULT_AT_DECODE, 17), &l.list[0]);
}

static void match_fires_once_unless_every(void **state)
{
    (void)state;
    fault_list l = good("stage=0,kind=kill;stage=0,at=idle,kind=slow:5,every=1");
    bool fired[FAULTS_MAX] = {false};
    assert_ptr_equal(match(&l, fired, 0, FAULT_AT_IDLE, FAULT_STEP_ANY), &l.list[0]);
    assert_true(fired[0]);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(match(&l, fired, 0, FAULT_AT_IDLE, FAULT_STEP_ANY), &l.list[1]);
    }
    assert_false(fired[1]);
    assert_null(match(&l, fired, 0, FAULT_AT_DECODE, 3));
    bool others[FAULTS_MAX] = {false}; /* another stage's memory of what ran */
    assert_ptr_equal(match(&l, others, 0, FAULT_AT_LOAD, FAULT_STEP_ANY), &l.list[0]);
}

static void match_without_place_or_step_takes_the_first_chance(void **state)
{
    (void)state;
    static const fault_at places[] = {FAULT_AT_LOAD, FAULT_AT_PRIME, FAULT_AT_DECODE,
                                      FAULT_AT_IDLE};
    fault_list l = good("stage=all,kind=exit");
    for (size_t i = 0; i < 4; i++) {
        bool fired[FAULTS_MAX] = {false};
        assert_non_null(match(&l, fired, (uint32_t)i, places[i], i));
        assert_null(match(&l, fired, (uint32_t)i, places[i], i));
    }
    l = good("stage=2,step=4,kind=exit"); /* any place that has steps */
    bool fired[FAULTS_MAX] = {false};
    assert_null(match(&l, fired, 2, FAULT_AT_PRIME, 3));
    assert_non_null(match(&l, fired, 2, FAULT_AT_PRIME, 4));
}

static void match_takes_the_earliest_entry(void **state)
{
    (void)state;
    fault_list l = good("stage=5,kind=kill;stage=0,at=prime,kind=stop;stage=all,kind=hang");
    bool fired[FAULTS_MAX] = {false};
    assert_ptr_equal(match(&l, fired, 0, FAULT_AT_PRIME, 1), &l.list[1]);
    assert_ptr_equal(match(&l, fired, 0, FAULT_AT_PRIME, 2), &l.list[2]);
    assert_null(match(&l, fired, 0, FAULT_AT_PRIME, 3));
    fault_list none = {0};
    assert_null(match(&none, fired, 0, FAULT_AT_PRIME, 3));
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_no_fault),
        cmocka_unit_test(an_entry_has_its_defaults),
        cmocka_unit_test(each_key_is_read_in_any_order),
        cmocka_unit_test(each_kind_is_known),
        cmocka_unit_test(kinds_are_refused_where_they_cannot_be),
        cmocka_unit_test(each_place_is_known),
        cmocka_unit_test(numbers_are_decimal_digits_only),
        cmocka_unit_test(stage_and_kind_are_required),
        cmocka_unit_test(a_step_needs_a_place_with_steps),
        cmocka_unit_test(malformed_pairs_are_refused),
        cmocka_unit_test(lists_and_texts_have_bounds),
        cmocka_unit_test(a_flag_is_named_when_it_is_one),
        cmocka_unit_test(match_wants_stage_place_and_step),
        cmocka_unit_test(match_fires_once_unless_every),
        cmocka_unit_test(match_without_place_or_step_takes_the_first_chance),
        cmocka_unit_test(match_takes_the_earliest_entry),
    };
    return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
