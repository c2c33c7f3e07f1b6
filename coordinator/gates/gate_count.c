#include "coordinator/gates/gate_count.h"

#include "common/clock.h"

#include <inttypes.h>

#define SETTLE_NS (2 * NS_PER_S)
#define POLL_NS   NS_PER_MS

void gate_counts_take(gate_counts *out, const pipeline *p)
{
    out->n_stages = pipeline_plan(p)->cuts.n_stages;
    for (uint32_t s = 0; s < out->n_stages; s++)
        pipeline_stage(p, s, &out->stage[s]);
}

uint64_t gate_counts_overlaps(const gate_counts *c)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < c->n_stages; s++)
        n += c->stage[s].n_overlaps;
    return n;
}

/* One end of a boundary, by what it gained. */
typedef struct {
    uint64_t rows, bytes, slot[2];
} end_counts;

static end_counts sent(const stage_snapshot *b, const stage_snapshot *a)
{
    return (end_counts){
        .rows = a->tx_rows - b->tx_rows,
        .bytes = a->tx_bytes - b->tx_bytes,
        .slot = {a->tx_crossings[0] - b->tx_crossings[0], a->tx_crossings[1] - b->tx_crossings[1]}};
}

static end_counts received(const stage_snapshot *b, const stage_snapshot *a)
{
    return (end_counts){
        .rows = a->rx_rows - b->rx_rows,
        .bytes = a->rx_bytes - b->rx_bytes,
        .slot = {a->rx_crossings[0] - b->rx_crossings[0], a->rx_crossings[1] - b->rx_crossings[1]}};
}

/* What one comparison says: quietly while the counters may still be on their way. */
typedef struct {
    gate_arm *arm; /* NULL: do not tell, only judge */
    bool right;
} judge;

static void must_be(judge *j, uint64_t have, uint64_t want, const char *what, uint32_t from,
                    uint32_t to)
{
    if (have == want) return;
    j->right = false;
    if (j->arm == NULL) return;
    if (from == to) {
        gate_arm_red(j->arm, "stage %u counts %" PRIu64 " %s, %" PRIu64 " expected", from, have,
                     what, want);
    } else {
        gate_arm_red(j->arm, "boundary %u -> %u counts %" PRIu64 " %s, %" PRIu64 " expected", from,
                     to, have, what, want);
    }
}

static void judge_slots(judge *j, const end_counts *c, gate_slots slots, uint32_t from, uint32_t to)
{
    if (slots == SLOTS_FIRST_ONLY) must_be(j, c->slot[1], 0, "crossings in slot 1", from, to);
    if (slots != SLOTS_BOTH) return;
    for (uint32_t i = 0; i < 2; i++) {
        if (c->slot[i] > 0) continue;
        j->right = false;
        if (j->arm != NULL)
            gate_arm_red(j->arm, "boundary %u -> %u: nothing crossed in slot %u", from, to, i);
    }
}

static void judge_end(judge *j, const end_counts *c, const gate_expect *x, bool rows_cross,
                      const char *side, uint32_t from, uint32_t to)
{
    char what[32];
    snprintf(what, sizeof what, "rows %s", side);
    must_be(j, c->rows, rows_cross ? x->rows : 0, what, from, to);
    snprintf(what, sizeof what, "bytes %s", side);
    must_be(j, c->bytes, rows_cross ? x->rows * x->row_bytes : 0, what, from, to);
    snprintf(what, sizeof what, "crossings %s", side);
    uint64_t n = c->slot[0] + c->slot[1];
    /* Operations that go ahead of unsplit steps cross without rows. */
    if (x->rows_alone == 0 || !rows_cross || n < x->steps)
        must_be(j, n, rows_cross ? x->steps : 0, what, from, to);
    if (rows_cross) judge_slots(j, c, x->slots, from, to);
}

/* Steps of one kind that a stage counts, and those of them that walked split. */
static void judge_steps(judge *j, uint64_t n, uint64_t n_split, const gate_expect *x, bool alone,
                        uint32_t s, const char *what, const char *what_split)
{
    if (alone && s > 0) must_be(j, n, 0, what, s, s);
    must_be(j, n_split, x->n_stages > 1 && !alone ? n : 0, what_split, s, s);
}

/* A step of several sessions is one in every stage that walks it. */
static void judge_batches(judge *j, const stage_snapshot *b, const stage_snapshot *a,
                          const gate_expect *x, uint32_t s)
{
    judge_steps(j, a->n_batches - b->n_batches, a->n_batches_split - b->n_batches_split, x,
                x->decode_alone, s, "batches", "batches that walked split");
    judge_steps(j, a->n_prime_batches - b->n_prime_batches,
                a->n_prime_batches_split - b->n_prime_batches_split, x, x->prompts_alone, s,
                "prompt batches", "prompt batches that walked split");
}

