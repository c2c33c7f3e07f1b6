/* Each rule of the door tables has a test of its own: what it accepts, and what it refuses with a
 * line that names variable or flag, value and rule. */
#include "tests/support/tap.h"
#include "common/doors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One door set, all others unset; NULL ends the pairs of further doors. */
typedef struct {
    door_id id;
    const char *value;
} setting;

static door_values values_of(const setting *list)
{
    door_values v = {0};
    for (; list->value != NULL; list++)
        v.value[list->id] = list->value;
    return v;
}

static doors good(const setting *list)
{
    door_values v = values_of(list);
    doors d;
    errmsg e = {0};
    if (doors_parse(&d, &v, &e) != ST_OK) fail_msg("refused: %s", e.text);
    assert_int_equal(e.code, ST_OK);
    return d;
}
#define GOOD(...) good((const setting[]){__VA_ARGS__, {0, NULL}})

/* Refused with a line that holds every one of `parts` (NULL ends them). */
static void bad(const setting *list, const char *const *parts)
{
    door_values v = values_of(list);
    doors d, shut = doors_default();
    errmsg e = {0};
    status s = doors_parse(&d, &v, &e);
    if (s != ST_BAD_DOOR) fail_msg("%s was not refused", list->value);
    assert_int_equal(e.code, ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "; rule: "));
    assert_true(strlen(e.text) < sizeof e.text - 1);
    for (; *parts != NULL; parts++) {
        if (strstr(e.text, *parts) == NULL) fail_msg("no '%s' in: %s", *parts, e.text);
    }
    assert_memory_equal(&d, &shut, sizeof d);
}
#define PARTS(...)           ((const char *const[]){__VA_ARGS__, NULL})
#define BAD1(id, value, ...) bad((const setting[]){{id, value}, {0, NULL}}, PARTS(__VA_ARGS__))
#define BAD2(id, value, id2, value2, ...)                                                          \
    bad((const setting[]){{id, value}, {id2, value2}, {0, NULL}}, PARTS(__VA_ARGS__))

/* What no numeric door takes: signs, spaces, prefixes, fractions, letters, separators, non-ASCII.
 */
static const char *const not_digits[] = {
    "+2", "-1",  "-0", " 2", "2 ", "\t2", "2\n",      "0x2",   "2.0", "2.", "1e1",   "2k",
    "x",  "two", "2x", ",",  "2,", ",2",  "\xd9\xa2", "2\x01", "\"",  "\\", "even ", " ",
};
#define N_NOT_DIGITS (sizeof not_digits / sizeof *not_digits)

static void each_number_is_decimal_digits_only(void **state)
{
    (void)state;
    static const door_id ids[] = {
        DOOR_STAGES,
        DOOR_SPLIT,
        DOOR_SHARD,
        DOOR_STREAMS,
        DOOR_OVERLAP,
        DOOR_BATCH_PP,
        DOOR_SPEC_PP,
        DOOR_PRIME_PP,
        DOOR_PRIME_PIPE,
        DOOR_PRIME_CHUNK,
        DOOR_ALLOW_UNSPLIT_BATCH,
    };
    const door_info *table = doors_table(NULL);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        for (size_t j = 0; j < N_NOT_DIGITS; j++) {
            BAD1(ids[i], not_digits[j], table[ids[i]].variable, "is not decimal digits only",
                 table[ids[i]].rule);
        }
    }
}

static void each_number_refuses_overflow(void **state)
{
    (void)state;
    static const char *const big[] = {"4294967296", "18446744073709551616",
                                      "99999999999999999999999999999999999999999999999999999999"};
    static const door_id ids[] = {DOOR_STAGES, DOOR_SPLIT, DOOR_OVERLAP, DOOR_PRIME_CHUNK};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        for (size_t j = 0; j < 3; j++) {
            BAD1(ids[i], big[j], doors_table(NULL)[ids[i]].variable, "is too big");
        }
    }
}

