#include "coordinator/bench/bench.h"

#include "common/amount.h"
#include "coordinator/commands/output.h"
#include "coordinator/text/text_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Every stage reads its weights from the memory whose bandwidth was measured. */
static bool on_host(const bench_test *t)
{
    for (uint32_t s = 0; s < t->plan.cuts.n_stages; s++)
        if (t->plan.stage[s].device.kind != DEVICE_CPU) return false;
    return true;
}

static double share(const bench_result *r, const bench_test *t)
{
    if (!on_host(t) || !t->generation || r->bandwidth.bytes_per_s <= 0) return 0;
    return t->tokens_per_s.mean * t->bytes_per_token / r->bandwidth.bytes_per_s;
}

/* The weights stay in the caches between two tokens: the share then says nothing of memory. */
static bool cached(const bench_result *r)
{
    return r->bandwidth.cache_bytes > 0 && r->weights_bytes < r->bandwidth.cache_bytes;
}

static const char *kv_name(const bench_test *t)
{
    return dtype_get(t->plan.kv_type)->name;
}

static void test_name(char out[48], const bench_test *t)
{
    int n = snprintf(out, 48, "%s%u", t->generation ? "tg" : "pp", t->n_tokens);
    if (t->depth > 0) snprintf(out + n, 48 - (size_t)n, " @ %u", t->depth);
}

/* --- for people ---------------------------------------------------------------------------- */

static void md_begin(const bench_result *r)
{
    const bandwidth *b = &r->bandwidth;
    printf("read bandwidth of this machine: %.2f GB/s (%u thread%s, %.0f MB, %s)%s\n\n",
           b->bytes_per_s / 1e9, b->n_threads, plural(b->n_threads), (double)b->buffer_bytes / 1e6,
           b->loop, b->beyond_cache ? "" : "; the buffer is not larger than the caches");
    printf("| model | stages | cuts | kv | test | tokens/s | median (min .. max) | MB/token | "
           "of bandwidth | busy per stage |\n");
    printf("|---|---:|---|---|---|---:|---:|---:|---:|---|\n");
}

static void md_test(const bench_result *r, const bench_test *t)
{
    char name[48], cuts[BENCH_CUTS_BYTES];
    const stats *s = &t->tokens_per_s;
    test_name(name, t);
    bench_cuts_text(cuts, &t->plan.cuts, ',');
    printf("| %s | %u | %s | %s | %s | %.2f ± %.2f | %.2f (%.2f .. %.2f) | ", r->model,
           t->plan.cuts.n_stages, cuts, kv_name(t), name, s->mean, s->sd, s->median, s->min,
           s->max);
    if (t->generation && on_host(t))
        printf("%.2f | %.1f %%%s | ", t->bytes_per_token / 1e6, 100 * share(r, t),
               cached(r) ? " *" : "");
    else if (t->generation)
        printf("%.2f | - | ", t->bytes_per_token / 1e6);
    else
        printf("- | - | ");
    for (uint32_t i = 0; i < t->plan.cuts.n_stages; i++)
        printf("%s%.0f %%", i > 0 ? ", " : "", 100 * t->busy_share[i]);
    printf(" |\n");
}

static void md_end(const bench_result *r)
{
    if (r->n_tests == 0) return;
    printf("\n%s; weights %.1f MB, each read once per generated token\n", r->test[0].device,
           (double)r->weights_bytes / 1e6);
    if (cached(r))
        printf("* the weights fit into the caches (%.0f MB): this share is not one of memory\n",
               (double)r->bandwidth.cache_bytes / 1e6);
}

/* --- for programs -------------------------------------------------------------------------- */

static void csv_begin(void)
{
    printf(
        "model,stages,cuts,kv,device,test,tokens,depth,repeats,tokens_per_s_mean,tokens_per_s_sd,"
        "tokens_per_s_median,tokens_per_s_min,tokens_per_s_max,bytes_per_token,read_bytes_per_s,"
        "share,weights_bytes,weights_in_cache,busy\n");
}

