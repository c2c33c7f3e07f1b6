/* The session holds every token up to `unsaid`, which the person has seen (or which ended the
 * answer) and which goes in front of what comes next: a token is applied when the one after it is
 * asked for, so the last one of an answer never is.
 *
 * SIGINT sets a flag of our own, looked at between tokens: the pipeline's interrupt would wind the
 * whole pipeline down. What was drawn beyond the token in hand is forgotten then. */
#include "coordinator/commands/chat.h"
#include "common/amount.h"

#include "coordinator/commands/generate.h"
#include "coordinator/commands/line_in.h"
#include "coordinator/commands/output.h"
#include "coordinator/commands/text_out.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES_MAX (16u << 20)

static volatile int stop_asked;

/* The second one, when the first was not seen to, ends the program as it does elsewhere. */
static void on_interrupt(int n)
{
    if (__atomic_exchange_n(&stop_asked, n, __ATOMIC_RELAXED) != 0)
        __atomic_store_n(&interrupted, n, __ATOMIC_RELAXED);
}

typedef struct {
    pipeline *p;
    const tokenizer *words;
    const chat_request *q;
    session *s;
    line_in *lines;
    text_out out;
    bool began;      /* the session has text */
    bool line_ended; /* that text ends with a newline */
    uint32_t unsaid; /* TOKEN_NONE: none */
    char *text;      /* what the person wrote for this turn, over several lines */
    uint64_t n_text;
} chat;

static bool stopped(void)
{
    return __atomic_load_n(&stop_asked, __ATOMIC_RELAXED) != 0;
}

static status still_there(void *p, errmsg *e)
{
    if (interrupt_signal() != 0) return errmsg_set(e, ST_INTERRUPTED, "interrupted");
    return pipeline_check(p, e);
}

/* --- what the person says -----------------------------------------------------------------------
 */

