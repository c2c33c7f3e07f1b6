/* Which rows form the next step: the policy, and nothing else. Four kinds of steps, each bounded in
 * flight, so that none can keep another out:
 *
 * Verifying: sessions that generate, each with what may follow, where verify.c finds that faster
 * than the next kind; N such steps keep N stages at work. There is one of the two kinds at a time.
 *
 * Free-running: all sessions that generate, in groups, for several rounds; one step at a time, and
 * one that goes on where it ends (sequel.c). N groups keep N stages at work: what the last stage
 * drew is there when the first one is through with the groups. A round's length bounds the rounds
 * of a step, for that is how long somebody who wants to join, or to leave, waits; beside prompts
 * they are few, so that the prompts get on.
 *
 * Decode: one row each of many sessions. With N stages N + 1 micro-batches keep every stage at work
 * while one is on its way back; each takes an equal share of the sessions that decode. A share that
 * is not yet complete waits for the others only while every stage has a micro-batch of its own.
 *
 * Prompt chunks: rows of one prompt, and, where it ends before the chunk is full, of the prompts
 * behind it; a chunk is as long as chunk.h plans. Prompts are read by priority, then first come
 * first served, so that one of more priority overtakes at the next chunk; the oldest of all is
 * passed by OVERTAKEN_MAX times in a row at most. Decode goes first, whatever the priorities:
 * streams keep their pace. While sessions decode, chunks in flight are so few that a decode row
 * finds at most two chunk times of work before it; otherwise two per stage.
 *
 * Sessions that decode take turns: whoever had rows in a step goes to the end of the list. */
#include "coordinator/engine/kvbooks.h"

#include "common/boundary.h"
#include "common/clock.h"

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

/* Decode steps in flight: with one stage two, so that deferred steps of one session need not wait
 * for the coordinator. */
static uint32_t decode_window(const pipeline *p)
{
    return p->n_stages + 1;
}

static uint32_t prime_window(const pipeline *p, bool decoding)
{
    return decoding ? p->n_stages : 2 * p->n_stages;
}

uint32_t batch_window(const pipeline *p)
{
    return decode_window(p) + prime_window(p, false) + p->n_stages; /* generations: n_stages or 1 */
}

uint32_t batch_parts_max(const pipeline *p)
{
    return least(p->plan.n_sessions, WIRE_SAMPLERS_MAX);
}

typedef enum { STEP_OF_ROWS, STEP_OF_PROMPTS, STEP_FREE, STEP_OF_DRAFTS } step_kind;

static step_kind kind_of(const flight *f)
{
    return f->free_running ? STEP_FREE
           : f->verify     ? STEP_OF_DRAFTS
           : f->prime      ? STEP_OF_PROMPTS
                           : STEP_OF_ROWS;
}

static uint32_t in_flight(const pipeline *p, step_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->window; i++)
        n += p->flights[i].seq != 0 && p->flights[i].n_parts > 0 && kind_of(&p->flights[i]) == kind;
    return n;
}

static bool generations_fly(const pipeline *p)
{
    return in_flight(p, STEP_FREE) + in_flight(p, STEP_OF_DRAFTS) > 0;
}

/* Rows of a group of sessions that decode. */
static uint32_t group_rows(const pipeline *p)
{
    uint32_t asked = p->step_doors.batch_rows;
    return asked > 0 ? least(asked, p->plan.rows_max) : p->plan.rows_max;
}

static void add_part(flight *f, request *r, uint32_t n_rows)
{
    f->part[f->n_parts++] =
        (flight_part){.r = r, .first = r->n_issued, .n_rows = n_rows, .rounds = 1};
    f->n_rows += n_rows;
}

static void one_group(flight *f)
{
    f->rounds = f->n_groups = 1;
    f->group_end[0] = f->n_rows;
}

/* --- generations ------------------------------------------------------------------------------ */

#define ROUNDS_FIRST 4u          /* while nobody knows how long a round takes */
#define ROUNDS_BESIDE_PROMPTS 4u
#define ROUNDS_BETWEEN_DRAFTS 8u /* while there were none, but they were worth it before */
#define ROUNDS_MAX 32u
#define ROUNDS_NS (50 * NS_PER_MS)
/* At the end of a step its last group still walks through N - 1 stages, and nothing follows it
 * where the step has no sequel: of R rounds of N groups the (N - 1) / (R * N)th part. So with
 * several groups a step is longer. */
#define ROUNDS_GROUPS_NS (125 * NS_PER_MS)
_Static_assert(ROUNDS_MAX <= WIRE_ROUNDS_MAX && 2 * ROUNDS_MAX <= READBACK_RING, "rounds fit");

static bool several_generate(const pipeline *p)
{
    uint32_t n = 0;
    for (const session *s = p->ready_first; s != NULL; s = s->ready_next)
        n += s->first->generation != NULL;
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq != 0 && p->flights[i].free_running) n += p->flights[i].n_parts;
    return n > 1;
}