static void judge_verifies(judge *j, const stage_snapshot *b, const stage_snapshot *a,
                           const gate_expect *x, uint32_t s)
{
    uint64_t n = a->n_verifies - b->n_verifies;
    must_be(j, n, x->drafts_alone && s > 0 ? 0 : x->n_verifies, "steps that verified drafts", s, s);
    judge_steps(j, n, a->n_verifies_split - b->n_verifies_split, x, x->drafts_alone, s,
                "steps that verified drafts", "steps that verified drafts and walked split");
}

/* Only the first stage walks steps for all, and it does where it should. */
static void judge_unsplit(judge *j, const stage_snapshot *b, const stage_snapshot *a,
                          const gate_expect *x, uint32_t s)
{
    uint64_t n = a->n_unsplit - b->n_unsplit;
    if (s > 0 || x->rows_alone == 0) {
        must_be(j, n, 0, "steps walked unsplit", s, s);
    } else if (n == 0) {
        j->right = false;
        if (j->arm != NULL) gate_arm_red(j->arm, "stage 0 walked no step unsplit");
    }
}

/* The ends of a boundary where the schedule decides how much crosses it. */
static void judge_free(judge *j, const end_counts *tx, const end_counts *rx, const gate_expect *x,
                       bool rows_cross, uint32_t from, uint32_t to)
{
    must_be(j, rx->rows, tx->rows, "rows received of those sent", from, to);
    must_be(j, rx->bytes, tx->bytes, "bytes received of those sent", from, to);
    must_be(j, rx->slot[0] + rx->slot[1], tx->slot[0] + tx->slot[1],
            "crossings received of those sent", from, to);
    if (!rows_cross) return;
    if (tx->rows < x->rows) must_be(j, tx->rows, x->rows, "rows sent", from, to);
    must_be(j, tx->bytes, tx->rows * x->row_bytes, "bytes sent", from, to);
    judge_slots(j, tx, x->slots, from, to);
}

static bool judge_all(gate_arm *arm, const gate_counts *b, const gate_counts *a,
                      const gate_expect *x)
{
    judge j = {.arm = arm, .right = true};
    static const stage_snapshot nothing;
    for (uint32_t s = 0; s < x->n_stages; s++) {
        const stage_snapshot *before = s < b->n_stages ? &b->stage[s] : &nothing;
        const stage_snapshot *after = s < a->n_stages ? &a->stage[s] : &nothing;
        must_be(&j, after->n_rows - before->n_rows, x->rows - (s > 0 ? x->rows_alone : 0), "rows",
                s, s);
        if (!x->free_running)
            must_be(&j, after->n_chunks - before->n_chunks,
                    x->chunks - (s > 0 ? x->chunks_alone : 0), "prompt chunks", s, s);
        judge_batches(&j, before, after, x, s);
        judge_unsplit(&j, before, after, x, s);
        if (x->verifies) judge_verifies(&j, before, after, x, s);
        if (x->n_stages == 1) continue;
        uint32_t next = (s + 1) % x->n_stages;
        const stage_snapshot *next_before = next < b->n_stages ? &b->stage[next] : &nothing;
        const stage_snapshot *next_after = next < a->n_stages ? &a->stage[next] : &nothing;
        bool rows_cross = next != 0; /* what was drawn goes back only between rounds */
        end_counts tx = sent(before, after), rx = received(next_before, next_after);
        if (x->free_running) {
            judge_free(&j, &tx, &rx, x, rows_cross, s, next);
            continue;
        }
        judge_end(&j, &tx, x, rows_cross, "sent", s, next);
        judge_end(&j, &rx, x, rows_cross, "received", s, next);
    }
    return j.right;
}

static void fill(gate_arm *arm, const gate_counts *b, const gate_counts *a)
{
    for (uint32_t s = 0; s < a->n_stages && s < b->n_stages; s++) {
        end_counts rx = received(&b->stage[s], &a->stage[s]);
        arm->crossings += rx.slot[0] + rx.slot[1];
        arm->bytes += rx.bytes;
        arm->chunks += a->stage[s].n_chunks - b->stage[s].n_chunks;
        arm->overlaps += a->stage[s].n_overlaps - b->stage[s].n_overlaps;
        arm->batches += a->stage[s].n_batches - b->stage[s].n_batches;
        arm->prime_batches += a->stage[s].n_prime_batches - b->stage[s].n_prime_batches;
        arm->verifies += a->stage[s].n_verifies - b->stage[s].n_verifies;
        arm->unsplit += a->stage[s].n_unsplit - b->stage[s].n_unsplit;
        arm->rounds += a->stage[s].n_free_rounds - b->stage[s].n_free_rounds;
        arm->ahead += a->stage[s].n_ahead_rounds - b->stage[s].n_ahead_rounds;
    }
}

void gate_counts_check(gate_arm *a, const pipeline *p, const gate_counts *before,
                       const gate_expect *x)
{
    gate_counts *after = &(gate_counts){0};
    uint64_t begin = now_ns();
    for (;;) {
        gate_counts_take(after, p);
        if (judge_all(NULL, before, after, x) || now_ns() - begin > SETTLE_NS) break;
        nanosleep(&(struct timespec){.tv_nsec = (long)POLL_NS}, NULL);
    }
    judge_all(a, before, after, x);
    fill(a, before, after);
}