static void csv_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void csv_test(const bench_result *r, const bench_test *t)
{
    char cuts[BENCH_CUTS_BYTES];
    const stats *s = &t->tokens_per_s;
    bench_cuts_text(cuts, &t->plan.cuts, ';');
    csv_text(r->model);
    printf(",%u,%s,%s,", t->plan.cuts.n_stages, cuts, kv_name(t));
    csv_text(t->device);
    printf(",%s,%u,%u,%u,%.4f,%.4f,%.4f,%.4f,%.4f,%.0f,%.0f,%.4f,%" PRIu64 ",%d,",
           t->generation ? "tg" : "pp", t->n_tokens, t->depth, s->n, s->mean, s->sd, s->median,
           s->min, s->max, t->bytes_per_token, r->bandwidth.bytes_per_s, share(r, t),
           r->weights_bytes, cached(r));
    for (uint32_t i = 0; i < t->plan.cuts.n_stages; i++)
        printf("%s%.4f", i > 0 ? ";" : "", t->busy_share[i]);
    printf("\n");
}

static json_t *json_test(const bench_result *r, const bench_test *t)
{
    const stats *s = &t->tokens_per_s;
    json_t *cuts = json_array(), *busy = json_array();
    for (uint32_t i = 1; i < t->plan.cuts.n_stages; i++)
        json_array_append_new(cuts, json_integer(t->plan.cuts.at[i]));
    for (uint32_t i = 0; i < t->plan.cuts.n_stages; i++)
        json_array_append_new(busy, json_real(t->busy_share[i]));
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I, s:o, s:s, s:o, s:I, s:f, s:f, s:f, s:f, s:f}", "test",
                  t->generation ? "tg" : "pp", "tokens", (json_int_t)t->n_tokens, "depth",
                  (json_int_t)t->depth, "stages", (json_int_t)t->plan.cuts.n_stages, "cuts", cuts,
                  "kv", kv_name(t), "device", text_json(t->device), "repeats", (json_int_t)s->n,
                  "tokens_per_s_mean", s->mean, "tokens_per_s_sd", s->sd, "tokens_per_s_median",
                  s->median, "tokens_per_s_min", s->min, "tokens_per_s_max", s->max);
    json_object_set_new(o, "busy", busy);
    if (t->generation) {
        json_object_set_new(o, "bytes_per_token", json_real(t->bytes_per_token));
        json_object_set_new(o, "share", json_real(share(r, t)));
    }
    return o;
}

static void json_end(const bench_result *r)
{
    const bandwidth *b = &r->bandwidth;
    json_t *tests = json_array();
    for (uint32_t i = 0; i < r->n_tests; i++)
        json_array_append_new(tests, json_test(r, &r->test[i]));
    json_t *o = json_pack("{s:o, s:I, s:b, s:{s:f, s:I, s:I, s:I, s:b, s:s}, s:o}", "model",
                          text_json(r->model), "weights_bytes", (json_int_t)r->weights_bytes,
                          "weights_in_cache", cached(r), "read_bandwidth", "bytes_per_s",
                          b->bytes_per_s, "threads", (json_int_t)b->n_threads, "buffer_bytes",
                          (json_int_t)b->buffer_bytes, "cache_bytes", (json_int_t)b->cache_bytes,
                          "beyond_cache", b->beyond_cache, "loop", b->loop, "tests", tests);
    json_dumpf(o, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(o);
}

void bench_print_begin(bench_format f, const bench_result *r)
{
    if (f == BENCH_MD) md_begin(r);
    if (f == BENCH_CSV) csv_begin();
    output_flush();
}

void bench_print_test(bench_format f, const bench_result *r, const bench_test *t)
{
    if (f == BENCH_MD) md_test(r, t);
    if (f == BENCH_CSV) csv_test(r, t);
    output_flush();
}

void bench_print_end(bench_format f, const bench_result *r)
{
    if (f == BENCH_MD) md_end(r);
    if (f == BENCH_JSON) json_end(r);
    output_flush();
}
