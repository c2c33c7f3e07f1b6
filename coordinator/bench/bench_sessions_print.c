#include "coordinator/bench/bench_sessions.h"

#include "common/amount.h"
#include "coordinator/commands/output.h"
#include "coordinator/text/text_json.h"

#include <jansson.h>
#include <stdio.h>

static const char *kv_name(const sessions_test *t)
{
    return dtype_get(t->plan.kv_type)->name;
}

/* --- for people ------------------------------------------------------------------------------- */

static void md_begin(const sessions_result *r)
{
    printf("%s: sessions with prompts of %u token%s that generate %u, all at once\n\n", r->model,
           r->n_prompt, plural(r->n_prompt), r->n_generate);
    printf("| stages | cuts | sessions | rows/walk | prompt tokens/s | first token ms p50 / p99 | "
           "tokens/s | token wait ms p50 / p99 / max | busy per stage | coordinator cores |");
    if (r->n_beside > 0)
        printf(" beside: token wait ms p50 / p99 / max | chunk ms (chunks) | max in chunks | "
               "prompt ms alone / beside |");
    printf("\n|---:|---|---:|---|---:|---:|---:|---:|---|---:|%s\n",
           r->n_beside > 0 ? "---:|---:|---:|---:|" : "");
}

/* The longest wait, in the time that a chunk takes. */
static double worst_chunks(const beside_test *b)
{
    return b->chunk_ms > 0 ? b->token_ms.max / b->chunk_ms : 0;
}

static void md_beside(const beside_test *b)
{
    printf(" %.2f / %.2f / %.2f | %.2f (%u) | %.2f | %.1f / %.1f |", b->token_ms.p50,
           b->token_ms.p99, b->token_ms.max, b->chunk_ms, b->n_chunks, worst_chunks(b), b->alone_ms,
           b->prompt_ms);
}

static void md_test(const sessions_result *r, const sessions_test *t)
{
    char cuts[BENCH_CUTS_BYTES], rows[24] = "all";
    const stats *s = &t->tokens_per_s;
    const spread *first = &t->first_ms, *token = &t->token_ms;
    bench_cuts_text(cuts, &t->plan.cuts, ',');
    if (t->batch_rows > 0) snprintf(rows, sizeof rows, "<= %u", t->batch_rows);
    printf("| %u | %s | %u | %s | %.1f | %.1f / %.1f | %.1f ± %.1f | %.2f / %.2f / %.2f | ",
           t->plan.cuts.n_stages, cuts, t->n_sessions, rows, t->prompt_tokens_per_s.mean,
           first->p50, first->p99, s->mean, s->sd, token->p50, token->p99, token->max);
    for (uint32_t i = 0; i < t->plan.cuts.n_stages; i++)
        printf("%s%.0f %%", i > 0 ? ", " : "", 100 * t->generation.busy[i]);
    printf(" | %.3f |", t->coordinator_cores);
    if (r->n_beside > 0) md_beside(&t->beside);
    printf("\n");
}

static void md_end(const sessions_result *r)
{
    if (r->n_tests == 0) return;
    printf("\n%s, KV %s; tokens/s, token wait, busy and coordinator are of the generation; %u "
           "repetition%s\n",
           r->test[0].device, kv_name(&r->test[0]), r->n_repeat, plural(r->n_repeat));
    if (r->n_beside > 0)
        printf("beside: while a prompt of %u token%s is read, in so many chunks\n", r->n_beside,
               plural(r->n_beside));
}

/* --- for programs ----------------------------------------------------------------------------- */

static void csv_begin(void)
{
    printf("stages,cuts,sessions,batch_rows,prompt,generate,repeats,prompt_tokens_per_s_mean,"
           "first_ms_p50,first_ms_p99,first_ms_max,tokens_per_s_mean,tokens_per_s_sd,token_ms_p50,"
           "token_ms_p99,token_ms_max,coordinator_cores,busy,starved,blocked,beside,beside_ms_p50,"
           "beside_ms_p99,beside_ms_max,chunk_ms,chunks,alone_ms,prompt_ms\n");
}

static void csv_shares(const double *share, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) printf("%c%.4f", i > 0 ? ';' : ',', share[i]);
}

