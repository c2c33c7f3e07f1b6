#include "coordinator/gates/gate_kills.h"

#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/commands/random_tokens.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_MAX_MS  40u    /* between what one strike did and the next */
#define SECOND_MAX_NS (25 * NS_PER_MS) /* after the first: while it is being replaced */
#define POLL_US       200u
#define LOSSES_MAX    2u     /* of one strike */

static const char *const series_words[KILLS_SERIES] = {
    [KILLS_ENDED] = "kill to end of process",
    [KILLS_NOTICED] = "end of process to noticed",
    [KILLS_LATE] = "noticed beyond the deadline (stopped, hung)",
    [KILLS_REAPED] = "reaped",
    [KILLS_WAITED] = "waited before the start",
    [KILLS_STARTED] = "started",
    [KILLS_REPLAYED] = "replayed",
    [KILLS_RESUMED] = "noticed to resume",
    [KILLS_TOTAL] = "kill to resume",
    [KILLS_TOKEN] = "kill to next token, one lost",
    [KILLS_TOKEN_TWO] = "kill to next token, two lost together",
};

typedef struct {
    uint32_t stage;
    loss_kind kind;
    int pid, pidfd;
    uint64_t ns, ended_ns;   /* of SIGKILL: the process has ended; 0: not seen */
} loss;

