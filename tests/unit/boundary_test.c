/* The boundary: layout, the two slots, epochs and banks, bounded waits, and 10,000 handoffs between
 * two threads (ThreadSanitizer looks at these). */
#include "tests/support/tap.h"

#include "common/boundary.h"
#include "common/clock.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define ROWS 5u
#define EMBD 7u

static const _Atomic uint32_t run_on;

static int make(uint32_t n_embd)
{
    int fd;
    errmsg e = {0};
    assert_int_equal(boundary_create(&fd, ROWS, n_embd, 0, &e), ST_OK);
    return fd;
}

static boundary_end open_end(int fd, uint32_t epoch, const _Atomic uint32_t *stop)
{
    boundary_end b;
    errmsg e = {0};
    assert_int_equal(boundary_open(&b, fd, epoch, stop, &e), ST_OK);
    return b;
}

static void layout_is_checked(void **state)
{
    (void)state;
    uint64_t bytes = boundary_bytes(ROWS, EMBD, 4);
    boundary_header h = {.magic = BOUNDARY_MAGIC, .version = BOUNDARY_VERSION, .rows_max = ROWS,
                         .n_embd = EMBD, .aux_bytes = 4, .bytes = bytes};
    int fd = make(EMBD);
    boundary_end b = open_end(fd, 1, &run_on);
    boundary_header good = *(boundary_header *)b.map;
    assert_true(boundary_valid(&good, b.bytes));
    assert_false(boundary_valid(&h, bytes)); /* slot bytes and offset are not there */
    for (size_t i = 0; i < sizeof good; i++) {
        boundary_header bad = good;
        ((unsigned char *)&bad)[i] ^= 1;
        bool ignored =
            i >= offsetof(boundary_header, reserved) && i < offsetof(boundary_header, slot_bytes);
        if (!ignored) assert_false(boundary_valid(&bad, b.bytes));
    }
    assert_false(boundary_valid(&good, b.bytes - 1));
    boundary_close(&b);
    close(fd);
}

static void slots_hold_different_rows(void **state)
{
    (void)state;
    int fd = make(EMBD);
    boundary_end tx = open_end(fd, 1, &run_on), rx = open_end(fd, 1, &run_on);
    slot_view v;
    for (uint32_t slot = 0; slot < BOUNDARY_SLOTS; slot++) {
        assert_int_equal(boundary_tx_begin(&tx, slot, 0, &v), ST_OK);
        *v.header = (slot_header){.seq = 10 + slot, .epoch = 1, .n_rows = ROWS, .kind = SLOT_STEP};
        for (uint32_t i = 0; i < ROWS * EMBD; i++) v.hidden[i] = (float)(100 * slot + i);
        v.rows[ROWS - 1].token = slot;
        boundary_tx_end(&tx, slot);
    }
    for (uint32_t slot = 0; slot < BOUNDARY_SLOTS; slot++) {
        assert_int_equal(boundary_rx_begin(&rx, slot, 0, &v), ST_OK);
        assert_true(slot_valid(&rx, &v, SLOT_STEP, 10 + slot));
        assert_false(slot_valid(&rx, &v, SLOT_PROBE, 10 + slot));
        assert_false(slot_valid(&rx, &v, SLOT_STEP, 11 + slot));
        for (uint32_t i = 0; i < ROWS * EMBD; i++)
            assert_true(v.hidden[i] == (float)(100 * slot + i));
        assert_int_equal(v.rows[ROWS - 1].token, slot);
        v.header->n_rows = ROWS + 1;
        assert_false(slot_valid(&rx, &v, SLOT_STEP, 10 + slot));
        boundary_rx_end(&rx, slot);
    }
    boundary_close(&tx);
    boundary_close(&rx);
    close(fd);
}

static void full_and_empty_wait_and_time_out(void **state)
{
    (void)state;
    int fd = make(EMBD);
    boundary_end tx = open_end(fd, 1, &run_on), rx = open_end(fd, 1, &run_on);
    slot_view v;
    uint64_t begin = now_ns();
    assert_int_equal(boundary_rx_begin(&rx, 0, 20 * NS_PER_MS, &v), ST_TIMEOUT);
    assert_true(now_ns() - begin >= 20 * NS_PER_MS);
    assert_int_equal(boundary_tx_begin(&tx, 0, 0, &v), ST_OK);
    boundary_tx_end(&tx, 0);
    assert_int_equal(boundary_tx_begin(&tx, 0, 0, &v), ST_TIMEOUT); /* full */
    assert_int_equal(boundary_tx_begin(&tx, 1, 0, &v), ST_OK);      /* the other is free */
    assert_int_equal(boundary_rx_begin(&rx, 0, 0, &v), ST_OK);
    boundary_rx_end(&rx, 0);
    assert_int_equal(boundary_tx_begin(&tx, 0, 0, &v), ST_OK);
    boundary_close(&tx);
    boundary_close(&rx);
    close(fd);
}

