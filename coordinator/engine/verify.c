/* Speculation: a generation applies the token that was drawn and, in the same step, tokens that may
 * follow it. Each row draws by its own position's random number, exactly as it would alone, and what
 * was drawn before the first wrong draft is what plain decode draws; the rest is truncated. So this
 * file decides about time alone, by what it measures:
 *
 * hit   per generation, the share of drafted tokens that were drawn. Drafts are asked for in plain
 *       steps too and compared with what these drew, so that it is known before a step is spent on it;
 *       a generation begins with the share of those before it.
 * cost  of plain rounds and of verifying steps by their rows, and what speculation gave and took so
 *       far: worth.h, which chooses among the depths n_draft, its half, its quarter and so on.
 *
 * Steps beside prompts or other sessions' single steps are not measured: their time is not their own. */
#include "coordinator/engine/engine.h"

#include "common/clock.h"

#define HIT_MIN       0.1       /* below it a draft is not worth its row */
#define HIT_WEIGHT    (1.0 / 8) /* of the newest draft */
#define HIT_FIRST     0.3       /* of the first generation; of the others the share of all before */
#define HITS_MAX      128.0     /* drafts that it is taken over */
#define DRY_STEPS_MAX 8u

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* --- drafts ------------------------------------------------------------------------------------------ */

static generation *ready_generation(const session *s)
{
    return s->first->generation;
}

/* What may follow the token that g applies next, once for each such token. */
static void ask(generation *g)
{
    const session *s = g->r.session;
    uint32_t room = least(g->limits.n_draft, generation_rounds_left(g) - 1);
    if (g->drafted_at == g->n_drawn) return;
    g->drafted_at = g->n_drawn;
    g->n_draft = 0;
    if (room == 0) return;
    uint64_t n = s->position + 1;
    uint32_t given = g->limits.draft != NULL
                         ? g->limits.draft(g->limits.draft_ctx, s->tokens, n, g->draft, room)
                         : draft_index_guess(g->index, s->tokens, n, g->draft, room);
    given = least(given, room);
    while (g->n_draft < given && g->draft[g->n_draft] < g->p->model->n_vocab) g->n_draft++;
}

static void learn_one(generation *g, bool right)
{
    verify_state *v = &g->p->verify;
    if (v->n_hits < HITS_MAX) v->n_hits++;
    v->hit += ((right ? 1 : 0) - v->hit) / v->n_hits;
    g->hit += ((right ? 1 : 0) - g->hit) * HIT_WEIGHT;
}

/* Of the last n_new tokens that g drew, how many its drafts had right. */
static uint32_t learn(generation *g, uint32_t n_new)
{
    const uint32_t *drawn = g->tokens + g->n_drawn - n_new;
    for (uint32_t k = 0; k < g->n_draft && k < n_new; k++) {
        bool right = drawn[k] == g->draft[k];
        learn_one(g, right);
        if (!right) return k;
    }
    return least(g->n_draft, n_new);
}

/* --- what a step would give -------------------------------------------------------------------------- */

/* Drafts of g in a step of this depth. */
static uint32_t drafts_of(const generation *g, uint32_t depth)
{
    if (g->limits.draft_always) return g->n_draft;
    return g->hit < HIT_MIN ? 0 : least(g->n_draft, depth);
}

/* Tokens that a row and its drafts are expected to give. */
static double tokens_of(const generation *g, uint32_t n_drafts)
{
    double n = 1, all_right = 1;
    for (uint32_t k = 0; k < n_drafts; k++) n += all_right *= g->hit;
    return n;
}

/* The generations that are ready, of which a step takes the first `share`. */
typedef struct {
    uint32_t n_ready, n_all, share, n_drafts_max;
    worth_crowd crowd;
    bool always;
} candidates;

