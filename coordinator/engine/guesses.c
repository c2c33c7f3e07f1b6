#include "coordinator/engine/guesses.h"

#define HIT_WEIGHT  (1.0 / 8) /* of the newest draft */
#define HIT_FIRST   0.3       /* of the first generation; of the others the share of all before */
#define HITS_MIN    8.0
#define HITS_MAX    128.0
#define COST_WEIGHT  (1.0 / 4)
#define COST_FIRST   3u  /* answers whose least is the first cost that is known */
#define COST_OUTLIER 4.0 /* times what was known: it was held up */

bool guesses_sit(guesses *g, draft_source *d, const draft_task *t, guess_record *r)
{
    *g = (guesses){.source = d,
                   .record = r,
                   .n_vocab = t->n_vocab,
                   .at = UINT64_MAX,
                   .late = true};
    g->hit = r->n_hits < HITS_MIN ? HIT_FIRST : r->hit;
    g->seat = d->sit(d, t);
    if (g->seat == NULL) g->source = NULL;
    return g->seat != NULL;
}

void guesses_leave(guesses *g)
{
    if (g->seat != NULL) g->source->leave(g->seat);
    *g = (guesses){0};
}

static void measure(guess_record *r, double ns)
{
    if (r->n_answers < COST_FIRST) {
        if (r->n_answers++ == 0 || ns < r->first_ns) r->first_ns = ns;
        r->token_ns = r->n_answers == COST_FIRST ? r->first_ns : 0;
        return;
    }
    if (ns > COST_OUTLIER * r->token_ns) ns = COST_OUTLIER * r->token_ns;
    r->token_ns += (ns - r->token_ns) * COST_WEIGHT;
}

static void answered(guesses *g, uint32_t n, uint64_t spent_ns)
{
    g->pending = g->late = false;
    if (n > g->room) n = g->room;
    g->n = 0;
    while (g->n < n && g->token[g->n] < g->n_vocab) g->n++;
    if (!g->source->costs || g->room == 0) return;
    measure(g->record, (double)spent_ns / g->room);
}

void guesses_look(guesses *g, const uint32_t *tokens)
{
    uint64_t spent_ns = 0;
    if (!g->pending) return;
    uint32_t n = g->source->guess(g->seat, tokens, g->n_tokens, g->token, g->room, &spent_ns);
    if (n != DRAFT_LATER) answered(g, n, spent_ns);
}

void guesses_ask(guesses *g, const uint32_t *tokens, uint64_t n, uint64_t n_drawn, uint32_t room)
{
    if (g->at != n_drawn) {
        g->at = n_drawn;
        g->n_tokens = n;
        g->room = room;
        g->n = 0;
        g->pending = room > 0;
        g->learned = false;
        g->wait_until_ns = 0;
    }
    guesses_look(g, tokens);
}

bool guesses_soon(const guesses *g, uint64_t n_drawn, uint64_t now)
{
    return g->at == n_drawn && g->pending && now < g->wait_until_ns;
}

static void learn_one(guesses *g, bool right)
{
    guess_record *r = g->record;
    if (r->n_hits < HITS_MAX) r->n_hits++;
    r->hit += ((right ? 1 : 0) - r->hit) / r->n_hits;
    g->hit += ((right ? 1 : 0) - g->hit) * HIT_WEIGHT;
}

uint32_t guesses_learn(guesses *g, const uint32_t *drawn, uint64_t n_drawn)
{
    if (g->source == NULL || g->pending || g->learned || g->at >= n_drawn) return 0;
    uint32_t k = 0;
    g->learned = true;
    for (; k < g->n && g->at + k < n_drawn; k++) {
        bool right = drawn[g->at + k] == g->token[k];
        learn_one(g, right);
        if (!right) break;
    }
    return k;
}

double guesses_cost_ns(const guesses *g, uint32_t room)
{
    return g->source->costs ? g->record->token_ns * room : 0;
}
