/* Which transport a boundary gets, and how its ends meet, part and meet again: two stages, a thread
 * each, over a cpu backend that plays devices (tests/support/fake_peer.h). */
#include "tests/support/tap.h"

#include "common/clock.h"
#include "common/log.h"
#include "stage/connect.h"
#include "tests/support/fake_peer.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define ROWS  24u
#define EMBD  2048u /* 24 rows are beyond PEER_SMALL_BYTES, one row is below */
#define N     2u

typedef struct {
    const backend *b;
    backend_device *d;
    backend_queue *q;
    edges x;
    stage_words words;
    _Atomic uint32_t stop;
    dev_ptr hidden;
    errmsg e;
    status s;
} side;

typedef struct {
    int fd[N];
    side side[N];
} pair;

typedef struct {
    bool device[N];
    transport_kind transport;
    signal_kind signal;
} setting;

static const setting both_devices = {.device = {true, true}};

static void open_side(pair *p, uint32_t i, const setting *set, const backend *devices)
{
    side *s = &p->side[i];
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = 1, .isa = "ref"};
    memset(s, 0, sizeof *s);
    s->b = set->device[i] ? devices : backend_cpu();
    assert_int_equal(s->b->device_open(&s->d, &spec, &s->e), ST_OK);
    assert_int_equal(s->b->queue_open(s->d, &s->q, &s->e), ST_OK);
    assert_int_equal(s->b->alloc(s->d, &s->hidden, ROWS * EMBD * sizeof(float), &s->e), ST_OK);
    wire_config c = {.stage_i = i,
                     .n_stages = N,
                     .edge_epoch = 1,
                     .rows_max = ROWS,
                     .in_fd = p->fd[(i + 1) % N],
                     .out_fd = p->fd[i],
                     .transport = set->transport,
                     .signal = set->signal,
                     .wait_limit_ms = 60000};
    assert_int_equal(edges_open(&s->x, &c, s->b, s->q, &s->words, &s->stop, &s->e), ST_OK);
}

static void pair_open(pair *p, const setting *set, const backend *devices)
{
    errmsg e = {0};
    assert_int_equal(boundary_create(&p->fd[0], ROWS, EMBD, 0, &e), ST_OK);
    assert_int_equal(boundary_create(&p->fd[1], ROWS, 0, 0, &e), ST_OK); /* tokens */
    for (uint32_t i = 0; i < N; i++)
        open_side(p, i, set, devices);
}

static void pair_close(pair *p)
{
    for (uint32_t i = 0; i < N; i++) { /* the sender of the rows first */
        side *s = &p->side[i];
        edges_close(&s->x);
        s->b->free(s->d, s->hidden, ROWS * EMBD * sizeof(float));
        s->b->queue_close(s->q);
        s->b->device_close(s->d);
        close(p->fd[i]);
    }
    assert_int_equal(fake.n_boxes, 0);
    assert_int_equal(fake.n_windows, 0);
    assert_int_equal(fake.n_links, 0);
    assert_int_equal(fake.n_pins, 0);
    assert_int_equal(fake.n_orphans, 0);
}

static void *connect_side(void *arg)
{
    side *s = arg;
    errmsg_clear(&s->e);
    s->s = edges_connect(&s->x, s->hidden, false, &s->e);
    return NULL;
}

/* Both sides at once. When the receiver gives up, the coordinator ends the sender. */
static void pair_connect(pair *p)
{
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, connect_side, &p->side[0]), 0);
    connect_side(&p->side[1]);
    if (p->side[1].s != ST_OK) {
        atomic_store(&p->side[0].stop, 1);
        edges_wake(&p->side[0].x);
    }
    pthread_join(t, NULL);
}

static void is_connected(pair *p, const char *name, const char *signal)
{
    bool device = p->side[0].b->peer != NULL || p->side[1].b->peer != NULL;
    for (uint32_t i = 0; i < N; i++) {
        if (p->side[i].s != ST_OK) print_error("# stage %u: %s\n", i, p->side[i].e.text);
        assert_int_equal(p->side[i].s, ST_OK);
    }
    const edge *in = &p->side[1].x.in, *out = &p->side[0].x.out;
    assert_string_equal(in->kind->name, name);
    assert_string_equal(out->kind->name, name);
    assert_string_equal(in->kind->signal(in->way), signal);
    assert_string_equal(out->kind->signal(out->way), signal);
    assert_string_equal(p->side[0].x.in.kind->name, device ? "host" : "shm"); /* tokens */
    for (uint32_t i = 0; i < N;
         i++) /* the fake device has no kernels for what devices tell each other */
        assert_int_equal(edges_carry(&p->side[i].x), p->side[i].b->peer == NULL);
    assert_int_equal(p->side[1].words.n_probes, 8);
    assert_int_equal(p->side[0].words.n_probes, 8);
}

