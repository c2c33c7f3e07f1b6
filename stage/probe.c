#include "stage/probe.h"

#include <stdlib.h>
#include <string.h>

/* Any bit pattern a float may have, by edge, probe and place. */
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
    return edges_cross(x, &c, e);
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
        if (!row_header_equal(&x->rows[r], &got_rows[r])) {
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
    TRY(edges_cross(x, &c, e));
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
    atomic_fetch_add_explicit(&x->words->n_probes, 1, memory_order_relaxed);
    return ST_OK;
}

status probe_edges(edges *x, dev_ptr hidden, bool corrupt, errmsg *e)
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
