/* What stages lend each other: where it lies, what is believed of it, and the cpu's pools, which
 * two devices see in one place. */
#include "tests/support/tap.h"

#include "common/plan.h"
#include "kernels/loan.h"
#include "stage/kv.h"
#include "tests/support/gguf_build.h"
#include "tests/support/ok.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_STAGES 3u
static const uint32_t ranges[N_STAGES + 1] = {0, 2, 3, 7}, blocks[KV_POOLS] = {5, 4};

static gguf *file;
static model_desc *model;
static loan_layout at;
static int fd = -1;
static loan lent;

static int set_up(void **state)
{
    (void)state;
    errmsg e = {0};
    llama_spec spec = llama_spec_arch("gemma3"); /* two classes */
    gguf_build *b = gguf_build_llama(&spec);
    int model_fd = gguf_build_fd(b);
    gguf_build_free(b);
    OK(gguf_open_fds(&file, &model_fd, 1, &e));
    model = malloc(sizeof *model);
    OK(model_read(model, file, &e));
    loan_layout_make(&at, model, N_STAGES, ranges, blocks, DT_F16, true);
    OK(loan_create(&fd, &at, &e));
    OK(loan_map(&lent, fd, &at, &e));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    loan_unmap(&lent);
    close(fd);
    free(model);
    gguf_close(file);
    return 0;
}

typedef struct {
    uint64_t begin, end;
} piece;

static int by_begin(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void pieces_do_not_touch(void **state)
{
    (void)state;
    piece p[64];
    uint32_t n = 0;
    for (uint32_t s = 0; s < N_STAGES; s++) {
        p[n++] = (piece){at.page[s], at.page[s] + sizeof(loan_page)};
        p[n++] = (piece){at.entries[s], at.entries[s] + at.n_entries_max[s] * sizeof(loan_entry)};
        for (uint32_t k = 0; k < KV_POOLS; k++) {
            uint32_t layers = model_n_layers_of(model, (layer_kind)k, ranges[s], ranges[s + 1]);
            assert_int_equal(at.kv_bytes[s][k], plan_kv_bytes(model, layers, blocks[k], DT_F16));
            assert_int_equal(at.kv[s][k] % 4096, 0);
            if (at.kv_bytes[s][k] > 0)
                p[n++] = (piece){at.kv[s][k], at.kv[s][k] + at.kv_bytes[s][k]};
        }
    }
    qsort(p, n, sizeof *p, by_begin);
    for (uint32_t i = 1; i < n; i++)
        assert_true(p[i - 1].end <= p[i].begin);
    assert_true(p[n - 1].end <= at.bytes);
    /* Without pools in it there are the pages alone, and of that size nobody else's is taken. */
    loan_layout small;
    errmsg e = {0};
    loan l;
    loan_layout_make(&small, model, N_STAGES, ranges, blocks, DT_F16, false);
    assert_true(small.bytes < at.bytes && small.page[2] == at.page[2]);
    assert_int_equal(loan_map(&l, fd, &small, &e), ST_PROTOCOL);
    assert_null(l.map);
}

static void a_note_is_of_one_incarnation(void **state)
{
    (void)state;
    errmsg e = {0};
    loan_note *n = &loan_page_of(&lent, 1)->weights, got;
    assert_int_equal(loan_read(&got, n, 1, 4, "x", &e), ST_PROTOCOL); /* nothing is there */
    assert_int_equal(loan_read(&got, n, 0, 4, "x", &e), ST_PROTOCOL);
    n->n_entries = 4;
    n->bytes = 77;
    n->ticket = (loan_ticket){.bytes = 3, .data = "abc"};
    loan_publish(n, 6);
    OK(loan_read(&got, n, 6, 4, "x", &e));
    assert_int_equal(got.n_entries, 4);
    assert_int_equal(got.bytes, 77);
    assert_memory_equal(got.ticket.data, "abc", 3);
    assert_int_equal(loan_read(&got, n, 5, 4, "weights of stage 1", &e), ST_PROTOCOL);
    assert_non_null(strstr(e.text, "weights of stage 1: lent by incarnation 6, asked of 5"));
    errmsg_clear(&e);
    assert_int_equal(loan_read(&got, n, 6, 3, "x", &e), ST_PROTOCOL); /* more than there can be */
    n->ticket.bytes = LOAN_TICKET_BYTES + 1;
    errmsg_clear(&e);
    assert_int_equal(loan_read(&got, n, 6, 4, "x", &e), ST_PROTOCOL);
}

static backend_device *open_device(void)
{
    errmsg e = {0};
    backend_device *d;
    OK(backend_cpu()->device_open(&d, &(device_spec){UINT32_MAX, 1, "auto", 0, NULL}, &e));
    return d;
}

static void borrowed_pools_are_the_lenders(void **state)
{
    (void)state;
    errmsg e = {0};
    const backend *b = backend_cpu();
    const stage_limits limits = {.n_ctx = 128,
                                 .n_branches = 2,
                                 .rows_max = 8,
                                 .n_readback = 1,
                                 .n_blocks = {blocks[0], blocks[1]}};
    host_layout host_at;
    host_layout_make(&host_at, model, &limits);
    char *host = calloc(2, host_at.bytes);
    backend_device *d[2] = {open_device(), open_device()};
    kv_cache own, theirs, seen;
    const kv_place first = {&lent, 0, 3}, second = {&lent, 2, 4};
    OK(kv_open(&own, b, d[0], model, 0, 2, DT_F16, &limits, host, &host_at, &first, &e));
    OK(kv_open(&theirs, b, d[1], model, 3, 7, DT_F16, &limits, host + host_at.bytes, &host_at,
               &second, &e));
    OK(kv_borrow(&seen, &own, model, 3, 7, &second, &e));
    for (uint32_t i = 0; i < 4; i++) {
        kv_args x = kv_layer(&theirs, i), y = kv_layer(&seen, i);
        assert_true(x.k.addr != y.k.addr && x.v.addr - x.k.addr == y.v.addr - y.k.addr);
        memset((void *)(uintptr_t)y.v.addr, (int)(0x40 + i), 32);
        assert_memory_equal((void *)(uintptr_t)x.v.addr, (void *)(uintptr_t)y.v.addr, 64);
    }
    kv_close(&seen);
    /* Of another incarnation, or of another size than the model says: none. */
    assert_int_equal(kv_borrow(&seen, &own, model, 3, 7, &(kv_place){&lent, 2, 5}, &e),
                     ST_PROTOCOL);
    kv_close(&seen);
    loan_page_of(&lent, 2)->kv[KV_CLASS_WINDOW].bytes--;
    errmsg_clear(&e);
    assert_int_equal(kv_borrow(&seen, &own, model, 3, 7, &second, &e), ST_PROTOCOL);
    assert_non_null(strstr(e.text, "K and V (window) of stage 2"));
    kv_close(&seen);
    kv_close(&theirs);
    kv_close(&own);
    b->device_close(d[0]);
    b->device_close(d[1]);
    free(host);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_touch),
        cmocka_unit_test(a_note_is_of_one_incarnation),
        cmocka_unit_test(borrowed_pools_are_the_lenders),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
