#include "coordinator/commands/progress.h"
#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/commands/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LINES_MAX 16u
#define BAR_MAX   30u
#define REDRAW_NS (80 * NS_PER_MS)

void progress_begin(progress *p, uint32_t n_stages, bool wanted)
{
    const char *term = getenv("TERM");
    memset(p, 0, sizeof *p);
    p->fd = STDERR_FILENO;
    p->n_stages = n_stages;
    p->shown = wanted && isatty(p->fd) && term != NULL && strcmp(term, "dumb") != 0;
}

static void screen(const progress *p, uint32_t *rows, uint32_t *columns)
{
    struct winsize w;
    bool known = ioctl(p->fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 && w.ws_row > 0;
    *rows = known ? w.ws_row : 24;
    *columns = known ? w.ws_col : 80;
}

/* "stage 1  [#######.......]  50 %  1.2 GB of 2.4 GB", cut to the columns. */
static size_t draw_line(char *out, size_t bytes, const char *name, uint64_t done, uint64_t total,
                        uint32_t columns)
{
    char bar[BAR_MAX + 1], line[160];
    if (done > total) done = total;
    double share = total == 0 ? 0 : (double)done / (double)total;
    uint32_t width = columns > 60 ? BAR_MAX : 10, full = (uint32_t)(share * width);
    memset(bar, '#', full);
    memset(bar + full, '.', width - full);
    bar[width] = '\0';
    int n = snprintf(line, sizeof line, "%s  [%s] ", name, bar);
    n += total == 0 ? snprintf(line + n, sizeof line - (size_t)n, "starting")
                    : snprintf(line + n, sizeof line - (size_t)n, "%3.0f %%  %s of %s", share * 100,
                               amount_said(done), amount_said(total));
    if (n > (int)columns - 1) n = (int)columns - 1;
    return (size_t)snprintf(out, bytes, "\r\033[K%.*s\n", n, line);
}

static void draw(progress *p)
{
    uint32_t rows, columns;
    screen(p, &rows, &columns);
    char text[LINES_MAX * 200 + 32], name[32];
    size_t n = 0;
    if (p->n_lines > 0) n = (size_t)snprintf(text, sizeof text, "\033[%uA", p->n_lines);
    if (p->n_stages <= LINES_MAX && p->n_stages + 1 < rows) {
        for (uint32_t i = 0; i < p->n_stages; i++) {
            snprintf(name, sizeof name, "loading stage %-2u", i);
            n += draw_line(text + n, sizeof text - n, name, p->done[i], p->total[i], columns);
        }
        p->n_lines = p->n_stages;
    } else {
        uint64_t done = 0, total = 0;
        for (uint32_t i = 0; i < p->n_stages; i++) {
            done += p->done[i];
            total += p->total[i];
        }
        snprintf(name, sizeof name, "loading %u stage%s", p->n_stages, plural(p->n_stages));
        n += draw_line(text + n, sizeof text - n, name, done, total, columns);
        p->n_lines = 1;
    }
    ssize_t written = write(p->fd, text, n);
    (void)written; /* a bar that cannot be drawn is no fault */
}

void progress_update(void *ctx, uint32_t stage, uint64_t done_bytes, uint64_t total_bytes)
{
    progress *p = ctx;
    if (!p->shown || stage >= p->n_stages) return;
    p->done[stage] = done_bytes;
    p->total[stage] = total_bytes;
    uint64_t now = now_ns();
    if (now - p->drawn_ns < REDRAW_NS) return;
    p->drawn_ns = now;
    draw(p);
}

void progress_end(progress *p)
{
    if (p->n_lines == 0) return;
    /* Up over our lines and wipe to the end of the screen. */
    char text[32];
    int n = snprintf(text, sizeof text, "\033[%uA\r\033[J", p->n_lines);
    ssize_t written = write(p->fd, text, (size_t)n);
    (void)written;
    p->n_lines = 0;
}
