/* Which rows form the next step: the policy, and nothing else. Two kinds of steps, each bounded in
 * flight, so that neither can keep the other out:
 *
 * Decode: one row each of many sessions. With N stages N + 1 micro-batches keep every stage at work
 * while one is on its way back; each takes an equal share of the sessions that decode. A share that is
 * not yet complete waits for the others only while every stage has a micro-batch of its own.
 *
 * Prompt chunks: rows of one prompt, and, where it ends before the chunk is full, of the prompts
 * behind it. Decode goes first. While sessions decode, chunks in flight are so few that a decode row
 * finds at most two chunk times of work before it; otherwise two per stage.
 *
 * Sessions take turns: whoever had rows in a step goes to the end of the list. */
#include "coordinator/engine/engine.h"

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Micro-batches that the sessions that decode are shared out to. With one stage a second one would
 * only read the weights twice. */
static uint32_t micro_batches(const pipeline *p)
{
    return p->n_stages == 1 ? 1 : p->n_stages + 1;
}

/* Decode steps in flight: with one stage two, so that deferred steps of one session need not wait for
 * the coordinator. */
static uint32_t decode_window(const pipeline *p)
{
    return p->n_stages + 1;
}

static uint32_t prime_window(const pipeline *p, bool decoding)
{
    if (!decoding) return 2 * p->n_stages;
    return p->n_stages == 1 ? 1 : p->n_stages + 1;
}

uint32_t batch_window(const pipeline *p)
{
    return decode_window(p) + prime_window(p, false);
}

uint32_t batch_parts_max(const pipeline *p)
{
    return least(least(p->plan.n_sessions, p->plan.rows_max), WIRE_SAMPLERS_MAX);
}

static uint32_t in_flight(const pipeline *p, bool prime)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->window; i++)
        n += p->flights[i].seq != 0 && p->flights[i].n_parts > 0 && p->flights[i].prime == prime;
    return n;
}

static void add_part(flight *f, request *r, uint32_t n_rows)
{
    f->part[f->n_parts++] = (flight_part){.r = r, .first = r->n_issued, .n_rows = n_rows};
    f->n_rows += n_rows;
}

/* --- decode ------------------------------------------------------------------------------------------ */

/* Sessions that decode: n_ready have a row to issue, the rest of n_all one in flight. */
typedef struct {
    uint32_t n_ready, n_all;
} decoders;

static void count_once(pipeline *p, session *s, decoders *n)
{
    if (s->counted == p->n_counts) return;
    s->counted = p->n_counts;
    n->n_all++;
}

static decoders count(pipeline *p)
{
    decoders n = {0};
    p->n_counts++;
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (s->first->prime) continue;
        n.n_ready++;
        count_once(p, s, &n);
    }
    for (uint32_t i = 0; i < p->window; i++) {
        const flight *f = &p->flights[i];
        for (uint32_t k = 0; f->seq != 0 && !f->prime && k < f->n_parts; k++)
            count_once(p, f->part[k].r->session, &n);
    }
    return n;
}

static bool choose_decode(pipeline *p, const decoders *n, flight *f)
{
    uint32_t n_steps = in_flight(p, false);
    uint32_t share = (n->n_all + micro_batches(p) - 1) / micro_batches(p);
    if (n->n_ready == 0 || n_steps == decode_window(p)) return false;
    if (n_steps >= p->n_stages && n->n_ready < share) return false;
    uint32_t most = least(share, p->parts_max), n_free = p->n_free_readback;
    for (session *s = p->ready_first; s != NULL && f->n_parts < most; s = s->ready_next) {
        request *r = s->first;
        if (r->prime) continue;
        bool row = r->logits != NULL || r->want_sample;
        if (row && !r->deferred && n_free == 0) continue;
        if (row && !r->deferred) n_free--;
        add_part(f, r, 1);
    }
    return f->n_parts > 0;
}

/* --- prompts ----------------------------------------------------------------------------------------- */

/* Rows that r may give to a chunk that has room for `rows` more. *n_free: result rows left. */
static uint32_t prime_rows(const pipeline *p, const request *r, uint32_t rows, uint32_t *n_free)
{
    uint64_t left = r->n_tokens - r->n_issued;
    if (!p->step_doors.prime_pipe && r->n_steps > 0) return 0;
    if (r->logits != NULL) rows = least(rows, *n_free);
    if (rows >= left && r->logits == NULL && r->want_sample && *n_free == 0) rows = (uint32_t)left - 1;
    rows = least(rows, left);
    if (r->logits != NULL)
        *n_free -= rows;
    else if (rows == left && r->want_sample)
        *n_free -= 1;
    return rows;
}

static bool choose_prime(pipeline *p, bool decoding, flight *f)
{
    uint32_t chunk = p->plan.rows_max, n_free = p->n_free_readback;
    if (in_flight(p, true) >= prime_window(p, decoding)) return false;
    if (p->step_doors.prime_chunk != 0) chunk = least(chunk, p->step_doors.prime_chunk);
    f->prime = true;
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (f->n_rows == chunk || f->n_parts == p->parts_max) break;
        if (!s->first->prime) continue;
        uint32_t n_rows = prime_rows(p, s->first, chunk - f->n_rows, &n_free);
        if (n_rows > 0) add_part(f, s->first, n_rows);
    }
    return f->n_parts > 0;
}

bool batch_choose(pipeline *p, flight *f)
{
    decoders n = count(p);
    return choose_decode(p, &n, f) || choose_prime(p, n.n_all > 0, f);
}
