/* The reference placements: all weights on stage 0, and all stages in one process on one stream. */
#include "tests/support/tap.h"

#include "tests/support/ok.h"
#include "tests/support/small_run.h"
#include "tests/support/walks.h"

#include <stdio.h>
#include <string.h>

static pipeline *open_placed(const walks_model *m, uint32_t n_stages, bool shard,
                             const char *faults)
{
    return walks_pipeline(
        m, &(walks_place){.n_stages = n_stages, .gathered = !shard, .faults = faults});
}

static pipeline *open_stream(const walks_model *m, uint32_t n_stages, const char *faults)
{
    return walks_pipeline(
        m, &(walks_place){.n_stages = n_stages, .one_stream = true, .faults = faults});
}

/* --- all weights on stage 0
 * --------------------------------------------------------------------------- */

static void all_weights_lie_on_the_first(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        pipeline *apart = open_placed(&walks_gemma, n, true, ""),
                 *p = open_placed(&walks_gemma, n, false, "");
        uint64_t sum = 0;
        stage_snapshot x;
        for (uint32_t i = 0; i < n; i++) {
            pipeline_stage(apart, i, &x);
            assert_true(x.weights_bytes > 0);
            sum += x.weights_bytes;
            pipeline_stage(p, i, &x);
            assert_int_equal(x.weights_bytes > 0, i == 0);
            assert_int_equal(pipeline_plan(p)->stage[i].weights_bytes, x.weights_bytes);
        }
        pipeline_stage(p, 0, &x);
        assert_int_equal(x.weights_bytes, sum);
        assert_int_equal(pipeline_plan(p)->weights_total_bytes,
                         pipeline_plan(apart)->weights_total_bytes);
        assert_true(pipeline_plan(p)->gathered && !pipeline_plan(apart)->gathered);
        walks_both_ways(&walks_gemma, p);
        pipeline_close(apart);
        pipeline_close(p);
    }
    pipeline *one = open_placed(&walks_llama, 1, false, ""); /* nothing is elsewhere */
    assert_false(pipeline_plan(one)->gathered);
    pipeline_close(one);
    pipeline *p = open_placed(&walks_llama, 3, false, "");
    walks_both_ways(&walks_llama, p);
    pipeline_close(p);
}

static void the_first_takes_the_others_with_it(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        char broken[64];
        errmsg e = {0};
        recovery_record r[8];
        snprintf(broken, sizeof broken, "stage=%u,at=decode,kind=kill", victim);
        pipeline *p = open_placed(&walks_llama, 3, false, broken);
        walks_both_ways(&walks_llama, p);
        assert_int_equal(pipeline_recoveries(p, 0, r, 8), victim == 0 ? 3 : 1);
        for (uint32_t i = 0; i < 3; i++) {
            stage_snapshot x;
            pipeline_stage(p, i, &x);
            assert_int_equal(x.n_lost, victim == 0 || victim == i);
            if (victim == 0 && i > 0)
                assert_non_null(strstr(x.last_fault, "ends with its weights: stage 0"));
        }
        walks_both_ways(&walks_llama, p);
        OK(pipeline_check(p, &e));
        pipeline_close(p);
    }
}

/* --- one stream
 * --------------------------------------------------------------------------------------- */

/* Every stage counts its rows, and its boundaries what crossed them. */
static void counts_are_those_of_stages(pipeline *p, uint32_t n_stages)
{
    stage_snapshot first, x;
    pipeline_stage(p, 0, &first);
    assert_true(first.n_rows > WALKS_PROMPT && first.n_chunks > 0 && first.n_unsplit == 0);
    for (uint32_t i = 0; i < n_stages; i++) {
        pipeline_stage(p, i, &x);
        assert_int_equal(x.pid, first.pid);
        assert_int_equal(x.n_rows, first.n_rows);
        assert_int_equal(x.n_steps, first.n_steps);
        assert_int_equal(x.n_verifies_split, first.n_verifies);
        assert_int_equal(x.n_overlaps, 0);
        assert_int_equal(x.weights_bytes, pipeline_plan(p)->stage[i].weights_bytes);
        assert_int_equal(x.rx_rows >= first.n_rows, i > 0);
        assert_int_equal(x.tx_rows >= first.n_rows, i + 1 < n_stages);
        assert_string_equal(x.transport, i > 0 ? "copy" : "");
    }
}

static void one_process_holds_all(void **state)
{
    (void)state;
    walks_model *models[] = {&walks_llama, &walks_gemma};
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t n = 2; n <= 4; n++) {
            pipeline *p = open_stream(models[i], n, "");
            const plan *planned = pipeline_plan(p);
            assert_true(planned->one_process && planned->cuts.n_stages == n);
            assert_int_equal(planned->slots_total_bytes + planned->journal_bytes, 0);
            walks_both_ways(models[i], p);
            counts_are_those_of_stages(p, n);
            pipeline_close(p);
        }
    }
}

static void sessions_fork_and_truncate_on_it(void **state)
{
    (void)state;
    errmsg e = {0};
    pipeline *p = open_stream(&walks_gemma, 3, "");
    session *s = small_session(p), *child;
    walks_prime(&walks_gemma, s, 0, WALKS_PROMPT);
    walks_step(&walks_gemma, s, 0);
    OK(session_fork(s, &child, &e));
    walks_generate(&walks_gemma, child, 1, 20, NULL);
    OK(session_truncate(s, 70, &e));
    walks_prime(&walks_gemma, s, 70, WALKS_PROMPT);
    walks_generate(&walks_gemma, s, 0, 20, NULL);
    session_drop(s);
    session_drop(child);
    pipeline_close(p);
}

static void the_process_is_replaced_whole(void **state)
{
    (void)state;
    static const char *const at[] = {"prime", "decode"};
    for (uint32_t i = 0; i < 2; i++) {
        char broken[64];
        errmsg e = {0};
        snprintf(broken, sizeof broken, "stage=0,at=%s,kind=kill", at[i]);
        pipeline *p = open_stream(&walks_llama, 3, broken);
        walks_both_ways(&walks_llama, p);
        recovery_record r;
        assert_int_equal(pipeline_recoveries(p, 0, &r, 1), 1);
        assert_non_null(strstr(r.why.text, "layers 0-3"));
        OK(pipeline_check(p, &e));
        pipeline_close(p);
    }
}

int main(void)
{
    tap_begin(120);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_weights_lie_on_the_first),
        cmocka_unit_test(the_first_takes_the_others_with_it),
        cmocka_unit_test(one_process_holds_all),
        cmocka_unit_test(sessions_fork_and_truncate_on_it),
        cmocka_unit_test(the_process_is_replaced_whole),
    };
    return cmocka_run_group_tests(tests, walks_open, walks_close);
}
