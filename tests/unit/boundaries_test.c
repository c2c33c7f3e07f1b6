/* What devices make of the doors: the list of GPUs as the stage program writes it, who gets which
 * device, and which transport a boundary can have. */
#include "tests/support/tap.h"

#include "coordinator/machine/boundaries.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/machine/placement.h"

#include <stdio.h>
#include <string.h>

#define UUID_A "GPU-aaaaaaaa-0000-0000-0000-000000000000"
#define UUID_B "GPU-bbbbbbbb-0000-0000-0000-000000000000"
#define GPU(ordinal, uuid, mode)                                                                   \
    "gpu " ordinal " " uuid " 9.0 150000000000 149000000000 " mode " NVIDIA H200 (one)\n"
#define TWO                                                                                        \
    "cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_B, "shared") "link 0 1 nvlink\n"           \
                                                                     "link 1 0 nvlink\n"

static gpu_list list_of(const char *text)
{
    gpu_list l;
    errmsg e = {0};
    if (gpus_parse(&l, text, &e) != ST_OK) fail_msg("%s", e.text);
    return l;
}

static doors doors_of(const char *stages, const char *devices, const char *transport_,
                      const char *signal_)
{
    doors d;
    errmsg e = {0};
    door_values v = {.value = {[DOOR_STAGES] = stages,
                               [DOOR_DEVICES] = devices,
                               [DOOR_TRANSPORT] = transport_,
                               [DOOR_SIGNAL] = signal_}};
    if (doors_parse(&d, &v, &e) != ST_OK) fail_msg("%s", e.text);
    return d;
}

static void the_list_is_read(void **state)
{
    (void)state;
    gpu_list l = list_of(TWO);
    assert_true(l.built);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.at[1].uuid, UUID_B);
    assert_string_equal(l.at[0].name, "NVIDIA H200 (one)");
    assert_int_equal(gpus_link(&l, 0, 1), GPU_LINK_NVLINK);
    assert_int_equal(gpus_link(&l, 0, 7), GPU_LINK_NONE);
    assert_false(gpus_same(&l, 0, 1));
    l = list_of("cuda -1\n");
    assert_false(l.built);
    l = list_of("cuda 0\n");
    assert_true(l.built);
    assert_int_equal(l.n, 0);
}

static void other_words_are_no_list(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "cuda\n", "cuda 65\n", "cuda 1\n", "cuda 1\n" GPU("0", UUID_A, "strange"),
        "cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_B, "shared"),
        "cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_B, "shared") "link 0 1 nvlink\n"
                                                                         "link 2 0 nvlink\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gpu_list l;
        errmsg e = {0};
        assert_int_equal(gpus_parse(&l, bad[i], &e), ST_RESOURCES);
        assert_int_equal(l.n, 0);
        assert_non_null(strstr(e.text, "no device list"));
    }
}

static void same_device_written_two_ways(void **state)
{
    (void)state;
    gpu_list l = list_of("cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_A, "shared")
                             "link 0 1 nvlink\nlink 1 0 nvlink\n");
    doors d = doors_of("2", "0,1", "nccl", NULL);
    errmsg e = {0};
    assert_true(gpus_same(&l, 0, 1));
    assert_int_equal(boundaries_check(&d, &l, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "these are one"));
    d = doors_of("2", "00,0", "nccl", NULL);
    errmsg_clear(&e);
    assert_int_equal(boundaries_check(&d, &l, &e), ST_BAD_DOOR);
}

static void is_on(const doors *d, uint32_t s, device_kind kind, uint32_t index)
{
    assert_int_equal(d->device[s].kind, kind);
    assert_int_equal(d->device[s].index, index);
}