static void unset_and_empty_are_the_default(void **state)
{
    (void)state;
    doors shut = doors_default();
    door_values v = {0};
    doors d;
    assert_int_equal(doors_parse(&d, &v, NULL), ST_OK);
    assert_memory_equal(&d, &shut, sizeof d);
    for (uint32_t id = 0; id < DOOR_COUNT; id++)
        v.value[id] = "";
    assert_int_equal(doors_parse(&d, &v, NULL), ST_OK);
    assert_memory_equal(&d, &shut, sizeof d);

    assert_int_equal(d.n_stages, 1);
    assert_false(d.stages_set);
    assert_int_equal(d.splits, SPLITS_EVEN);
    assert_int_equal(d.n_cuts, 0);
    assert_int_equal(d.n_devices, 0);
    assert_true(d.shard && d.streams);
    assert_int_equal(d.transport, TRANSPORT_AUTO);
    assert_int_equal(d.signal, SIGNAL_AUTO);
    assert_int_equal(d.faults.n, 0);
    assert_string_equal(d.fault_text, "");
    assert_true(d.step.overlap && d.step.batch_pp && d.step.spec_pp && d.step.prime_pp);
    assert_true(d.step.prime_pipe);
    assert_false(d.step.allow_unsplit_batch);
    assert_int_equal(d.step.prime_chunk, 0);
}

static void stages_takes_2_to_the_most(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t n;
    } list[] = {{"2", 2}, {"3", 3}, {"02", 2}, {"0000000000000000000000009", 9}, {"64", 64}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        doors d = GOOD({DOOR_STAGES, list[i].text});
        assert_int_equal(d.n_stages, list[i].n);
        assert_true(d.stages_set);
        assert_int_equal(d.n_cuts, 0);
        assert_int_equal(d.splits, SPLITS_EVEN);
    }
    BAD1(DOOR_STAGES, "65", "MEMRA_PP_STAGES=\"65\"", "is too big", "2 <= N");
    BAD1(DOOR_STAGES, "1000", "MEMRA_PP_STAGES=\"1000\"", "is too big");
}

static void stages_0_and_1_shut_the_door(void **state)
{
    (void)state;
    doors shut = doors_default();
    static const char *const list[] = {"0", "1", "00", "01"};
    for (size_t i = 0; i < 4; i++) {
        doors d = GOOD({DOOR_STAGES, list[i]});
        assert_memory_equal(&d, &shut, sizeof d);
    }
}

static void splits_takes_increasing_cuts(void **state)
{
    (void)state;
    doors d = GOOD({DOOR_STAGES, "3"}, {DOOR_SPLITS, "2,4"});
    assert_int_equal(d.splits, SPLITS_LIST);
    assert_false(d.split_old);
    assert_int_equal(d.n_cuts, 2);
    assert_int_equal(d.cut[0], 2);
    assert_int_equal(d.cut[1], 4);
    d = GOOD({DOOR_STAGES, "2"}, {DOOR_SPLITS, "007"});
    assert_int_equal(d.n_cuts, 1);
    assert_int_equal(d.cut[0], 7);
}

static void splits_takes_its_words(void **state)
{
    (void)state;
    doors d = GOOD({DOOR_STAGES, "3"}, {DOOR_SPLITS, "even"});
    assert_int_equal(d.splits, SPLITS_EVEN);
    d = GOOD({DOOR_STAGES, "3"}, {DOOR_SPLITS, "auto"});
    assert_int_equal(d.splits, SPLITS_AUTO);
    assert_int_equal(d.n_cuts, 0);
    d = GOOD({DOOR_SPLITS, "auto"}); /* says nothing that one stage could break */
    assert_int_equal(d.n_stages, 1);
    static const char *const list[] = {"Even",      "evens",  "eve",  "AUTO",
                                       "auto,even", "even,2", "auto "};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        BAD2(DOOR_STAGES, "3", DOOR_SPLITS, list[i], "MEMRA_PP_SPLITS=\"", "is not a cut");
    }
}

static void splits_refuses_elements_that_are_no_cuts(void **state)
{
    (void)state;
    static const char *const list[] = {",",     "2,",   ",4",    "2,,4", "2, 4",
                                       " 2,4",  "2,4 ", "2;4",   "+2,4", "2,-4",
                                       "0x2,4", "2,4x", "2.0,4", "a,b",  "2,4\n"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        BAD2(DOOR_STAGES, "3", DOOR_SPLITS, list[i], "MEMRA_PP_SPLITS=\"",
             "is not a cut in decimal digits", "strictly increasing");
    }
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, "2,4294967296", "MEMRA_PP_SPLITS", "is too big");
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, "99999999999999999999999,4", "MEMRA_PP_SPLITS",
         "is too big");
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, "0,4", "MEMRA_PP_SPLITS=\"0,4\"", "\"0\" is not a cut");
}

