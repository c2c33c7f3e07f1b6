/* logits: the logits after each of given tokens, raw, to a file that is whole or not there. */
#include "common/amount.h"
#include "common/wire.h"
#include "coordinator/commands/banner.h"
#include "coordinator/commands/outfile.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/preview.h"
#include "coordinator/commands/tokenlist.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "logits are written as they lie");

#define USAGE "logits [-m FILE] --tokens 1,5,9 | --tokens-file FILE  [--chunk T] -o FILE"
#define ABOUT                                                                                      \
    "Writes the logits after each of the given tokens: raw little-endian f32 [n_tokens,\n"         \
    "n_vocab]. The prompt is walked in chunks of T rows; no chunk length changes a bit.\n"         \
    "-o - is standard output; a FILE appears whole or, when the run fails, not at all.\n"          \
    "The context is as long as the list unless --ctx says otherwise."
#define TOKENS_BYTES_MAX (256u << 20)
#define RESULT_BYTES     (64ull << 20) /* of logits held at once, unless one chunk needs more */

typedef struct {
    const char *list, *file; /* one of them */
    const char *out;
    uint32_t chunk; /* 0: planned */
} logits_options;

static status read_tokens(const logits_options *o, uint32_t **tokens, uint64_t *n, errmsg *e)
{
    if ((o->list == NULL) == (o->file == NULL)) {
        return errmsg_set(e, ST_USAGE,
                          "give the tokens by --tokens or by --tokens-file; see --help");
    }
    if (o->list != NULL) return tokenlist_parse("--tokens", o->list, strlen(o->list), tokens, n, e);
    char *text;
    uint64_t bytes;
    TRY(input_read(o->file, TOKENS_BYTES_MAX, &text, &bytes, e));
    status s = tokenlist_parse("--tokens-file", text, bytes, tokens, n, e);
    free(text);
    return s;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Rows of one chunk, and readback rows enough for every stage to have one in hand. */
static void size_chunks(common_options *c, const preview *v, uint32_t asked, uint64_t n)
{
    uint64_t affordable = RESULT_BYTES / (sizeof(float) * (uint64_t)v->model->n_vocab);
    if (affordable == 0) affordable = 1;
    uint64_t chunk = asked > 0 ? asked : c->doors.step.prime_chunk;
    if (chunk == 0) chunk = least(affordable, PLAN_CHUNK_DEFAULT);
    chunk = least(least(chunk, n), WIRE_ROWS_MAX);
    uint64_t rows = least(chunk * (c->doors.n_stages + 1), affordable);
    if (rows < chunk) rows = chunk;
    c->plan.n_chunk = (uint32_t)chunk;
    c->plan.n_readback = (uint32_t)least(least(rows, n), PLAN_READBACK_MAX);
    c->doors.step.prime_chunk = (uint32_t)chunk;
}

/* Whole chunks at a time, as many as RESULT_BYTES holds. */
static status walk(const common_options *c, pipeline *p, const uint32_t *tokens, uint64_t n,
                   outfile *out, errmsg *e)
{
    status s;
    session *one = NULL;
    sampler_params greedy = sampler_default();
    const uint64_t row_bytes = sizeof(float) * (uint64_t)pipeline_model(p)->n_vocab;
    const uint64_t chunk = c->doors.step.prime_chunk;
    uint64_t piece = RESULT_BYTES / row_bytes / chunk * chunk;
    if (piece == 0) piece = chunk;
    piece = least(piece, n);
    float *logits = malloc(piece * row_bytes);
    if (logits == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the logits of %" PRIu64 " tokens", piece);
        goto done;
    }
    TRY_DONE(s, session_open(p, &greedy, &one, e));
    for (uint64_t at = 0; at < n; at += piece) {
        uint64_t rows = least(piece, n - at);
        TRY_DONE(s, session_prime(one, tokens + at, rows, logits, NULL, e));
        TRY_DONE(s, outfile_write(out, logits, rows * row_bytes, e));
    }
done:
    if (one != NULL) session_drop(one);
    free(logits);
    return s;
}

static status write_logits(common_options *c, const logits_options *o, errmsg *e)
{
    status s;
    uint32_t *tokens = NULL;
    uint64_t n = 0;
    preview v = {0};
    pipeline *p = NULL;
    outfile out = {.fd = -1};
    TRY_DONE(s, o->out != NULL ? ST_OK
                               : errmsg_set(e, ST_USAGE,
                                            "-o names where to write; - is "
                                            "standard output"));
    TRY_DONE(s, read_tokens(o, &tokens, &n, e));
    if (c->plan.n_ctx == 0) c->plan.n_ctx = (uint32_t)least(n, PLAN_CTX_MAX);
    TRY_DONE(s, preview_open(&v, c, e));
    TRY_DONE(s, tokenlist_check(o->list != NULL ? "--tokens" : "--tokens-file", tokens, n,
                                v.model->n_vocab, e));
    if (n > v.plan->n_ctx) {
        s = errmsg_set(e, ST_CONTEXT_FULL,
                       "%" PRIu64
                       " tokens do not fit into the context of %u position%s; raise --ctx",
                       n, v.plan->n_ctx, plural(v.plan->n_ctx));
        goto done;
    }
    size_chunks(c, &v, o->chunk, n);
    preview_close(&v);
    TRY_DONE(s, outfile_open(&out, o->out, e));
    TRY_DONE(s, banner_open(&p, c, e));
    TRY_DONE(s, walk(c, p, tokens, n, &out, e));
    TRY_DONE(s, outfile_commit(&out, e));
done:
    outfile_close(&out);
    if (p != NULL) pipeline_close(p);
    preview_close(&v);
    free(tokens);
    return s;
}

int cmd_logits(int argc, char **argv)
{
    logits_options o = {0};
    const option own[] = {
        {"tokens", 0, OPTION_TEXT, "LIST", "token ids, separated by commas or spaces", &o.list, 0,
         0},
        {"tokens-file", 0, OPTION_TEXT, "FILE", "read the list from FILE, - is standard input",
         &o.file, 0, 0},
        {"chunk", 0, OPTION_U32, "T",
         "rows of a prompt chunk, 1 to 4096. Default: --prime-chunk, else 256\n"
         "or what 64 MiB of logits allow",
         &o.chunk, 1, WIRE_ROWS_MAX},
        {"output", 'o', OPTION_TEXT, "FILE", "where to write, - is standard output; needed", &o.out,
         0, 0},
    };
    common_options c;
    errmsg e = {0};
    uint32_t n_own = sizeof own / sizeof own[0];
    const command_form form = {USAGE, ABOUT, own, n_own, NULL, 0, NULL, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    if (options_no_json(&c, "logits", &e) != ST_OK || write_logits(&c, &o, &e) != ST_OK) {
        return command_failed(&e);
    }
    options_tell_faults(&c);
    return 0;
}
