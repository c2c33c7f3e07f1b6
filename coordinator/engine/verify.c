/* Speculation: a generation applies the token that was drawn and, in the same step, tokens that may
 * follow it. Each row draws by its own position's random number, exactly as it would alone, and
 * what was drawn before the first wrong draft is what plain decode draws; the rest is truncated. So
 * this file decides about time alone, by what it measures:
 *
 * hit   per generation, the share of drafted tokens that were drawn: guesses.h.
 * cost  of plain rounds and of verifying steps by their rows, and what speculation gave and took so
 *       far: worth.h, which chooses among the depths n_draft, its half, its quarter and so on.
 *
 * Drafts that cost time of their own are asked for when a step with them is worth it, and
 * generations wait for them; beside plain rounds they are asked for as far as the account pays for
 * it.
 *
 * Steps beside prompts or other sessions' single steps are not measured: their time is not their
 * own. */
#include "coordinator/engine/engine.h"

#include "common/clock.h"
#include "coordinator/engine/ngram.h"

#define HIT_MIN       0.1       /* below it a draft is not worth its row */
#define DRY_STEPS_MAX 8u
#define ALLOWANCE     8.0       /* plain rounds, once, to find out about drafts that cost */
#define PATIENCE      4.0       /* times what drafts take, and */
#define PATIENCE_NS   (2 * NS_PER_MS)
#define PATIENCE_ALWAYS_NS (60 * NS_PER_S) /* for drafts that are to be verified always */
_Static_assert(GUESSES_MAX == GENERATE_DRAFT_MAX, "a seat's answer fits");

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* --- drafts ----------------------------------------------------------------------------------- */

static generation *ready_generation(const session *s)
{
    return s->first->generation;
}

static bool costs(const generation *g)
{
    return g->guesses.source != NULL && g->guesses.source->costs;
}

static uint32_t room_of(const generation *g)
{
    uint64_t left = generation_rounds_left(g);
    return left > 0 ? least(g->limits.n_draft, left - 1) : 0;
}

/* What follows the token that was drawn last, which comes to stand at `position`. */
static void ask(generation *g, uint64_t position, uint32_t room)
{
    guesses_ask(&g->guesses, g->r.session->tokens, position + 1, g->n_drawn, room);
}

/* The drafts that g has for a step of this depth, or would have if it waited for them. */
static uint32_t drafts_of(const generation *g, uint32_t depth, uint64_t now)
{
    const guesses *x = &g->guesses;
    uint32_t n = 0;
    if (x->source == NULL || g->undrafted) return 0;
    bool may_wait = x->source->costs && (g->limits.draft_always || !x->late);
    if (guesses_here(x, g->n_drawn))
        n = x->n;
    else if (may_wait && (x->at != g->n_drawn || guesses_soon(x, g->n_drawn, now)))
        n = room_of(g);
    if (g->limits.draft_always) return n;
    return x->hit < HIT_MIN ? 0 : least(n, depth);
}

/* --- what a step would give ------------------------------------------------------------------- */

/* Tokens that a row and its drafts are expected to give. */
static double tokens_of(const generation *g, uint32_t n_drafts)
{
    double n = 1, all_right = 1;
    for (uint32_t k = 0; k < n_drafts; k++) n += all_right *= g->guesses.hit;
    return n;
}

/* Generations that a step may be for: the ready ones, or those of a step in flight. One by one: */
typedef struct {
    session *s;       /* ready */
    const flight *of; /* in flight; NULL: the ready ones */
    uint32_t part_i;
    uint64_t position; /* where the token that the last one drew last comes to stand */
} generations;

static generations generations_of(const pipeline *p, const flight *of)
{
    return (generations){.s = of == NULL ? p->ready_first : NULL, .of = of};
}