static void splits_refuses_cuts_out_of_order(void **state)
{
    (void)state;
    static const char *const list[] = {"4,2", "2,2", "3,03", "1,0"};
    for (size_t i = 0; i < 3; i++) {
        BAD2(DOOR_STAGES, "3", DOOR_SPLITS, list[i], "MEMRA_PP_SPLITS=\"",
             "is not above the cut before it");
    }
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, list[3], "MEMRA_PP_SPLITS=\"", "\"0\" is not a cut");
}

static void splits_needs_as_many_cuts_as_stages_say(void **state)
{
    (void)state;
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, "2", "MEMRA_PP_SPLITS=\"2\"", "MEMRA_PP_STAGES=\"3\"");
    BAD2(DOOR_STAGES, "3", DOOR_SPLITS, "1,2,3", "MEMRA_PP_SPLITS=\"1,2,3\"",
         "MEMRA_PP_STAGES=\"3\"");
    char many[512] = "1";
    for (int i = 2; i <= 64; i++) {
        char one[16];
        snprintf(one, sizeof one, ",%d", i);
        strcat(many, one);
    }
    BAD2(DOOR_STAGES, "64", DOOR_SPLITS, many, "MEMRA_PP_SPLITS=\"1,2,3", "too many");
    *strrchr(many, ',') = '\0';
    assert_int_equal(GOOD({DOOR_STAGES, "64"}, {DOOR_SPLITS, many}).n_cuts, 63);
}

static void splits_refuses_cuts_while_stages_is_shut(void **state)
{
    (void)state;
    BAD1(DOOR_SPLITS, "2,4", "MEMRA_PP_SPLITS=\"2,4\"", "MEMRA_PP_STAGES=unset");
    BAD2(DOOR_STAGES, "1", DOOR_SPLITS, "2", "MEMRA_PP_SPLITS=\"2\"", "MEMRA_PP_STAGES=\"1\"");
    BAD2(DOOR_STAGES, "0", DOOR_SPLITS, "2", "MEMRA_PP_SPLITS=\"2\"", "MEMRA_PP_STAGES=\"0\"");
}

static void split_is_one_cut_for_two_stages(void **state)
{
    (void)state;
    doors d = GOOD({DOOR_STAGES, "2"}, {DOOR_SPLIT, "3"});
    assert_int_equal(d.splits, SPLITS_LIST);
    assert_true(d.split_old);
    assert_int_equal(d.n_cuts, 1);
    assert_int_equal(d.cut[0], 3);
    BAD2(DOOR_STAGES, "2", DOOR_SPLIT, "0", "MEMRA_PP_SPLIT=\"0\"", "is not a cut");
    BAD2(DOOR_STAGES, "2", DOOR_SPLIT, "even", "MEMRA_PP_SPLIT=\"even\"", "decimal digits");
    BAD2(DOOR_STAGES, "2", DOOR_SPLIT, "2,3", "MEMRA_PP_SPLIT=\"2,3\"", "decimal digits");
}

static void split_refuses_other_numbers_of_stages(void **state)
{
    (void)state;
    BAD2(DOOR_STAGES, "3", DOOR_SPLIT, "2", "MEMRA_PP_SPLIT=\"2\"", "MEMRA_PP_STAGES=\"3\"");
    BAD2(DOOR_STAGES, "1", DOOR_SPLIT, "2", "MEMRA_PP_SPLIT=\"2\"", "MEMRA_PP_STAGES=\"1\"");
    BAD1(DOOR_SPLIT, "2", "MEMRA_PP_SPLIT=\"2\"", "MEMRA_PP_STAGES=unset");
}

static void split_beside_splits_is_refused(void **state)
{
    (void)state;
    static const char *const list[] = {"2", "3", "even", "auto"};
    for (size_t i = 0; i < 4; i++) {
        bad(
            (const setting[]){
                {DOOR_STAGES, "2"}, {DOOR_SPLIT, "2"}, {DOOR_SPLITS, list[i]}, {0, NULL}},
            PARTS("MEMRA_PP_SPLIT=\"2\"", "stands beside MEMRA_PP_SPLITS=\"", list[i]));
    }
}