static status add_text(chat *c, const char *text, uint64_t bytes, errmsg *e)
{
    if (bytes == 0) return ST_OK;
    char *more = realloc(c->text, c->n_text + bytes);
    if (more == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line");
    memcpy(more + c->n_text, text, bytes);
    c->text = more;
    c->n_text += bytes;
    return ST_OK;
}

/* The lines of a turn into c->text, without the last newline. *end: there is none any more. */
static status hear(chat *c, bool *end, errmsg *e)
{
    const char *line;
    uint64_t bytes;
    c->n_text = 0;
    *end = false;
    for (;;) {
        TRY(line_in_next(c->lines, &line, &bytes, e));
        if (line == NULL) {
            *end = c->n_text == 0;
            return ST_OK;
        }
        bool goes_on = bytes > 0 && line[bytes - 1] == '\\';
        TRY(add_text(c, line, goes_on ? bytes - 1 : bytes, e));
        if (!goes_on) return ST_OK;
        TRY(add_text(c, "\n", 1, e));
    }
}

/* --- what goes into the session -----------------------------------------------------------------
 */

static status forget(chat *c, errmsg *e)
{
    c->began = c->line_ended = false;
    c->unsaid = TOKEN_NONE;
    return session_truncate(c->s, 0, e);
}

/* The turn's text: what opens the first one, or a newline that ends what was before. */
static status whole_text(const chat *c, char **out, uint64_t *bytes, errmsg *e)
{
    const char *before = c->began ? "\n" : c->q->opening->text;
    uint64_t n = c->began ? !c->line_ended : c->q->opening->bytes;
    *bytes = n + c->n_text;
    *out = malloc(*bytes + 1);
    if (*out == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line");
    memcpy(*out, before, n);
    if (c->n_text > 0) memcpy(*out + n, c->text, c->n_text);
    return ST_OK;
}

/* The turn's tokens, what is unsaid first; none when there is nothing to go on from. */
static status encode(const chat *c, uint32_t **tokens, uint64_t *n, errmsg *e)
{
    char *text = NULL;
    uint64_t bytes;
    status s = ST_OK;
    *n = 0;
    *tokens = NULL;
    if (c->n_text > 0 || !c->began) {
        const tokenize_options how = {.bos = !c->began, .special = c->q->special};
        TRY(whole_text(c, &text, &bytes, e));
        s = tokenizer_encode(c->words, text, bytes, how, tokens, n, e);
    }
    free(text);
    TRY(s);
    if (c->unsaid == TOKEN_NONE) return ST_OK;
    uint32_t *more = realloc(*tokens, (*n + 1) * sizeof *more);
    if (more == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line");
    memmove(more + 1, more, *n * sizeof *more);
    more[0] = c->unsaid;
    *tokens = more;
    (*n)++;
    return ST_OK;
}

/* Append them in pieces, so that Ctrl-C is seen in between; the session is as before then. */
static status append(chat *c, const uint32_t *tokens, uint64_t n, uint32_t *next, errmsg *e)
{
    const uint64_t piece = pipeline_plan(c->p)->rows_max, begin = session_position(c->s);
    for (uint64_t at = 0; at < n; at += piece) {
        uint64_t k = n - at < piece ? n - at : piece;
        if (stopped()) {
            TRY(session_truncate(c->s, begin, e));
            return ST_INTERRUPTED;
        }
        TRY(session_prime(c->s, tokens + at, k, NULL, at + k == n ? next : NULL, e));
    }
    return ST_OK;
}

/* --- what the model says ------------------------------------------------------------------------
 */

static status show(chat *c, uint32_t token, errmsg *e)
{
    const char *piece;
    uint32_t bytes;
    tokenizer_piece(c->words, token, false, false, &piece, &bytes);
    if (bytes > 0) c->line_ended = piece[bytes - 1] == '\n';
    return text_out_put(&c->out, piece, bytes, e);
}

/* How the answer stands after its n-th token, which is shown; STOP_LENGTH: it goes on. */
static stop_reason standing(const chat *c, uint64_t n)
{
    return stopped() ? STOP_INTERRUPTED : n >= c->q->n_max ? STOP_LIMIT : STOP_LENGTH;
}

static status take_answer(chat *c, generation *g, stop_reason *stop, errmsg *e)
{
    for (uint64_t n = 1; *stop == STOP_LENGTH; n++) {
        uint32_t next;
        TRY(generation_next(g, &next, e));
        if (next == TOKEN_NONE) return ST_OK;
        c->unsaid = next;
        *stop = STOP_EOS;
        if (tokenizer_is_end(c->words, next)) return ST_OK;
        TRY(show(c, next, e));
        *stop = standing(c, n + 1);
    }
    return ST_OK;
}

static status answer(chat *c, uint32_t next, stop_reason *stop, errmsg *e)
{
    c->unsaid = next;
    *stop = STOP_EOS;
    if (tokenizer_is_end(c->words, next)) return ST_OK;
    TRY(show(c, next, e));
    *stop = standing(c, 1);
    if (*stop != STOP_LENGTH) return ST_OK;
    uint32_t ids[GENERATE_STOPS_MAX];
    const generate_limits limits = {.n_max = c->q->n_max == UINT64_MAX ? UINT64_MAX : c->q->n_max - 1,
                                    .stop = ids,
                                    .n_stop = generate_stop_ids(c->words, ids),
                                    .n_draft = c->q->n_draft,
                                    .draft = c->q->draft};
    generation *g;
    errmsg ignored = {0};
    TRY(session_generate(c->s, next, &limits, &g, e));
    status s = take_answer(c, g, stop, e);
    status closed = generation_close(g, s == ST_OK ? e : &ignored);
    return s == ST_OK ? closed : s;
}

static void say_stop(const chat *c, stop_reason stop)
{
    if (stop == STOP_LENGTH) {
        log_warn(
            "length: the context of %u positions is full: /clear forgets it and starts anew, a "
            "larger --ctx holds more",
            pipeline_plan(c->p)->n_ctx);
    } else if (stop == STOP_LIMIT) {
        log_info("limit: %" PRIu64 " token%s (-n); an empty line goes on", c->q->n_max,
                 plural(c->q->n_max));
    } else if (stop == STOP_INTERRUPTED) {
        log_info("interrupted; an empty line goes on");
    }
}

/* --- turns --------------------------------------------------------------------------------------
 */

static bool is_command(const chat *c, const char *word)
{
    return c->n_text == strlen(word) && memcmp(c->text, word, c->n_text) == 0;
}

static void say_full(const chat *c, uint64_t n)
{
    log_warn("length: no room for %" PRIu64 " token%s beside the %" PRIu64
             " that the context of %u positions holds: a shorter line, /clear, or a larger --ctx",
             n, plural(n), session_position(c->s), pipeline_plan(c->p)->n_ctx);
}

static status turn(chat *c, errmsg *e)
{
    uint32_t *tokens = NULL, next = TOKEN_NONE;
    uint64_t n;
    stop_reason stop = STOP_INTERRUPTED;
    status s;
    if (is_command(c, "/clear")) {
        log_info("forgotten");
        return forget(c, e);
    }
    TRY_DONE(s, encode(c, &tokens, &n, e));
    if (n == 0) goto done;
    if (n > pipeline_plan(c->p)->n_ctx - session_position(c->s)) {
        say_full(c, n);
        goto done;
    }
    s = append(c, tokens, n, &next, e);
    if (s == ST_OK) {
        c->began = true;
        c->line_ended = false;
        c->unsaid = TOKEN_NONE;
        s = answer(c, next, &stop, e);
    } else if (s == ST_INTERRUPTED && interrupt_signal() == 0) {
        s = ST_OK; /* what had been appended is taken back */
    }
    if (s != ST_CLOSED) {
        status end = text_out_end(&c->out, s == ST_OK, s == ST_OK ? e : NULL);
        if (s == ST_OK) s = end;
    }
    if (s == ST_OK) say_stop(c, stop);
done:
    free(tokens);
    return s;
}

static status talk(chat *c, errmsg *e)
{
    bool end = false;
    if (line_in_on_terminal(c->lines))
        log_info("a line at a time; \\ at its end goes on, Ctrl-C stops an answer, Ctrl-D ends, "
                 "/clear forgets");
    for (;;) {
        TRY(hear(c, &end, e));
        if (end) return ST_OK;
        TRY(turn(c, e));
        __atomic_store_n(&stop_asked, 0, __ATOMIC_RELAXED);
    }
}

status chat_run(pipeline *p, const tokenizer *words, const chat_request *q, errmsg *e)
{
    chat c = {.p = p, .words = words, .q = q, .unsaid = TOKEN_NONE};
    const line_in_options o = {.prompt = "> ",
                               .bytes_max = LINE_BYTES_MAX,
                               .waiting = still_there,
                               .ctx = p,
                               .interrupted = &stop_asked};
    struct sigaction ours = {.sa_handler = on_interrupt}, before;
    sigemptyset(&ours.sa_mask);
    status s = session_open(p, &q->sampler, &c.s, e);
    if (s != ST_OK) return s;
    sigaction(SIGINT, &ours, &before);
    s = line_in_open(&c.lines, &o, e);
    if (s == ST_OK) s = talk(&c, e);
    line_in_close(c.lines);
    sigaction(SIGINT, &before, NULL);
    session_drop(c.s);
    text_out_free(&c.out);
    free(c.text);
    return s;
}