static generation *next_generation(generations *x)
{
    while (x->of != NULL && x->part_i < x->of->n_parts) {
        const flight_part *part = &x->of->part[x->part_i++];
        if (part->r == NULL) continue;
        x->position = part->first + part->n_drawn;
        return part->r->generation;
    }
    while (x->s != NULL) {
        session *s = x->s;
        x->s = s->ready_next;
        if (ready_generation(s) == NULL) continue;
        x->position = s->position;
        return ready_generation(s);
    }
    return NULL;
}

/* Of them, a step takes the first `share`. */
typedef struct {
    const flight *of;
    uint32_t n_ready, n_all, share, n_drafts_max;
    worth_crowd crowd;
    bool always;
    uint64_t now;
} candidates;

static candidates look(pipeline *p, const flight *of)
{
    candidates c = {.of = of, .now = now_ns()};
    bool cost = false;
    generations all = generations_of(p, of);
    for (generation *g; (g = next_generation(&all)) != NULL;) {
        c.n_ready++;
        guesses_look(&g->guesses, g->r.session->tokens);
        if (g->guesses.source != NULL && !costs(g)) ask(g, all.position, room_of(g));
        uint32_t n = drafts_of(g, GENERATE_DRAFT_MAX, c.now);
        if (n > c.n_drafts_max) c.n_drafts_max = n;
        c.always = c.always || (g->limits.draft_always && n > 0);
        cost = cost || costs(g);
    }
    c.n_all = c.n_ready;
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq != 0 && p->flights[i].verify) c.n_all += p->flights[i].n_parts;
    if (c.n_all == 0) return c;
    c.share = (c.n_all + p->n_stages - 1) / p->n_stages;
    c.crowd = (worth_crowd){c.n_all, (c.n_all + c.share - 1) / c.share};
    verify_state *v = &p->verify;
    if (cost && !v->allowed) v->allowed = worth_allow(&v->worth, c.crowd, ALLOWANCE);
    return c;
}

/* A step of the next share, with drafts of this depth. */
static wager wager_of(const pipeline *p, const candidates *c, uint32_t depth)
{
    wager x = {0};
    uint32_t n = 0;
    generations all = generations_of(p, c->of);
    for (const generation *g; n < c->share && (g = next_generation(&all)) != NULL;) {
        uint32_t n_drafts = drafts_of(g, depth, c->now);
        double draft_ns = n_drafts > 0 && !guesses_here(&g->guesses, g->n_drawn)
                              ? guesses_cost_ns(&g->guesses, n_drafts) : 0;
        n++;
        if (draft_ns > x.draft_ns) x.draft_ns = draft_ns; /* they are drafted together */
        x.n_rows += 1 + n_drafts;
        x.tokens += tokens_of(g, n_drafts);
    }
    return x;
}

#define N_DEPTHS 5u /* 16, 8, 4, 2, 1 */
_Static_assert(GENERATE_DRAFT_MAX < 1u << N_DEPTHS, "all depths have a place");

/* The depth that gives most; 0: plain rounds do. */
static uint32_t best_depth(pipeline *p, const candidates *c)
{
    wager of[N_DEPTHS];
    uint32_t depth[N_DEPTHS], n = 0;
    for (uint32_t k = c->n_drafts_max; k > 0; k /= 2) {
        of[n] = wager_of(p, c, k);
        depth[n++] = k;
    }
    uint32_t best = worth_choose(&p->verify.worth, c->crowd, of, n);
    return best == WORTH_NONE ? 0 : depth[best];
}

/* --- choice ----------------------------------------------------------------------------------- */

/* Drafts that cost, for a step of this depth. */
static void seek(pipeline *p, const candidates *c, uint32_t depth)
{
    generations all = generations_of(p, c->of);
    for (generation *g; (g = next_generation(&all)) != NULL;) {
        if (!costs(g) || g->guesses.at == g->n_drawn) continue;
        uint32_t n = drafts_of(g, depth, c->now);
        if (n == 0) continue;
        double patience = PATIENCE * guesses_cost_ns(&g->guesses, n) + (double)PATIENCE_NS;
        ask(g, all.position, n);
        g->guesses.wait_until_ns =
            c->now + (g->limits.draft_always ? PATIENCE_ALWAYS_NS : (uint64_t)patience);
    }
}