static void csv_test(const sessions_result *r, const sessions_test *t)
{
    char cuts[BENCH_CUTS_BYTES];
    const uint32_t n = t->plan.cuts.n_stages;
    const spread *first = &t->first_ms, *token = &t->token_ms;
    bench_cuts_text(cuts, &t->plan.cuts, ';');
    printf("%u,%s,%u,%u,%u,%u,%u,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%.5f", n, cuts,
           t->n_sessions, t->batch_rows, r->n_prompt, r->n_generate, r->n_repeat,
           t->prompt_tokens_per_s.mean, first->p50, first->p99, first->max, t->tokens_per_s.mean,
           t->tokens_per_s.sd, token->p50, token->p99, token->max, t->coordinator_cores);
    csv_shares(t->generation.busy, n);
    csv_shares(t->generation.starved, n);
    csv_shares(t->generation.blocked, n);
    const beside_test *b = &t->beside;
    printf(",%u,%.4f,%.4f,%.4f,%.4f,%u,%.4f,%.4f\n", r->n_beside, b->token_ms.p50, b->token_ms.p99,
           b->token_ms.max, b->chunk_ms, b->n_chunks, b->alone_ms, b->prompt_ms);
}

static json_t *json_stats(const stats *s)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "mean", s->mean, "sd", s->sd, "median", s->median,
                     "min", s->min, "max", s->max);
}

static json_t *json_spread(const spread *s)
{
    return json_pack("{s:f, s:f, s:f}", "p50", s->p50, "p99", s->p99, "max", s->max);
}

static json_t *json_shares(const stage_shares *x, uint32_t n)
{
    json_t *stages = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(stages, json_pack("{s:f, s:f, s:f}", "busy", x->busy[i], "starved",
                                                x->starved[i], "blocked", x->blocked[i]));
    return stages;
}

static json_t *json_beside(const sessions_result *r, const beside_test *b)
{
    return json_pack("{s:I, s:o, s:I, s:f, s:f, s:I, s:f, s:f}", "prompt", (json_int_t)r->n_beside,
                     "token_ms", json_spread(&b->token_ms), "waits", (json_int_t)b->n_waits,
                     "chunk_ms", b->chunk_ms, "worst_chunks", worst_chunks(b), "chunks",
                     (json_int_t)b->n_chunks, "alone_ms", b->alone_ms, "prompt_ms", b->prompt_ms);
}

static json_t *json_test(const sessions_result *r, const sessions_test *t)
{
    const uint32_t n = t->plan.cuts.n_stages;
    json_t *cuts = json_array();
    for (uint32_t i = 1; i < n; i++) json_array_append_new(cuts, json_integer(t->plan.cuts.at[i]));
    json_t *o = json_pack(
        "{s:I, s:o, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "stages",
        (json_int_t)n, "cuts", cuts, "sessions", (json_int_t)t->n_sessions, "batch_rows",
        (json_int_t)t->batch_rows, "kv", kv_name(t), "device", text_json(t->device),
        "prompt_tokens_per_s", json_stats(&t->prompt_tokens_per_s), "first_ms",
        json_spread(&t->first_ms), "tokens_per_s", json_stats(&t->tokens_per_s), "token_ms",
        json_spread(&t->token_ms), "prompt_stages", json_shares(&t->prompt, n), "generation_stages",
        json_shares(&t->generation, n), "coordinator_cores", t->coordinator_cores);
    if (r->n_beside > 0) json_object_set_new(o, "beside", json_beside(r, &t->beside));
    return o;
}

static void json_end(const sessions_result *r)
{
    json_t *tests = json_array();
    for (uint32_t i = 0; i < r->n_tests; i++)
        json_array_append_new(tests, json_test(r, &r->test[i]));
    json_t *o = json_pack("{s:o, s:I, s:I, s:I, s:o}", "model", text_json(r->model), "prompt",
                          (json_int_t)r->n_prompt, "generate", (json_int_t)r->n_generate, "repeats",
                          (json_int_t)r->n_repeat, "tests", tests);
    json_dumpf(o, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(o);
}

void bench_sessions_print_begin(bench_format f, const sessions_result *r)
{
    if (f == BENCH_MD) md_begin(r);
    if (f == BENCH_CSV) csv_begin();
    output_flush();
}

void bench_sessions_print_test(bench_format f, const sessions_result *r, const sessions_test *t)
{
    if (f == BENCH_MD) md_test(r, t);
    if (f == BENCH_CSV) csv_test(r, t);
    output_flush();
}

void bench_sessions_print_end(bench_format f, const sessions_result *r)
{
    if (f == BENCH_MD) md_end(r);
    if (f == BENCH_JSON) json_end(r);
    output_flush();
}
