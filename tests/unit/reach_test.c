/* Where the primary reaches what other stages have: unsplit walks, weights of all, one stream. */
#include "tests/support/tap.h"

#include "coordinator/machine/unsplit.h"
#include "tests/support/ok.h"

#include <stdio.h>
#include <string.h>

#define GPU(ordinal, uuid)                                                                         \
    "gpu " ordinal " GPU-" uuid "-0000-0000-0000-000000000000 9.0 15000 14000 shared H\n"

/* Two, one of which has two numbers. */
static gpu_list two_gpus(const char *link)
{
    char text[1024];
    gpu_list l;
    errmsg e = {0};
    int n = snprintf(text, sizeof text, "cuda 3\n%s%s%s", GPU("0", "aaaaaaaa"),
                     GPU("1", "bbbbbbbb"), GPU("2", "aaaaaaaa"));
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            if (from != to)
                n += snprintf(text + n, sizeof text - (size_t)n, "link %d %d %s\n", from, to, link);
    OK(gpus_parse(&l, text, &e));
    return l;
}

static plan on(device_door a, device_door b)
{
    return (plan){.cuts = {.n_stages = 2}, .stage = {{.device = a}, {.device = b}}};
}

static const step_doors whole = {.batch_pp = true, .spec_pp = true, .prime_pp = true};

static void expect(const plan *p, const gpu_list *gpus, step_doors d, const char *door,
                   const char *why)
{
    errmsg e = {0};
    doors named = doors_default();
    status s = unsplit_check(p, gpus, &named, &d, &e);
    if (door == NULL) {
        if (s != ST_OK) fail_msg("%s", e.text);
        return;
    }
    assert_int_equal(s, ST_BAD_DOOR);
    if (strstr(e.text, door) == NULL || strstr(e.text, why) == NULL) fail_msg("%s", e.text);
}

static void one_device_allows_all(void **state)
{
    (void)state;
    const gpu_list none = {0}, gpus = two_gpus("none");
    step_doors nothing_split = {0};
    const device_door cpu = {.kind = DEVICE_CPU}, node = {DEVICE_CPU_NODE, 1},
                      zero = {DEVICE_CUDA, 0}, same = {DEVICE_CUDA, 2}; /* by another number */
    plan p = on(cpu, cpu), q = on(node, node), r = on(zero, same);
    expect(&p, &none, nothing_split, NULL, NULL);
    expect(&q, &none, nothing_split, NULL, NULL);
    expect(&r, &gpus, nothing_split, NULL, NULL);
    assert_true(unsplit_possible(&p, &none) && unsplit_possible(&r, &gpus));
    p.cuts.n_stages = 1;
    expect(&p, &none, nothing_split, NULL, NULL);
}

static void several_devices_allow_prompts(void **state)
{
    (void)state;
    const gpu_list gpus = two_gpus("nvlink"), apart = two_gpus("none");
    const device_door zero = {DEVICE_CUDA, 0}, one = {DEVICE_CUDA, 1}, cpu = {.kind = DEVICE_CPU};
    const device_door node = {DEVICE_CPU_NODE, 0}, other = {DEVICE_CPU_NODE, 1};
    plan p = on(zero, one), q = on(node, other), mixed = on(zero, cpu);
    step_doors batch = whole, spec = whole, prime = whole;
    batch.batch_pp = spec.spec_pp = prime.prime_pp = false;
    const plan *several[] = {&p, &q};
    for (size_t i = 0; i < 2; i++) {
        expect(several[i], &gpus, whole, NULL, NULL);
        expect(several[i], &gpus, prime, NULL, NULL);
        expect(several[i], &gpus, batch, "MEMRA_BATCH_PP=0 asks for batched decode",
               "MEMRA_PP_ALLOW_UNSPLIT_BATCH=1");
        expect(several[i], &gpus, spec, "MEMRA_SPEC_PP=0 asks for speculation",
               "stage 1 on another device");
        batch.allow_unsplit_batch = true;
        expect(several[i], &gpus, batch, NULL, NULL);
        batch.allow_unsplit_batch = false;
    }
    assert_true(unsplit_possible(&p, &gpus));
    /* Nothing helps where the memory cannot be reached. */
    batch.allow_unsplit_batch = true;
    expect(&p, &apart, prime, "MEMRA_PRIME_PP=0 asks for prompts", "cannot reach");
    expect(&p, &apart, batch, "MEMRA_BATCH_PP=0", "cannot reach");
    expect(&mixed, &gpus, prime, "MEMRA_PRIME_PP=0", "one kind");
    assert_false(unsplit_possible(&mixed, &gpus) || unsplit_possible(&p, &apart));
    /* Nor can weights be read there. */
    errmsg e = {0};
    doors named = doors_default();
    OK(unsplit_check_shard(&mixed, &gpus, &named, &e)); /* they lie with each stage */
    p.gathered = mixed.gathered = true;
    OK(unsplit_check_shard(&p, &gpus, &named, &e));
    assert_int_equal(unsplit_check_shard(&p, &apart, &named, &e), ST_BAD_DOOR);
    errmsg_clear(&e);
    assert_int_equal(unsplit_check_shard(&mixed, &gpus, &named, &e), ST_BAD_DOOR);
    assert_non_null(strstr(e.text, "MEMRA_PP_SHARD=0 puts all weights on the device of stage 0"));
}

static void one_stream_is_of_one_device(void **state)
{
    (void)state;
    errmsg e = {0};
    doors named = doors_default();
    const gpu_list none = {0}, gpus = two_gpus("nvlink");
    const device_door cpu = {.kind = DEVICE_CPU}, zero = {DEVICE_CUDA, 0}, one = {DEVICE_CUDA, 1},
                      same = {DEVICE_CUDA, 2};
    plan p = on(cpu, cpu), q = on(zero, same), apart = on(zero, one), mixed = on(zero, cpu);
    OK(unsplit_check_streams(&apart, &gpus, &named, &e)); /* of processes of their own */
    p.one_process = q.one_process = apart.one_process = mixed.one_process = true;
    OK(unsplit_check_streams(&p, &none, &named, &e));
    OK(unsplit_check_streams(&q, &gpus, &named, &e));
    assert_int_equal(unsplit_check_streams(&mixed, &gpus, &named, &e), ST_BAD_DOOR);
    errmsg_clear(&e);
    assert_int_equal(unsplit_check_streams(&apart, &gpus, &named, &e), ST_BAD_DOOR);
    assert_non_null(strstr(
        e.text, "MEMRA_PP_STREAMS=0 puts all stages on one stream of one device, and stage 1"));
}

int main(void)
{
    tap_begin(10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_allows_all),
        cmocka_unit_test(several_devices_allow_prompts),
        cmocka_unit_test(one_stream_is_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