static void refused(pair *p, status code, const char *part, const char *other_part)
{
    side *rx = &p->side[1];
    assert_int_equal(rx->s, code);
    if (strstr(rx->e.text, part) == NULL || strstr(rx->e.text, other_part) == NULL)
        fail_msg("'%s' lacks '%s' or '%s'", rx->e.text, part, other_part);
    assert_int_equal(p->side[0].s, ST_CLOSED);
}

static float value_of(uint32_t step, uint32_t i)
{
    return (float)((step * 31u + i * 7u) % 65521u);
}

/* A step's rows from stage 0 to stage 1, by turns on one thread: a slot is free when it begins. */
static void cross(pair *p, uint32_t step, uint32_t n_rows)
{
    side *tx = &p->side[0], *rx = &p->side[1];
    float *from = (float *)(uintptr_t)tx->hidden.addr, *to = (float *)(uintptr_t)rx->hidden.addr;
    wire_row rows[ROWS] = {0};
    for (uint32_t r = 0; r < n_rows; r++)
        rows[r] = (wire_row){.session = 7, .position = r, .token = step, .flags = ROW_LIVE};
    for (uint32_t i = 0; i < n_rows * EMBD; i++)
        from[i] = value_of(step, i);
    memset(to, 0, ROWS * EMBD * sizeof *to);
    assert_int_equal(edges_send(&tx->x, step % 2, step, rows, NULL, n_rows, tx->hidden, &tx->e),
                     ST_OK);
    incoming in = {
        .slot = step % 2, .seq = step, .rows = rows, .n_rows = n_rows, .hidden = rx->hidden};
    assert_int_equal(edges_receive(&rx->x, &in, &rx->e), ST_OK);
    for (uint32_t i = 0; i < n_rows * EMBD; i++)
        if (to[i] != value_of(step, i)) fail_msg("step %u element %u", step, i);
}

static void crossings(pair *p)
{
    for (uint32_t step = 1; step <= 6; step++)
        cross(p, step, step % 3 == 0 ? ROWS : step);
}

static void run(const setting *set, const char *name, const char *signal)
{
    pair p;
    pair_open(&p, set, fake_peer_backend());
    pair_connect(&p);
    is_connected(&p, name, signal);
    crossings(&p);
    pair_close(&p);
}

/* --- the tests --- */

static void devices_use_ipc(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    pair_connect(&p);
    is_connected(&p, "ipc", "spin, memop");
    uint32_t spin = fake.n_puts[PEER_SPIN], memop = fake.n_puts[PEER_MEMOP];
    cross(&p, 1, 1);
    assert_int_equal(fake.n_puts[PEER_SPIN], spin + 1);
    cross(&p, 2, ROWS);
    assert_int_equal(fake.n_puts[PEER_MEMOP], memop + 1);
    crossings(&p);
    pair_close(&p);
}

static void shared_device_does_not_spin(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    fake.same_device = true;
    pair_connect(&p);
    is_connected(&p, "ipc", "memop");
    assert_int_equal(fake.n_puts[PEER_SPIN], 0);
    crossings(&p);
    pair_close(&p);
}

static void without_memop_events_are_used(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    fake.no_memop = fake.same_device = true;
    pair_connect(&p);
    is_connected(&p, "ipc", "event");
    crossings(&p);
    pair_close(&p);
}

static void mixed_pairs_go_through_the_host(void **state)
{
    (void)state;
    run(&(setting){.device = {true, false}}, "host", "futex");
    run(&(setting){.device = {false, true}}, "host", "futex");
    run(&(setting){.device = {false, false}}, "shm", "futex");
}

static void doors_force(void **state)
{
    (void)state;
    setting s = both_devices;
    s.transport = TRANSPORT_SHM;
    run(&s, "shm", "futex");
    s.transport = TRANSPORT_HOST;
    run(&s, "host", "futex");
    s.transport = TRANSPORT_IPC;
    run(&s, "ipc", "spin, memop");
    const char *const words[] = {[SIGNAL_EVENT] = "event", [SIGNAL_MEMOP] = "memop",
                                 [SIGNAL_SPIN] = "spin"};
    for (signal_kind k = SIGNAL_EVENT; k <= SIGNAL_SPIN; k++) {
        s.transport = TRANSPORT_AUTO;
        s.signal = k;
        run(&s, "ipc", words[k]);
    }
}