static void devices_takes_each_kind(void **state)
{
    (void)state;
    doors d = GOOD({DOOR_STAGES, "5"}, {DOOR_DEVICES, "0,cpu,cpu:1,auto,7"});
    assert_int_equal(d.n_devices, 5);
    assert_int_equal(d.device[0].kind, DEVICE_CUDA);
    assert_int_equal(d.device[0].index, 0);
    assert_int_equal(d.device[1].kind, DEVICE_CPU);
    assert_int_equal(d.device[2].kind, DEVICE_CPU_NODE);
    assert_int_equal(d.device[2].index, 1);
    assert_int_equal(d.device[3].kind, DEVICE_AUTO);
    assert_int_equal(d.device[4].kind, DEVICE_CUDA);
    assert_int_equal(d.device[4].index, 7);
    d = GOOD({DOOR_DEVICES, "cpu"});
    assert_int_equal(d.n_devices, 1);
    assert_int_equal(d.device[0].kind, DEVICE_CPU);
}

static void devices_auto_alone_fits_any_number_of_stages(void **state)
{
    (void)state;
    static const char *const list[] = {"", "1", "2", "64"};
    for (size_t i = 0; i < 4; i++) {
        doors d = GOOD({DOOR_STAGES, list[i]}, {DOOR_DEVICES, "auto"});
        assert_int_equal(d.n_devices, 1);
        assert_int_equal(d.device[0].kind, DEVICE_AUTO);
    }
}

static void devices_refuses_what_is_no_device(void **state)
{
    (void)state;
    static const char *const list[] = {
        "gpu", "CPU", "cpu:", "cpu:x", "cpu:-1", "cpu: 1", "cpu:1:2", "cuda:0", "+1",       "-1",
        "0x1", " 0",  "0 ",   "1.0",   "cpus",   "Auto",   "cpu:0x1", "cpu;",   "\x1b[31m",
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        BAD1(DOOR_DEVICES, list[i], "MEMRA_PP_DEVICES=\"", "is not a device", "CUDA ordinal");
    }
    static const char *const holes[] = {",", "0,", ",0", "0,,1", "cpu,", "auto,"};
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
        BAD2(DOOR_STAGES, "2", DOOR_DEVICES, holes[i], "MEMRA_PP_DEVICES=\"", "is not a device");
    }
    BAD1(DOOR_DEVICES, "4294967296", "MEMRA_PP_DEVICES", "is too big");
    BAD1(DOOR_DEVICES, "cpu:4294967296", "MEMRA_PP_DEVICES", "is too big");
}

static void devices_must_be_as_many_as_stages(void **state)
{
    (void)state;
    BAD2(DOOR_STAGES, "2", DOOR_DEVICES, "cpu", "MEMRA_PP_DEVICES=\"cpu\"",
         "MEMRA_PP_STAGES=\"2\"");
    BAD2(DOOR_STAGES, "2", DOOR_DEVICES, "0,1,2", "MEMRA_PP_DEVICES=\"0,1,2\"", "MEMRA_PP_STAGES");
    BAD2(DOOR_STAGES, "3", DOOR_DEVICES, "auto,auto", "MEMRA_PP_DEVICES", "MEMRA_PP_STAGES=\"3\"");
    BAD1(DOOR_DEVICES, "cpu,cpu", "MEMRA_PP_DEVICES=\"cpu,cpu\"", "MEMRA_PP_STAGES=unset");
    char many[512] = "cpu";
    for (int i = 0; i < 64; i++)
        strcat(many, ",cpu");
    BAD2(DOOR_STAGES, "64", DOOR_DEVICES, many, "MEMRA_PP_DEVICES=\"cpu,cpu", "too many");
}

static void one_stream_has_no_transport(void **state)
{
    (void)state;
    assert_false(GOOD({DOOR_STREAMS, "0"}, {DOOR_STAGES, "2"}).streams);
    assert_false(
        GOOD({DOOR_STREAMS, "0"}, {DOOR_TRANSPORT, "auto"}, {DOOR_SIGNAL, "auto"}).streams);
    BAD1(DOOR_STREAMS, "2", "MEMRA_PP_STREAMS", "is too big");
    BAD2(DOOR_STREAMS, "0", DOOR_TRANSPORT, "shm", "MEMRA_PP_TRANSPORT=\"shm\" forces",
         "MEMRA_PP_STREAMS=\"0\"");
    BAD2(DOOR_STREAMS, "0", DOOR_SIGNAL, "spin", "MEMRA_PP_SIGNAL=\"spin\" forces",
         "MEMRA_PP_STREAMS");
}

