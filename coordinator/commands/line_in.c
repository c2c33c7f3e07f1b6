#include "coordinator/commands/line_in.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define WAKE_MS       200

struct line_in {
    line_in_options o;
    EditLine *edit; /* NULL: not a terminal */
    History *history;
    char *text; /* [room] plain: bytes read and not yet given; [0, given) is the line given last */
    uint64_t n, room, given;
    bool end; /* of the input */
    /* how the wait inside libedit ended */
    status ended;
    bool had_text;
    errmsg *e;
};

/* Wait for input. ST_INTERRUPTED leaves *interrupted set. */
static status wait_in(const line_in *l, errmsg *e)
{
    for (;;) {
        if (__atomic_load_n(l->o.interrupted, __ATOMIC_RELAXED) != 0)
            return errmsg_set(e, ST_INTERRUPTED, "interrupted");
        TRY(l->o.waiting(l->o.ctx, e));
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        int n = poll(&p, 1, WAKE_MS);
        if (n > 0) return ST_OK;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return errmsg_set(e, ST_RESOURCES, "standard input cannot be read: %s",
                              strerror(errno));
    }
}

static status read_some(void *to, uint64_t most, uint64_t *n, errmsg *e)
{
    for (;;) {
        ssize_t got = read(STDIN_FILENO, to, most);
        if (got >= 0) {
            *n = (uint64_t)got;
            return ST_OK;
        }
        if (errno == EAGAIN) {
            *n = 0;
            return ST_TIMEOUT;
        }
        if (errno != EINTR)
            return errmsg_set(e, ST_RESOURCES, "standard input cannot be read: %s",
                              strerror(errno));
    }
}

/* --- a terminal ---------------------------------------------------------------------------------
 */

static char *prompt_of(EditLine *edit)
{
    void *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)((line_in *)l)->o.prompt;
}

/* libedit asks for one character: 1, 0 at the end, -1. */
static int take_character(EditLine *edit, wchar_t *out)
{
    void *client = NULL;
    el_get(edit, EL_CLIENTDATA, &client);
    line_in *l = client;
    mbstate_t state = {0};
    for (;;) {
        char byte;
        uint64_t n = 0;
        l->ended = wait_in(l, l->e);
        if (l->ended == ST_OK) l->ended = read_some(&byte, 1, &n, l->e);
        if (l->ended == ST_TIMEOUT) continue;
        if (l->ended != ST_OK || n == 0) {
            const LineInfo *line = el_line(edit);
            l->had_text = line->lastchar > line->buffer;
            return 0;
        }
        size_t r = mbrtowc(out, &byte, 1, &state);
        if (r == 0 || r == 1) return 1;
        if (r == (size_t)-1) memset(&state, 0, sizeof state);
    }
}

static status open_edit(line_in *l, errmsg *e)
{
    HistEvent event;
    /* libedit decodes what is typed by the locale; where that knows no UTF-8, take one that does.
     */
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("memra-pp", stdin, stderr, stderr);
    l->history = history_init();
    if (l->edit == NULL || l->history == NULL)
        return errmsg_set(e, ST_RESOURCES, "the terminal cannot be used for editing");
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt_of);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_GETCFN, take_character);
    return ST_OK;
}

static status next_edited(line_in *l, const char **text, uint64_t *bytes, errmsg *e)
{
    for (;;) {
        int n = 0;
        l->e = e;
        l->ended = ST_OK;
        l->had_text = false;
        el_resize(l->edit);
        const char *line = el_gets(l->edit, &n);
        if (l->ended != ST_OK) {
            fputs("\n", stderr);
            if (l->ended != ST_INTERRUPTED) return l->ended;
            __atomic_store_n(l->o.interrupted, 0, __ATOMIC_RELAXED);
            if (!l->had_text) return ST_INTERRUPTED;
            errmsg_clear(e);
            continue;
        }
        if (line == NULL || n <= 0) {
            fputs("\n", stderr);
            return ST_OK; /* the end */
        }
        HistEvent event;
        if (n > 1) history(l->history, &event, H_ENTER, line);
        *text = line;
        *bytes = (uint64_t)(line[n - 1] == '\n' ? n - 1 : n);
        return ST_OK;
    }
}

/* --- a pipe -------------------------------------------------------------------------------------
 */

static status make_room(line_in *l, errmsg *e)
{
    if (l->n < l->room) return ST_OK;
    uint64_t room = l->room == 0 ? 65536 : 2 * l->room;
    char *more = realloc(l->text, room);
    if (more == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line");
    l->text = more;
    l->room = room;
    return ST_OK;
}

static status next_plain(line_in *l, const char **text, uint64_t *bytes, errmsg *e)
{
    memmove(l->text, l->text + l->given, l->n - l->given);
    l->n -= l->given;
    l->given = 0;
    for (uint64_t seen = 0;;) {
        char *newline = memchr(l->text + seen, '\n', l->n - seen);
        if (newline != NULL || (l->end && l->n > 0)) {
            *text = l->text;
            *bytes = newline != NULL ? (uint64_t)(newline - l->text) : l->n;
            l->given = newline != NULL ? *bytes + 1 : l->n;
            return ST_OK;
        }
        if (l->end) return ST_OK;
        if (l->n > l->o.bytes_max)
            return errmsg_set(e, ST_RESOURCES, "a line of more than %llu bytes",
                              (unsigned long long)l->o.bytes_max);
        seen = l->n;
        uint64_t n = 0;
        TRY(make_room(l, e));
        status s = wait_in(l, e);
        if (s == ST_INTERRUPTED) __atomic_store_n(l->o.interrupted, 0, __ATOMIC_RELAXED);
        if (s == ST_OK) s = read_some(l->text + l->n, l->room - l->n, &n, e);
        if (s == ST_TIMEOUT) continue;
        TRY(s);
        l->end = n == 0;
        l->n += n;
    }
}

/* --- both ---------------------------------------------------------------------------------------
 */

status line_in_open(line_in **out, const line_in_options *o, errmsg *e)
{
    *out = NULL;
    line_in *l = calloc(1, sizeof *l);
    if (l == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a line");
    l->o = *o;
    bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    status s = terminal ? open_edit(l, e) : make_room(l, e);
    if (s != ST_OK) {
        line_in_close(l);
        return s;
    }
    *out = l;
    return ST_OK;
}

void line_in_close(line_in *l)
{
    if (l == NULL) return;
    if (l->edit != NULL) el_end(l->edit);
    if (l->history != NULL) history_end(l->history);
    free(l->text);
    free(l);
}

bool line_in_on_terminal(const line_in *l)
{
    return l->edit != NULL;
}

status line_in_next(line_in *l, const char **text, uint64_t *bytes, errmsg *e)
{
    *text = NULL;
    *bytes = 0;
    return l->edit != NULL ? next_edited(l, text, bytes, e) : next_plain(l, text, bytes, e);
}
