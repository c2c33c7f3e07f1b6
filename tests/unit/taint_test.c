/* KV blocks that a poisoned session held are wiped before anybody has them again: the coordinator's
 * books, and the pools of a stage that follows their operations. Allocate again, look. */
#include "tests/support/tap.h"

#include "coordinator/engine/kvbooks.h"
#include "stage/kv.h"
#include "tests/support/ok.h"

#include <stdlib.h>
#include <string.h>

#define N_CTX   300u
#define N_VOCAB 320u

#define BOOK_BLOCKS 5u

typedef struct {
    pipeline *p;
    backend_device *device;
    backend_queue *q;
    char *host;
    kv_cache kv; /* of a stage, which follows the operations */
} books;

static void books_open(books *b)
{
    errmsg e = {0};
    host_layout at;
    const stage_limits limits = {.n_ctx = N_CTX, .n_branches = 2, .rows_max = 8, .n_readback = 2,
                                 .n_blocks = {BOOK_BLOCKS}, .last_stage = true};
    device_spec spec = {.numa_node = UINT32_MAX, .n_threads = 1, .isa = "auto"};
    b->p = calloc(1, sizeof *b->p);
    b->p->model = calloc(1, sizeof *b->p->model);
    *b->p->model = (model_desc){.n_kv_heads = 2, .n_head = 16, .n_vocab = N_VOCAB, .n_layers = 1};
    b->p->model->rope.n_rot = 16;
    b->p->plan.n_ctx = N_CTX;
    b->p->plan.n_sessions = 2;
    b->p->plan.rows_max = 8;
    b->p->plan.n_blocks[KV_CLASS_GLOBAL] = BOOK_BLOCKS;
    OK(kvbooks_open(b->p, &e));
    host_layout_make(&at, b->p->model, &limits);
    b->host = calloc(1, at.bytes);
    OK(backend_cpu()->device_open(&b->device, &spec, &e));
    OK(backend_cpu()->queue_open(b->device, &b->q, &e));
    OK(kv_open(&b->kv, backend_cpu(), b->device, b->p->model, 0, 1, DT_F32, &limits, b->host, &at,
               NULL, &e));
}

static void books_close(books *b)
{
    backend_cpu()->queue_close(b->q);
    kv_close(&b->kv);
    backend_cpu()->device_close(b->device);
    kvbooks_close(b->p);
    free(b->host);
    free(b->p->kv_ops);
    free(b->p->model);
    free(b->p);
}

static session *book_session(books *b, uint32_t branch)
{
    errmsg e = {0};
    session *s = calloc(1, sizeof *s);
    s->p = b->p;
    s->branch = branch;
    s->generation = 1;
    s->share = true;
    assert_true(kvbooks_make(s));
    OK(kvbooks_room(b->p, 1, &e));
    kvbooks_put(s, KV_OPEN, KV_CLASS_GLOBAL, 0, 0, 0);
    return s;
}

static void book_session_free(session *s)
{
    kvbooks_free(s);
    free(s);
}

/* A stage takes the operations that are due. */
static void books_apply(books *b)
{
    errmsg e = {0};
    OK(kv_ops(&b->kv, b->q, b->p->kv_ops, b->p->n_kv_ops, &e));
    b->p->n_kv_ops = 0;
}

static uint64_t block_bytes(void)
{
    return 2 * KV_BLOCK * 16 * sizeof(float);
}

/* K and V of a block. */
static unsigned char *bytes_of(const books *b, uint32_t block, uint32_t i)
{
    kv_args layer = kv_layer(&b->kv, 0);
    return (unsigned char *)(i == 0 ? layer.k : layer.v).addr + block * block_bytes();
}

static void books_fill(const books *b, uint32_t block)
{
    for (uint32_t i = 0; i < 2; i++) memset(bytes_of(b, block, i), 0xff, block_bytes()); /* NaN */
}

static bool is_wiped(const books *b, uint32_t block)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t k = 0; k < block_bytes(); k++) sum += bytes_of(b, block, i)[k];
    return sum == 0;
}

/* Blocks of a poisoned session, and they alone, are wiped when the next one gets them; so is one that
 * another held too, when that has let go of it. */
static void blocks_are_wiped_when_they_are_taken_again(void **state)
{
    (void)state;
    books b = {0};
    errmsg e = {0};
    books_open(&b);
    session *s = book_session(&b, 0), *other = book_session(&b, 1), *next;
    OK(kvbooks_reserve(s, 0, 2 * KV_BLOCK, &e));
    s->position = 2 * KV_BLOCK;
    kvbooks_offer(s, KV_BLOCK);
    OK(kvbooks_adopt(other, s->tokens, KV_BLOCK, &e)); /* holds the first one of s too */
    OK(kvbooks_reserve(other, KV_BLOCK, KV_BLOCK + 1, &e));
    books_apply(&b);
    const uint32_t shared = s->table[0].block[0], own = s->table[0].block[1], clean = other->table[0].block[1];
    assert_int_equal(other->table[0].block[0], shared);
    for (uint32_t i = 0; i < BOOK_BLOCKS; i++) books_fill(&b, i);

    kvbooks_taint(s, 0);
    OK(kvbooks_truncate(s, 0, &e));
    books_apply(&b);
    assert_false(is_wiped(&b, own)); /* not yet: nobody has it */
    OK(kvbooks_reserve(s, 0, 2 * KV_BLOCK, &e));
    books_apply(&b);
    assert_true(is_wiped(&b, own));
    for (uint32_t i = 0; i < s->table[0].n; i++) assert_int_not_equal(s->table[0].block[i], shared);
    assert_false(is_wiped(&b, shared)); /* other reads it */

    kvbooks_drop(other);
    kvbooks_put(other, KV_FREE, KV_CLASS_GLOBAL, 0, 0, 0);
    books_apply(&b);
    book_session_free(other);
    next = book_session(&b, 1);
    OK(kvbooks_reserve(next, 0, 3 * KV_BLOCK, &e)); /* all that are left */
    books_apply(&b);
    assert_true(is_wiped(&b, shared));
    assert_false(is_wiped(&b, clean)); /* was never poisoned */
    kvbooks_drop(next);
    book_session_free(next);
    kvbooks_drop(s);
    book_session_free(s);
    books_close(&b);
}

int main(void)
{
    tap_begin(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_wiped_when_they_are_taken_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