/* A dead incarnation that still writes cannot reach what its replacement uses. */
static void epochs_use_other_banks(void **state)
{
    (void)state;
    int fd = make(EMBD);
    boundary_end old_tx = open_end(fd, 1, &run_on);
    boundary_end tx = open_end(fd, 2, &run_on), rx = open_end(fd, 2, &run_on);
    slot_view v;
    assert_int_equal(boundary_tx_begin(&old_tx, 0, 0, &v), ST_OK);
    v.hidden[0] = 1;
    boundary_tx_end(&old_tx, 0);
    assert_int_equal(boundary_rx_begin(&rx, 0, 0, &v), ST_TIMEOUT);
    assert_int_equal(boundary_tx_begin(&tx, 0, 0, &v), ST_OK);
    v.hidden[0] = 2;
    boundary_tx_end(&tx, 0);
    slot_view stale;
    assert_int_equal(boundary_rx_begin(&rx, 0, 0, &v), ST_OK);
    assert_true(v.hidden[0] == 2);
    /* Epoch 3 comes back to the bank of epoch 1: what epoch 1 left there counts for nothing. */
    boundary_end rx3 = open_end(fd, 3, &run_on), tx3 = open_end(fd, 3, &run_on);
    assert_int_equal(boundary_rx_begin(&rx3, 0, 0, &stale), ST_TIMEOUT);
    assert_int_equal(boundary_tx_begin(&tx3, 0, 0, &stale), ST_OK);
    boundary_end *all[] = {&old_tx, &tx, &rx, &rx3, &tx3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) boundary_close(all[i]);
    close(fd);
}

typedef struct {
    boundary_end end;
    _Atomic uint32_t stop;
    status got;
} waiter;

static void *wait_for_rows(void *arg)
{
    waiter *w = arg;
    slot_view v;
    w->got = boundary_rx_begin(&w->end, 0, 60 * NS_PER_S, &v);
    return NULL;
}

static void stop_ends_a_wait(void **state)
{
    (void)state;
    int fd = make(EMBD);
    waiter w = {0};
    w.end = open_end(fd, 1, &w.stop);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, wait_for_rows, &w), 0);
    atomic_store(&w.stop, 1);
    /* The waiter may be between its look at the flag and its sleep: wake until it is gone. */
    struct timespec until;
    int rc;
    do {
        boundary_wake(&w.end);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        rc = pthread_timedjoin_np(t, NULL, &until);
    } while (rc != 0);
    assert_int_equal(w.got, ST_CLOSED);
    boundary_close(&w.end);
    close(fd);
}

#define HANDOFFS 10000u

static float value_of(uint32_t step, uint32_t i)
{
    return (float)((step * 31u + i * 7u) % 65521u);
}

static void *send_all(void *arg)
{
    boundary_end *tx = arg;
    for (uint32_t step = 1; step <= HANDOFFS; step++) {
        slot_view v;
        uint32_t slot = step % 3 == 0 ? 0 : step % 2; /* not always alternating */
        if (boundary_tx_begin(tx, slot, 30 * NS_PER_S, &v) != ST_OK) return (void *)1;
        *v.header =
            (slot_header){.seq = step, .epoch = 1, .n_rows = 1 + step % ROWS, .kind = SLOT_STEP};
        for (uint32_t i = 0; i < v.header->n_rows * EMBD; i++) v.hidden[i] = value_of(step, i);
        boundary_tx_end(tx, slot);
    }
    return NULL;
}

static void ten_thousand_handoffs(void **state)
{
    (void)state;
    int fd = make(EMBD);
    boundary_end tx = open_end(fd, 1, &run_on), rx = open_end(fd, 1, &run_on);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, send_all, &tx), 0);
    uint32_t n_wrong = 0;
    for (uint32_t step = 1; step <= HANDOFFS; step++) {
        slot_view v;
        uint32_t slot = step % 3 == 0 ? 0 : step % 2;
        assert_int_equal(boundary_rx_begin(&rx, slot, 30 * NS_PER_S, &v), ST_OK);
        assert_true(slot_valid(&rx, &v, SLOT_STEP, step));
        assert_int_equal(v.header->n_rows, 1 + step % ROWS);
        for (uint32_t i = 0; i < v.header->n_rows * EMBD; i++)
            n_wrong += v.hidden[i] != value_of(step, i);
        boundary_rx_end(&rx, slot);
    }
    void *rc;
    pthread_join(t, &rc);
    assert_null(rc);
    assert_int_equal(n_wrong, 0);
    boundary_close(&tx);
    boundary_close(&rx);
    close(fd);
}

static void token_edge_has_no_hidden_state(void **state)
{
    (void)state;
    int fd = make(0);
    boundary_end tx = open_end(fd, 1, &run_on);
    slot_view v;
    assert_int_equal(boundary_tx_begin(&tx, 1, 0, &v), ST_OK);
    assert_null(v.hidden);
    assert_non_null(v.rows);
    boundary_close(&tx);
    close(fd);
}

static void foreign_memory_is_refused(void **state)
{
    (void)state;
    int fd = make(EMBD);
    boundary_end b = open_end(fd, 1, &run_on);
    ((boundary_header *)b.map)->rows_max = UINT32_MAX;
    boundary_end other;
    errmsg e = {0};
    assert_int_equal(boundary_open(&other, fd, 1, &run_on, &e), ST_PROTOCOL);
    assert_string_not_equal(e.text, "");
    /* The end that is open already keeps the sizes it checked. */
    assert_int_equal(b.rows_max, ROWS);
    boundary_close(&b);
    close(fd);
    errmsg_clear(&e);
    assert_int_equal(boundary_open(&other, -1, 1, &run_on, &e), ST_PROTOCOL);
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_checked),
        cmocka_unit_test(slots_hold_different_rows),
        cmocka_unit_test(full_and_empty_wait_and_time_out),
        cmocka_unit_test(epochs_use_other_banks),
        cmocka_unit_test(stop_ends_a_wait),
        cmocka_unit_test(ten_thousand_handoffs),
        cmocka_unit_test(token_edge_has_no_hidden_state),
        cmocka_unit_test(foreign_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
