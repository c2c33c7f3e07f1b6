/* Speculation: a generation applies the token that was drawn and, in the same step, tokens that may
 * follow it. Each row draws by its own position's random number, exactly as it would alone, and what
 * was drawn before the first wrong draft is what plain decode draws; the rest is truncated. So this
 * file decides about time alone, by what it measures:
 *
 * hit   per generation, the share of drafted tokens that were drawn. Drafts are asked for in plain
 *       steps too and compared with what these drew, so that it is known before a step is spent on it.
 * cost  of a free-running round and of a verifying step, by their number of rows.
 *
 * A step verifies when its time per token that it may be expected to give is less than a round's; the
 * depth is the best one of n_draft, its half, its quarter and so on. What verifying was found to cost
 * is doubted more with every plain step, so that it is tried again some time. */
#include "coordinator/engine/engine.h"

#include "common/clock.h"

#define GAIN_MIN      1.03      /* faster by so much, or it is not worth the doubt */
#define HIT_MIN       0.1       /* below it a draft is not worth its row */
#define HIT_WEIGHT    (1.0 / 8) /* of the newest draft */
#define COST_WEIGHT   (1.0 / 4) /* of the newest step */
#define DOUBT         (1.0 / 128)
#define DRY_STEPS_MAX 8u

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* One for each number of rows up to 32, then one for 16. */
static uint32_t cell(uint32_t n_rows)
{
    return n_rows <= 32 ? least(n_rows, 32) : least(32 + (n_rows - 17) / 16, VERIFY_CELLS - 1);
}

static void measure(double *cost, double ns)
{
    *cost += *cost == 0 ? ns : (ns - *cost) * COST_WEIGHT;
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

/* Of the last n_new tokens that g drew, how many its drafts had right. */
static uint32_t learn(generation *g, uint32_t n_new)
{
    const uint32_t *drawn = g->tokens + g->n_drawn - n_new;
    for (uint32_t k = 0; k < g->n_draft && k < n_new; k++) {
        bool right = drawn[k] == g->draft[k];
        g->hit += ((right ? 1 : 0) - g->hit) * HIT_WEIGHT;
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

/* As measured with so many rows, or with the next fewer that was measured. */
static double step_cost(const verify_costs *v, uint32_t n_rows, double otherwise)
{
    for (uint32_t c = cell(n_rows); c > 0; c--)
        if (v->step_ns[c] > 0) return v->step_ns[c];
    return otherwise;
}

/* The generations that are ready, of which a step takes the first `share`. */
typedef struct {
    uint32_t n_ready, n_all, share, n_drafts_max;
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
    c.share = (c.n_all + p->n_stages - 1) / p->n_stages;
    return c;
}

/* Nanoseconds per token with drafts of this depth. */
static double verified_cost(const pipeline *p, const candidates *c, uint32_t depth, double round_ns)
{
    uint32_t n_rows = 0, n = 0;
    double tokens = 0;
    for (const session *s = p->ready_first; s != NULL && n < c->share; s = s->ready_next) {
        const generation *g = ready_generation(s);
        if (g == NULL) continue;
        uint32_t n_drafts = drafts_of(g, depth);
        n++;
        n_rows += 1 + n_drafts;
        tokens += tokens_of(g, n_drafts);
    }
    return step_cost(&p->verify, n_rows, round_ns) / tokens;
}

/* The depth that gives most; 0: rounds do. */
static uint32_t best_depth(const pipeline *p, const candidates *c)
{
    double round_ns = p->verify.round_ns[cell(c->n_all)];
    double best = round_ns / c->n_all / GAIN_MIN;
    uint32_t depth = 0;
    if (round_ns == 0) return 0; /* that is measured first */
    for (uint32_t k = c->n_drafts_max; k > 0; k /= 2) {
        double cost = verified_cost(p, c, k, round_ns);
        if (cost >= best) continue;
        best = cost;
        depth = k;
    }
    return depth;
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

void verify_begin(pipeline *p)
{
    p->verify.on = true;
    p->verify.n_dry = 0;
}

bool verify_choose(pipeline *p, flight *f, uint32_t n_flying)
{
    verify_costs *v = &p->verify;
    candidates c = look(p);
    if (c.n_ready == 0) return false;
    if (c.n_drafts_max == 0 && n_flying == 0) {
        if (++v->n_dry > DRY_STEPS_MAX) v->on = false;
        return false;
    }
    uint32_t depth = c.always ? GENERATE_DRAFT_MAX : best_depth(p, &c);
    if (c.n_drafts_max > 0) v->on = depth > 0;
    v->n_dry = 0;
    if (!v->on) return false;
    take(p, f, c.share, depth);
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

void verify_landed(pipeline *p, const flight *f)
{
    verify_costs *v = &p->verify;
    uint64_t now = now_ns(), begin = f->issued_ns > v->landed_ns ? f->issued_ns : v->landed_ns;
    uint32_t n_right = 0;
    bool whole = true;
    v->landed_ns = now;
    for (uint32_t k = 0; k < f->n_parts; k++) {
        generation *g = f->part[k].r->generation;
        uint32_t n_drawn = f->part[k].n_drawn, right = learn(g, n_drawn);
        whole = whole && n_drawn == f->rounds;
        if (f->verify) n_right += least(right, f->part[k].n_rows - 1);
    }
    if (f->verify) {
        measure(&v->step_ns[cell(f->n_rows)], (double)(now - begin));
        count(p, f, n_right);
        return;
    }
    double *round_ns = &v->round_ns[cell(f->n_parts)];
    if (!whole) return; /* rounds in which rows were dead cost less */
    measure(round_ns, (double)(now - f->issued_ns) / f->rounds);
    for (uint32_t c = 0; c < VERIFY_CELLS; c++)
        if (v->step_ns[c] > *round_ns) v->step_ns[c] -= (v->step_ns[c] - *round_ns) * DOUBT;
}