/* Whether the devices allow an unsplit walk is not the doors' to say. */
static void unsplit_walks_are_booleans(void **state)
{
    (void)state;
    static const door_id list[] = {DOOR_BATCH_PP, DOOR_SPEC_PP, DOOR_PRIME_PP};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        doors d = GOOD({list[i], "0"}, {DOOR_STAGES, "2"}), whole = GOOD({list[i], "1"});
        assert_int_equal(d.step.batch_pp + d.step.spec_pp + d.step.prime_pp, 2);
        assert_true(whole.step.batch_pp && whole.step.spec_pp && whole.step.prime_pp);
        BAD1(list[i], "2", doors_table(NULL)[list[i]].variable, "is too big");
    }
    assert_false(GOOD({DOOR_SHARD, "0"}, {DOOR_STAGES, "2"}).shard);
    BAD1(DOOR_SHARD, "2", "MEMRA_PP_SHARD", "is too big");
    assert_true(GOOD({DOOR_ALLOW_UNSPLIT_BATCH, "1"}).step.allow_unsplit_batch);
    BAD1(DOOR_ALLOW_UNSPLIT_BATCH, "yes", "MEMRA_PP_ALLOW_UNSPLIT_BATCH",
         "is not decimal digits only");
}

static void transport_takes_its_words(void **state)
{
    (void)state;
    for (transport_kind k = TRANSPORT_AUTO; k <= TRANSPORT_SHM; k++)
        assert_int_equal(GOOD({DOOR_TRANSPORT, transport_word(k)}).transport, k);
    assert_string_equal(transport_word(TRANSPORT_IPC), "ipc");
    static const char *const wrong[] = {"SHM", "shm ", "sh", "0", "auto,shm", "tcp"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        BAD1(DOOR_TRANSPORT, wrong[i], "MEMRA_PP_TRANSPORT=\"", wrong[i], "is none of its words");
    }
}

static void signal_takes_its_words(void **state)
{
    (void)state;
    for (signal_kind k = SIGNAL_AUTO; k <= SIGNAL_SPIN; k++)
        assert_int_equal(GOOD({DOOR_SIGNAL, signal_word(k)}).signal, k);
    assert_string_equal(signal_word(SIGNAL_MEMOP), "memop");
    static const char *const wrong[] = {"Auto", "auto ", "events", "1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        BAD1(DOOR_SIGNAL, wrong[i], "MEMRA_PP_SIGNAL=\"", wrong[i], "is none of its words");
    }
}

static void step_switches_take_0_and_1(void **state)
{
    (void)state;
    assert_false(GOOD({DOOR_OVERLAP, "0"}).step.overlap);
    assert_true(GOOD({DOOR_OVERLAP, "1"}).step.overlap);
    assert_false(GOOD({DOOR_OVERLAP, "000"}).step.overlap);
    assert_false(GOOD({DOOR_PRIME_PIPE, "0"}).step.prime_pipe);
    assert_true(GOOD({DOOR_PRIME_PIPE, "1"}).step.prime_pipe);
    static const char *const wrong[] = {"2", "10"};
    for (size_t i = 0; i < 2; i++) {
        BAD1(DOOR_OVERLAP, wrong[i], "MEMRA_PP_OVERLAP=\"", "is too big", "0 or 1");
        BAD1(DOOR_PRIME_PIPE, wrong[i], "MEMRA_PRIME_PIPE=\"", "is too big", "0 or 1");
    }
    static const char *const words[] = {"yes", "off", "true"};
    for (size_t i = 0; i < 3; i++)
        BAD1(DOOR_OVERLAP, words[i], "MEMRA_PP_OVERLAP=\"", words[i]);
}

static void prime_chunk_takes_rows(void **state)
{
    (void)state;
    assert_int_equal(GOOD({DOOR_PRIME_CHUNK, "1"}).step.prime_chunk, 1);
    assert_int_equal(GOOD({DOOR_PRIME_CHUNK, "0512"}).step.prime_chunk, 512);
    assert_int_equal(GOOD({DOOR_PRIME_CHUNK, "4096"}).step.prime_chunk, 4096);
    BAD1(DOOR_PRIME_CHUNK, "4097", "MEMRA_PRIME_CHUNK=\"4097\"", "is too big", "T <= 4096");
    BAD1(DOOR_PRIME_CHUNK, "0", "MEMRA_PRIME_CHUNK=\"0\"", "is not a number of rows", "1 <= T");
    BAD1(DOOR_PRIME_CHUNK, "00", "MEMRA_PRIME_CHUNK=\"00\"", "is not a number of rows");
}

