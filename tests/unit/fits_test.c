/* A stage that does not fit on its device is refused before it allocates, and weights that went
 * elsewhere are noticed. The devices are the cpu with memory of its own. */
#include "tests/support/tap.h"

#include "stage/fits.h"

#include <string.h>

static uint64_t free_now, held_now;

static uint64_t as_stored(dtype type, uint32_t n_in, uint32_t n_out)
{
    return (uint64_t)n_out * dtype_bytes(type, n_in);
}

static status memory_now(backend_device *d, uint64_t *free_bytes, uint64_t *held_bytes, errmsg *e)
{
    (void)d, (void)e;
    *free_bytes = free_now;
    *held_bytes = held_now;
    return ST_OK;
}

static const char *name_now(const backend_device *d)
{
    (void)d;
    return "cuda:1 a card";
}

static const backend table = {
    .device_name = name_now, .weight_bytes = as_stored, .memory = memory_now};

static device_need need(uint64_t weights_bytes, uint64_t kv_bytes_)
{
    return (device_need){.backend = &table,
                         .stage_i = 1,
                         .layer_begin = 16,
                         .layer_end = 32,
                         .n_ctx = 4096,
                         .weights_bytes = weights_bytes,
                         .kv_bytes = kv_bytes_,
                         .scratch_bytes = 10,
                         .slots_bytes = 20,
                         .load_bytes = 30};
}

static void what_fits_passes(void **state)
{
    (void)state;
    errmsg e = {0};
    device_need n = need(1000, 500);
    free_now = 1560;
    assert_int_equal(fits_check(&n, &e), ST_OK);
    free_now = 1559; /* what weights come through is there too */
    assert_int_equal(fits_check(&n, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "to load with 30 bytes"));
}

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    errmsg e = {0};
    device_need n = need(8000000000, 4000000000);
    free_now = 10000000060;
    assert_int_equal(fits_check(&n, &e), ST_RESOURCES);
    const char *const parts[] = {"stage 1: layers 16-31 need 12.00 GB on cuda:1 a card",
                                 "10.00 GB are free", "weights 8.00 GB", "KV 4.00 GB",
                                 "--ctx 2048 would fit"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(e.text, parts[i]) == NULL) fail_msg("'%s' lacks '%s'", e.text, parts[i]);
    errmsg_clear(&e);
    free_now = 7000000000;
    assert_int_equal(fits_check(&n, &e), ST_RESOURCES);
    assert_null(strstr(e.text, "--ctx"));
    assert_non_null(strstr(e.text, "more stages or devices"));
}

static void devices_without_memory_of_their_own_are_not_asked(void **state)
{
    (void)state;
    errmsg e = {0};
    uint64_t held = 5;
    device_need n = need(UINT64_MAX / 4, 1);
    n.backend = backend_cpu();
    assert_int_equal(fits_check(&n, &e), ST_OK);
    assert_int_equal(fits_begin_load(&n, &held, &e), ST_OK);
    assert_int_equal(fits_end_load(&n, held, &e), ST_OK);
}

/* A mirror on another device would fake the split. */
static void weights_elsewhere_are_noticed(void **state)
{
    (void)state;
    errmsg e = {0};
    uint64_t held;
    device_need n = need(1000, 1);
    held_now = 300;
    assert_int_equal(fits_begin_load(&n, &held, &e), ST_OK);
    held_now = 1300;
    assert_int_equal(fits_end_load(&n, held, &e), ST_OK);
    held_now = 1299;
    assert_int_equal(fits_end_load(&n, held, &e), ST_PROTOCOL);
    assert_non_null(strstr(e.text, "took 999 bytes of weights, 1000 were to go there"));
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_passes),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(devices_without_memory_of_their_own_are_not_asked),
        cmocka_unit_test(weights_elsewhere_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
