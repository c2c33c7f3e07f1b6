#include "coordinator/machine/placement.h"

#include "common/amount.h"
#include "common/log.h"
#include "common/threads.h"
#include "coordinator/machine/boundaries.h"
#include "coordinator/machine/inventory.h"

#include <stdio.h>
#include <string.h>

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

static uint32_t n_stages_on(const doors *d, const gpu_list *gpus, uint32_t ordinal)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < d->n_devices; s++)
        n += d->device[s].kind == DEVICE_CUDA && gpus_same(gpus, d->device[s].index, ordinal);
    return n;
}

/* The usable device with the fewest stages; false: there is none. */
static bool least_used(uint32_t *ordinal, const doors *d, const gpu_list *gpus)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < gpus->n; i++) {
        errmsg ignored = {0};
        if (gpu_usable(&gpus->at[i], &ignored) != ST_OK) continue;
        uint32_t n = n_stages_on(d, gpus, gpus->at[i].ordinal);
        if (n >= least) continue;
        least = n;
        *ordinal = gpus->at[i].ordinal;
    }
    return least != UINT32_MAX;
}

void placement_choose(doors *d, const gpu_list *gpus)
{
    uint32_t ordinal = 0;
    bool unset = d->n_devices == 0;
    if (!least_used(&ordinal, d, gpus)) return; /* what is left open is the cpu */
    bool lone_auto = d->n_devices == 1 && d->device[0].kind == DEVICE_AUTO;
    for (uint32_t s = 0; (unset || lone_auto) && s < d->n_stages; s++)
        d->device[s] = (device_door){.kind = unset ? DEVICE_CUDA : DEVICE_AUTO, .index = ordinal};
    if (unset || lone_auto) d->n_devices = d->n_stages;
    for (uint32_t s = 0; s < d->n_devices; s++) {
        if (d->device[s].kind != DEVICE_AUTO || !least_used(&ordinal, d, gpus)) continue;
        d->device[s] = (device_door){.kind = DEVICE_CUDA, .index = ordinal};
    }
}

static bool may_use_gpus(const doors *d)
{
    bool may = d->n_devices == 0;
    for (uint32_t s = 0; s < d->n_devices; s++)
        may = may || d->device[s].kind == DEVICE_CUDA || d->device[s].kind == DEVICE_AUTO;
    return may && inventory_has_cuda();
}

status placement_resolve(doors *d, gpu_list *gpus, const char *stage_program,
                         const volatile int *interrupt, errmsg *e)
{
    errmsg why = {0};
    status s = ST_OK;
    *gpus = (gpu_list){0};
    /* What a pipeline needs anyhow, before a process is started that could not run either. */
    if (may_use_gpus(d)) TRY(threads_can_start(ZEROMQ_THREADS + 1, "a coordinator", e));
    if (may_use_gpus(d)) s = gpus_read(gpus, stage_program, INVENTORY_PROBE_MS, interrupt, &why);
    if (s == ST_INTERRUPTED) return s;
    /* Where it could not even be asked, so it is with the stages, and that is an error. */
    if (s != ST_OK && (gpus->asked || d->n_devices != 0))
        log_warn("CUDA devices: %s; taken for none", why.text);
    placement_choose(d, gpus);
    TRY(inventory_check_devices(d, gpus, e));
    return boundaries_check(d, gpus, e);
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

static bool is_on(const plan *p, const gpu_list *gpus, uint32_t s, uint32_t ordinal)
{
    device_door d = p->stage[s].device;
    return d.kind == DEVICE_CUDA && gpus_same(gpus, d.index, ordinal);
}

uint64_t placement_gpu_bytes(const plan *p, const gpu_list *gpus, uint32_t ordinal)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < p->cuts.n_stages; s++) {
        if (is_on(p, gpus, s, ordinal)) n += p->stage[s].device_bytes;
    }
    return n;
}

status placement_fits(const plan *p, const gpu_list *gpus, errmsg *e)
{
    for (uint32_t i = 0; i < gpus->n; i++) {
        const gpu *g = &gpus->at[i];
        uint64_t need = placement_gpu_bytes(p, gpus, g->ordinal), kv = 0;
        if (need <= g->memory_free_bytes) continue;
        char stages[96] = "", fits[96] = "more devices, or a smaller type, would";
        size_t n = 0;
        for (uint32_t s = 0; s < p->cuts.n_stages; s++) {
            if (!is_on(p, gpus, s, g->ordinal)) continue;
            kv += p->stage[s].kv_bytes;
            if (n < sizeof stages)
                n += (size_t)snprintf(stages + n, sizeof stages - n, "%s%u", n > 0 ? ", " : "", s);
        }
        uint64_t rest = need - kv;
        if (g->memory_free_bytes > rest) {
            double share = (double)(g->memory_free_bytes - rest) / (double)kv;
            uint32_t n_ctx = (uint32_t)(share * p->n_ctx) / 64 * 64;
            if (n_ctx > 0) snprintf(fits, sizeof fits, "--ctx %u would", n_ctx);
        }
        return errmsg_set(
            e, ST_RESOURCES,
            "cuda:%u has %s free and stage%s %s need%s %s there (KV %s): that does not "
            "fit; %s",
            g->ordinal, amount_said(g->memory_free_bytes), strchr(stages, ',') != NULL ? "s" : "",
            stages, strchr(stages, ',') != NULL ? "" : "s", amount_said(need), amount_said(kv),
            fits);
    }
    return ST_OK;
}