static void what_is_left_open_is_chosen(void **state)
{
    (void)state;
    gpu_list two = list_of(TWO), none = list_of("cuda 0\n");
    doors d = doors_of("3", NULL, NULL, NULL);
    placement_choose(&d, &two); /* unset: all on one */
    assert_int_equal(d.n_devices, 3);
    for (uint32_t s = 0; s < 3; s++)
        is_on(&d, s, DEVICE_CUDA, 0);
    d = doors_of("3", "auto", NULL, NULL);
    placement_choose(&d, &two); /* distinct ones while they last */
    is_on(&d, 0, DEVICE_CUDA, 0);
    is_on(&d, 1, DEVICE_CUDA, 1);
    is_on(&d, 2, DEVICE_CUDA, 0);
    d = doors_of("3", "auto,0,cpu", NULL, NULL);
    placement_choose(&d, &two); /* not one that another stage is given */
    is_on(&d, 0, DEVICE_CUDA, 1);
    is_on(&d, 1, DEVICE_CUDA, 0);
    is_on(&d, 2, DEVICE_CPU, 0);
    d = doors_of("2", "auto", NULL, NULL);
    placement_choose(&d, &none);
    assert_int_equal(d.device[0].kind, DEVICE_AUTO); /* the plan makes it the cpu */
    d = doors_of("2", NULL, NULL, NULL);
    placement_choose(&d, &none);
    assert_int_equal(d.n_devices, 0);
}

static void unusable_ones_are_passed_over_and_refused(void **state)
{
    (void)state;
    static const struct {
        const char *mode, *part;
    } modes[] = {{"mps", "nvidia-cuda-mps-control"}, {"exclusive", "-c DEFAULT"}};
    for (size_t i = 0; i < 2; i++) {
        char text[1024];
        snprintf(text, sizeof text, "cuda 2\n%s 9.0 1 1 %s X\n%slink 0 1 pcie\nlink 1 0 pcie\n",
                 "gpu 0 " UUID_A, modes[i].mode, GPU("1", UUID_B, "shared"));
        gpu_list l = list_of(text);
        doors d = doors_of("2", NULL, NULL, NULL);
        placement_choose(&d, &l);
        is_on(&d, 0, DEVICE_CUDA, 1);
        d = doors_of("2", "0,1", NULL, NULL);
        errmsg e = {0};
        assert_int_equal(inventory_check_devices(&d, &l, &e), ST_RESOURCES);
        assert_non_null(strstr(e.text, "MEMRA_PP_DEVICES: stage 0: cuda:0"));
        assert_non_null(strstr(e.text, modes[i].part));
    }
}

static void expect(const char *devices, const char *text, const char *t, const char *s)
{
    gpu_list l = list_of(text);
    doors d = doors_of("2", devices, NULL, NULL);
    boundary_words w = boundaries_expect(&d, &l, d.device[0], d.device[1]);
    assert_string_equal(w.transport, t);
    assert_string_equal(w.signal, s);
}

static void auto_is_foretold(void **state)
{
    (void)state;
    expect("0,1", TWO, "ipc", "spin, memop");
    expect("1,1", TWO, "ipc", "memop");
    expect("0,cpu", TWO, "host", "futex");
    expect("cpu,cpu:0", TWO, "shm", "futex");
    expect("0,1",
           "cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_B, "shared") "link 0 1 none\n"
                                                                            "link 1 0 none\n",
           "nccl", "nccl");
}

