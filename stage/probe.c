#include "stage/probe.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

/* Any bit pattern a float may have, by edge, probe and place. */
static uint32_t pattern_word(uint32_t edge_i, uint64_t probe_seq, uint64_t i)
{
    uint64_t z = ((uint64_t)edge_i << 48) ^ (probe_seq << 40) ^ (i + 1);
    z *= 0x9e3779b97f4a7c15ull;
    z ^= z >> 29;
    z *= 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(z >> 32);
}

static void pattern_fill(edges *x, uint32_t edge_i, uint64_t probe_seq, uint32_t n_rows,
                         uint32_t n_embd)
{
    uint64_t n = (uint64_t)n_rows * n_embd;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t w = pattern_word(edge_i, probe_seq, i);
        memcpy(&x->pattern[i], &w, sizeof w);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        x->rows[r] = (row_header){.session_step = probe_seq,
                                  .session = pattern_word(edge_i, probe_seq, n + r),
                                  .generation = edge_i,
                                  .branch = ~r,
                                  .position = r,
                                  .token = n_rows,
                                  .live = 1};
    }
}

#define COMES_NS (30 * NS_PER_S) /* a sender that lives has sent its next probe by then */

typedef struct {
    edges *x;
    crossing c;
    bool spoken;       /* sending: the receiver has */
    uint64_t began_ns; /* receiving */
} probing;

static status send_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    probing *p = ctx;
    edge *g = &p->x->out;
    (void)e;
    p->spoken = boundary_spoken(&g->end, false);
    if (p->spoken) return ST_CLOSED;
    return g->kind->send(g->way, p->c.slot, p->c.kind, p->c.seq, p->x->rows, p->c.hidden,
                         p->c.n_rows, timeout_ns);
}

static status probe_send(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                         dev_ptr hidden, bool corrupt, bool *spoken, errmsg *e)
{
    uint32_t n_embd = x->out.end.n_embd;
    pattern_fill(x, x->stage_i, probe_seq, n_rows, n_embd);
    if (corrupt) {
        if (n_embd > 0)
            ((unsigned char *)x->pattern)[((uint64_t)n_rows * n_embd - 1) * sizeof(float)] ^= 1;
        else
            x->rows[n_rows - 1].branch ^= 1;
    }
    if (n_embd > 0)
        TRY(x->backend->upload(x->queue, hidden, x->pattern,
                               (uint64_t)n_rows * n_embd * sizeof(float)));
    probing p = {.x = x,
                 .c = {.sending = true,
                       .slot = slot,
                       .n_rows = n_rows,
                       .kind = SLOT_PROBE,
                       .seq = probe_seq,
                       .hidden = hidden}};
    status s = edges_wait(x, true, send_slice, &p, e);
    *spoken = p.spoken;
    return p.spoken ? ST_OK : s;
}

static status probe_compare(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                            const float *got, const row_header *got_rows, errmsg *e)
{
    uint32_t edge_i = x->in.from;
    uint32_t n_embd = x->in.end.n_embd;
    uint64_t n = (uint64_t)n_rows * n_embd;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t w;
        memcpy(&w, &got[i], sizeof w);
        if (w != pattern_word(edge_i, probe_seq, i)) {
            return errmsg_set(e, ST_PROTOCOL,
                              "byte probe of boundary %u -> %u failed: slot %u, %u rows, row %llu, "
                              "element %llu is 0x%08x, sent 0x%08x",
                              edge_i, x->stage_i, slot, n_rows, (unsigned long long)(i / n_embd),
                              (unsigned long long)(i % n_embd), w,
                              pattern_word(edge_i, probe_seq, i));
        }
    }
    pattern_fill(x, edge_i, probe_seq, n_rows, 0 /* headers alone */);
    for (uint32_t r = 0; r < n_rows; r++) {
        x->rows[r].session = pattern_word(edge_i, probe_seq, n + r);
        if (!row_header_equal(&x->rows[r], &got_rows[r])) {
            return errmsg_set(
                e, ST_PROTOCOL,
                "byte probe of boundary %u -> %u failed: slot %u, %u rows: the header "
                "of row %u differs",
                edge_i, x->stage_i, slot, n_rows, r);
        }
    }
    return ST_OK;
}

static status receive_slice(void *ctx, uint64_t timeout_ns, errmsg *e)
{
    probing *p = ctx;
    edge *g = &p->x->in;
    status s = g->kind->receive(g->way, p->c.slot, p->c.kind, p->c.seq, p->x->rows, p->c.hidden,
                                &p->c.n_rows, timeout_ns, e);
    if (s != ST_TIMEOUT || now_ns() - p->began_ns < COMES_NS) return s;
    return errmsg_set(e, ST_PROTOCOL, "no byte probe came in slot %u within %llu s", p->c.slot,
                      (unsigned long long)(COMES_NS / NS_PER_S));
}

static status probe_receive(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                            dev_ptr hidden, row_header *got_rows, errmsg *e)
{
    probing p = {.x = x,
                 .c = {.slot = slot, .kind = SLOT_PROBE, .seq = probe_seq, .hidden = hidden},
                 .began_ns = now_ns()};
    TRY(edges_wait(x, false, receive_slice, &p, e));
    if (p.c.n_rows != n_rows) {
        return errmsg_set(e, ST_PROTOCOL,
                          "byte probe into stage %u: slot %u brought %u rows, not %u", x->stage_i,
                          slot, p.c.n_rows, n_rows);
    }
    uint32_t n_embd = x->in.end.n_embd;
    if (n_embd > 0) {
        backend_event ev;
        TRY(x->backend->download(x->queue, x->pattern, hidden,
                                 (uint64_t)n_rows * n_embd * sizeof(float)));
        TRY(x->backend->event_record(x->queue, &ev));
        TRY(x->backend->event_wait(x->queue, ev));
    }
    memcpy(got_rows, x->rows, n_rows * sizeof *got_rows);
    return probe_compare(x, slot, probe_seq, n_rows, x->pattern, got_rows, e);
}

/* The probes in order: number i goes through slot i % 2. */
static uint32_t rows_of(const edges *x, uint32_t i)
{
    const uint32_t sizes[PROBES_PER_EDGE / BOUNDARY_SLOTS] = {1, 8, 16, x->rows_max};
    uint32_t n = sizes[i / BOUNDARY_SLOTS];
    return n < x->rows_max ? n : x->rows_max;
}

static void progress(edges *x)
{
    atomic_fetch_add_explicit(&x->words->progress, 1, memory_order_release);
}

status probe_send_all(edges *x, dev_ptr hidden, bool corrupt, errmsg *e)
{
    bool spoken = false;
    for (uint32_t i = 0; i < PROBES_PER_EDGE && !spoken; i++) {
        TRY(probe_send(x, i % BOUNDARY_SLOTS, 1 + i, rows_of(x, i), hidden, corrupt, &spoken, e));
        progress(x);
    }
    return ST_OK;
}

status probe_receive_all(edges *x, dev_ptr hidden, errmsg *e)
{
    row_header *got_rows = calloc(x->rows_max, sizeof *got_rows);
    if (got_rows == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the byte probe");
    status s = ST_OK;
    for (uint32_t i = 0; i < PROBES_PER_EDGE; i++) {
        TRY_DONE(s,
                 probe_receive(x, i % BOUNDARY_SLOTS, 1 + i, rows_of(x, i), hidden, got_rows, e));
        progress(x);
    }
    atomic_fetch_add_explicit(&x->words->n_probes, PROBES_PER_EDGE, memory_order_relaxed);
done:
    free(got_rows);
    return s;
}
