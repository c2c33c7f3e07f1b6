#include "common/tracering.h"

#include "common/shm.h"

static const char *const kind_words[TRACE_KIND_COUNT] = {
#define X(name, word) [name] = word,
    TRACE_KIND_LIST(X)
#undef X
};

const char *trace_kind_word(uint32_t kind)
{
    return kind < TRACE_KIND_COUNT ? kind_words[kind] : "unknown";
}

static uint64_t block_bytes(uint32_t n_rings)
{
    return sizeof(trace_block) + n_rings * sizeof(trace_ring);
}

status trace_block_create(trace_block **out, int *fd, uint32_t n_rings, errmsg *e)
{
    void *map = NULL;
    *out = NULL;
    TRY(shm_create(fd, &map, "trace", block_bytes(n_rings), e));
    trace_block *b = map;
    b->magic = TRACE_BLOCK_MAGIC;
    b->n_rings = n_rings;
    b->bytes = block_bytes(n_rings);
    *out = b;
    return ST_OK;
}

status trace_block_map(trace_block **out, int fd, uint32_t n_rings, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = 0;
    *out = NULL;
    TRY(shm_map(&map, &bytes, "trace", fd, e));
    trace_block *b = map;
    if (bytes < block_bytes(n_rings) || b->magic != TRACE_BLOCK_MAGIC || b->n_rings != n_rings ||
        b->bytes != block_bytes(n_rings)) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "trace: not one of %u rings", n_rings);
    }
    *out = b;
    return ST_OK;
}

void trace_block_unmap(trace_block *b)
{
    if (b != NULL) shm_unmap(b, b->bytes);
}

bool trace_event_valid(const trace_event *ev)
{
    return ev->kind < TRACE_KIND_COUNT && ev->begin_ns <= ev->end_ns;
}

void trace_put(trace_ring *r, const trace_event *ev)
{
    if (r == NULL) return;
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&r->tail, memory_order_acquire) >= TRACE_RING_EVENTS) {
        atomic_fetch_add_explicit(&r->n_dropped, 1, memory_order_relaxed);
        return;
    }
    r->event[head % TRACE_RING_EVENTS] = *ev;
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
}

bool trace_take(trace_ring *r, trace_event *out)
{
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (;;) {
        uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);
        if (head == tail) return false;
        if (head - tail >
            TRACE_RING_EVENTS) { /* a writer that counts wrongly: what it has put is not known */
            atomic_store_explicit(&r->tail, head, memory_order_release);
            return false;
        }
        *out = r->event[tail % TRACE_RING_EVENTS];
        atomic_store_explicit(&r->tail, ++tail, memory_order_release);
        if (trace_event_valid(out)) return true;
    }
}
