#include "coordinator/machine/boundaries.h"

#include "coordinator/machine/inventory.h"

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

status boundaries_check(const doors *d, const gpu_list *gpus, errmsg *e)
{
    bool by_signal = d->signal != SIGNAL_AUTO;
    transport_kind t = d->transport;
    if (by_signal && t != TRANSPORT_AUTO && t != TRANSPORT_IPC)
        return errmsg_set(e, ST_BAD_DOOR, "%s=%s stands beside %s=%s, which has no choice of signals",
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
        char from_text[INVENTORY_DEVICE_TEXT], to_text[INVENTORY_DEVICE_TEXT];
        const char *missing = lacks(t, &p);
        if (missing == NULL) continue;
        return errmsg_set(e, ST_BAD_DOOR, "%s=%s: boundary %u -> %u leads from %s to %s: %s",
                          doors_name(d, door), word, s, s + 1,
                          inventory_device_text(from_text, from),
                          inventory_device_text(to_text, to), missing);
    }
    if (t != TRANSPORT_AUTO && t != TRANSPORT_SHM && !inventory_has_cuda())
        return errmsg_set(e, ST_BAD_DOOR, "%s=%s: this build has no CUDA backend",
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