/* The same beside plain rounds, to see: nobody waits. */
static void try_out(pipeline *p, const candidates *c)
{
    worth *w = &p->verify.worth;
    generations all = generations_of(p, c->of);
    for (generation *g; (g = next_generation(&all)) != NULL;) {
        if (!costs(g) || g->guesses.pending || room_of(g) == 0) continue;
        double cost = guesses_cost_ns(&g->guesses, room_of(g));
        if (w->credit_ns <= 0 || cost > w->credit_ns) return;
        worth_pay(w, cost);
        ask(g, all.position, room_of(g));
        if (cost == 0) return; /* one is enough to know that */
    }
}

/* Of the ready ones, those that wait for their drafts; one that waited too long is not asked
 * again. */
static uint32_t n_waiting(pipeline *p, const candidates *c)
{
    uint32_t n = 0;
    generations all = generations_of(p, c->of);
    for (generation *g; (g = next_generation(&all)) != NULL;) {
        if (!g->guesses.pending || g->guesses.at != g->n_drawn) continue;
        bool soon = guesses_soon(&g->guesses, g->n_drawn, c->now);
        n += soon;
        g->guesses.late = g->guesses.late || (!soon && g->guesses.wait_until_ns > 0);
    }
    return n;
}

static void take(pipeline *p, flight *f, const candidates *c, uint32_t depth)
{
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        generation *g = ready_generation(s);
        if (f->n_parts == c->share || f->n_parts == p->parts_max || f->n_rows == p->plan.rows_max)
            break;
        if (g == NULL || guesses_soon(&g->guesses, g->n_drawn, c->now)) continue;
        uint32_t n_drafts = guesses_here(&g->guesses, g->n_drawn) ? drafts_of(g, depth, c->now) : 0;
        uint32_t n = batch_reserve(s, least(1 + n_drafts, p->plan.rows_max - f->n_rows));
        if (n == 0) continue;
        f->part[f->n_parts++] =
            (flight_part){.r = &g->r, .first = s->position, .n_rows = n, .rounds = 1};
        f->n_rows += n;
    }
    f->verify = f->n_parts > 0;
}

static void wake(void *p)
{
    engine_wake(p);
}

void verify_begin(generation *g)
{
    pipeline *p = g->p;
    draft_source *d = g->limits.draft != NULL ? g->limits.draft : &ngram_source;
    const draft_task t = {.sampler = g->r.session->sampler,
                          .n_ctx = p->plan.n_ctx,
                          .n_vocab = p->model->n_vocab,
                          .wake = wake,
                          .wake_ctx = p};
    p->verify.n_dry = 0;
    (void)guesses_sit(&g->guesses, d, &t,
                      &p->verify.record); /* without a seat it goes on plainly */
}

static bool nothing_else_flies(const pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++) {
        const flight *f = &p->flights[i];
        if (f->seq != 0 && f->n_parts > 0 && !flight_generates(f)) return false;
    }
    return true;
}

/* A step with drafts of this depth, once all that belong to it are here. */
static verify_choice choose_step(pipeline *p, flight *f, const candidates *c, uint32_t depth)
{
    verify_state *v = &p->verify;
    seek(p, c, depth);
    uint32_t n = n_waiting(p, c);
    if (n > 0 && c->n_ready - n < c->share) {
        if (v->held_ns == 0) v->held_ns = c->now;
        return VERIFY_SOON;
    }
    take(p, f, c, depth);
    return f->verify ? VERIFY_STEP : VERIFY_ROUNDS;
}

