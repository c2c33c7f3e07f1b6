#include "common/runblock.h"

#include "common/shm.h"

static const char *const state_words[STAGE_STATE_COUNT] = {
#define X(name, word) [name] = word,
    STAGE_STATE_LIST(X)
#undef X
};

const char *stage_state_word(uint32_t state)
{
    return state < STAGE_STATE_COUNT ? state_words[state] : "unknown";
}

status run_block_create(run_block **out, int *fd, uint32_t n_stages, errmsg *e)
{
    void *map = NULL;
    *out = NULL;
    TRY(shm_create(fd, &map, "run block", sizeof(run_block), e));
    run_block *b = map;
    b->magic = RUN_BLOCK_MAGIC;
    b->version = RUN_BLOCK_VERSION;
    b->n_stages = n_stages;
    b->bytes = sizeof(run_block);
    *out = b;
    return ST_OK;
}

void run_block_forget(run_block *b, uint32_t s)
{
    stage_words *w = &b->stage[s];
    atomic_store(&w->state, STAGE_STARTING);
    atomic_store(&w->starved, STARVED_NO);
    atomic_store(&w->inside, 0);
    atomic_store(&w->load_done_bytes, 0);
    atomic_store(&w->load_total_bytes, 0);
    atomic_store(&w->step_entered, 0);
    atomic_store(&w->step_done, 0);
}

status run_block_map(run_block **out, int fd, errmsg *e)
{
    void *map = NULL;
    uint64_t bytes = 0;
    *out = NULL;
    TRY(shm_map(&map, &bytes, "run block", fd, e));
    run_block *b = map;
    if (bytes < sizeof *b || b->magic != RUN_BLOCK_MAGIC || b->version != RUN_BLOCK_VERSION ||
        b->bytes != sizeof *b || b->n_stages == 0 || b->n_stages > STAGES_MAX) {
        shm_unmap(map, bytes);
        return errmsg_set(e, ST_PROTOCOL, "run block: not one of this build");
    }
    *out = b;
    return ST_OK;
}

void run_block_unmap(run_block *b)
{
    if (b != NULL) shm_unmap(b, sizeof *b);
}
