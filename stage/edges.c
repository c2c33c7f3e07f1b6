#include "stage/edges.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

#define WAIT_SLICE_NS (50 * NS_PER_MS)

static void add(_Atomic uint64_t *word, uint64_t n)
{
    atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

status edges_open(edges *out, const wire_config *c, const backend *b, backend_queue *q,
                  stage_words *words, const _Atomic uint32_t *stop, errmsg *e)
{
    *out = (edges){.kind = transport_shm(),
                   .backend = b,
                   .queue = q,
                   .words = words,
                   .stop = stop,
                   .stage_i = c->stage_i,
                   .n_stages = c->n_stages,
                   .rows_max = c->rows_max,
                   .wait_limit_ms = c->wait_limit_ms};
    if (c->n_stages == 1) return ST_OK;
    transport_options o = {.epoch = c->epoch, .stop = stop, .backend = b, .queue = q};
    status s = ST_OK;
    o.fd = c->in_fd;
    TRY_DONE(s, out->kind->open(&out->in, &o, e));
    o.fd = c->out_fd;
    TRY_DONE(s, out->kind->open(&out->out, &o, e));
    if (out->kind->rows_max(out->in) != c->rows_max || out->kind->rows_max(out->out) != c->rows_max) {
        s = errmsg_set(e, ST_PROTOCOL, "a boundary is not %u rows long", c->rows_max);
        goto done;
    }
    uint32_t n_embd = out->kind->n_embd(out->in);
    if (out->kind->n_embd(out->out) > n_embd) n_embd = out->kind->n_embd(out->out);
    out->rows = calloc(c->rows_max, sizeof *out->rows);
    out->pattern = calloc((size_t)c->rows_max * n_embd + 1, sizeof *out->pattern);
    if (out->rows == NULL || out->pattern == NULL)
        s = errmsg_set(e, ST_RESOURCES, "no memory for a boundary's rows");
done:
    if (s != ST_OK) edges_close(out);
    return s;
}

void edges_close(edges *x)
{
    if (x->in != NULL) x->kind->close(x->in);
    if (x->out != NULL) x->kind->close(x->out);
    free(x->rows);
    free(x->pattern);
    x->in = x->out = NULL;
    x->rows = NULL;
    x->pattern = NULL;
}

void edges_wake(edges *x)
{
    if (x->in != NULL) x->kind->wake(x->in);
    if (x->out != NULL) x->kind->wake(x->out);
}

/* One bounded wait, in slices: `again` tries once for a slice's time. */
typedef struct {
    bool sending;
    uint32_t slot, n_rows;
    slot_kind kind;
    uint64_t seq;
    dev_ptr hidden;
} crossing;

static status cross_slice(edges *x, crossing *c, uint64_t timeout_ns, errmsg *e)
{
    if (c->sending) {
        return x->kind->send(x->out, c->slot, c->kind, c->seq, x->rows, c->hidden, c->n_rows,
                             timeout_ns);
    }
    return x->kind->receive(x->in, c->slot, c->kind, c->seq, x->rows, c->hidden, &c->n_rows,
                            timeout_ns, e);
}

static status cross(edges *x, crossing *c, errmsg *e)
{
    uint64_t begin = now_ns();
    atomic_store_explicit(&x->words->starved,
                          c->sending ? STARVED_OUTPUT_FULL : STARVED_INPUT_EMPTY,
                          memory_order_relaxed);
    status s;
    do {
        s = cross_slice(x, c, WAIT_SLICE_NS, e);
    } while (s == ST_TIMEOUT && now_ns() - begin < x->wait_limit_ms * NS_PER_MS);
    atomic_store_explicit(&x->words->starved, STARVED_NO, memory_order_relaxed);
    add(c->sending ? &x->words->wait_out_ns : &x->words->wait_in_ns, now_ns() - begin);
    if (s == ST_TIMEOUT) {
        return errmsg_set(e, ST_TIMEOUT, "stage %u: boundary %u -> %u stayed %s for %llu ms",
                          x->stage_i, c->sending ? x->stage_i : (x->stage_i + x->n_stages - 1) % x->n_stages,
                          c->sending ? (x->stage_i + 1) % x->n_stages : x->stage_i,
                          c->sending ? "full" : "empty", (unsigned long long)x->wait_limit_ms);
    }
    return s;
}

static row_header header_of(const wire_row *r)
{
    return (row_header){.session_step = r->session_step,
                        .session = r->session,
                        .generation = r->generation,
                        .branch = r->branch,
                        .position = r->position,
                        .token = r->token,
                        .live = (r->flags & ROW_LIVE) != 0};
}

static bool header_equal(const row_header *a, const row_header *b)
{
    return a->session_step == b->session_step && a->session == b->session &&
           a->generation == b->generation && a->branch == b->branch && a->position == b->position &&
           a->token == b->token && a->live == b->live;
}

status edges_receive(edges *x, uint32_t slot, uint64_t seq, const wire_row *expected,
                     uint32_t n_rows, dev_ptr hidden, errmsg *e)
{
    crossing c = {.slot = slot, .kind = SLOT_STEP, .seq = seq, .hidden = hidden};
    TRY(cross(x, &c, e));
    if (c.n_rows != n_rows) {
        return errmsg_set(e, ST_PROTOCOL, "stage %u: step %llu brought %u rows, expected %u",
                          x->stage_i, (unsigned long long)seq, c.n_rows, n_rows);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        row_header want = header_of(&expected[r]);
        if (!header_equal(&want, &x->rows[r])) {
            return errmsg_set(e, ST_PROTOCOL,
                              "stage %u: step %llu row %u is session %u position %u token %u, "
                              "expected session %u position %u token %u",
                              x->stage_i, (unsigned long long)seq, r, x->rows[r].session,
                              x->rows[r].position, x->rows[r].token, want.session, want.position,
                              want.token);
        }
    }
    add(&x->words->rx_rows, n_rows);
    add(&x->words->rx_bytes, n_rows * boundary_row_bytes(x->kind->n_embd(x->in), 0));
    add(&x->words->rx_crossings[slot], 1);
    return ST_OK;
}

status edges_send(edges *x, uint32_t slot, uint64_t seq, const wire_row *rows, uint32_t n_rows,
                  dev_ptr hidden, errmsg *e)
{
    for (uint32_t r = 0; r < n_rows; r++) x->rows[r] = header_of(&rows[r]);
    crossing c = {.sending = true,
                  .slot = slot,
                  .n_rows = n_rows,
                  .kind = SLOT_STEP,
                  .seq = seq,
                  .hidden = hidden};
    TRY(cross(x, &c, e));
    add(&x->words->tx_rows, n_rows);
    add(&x->words->tx_bytes, n_rows * boundary_row_bytes(x->kind->n_embd(x->out), 0));
    add(&x->words->tx_crossings[slot], 1);
    return ST_OK;
}

/* --- the byte probe: every bit pattern that a float may have, by edge, slot, rows and place -------- */

static uint32_t pattern_word(uint32_t edge, uint64_t probe_seq, uint64_t i)
{
    uint64_t z = ((uint64_t)edge << 48) ^ (probe_seq << 40) ^ (i + 1);
    z *= 0x9e3779b97f4a7c15ull;
    z ^= z >> 29;
    z *= 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(z >> 32);
}

static void pattern_fill(edges *x, uint32_t edge, uint64_t probe_seq, uint32_t n_rows, uint32_t n_embd)
{
    uint64_t n = (uint64_t)n_rows * n_embd;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t w = pattern_word(edge, probe_seq, i);
        memcpy(&x->pattern[i], &w, sizeof w);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        x->rows[r] = (row_header){.session_step = probe_seq,
                                  .session = pattern_word(edge, probe_seq, n + r),
                                  .generation = edge,
                                  .branch = ~r,
                                  .position = r,
                                  .token = n_rows,
                                  .live = 1};
    }
}