static void nccl_when_forced(void **state)
{
    (void)state;
    pair p;
    setting s = both_devices;
    s.transport = TRANSPORT_NCCL;
    pair_open(&p, &s, fake_peer_backend());
    fake.link_works = true;
    pair_connect(&p);
    is_connected(&p, "nccl", "nccl");
    crossings(&p);
    pair_close(&p);
}

static void forced_and_impossible_is_refused(void **state)
{
    (void)state;
    pair p;
    setting s = {.device = {true, false}, .transport = TRANSPORT_IPC};
    pair_open(&p, &s, fake_peer_backend());
    pair_connect(&p);
    refused(&p, ST_RESOURCES, "boundary 0 -> 1: MEMRA_PP_TRANSPORT=ipc cannot work here",
            "CUDA device");
    pair_close(&p);

    s = (setting){.device = {true, true}, .transport = TRANSPORT_IPC};
    pair_open(&p, &s, fake_peer_backend());
    fake.no_window = true;
    pair_connect(&p);
    refused(&p, ST_RESOURCES, "MEMRA_PP_TRANSPORT=ipc cannot work here", "no window here");
    pair_close(&p);

    s.transport = TRANSPORT_NCCL;
    pair_open(&p, &s, fake_peer_backend());
    pair_connect(&p);
    refused(&p, ST_RESOURCES, "MEMRA_PP_TRANSPORT=nccl cannot work here", "no link here");
    pair_close(&p);

    s = (setting){.device = {true, true}, .signal = SIGNAL_MEMOP};
    pair_open(&p, &s, fake_peer_backend());
    fake.no_memop = true;
    pair_connect(&p);
    refused(&p, ST_RESOURCES, "MEMRA_PP_SIGNAL=memop cannot work here", "signal by memop");
    pair_close(&p);

    s = (setting){.device = {false, false}, .signal = SIGNAL_SPIN};
    pair_open(&p, &s, fake_peer_backend());
    pair_connect(&p);
    refused(&p, ST_RESOURCES, "MEMRA_PP_SIGNAL=spin cannot work here", "CUDA device");
    pair_close(&p);
}

static void what_fails_falls_to_the_next(void **state)
{
    (void)state;
    pair p;
    for (int how = 0; how < 4; how++) {
        pair_open(&p, &both_devices, fake_peer_backend());
        fake.no_box = how == 0;
        fake.no_window = how == 1;
        fake.corrupt = how == 2;
        fake.silent = how == 3;
        pair_connect(&p);
        is_connected(&p, "host", "futex");
        crossings(&p);
        pair_close(&p);
    }
    pair_open(&p, &both_devices, fake_peer_backend());
    fake.corrupt = fake.link_works = true;
    pair_connect(&p);
    is_connected(&p, "nccl", "nccl");
    crossings(&p);
    pair_close(&p);
}

static void failed_probe_of_a_forced_one_stops(void **state)
{
    (void)state;
    pair p;
    setting s = both_devices;
    s.transport = TRANSPORT_IPC;
    pair_open(&p, &s, fake_peer_backend());
    fake.corrupt = true;
    pair_connect(&p);
    refused(&p, ST_PROTOCOL, "byte probe of boundary 0 -> 1 failed", "slot 0, 1 rows, row 0");
    pair_close(&p);
}

/* Marks cross with their rows; one of a stage that there is not is no row of ours. */
static void marks_go_with_their_rows(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    pair_connect(&p);
    side *tx = &p.side[0], *rx = &p.side[1];
    wire_row rows[3] = {{.position = 0, .flags = ROW_LIVE}, {.position = 1, .flags = ROW_LIVE},
                        {.position = 2, .flags = ROW_LIVE}};
    poison_mark sent[3] = {0, poison_hidden(0), poison_logits(N - 1)}, got[3] = {9, 9, 9};
    incoming in = {
        .slot = 1, .seq = 1, .rows = rows, .n_rows = 3, .poison = got, .hidden = rx->hidden};
    assert_int_equal(edges_send(&tx->x, 1, 1, rows, sent, 3, tx->hidden, &tx->e), ST_OK);
    assert_int_equal(edges_receive(&rx->x, &in, &rx->e), ST_OK);
    assert_memory_equal(got, sent, sizeof sent);
    sent[1] = poison_hidden(N);
    in.slot = 0;
    in.seq = 2;
    assert_int_equal(edges_send(&tx->x, 0, 2, rows, sent, 3, tx->hidden, &tx->e), ST_OK);
    assert_int_equal(edges_receive(&rx->x, &in, &rx->e), ST_PROTOCOL);
    assert_non_null(strstr(rx->e.text, "row 1 is session 0 position 1"));
    pair_close(&p);
}

