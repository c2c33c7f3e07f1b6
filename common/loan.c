#include "common/loan.h"

#include "common/plan.h"
#include "common/shm.h"

#include <string.h>

#define PAGE_BYTES 4096ull

static uint64_t on_page(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void loan_layout_make(loan_layout *out, const model_desc *m, uint32_t n_stages, const uint32_t *at,
                      const uint32_t n_blocks[KV_POOLS], dtype kv_type, bool pools_here)
{
    uint64_t end = 0;
    *out = (loan_layout){.n_stages = n_stages};
    for (uint32_t s = 0; s < n_stages; s++) {
        out->n_entries_max[s] = (at[s + 1] - at[s]) * LOAN_ENTRIES_LAYER + LOAN_ENTRIES_MODEL;
        out->page[s] = end;
        out->entries[s] = end + on_page(sizeof(loan_page));
        end = on_page(out->entries[s] + out->n_entries_max[s] * sizeof(loan_entry));
    }
    for (uint32_t s = 0; s < n_stages; s++) {
        for (uint32_t k = 0; k < model_n_kinds(m); k++) {
            uint32_t n_layers = model_n_layers_of(m, (layer_kind)k, at[s], at[s + 1]);
            out->kv[s][k] = end;
            out->kv_bytes[s][k] = plan_kv_bytes(m, n_layers, n_blocks[k], kv_type);
            if (pools_here) end = on_page(end + out->kv_bytes[s][k]);
        }
    }
    out->bytes = end;
}

status loan_create(int *fd, const loan_layout *at, errmsg *e)
{
    void *map;
    TRY(shm_create(fd, &map, "loan", at->bytes, e));
    shm_unmap(map, at->bytes);
    return ST_OK;
}

status loan_map(loan *out, int fd, const loan_layout *at, errmsg *e)
{
    void *map;
    uint64_t bytes;
    *out = (loan){.fd = -1};
    TRY(shm_map(&map, &bytes, "loan", fd, e));
    if (bytes != at->bytes) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "the loan has %llu bytes, %llu were to be there",
                          (unsigned long long)bytes, (unsigned long long)at->bytes);
    }
    *out = (loan){.map = map, .fd = fd, .at = *at};
    return ST_OK;
}

void loan_unmap(loan *l)
{
    shm_unmap(l->map, l->at.bytes);
    *l = (loan){.fd = -1};
}

loan_page *loan_page_of(const loan *l, uint32_t range)
{
    CHECK(range < l->at.n_stages);
    return (loan_page *)(l->map + l->at.page[range]);
}

loan_entry *loan_entries_of(const loan *l, uint32_t range)
{
    CHECK(range < l->at.n_stages);
    return (loan_entry *)(l->map + l->at.entries[range]);
}

void loan_publish(loan_note *n, uint32_t epoch)
{
    atomic_store_explicit(&n->epoch, epoch, memory_order_release);
}

status loan_read(loan_note *out, const loan_note *n, uint32_t epoch, uint32_t n_entries_max,
                 const char *what, errmsg *e)
{
    uint32_t found = atomic_load_explicit(&n->epoch, memory_order_acquire);
    out->n_entries = n->n_entries;
    out->bytes = n->bytes;
    memcpy(&out->ticket, &n->ticket, sizeof out->ticket);
    atomic_store_explicit(&out->epoch, found, memory_order_relaxed);
    if (epoch == 0 || found != epoch)
        return errmsg_set(e, ST_PROTOCOL, "%s: lent by incarnation %u, asked of %u", what, found,
                          epoch);
    if (out->n_entries > n_entries_max || out->ticket.bytes > LOAN_TICKET_BYTES)
        return errmsg_set(e, ST_PROTOCOL,
                          "%s: %u tensors and a ticket of %u bytes are not possible", what,
                          out->n_entries, out->ticket.bytes);
    return ST_OK;
}