static status probe_send(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                         dev_ptr hidden, bool corrupt, errmsg *e)
{
    uint32_t n_embd = x->kind->n_embd(x->out);
    pattern_fill(x, x->stage_i, probe_seq, n_rows, n_embd);
    if (corrupt) {
        if (n_embd > 0)
            ((unsigned char *)x->pattern)[((uint64_t)n_rows * n_embd - 1) * sizeof(float)] ^= 1;
        else
            x->rows[n_rows - 1].branch ^= 1;
    }
    if (n_embd > 0)
        TRY(x->backend->upload(x->queue, hidden, x->pattern, (uint64_t)n_rows * n_embd * sizeof(float)));
    crossing c = {.sending = true,
                  .slot = slot,
                  .n_rows = n_rows,
                  .kind = SLOT_PROBE,
                  .seq = probe_seq,
                  .hidden = hidden};
    return cross(x, &c, e);
}

static status probe_compare(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                            const float *got, const row_header *got_rows, errmsg *e)
{
    uint32_t edge = (x->stage_i + x->n_stages - 1) % x->n_stages;
    uint32_t n_embd = x->kind->n_embd(x->in);
    uint64_t n = (uint64_t)n_rows * n_embd;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t w;
        memcpy(&w, &got[i], sizeof w);
        if (w != pattern_word(edge, probe_seq, i)) {
            return errmsg_set(e, ST_PROTOCOL,
                              "byte probe of boundary %u -> %u failed: slot %u, %u rows, row %llu, "
                              "element %llu is 0x%08x, sent 0x%08x",
                              edge, x->stage_i, slot, n_rows, (unsigned long long)(i / n_embd),
                              (unsigned long long)(i % n_embd), w, pattern_word(edge, probe_seq, i));
        }
    }
    pattern_fill(x, edge, probe_seq, n_rows, 0 /* headers alone */);
    for (uint32_t r = 0; r < n_rows; r++) {
        x->rows[r].session = pattern_word(edge, probe_seq, n + r);
        if (!header_equal(&x->rows[r], &got_rows[r])) {
            return errmsg_set(e, ST_PROTOCOL,
                              "byte probe of boundary %u -> %u failed: slot %u, %u rows: the header "
                              "of row %u differs",
                              edge, x->stage_i, slot, n_rows, r);
        }
    }
    return ST_OK;
}