static void fault_is_parsed_and_kept_as_text(void **state)
{
    (void)state;
    const char *text = "stage=1,at=decode,step=17,kind=kill;stage=all,kind=slow:20,every=1";
    doors d = GOOD({DOOR_STAGES, "2"}, {DOOR_FAULT, text});
    assert_int_equal(d.faults.n, 2);
    assert_int_equal(d.faults.list[0].stage, 1);
    assert_string_equal(d.fault_text, text);
    BAD1(DOOR_FAULT, "kaboom", "MEMRA_PP_FAULT", "\"kaboom\"");
}

static void fault_names_only_stages_that_there_are(void **state)
{
    (void)state;
    BAD2(DOOR_STAGES, "2", DOOR_FAULT, "stage=2,kind=kill", "MEMRA_PP_FAULT=\"stage=2,kind=kill\"",
         "MEMRA_PP_STAGES=\"2\"");
    BAD1(DOOR_FAULT, "stage=1,kind=kill", "MEMRA_PP_FAULT", "nothing asks for so many",
         "--stages 2 or more");
    GOOD({DOOR_FAULT, "stage=0,kind=kill"});
    GOOD({DOOR_FAULT, "stage=all,kind=kill"});
    /* On one stream there is one process, which is named as stage 0. */
    bad(
        (const setting[]){
            {DOOR_STAGES, "2"}, {DOOR_STREAMS, "0"}, {DOOR_FAULT, "stage=1,kind=kill"}, {0, NULL}},
        PARTS("MEMRA_PP_FAULT=\"stage=1,kind=kill\" names stage 1, and MEMRA_PP_STREAMS=0 puts it "
              "into the process of stage 0"));
    GOOD({DOOR_STAGES, "2"}, {DOOR_STREAMS, "0"}, {DOOR_FAULT, "stage=0,kind=kill"});
    GOOD({DOOR_STAGES, "2"}, {DOOR_STREAMS, "0"}, {DOOR_FAULT, "stage=all,kind=kill"});
}

static void a_flag_is_named_when_the_value_came_from_it(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        door_values v = {0};
        v.value[id] = "?";
        v.from_flag[id] = true;
        doors d;
        errmsg e = {0};
        assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
        char start[64];
        snprintf(start, sizeof start, "--%s", doors_table(NULL)[id].flag);
        assert_memory_equal(e.text, start, strlen(start));
        assert_null(strstr(e.text, "MEMRA_"));
    }
    door_values v = {
        .value[DOOR_STAGES] = "3", .value[DOOR_SPLITS] = "2", .from_flag[DOOR_STAGES] = true};
    doors d;
    errmsg e = {0};
    assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "MEMRA_PP_SPLITS=\"2\""));
    assert_non_null(strstr(e.text, "--stages=\"3\""));
    v.value[DOOR_SPLITS] = "2,3";
    assert_int_equal(doors_parse(&d, &v, NULL), ST_OK);
    assert_string_equal(doors_name(&d, DOOR_STAGES), "--stages");
    assert_string_equal(doors_name(&d, DOOR_SPLITS), "MEMRA_PP_SPLITS");
}

static void flags_are_the_variables_without_prefix(void **state)
{
    (void)state;
    uint32_t n = 0;
    const door_info *table = doors_table(&n);
    assert_int_equal(n, DOOR_COUNT);
    for (uint32_t id = 0; id < n; id++) {
        const char *v = table[id].variable;
        v += strncmp(v, "MEMRA_PP_", 9) == 0 ? 9 : 6;
        char flag[64] = {0};
        for (size_t i = 0; v[i] != '\0'; i++)
            flag[i] = v[i] == '_' ? '-' : (char)(v[i] | 0x20);
        assert_string_equal(table[id].flag, flag);
        assert_int_equal(doors_flag_index(flag), (int)id);
        assert_true(strlen(table[id].rule) > 0);
    }
    static const char *const none[] = {"", "--stages", "stage", "Stages", "stages=2", "model"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(doors_flag_index(none[i]), -1);
    }
}