static bool prompts_wait(const pipeline *p)
{
    for (const session *s = p->ready_first; s != NULL; s = s->ready_next)
        if (s->first->prime) return true;
    return in_flight(p, STEP_OF_PROMPTS) > 0;
}

/* Windows keep rows_max positions beside what the last row sees. */
static uint32_t rounds_now(const pipeline *p)
{
    uint64_t step_ns = p->n_stages > 1 && several_generate(p) ? ROUNDS_GROUPS_NS : ROUNDS_NS;
    uint64_t n = p->round_ns == 0 ? ROUNDS_FIRST : step_ns / p->round_ns + 1;
    if (prompts_wait(p)) n = least(n, ROUNDS_BESIDE_PROMPTS);
    if (p->verify.worth.on) n = least(n, ROUNDS_BETWEEN_DRAFTS);
    bool two = p->n_pools > KV_CLASS_WINDOW && p->plan.rows_max > 1; /* a step and its sequel */
    return least(least(n, ROUNDS_MAX), two ? p->plan.rows_max / 2 : p->plan.rows_max);
}

/* Groups that can be under way without the first stage taking back what the last one drew: its
 * slots, and a row in the hands of every stage but the first and in every slot between them. */
static uint32_t groups_most(const pipeline *p)
{
    uint32_t slots = p->step_doors.overlap ? BOUNDARY_SLOTS : 1;
    uint32_t n = slots + (p->n_stages - 1) * (1 + slots);
    return p->n_stages == 1 ? WIRE_GROUPS_MAX : least(n, WIRE_GROUPS_MAX);
}

/* Even groups of the chosen parts: one for each stage, more where they would be too large. */
static void make_groups(const pipeline *p, flight *f)
{
    uint32_t n = least(p->n_stages, f->n_parts);
    uint32_t fit = (f->n_parts + group_rows(p) - 1) / group_rows(p);
    f->n_groups = n > fit ? n : fit;
    for (uint32_t g = 0; g < f->n_groups; g++)
        f->group_end[g] = (uint32_t)((uint64_t)f->n_parts * (g + 1) / f->n_groups);
}

uint32_t batch_reserve(session *s, uint32_t n)
{
    errmsg why = {0};
    for (; n > 0; n /= 2)
        if (kvbooks_reserve(s, s->position, s->position + n, &why) == ST_OK) break;
    return n;
}

static void choose_free(pipeline *p, flight *f)
{
    uint64_t most = (uint64_t)groups_most(p) * group_rows(p);
    uint32_t rounds = rounds_now(p);
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (f->n_parts == p->parts_max || f->n_parts == most) break;
        generation *g = s->first->generation;
        if (g == NULL) continue;
        uint32_t most_rounds = g->limits.draft_always ? 1 : rounds;
        uint32_t n = batch_reserve(s, least(most_rounds, generation_rounds_left(g)));
        if (n == 0) continue;
        f->part[f->n_parts++] =
            (flight_part){.r = &g->r, .first = s->position, .n_rows = 1, .rounds = n};
        if (n > f->rounds) f->rounds = n;
    }
    f->n_rows = f->n_parts;
    f->free_running = f->n_parts > 0;
    if (f->free_running) make_groups(p, f);
}

static void choose_generations(pipeline *p, flight *f)
{
    uint32_t n_flying = in_flight(p, STEP_OF_DRAFTS), n_free = in_flight(p, STEP_FREE);
    if (n_free == 1) (void)sequel_choose(p, f, rounds_now(p));
    if (n_free > 0 || n_flying == p->n_stages) return;
    if (n_flying == 0) admission_press(p);
    bool drafts = turn_allows(p, PATH_DRAFTS),
         rounds = n_flying == 0 && turn_allows(p, PATH_DECODE);
    switch (drafts ? verify_choose(p, f, n_flying) : VERIFY_ROUNDS) {
    case VERIFY_STEP:
        one_group(f);
        break;
    case VERIFY_ROUNDS:
        if (rounds) choose_free(p, f);
        break;
    case VERIFY_SOON:
        break;
    }
}

/* --- decode ----------------------------------------------------------------------------------- */

/* Sessions that are stepped: n_ready have a row to issue, the rest of n_all one in flight. */
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
        if (s->first->prime || s->first->generation != NULL) continue;
        n.n_ready++;
        count_once(p, s, &n);
    }
    for (uint32_t i = 0; i < p->window; i++) {
        const flight *f = &p->flights[i];
        for (uint32_t k = 0; f->seq != 0 && kind_of(f) == STEP_OF_ROWS && k < f->n_parts; k++)
            count_once(p, f->part[k].r->session, &n);
    }
    return n;
}