/* Nor is a token outside the vocabulary, where tokens are drawn on the way. */
static void drawn_tokens_are_below_the_vocabulary(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    pair_connect(&p);
    side *tx = &p.side[0], *rx = &p.side[1];
    for (uint32_t step = 1; step <= 2; step++) {
        wire_row drew = {.token = step == 1 ? 99 : 100, .flags = ROW_LIVE},
                 row = {.flags = ROW_LIVE};
        incoming in = {.slot = step % 2, .seq = step, .rows = &row, .n_rows = 1, .drawn = true,
                       .n_vocab = 100, .hidden = rx->hidden};
        assert_int_equal(edges_send(&tx->x, step % 2, step, &drew, NULL, 1, tx->hidden, &tx->e),
                         ST_OK);
        assert_int_equal(edges_receive(&rx->x, &in, &rx->e), step == 1 ? ST_OK : ST_PROTOCOL);
        assert_int_equal(row.token, step == 1 ? 99 : 0);
    }
    assert_non_null(strstr(rx->e.text, "token 100"));
    pair_close(&p);
}

typedef struct {
    side *s;
    wire_row row;
    status got;
} receiver;

static void *receive_one(void *arg)
{
    receiver *r = arg;
    incoming in = {.slot = 1, .seq = 1, .rows = &r->row, .n_rows = 1, .hidden = r->s->hidden};
    r->got = edges_receive(&r->s->x, &in, &r->s->e);
    return NULL;
}

/* The sender announces and dies before its device signals: the receiver is let go at once, and what
 * would have been overwritten is not. */
static void a_dead_sender_leaves_nobody_waiting(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    pair_connect(&p);
    is_connected(&p, "ipc", "spin, memop");
    fake.silent = true;
    receiver r = {.s = &p.side[1], .row = {.flags = ROW_LIVE}};
    float *to = (float *)(uintptr_t)p.side[1].hidden.addr, before = 12345;
    to[0] = before;
    assert_int_equal(
        edges_send(&p.side[0].x, 1, 1, &r.row, NULL, 1, p.side[0].hidden, &p.side[0].e), ST_OK);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, receive_one, &r), 0);
    while (atomic_load(&p.side[1].words.starved) != STARVED_INPUT_EMPTY)
        sched_yield(); /* it waits, and says so */
    uint64_t began = now_ns();
    atomic_store(&p.side[1].stop, 1);
    edges_wake(&p.side[1].x);
    pthread_join(t, NULL);
    assert_int_equal(r.got, ST_CLOSED);
    assert_true(now_ns() - began < 2 * NS_PER_S);
    assert_true(to[0] == before);
    pair_close(&p);
}

/* A neighbour is replaced: the edge is closed and connected again under the next epochs, both
 * directions of who stays. */
static void edges_are_renewed_on_a_live_stage(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &both_devices, fake_peer_backend());
    pair_connect(&p);
    for (uint32_t epoch = 2; epoch <= 4; epoch++) {
        crossings(&p);
        for (uint32_t i = 0; i < N; i++) {
            side *s = &p.side[i];
            edge_renew(&s->x, &s->x.out, epoch);
            edge_renew(&s->x, &s->x.in, epoch);
            s->words.n_probes = 0;
        }
        assert_int_equal(fake.n_boxes + fake.n_windows, 0);
        pair_connect(&p);
        is_connected(&p, "ipc", "spin, memop");
    }
    crossings(&p);
    pair_close(&p);
}

int main(void)
{
    tap_begin(120);
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    log_open("transport_test", LOG_ERROR, null_fd); /* falling to the next is loud */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_use_ipc),
        cmocka_unit_test(shared_device_does_not_spin),
        cmocka_unit_test(without_memop_events_are_used),
        cmocka_unit_test(mixed_pairs_go_through_the_host),
        cmocka_unit_test(doors_force),
        cmocka_unit_test(nccl_when_forced),
        cmocka_unit_test(forced_and_impossible_is_refused),
        cmocka_unit_test(what_fails_falls_to_the_next),
        cmocka_unit_test(failed_probe_of_a_forced_one_stops),
        cmocka_unit_test(marks_go_with_their_rows),
        cmocka_unit_test(drawn_tokens_are_below_the_vocabulary),
        cmocka_unit_test(a_dead_sender_leaves_nobody_waiting),
        cmocka_unit_test(edges_are_renewed_on_a_live_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
