/* The planned lengths of chunks: equal in cost, as many as the stages and the prompt make worth
 * while. */
#include "tests/support/tap.h"

#include "coordinator/engine/chunk.h"
#include "tests/support/gguf_build.h"

#include <math.h>
#include <stdlib.h>

/* The chunks of one prompt as the schedule asks for them; returns their number. */
static uint32_t walk(const chunk_costs *c, uint64_t first, uint64_t n, uint32_t out[4096])
{
    double budget = chunk_budget(c, n, chunk_cost(c, first, n));
    uint32_t k = 0;
    for (uint64_t at = 0; at < n; at += out[k++]) {
        out[k] = chunk_rows(c, first + at, budget);
        if (out[k] > n - at) out[k] = (uint32_t)(n - at);
    }
    return k;
}

/* When the last of n_stages is through, every stage taking a chunk's cost and the overhead for
 * it. */
static double makespan(const chunk_costs *c, const uint32_t *chunk, uint32_t n_chunks)
{
    double through[STAGES_MAX] = {0};
    uint64_t position = 0;
    for (uint32_t k = 0; k < n_chunks; k++) {
        double cost = chunk_cost(c, position, chunk[k]) + c->overhead, before = 0;
        for (uint32_t s = 0; s < c->n_stages; s++) {
            double begin = through[s] > before ? through[s] : before;
            before = through[s] = begin + cost;
        }
        position += chunk[k];
    }
    return through[c->n_stages - 1];
}

static void costs_grow_and_chunks_shrink(void **state)
{
    (void)state;
    const chunk_costs c = {.n_stages = 4, .rows_max = 256, .attention = 0.001, .overhead = 4};
    static uint32_t chunk[4096];
    uint32_t n = walk(&c, 0, 4000, chunk);
    double budget = chunk_budget(&c, 4000, chunk_cost(&c, 0, 4000));
    uint64_t position = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (k > 0) assert_true(chunk[k] <= chunk[k - 1]);
        double cost = chunk_cost(&c, position, chunk[k]);
        assert_true(cost <= budget);
        if (k + 1 < n && chunk[k] < c.rows_max)
            assert_true(chunk_cost(&c, position, chunk[k] + 1) > budget);
        position += chunk[k];
    }
    assert_int_equal(position, 4000);
    assert_true(chunk[n - 2] * 2 < chunk[0]);
}

/* No number of equal lengths does more than 2 % better. */
static void no_even_cut_is_better(void **state)
{
    (void)state;
    static uint32_t chunk[4096], even[4096];
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        for (uint64_t n = 16; n <= 2048; n *= 4) {
            const chunk_costs c = {
                .n_stages = n_stages, .rows_max = 4096, .attention = 0.0005, .overhead = 4};
            double ours = makespan(&c, chunk, walk(&c, 0, n, chunk)), best = INFINITY;
            for (uint32_t m = 1; m <= n; m++) {
                for (uint32_t k = 0; k < m; k++) even[k] = (uint32_t)(n * (k + 1) / m - n * k / m);
                double t = makespan(&c, even, m);
                if (t < best) best = t;
            }
            assert_true(ours <= 1.02 * best + 2 * c.overhead);
        }
    }
}

static void borders(void **state)
{
    (void)state;
    static uint32_t chunk[4096];
    chunk_costs c = {.n_stages = 1, .rows_max = 256, .overhead = 4};
    assert_int_equal(walk(&c, 0, 1000, chunk), 4); /* one stage: as long as they may be */
    assert_int_equal(chunk[0], 256);
    c.n_stages = 64;
    assert_int_equal(walk(&c, 0, 1, chunk), 1);
    assert_int_equal(chunk_rows(&c, 0, 0), 1);
    assert_int_equal(chunk_rows(&c, UINT32_MAX, 1e300), 256);
    c.rows_max = 1;
    assert_int_equal(walk(&c, 0, 100, chunk), 100);
}

static void a_models_costs(void **state)
{
    (void)state;
    llama_spec spec = llama_spec_default();
    gguf_build *b = gguf_build_llama(&spec);
    gguf *file;
    int fd = gguf_build_fd(b);
    model_desc *m = malloc(sizeof *m);
    doors d = doors_default();
    plan p;
    errmsg e = {0};
    assert_int_equal(gguf_open_fds(&file, &fd, 1, &e), ST_OK);
    assert_int_equal(model_read(m, file, &e), ST_OK);
    assert_int_equal(plan_make(&p, m, &d, &(plan_request){.kv_type = DT_F16}, &e), ST_OK);
    chunk_costs c = chunk_costs_of(m, &p);
    /* A layer's elements by hand: q, k, v, output; gate, up, down. */
    double q = (double)m->n_embd * m->n_heads * m->n_head,
           k = (double)m->n_embd * m->n_kv_heads * m->n_head;
    double layer = 2 * q + 2 * k + 3.0 * m->n_embd * m->n_ff;
    assert_true(fabs(c.attention - 2.0 * m->n_heads * m->n_head / layer) < 1e-12);
    assert_int_equal(c.rows_max, p.rows_max);
    double cpu = c.overhead;
    p.stage[0].device.kind = DEVICE_CUDA;
    assert_true(chunk_costs_of(m, &p).overhead > cpu);
    free(m);
    gguf_close(file);
    gguf_build_free(b);
}

int main(void)
{
    tap_begin(30);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_grow_and_chunks_shrink),
        cmocka_unit_test(no_even_cut_is_better),
        cmocka_unit_test(borders),
        cmocka_unit_test(a_models_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
