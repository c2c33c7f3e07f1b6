#include "coordinator/commands/generate.h"
#include "common/clock.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/text_out.h"

#include <jansson.h>

static status put_token(text_out *w, const tokenizer *words, uint32_t token, bool first, bool json,
                        errmsg *e)
{
    const char *piece;
    uint32_t bytes;
    tokenizer_piece(words, token, first, false, &piece, &bytes);
    if (!json) return text_out_put(w, piece, bytes, e);
    uint64_t n;
    TRY(text_out_collect(w, piece, bytes, &n, e));
    return output_json(
        json_pack("{s:I, s:o}", "token", (json_int_t)token, "text", json_stringn(w->buffer, n)), e);
}

/* What is held back at the end of the text; after an error too, so that the text stays whole. */
static status put_end(text_out *w, const generate_request *r, char rest[4], errmsg *e)
{
    if (!r->json) return r->n_max > 0 ? text_out_end(w, false, e) : ST_OK;
    rest[utf8_end(&w->characters, rest)] = '\0';
    return ST_OK;
}

/* --- the walk ------------------------------------------------------------------------------- */

/* An interrupt ends the walk by *r's reason to stop, anything else by its status. */
static status ended(status s, generate_result *out, errmsg *e)
{
    if (s == ST_INTERRUPTED)
        out->stop = STOP_INTERRUPTED;
    else if (s == ST_CONTEXT_FULL)
        out->stop = STOP_LENGTH;
    else
        return s;
    errmsg_clear(e);
    return ST_OK;
}

static status prime(generate_result *out, session *one, const generate_request *r, uint32_t *next,
                    errmsg *e)
{
    uint64_t begin = now_ns();
    status s = session_prime(one, r->tokens, r->n_tokens, NULL, r->n_max > 0 ? next : NULL, e);
    out->prompt_ns = now_ns() - begin;
    return s;
}

uint32_t generate_stop_ids(const tokenizer *words, uint32_t out[GENERATE_STOPS_MAX])
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < tokenizer_n(words) && n < GENERATE_STOPS_MAX; id++)
        if (tokenizer_is_end(words, id)) out[n++] = id;
    return n;
}

/* What the generation draws, shown until the text ends. */
static status show(generate_result *out, generation *g, const tokenizer *words,
                   const generate_request *r, text_out *w, errmsg *e)
{
    for (;;) {
        uint32_t next;
        uint64_t begin = now_ns();
        if (interrupt_signal() != 0) return errmsg_set(e, ST_INTERRUPTED, "interrupted");
        TRY(generation_next(g, &next, e));
        out->steps_ns += now_ns() - begin;
        if (next == TOKEN_NONE) break;
        out->n_steps++;
        if (tokenizer_is_end(words, next)) {
            out->stop = STOP_EOS;
            return ST_OK;
        }
        TRY(put_token(w, words, next, false, r->json, e));
        out->n_generated++;
    }
    out->stop = generation_ended(g) == GENERATE_LIMIT ? STOP_LIMIT : STOP_LENGTH;
    return ST_OK;
}

static status decode(generate_result *out, session *one, const tokenizer *words,
                     const generate_request *r, uint32_t next, text_out *w, errmsg *e)
{
    out->stop = STOP_LIMIT;
    if (r->n_max == 0) return ST_OK;
    out->stop = STOP_EOS;
    if (tokenizer_is_end(words, next)) return ST_OK;
    /* The space that begins a text belongs to its first token, which may be ours. */
    TRY(put_token(w, words, next, r->text->bytes == 0, r->json, e));
    out->stop = STOP_LIMIT;
    if (++out->n_generated == r->n_max) return ST_OK;
    uint32_t stop[GENERATE_STOPS_MAX];
    const generate_limits limits = {.n_max = r->n_max == UINT64_MAX ? r->n_max : r->n_max - 1,
                                    .stop = stop,
                                    .n_stop = generate_stop_ids(words, stop),
                                    .n_draft = r->n_draft,
                                    .draft = r->draft};
    generation *g;
    errmsg ignored = {0};
    TRY(session_generate(one, next, &limits, &g, e));
    status s = show(out, g, words, r, w, e);
    status closed = generation_close(g, s == ST_OK ? e : &ignored);
    return s == ST_OK ? closed : s;
}

status generate(generate_result *out, pipeline *p, const tokenizer *words,
                const generate_request *r, errmsg *e)
{
    status s;
    session *one = NULL;
    text_out w = {0};
    uint32_t next = TOKEN_NONE;
    *out = (generate_result){0};
    shares_begin(&out->stages, p);
    TRY_DONE(s, session_open(p, &r->sampler, &one, e));
    if (r->n_max > 0 && !r->json) TRY_DONE(s, text_out_put(&w, r->text->text, r->text->bytes, e));
    s = prime(out, one, r, &next, e);
    if (s == ST_OK) s = decode(out, one, words, r, next, &w, e);
    s = ended(s, out, e);
done:
    if (s != ST_CLOSED) {
        status end = put_end(&w, r, out->rest, s == ST_OK ? e : NULL);
        if (s == ST_OK) s = ended(end, out, e);
    }
    if (s != ST_OK) out->stop = STOP_ERROR;
    bool whole = s == ST_OK && out->stop != STOP_INTERRUPTED;
    shares_end(&out->stages, p, whole ? r->n_tokens + out->n_steps : 0);
    pipeline_drafts(p, &out->drafts);
    if (one != NULL) session_drop(one);
    text_out_free(&w);
    return s;
}

const char *stop_reason_word(stop_reason s)
{
    static const char *const words[] = {"limit", "eos", "length", "interrupted",
                                        "error"};
    return words[s];
}

static double rate(uint64_t n, uint64_t ns)
{
    return n == 0 || ns == 0 ? 0 : (double)n * 1e9 / (double)ns;
}

double generate_prompt_rate(const generate_request *q, const generate_result *r)
{
    return rate(q->n_tokens, r->prompt_ns);
}

double generate_step_rate(const generate_result *r)
{
    return rate(r->n_steps, r->steps_ns);
}
