/* hop_bench: what a hop between two GPUs costs for rows of 16 KB, 32 KB and 1 MB; microseconds.
 *
 *   chain  the devices alone: puts and takes of both processes stand on their queues beforehand,
 *          rows go there and back, and a tiny kernel stamps the device's clock once a round: half a
 *          round, half of that kernel in it. The mean is of rounds without stamps between them
 *   ring   the same, with the rows' tokens beside them, as rounds that devices feed each other
 *          (stage/ring.h): no host is told anything
 *   host   as a stage does it: from the call that sends to the return of the call that receives,
 *          one row or chunk at a time
 *
 * Usage: hop_bench [DEVICE DEVICE]      (0 1) */
#include "common/clock.h"
#include "kernels/cuda/device.h"
#include "kernels/peer.h"
#include "tests/support/stage_pair.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EMBD     4096u
#define ROWS_MAX 64u
#define ROUNDS   4000u
#define WARM     400u
#define BATCH    100u /* rounds that stand on a queue */
#define LIMIT_S  60u

cudaError_t hop_stamp(cudaStream_t s, uint64_t *at);

typedef struct {
    peer_blob offer[PAIR_N], answer[PAIR_N];
    _Atomic uint32_t step[PAIR_N]; /* how far each side is */
    _Atomic uint64_t sent_ns, seq;
    uint64_t bytes;
    uint32_t n_rows;
    double mean_us;
    peer_signal how;
    bool ring;
    double us[ROUNDS];
} hop_shared;

static hop_shared *hop;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_hops(const char *what, const char *way, uint64_t bytes, uint32_t n)
{
    qsort(hop->us, n, sizeof *hop->us, by_value);
    char mean[16] = "";
    if (hop->mean_us > 0) snprintf(mean, sizeof mean, "%.2f", hop->mean_us);
    printf("| %-5s | %-17s | %5llu KB | %7.1f | %7.1f | %7.1f | %7s |\n", what, way,
           (unsigned long long)bytes / 1024, hop->us[n / 2], hop->us[n * 99ull / 100],
           hop->us[n * 999ull / 1000], mean);
    fflush(stdout);
}

/* Both sides have come to step n. */
static void meet(uint32_t i, uint32_t n)
{
    atomic_store(&hop->step[i], n);
    while (atomic_load(&hop->step[1 - i]) < n)
        usleep(20);
}

/* --- chain --- */

typedef struct {
    peer_box *box;
    peer_window *window;
    peer_rows rows;
} ends;

static status open_rows(pair_side *s, peer_rows *x, errmsg *e)
{
    dev_ptr at;
    TRY(s->b->alloc(s->d, &at, ROWS_MAX * 8 + sizeof(rows_came), e));
    *x = (peer_rows){.tokens = at,
                     .live = dev_offset(at, ROWS_MAX * 4),
                     .finite = dev_offset(at, ROWS_MAX * 5),
                     .came = dev_offset(at, ROWS_MAX * 8),
                     .n_rows = hop->n_rows,
                     .mark = 1};
    return ST_OK;
}

static status open_ends(pair_side *s, ends *x, errmsg *e)
{
    const backend_peer *p = s->b->peer;
    bool same;
    TRY(p->box_open(s->q, &x->box, ROWS_MAX * EMBD * sizeof(float), e));
    TRY(p->box_offer(x->box, 1, &hop->offer[s->i], e));
    meet(s->i, 1);
    TRY(p->window_open(s->q, &x->window, &hop->offer[1 - s->i], &hop->answer[s->i], &same, e));
    meet(s->i, 2);
    return p->box_meet(x->box, &hop->answer[1 - s->i], e);
}

static status chain_round(pair_side *s, const ends *x, uint64_t round)
{
    const backend_peer *p = s->b->peer;
    const peer_rows *rows = hop->ring ? &x->rows : NULL;
    uint64_t value = 1ull << 32 | round;
    if (s->i == 0) TRY(p->put(x->window, 0, hop->how, value, s->hidden, hop->bytes, rows));
    TRY(p->take(x->box, 0, hop->how, value, s->hidden, hop->bytes, rows));
    return s->i == 0 ? ST_OK : p->put(x->window, 0, hop->how, value, s->hidden, hop->bytes, rows);
}

static status drain(pair_side *s)
{
    backend_event ev;
    TRY(s->b->event_record(s->q, &ev));
    return s->b->event_wait(s->q, ev);
}

/* n rounds from value `first` on; stamped each, or only the first and last of a batch. */
static status chain_rounds(pair_side *s, const ends *x, uint64_t *stamps, uint64_t first,
                           uint32_t n, bool each)
{
    for (uint32_t r = 0; r < n; r++) {
        bool border = r % BATCH == 0 || r % BATCH == BATCH - 1;
        TRY(chain_round(s, x, first + r));
        if (s->i == 0 && (each || border))
            TRY(cuda_result(s->d, hop_stamp(s->q->stream, &stamps[r]), "hop_stamp", NULL));
        if (r % BATCH == BATCH - 1) TRY(drain(s));
    }
    return drain(s);
}