static void the_environment_is_read(void **state)
{
    (void)state;
    const door_info *table = doors_table(NULL);
    for (uint32_t id = 0; id < DOOR_COUNT; id++)
        unsetenv(table[id].variable);
    door_values v;
    doors_from_environment(&v);
    for (uint32_t id = 0; id < DOOR_COUNT; id++)
        assert_null(v.value[id]);
    for (uint32_t id = 0; id < DOOR_COUNT; id++)
        setenv(table[id].variable, table[id].flag, 1);
    doors_from_environment(&v);
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        assert_string_equal(v.value[id], table[id].flag);
        assert_false(v.from_flag[id]);
        unsetenv(table[id].variable);
    }
}

/* The longest values, of the bytes that need most room: still one line that ends with the rule. */
static void messages_are_one_safe_line(void **state)
{
    (void)state;
    char text[5000];
    memset(text, '\x1b', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const door_info *table = doors_table(NULL);
    for (uint32_t id = 0; id < DOOR_COUNT; id++) {
        BAD1((door_id)id, text, table[id].variable, "\\x1b\\x1b", "(4999 bytes)", "; rule: ");
        door_values v = {0};
        v.value[id] = text;
        doors d;
        errmsg e = {0};
        assert_int_equal(doors_parse(&d, &v, &e), ST_BAD_DOOR);
        for (const char *c = e.text; *c != '\0'; c++)
            assert_true(*c >= 0x20 && *c < 0x7f);
        size_t rule = strlen(table[id].rule), end = strlen(e.text);
        if (id != DOOR_FAULT) assert_string_equal(e.text + end - rule, table[id].rule);
    }
    memset(text, '0', sizeof text - 1);
    text[sizeof text - 2] = '3';
    BAD2(DOOR_STAGES, text, DOOR_SPLITS, text, "MEMRA_PP_SPLITS=\"000", "MEMRA_PP_STAGES=\"000",
         "(4999 bytes)");
    BAD1(DOOR_STAGES, "2\"\\\r\n", "MEMRA_PP_STAGES=\"2\\\"\\\\\\x0d\\x0a\"");
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_is_decimal_digits_only),
        cmocka_unit_test(each_number_refuses_overflow),
        cmocka_unit_test(unset_and_empty_are_the_default),
        cmocka_unit_test(stages_takes_2_to_the_most),
        cmocka_unit_test(stages_0_and_1_shut_the_door),
        cmocka_unit_test(splits_takes_increasing_cuts),
        cmocka_unit_test(splits_takes_its_words),
        cmocka_unit_test(splits_refuses_elements_that_are_no_cuts),
        cmocka_unit_test(splits_refuses_cuts_out_of_order),
        cmocka_unit_test(splits_needs_as_many_cuts_as_stages_say),
        cmocka_unit_test(splits_refuses_cuts_while_stages_is_shut),
        cmocka_unit_test(split_is_one_cut_for_two_stages),
        cmocka_unit_test(split_refuses_other_numbers_of_stages),
        cmocka_unit_test(split_beside_splits_is_refused),
        cmocka_unit_test(devices_takes_each_kind),
        cmocka_unit_test(devices_auto_alone_fits_any_number_of_stages),
        cmocka_unit_test(devices_refuses_what_is_no_device),
        cmocka_unit_test(devices_must_be_as_many_as_stages),
        cmocka_unit_test(one_stream_has_no_transport),
        cmocka_unit_test(unsplit_walks_are_booleans),
        cmocka_unit_test(transport_takes_its_words),
        cmocka_unit_test(signal_takes_its_words),
        cmocka_unit_test(step_switches_take_0_and_1),
        cmocka_unit_test(prime_chunk_takes_rows),
        cmocka_unit_test(fault_is_parsed_and_kept_as_text),
        cmocka_unit_test(fault_names_only_stages_that_there_are),
        cmocka_unit_test(a_flag_is_named_when_the_value_came_from_it),
        cmocka_unit_test(flags_are_the_variables_without_prefix),
        cmocka_unit_test(the_environment_is_read),
        cmocka_unit_test(messages_are_one_safe_line),
    };
    return cmocka_run_group_tests_name("doors", tests, NULL, NULL);
}
