/* Rows whose tokens devices tell each other (stage/ring.h), between two processes, on one GPU and
 * on two: every byte and word of messages that are lines and of those that are copied, over device
 * memory and over the host's; a row that is marked or dead; and a take that is aborted, which
 * leaves its rows dead and sends nothing on. */
#include "tests/support/stage_pair.h"

#include "common/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS_MAX  64u
#define EMBD      4096u /* 16 KB a row: up to 4 rows travel as lines */
#define STEPS_MAX 120u
#define STEPS_ONE 24u /* on one device, where processes wait for their turns */
#define SIDE_S    40u
#define LET_GO_NS (500 * NS_PER_MS)
#define OWN_MARK  3u

static uint32_t n_done, n_red, n_steps;

/* A stage's rows on its device. */
typedef struct {
    dev_ptr at;
    peer_rows x;
    struct {
        uint32_t tokens[ROWS_MAX];
        uint8_t live[ROWS_MAX], finite[ROWS_MAX];
        rows_came came;
    } host;
} rows_there;

static int open_rows(pair_side *s, rows_there *r)
{
    errmsg e = {0};
    memset(&r->host, 0, sizeof r->host);
    if (s->b->alloc(s->d, &r->at, sizeof r->host, &e) != ST_OK) return pair_say(s, "%s", e.text);
    r->x = (peer_rows){.tokens = r->at,
                       .live = dev_offset(r->at, ROWS_MAX * 4),
                       .finite = dev_offset(r->at, ROWS_MAX * 5),
                       .came = dev_offset(r->at, ROWS_MAX * 6),
                       .mark = OWN_MARK};
    return 0;
}

static status finish(pair_side *s)
{
    backend_event ev;
    TRY(s->b->event_record(s->q, &ev));
    return s->b->event_wait(s->q, ev);
}

static uint32_t word_of(uint32_t step, uint32_t i)
{
    return (step * 2654435761u) ^ (i * 2246822519u + 1);
}

static uint32_t n_rows_of(uint32_t step)
{
    static const uint32_t sizes[] = {1, 4, 5, 16, 1, ROWS_MAX, 2, 3};
    return sizes[step % (sizeof sizes / sizeof *sizes)];
}

/* Rows as they come: every seventh is dead, every fifth is found not to be finite here. */
static bool lives(uint32_t step, uint32_t r)
{
    return (step + r) % 7 != 0;
}

static uint32_t mark_of(uint32_t step, uint32_t r)
{
    return lives(step, r) && (step + r) % 5 == 0 ? OWN_MARK : 0;
}

static void headers(wire_row *rows, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (wire_row){.session = 3, .position = r, .token = 7, .flags = ROW_LIVE};
}

static status put_step(pair_side *s, rows_there *r, uint32_t step, uint32_t gone, errmsg *e)
{
    wire_row rows[ROWS_MAX];
    uint32_t n = n_rows_of(step), *words = (uint32_t *)s->host;
    headers(rows, n);
    for (uint32_t i = 0; i < n * EMBD; i++)
        words[i] = word_of(step, i);
    for (uint32_t i = 0; i < n; i++) {
        r->host.tokens[i] = word_of(step, ~i);
        r->host.live[i] = lives(step, i);
        r->host.finite[i] = (step + i) % 5 == 0;
    }
    r->host.came.gone = gone;
    r->x.n_rows = n;
    TRY(s->b->upload(s->q, s->hidden, s->host, (uint64_t)n * EMBD * sizeof(float)));
    TRY(s->b->upload(s->q, r->at, &r->host, sizeof r->host));
    TRY(finish(s));
    TRY(edges_put(&s->x, step % 2, step, rows, &r->x, s->hidden, e));
    TRY(finish(s));
    edges_sent(&s->x, step % 2);
    return ST_OK;
}

/* The take of a step; *end is done when it is through. */
static status take_step(pair_side *s, rows_there *r, uint32_t step, backend_event *end, errmsg *e)
{
    wire_row rows[ROWS_MAX];
    uint32_t n = n_rows_of(step);
    headers(rows, n);
    const incoming in = {
        .slot = step % 2, .seq = step, .rows = rows, .n_rows = n, .hidden = s->hidden};
    r->x.n_rows = n;
    TRY(edges_take(&s->x, &in, &r->x, e));
    return s->b->event_record(s->q, end);
}

/* What has come, to the host; a call that waits for all of the queue. */
static status fetch(pair_side *s, rows_there *r, uint32_t step)
{
    TRY(s->b->download(s->q, s->host, s->hidden, (uint64_t)n_rows_of(step) * EMBD * sizeof(float)));
    TRY(s->b->download(s->q, &r->host, r->at, sizeof r->host));
    return finish(s);
}

static int compare(pair_side *s, const rows_there *r, uint32_t step)
{
    const uint32_t n = n_rows_of(step), *words = (const uint32_t *)s->host;
    for (uint32_t i = 0; i < n * EMBD; i++)
        if (words[i] != word_of(step, i))
            return pair_say(s, "step %u: element %u differs", step, i);
    if (r->host.came.gone != 0) return pair_say(s, "step %u is gone", step);
    for (uint32_t i = 0; i < n; i++) {
        const came_row *c = &r->host.came.row[i];
        bool same = c->token == word_of(step, ~i) && c->live == lives(step, i) &&
                    c->mark == mark_of(step, i);
        if (!same || r->host.tokens[i] != c->token || r->host.live[i] != c->live)
            return pair_say(s, "step %u: row %u came with token %u, live %u, mark %u", step, i,
                            c->token, c->live, c->mark);
    }
    return 0;
}