static int chain_side(pair_side *s)
{
    ends x = {0};
    errmsg e = {0};
    dev_ptr at;
    const uint32_t n = ROUNDS + WARM, n_sparse = 10 * BATCH;
    uint64_t *stamps = malloc(n * sizeof *stamps);
    if (s->b->alloc(s->d, &at, n * sizeof *stamps, &e) != ST_OK ||
        open_rows(s, &x.rows, &e) != ST_OK || open_ends(s, &x, &e) != ST_OK)
        return pair_say(s, "%s", e.text);
    meet(s->i, 3);
    if (chain_rounds(s, &x, cuda_address(at), 1, n, true) != ST_OK)
        return pair_say(s, "the chain broke");
    if (s->b->download(s->q, stamps, at, n * sizeof *stamps) != ST_OK || drain(s) != ST_OK)
        return 1;
    uint32_t n_us = 0; /* not across the border of two batches */
    for (uint32_t r = WARM; s->i == 0 && r < n; r++)
        if (r % BATCH != 0) hop->us[n_us++] = (double)(stamps[r] - stamps[r - 1]) / 2e3;
    if (s->i == 0) hop->seq = n_us;
    if (chain_rounds(s, &x, cuda_address(at), n + 1, n_sparse, false) != ST_OK ||
        s->b->download(s->q, stamps, at, n_sparse * sizeof *stamps) != ST_OK || drain(s) != ST_OK)
        return pair_say(s, "the chain broke");
    double sum_us = 0;
    for (uint32_t r = 0; r < n_sparse; r += BATCH)
        sum_us += (double)(stamps[r + BATCH - 1] - stamps[r]) / 2e3;
    if (s->i == 0) hop->mean_us = sum_us / (n_sparse / BATCH * (BATCH - 1));
    s->b->peer->window_close(x.window);
    meet(s->i, 4);
    s->b->peer->box_close(x.box);
    return 0;
}

/* --- host --- */

static int host_side(pair_side *s)
{
    errmsg e = {0};
    wire_row rows[ROWS_MAX] = {{0}};
    for (uint32_t r = 1; r <= ROUNDS / 4 + WARM; r++) {
        status st;
        if (s->i == 0) {
            while (atomic_load(&hop->seq) != r - 1)
                continue;
            atomic_store(&hop->sent_ns, now_ns());
            st = edges_send(&s->x, r % 2, r, rows, NULL, hop->n_rows, s->hidden, &e);
        } else {
            incoming in = {.slot = r % 2,
                           .seq = r,
                           .rows = rows,
                           .n_rows = hop->n_rows,
                           .hidden = s->hidden};
            st = edges_receive(&s->x, &in, &e);
            uint64_t now = now_ns();
            if (r > WARM) hop->us[r - WARM - 1] = (double)(now - hop->sent_ns) / 1e3;
            atomic_store(&hop->seq, r);
        }
        if (st != ST_OK) return pair_say(s, "%s %s", status_word(st), e.text);
    }
    return 0;
}

static bool run(const pair_spec *spec, bool chain, char way[48])
{
    stage_pair p;
    pair_make(&p, spec);
    memset(hop->step, 0, sizeof hop->step);
    hop->seq = 0;
    hop->mean_us = 0;
    for (uint32_t i = 0; i < PAIR_N; i++) {
        if (chain)
            pair_start_unconnected(&p, i, 1, chain_side);
        else
            pair_start(&p, i, 1, host_side);
    }
    int code = pair_wait(&p, 1, LIMIT_S);
    if (code != 0) kill(p.pid[0], SIGKILL);
    code |= pair_wait(&p, 0, LIMIT_S);
    if (code != 0) printf("# %s\n", p.shared->refusal);
    if (!chain) memcpy(way, p.shared->way[1], 48);
    pair_free(&p);
    return code == 0;
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {1, 2, ROWS_MAX};
    static const struct {
        transport_kind transport;
        signal_kind signal;
    } ways[] = {{TRANSPORT_IPC, SIGNAL_SPIN},  {TRANSPORT_IPC, SIGNAL_MEMOP},
                {TRANSPORT_IPC, SIGNAL_EVENT},
                {TRANSPORT_NCCL, SIGNAL_AUTO}, {TRANSPORT_HOST, SIGNAL_AUTO},
                {TRANSPORT_SHM, SIGNAL_AUTO}};
    pair_spec spec = {.device = {0, 1}, .rows_max = ROWS_MAX, .n_embd = EMBD};
    if (argc == 3) spec.device[0] = (uint32_t)atoi(argv[1]);
    if (argc == 3) spec.device[1] = (uint32_t)atoi(argv[2]);
    hop = mmap(NULL, sizeof *hop, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (hop == MAP_FAILED) return 1;
    printf("| hop   | way               | rows     |  median |     p99 |   p99.9 |    mean |\n");
    printf("|-------|-------------------|---------:|--------:|--------:|--------:|--------:|\n");
    for (uint32_t k = 0; k < 3; k++) {
        hop->n_rows = sizes[k];
        hop->bytes = (uint64_t)sizes[k] * EMBD * sizeof(float);
        for (uint32_t i = 0; i < 3; i++) {
            hop->ring = i == 0;
            hop->how = i == 2 ? PEER_MEMOP : PEER_SPIN;
            if (run(&spec, true, NULL))
                print_hops(hop->ring ? "ring" : "chain", i == 2 ? "memop" : "spin", hop->bytes,
                           (uint32_t)hop->seq);
        }
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            char way[48];
            spec.transport = ways[i].transport;
            spec.signal = ways[i].signal;
            if (run(&spec, false, way)) print_hops("host", way, hop->bytes, ROUNDS / 4);
        }
    }
    return 0;
}
