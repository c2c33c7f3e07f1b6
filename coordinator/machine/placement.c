#include "coordinator/machine/placement.h"

#include "coordinator/machine/inventory.h"

static bool same_device(device_door a, device_door b)
{
    bool whole = a.kind != DEVICE_CPU_NODE && a.kind != DEVICE_CUDA;
    bool b_whole = b.kind != DEVICE_CPU_NODE && b.kind != DEVICE_CUDA;
    return whole == b_whole && (whole || (a.kind == b.kind && a.index == b.index));
}

bool placement_costs(uint32_t cost[STAGES_MAX], const doors *d, const uint64_t *bytes_per_s)
{
    double seconds[STAGES_MAX], least = 0;
    bool known = true, alike = true;
    if (d->n_devices != d->n_stages) return false; /* the default placement, or the one word auto */
    for (uint32_t s = 0; s < d->n_stages; s++)
        known = known && bytes_per_s[s] != 0;
    for (uint32_t s = 0; s < d->n_stages; s++) {
        uint32_t sharing = 0;
        for (uint32_t t = 0; t < d->n_stages; t++)
            sharing += same_device(d->device[s], d->device[t]);
        seconds[s] = sharing / (known ? (double)bytes_per_s[s] : 1.0);
        if (s == 0 || seconds[s] < least) least = seconds[s];
    }
    for (uint32_t s = 0; s < d->n_stages; s++)
        alike = alike && seconds[s] == seconds[0];
    if (alike) return false;
    for (uint32_t s = 0; s < STAGES_MAX; s++) {
        double c = s < d->n_stages ? FENCE_COST_UNIT * seconds[s] / least + 0.5 : FENCE_COST_UNIT;
        cost[s] = c < FENCE_COST_MAX ? (uint32_t)c : FENCE_COST_MAX;
    }
    return true;
}

status placement_plan(plan *out, const model_desc *m, const doors *d, const plan_request *r,
                      errmsg *e)
{
    plan_request with = *r;
    if (d->splits == SPLITS_AUTO && d->n_devices == d->n_stages && !r->costs) {
        uint64_t bytes_per_s[STAGES_MAX];
        inventory_bandwidths(bytes_per_s, d);
        with.costs = placement_costs(with.cost, d, bytes_per_s);
    }
    return plan_make(out, m, d, &with, e);
}