static int tell(pair_side *s)
{
    rows_there r;
    errmsg e = {0};
    status st = ST_OK;
    if (open_rows(s, &r) != 0) return 1;
    if (!edges_carry(&s->x)) return pair_say(s, "the boundaries do not carry such rows");
    for (uint32_t step = 1; step <= n_steps && st == ST_OK; step++)
        st = put_step(s, &r, step, 0, &e);
    /* What came before is gone: it is announced, and nothing is sent. */
    if (st == ST_OK) st = put_step(s, &r, n_steps + 1, 1, &e);
    if (st != ST_OK) return pair_say(s, "%s %s", status_word(st), e.text);
    while (atomic_load(&s->shared->phase) == 0)
        usleep(200);
    return 0;
}

/* A take to which nothing comes, until the stage is told to stop. */
static int abort_take(pair_side *s, rows_there *r)
{
    errmsg e = {0};
    backend_event end;
    uint32_t n = n_rows_of(n_steps + 1);
    status st = take_step(s, r, n_steps + 1, &end, &e);
    if (st != ST_OK) return pair_say(s, "%s %s", status_word(st), e.text);
    usleep(50000);
    if (s->b->event_done(s->q, end))
        return pair_say(s, "a put behind an aborted take has sent something");
    uint64_t begin = now_ns();
    atomic_store(&s->stop, 1);
    edges_wake(&s->x);
    if (s->b->event_wait(s->q, end) != ST_OK) return pair_say(s, "the device failed");
    atomic_store(&s->shared->ns[1], now_ns() - begin);
    if (fetch(s, r, n_steps + 1) != ST_OK) return pair_say(s, "the device failed");
    if (r->host.came.gone != 1) return pair_say(s, "an aborted take is not gone");
    for (uint32_t i = 0; i < n; i++)
        if (r->host.live[i] != 0 || r->host.came.row[i].live != 0)
            return pair_say(s, "row %u lives", i);
    return 0;
}

static int hear(pair_side *s)
{
    rows_there r;
    errmsg e = {0};
    int code = open_rows(s, &r);
    for (uint32_t step = 1; step <= n_steps && code == 0; step++) {
        backend_event end;
        status st = take_step(s, &r, step, &end, &e);
        if (st == ST_OK) st = edges_coming(&s->x, step % 2, end, &e);
        if (st == ST_OK) st = s->b->event_wait(s->q, end);
        if (st == ST_OK) st = fetch(s, &r, step);
        if (st != ST_OK) return pair_say(s, "step %u: %s %s", step, status_word(st), e.text);
        code = compare(s, &r, step);
        edges_taken(&s->x, step % 2, n_rows_of(step));
    }
    if (code == 0) code = abort_take(s, &r);
    atomic_store(&s->shared->phase, 1);
    return code;
}

static void run(const pair_spec *spec, const char *name)
{
    stage_pair p;
    n_steps = spec->device[0] == spec->device[1] ? STEPS_ONE : STEPS_MAX;
    pair_make(&p, spec);
    pair_start(&p, 1, 1, hear);
    pair_start(&p, 0, 1, tell);
    int rx = pair_wait(&p, 1, SIDE_S);
    if (rx != 0) kill(p.pid[0], SIGKILL);
    int tx = pair_wait(&p, 0, SIDE_S);
    uint64_t took_ns = atomic_load(&p.shared->ns[1]);
    bool good = tx == 0 && rx == 0 && took_ns > 0 && took_ns < LET_GO_NS;
    printf(
        "%sok %u - rows with their tokens over %s, devices %u,%u: %u steps, let go after %.0f us, "
        "ends %d %d %.80s\n",
        good ? "" : "not ", ++n_done, name, spec->device[0], spec->device[1], n_steps,
        (double)took_ns / 1e3, tx, rx, p.shared->refusal);
    fflush(stdout);
    n_red += !good;
    pair_free(&p);
}

int main(void)
{
    uint32_t n = pair_devices();
    if (n == 0) {
        printf("1..0 # SKIP no CUDA device\n");
        return 0;
    }
    alarm(120);
    for (uint32_t two = 0; two <= (n > 1); two++) {
        pair_spec spec = {.device = {0, two}, .rows_max = ROWS_MAX, .n_embd = EMBD};
        spec.transport = TRANSPORT_IPC;
        spec.signal = SIGNAL_SPIN; /* forced: on one device nobody would */
        run(&spec, "ipc by spin");
        spec.transport = TRANSPORT_HOST;
        spec.signal = SIGNAL_AUTO;
        run(&spec, "host");
    }
    printf("1..%u\n# %s: %u of %u red\n", n_done, n_red == 0 ? "ok" : "not ok", n_red, n_done);
    return n_red == 0 ? 0 : 1;
}
