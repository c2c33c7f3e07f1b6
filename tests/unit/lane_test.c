/* Rows that devices tell each other through a boundary's host memory: what leaves is what comes, a
 * message is there only with its own lines, and marks end a row where tokens are drawn. The other
 * end of these lanes on a device: tests/gpu. */
#include "tests/support/tap.h"

#include "stage/lane.h"

#include <string.h>
#include <unistd.h>

#define N 64u

static const _Atomic uint32_t run_on;

/* A stage's rows in memory. */
typedef struct {
    uint32_t tokens[N];
    uint8_t live[N], finite[N];
    rows_came came;
} device;

static peer_rows rows_of(device *d, uint32_t n, uint16_t mark)
{
    return (peer_rows){.tokens = {(uintptr_t)d->tokens},
                       .live = {(uintptr_t)d->live},
                       .finite = {mark != 0 ? (uintptr_t)d->finite : 0},
                       .came = {(uintptr_t)&d->came},
                       .n_rows = n,
                       .mark = mark};
}

/* A boundary of one's own, and an end of it in that epoch; its descriptor. */
static int open_end(boundary_end *b, uint32_t epoch)
{
    errmsg e = {0};
    int fd;
    assert_int_equal(boundary_create(&fd, 4, 0, 0, &e), ST_OK);
    assert_int_equal(boundary_open(b, fd, epoch, &run_on, &e), ST_OK);
    return fd;
}

static void what_leaves_comes(void **state)
{
    (void)state;
    boundary_end b;
    slot_view v = {0};
    const int fd = open_end(&b, 1);
    boundary_lanes_clear(&b);
    for (uint32_t message = 0; message < 6; message++) {
        static device from, to;
        uint32_t n = message % 2 == 0 ? N : 1 + message, slot = message % 2;
        memset(&to, 0xee, sizeof to);
        for (uint32_t i = 0; i < N; i++) {
            from.tokens[i] = 0xfffffff0u - 97 * i - message;
            from.live[i] = (i + message) % 3 != 0;
            from.finite[i] = i % 5 == 0;
            from.came.row[i] = (came_row){.mark = (uint16_t)(i % 7 == 0 ? 3 : 0)};
        }
        const peer_rows leaves = rows_of(&from, n, 5), comes = rows_of(&to, n, 7);
        peer_lane l = lane_of(&b, slot, &v);
        assert_int_equal(lane_take_here(&l, &comes), ST_TIMEOUT);
        assert_int_equal(to.came.gone, 0xeeeeeeeeu); /* nothing was written */
        lane_put_here(&l, &leaves);
        assert_int_equal(lane_take_here(&l, &comes), ST_OK);
        assert_int_equal(to.came.gone, 0);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t mark = i % 7 == 0 ? 3 : i % 5 == 0 && from.live[i] != 0 ? 5 : 0;
            assert_int_equal(to.tokens[i], from.tokens[i]);
            assert_int_equal(to.live[i], from.live[i]);
            assert_int_equal(to.came.row[i].token, from.tokens[i]);
            assert_int_equal(to.came.row[i].live, from.live[i]);
            assert_int_equal(to.came.row[i].mark, mark);
        }
        if (n < N) assert_int_equal(to.tokens[n], 0xeeeeeeeeu);
        b.count[slot]++; /* the next message of the slot: what lies there is not its */
        l = lane_of(&b, slot, &v);
        assert_int_equal(lane_take_here(&l, &comes), ST_TIMEOUT);
    }
    boundary_close(&b);
    close(fd);
}

/* A row of the message is late: none of it has come. */
static void a_message_comes_whole(void **state)
{
    (void)state;
    static device from, to;
    boundary_end b;
    slot_view v = {0};
    const int fd = open_end(&b, 3);
    const peer_rows three = rows_of(&from, 3, 1), four = rows_of(&to, 4, 1);
    peer_lane l = lane_of(&b, 1, &v);
    lane_put_here(&l, &three);
    assert_int_equal(lane_take_here(&l, &four), ST_TIMEOUT);
    const peer_rows all = rows_of(&from, 4, 1);
    lane_put_here(&l, &all);
    assert_int_equal(lane_take_here(&l, &four), ST_OK);
    lane_poison(&b);
    assert_int_equal(atomic_load(&boundary_lanes_of(&b)->poison), 3);
    assert_int_equal(*(const uint64_t *)l.poison, 3);
    boundary_close(&b);
    close(fd);
}

/* Epochs have lanes in turn; a cleared one has no message. */
static void banks_alternate(void **state)
{
    (void)state;
    static device from, to;
    boundary_end b;
    slot_view v = {0};
    const peer_rows leaves = rows_of(&from, 2, 1), comes = rows_of(&to, 2, 1);
    const int fd = open_end(&b, 1);
    peer_lane l = lane_of(&b, 0, &v);
    lane_put_here(&l, &leaves);
    boundary_renew(&b, 2);
    peer_lane other = lane_of(&b, 0, &v);
    assert_int_equal(lane_take_here(&other, &comes), ST_TIMEOUT);
    boundary_renew(&b, 3);
    l = lane_of(&b, 0, &v);
    assert_int_equal(lane_take_here(&l, &comes), ST_OK); /* of epoch 1: so it is cleared first */
    boundary_lanes_clear(&b);
    assert_int_equal(lane_take_here(&l, &comes), ST_TIMEOUT);
    boundary_close(&b);
    close(fd);
}

static void marks_end_rows_where_tokens_are_drawn(void **state)
{
    (void)state;
    const came_row clean = {0}, marked = {.mark = 9};
    assert_int_equal(came_leaves(clean, 1, 1, 1, 5).mark, 5);
    assert_int_equal(came_leaves(clean, 1, 1, 1, 5).live, 1); /* it walks on, marked */
    assert_int_equal(came_leaves(clean, 1, 0, 1, 5).mark, 0);
    assert_int_equal(came_leaves(marked, 1, 1, 1, 5).mark, 9);
    assert_int_equal(came_leaves(marked, 1, 1, 0, 0).live, 0);
    assert_int_equal(came_leaves(clean, 1, 1, 0, 0).live, 1);
}

/* What was announced before it was there. */
static void sent_is_of_this_message(void **state)
{
    (void)state;
    boundary_end tx, rx;
    errmsg e = {0};
    slot_view v;
    const int fd = open_end(&tx, 1);
    assert_int_equal(boundary_open(&rx, fd, 1, &run_on, &e), ST_OK);
    for (uint32_t k = 0; k < 3; k++) {
        assert_int_equal(boundary_tx_begin(&tx, 1, 0, &v), ST_OK);
        boundary_tx_end(&tx, 1);
        assert_int_equal(boundary_rx_begin(&rx, 1, 0, &v), ST_OK);
        assert_false(boundary_rx_sent(&rx, 1));
        boundary_tx_sent(&tx, 1);
        assert_true(boundary_rx_sent(&rx, 1));
        assert_false(boundary_rx_sent(&rx, 0));
        boundary_rx_end(&rx, 1);
    }
    boundary_close(&tx);
    boundary_close(&rx);
    close(fd);
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leaves_comes),
        cmocka_unit_test(a_message_comes_whole),
        cmocka_unit_test(banks_alternate),
        cmocka_unit_test(marks_end_rows_where_tokens_are_drawn),
        cmocka_unit_test(sent_is_of_this_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