static candidates look(pipeline *p)
{
    candidates c = {0};
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        generation *g = ready_generation(s);
        if (g == NULL) continue;
        c.n_ready++;
        ask(g);
        if (g->n_draft > c.n_drafts_max) c.n_drafts_max = g->n_draft;
        c.always = c.always || (g->limits.draft_always && g->n_draft > 0);
    }
    c.n_all = c.n_ready;
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].seq != 0 && p->flights[i].verify) c.n_all += p->flights[i].n_parts;
    if (c.n_all == 0) return c;
    c.share = (c.n_all + p->n_stages - 1) / p->n_stages;
    c.crowd = (worth_crowd){c.n_all, (c.n_all + c.share - 1) / c.share};
    return c;
}

/* A step of the next share, with drafts of this depth. */
static wager wager_of(const pipeline *p, const candidates *c, uint32_t depth)
{
    wager x = {0};
    uint32_t n = 0;
    for (const session *s = p->ready_first; s != NULL && n < c->share; s = s->ready_next) {
        const generation *g = ready_generation(s);
        if (g == NULL) continue;
        uint32_t n_drafts = drafts_of(g, depth);
        n++;
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

/* --- choice ------------------------------------------------------------------------------------------ */

static void take(pipeline *p, flight *f, uint32_t share, uint32_t depth)
{
    for (session *s = p->ready_first; s != NULL; s = s->ready_next) {
        generation *g = ready_generation(s);
        if (f->n_parts == share || f->n_parts == p->parts_max || f->n_rows == p->plan.rows_max) break;
        if (g == NULL) continue;
        uint32_t n = least(1 + drafts_of(g, depth), p->plan.rows_max - f->n_rows);
        n = batch_reserve(s, n);
        if (n == 0) continue;
        f->part[f->n_parts++] =
            (flight_part){.r = &g->r, .first = s->position, .n_rows = n, .rounds = 1};
        f->n_rows += n;
    }
    f->verify = f->n_parts > 0;
}

void verify_begin(generation *g)
{
    const verify_state *v = &g->p->verify;
    g->drafted_at = UINT64_MAX;
    g->hit = v->n_hits < 8 ? HIT_FIRST : v->hit;
    g->p->verify.n_dry = 0;
}

static bool nothing_else_flies(const pipeline *p)
{
    for (uint32_t i = 0; i < p->window; i++) {
        const flight *f = &p->flights[i];
        if (f->seq != 0 && f->n_parts > 0 && !flight_generates(f)) return false;
    }
    return true;
}

bool verify_choose(pipeline *p, flight *f, uint32_t n_flying)
{
    verify_state *v = &p->verify;
    candidates c = look(p);
    if (c.n_ready == 0) return false;
    f->crowd = c.crowd;
    f->alone = nothing_else_flies(p);
    if (c.n_drafts_max == 0 && n_flying == 0) {
        if (++v->n_dry > DRY_STEPS_MAX) v->worth.on = false;
        f->short_for_drafts = v->worth.on;
        return false;
    }
    v->n_dry = 0;
    uint32_t depth = c.always ? GENERATE_DRAFT_MAX : best_depth(p, &c);
    /* Without drafts too, rather than that the pipe runs empty. */
    bool goes_on = v->worth.on && n_flying > 0 && c.n_drafts_max == 0;
    f->short_for_drafts = v->worth.on;
    if (c.always || depth > 0 || goes_on) take(p, f, c.share, depth);
    return f->verify;
}

/* --- what it gave ------------------------------------------------------------------------------------ */

static void count(pipeline *p, const flight *f, uint32_t n_right)
{
    if (f->n_rows == f->n_parts) return;
    p->verify.counts.n_verifies++;
    p->verify.counts.n_drafted += f->n_rows - f->n_parts;
    p->verify.counts.n_accepted += n_right;
}

/* Of a free-running step, a round between its first and its last, where all rows lived through them. */
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
    bool among = f->issued_ns <= landed || f->crowd.turns == 1; /* not while the pipe filled */
    double ns = (double)(now - begin);
    if (!f->alone || !nothing_else_flies(p)) return;
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
        uint32_t right = learn(f->part[k].r->generation, f->part[k].n_drawn);
        n_drawn += f->part[k].n_drawn;
        if (f->verify) n_right += least(right, f->part[k].n_rows - 1);
    }
    book(p, f, n_drawn, now);
    p->verify.landed_ns = now;
    if (f->verify) count(p, f, n_right);
}
