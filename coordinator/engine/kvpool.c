#include "coordinator/engine/kvpool.h"

#include <stdlib.h>

status kvpool_open(kvpool *out, uint32_t n_blocks, errmsg *e)
{
    *out = (kvpool){.n_blocks = n_blocks,
                    .refs = calloc(n_blocks, sizeof *out->refs),
                    .tainted = calloc(n_blocks, sizeof *out->tainted)};
    if (out->refs != NULL && out->tainted != NULL) return ST_OK;
    return errmsg_set(e, ST_RESOURCES, "no memory for %u KV blocks", n_blocks);
}

void kvpool_close(kvpool *p)
{
    free(p->refs);
    free(p->tainted);
    *p = (kvpool){0};
}

uint32_t kvpool_take(kvpool *p)
{
    if (p->n_used == p->n_blocks) return UINT32_MAX;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        if (p->refs[i] == 0) {
            p->refs[i] = 1;
            p->n_used++;
            return i;
        }
    }
    return UINT32_MAX;
}

void kvpool_share(kvpool *p, uint32_t block)
{
    CHECK(block < p->n_blocks && p->refs[block] > 0);
    p->refs[block]++;
}

void kvpool_drop(kvpool *p, uint32_t block)
{
    CHECK(block < p->n_blocks && p->refs[block] > 0);
    if (--p->refs[block] == 0) p->n_used--;
}

void kvpool_taint(kvpool *p, uint32_t block)
{
    CHECK(block < p->n_blocks && p->refs[block] > 0);
    p->tainted[block] = true;
}

bool kvpool_untaint(kvpool *p, uint32_t block)
{
    CHECK(block < p->n_blocks && p->refs[block] == 1);
    bool was = p->tainted[block];
    p->tainted[block] = false;
    return was;
}