static void sleep_us(uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

status kills_open(kills *out, pipeline *p, const stream_counts *counts,
                  const _Atomic uint32_t *stop, uint32_t n, uint64_t seed, errmsg *e)
{
    *out = (kills){.p = p, .counts = counts, .stop = stop, .random = seed, .room = n + LOSSES_MAX};
    for (uint32_t m = 0; m < KILLS_SERIES; m++) {
        out->series[m].ms = calloc(out->room, sizeof *out->series[m].ms);
        if (out->series[m].ms == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for times");
    }
    return ST_OK;
}

void kills_close(kills *k)
{
    for (uint32_t m = 0; m < KILLS_SERIES; m++) free(k->series[m].ms);
}

bool kills_wait(const kills *k, bool (*is)(const void *ctx), const void *ctx)
{
    for (uint64_t begin = now_ns(); now_ns() - begin < KILLS_PATIENCE_NS && interrupt_signal() == 0;
         sleep_us(POLL_US)) {
        if (is(ctx)) return true;
        if (atomic_load(k->stop) != 0) return false;
    }
    return false;
}

/* --- moments ---------------------------------------------------------------------------------- */

static bool is_primed(const void *counts)
{
    return atomic_load(&((const stream_counts *)counts)->n_priming) > 0;
}

static bool is_drafted(const void *counts)
{
    return atomic_load(&((const stream_counts *)counts)->n_drafting) > 0;
}

static bool wait_for_moment(kills *k)
{
    sleep_us(random_next(&k->random) % (PAUSE_MAX_MS * 1000));
    bool primed = k->n_strikes % 3 == 1, drafted = k->n_strikes % 3 == 2;
    if (primed && !kills_wait(k, is_primed, k->counts)) return false;
    if (drafted && !kills_wait(k, is_drafted, k->counts)) return false;
    k->n_primed += is_primed(k->counts);
    k->n_drafted += is_drafted(k->counts);
    return true;
}

/* --- losses ----------------------------------------------------------------------------------- */

static loss lose(kills *k, uint32_t stage, loss_kind kind)
{
    stage_snapshot t;
    pipeline_stage(k->p, stage, &t);
    loss x = {.stage = stage, .kind = kind, .pid = t.pid, .pidfd = -1};
    if (kind == LOSS_KILL) x.pidfd = (int)syscall(SYS_pidfd_open, t.pid, 0);
    x.ns = now_ns();
    if (kind == LOSS_HANG)
        pipeline_ask_faults(k->p, stage);
    else
        kill(t.pid, kind == LOSS_STOP ? SIGSTOP : SIGKILL);
    k->n_kind[kind]++;
    return x;
}

/* For so long, or until it has ended. */
static void watch(loss *x, uint64_t limit_ns)
{
    const struct timespec t = {.tv_sec = (time_t)(limit_ns / NS_PER_S),
                               .tv_nsec = (long)(limit_ns % NS_PER_S)};
    struct pollfd end = {.fd = x->pidfd, .events = POLLIN};
    if (x->pidfd < 0 || ppoll(&end, 1, &t, NULL) != 1) return;
    x->ended_ns = now_ns();
    close(x->pidfd);
    x->pidfd = -1;
}

static loss_kind next_kind(kills *k)
{
    uint32_t i = k->n_strikes % KILLS_BLOCK;
    if (i == 0) {
        k->at_stop = (uint32_t)(random_next(&k->random) % KILLS_BLOCK);
        k->at_hang = (k->at_stop + 1 + (uint32_t)(random_next(&k->random) % (KILLS_BLOCK - 1))) %
                     KILLS_BLOCK;
    }
    return i == k->at_stop ? LOSS_STOP : i == k->at_hang ? LOSS_HANG : LOSS_KILL;
}

typedef struct {
    const kills *k;
    const loss *of;
    uint32_t n;
    uint64_t n_tokens;
} outcome;

static bool replaced(const void *ctx)
{
    const outcome *o = ctx;
    stage_snapshot t;
    for (uint32_t i = 0; i < o->n; i++) {
        pipeline_stage(o->k->p, o->of[i].stage, &t);
        if (t.pid == o->of[i].pid) return false;
    }
    for (uint32_t s = 0; s < pipeline_plan(o->k->p)->cuts.n_stages; s++) {
        pipeline_stage(o->k->p, s, &t);
        if (t.replacing) return false;
    }
    return true;
}

static bool a_token_came(const void *ctx)
{
    const outcome *o = ctx;
    return atomic_load(&o->k->counts->n_tokens) != o->n_tokens;
}

static void note(kills *k, uint32_t series, uint64_t from_ns, uint64_t to_ns)
{
    kills_series *s = &k->series[series];
    if (s->n < k->room) s->ms[s->n++] = ((double)to_ns - (double)from_ns) / 1e6;
}

static void take_times(kills *k, uint64_t from, const loss *of, uint32_t n, uint64_t token_ns)
{
    recovery_record r[STAGES_MAX];
    uint64_t n_records = pipeline_recoveries(k->p, from, r, STAGES_MAX);
    for (uint64_t i = from; i < n_records && i - from < STAGES_MAX; i++) {
        const recovery_record *x = &r[i - from];
        for (uint32_t j = 0; j < n; j++) {
            const loss *l = &of[j];
            if (x->lost_pid != l->pid || x->stage != l->stage) continue;
            bool killed = l->kind == LOSS_KILL;
            if (!killed) note(k, KILLS_LATE, l->ns + x->limit_ns, x->noticed_ns);
            if (l->ended_ns != 0) note(k, KILLS_ENDED, l->ns, l->ended_ns);
            if (l->ended_ns != 0) note(k, KILLS_NOTICED, l->ended_ns, x->noticed_ns);
            note(k, KILLS_REAPED, x->noticed_ns, x->reaped_ns);
            if (x->waited_ns >= NS_PER_MS) note(k, KILLS_WAITED, 0, x->waited_ns);
            note(k, KILLS_STARTED, x->reaped_ns + x->waited_ns, x->attached_ns);
            note(k, KILLS_REPLAYED, x->attached_ns, x->resumed_ns);
            note(k, KILLS_RESUMED, x->noticed_ns, x->resumed_ns);
            if (killed) note(k, KILLS_TOTAL, l->ns, x->resumed_ns);
            if (killed) note(k, n == 1 ? KILLS_TOKEN : KILLS_TOKEN_TWO, l->ns, token_ns);
        }
    }
}

static bool wait_for_all(kills *k, uint64_t from, loss *of, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) watch(&of[i], KILLS_PATIENCE_NS);
    outcome o = {.k = k, .of = of, .n = n};
    if (!kills_wait(k, replaced, &o)) return false;
    o.n_tokens = atomic_load(&k->counts->n_tokens);
    if (!kills_wait(k, a_token_came, &o)) return false;
    take_times(k, from, of, n, now_ns());
    return true;
}

bool kills_strike(kills *k)
{
    uint32_t n_stages = pipeline_plan(k->p)->cuts.n_stages, n = 0;
    loss_kind kind = next_kind(k);
    uint32_t first = (uint32_t)(random_next(&k->random) % n_stages);
    uint32_t way = (uint32_t)(random_next(&k->random) % 6);
    loss of[LOSSES_MAX];
    if (!wait_for_moment(k)) return false;
    k->n_strikes++;
    uint64_t from = pipeline_recoveries(k->p, 0, NULL, 0);
    of[n++] = lose(k, first, kind);
    if (way == 0 && n_stages > 1) of[n++] = lose(k, (first + 1) % n_stages, LOSS_KILL);
    if (way == 1) {
        uint64_t until_ns = now_ns() + random_next(&k->random) % SECOND_MAX_NS;
        watch(&of[0], SECOND_MAX_NS);
        if (now_ns() < until_ns) sleep_us((until_ns - now_ns()) / 1000);
        of[n++] = lose(k, (uint32_t)(random_next(&k->random) % n_stages), LOSS_KILL);
    }
    return wait_for_all(k, from, of, n);
}

bool kills_strike_plainly(kills *k, uint32_t stage)
{
    sleep_us(random_next(&k->random) % (PAUSE_MAX_MS * 1000));
    k->n_strikes++;
    loss of = lose(k, stage, LOSS_KILL);
    watch(&of, KILLS_PATIENCE_NS);
    outcome o = {.k = k, .of = &of, .n = 1};
    return kills_wait(k, replaced, &o);
}

/* --- what it took ----------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By nearest rank: at least so many of a hundred took no longer. */
static double percentile(const kills_series *s, uint32_t percent)
{
    return s->ms[((uint64_t)s->n * percent + 99) / 100 - 1];
}

void kills_report(kills *k, gate_report *r)
{
    uint32_t n_stages = pipeline_plan(k->p)->cuts.n_stages;
    gate_report_note(
        r,
        "N=%u lost: %u by SIGKILL, %u by SIGSTOP, %u hung; of %u strike%s %u while prompts "
        "were primed, %u while drafts were verified",
        n_stages, k->n_kind[LOSS_KILL], k->n_kind[LOSS_STOP], k->n_kind[LOSS_HANG], k->n_strikes,
        plural(k->n_strikes), k->n_primed, k->n_drafted);
    for (uint32_t m = 0; m < KILLS_SERIES; m++) {
        kills_series *s = &k->series[m];
        if (s->n == 0) continue;
        qsort(s->ms, s->n, sizeof *s->ms, by_size);
        gate_report_note(r, "N=%u %s: p50 %.1f ms, p99 %.1f ms of %u", n_stages, series_words[m],
                         percentile(s, 50), percentile(s, 99), s->n);
    }
}
