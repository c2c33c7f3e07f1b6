/* What devices make of auto cuts: sharing, bandwidth, and when nothing is to be weighed. */
#include "tests/support/tap.h"

#include "coordinator/machine/placement.h"

#include <string.h>

static doors on(const char *devices, const char *stages)
{
    doors d;
    errmsg e = {0};
    door_values v = {0};
    v.value[DOOR_STAGES] = stages;
    v.value[DOOR_SPLITS] = "auto";
    v.value[DOOR_DEVICES] = devices;
    if (doors_parse(&d, &v, &e) != ST_OK) fail_msg("%s", e.text);
    return d;
}

static void alike_needs_no_costs(void **state)
{
    (void)state;
    const uint64_t none[STAGES_MAX] = {0}, same[STAGES_MAX] = {5, 5, 5},
                   odd[STAGES_MAX] = {5, 0, 9};
    uint32_t cost[STAGES_MAX];
    doors d = on(NULL, "3");
    assert_false(placement_costs(cost, &d, none));
    d = on("auto", "3");
    assert_false(placement_costs(cost, &d, none));
    d = on("cpu,cpu,cpu", "3");
    assert_false(placement_costs(cost, &d, none));
    d = on("cpu:0,cpu:1,cpu:2", "3");
    assert_false(placement_costs(cost, &d, none));
    assert_false(placement_costs(cost, &d, same));
    assert_false(placement_costs(cost, &d, odd)); /* one is unknown: nothing to compare with */
}

static void stages_share_their_device(void **state)
{
    (void)state;
    const uint64_t none[STAGES_MAX] = {0};
    uint32_t cost[STAGES_MAX];
    doors d = on("cpu:0,cpu:1,cpu:0", "3");
    assert_true(placement_costs(cost, &d, none));
    assert_int_equal(cost[0], 2 * FENCE_COST_UNIT);
    assert_int_equal(cost[1], FENCE_COST_UNIT);
    assert_int_equal(cost[2], 2 * FENCE_COST_UNIT);
}

static void bandwidth_counts(void **state)
{
    (void)state;
    const uint64_t gb[STAGES_MAX] = {50000000000, 200000000000, 1000000};
    uint32_t cost[STAGES_MAX];
    doors d = on("cpu:0,cpu:1,cpu:2", "3");
    assert_true(placement_costs(cost, &d, gb));
    assert_int_equal(cost[0], 4 * FENCE_COST_UNIT);
    assert_int_equal(cost[1], FENCE_COST_UNIT);
    assert_int_equal(cost[2], FENCE_COST_MAX);
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alike_needs_no_costs),
        cmocka_unit_test(stages_share_their_device),
        cmocka_unit_test(bandwidth_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
