#include "coordinator/machine/unsplit.h"

bool unsplit_asked(const step_doors *d)
{
    return !d->batch_pp || !d->spec_pp || !d->prime_pp;
}

static bool is_cuda(const plan *p, uint32_t s)
{
    return p->stage[s].device.kind == DEVICE_CUDA;
}

static bool on_the_primary(const plan *p, const gpu_list *gpus, uint32_t s)
{
    device_door a = p->stage[0].device, b = p->stage[s].device;
    if (is_cuda(p, 0) != is_cuda(p, s)) return false;
    if (is_cuda(p, 0)) return gpus_same(gpus, a.index, b.index);
    return (a.kind == DEVICE_CPU_NODE) == (b.kind == DEVICE_CPU_NODE) &&
           (a.kind != DEVICE_CPU_NODE || a.index == b.index);
}

static bool reaches(const plan *p, const gpu_list *gpus, uint32_t s)
{
    if (is_cuda(p, 0) != is_cuda(p, s)) return false;
    if (!is_cuda(p, 0) || on_the_primary(p, gpus, s)) return true;
    return gpus_link(gpus, p->stage[0].device.index, p->stage[s].device.index) != GPU_LINK_NONE;
}

bool unsplit_possible(const plan *p, const gpu_list *gpus)
{
    bool all = true;
    for (uint32_t s = 1; s < p->cuts.n_stages; s++)
        all = all && reaches(p, gpus, s);
    return all;
}

typedef struct {
    bool split;
    door_id id;
    const char *path;
} path;

static status check_path(const plan *p, const gpu_list *gpus, const doors *named,
                         const step_doors *d, const path *x, errmsg *e)
{
    const char *door = doors_name(named, x->id);
    for (uint32_t s = 1; s < p->cuts.n_stages; s++) {
        if (!reaches(p, gpus, s))
            return errmsg_set(
                e, ST_BAD_DOOR,
                "%s=0 asks for %s to walk unsplit on stage 0, whose device cannot reach the "
                "memory of stage %u; leave it out, or put both on devices of one kind "
                "that reach each other (%s)",
                door, x->path, s, doors_name(named, DOOR_DEVICES));
        if (x->id == DOOR_PRIME_PP || d->allow_unsplit_batch || on_the_primary(p, gpus, s))
            continue;
        return errmsg_set(
            e, ST_BAD_DOOR,
            "%s=0 asks for %s to walk unsplit on stage 0, which would read the weights of "
            "stage %u on another device in every step; leave it out, compare with one "
            "stage (%s=1), or measure it all the same (%s=1)",
            door, x->path, s, doors_name(named, DOOR_STAGES),
            doors_name(named, DOOR_ALLOW_UNSPLIT_BATCH));
    }
    return ST_OK;
}

status unsplit_check(const plan *p, const gpu_list *gpus, const doors *named, const step_doors *d,
                     errmsg *e)
{
    const path paths[] = {{d->batch_pp, DOOR_BATCH_PP, "batched decode"},
                          {d->spec_pp, DOOR_SPEC_PP, "speculation"},
                          {d->prime_pp, DOOR_PRIME_PP, "prompts"}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!paths[i].split) TRY(check_path(p, gpus, named, d, &paths[i], e));
    return ST_OK;
}

status unsplit_check_shard(const plan *p, const gpu_list *gpus, const doors *named, errmsg *e)
{
    for (uint32_t s = 1; p->gathered && s < p->cuts.n_stages; s++) {
        if (reaches(p, gpus, s)) continue;
        return errmsg_set(
            e, ST_BAD_DOOR,
            "%s=0 puts all weights on the device of stage 0, which that of stage %u cannot "
            "reach; leave it out, or put both on devices of one kind that reach each other "
            "(%s)",
            doors_name(named, DOOR_SHARD), s, doors_name(named, DOOR_DEVICES));
    }
    return ST_OK;
}

status unsplit_check_streams(const plan *p, const gpu_list *gpus, const doors *named, errmsg *e)
{
    for (uint32_t s = 1; p->one_process && s < p->cuts.n_stages; s++) {
        if (on_the_primary(p, gpus, s)) continue;
        return errmsg_set(
            e, ST_BAD_DOOR,
            "%s=0 puts all stages on one stream of one device, and stage %u is on another than "
            "stage 0; leave it out, or name one device for all (%s)",
            doors_name(named, DOOR_STREAMS), s, doors_name(named, DOOR_DEVICES));
    }
    return ST_OK;
}