static status probe_receive(edges *x, uint32_t slot, uint64_t probe_seq, uint32_t n_rows,
                            dev_ptr hidden, row_header *got_rows, errmsg *e)
{
    crossing c = {.slot = slot, .kind = SLOT_PROBE, .seq = probe_seq, .hidden = hidden};
    TRY(cross(x, &c, e));
    if (c.n_rows != n_rows) {
        return errmsg_set(e, ST_PROTOCOL, "byte probe into stage %u: slot %u brought %u rows, not %u",
                          x->stage_i, slot, c.n_rows, n_rows);
    }
    uint32_t n_embd = x->kind->n_embd(x->in);
    if (n_embd > 0) {
        backend_event ev;
        TRY(x->backend->download(x->queue, x->pattern, hidden, (uint64_t)n_rows * n_embd * sizeof(float)));
        TRY(x->backend->event_record(x->queue, &ev));
        TRY(x->backend->event_wait(x->queue, ev));
    }
    memcpy(got_rows, x->rows, n_rows * sizeof *got_rows);
    TRY(probe_compare(x, slot, probe_seq, n_rows, x->pattern, got_rows, e));
    add(&x->words->n_probes, 1);
    return ST_OK;
}

status edges_probe(edges *x, dev_ptr hidden, bool corrupt, errmsg *e)
{
    if (x->n_stages == 1) return ST_OK;
    const uint32_t sizes[] = {1, 8, 16, x->rows_max};
    row_header *got_rows = calloc(x->rows_max, sizeof *got_rows);
    if (got_rows == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the byte probe");
    status s = ST_OK;
    /* Everybody sends before it receives: both slots are free then, so that the ring of boundaries
     * cannot block itself. */
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t n_rows = sizes[i] < x->rows_max ? sizes[i] : x->rows_max;
        for (uint32_t slot = 0; slot < BOUNDARY_SLOTS; slot++) {
            uint64_t probe_seq = 1 + i * BOUNDARY_SLOTS + slot;
            TRY_DONE(s, probe_send(x, slot, probe_seq, n_rows, hidden, corrupt, e));
            TRY_DONE(s, probe_receive(x, slot, probe_seq, n_rows, hidden, got_rows, e));
            atomic_fetch_add_explicit(&x->words->progress, 1, memory_order_release);
        }
    }
done:
    free(got_rows);
    return s;
}