static void choose_decode(pipeline *p, const decoders *n, flight *f)
{
    uint32_t n_steps = in_flight(p, STEP_OF_ROWS);
    uint32_t share = (n->n_all + micro_batches(p) - 1) / micro_batches(p);
    if (n->n_ready == 0 || n_steps == decode_window(p)) return;
    if (n_steps >= p->n_stages && n->n_ready < share) return;
    uint32_t most = least(least(share, p->parts_max), group_rows(p)), n_free = p->n_free_readback;
    for (session *s = p->ready_first; s != NULL && f->n_parts < most; s = s->ready_next) {
        request *r = s->first;
        bool takes = r->logits != NULL && !r->deferred;
        if (r->prime || r->generation != NULL || (takes && n_free == 0)) continue;
        n_free -= takes;
        add_part(f, r, 1);
    }
    one_group(f);
}

/* --- prompts ---------------------------------------------------------------------------------- */

#define OVERTAKEN_MAX 8u

/* What is left of a step's chunk. */
typedef struct {
    uint32_t rows, n_free; /* rows; result rows */
    double cost;           /* not with a length that was asked for */
    bool asked;
} chunk_room;

static chunk_room whole_chunk(const pipeline *p)
{
    const uint32_t asked = p->step_doors.prime_chunk;
    chunk_room c = {.rows = p->plan.rows_max, .n_free = p->n_free_readback, .asked = asked != 0};
    uint64_t n_rows = 0;
    double cost = 0;
    if (c.asked) {
        c.rows = least(c.rows, asked);
        return c;
    }
    for (const session *s = p->ready_first; s != NULL; s = s->ready_next) {
        const request *r = s->first;
        if (!r->prime) continue;
        n_rows += r->n_tokens;
        cost += chunk_cost(&p->chunk_costs, r->first_position, r->n_tokens);
    }
    c.cost = chunk_budget(&p->chunk_costs, n_rows, cost);
    return c;
}

/* Rows that r gives to the chunk. */
static uint32_t prime_rows(const pipeline *p, const request *r, chunk_room *c)
{
    uint64_t position = r->first_position + r->n_issued;
    uint32_t rows = least(c->rows, r->n_tokens - r->n_issued);
    if (!p->step_doors.prime_pipe && r->n_steps > 0) return 0;
    if (!c->asked) rows = least(rows, chunk_rows(&p->chunk_costs, position, c->cost));
    if (r->logits != NULL) rows = least(rows, c->n_free);
    if (r->logits != NULL) c->n_free -= rows;
    if (!c->asked) c->cost -= chunk_cost(&p->chunk_costs, position, rows);
    c->rows -= rows;
    return rows;
}

/* Of the ready prompts that this choice has not seen: the oldest, or whose turn it is. */
static session *next_prompt(const pipeline *p, bool oldest)
{
    session *next = NULL;
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        if (!s->first->prime || s->counted == p->n_counts) continue;
        bool equal = oldest || next == NULL || s->priority == next->priority;
        if (next == NULL || (equal ? s->ticket < next->ticket : s->priority > next->priority))
            next = s;
    }
    return next;
}

static void choose_prime(pipeline *p, bool decoding, flight *f)
{
    if (in_flight(p, STEP_OF_PROMPTS) >= prime_window(p, decoding)) return;
    chunk_room c = whole_chunk(p);
    p->n_counts++;
    session *oldest = next_prompt(p, true);
    bool due = p->n_overtaken >= OVERTAKEN_MAX;
    f->prime = true;
    for (session *s; (s = due ? oldest : next_prompt(p, false)) != NULL; due = false) {
        bool full = c.rows == 0 || (!c.asked && c.cost < 1 && f->n_rows > 0);
        if (full || f->n_parts == p->parts_max) break;
        s->counted = p->n_counts;
        uint32_t n_rows = prime_rows(p, s->first, &c);
        if (n_rows > 0) add_part(f, s->first, n_rows);
    }
    one_group(f);
    if (f->n_parts == 0) return;
    bool passed =
        oldest->counted != p->n_counts || f->part[0].r->session->priority > oldest->priority;
    p->n_overtaken = passed ? p->n_overtaken + 1 : 0;
}

static void choose(pipeline *p, flight *f)
{
    choose_generations(p, f);
    if (f->n_parts > 0) return;
    decoders n = count(p);
    if (turn_allows(p, PATH_DECODE)) choose_decode(p, &n, f);
    if (f->n_parts > 0 || !turn_allows(p, PATH_PROMPTS)) return;
    choose_prime(p, n.n_all > 0 || generations_fly(p), f);
}

void batch_choose(pipeline *p, flight *f)
{
    choose(p, f);
    walk_path path = f->verify ? PATH_DRAFTS : f->prime ? PATH_PROMPTS : PATH_DECODE;
    f->unsplit = f->n_parts > 0 && turn_asks_unsplit(p, path);
}
