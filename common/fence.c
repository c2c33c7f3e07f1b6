/* auto is two passes of one recurrence over (stages left, first layer): the first finds the least
 * largest stage, the second the least sum of squares among the splits that keep to it. Both look at
 * suffixes, so that walking forward and taking the first cut that reaches the optimum gives the
 * earliest cuts. N * layers^2 steps: 17 million at the limits of both. */
#include "common/fence.h"
#include "common/amount.h"
#include "common/doortext.h"

#include <stdio.h>
#include <stdlib.h>

typedef unsigned __int128 wide; /* a sum of squares of bytes */
#define WIDE_MAX (~(wide)0)

static uint64_t tensor_bytes(tensor_ref r)
{
    return r.t != NULL ? r.t->bytes : 0;
}

/* Bytes beside the layers of a stage that is the first, the last, or both. */
static uint64_t extra_bytes(const model_desc *m, bool first, bool last)
{
    uint64_t bytes = tensor_bytes(m->rope.freq_factors);
    if (first) bytes += tensor_bytes(m->token_embd);
    if (last) bytes += tensor_bytes(m->output_norm);
    if (last && !(first && m->tied)) bytes += tensor_bytes(m->output);
    return bytes;
}

static bool cut_legal(const model_desc *m, uint32_t cut)
{
    return cut > 0 && cut < m->n_layers && !m->cut_forbidden[cut];
}

static uint32_t count_legal_cuts(const model_desc *m)
{
    uint32_t n = 0;
    for (uint32_t cut = 1; cut < m->n_layers; cut++)
        n += cut_legal(m, cut);
    return n;
}

/* List of cuts in quotes, for messages, shortened like every value. */
static const char *quote_cuts(char out[DOORTEXT_QUOTE_BYTES], const doors *d)
{
    char text[STAGES_MAX * 11];
    size_t n = 0;
    for (uint32_t i = 0; i < d->n_cuts; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", i > 0 ? "," : "", d->cut[i]);
    }
    return doortext_quote(out, text, n);
}

static status refuse_cut(const doors *d, uint32_t cut, const char *why, const model_desc *m,
                         errmsg *e)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    door_id id = d->split_old ? DOOR_SPLIT : DOOR_SPLITS;
    return errmsg_set(e, ST_BAD_DOOR, "%s=%s: cut %u %s; the model has %u layer%s; rule: %s",
                      doors_name(d, id), quote_cuts(quoted, d), cut, why, m->n_layers,
                      plural(m->n_layers), doors_table(NULL)[id].rule);
}

/* The cuts as given. */
static status plan_list(fence *f, const doors *d, const model_desc *m, errmsg *e)
{
    char quoted[DOORTEXT_QUOTE_BYTES];
    door_id id = d->split_old ? DOOR_SPLIT : DOOR_SPLITS;
    if (d->n_cuts != f->n_stages - 1) {
        uint32_t n_cuts = d->n_cuts;
        if (n_cuts > STAGES_MAX - 1) {
            return errmsg_set(e, ST_BAD_DOOR, "%s: %u cuts; rule: %s", doors_name(d, id), n_cuts,
                              doors_table(NULL)[id].rule);
        }
        return errmsg_set(e, ST_BAD_DOOR, "%s=%s: %u cut%s make%s %u stages, not %u; rule: %s",
                          doors_name(d, id), quote_cuts(quoted, d), n_cuts, plural(n_cuts),
                          n_cuts == 1 ? "s" : "", n_cuts + 1, f->n_stages,
                          doors_table(NULL)[id].rule);
    }
    for (uint32_t i = 0; i < d->n_cuts; i++) {
        uint32_t cut = d->cut[i];
        if (cut == 0) return refuse_cut(d, cut, "leaves the first stage no layer", m, e);
        if (cut >= m->n_layers) return refuse_cut(d, cut, "leaves the last stage no layer", m, e);
        if (cut <= f->at[i]) return refuse_cut(d, cut, "is not above the cut before it", m, e);
        if (m->cut_forbidden[cut]) return refuse_cut(d, cut, "is forbidden by the model", m, e);
        f->at[i + 1] = cut;
    }
    return ST_OK;
}