verify_choice verify_choose(pipeline *p, flight *f, uint32_t n_flying)
{
    verify_state *v = &p->verify;
    candidates c = look(p, NULL);
    verify_choice choice = VERIFY_ROUNDS;
    if (c.n_ready == 0) return VERIFY_ROUNDS;
    f->crowd = c.crowd;
    f->alone = nothing_else_flies(p);
    bool dry = c.n_drafts_max == 0;
    if (!dry || n_flying > 0)
        v->n_dry = 0;
    else if (++v->n_dry > DRY_STEPS_MAX)
        v->worth.on = false;
    uint32_t depth = c.always ? GENERATE_DRAFT_MAX : dry ? 0 : best_depth(p, &c);
    /* Without drafts too, rather than that the pipe runs empty. */
    bool goes_on = v->worth.on && n_flying > 0 && dry;
    f->short_for_drafts = v->worth.on;
    if (depth > 0 || goes_on) choice = choose_step(p, f, &c, depth);
    if (choice == VERIFY_SOON) return choice;
    f->held_ns = v->held_ns;
    v->held_ns = 0;
    if (choice == VERIFY_ROUNDS && n_flying == 0) try_out(p, &c);
    return choice;
}

bool verify_wants(pipeline *p, const flight *f)
{
    generations all = generations_of(p, f);
    for (const generation *g; (g = next_generation(&all)) != NULL;)
        if (g->limits.draft_always) return true; /* a draft may be there after every token */
    candidates c = look(p, f);
    if (p->verify.worth.on) return true;
    if (c.n_drafts_max > 0 && best_depth(p, &c) > 0) return true;
    try_out(p, &c);
    return false;
}

/* --- what it gave ----------------------------------------------------------------------------- */

static void count(pipeline *p, const flight *f, uint32_t n_right)
{
    if (f->n_rows == f->n_parts) return;
    p->verify.counts.n_verifies++;
    p->verify.counts.n_drafted += f->n_rows - f->n_parts;
    p->verify.counts.n_accepted += n_right;
}

/* Of a free-running step, a round between its first and its last, where all rows lived through
 * them. */
static void measure_rounds(worth *w, const flight *f, uint64_t now)
{
    if (f->rounds < 2) return;
    for (uint32_t k = 0; k < f->n_parts; k++)
        if (f->part[k].n_drawn != f->rounds) return;
    worth_measure_round(w, f->crowd, (double)(now - f->first_round_ns) / (f->rounds - 1));
}

static void book(pipeline *p, const flight *f, uint32_t n_drawn, uint64_t now)
{
    worth *w = &p->verify.worth;
    uint64_t landed = p->verify.landed_ns, begin = f->issued_ns > landed ? f->issued_ns : landed;
    uint64_t held = f->held_ns > landed ? f->held_ns : landed;
    bool among = f->issued_ns <= landed || f->crowd.turns == 1; /* not while the pipe filled */
    double ns = (double)(now - begin);
    if (!f->alone || !nothing_else_flies(p)) return;
    if (f->held_ns > 0 && f->issued_ns > held) worth_pay(w, (double)(f->issued_ns - held));
    if (f->free_running) measure_rounds(w, f, now);
    if (f->verify && among) worth_measure_step(w, f->crowd, f->n_rows, ns);
    if (f->verify || f->short_for_drafts)
        worth_book(w, f->crowd, f->verify ? f->n_rows : n_drawn, n_drawn, ns);
    else
        worth_book_plain(w, f->crowd, ns);
}

void verify_landed(pipeline *p, const flight *f)
{
    uint64_t now = now_ns();
    uint32_t n_right = 0, n_drawn = 0;
    for (uint32_t k = 0; k < f->n_parts; k++) {
        if (f->part[k].r == NULL) continue;
        generation *g = f->part[k].r->generation;
        guesses_look(&g->guesses, g->r.session->tokens);
        uint32_t right = guesses_learn(&g->guesses, g->tokens, g->n_drawn);
        n_drawn += f->part[k].n_drawn;
        if (f->verify) n_right += least(right, f->part[k].n_rows - 1);
    }
    book(p, f, n_drawn, now);
    p->verify.landed_ns = now;
    if (f->verify) count(p, f, n_right);
}
