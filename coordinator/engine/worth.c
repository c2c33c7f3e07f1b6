#include "coordinator/engine/worth.h"

#define GAIN_BEGIN  1.05        /* faster by so much, to begin with it or to try something else */
#define GAIN_STAY   1.0
#define WEIGHT      (1.0 / 4)   /* of the newest measurement */
#define OUTLIER     4.0         /* times what was known: somebody else had the processor */
#define DOUBT       (1.0 / 512) /* per plain round */
#define CREDIT_MAX  32.0        /* plain rounds */
#define REFRESH     1024.0      /* plain rounds' time without one that was measured */

/* One for each number of rows up to 32, then one for 16. */
static uint32_t cell(uint32_t n_rows)
{
    if (n_rows <= 32) return n_rows;
    uint32_t c = 32 + (n_rows - 17) / 16;
    return c < WORTH_CELLS ? c : WORTH_CELLS - 1;
}

static uint32_t rows_of(uint32_t cell_i)
{
    return cell_i <= 32 ? cell_i : 16 + 16 * (cell_i - 31);
}

static void measure(double *known, double ns)
{
    if (*known > 0 && ns > OUTLIER * *known) ns = OUTLIER * *known;
    *known += *known == 0 ? ns : (ns - *known) * WEIGHT;
}

static double round_of(const worth *w, worth_crowd c)
{
    return w->round_ns[cell(c.n_all)];
}

static double token_ns(const worth *w, worth_crowd c)
{
    return round_of(w, c) / c.n_all;
}

/* --- costs ------------------------------------------------------------------------------------ */

static double share_of(worth_crowd c)
{
    return (double)c.n_all / c.turns;
}

/* Of a step's time between its like: n_rows as measured, or as what is known around it allows. */
static double estimate(const worth *w, worth_crowd c, uint32_t n_rows)
{
    double rows = share_of(c), ns = round_of(w, c), most = ns * n_rows / rows;
    for (uint32_t i = 1; i < WORTH_CELLS; i++) {
        double r = rows_of(i), known = w->step_ns[i];
        if (known == 0) continue;
        if (i == cell(n_rows)) {
            rows = n_rows;
            ns = known;
            break;
        }
        if (r > n_rows) {
            if (known > ns) ns += (known - ns) * (n_rows - rows) / (r - rows);
            rows = n_rows;
            break;
        }
        if (r <= rows) continue;
        rows = r;
        ns = known;
    }
    ns *= n_rows / rows;
    return (ns < most ? ns : most) / c.turns;
}

/* The least that it may cost, for all that is known. */
static double hope(const worth *w, worth_crowd c, uint32_t n_rows)
{
    double ns = round_of(w, c);
    for (uint32_t i = cell(n_rows); i > 0; i--) {
        if (w->hope_ns[i] == 0) continue;
        if (w->hope_ns[i] > ns) ns = w->hope_ns[i];
        break;
    }
    return ns / c.turns;
}

/* --- choice ----------------------------------------------------------------------------------- */

static uint32_t best_of(const worth *w, worth_crowd c, const wager *of, uint32_t n, double *least)
{
    uint32_t best = WORTH_NONE;
    *least = token_ns(w, c);
    double limit = *least / (w->on ? GAIN_STAY : GAIN_BEGIN);
    for (uint32_t i = 0; i < n; i++) {
        double ns = (estimate(w, c, of[i].n_rows) + of[i].draft_ns) / of[i].tokens;
        if (ns >= limit) continue;
        *least = limit = ns;
        best = i;
    }
    return best;
}

/* One that may be better than `least` per token, and whose loss is covered. */
static uint32_t probe_of(const worth *w, worth_crowd c, const wager *of, uint32_t n, double least)
{
    uint32_t best = WORTH_NONE;
    least /= GAIN_BEGIN;
    for (uint32_t i = 0; i < n; i++) {
        double loss = estimate(w, c, of[i].n_rows) + of[i].draft_ns - of[i].tokens * token_ns(w, c);
        double ns = (hope(w, c, of[i].n_rows) + of[i].draft_ns) / of[i].tokens;
        if (ns >= least || loss > w->credit_ns) continue;
        least = ns;
        best = i;
    }
    return best;
}

uint32_t worth_choose(worth *w, worth_crowd c, const wager *of, uint32_t n)
{
    double least;
    if (round_of(w, c) == 0) return WORTH_NONE;
    if (w->credit_ns < 0) w->on = false;
    if (w->credit_ns < 0 || n == 0) return WORTH_NONE;
    if (w->since_round_ns > REFRESH * round_of(w, c)) return WORTH_NONE;
    uint32_t best = best_of(w, c, of, n, &least);
    w->on = best != WORTH_NONE;
    uint32_t probe = probe_of(w, c, of, n, least);
    return probe != WORTH_NONE ? probe : best;
}

/* --- what it was ------------------------------------------------------------------------------ */

void worth_measure_round(worth *w, worth_crowd c, double ns)
{
    measure(&w->round_ns[cell(c.n_all)], ns);
    w->since_round_ns = 0;
}

void worth_measure_step(worth *w, worth_crowd c, uint32_t n_rows, double ns)
{
    measure(&w->step_ns[cell(n_rows)], ns * c.turns);
    w->hope_ns[cell(n_rows)] = w->step_ns[cell(n_rows)];
}

static void put(worth *w, worth_crowd c, double ns)
{
    double most = CREDIT_MAX * round_of(w, c);
    w->credit_ns += ns;
    if (w->credit_ns > most) w->credit_ns = most;
}

void worth_book_plain(worth *w, worth_crowd c, double ns)
{
    double round_ns = round_of(w, c);
    if (round_ns == 0) return;
    put(w, c, ns * WORTH_RATE);
    double doubt = ns / round_ns * DOUBT;
    for (uint32_t i = 0; i < WORTH_CELLS; i++)
        if (w->hope_ns[i] > round_ns)
            w->hope_ns[i] -= (w->hope_ns[i] - round_ns) * (doubt < 1 ? doubt : 1);
}

/* What took longer than the rows one by one, in a pipe that first had to fill, was held up by
 * others. */
void worth_book(worth *w, worth_crowd c, uint32_t n_rows, double tokens, double ns)
{
    double most = round_of(w, c) + token_ns(w, c) * n_rows;
    if (most == 0) return;
    if (ns > most) ns = most;
    w->since_round_ns += ns;
    put(w, c, tokens * token_ns(w, c) - ns);
}

void worth_pay(worth *w, double ns)
{
    w->credit_ns -= ns;
}

bool worth_allow(worth *w, worth_crowd c, double rounds)
{
    put(w, c, rounds * round_of(w, c));
    return round_of(w, c) > 0;
}