static void impossible_doors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *transport, *signal, *part;
    } bad[] = {
        {"0,cpu", "ipc", NULL, "MEMRA_PP_TRANSPORT=ipc: boundary 0 -> 1 leads from cuda:0 to cpu"},
        {"0,cpu", "ipc", NULL, "; there host, shm or auto would do"},
        {"cpu,cpu", "host", NULL, "host needs a CUDA device at one end; there shm or auto would do"},
        {"1,1", "nccl", NULL, "nccl needs two devices, these are one; there ipc, host, shm or auto"},
        {"cpu,1", NULL, "spin",
         "MEMRA_PP_SIGNAL=spin is a signal of transport ipc, and boundary 0 -> 1 leads from cpu to cuda:1"},
        {"0,1", "shm", "event", "MEMRA_PP_SIGNAL=event stands beside MEMRA_PP_TRANSPORT=shm"},
        {"0,1", "nccl", "memop", "stands beside MEMRA_PP_TRANSPORT=nccl"},
    };
    gpu_list l = list_of(TWO);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        doors d = doors_of("2", bad[i].devices, bad[i].transport, bad[i].signal);
        errmsg e = {0};
        assert_int_equal(boundaries_check(&d, &l, &e), ST_BAD_DOOR);
        if (strstr(e.text, bad[i].part) == NULL) fail_msg("'%s' lacks '%s'", e.text, bad[i].part);
    }
    l = list_of("cuda 2\n" GPU("0", UUID_A, "shared") GPU("1", UUID_B, "shared") "link 0 1 none\n"
                                                                              "link 1 0 none\n");
    doors d = doors_of("2", "0,1", "ipc", NULL);
    errmsg e = {0};
    assert_int_equal(boundaries_check(&d, &l, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "peer access"));
}

static void possible_ones_pass(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *transport, *signal;
    } good[] = {{"0,1", NULL, NULL}, {"0,0", "shm", NULL}, {"cpu,cpu", "shm", NULL},
                {"cpu,cpu", "auto", "auto"}};
    gpu_list l = list_of(TWO);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        doors d = doors_of("2", good[i].devices, good[i].transport, good[i].signal);
        errmsg e = {0};
        assert_int_equal(boundaries_check(&d, &l, &e), ST_OK);
    }
    /* What needs devices needs a build that has them, also with one stage. */
    doors d = doors_of(NULL, NULL, "ipc", NULL);
    errmsg e = {0};
    assert_int_equal(boundaries_check(&d, &l, &e), inventory_has_cuda() ? ST_OK : ST_BAD_DOOR);
}

/* Two stages share cuda:0, a third has cuda:1. */
static plan shared_plan(void)
{
    plan p = {.n_ctx = 4096, .cuts = {.n_stages = 3}};
    for (uint32_t s = 0; s < 3; s++) {
        p.stage[s] = (stage_plan){.device = {.kind = DEVICE_CUDA, .index = s / 2},
                                  .kv_bytes = 10000000000,
                                  .device_bytes = s == 0 ? 71000000000 : 71500000000};
    }
    return p;
}

static void devices_must_have_room(void **state)
{
    (void)state;
    plan p = shared_plan();
    gpu_list l = list_of(TWO);
    errmsg e = {0};
    assert_int_equal(placement_gpu_bytes(&p, &l, 0), 142500000000);
    assert_int_equal(placement_gpu_bytes(&p, &l, 1), 71500000000);
    assert_int_equal(placement_fits(&p, &l, &e), ST_OK);
    l.at[0].memory_free_bytes = 132500000000; /* half of the KV fits */
    assert_int_equal(placement_fits(&p, &l, &e), ST_RESOURCES);
    const char *const parts[] = {"cuda:0 has 132.50 GB free", "stages 0, 1 need 142.50 GB",
                                 "--ctx 2048 would"};
    for (size_t i = 0; i < 3; i++)
        if (strstr(e.text, parts[i]) == NULL) fail_msg("'%s' lacks '%s'", e.text, parts[i]);
    errmsg_clear(&e);
    l.at[0].memory_free_bytes = 100000000000;
    assert_int_equal(placement_fits(&p, &l, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "more devices"));
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_is_read),
        cmocka_unit_test(other_words_are_no_list),
        cmocka_unit_test(same_device_written_two_ways),
        cmocka_unit_test(what_is_left_open_is_chosen),
        cmocka_unit_test(unusable_ones_are_passed_over_and_refused),
        cmocka_unit_test(auto_is_foretold),
        cmocka_unit_test(impossible_doors_are_refused),
        cmocka_unit_test(possible_ones_pass),
        cmocka_unit_test(devices_must_have_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