/* Legal cuts in order; n_legal >= N - 1. Cut s takes a place whose index leaves N - 1 - s after it.
 */
static void plan_even(fence *f, const model_desc *m, uint32_t n_legal)
{
    uint32_t legal[LAYERS_MAX], n = 0;
    for (uint32_t cut = 1; cut < m->n_layers; cut++) {
        if (cut_legal(m, cut)) legal[n++] = cut;
    }
    CHECK(n == n_legal && n >= f->n_stages - 1);
    uint32_t from = 0;
    for (uint32_t s = 1; s < f->n_stages; s++) {
        uint32_t ideal = (uint32_t)((uint64_t)s * m->n_layers / f->n_stages);
        uint32_t last = n - (f->n_stages - s), best = from;
        for (uint32_t i = from; i <= last; i++) {
            uint32_t off = legal[i] > ideal ? legal[i] - ideal : ideal - legal[i];
            uint32_t best_off = legal[best] > ideal ? legal[best] - ideal : ideal - legal[best];
            if (off < best_off) best = i;
        }
        f->at[s] = legal[best];
        f->moved = f->moved || legal[best] != ideal;
        from = best + 1;
    }
}

typedef struct {
    const model_desc *m;
    uint32_t n_stages;
    uint64_t before[LAYERS_MAX + 1]; /* bytes of the layers before il */
    uint32_t cost[STAGES_MAX];       /* of a byte, by stage; all 1 where all are alike */
    uint64_t limit;                  /* no stage costs more (second pass) */
    wide *best;                      /* [n_stages + 1][n_layers + 1]: stages left, first layer */
} auto_plan;

static wide *best_at(auto_plan *p, uint32_t stages_left, uint32_t il)
{
    return &p->best[(size_t)stages_left * (p->m->n_layers + 1) + il];
}

/* Of the stage with stages_left from it on: bytes x cost. */
static uint64_t range_cost(const auto_plan *p, uint32_t stages_left, uint32_t from, uint32_t to)
{
    uint64_t bytes =
        p->before[to] - p->before[from] + extra_bytes(p->m, false, to == p->m->n_layers);
    return bytes * p->cost[p->n_stages - stages_left];
}

/* Costs x bytes, squared and summed over 64 stages, must stay below 2^128. */
#define COSTED_BYTES_MAX (1ull << 46)

static void take_costs(auto_plan *p, const uint32_t *cost)
{
    uint64_t all = p->before[p->m->n_layers] + extra_bytes(p->m, true, true);
    for (uint32_t s = 0; s < p->n_stages; s++) {
        uint32_t c = 1;
        if (cost != NULL && all < COSTED_BYTES_MAX) {
            c = cost[s] > FENCE_COST_UNIT ? cost[s] : FENCE_COST_UNIT;
            if (c > FENCE_COST_MAX) c = FENCE_COST_MAX;
        }
        p->cost[s] = c;
    }
}

/* The worth of a split whose next stage is [from, to), with stages_left including it. */
static wide split_worth(auto_plan *p, bool squares, uint32_t stages_left, uint32_t from,
                        uint32_t to)
{
    wide rest = *best_at(p, stages_left - 1, to), cost = range_cost(p, stages_left, from, to);
    if (rest == WIDE_MAX) return WIDE_MAX;
    if (!squares) return cost > rest ? cost : rest;
    return cost > p->limit ? WIDE_MAX : cost * cost + rest;
}

static void fill_best(auto_plan *p, bool squares)
{
    uint32_t n_layers = p->m->n_layers;
    for (uint32_t il = 0; il <= n_layers; il++)
        *best_at(p, 0, il) = il == n_layers ? 0 : WIDE_MAX;
    for (uint32_t k = 1; k <= p->n_stages; k++) {
        for (uint32_t from = 0; from <= n_layers; from++) {
            wide best = WIDE_MAX;
            for (uint32_t to = from + 1; to <= n_layers; to++) {
                if (to != n_layers && !cut_legal(p->m, to)) continue;
                wide worth = split_worth(p, squares, k, from, to);
                if (worth < best) best = worth;
            }
            *best_at(p, k, from) = best;
        }
    }
}

