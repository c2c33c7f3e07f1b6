#include "coordinator/machine/boundaries.h"

#include "coordinator/machine/inventory.h"

#include <stdio.h>

typedef struct {
    bool from_cuda, to_cuda, same; /* same: one GPU, also when it is written two ways */
    gpu_link link;
} pair;

static pair pair_of(const gpu_list *gpus, device_door from, device_door to)
{
    pair p = {.from_cuda = from.kind == DEVICE_CUDA, .to_cuda = to.kind == DEVICE_CUDA};
    if (!p.from_cuda || !p.to_cuda) return p;
    p.same = gpus_same(gpus, from.index, to.index);
    p.link = p.same ? GPU_LINK_NONE : gpus_link(gpus, from.index, to.index);
    return p;
}

/* What the transport lacks between these; NULL: nothing that is known here. */
static const char *lacks(transport_kind t, const pair *p)
{
    switch (t) {
    case TRANSPORT_IPC:
        if (!p->from_cuda || !p->to_cuda) return "ipc needs a CUDA device at both ends";
        if (!p->same && p->link == GPU_LINK_NONE)
            return "ipc needs peer access, which these lack (memra-pp devices shows it)";
        return NULL;
    case TRANSPORT_NCCL:
        if (!p->from_cuda || !p->to_cuda) return "nccl needs a CUDA device at both ends";
        return p->same ? "nccl needs two devices, these are one" : NULL;
    case TRANSPORT_HOST:
        return p->from_cuda || p->to_cuda ? NULL : "host needs a CUDA device at one end";
    case TRANSPORT_AUTO:
    case TRANSPORT_SHM:
        return NULL;
    }
    return NULL;
}

/* "shm or auto": what can be asked for between these. */
static const char *possible(char *out, size_t bytes, const pair *p)
{
    static const transport_kind kinds[] = {TRANSPORT_IPC, TRANSPORT_NCCL, TRANSPORT_HOST,
                                           TRANSPORT_SHM};
    size_t n = 0;
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds && n < bytes; i++) {
        if (lacks(kinds[i], p) != NULL) continue;
        n += (size_t)snprintf(out + n, bytes - n, "%s%s", n > 0 ? ", " : "",
                              transport_word(kinds[i]));
    }
    if (n < bytes) snprintf(out + n, bytes - n, " or auto");
    return out;
}

/* The boundary from stage s on cannot have t, which the door asks for. */
static status refuse(const doors *d, door_id door, const pair *p, uint32_t s, const char *missing,
                     errmsg *e)
{
    device_door cpu = {.kind = DEVICE_CPU};
    char from[INVENTORY_DEVICE_TEXT], to[INVENTORY_DEVICE_TEXT], others[48];
    inventory_device_text(from, d->n_devices > s + 1 ? d->device[s] : cpu);
    inventory_device_text(to, d->n_devices > s + 1 ? d->device[s + 1] : cpu);
    if (door == DOOR_SIGNAL)
        return errmsg_set(e, ST_BAD_DOOR,
                          "%s=%s is a signal of transport ipc, and boundary %u -> %u leads from %s to "
                          "%s: %s; leave it out, or auto",
                          doors_name(d, door), signal_word(d->signal), s, s + 1, from, to, missing);
    return errmsg_set(e, ST_BAD_DOOR, "%s=%s: boundary %u -> %u leads from %s to %s: %s; there %s would do",
                      doors_name(d, door), transport_word(d->transport), s, s + 1, from, to, missing,
                      possible(others, sizeof others, p));
}

status boundaries_check(const doors *d, const gpu_list *gpus, errmsg *e)
{
    bool by_signal = d->signal != SIGNAL_AUTO;
    transport_kind t = d->transport;
    if (by_signal && t != TRANSPORT_AUTO && t != TRANSPORT_IPC)
        return errmsg_set(e, ST_BAD_DOOR, "%s=%s stands beside %s=%s, which has no choice of signals; leave "
                          "one of them out",
                          doors_name(d, DOOR_SIGNAL), signal_word(d->signal),
                          doors_name(d, DOOR_TRANSPORT), transport_word(t));
    if (by_signal) t = TRANSPORT_IPC;
    door_id door = d->transport == TRANSPORT_AUTO ? DOOR_SIGNAL : DOOR_TRANSPORT;
    const char *word = door == DOOR_SIGNAL ? signal_word(d->signal) : transport_word(t);
    for (uint32_t s = 0; s + 1 < d->n_stages; s++) {
        device_door cpu = {.kind = DEVICE_CPU};
        device_door from = d->n_devices > s + 1 ? d->device[s] : cpu;
        device_door to = d->n_devices > s + 1 ? d->device[s + 1] : cpu;
        pair p = pair_of(gpus, from, to);
        const char *missing = lacks(t, &p);
        if (missing != NULL) return refuse(d, door, &p, s, missing, e);
    }
    if (t != TRANSPORT_AUTO && t != TRANSPORT_SHM && !inventory_has_cuda())
        return errmsg_set(e, ST_BAD_DOOR,
                          "%s=%s needs CUDA devices and this build has no CUDA backend; leave it out, or "
                          "auto",
                          doors_name(d, door), word);
    return ST_OK;
}

boundary_words boundaries_expect(const doors *d, const gpu_list *gpus, device_door from,
                                 device_door to)
{
    static const transport_kind order[] = {TRANSPORT_IPC, TRANSPORT_NCCL, TRANSPORT_HOST,
                                           TRANSPORT_SHM};
    pair p = pair_of(gpus, from, to);
    transport_kind t = d->signal != SIGNAL_AUTO ? TRANSPORT_IPC : d->transport;
    for (uint32_t i = 0; t == TRANSPORT_AUTO; i++)
        if (lacks(order[i], &p) == NULL) t = order[i];
    const char *signal = t == TRANSPORT_NCCL             ? "nccl"
                         : t != TRANSPORT_IPC            ? "futex"
                         : d->signal != SIGNAL_AUTO      ? signal_word(d->signal)
                         : p.same                        ? "memop"
                                                         : "spin, memop";
    return (boundary_words){transport_word(t), signal};
}