static status plan_auto(fence *f, const model_desc *m, const uint32_t *cost, errmsg *e)
{
    auto_plan *p = calloc(1, sizeof *p);
    if (p != NULL) p->best = calloc((size_t)(f->n_stages + 1) * (m->n_layers + 1), sizeof(wide));
    if (p == NULL || p->best == NULL) {
        free(p);
        return errmsg_set(e, ST_RESOURCES, "no memory to plan the cuts");
    }
    p->m = m;
    p->n_stages = f->n_stages;
    for (uint32_t il = 0; il < m->n_layers; il++) {
        p->before[il + 1] = p->before[il] + model_layer_bytes(m, il);
    }
    take_costs(p, cost);
    fill_best(p, false);
    p->limit = (uint64_t)*best_at(p, f->n_stages, 0);
    fill_best(p, true);
    for (uint32_t s = 0; s + 1 < f->n_stages; s++) {
        uint32_t left = f->n_stages - s, to = f->at[s] + 1;
        wide best = *best_at(p, left, f->at[s]);
        while (!cut_legal(m, to) || split_worth(p, true, left, f->at[s], to) != best) {
            CHECK(++to < m->n_layers);
        }
        f->at[s + 1] = to;
    }
    free(p->best);
    free(p);
    return ST_OK;
}

static status plan(fence *f, const doors *d, const model_desc *m, const uint32_t *cost, errmsg *e)
{
    const char *stages = d->stages_default ? "--default-stages" : doors_name(d, DOOR_STAGES);
    uint32_t n_legal = count_legal_cuts(m);
    if (d->n_stages > m->n_layers) {
        return errmsg_set(e, ST_BAD_DOOR,
                          "%s=\"%u\": %u stages are more than the model's %u layer%s; rule: %s",
                          stages, d->n_stages, d->n_stages, m->n_layers, plural(m->n_layers),
                          doors_table(NULL)[DOOR_STAGES].rule);
    }
    if (d->n_stages - 1 > n_legal) {
        return errmsg_set(
            e, ST_BAD_DOOR,
            "%s=\"%u\": the model's %u layers can be cut in %u place%s only; rule: %s", stages,
            d->n_stages, m->n_layers, n_legal, plural(n_legal),
            doors_table(NULL)[DOOR_STAGES].rule);
    }
    f->n_stages = d->n_stages;
    f->at[f->n_stages] = m->n_layers;
    if (d->splits == SPLITS_LIST) return plan_list(f, d, m, e);
    if (d->splits == SPLITS_AUTO) return plan_auto(f, m, cost, e);
    plan_even(f, m, n_legal);
    return ST_OK;
}

status fence_plan_costs(fence *out, const doors *d, const model_desc *m,
                        const uint32_t cost[STAGES_MAX], errmsg *e)
{
    CHECK(d->n_stages >= 1 && d->n_stages <= STAGES_MAX);
    CHECK(m->n_layers >= 1 && m->n_layers <= LAYERS_MAX);
    *out = (fence){0};
    status s = plan(out, d, m, cost, e);
    if (s != ST_OK) *out = (fence){.n_stages = 1, .at = {0, m->n_layers}};
    return s;
}

status fence_plan(fence *out, const doors *d, const model_desc *m, errmsg *e)
{
    return fence_plan_costs(out, d, m, NULL, e);
}

static uint64_t range_bytes(const fence *f, const model_desc *m, uint32_t s)
{
    uint64_t bytes = 0;
    for (uint32_t il = f->at[s]; il < f->at[s + 1]; il++)
        bytes += model_layer_bytes(m, il);
    return bytes;
}

uint64_t fence_stage_bytes(const fence *f, const model_desc *m, uint32_t s)
{
    CHECK(s < f->n_stages);
    return range_bytes(f, m, s) + extra_bytes(m, s == 0, s + 1 == f->n_stages);
}

uint64_t fence_step_bytes(const fence *f, const model_desc *m, uint32_t s)
{
    CHECK(s < f->n_stages);
    return range_bytes(f, m, s) + extra_bytes(m, false, s + 1 == f->n_stages);
}

uint32_t fence_stage_of(const fence *f, uint32_t il)
{
    uint32_t s = 0;
    while (s + 1 < f->n_stages && il >= f->at[s + 1])
        s++;
    return s;
}
